//! What a measurement was made on, and who else was at work meanwhile.

use std::fmt;
use std::fs;
use std::time::Instant;

use anyhow::Context;
use xshell::{Shell, cmd};

/// `USER_HZ`, the unit of the times in /proc: 100 per second on every Linux that Rust knows.
const TICKS_PER_S: f64 = 100.0;

/// Above this many cores, others change what is measured.
const MAX_OTHERS_CORES: f64 = 0.1;

/// The machine and the code.
pub struct Conditions {
    processor: String,
    cores: usize,
    features: Vec<String>,
    rustc: String,
    commit: String,
}

impl Conditions {
    pub fn read(sh: &Shell) -> anyhow::Result<Self> {
        let info = fs::read_to_string("/proc/cpuinfo").context("/proc/cpuinfo")?;
        let field = |name: &str| {
            let line = info.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.split_once(':')).map_or("unknown", |(_, value)| value.trim())
        };
        let is_vector = |flag: &&str| ["fma", "avx2", "f16c"].contains(flag) || flag.starts_with("avx512");
        let changed = !cmd!(sh, "git status --porcelain").quiet().read()?.is_empty();
        let commit = cmd!(sh, "git rev-parse --short HEAD").quiet().read()?;
        Ok(Self {
            processor: field("model name").to_owned(),
            cores: std::thread::available_parallelism()?.get(),
            features: field("flags").split_whitespace().filter(is_vector).map(str::to_owned).collect(),
            rustc: cmd!(sh, "rustc --version").quiet().read()?,
            commit: commit + if changed { " with changes" } else { "" },
        })
    }
}

impl fmt::Display for Conditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "processor   {}, {} cores", self.processor, self.cores)?;
        writeln!(f, "flags       {}", self.features.join(" "))?;
        writeln!(f, "Baton       {}, {}", self.commit, self.rustc)
    }
}

/// The machine's load at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    at: Instant,
    /// Of the last minute.
    average: f64,
    busy_ticks: u64,
    /// Taken by other guests of the same host.
    stolen_ticks: u64,
    /// By the programs that this one ran.
    own_ticks: u64,
}

impl Load {
    pub fn read() -> anyhow::Result<Self> {
        let read = |path: &'static str| fs::read_to_string(path).context(path);
        let (average, stat, own) = (read("/proc/loadavg")?, read("/proc/stat")?, read("/proc/self/stat")?);
        let average = average.split_whitespace().next().and_then(|first| first.parse().ok());
        let (busy_ticks, stolen_ticks) = machine_ticks(&stat).context("/proc/stat")?;
        Ok(Self {
            at: Instant::now(),
            average: average.context("/proc/loadavg")?,
            busy_ticks,
            stolen_ticks,
            own_ticks: children_ticks(&own).context("/proc/self/stat")?,
        })
    }
}

/// What was going on from one moment to the other.
pub struct Meanwhile {
    pub before: Load,
    pub after: Load,
}

impl Meanwhile {
    fn cores(&self, ticks: impl Fn(&Load) -> u64) -> f64 {
        let s = self.after.at.duration_since(self.before.at).as_secs_f64();
        ticks(&self.after).saturating_sub(ticks(&self.before)) as f64 / TICKS_PER_S / s
    }
}

impl fmt::Display for Meanwhile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own = self.cores(|load| load.own_ticks);
        let others = (self.cores(|load| load.busy_ticks) - own).max(0.0);
        let stolen = self.cores(|load| load.stolen_ticks);
        writeln!(
            f,
            "load        {:.2} before, {:.2} after; cores used: {own:.2} by this, {others:.2} by others, {stolen:.2} by \
             other guests of the host",
            self.before.average, self.after.average
        )?;
        if others + stolen > MAX_OTHERS_CORES {
            writeln!(
                f,
                "WARNING     others were at work: only the ratios mean something, and those roughly. Wait for a quiet \
                 machine; `chrt -f 10 cargo x bench ...` goes before them."
            )?;
        }
        Ok(())
    }
}

/// Busy and stolen, of all cores.
fn machine_ticks(stat: &str) -> Option<(u64, u64)> {
    let ticks: Vec<u64> =
        stat.lines().next()?.split_whitespace().skip(1).map_while(|t| t.parse().ok()).collect();
    let [user, nice, system, _idle, _iowait, irq, softirq, stolen, ..] = ticks[..] else { return None };
    Some((user + nice + system + irq + softirq, stolen))
}

/// Used by the children that have ended: fields 16 and 17 of proc_pid_stat(5). The name in field 2 may hold anything.
fn children_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(13);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_is_read() {
        let stat = "cpu  10 2 30 400 5 6 7 8 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        assert_eq!(machine_ticks(stat), Some((55, 8)));
        let own = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 11 12 1300 17 20 0 1";
        assert_eq!(children_ticks(own), Some(1317));
        assert_eq!((machine_ticks(""), children_ticks("7 (a)")), (None, None));
    }
}
