//! `cargo x soak`: kills, stops and cuts real processes under load, and looks at every answer and at what is left.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail, ensure};
use baton_soak::faults::{Faults, Kind};
use baton_soak::network::Network;
use baton_soak::round::{self, Findings};
use baton_soak::{Cluster, Recipe, report, vitals};
use clap::{Parser, ValueEnum};

/// Kills, stops and cuts off real processes under load, and looks at every answer and at what is left
#[derive(Debug, Parser)]
#[command(name = "cargo x soak")]
struct Args {
    /// SIGKILLs, each followed by a new start
    #[arg(long, default_value_t = 300)]
    kills: u32,
    /// SIGSTOPs, a quarter of them long enough for the process to be declared dead
    #[arg(long, default_value_t = 300)]
    stops: u32,
    /// Times that a process's network goes down, a quarter of them for long; with --netem
    #[arg(long, default_value_t = 100)]
    cuts: u32,
    /// At most so long, whatever faults are left
    #[arg(long, default_value_t = 60)]
    minutes: u64,
    /// How KV blocks travel
    #[arg(long, default_value = "shm", value_parser = ["shm", "tcp", "nixl"])]
    transport: String,
    /// Further arguments of every engine, as `--peer-secret-file=FILE` or `--tcp-crc`
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    engine_args: String,
    /// Who moves them
    #[arg(long, value_enum, default_value_t = Strategy::Both)]
    strategy: Strategy,
    /// Each process in a network namespace of its own, packets late, lost and out of order between them; needs root
    #[arg(long)]
    netem: bool,
    /// Clients that ask at the same time
    #[arg(long, default_value_t = 8)]
    clients: usize,
    /// Faults between two looks at what is left
    #[arg(long, default_value_t = 100)]
    round: u32,
    /// The same faults once more, as far as the machine allows; drawn by default
    #[arg(long)]
    seed: Option<u64>,
    /// The program
    #[arg(long, value_name = "FILE", default_value = "target/release/baton")]
    baton: PathBuf,
    /// Where the processes write their logs
    #[arg(long, value_name = "DIR", default_value = "target/soak")]
    logs: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Strategy {
    Push,
    Pull,
    /// Push for the first half of the faults, pull for the second
    Both,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("soak: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether nothing was violated.
fn run(args: &Args) -> Result<bool> {
    ensure!(args.clients > 0 && args.round > 0, "--clients and --round must be at least 1");
    let transport = match args.transport.as_str() {
        "tcp" => "tcp",
        "nixl" => "nixl",
        _ if args.netem => bail!("--netem puts processes on hosts of their own: --transport tcp or nixl"),
        _ => "shm",
    };
    let seed = args.seed.unwrap_or_else(|| {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.subsec_nanos().into())
    });
    println!("seed {seed}");
    if args.logs.exists() {
        std::fs::remove_dir_all(&args.logs)?;
    }
    let strategies: &[&'static str] = match args.strategy {
        Strategy::Push => &["push"],
        Strategy::Pull => &["pull"],
        Strategy::Both => &["push", "pull"],
    };
    let recipe = |strategy| Recipe {
        binary: args.baton.clone(),
        strategy,
        transport,
        engine_args: args.engine_args.split_whitespace().map(str::to_owned).collect(),
        logs: Some(args.logs.join(strategy)),
    };
    let right = round::right_answers(Recipe { logs: None, transport: "shm", ..recipe("none") })?;
    let named_before = vitals::shared_memory();
    let end = Instant::now() + Duration::from_secs(args.minutes * 60);
    let mut runs = Vec::new();
    for (i, strategy) in strategies.iter().enumerate() {
        let part = |count: u32| (count + i as u32) / strategies.len() as u32;
        let cuts = if args.netem { args.cuts } else { 0 };
        let counts =
            [(Kind::Kill, part(args.kills)), (Kind::Stop, part(args.stops)), (Kind::Cut, part(cuts))];
        let faults = Faults::new(seed.wrapping_add(i as u64), &counts);
        let recipe = recipe(strategy);
        std::fs::create_dir_all(args.logs.join(strategy))?;
        let network = args.netem.then(|| Network::create(seed)).transpose()?;
        let mut cluster = Cluster::start(recipe, network)?;
        let mut findings = soak(&mut cluster, &right, faults, args, strategy, end);
        drop(cluster);
        findings.violations.extend(panics(&args.logs.join(strategy))?);
        runs.push((format!("{strategy} over {transport}"), findings));
    }
    let left: Vec<String> = vitals::shared_memory().difference(&named_before).cloned().collect();
    print!("\n{}", report::table(&runs));
    println!("{:<44} {:>18}", "left in /dev/shm", left.len());
    let mut violations: Vec<String> = left.iter().map(|name| format!("/dev/shm/{name} is left")).collect();
    for (title, findings) in &runs {
        violations.extend(findings.violations.iter().map(|violation| format!("{title}: {violation}")));
        violations.extend(findings.tally.shown.iter().map(|wrong| format!("{title}: {wrong}")));
    }
    for violation in &violations {
        println!("violation: {violation}");
    }
    println!("logs in {}", args.logs.display());
    Ok(violations.is_empty())
}

/// Round after round, until the faults or the time are over, or the cluster is.
fn soak(
    cluster: &mut Cluster,
    right: &[String],
    mut faults: Faults,
    args: &Args,
    strategy: &str,
    end: Instant,
) -> Findings {
    let mut findings = Findings::default();
    let warm = match round::warm_up(cluster, right, args.clients) {
        Ok(warm) => warm,
        Err(error) => {
            findings.violations.push(format!("without faults: {error:#}"));
            return findings;
        }
    };
    while faults.left() > 0 && Instant::now() < end {
        let begun = Instant::now();
        match round::play(cluster, right, &warm, &mut faults, args.round, args.clients, end) {
            Ok(round) => {
                println!(
                    "{strategy}: {} faults left, {} requests in {:.0} s, {} right, {} wrong, {} violations",
                    faults.left(),
                    round.tally.requests,
                    begun.elapsed().as_secs_f64(),
                    round.tally.right,
                    round.tally.wrong,
                    round.violations.len()
                );
                findings.add(round);
            }
            Err(error) => {
                findings.violations.push(format!("{error:#}"));
                break;
            }
        }
    }
    findings
}

/// A process that was killed leaves no panic in its log.
fn panics(logs: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in logs.read_dir()? {
        let path = entry?.path();
        let text = String::from_utf8_lossy(&std::fs::read(&path)?).into_owned();
        let lines = text.lines().filter(|line| line.contains("panicked"));
        found.extend(lines.map(|line| format!("{}: {line}", path.display())));
    }
    Ok(found)
}
