//! Systems side by side: started one after the other, in an order that turns every round, and sent the same requests.

use anyhow::{Context, Result};
use baton_workload::compare::{Round, compare as compare_records};
use baton_workload::result::{Comparison, Point, RequestRecord, Warning, WarningKind};

use crate::options::{Options, Stop, said};
use crate::outcome::{Outcome, comparison_table};
use crate::run::Run;
use crate::survey::{Known, Survey};
use crate::system::{Launcher, Running, SystemPlan, check_names, log_dir};

/// With fewer rounds an interval holds little of what differs between them.
const FEW_ROUNDS: u32 = 3;

/// One measured point and its requests.
struct Done {
    system: usize,
    level: usize,
    point: usize,
    records: Vec<RequestRecord>,
}

/// The first system is what the others are divided by. On the main thread: see [`Running::start`].
///
/// # Errors
/// If a system does not start or cannot be measured at all.
pub async fn compare(
    plans: &[SystemPlan],
    launcher: &Launcher,
    options: Options,
    stop: Stop,
) -> Result<Outcome> {
    check_names(plans)?;
    let mut run = Run::new(options)?;
    run.screen.line(&format!("seed {}; {}", run.options.seed, run.workload.description));
    let mut done = Vec::new();
    for round in 0..run.options.rounds {
        for system in order(plans.len(), round) {
            if *stop.borrow() {
                break;
            }
            let measured = measure_system(&mut run, &plans[system], launcher, round, &stop).await;
            let measured = run.go_on_without(measured.with_context(|| plans[system].name.clone()))?;
            done.extend(measured.unwrap_or_default().into_iter().map(|(level, point, records)| Done {
                system,
                level,
                point,
                records,
            }));
        }
    }
    let comparisons = comparisons(&run, plans, &done);
    run.screen.settled();
    run.screen.line(&comparison_table(&comparisons));
    if run.options.rounds < FEW_ROUNDS {
        run.warnings.push(few_rounds(run.options.rounds));
    }
    run.finish(comparisons)
}

/// There and back: what drifts over time meets each system from both sides.
fn order(systems: usize, round: u32) -> Vec<usize> {
    let forth = 0..systems;
    if round.is_multiple_of(2) { forth.collect() } else { forth.rev().collect() }
}

type Measured = (usize, usize, Vec<RequestRecord>);

async fn measure_system(
    run: &mut Run,
    plan: &SystemPlan,
    launcher: &Launcher,
    round: u32,
    stop: &Stop,
) -> Result<Vec<Measured>> {
    run.screen.working(&format!("starting {}", plan.name));
    let mut stopped = stop.clone();
    let logs = log_dir(&run.options.out, &plan.name, round);
    let running = tokio::select! {
        running = Running::start(launcher, plan, &logs) => running?,
        () = said(&mut stopped) => return Ok(Vec::new()),
    };
    let measured = measure_levels(run, plan, &running, round, stop).await;
    run.screen.working(&format!("stopping {}", plan.name));
    running.stop().await;
    measured
}

async fn measure_levels(
    run: &mut Run,
    plan: &SystemPlan,
    running: &Running,
    round: u32,
    stop: &Stop,
) -> Result<Vec<Measured>> {
    let known = Known {
        name: plan.name.clone(),
        strategy: plan.strategy.clone(),
        url: running.url.clone(),
        engines: running.engines.clone(),
        flags: plan.flags.clone(),
        // Systems are this same program.
        commit: option_env!("BATON_COMMIT").map(str::to_owned),
    };
    let survey = Survey::of(known, &run.options).await?;
    let mut measured = Vec::new();
    for level in 0..run.levels.len() {
        if *stop.borrow() {
            break;
        }
        let records = run.measure(&survey, level, round, stop).await?;
        measured.push((level, run.points.len() - 1, records));
    }
    if !run.systems.iter().any(|system| system.name == plan.name) {
        run.systems.push(survey.system);
    }
    Ok(measured)
}

/// Every system by the first, at every level.
fn comparisons(run: &Run, plans: &[SystemPlan], done: &[Done]) -> Vec<Comparison> {
    let mut comparisons = Vec::new();
    for (level, plan) in run.levels.iter().enumerate() {
        for candidate in 1..plans.len() {
            let of =
                |system: usize| done.iter().filter(move |done| (done.system, done.level) == (system, level));
            let rounds: Vec<Round<'_>> = of(0)
                .filter_map(|baseline| {
                    let round = run.points[baseline.point].round;
                    let candidate = of(candidate).find(|done| run.points[done.point].round == round)?;
                    Some(round_of(baseline, candidate, &run.points))
                })
                .collect();
            if !rounds.is_empty() {
                let (a, b) = (&plans[0].name, &plans[candidate].name);
                comparisons.push(compare_records(a, b, plan.load.clone(), &rounds, run.options.seed));
            }
        }
    }
    comparisons
}

fn round_of<'a>(baseline: &'a Done, candidate: &'a Done, points: &[Point]) -> Round<'a> {
    let rate = |done: &Done| points[done.point].throughput.output_tokens.value;
    Round {
        baseline: &baseline.records,
        candidate: &candidate.records,
        baseline_rate: rate(baseline),
        candidate_rate: rate(candidate),
    }
}

fn few_rounds(rounds: u32) -> Warning {
    let text = format!(
        "{rounds} of the {FEW_ROUNDS} rounds that a comparison should have at least: the intervals hold little of what differs from one start to the next."
    );
    Warning { kind: WarningKind::FewRounds, text, point: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_second_round_goes_backwards() {
        assert_eq!(order(3, 0), [0, 1, 2]);
        assert_eq!(order(3, 1), [2, 1, 0]);
    }
}
