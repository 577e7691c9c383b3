//! Systems that `compare` starts itself: `baton up` with other flags.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use baton_types::EngineInfo;
use rand::rngs::{StdRng, SysRng};
use rand::{RngExt, SeedableRng};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use crate::endpoint::Endpoint;

/// How to start `baton up`.
#[derive(Clone, Debug)]
pub struct Launcher {
    pub program: OsString,
    /// For the children, in place of variables of the same name.
    pub environment: Vec<(String, String)>,
    /// Taken from the children: what they are told is in their arguments alone.
    pub forgotten: Vec<String>,
    pub start_timeout: Duration,
}

/// A system to compare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SystemPlan {
    pub name: String,
    pub strategy: Option<String>,
    /// Of `baton up`.
    pub flags: Vec<String>,
}

/// Flags of `up` about engines that a system without a hand-off has none of.
const OF_ROLES: [&str; 4] = ["--prefill", "--decode", "--prefill-args", "--decode-args"];

impl SystemPlan {
    /// A strategy with the flags that all systems share.
    pub fn of_strategy(strategy: &str, shared: &[String]) -> Self {
        let mut flags = vec![format!("--strategy={strategy}")];
        let mut shared = shared.iter();
        while let Some(flag) = shared.next() {
            let name = flag.split('=').next().unwrap_or(flag);
            if strategy == "none" && OF_ROLES.contains(&name) {
                if !flag.contains('=') {
                    // Its value is the next word.
                    shared.next();
                }
                continue;
            }
            flags.push(flag.clone());
        }
        Self { name: strategy.to_owned(), strategy: Some(strategy.to_owned()), flags }
    }

    /// `NAME=FLAGS`, flags separated by blanks, besides those that all systems share.
    ///
    /// # Errors
    /// If there is no name.
    pub fn read(text: &str, shared: &[String]) -> Result<Self, String> {
        let (name, own) = text
            .split_once('=')
            .filter(|(name, _)| !name.is_empty() && !name.starts_with('-'))
            .ok_or_else(|| format!("a system reads NAME=FLAGS, not {text:?}"))?;
        let own: Vec<String> = own.split_whitespace().map(str::to_owned).collect();
        let of_own = |flag: &String| flag.strip_prefix("--strategy=").map(str::to_owned);
        let strategy = own.iter().find_map(of_own);
        let flags = shared.iter().cloned().chain(own).collect();
        Ok(Self { name: name.to_owned(), strategy, flags })
    }
}

/// A system that runs. Dropped, it is killed.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    pub url: String,
    pub engines: Vec<String>,
}

const POLL_INTERVAL: Duration = Duration::from_millis(50);
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
/// Free ports in a row that engines are given; each takes two.
const ENGINE_PORTS: u16 = 32;
/// What is shown of a log.
const LAST_LINES: usize = 12;

impl Running {
    /// Starts the system and waits until it answers. On the main thread: the kernel kills children whose starter has ended.
    ///
    /// # Errors
    /// If it does not start, or not in time; with the last lines that it wrote.
    pub async fn start(launcher: &Launcher, plan: &SystemPlan, log_dir: &Path) -> Result<Self> {
        std::fs::create_dir_all(log_dir).with_context(|| format!("cannot make {}", log_dir.display()))?;
        let (port, base_port) = free_ports().context("no free ports")?;
        let log = log_dir.join("up.log");
        let out = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut command = Command::new(&launcher.program);
        command.arg("up").args(&plan.flags);
        command.args([format!("--port={port}"), format!("--base-port={base_port}")]);
        command.arg("--log-dir").arg(log_dir);
        for name in &launcher.forgotten {
            command.env_remove(name);
        }
        command.envs(launcher.environment.iter().cloned());
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        // Ctrl-C in the terminal reaches the parent alone.
        command.process_group(0).kill_on_drop(true);
        let child = command.spawn().with_context(|| format!("cannot start {:?}", launcher.program))?;
        let mut running = Self { child, url: format!("http://127.0.0.1:{port}"), engines: Vec::new() };
        running.wait_until_healthy(launcher.start_timeout, &log).await?;
        running.engines = engines_from(base_port).await;
        Ok(running)
    }

