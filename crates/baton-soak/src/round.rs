//! Faults under load for a while, then quiet, then a look at what is left.

use std::collections::BTreeMap;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use rustix::process::Signal;

use crate::client::{Client, Got};
use crate::cluster::{Cluster, ENGINES, Member, Recipe};
use crate::faults::{Fault, Faults, Kind, MAX_AWAY};
use crate::load::{Load, Tally};
use crate::prompts::{self, PROMPTS};
use crate::vitals::Vitals;

const WARM_UP: Duration = Duration::from_secs(5);
/// How long everything may take to come to rest: leases, quarantines, and connections that are kept for a while.
const REST: Duration = Duration::from_secs(60);
/// Descriptors that a process may have more than before: connections of clients that have just left.
const SPARE_DESCRIPTORS: usize = 8;
/// Memory that a process may have more than before, in KiB: what allocators keep.
const SPARE_MEMORY_KIB: u64 = 16 << 10;

const ALL: [Member; 5] = [ENGINES[0], ENGINES[1], ENGINES[2], ENGINES[3], Member::Router];

/// What a round, or several, left.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    pub tally: Tally,
    /// By kind and role.
    pub faults: BTreeMap<(Kind, &'static str), u32>,
    /// Spared processes, before and after.
    pub vitals: Vec<(String, Vitals, Vitals)>,
    pub violations: Vec<String>,
}

impl Findings {
    pub fn add(&mut self, other: Self) {
        self.tally.add(other.tally);
        for (key, count) in other.faults {
            *self.faults.entry(key).or_default() += count;
        }
        self.vitals.extend(other.vitals);
        self.violations.extend(other.violations);
    }
}

/// What processes of each role hold when everybody is connected with everybody: what growth is measured by.
pub type Warm = BTreeMap<&'static str, Vitals>;

/// Plays up to `count` faults, until `end` at most.
///
/// # Errors
/// If a process ends by itself, or does not come back.
pub fn play(
    cluster: &mut Cluster,
    right: &[String],
    warm: &Warm,
    faults: &mut Faults,
    count: u32,
    clients: usize,
    end: Instant,
) -> Result<Findings> {
    let spared = faults.spare();
    let before = vitals(cluster, &spared)?;
    let mut findings = Findings::default();
    let load = Load::new(cluster.address(Member::Router), right);
    thread::scope(|scope| {
        let running = load.start(scope, clients);
        let mut away = Away { cluster, load: &load, until: Vec::new() };
        for _ in 0..count {
            away.wait(faults.gap())?;
            let safe = |member| spared.contains(&member) || away.has(member);
            if Instant::now() >= end {
                break;
            }
            let Some(fault) = faults.next(safe) else { break };
            away.begin(fault)?;
            *findings.faults.entry((fault.kind, fault.victim.role())).or_default() += 1;
        }
        away.everybody_back()?;
        drop(running);
        anyhow::Ok(())
    })?;
    findings.tally = load.into_tally();
    findings.violations.extend(unfreed(cluster));
    findings.violations.extend(grown(cluster, &before, warm, &mut findings.vitals)?);
    Ok(findings)
}

/// What one engine alone answers (I7).
///
/// # Errors
/// If it does not answer.
pub fn right_answers(recipe: Recipe) -> Result<Vec<String>> {
    let alone = Cluster::alone(recipe)?;
    let client = Client::default();
    let answer = |n| match client.complete(alone.address(Member::Alone), &prompts::ask(n)) {
        Got::Text(text) => Ok(text),
        other => bail!("without faults there are no errors: {other:?}"),
    };
    (0..PROMPTS).map(answer).collect()
}

/// Load without faults: what the first requests leave behind is no growth.
///
/// # Errors
/// If a request is not answered, or answered wrongly.
pub fn warm_up(cluster: &Cluster, right: &[String], clients: usize) -> Result<Warm> {
    let load = Load::new(cluster.address(Member::Router), right);
    thread::scope(|scope| {
        let _running = load.start(scope, clients);
        sleep(WARM_UP);
    });
    let tally = load.into_tally();
    ensure!(tally.right == tally.requests, "not every answer was right: {tally:?}");
    let mut warm = Warm::new();
    for (member, vitals) in vitals(cluster, &ALL)? {
        let most = warm.entry(member.role()).or_insert(vitals);
        most.descriptors = most.descriptors.max(vitals.descriptors);
    }
    Ok(warm)
}

