//! `cargo x sim`: runs seeds of the simulator and says what happened.

mod replay_command;
mod replay_plot;

use std::collections::BTreeMap;
use std::io::Write;
use std::num::NonZero;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use baton_sim::{Failed, Outcome, Scenario, SimConfig, Tally, many, shrink, try_run, try_scenario};
use clap::{Parser, Subcommand};

/// A failure that shrank to so little is told in full.
const WHOLE_LOG: usize = 400;

/// Runs the production cores on a simulated cluster, in virtual time, with faults, from a seed.
#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Seeds to run: a range A..B, or how many from 0 on.
    #[arg(long, default_value = "5000", value_parser = parse_seeds)]
    seeds: Range<u64>,
    /// One seed only.
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// A failing seed: prints the least that still fails in the same way, as a scenario and its log.
    #[arg(long, value_name = "SEED", conflicts_with_all = ["seeds", "seed"])]
    shrink: Option<u64>,
    /// A scenario from a file, as --shrink and --save write it.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seeds", "seed", "shrink"])]
    scenario: Option<PathBuf>,
    /// Where to write the scenario: the seed's, or what a failure shrank to.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Seconds that shrinking may take.
    #[arg(long, default_value_t = 60)]
    shrink_seconds: u64,
    /// Print the whole log; of a single seed or scenario.
    #[arg(long)]
    log: bool,
    /// Nothing goes wrong in any seed.
    #[arg(long)]
    calm: bool,
    /// Run all seeds, failing ones too, and list what failed.
    #[arg(long)]
    keep_going: bool,
    #[arg(long, default_value_t = std::thread::available_parallelism().map_or(1, NonZero::get))]
    threads: usize,
    /// In which seed each deliberate bug is found.
    #[cfg(feature = "mutants")]
    #[arg(long)]
    mutants: bool,
    /// Give the cores this deliberate bug.
    #[cfg(feature = "mutants")]
    #[arg(long, value_name = "NAME", value_parser = parse_mutant)]
    mutant: Option<baton_types::Mutant>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Replay(replay_command::ReplayArgs),
}

fn parse_seeds(text: &str) -> Result<Range<u64>, String> {
    let number = |text: &str| text.replace('_', "").parse::<u64>().map_err(|error| error.to_string());
    match text.split_once("..") {
        Some((from, to)) => Ok(number(from)?..number(to)?),
        None => Ok(0..number(text)?),
    }
}

#[cfg(feature = "mutants")]
fn parse_mutant(text: &str) -> Result<baton_types::Mutant, String> {
    let mut all = baton_types::Mutant::ALL.iter().copied();
    all.find(|mutant| format!("{mutant:?}") == text).ok_or_else(|| "--mutants lists them".to_owned())
}

fn main() -> ExitCode {
    let args = Args::parse();
    // What fails is reported below, with its log.
    std::panic::set_hook(Box::new(|_| {}));
    let config = SimConfig { faults: !args.calm, echo: args.log, ..SimConfig::default() };
    #[cfg(feature = "mutants")]
    let config =
        SimConfig { mutation: args.mutant.map_or(config.mutation, baton_types::Mutation::of), ..config };
    #[cfg(feature = "mutants")]
    if args.mutants {
        return hunt_mutants(&config, &args);
    }
    let result = match &args.command {
        Some(Command::Replay(args)) => replay_command::run(args),
        None => run(&config, &args),
    };
    match result {
        Ok(code) => code,
        Err(text) => {
            eprintln!("{text}");
            ExitCode::FAILURE
        }
    }
}

fn run(config: &SimConfig, args: &Args) -> Result<ExitCode, String> {
    if let Some(path) = &args.scenario {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let scenario: Scenario = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        return Ok(report_one(try_scenario(config, &scenario)));
    }
    if let Some(seed) = args.shrink {
        let Err(failed) = try_run(config, seed) else { return Err(format!("seed {seed} does not fail")) };
        return report_least(config, args, *failed);
    }
    if let Some(seed) = args.seed {
        if let Some(path) = &args.save {
            save(path, &Scenario::draw(seed, config.faults))?;
        }
        return Ok(report_one(try_run(config, seed)));
    }
    run_seeds(config, args)
}

fn report_one(result: Result<Outcome, Box<Failed>>) -> ExitCode {
    match result {
        Ok(outcome) => {
            println!("{}\nlog        {} lines, digest {:016x}", outcome.tally, outcome.lines, outcome.digest);
            ExitCode::SUCCESS
        }
        Err(failed) => {
            println!("{failed}");
            ExitCode::FAILURE
        }
    }
}