    async fn wait_until_healthy(&mut self, limit: Duration, log: &Path) -> Result<()> {
        let endpoint = Endpoint::at(&self.url, None)?;
        let deadline = Instant::now() + limit;
        while endpoint.get_text("/health").await.is_err() {
            if let Some(status) = self.child.try_wait()? {
                bail!("{}", told(status, log));
            }
            if Instant::now() > deadline {
                bail!("it was not ready within {limit:?}:\n{}", last_lines(log));
            }
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Asks it to end and waits; kills it if that takes too long.
    pub async fn stop(mut self) {
        let pid = self.child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        if let Some(pid) = pid {
            // It may have ended this moment.
            let _ = kill_process(pid, Signal::TERM);
        }
        if timeout(STOP_TIMEOUT, self.child.wait()).await.is_err() {
            // Its own children die with it.
            let _ = self.child.kill().await;
        }
    }
}

fn told(status: ExitStatus, log: &Path) -> String {
    format!("baton up ended ({status}):\n{}", last_lines(log))
}

fn last_lines(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LAST_LINES)..].iter().map(|line| format!("    {line}\n")).collect()
}

/// Engines have every second port from the base on, and say who they are.
async fn engines_from(base_port: u16) -> Vec<String> {
    let mut engines = Vec::new();
    for port in (base_port..).step_by(2).take(usize::from(ENGINE_PORTS / 2)) {
        let url = format!("http://127.0.0.1:{port}");
        let Ok(endpoint) = Endpoint::at(&url, None) else { break };
        if endpoint.get_json::<EngineInfo>("/baton/info").await.is_err() {
            break;
        }
        engines.push(url);
    }
    engines
}

/// One for the router and the first of a row for the engines. Somebody else may take them before they are used; then the start
/// fails and says so.
fn free_ports() -> Option<(u16, u16)> {
    let is_free = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    let mut random = StdRng::try_from_rng(&mut SysRng).ok()?;
    // Below the range that connections are given ports from.
    let base = (0..200)
        .map(|_| random.random_range(12_000..31_000))
        .find(|base| (0..=ENGINE_PORTS).all(|i| is_free(base + i)))?;
    Some((base + ENGINE_PORTS, base))
}

/// Each plan's name once: names tell systems apart.
pub(crate) fn check_names(plans: &[SystemPlan]) -> Result<()> {
    let names: BTreeSet<&str> = plans.iter().map(|plan| plan.name.as_str()).collect();
    if names.len() < plans.len() {
        bail!("two systems have one name");
    }
    if plans.len() < 2 {
        bail!("a comparison needs two systems: --strategies none,push, or --system NAME=FLAGS");
    }
    Ok(())
}

/// Where a system's logs go.
pub(crate) fn log_dir(out: &Path, name: &str, round: u32) -> PathBuf {
    let name: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' }).collect();
    out.join("logs").join(format!("{name}-{}", round + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn a_system_without_a_hand_off_is_not_told_of_roles() {
        let shared =
            words("--model emulated --prefill 2 --decode=3 --kv-memory=1GiB --decode-args --threads=1");
        let none = SystemPlan::of_strategy("none", &shared);
        assert_eq!(none.flags, words("--strategy=none --model emulated --kv-memory=1GiB"));
        assert_eq!(SystemPlan::of_strategy("push", &shared).flags.len(), shared.len() + 1);
    }

    #[test]
    fn systems_may_differ_in_anything() {
        let plan =
            SystemPlan::read("cold=--strategy=push --no-prefix-cache", &words("--model=emulated")).unwrap();
        assert_eq!(plan.strategy.as_deref(), Some("push"));
        assert_eq!(plan.flags, words("--model=emulated --strategy=push --no-prefix-cache"));
        for bad in ["", "=x", "name", "--strategy=push"] {
            assert!(SystemPlan::read(bad, &[]).is_err(), "{bad}");
        }
        let two = [plan.clone(), plan.clone()];
        assert!(check_names(&two).is_err() && check_names(&two[..1]).is_err());
        assert!(log_dir(Path::new("out"), "a/../b", 0).ends_with("logs/a_.._b-1"));
    }
}