/// The processes that are dead or stopped at the moment, and when they come back.
struct Away<'a> {
    cluster: &'a mut Cluster,
    load: &'a Load<'a>,
    until: Vec<(Instant, Fault)>,
}

impl Away<'_> {
    fn has(&self, member: Member) -> bool {
        self.until.iter().any(|(_, fault)| fault.victim == member)
    }

    /// Brings back whose time has come, for at least `gap`, and until there is room for one more.
    fn wait(&mut self, gap: Duration) -> Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < gap || self.until.len() >= MAX_AWAY {
            self.bring_back(Instant::now())?;
            sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn begin(&mut self, fault: Fault) -> Result<()> {
        match fault.kind {
            Kind::Kill => {
                if fault.victim == Member::Router {
                    self.load.lives.change();
                }
                self.cluster.kill(fault.victim)?;
            }
            Kind::Stop => self.cluster.signal(fault.victim, Signal::STOP)?,
            Kind::Cut => self.cluster.cut(fault.victim, true)?,
        }
        self.until.push((Instant::now() + fault.lasts, fault));
        Ok(())
    }

    fn bring_back(&mut self, now: Instant) -> Result<()> {
        let due = self.until.extract_if(.., |(at, _)| *at <= now).map(|(_, fault)| fault);
        for fault in due.collect::<Vec<_>>() {
            self.end(fault)?;
        }
        Ok(())
    }

    fn end(&mut self, fault: Fault) -> Result<()> {
        match fault.kind {
            Kind::Kill => {
                self.cluster.restart(fault.victim)?;
                self.cluster.await_healthy(fault.victim)?;
                if fault.victim == Member::Router {
                    self.load.lives.change();
                }
            }
            Kind::Stop => self.cluster.signal(fault.victim, Signal::CONT)?,
            Kind::Cut => self.cluster.cut(fault.victim, false)?,
        }
        Ok(())
    }

    fn everybody_back(&mut self) -> Result<()> {
        for (at, fault) in std::mem::take(&mut self.until) {
            sleep(at.saturating_duration_since(Instant::now()));
            self.end(fault)?;
        }
        ALL.into_iter().try_for_each(|member| self.cluster.await_healthy(member))
    }
}

/// I8: engines whose blocks do not all become free.
fn unfreed(cluster: &Cluster) -> Vec<String> {
    let deadline = Instant::now() + REST;
    loop {
        let used = ENGINES.map(|engine| (engine, cluster.blocks_in_use(engine)));
        let left: Vec<String> = used
            .into_iter()
            .filter(|(_, used)| *used != Some(0))
            .map(|(engine, used)| format!("{} keeps {used:?} blocks in use", engine.name()))
            .collect();
        if left.is_empty() || Instant::now() > deadline {
            return left;
        }
        sleep(Duration::from_millis(100));
    }
}

fn vitals(cluster: &Cluster, members: &[Member]) -> Result<Vec<(Member, Vitals)>> {
    members.iter().map(|member| Ok((*member, cluster.vitals(*member)?))).collect()
}

/// Processes that hold more than before, once kept connections have had time to end.
fn grown(
    cluster: &Cluster,
    before: &[(Member, Vitals)],
    warm: &Warm,
    seen: &mut Vec<(String, Vitals, Vitals)>,
) -> Result<Vec<String>> {
    let deadline = Instant::now() + REST;
    let mut violations = Vec::new();
    for (member, before) in before {
        // One whose peers had just come back had few connections.
        let usual = warm.get(member.role()).map_or(0, |warm| warm.descriptors).max(before.descriptors);
        let most = usual + SPARE_DESCRIPTORS;
        let mut after = cluster.vitals(*member)?;
        while after.descriptors > most && Instant::now() < deadline {
            sleep(Duration::from_millis(200));
            after = cluster.vitals(*member)?;
        }
        if after.descriptors > most {
            violations.push(format!(
                "{} has {} descriptors, before {}, and usual are {usual}",
                member.name(),
                after.descriptors,
                before.descriptors
            ));
        }
        if after.memory_kib > before.memory_kib * 2 + SPARE_MEMORY_KIB {
            violations.push(format!(
                "{} has {} KiB of memory, before {}",
                member.name(),
                after.memory_kib,
                before.memory_kib
            ));
        }
        seen.push((member.name(), *before, after));
    }
    Ok(violations)
}
