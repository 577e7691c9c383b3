//! One run of a scenario, and what came of it.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use baton_types::Mutation;

use crate::log::Log;
use crate::scenario::Scenario;
use crate::tally::Tally;
use crate::world::World;

/// What a seed is run with. Two runs with equal values of it and equal seeds are equal (I10).
#[derive(Clone, Copy, Debug)]
pub struct SimConfig {
    /// Whether anything may go wrong; which things do, the seed decides.
    pub faults: bool,
    /// A bug that the cores are to have.
    pub mutation: Mutation,
    /// Lines of the log that a failed run shows.
    pub log_lines: usize,
    /// Print the whole log.
    pub echo: bool,
}

impl Default for SimConfig {
    fn default() -> Self {
        Self { faults: true, mutation: Mutation::NONE, log_lines: 60, echo: false }
    }
}

/// A run in which everything held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Of the whole log: equal only if everything that happened was.
    pub digest: u64,
    /// Lines of the log.
    pub lines: u64,
    pub tally: Tally,
    /// How long each client waited for its first token, if it got one.
    pub first_tokens: Vec<Option<Duration>>,
    /// Whether the seed had no faults: then there were no errors either.
    pub calm: bool,
}

/// A run in which something did not hold.
#[derive(Clone, Debug)]
pub struct Failed {
    /// The seed that the scenario was drawn from, if it was.
    pub seed: Option<u64>,
    pub scenario: Scenario,
    /// Which assertion.
    pub why: String,
    /// The end of the log.
    pub log: String,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, scenario, why, log } = self;
        writeln!(f, "{log}")?;
        match seed {
            Some(seed) => {
                writeln!(f, "seed {seed} failed: {why}")?;
                writeln!(f, "all of it: cargo x sim --seed {seed} --log")?;
                write!(f, "the least of it: cargo x sim --shrink {seed}")
            }
            None => {
                let scenario = serde_json::to_string(scenario).map_err(|_| fmt::Error)?;
                writeln!(f, "{scenario}")?;
                write!(f, "this scenario failed: {why}")
            }
        }
    }
}

impl std::error::Error for Failed {}

/// Runs a seed to its end.
///
/// # Panics
/// If anything does not hold, with what is needed to see it again.
pub fn run(config: &SimConfig, seed: u64) -> Outcome {
    match try_run(config, seed) {
        Ok(outcome) => outcome,
        Err(failed) => panic!("{failed}"),
    }
}

/// Runs a seed to its end.
///
/// # Errors
/// What did not hold first. The process's panic hook has seen it before.
pub fn try_run(config: &SimConfig, seed: u64) -> Result<Outcome, Box<Failed>> {
    let scenario = Scenario::draw(seed, config.faults);
    try_scenario(config, &scenario).map_err(|failed| Box::new(Failed { seed: Some(seed), ..*failed }))
}

/// Runs a scenario to its end.
///
/// # Errors
/// What did not hold first. The process's panic hook has seen it before.
pub fn try_scenario(config: &SimConfig, scenario: &Scenario) -> Result<Outcome, Box<Failed>> {
    let log = Log::new(config.log_lines, config.echo);
    let mut world = World::new(scenario.clone(), config.mutation, log);
    // AssertUnwindSafe: of a world that panicked only the log is looked at.
    match catch_unwind(AssertUnwindSafe(|| world.run())) {
        Ok(()) => Ok(Outcome {
            digest: world.log.digest(),
            lines: world.log.lines(),
            first_tokens: world.clients.iter().map(|client| client.first_token).collect(),
            calm: world.scenario.faults.is_calm(),
            tally: world.tally,
        }),
        Err(panic) => Err(Box::new(Failed {
            seed: None,
            scenario: scenario.clone(),
            why: text_of(&*panic),
            log: world.log.tail(),
        })),
    }
}

pub(crate) fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message").to_owned()
}
