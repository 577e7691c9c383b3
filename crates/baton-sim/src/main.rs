//! `cargo x sim`: runs seeds of the simulator and says what happened.

use std::collections::BTreeMap;
use std::io::Write;
use std::num::NonZero;
use std::ops::Range;
use std::process::ExitCode;
use std::time::Instant;

use baton_sim::{Failed, SimConfig, Tally, many, run};
use clap::Parser;

/// Runs the production cores on a simulated cluster, in virtual time, with faults, from a seed.
#[derive(Debug, Parser)]
struct Args {
    /// Seeds to run: a range A..B, or how many from 0 on.
    #[arg(long, default_value = "5000", value_parser = parse_seeds)]
    seeds: Range<u64>,
    /// One seed only.
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Print the whole log; of a single seed.
    #[arg(long, requires = "seed")]
    log: bool,
    /// Nothing goes wrong in any seed.
    #[arg(long)]
    calm: bool,
    /// Run all seeds, failing ones too, and list what failed.
    #[arg(long)]
    keep_going: bool,
    #[arg(long, default_value_t = std::thread::available_parallelism().map_or(1, NonZero::get))]
    threads: usize,
    /// How many seeds it takes to find each deliberate bug.
    #[cfg(feature = "mutants")]
    #[arg(long)]
    mutants: bool,
}

fn parse_seeds(text: &str) -> Result<Range<u64>, String> {
    let number = |text: &str| text.replace('_', "").parse::<u64>().map_err(|error| error.to_string());
    match text.split_once("..") {
        Some((from, to)) => Ok(number(from)?..number(to)?),
        None => Ok(0..number(text)?),
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let config = SimConfig { faults: !args.calm, echo: args.log, ..SimConfig::default() };
    #[cfg(feature = "mutants")]
    if args.mutants {
        return hunt_mutants(&config, &args);
    }
    if let Some(seed) = args.seed {
        let outcome = run(&config, seed);
        println!("{}\nlog        {} lines, digest {:016x}", outcome.tally, outcome.lines, outcome.digest);
        return ExitCode::SUCCESS;
    }
    run_seeds(&config, &args)
}

fn run_seeds(config: &SimConfig, args: &Args) -> ExitCode {
    // What failed is reported below, with its log.
    std::panic::set_hook(Box::new(|_| {}));
    let started = Instant::now();
    let (mut total, mut calm, mut done) = (Tally::default(), 0u64, 0u64);
    let mut failures: Vec<Box<Failed>> = Vec::new();
    many(config, args.seeds.clone(), args.threads, |_, result| {
        done += 1;
        match result {
            Ok(outcome) => {
                calm += u64::from(outcome.calm);
                total.merge(&outcome.tally);
            }
            Err(failed) => failures.push(failed),
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
    report(&failures)
}

/// The first failure in full, and all of them by what they say.
fn report(failures: &[Box<Failed>]) -> ExitCode {
    let Some(first) = failures.first() else { return ExitCode::SUCCESS };
    println!("\n{first}\n");
    let mut kinds: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for failed in failures {
        let kind = failed.why.chars().filter(|c| !c.is_ascii_hexdigit()).take(60).collect();
        kinds.entry(kind).or_default().push(failed.seed);
    }
    for (kind, seeds) in kinds {
        println!("{:5} x {kind:?}: seeds {:?}", seeds.len(), &seeds[..seeds.len().min(8)]);
    }
    ExitCode::FAILURE
}

#[cfg(feature = "mutants")]
fn hunt_mutants(config: &SimConfig, args: &Args) -> ExitCode {
    std::panic::set_hook(Box::new(|_| {}));
    let mut all_found = true;
    println!("{:<28}{:>8}{:>10}  found by", "mutant", "seeds", "s");
    for mutant in baton_types::Mutant::ALL {
        let started = Instant::now();
        let found = baton_sim::hunt(config, mutant, args.seeds.clone());
        let seconds = started.elapsed().as_secs_f64();
        let name = format!("{mutant:?}");
        match found {
            Some(failed) => {
                let seeds = failed.seed + 1 - args.seeds.start;
                let why = failed.why.lines().next().unwrap_or_default();
                println!("{name:<28}{seeds:>8}{seconds:>10.2}  {:.100}", why);
            }
            None => {
                all_found = false;
                println!("{name:<28}{:>8}{seconds:>10.2}  nothing", "-");
            }
        }
    }
    if all_found { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