fn run_seeds(config: &SimConfig, args: &Args) -> Result<ExitCode, String> {
    let started = Instant::now();
    let (mut total, mut calm, mut done) = (Tally::default(), 0u64, 0u64);
    let mut failures: Vec<Failed> = Vec::new();
    many(config, args.seeds.clone(), args.threads, |_, result| {
        done += 1;
        match result {
            Ok(outcome) => {
                calm += u64::from(outcome.calm);
                total.merge(&outcome.tally);
            }
            Err(failed) => failures.push(*failed),
        }
        if done.is_multiple_of(100) {
            eprint!("\r{done} seeds, {} failed", failures.len());
            let _ = std::io::stderr().flush();
        }
        failures.is_empty() || args.keep_going
    });
    eprint!("\r");
    let seconds = started.elapsed().as_secs_f64();
    println!("seeds      {done} in {seconds:.1} s, {:.0}/s; {calm} without faults", done as f64 / seconds);
    println!("{total}");
    report(config, args, failures)
}

/// The first failure in full and as small as it gets, and all of them by what they say.
fn report(config: &SimConfig, args: &Args, failures: Vec<Failed>) -> Result<ExitCode, String> {
    let mut kinds: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for failed in &failures {
        let kind = failed.why.chars().filter(|c| !c.is_ascii_hexdigit()).take(60).collect();
        kinds.entry(kind).or_default().extend(failed.seed);
    }
    let Some(first) = failures.into_iter().next() else { return Ok(ExitCode::SUCCESS) };
    println!("\n{first}\n");
    let code = report_least(config, args, first);
    for (kind, seeds) in kinds {
        println!("{:5} x {kind:?}: seeds {:?}", seeds.len(), &seeds[..seeds.len().min(8)]);
    }
    code
}

fn report_least(config: &SimConfig, args: &Args, failed: Failed) -> Result<ExitCode, String> {
    let config = SimConfig { log_lines: WHOLE_LOG, echo: false, ..*config };
    let least = shrink(&config, failed, Duration::from_secs(args.shrink_seconds));
    println!("the least that fails:\n{}", least.log);
    match &args.save {
        Some(path) => save(path, &least.scenario)?,
        None => println!("{}", serde_json::to_string(&least.scenario).map_err(|error| error.to_string())?),
    }
    println!("{}", least.why);
    println!(
        "again: cargo x sim --scenario FILE --log; once it is fixed, the file belongs into tests/corpus"
    );
    Ok(ExitCode::FAILURE)
}

fn save(path: &Path, scenario: &Scenario) -> Result<(), String> {
    let text = serde_json::to_string_pretty(scenario).map_err(|error| error.to_string())?;
    std::fs::write(path, text + "\n").map_err(|error| format!("{}: {error}", path.display()))
}

/// One hunt after the other on each thread; the table in the order of the bugs.
#[cfg(feature = "mutants")]
fn hunt_mutants(config: &SimConfig, args: &Args) -> ExitCode {
    use std::sync::Mutex;

    let all = baton_types::Mutant::ALL;
    let waiting = Mutex::new(all.iter().enumerate());
    let found = Mutex::new(BTreeMap::new());
    let started = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..args.threads.max(1) {
            scope.spawn(|| {
                loop {
                    let next = waiting.lock().expect("no hunt panics").next();
                    let Some((i, mutant)) = next else { return };
                    let hunted = baton_sim::hunt(config, *mutant, args.seeds.clone());
                    found.lock().expect("no hunt panics").insert(i, hunted);
                }
            });
        }
    });
    let found = found.into_inner().expect("all hunts are over");
    println!("{:<26} {:<10} {:>6}  {:<100}", "mutant", "attacks", "seeds", "found by");
    for (mutant, hunted) in all.iter().zip(found.values()) {
        let (name, attacks) = (format!("{mutant:?}"), mutant.attacks());
        let (seeds, why) = match hunted {
            Some(hunted) => ((hunted.seed + 1 - args.seeds.start).to_string(), hunted.why.as_str()),
            None => ("-".into(), "nothing"),
        };
        println!("{name:<26} {attacks:<10} {seeds:>6}  {:.100}", why.lines().next().unwrap_or_default());
    }
    let caught = found.values().filter(|hunted| hunted.is_some()).count();
    println!("{caught} of {} found, in {:.1} s", all.len(), started.elapsed().as_secs_f64());
    if caught == all.len() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
