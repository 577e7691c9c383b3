//! `baton bench`: what the flags mean to the measuring client.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use baton_bench::{Api, Launcher, LoadPlan, Options, Outcome, Source, Stop, SystemPlan};
use baton_workload::schedule::Limits;
use baton_workload::trace::TraceKind;
use baton_workload::{Arrivals, Lengths, Synthetic};
use tokio::sync::watch;

use crate::args::{ApiName, ArrivalsName, BenchArgs, BenchCommand, CompareArgs, MeasuringArgs};
use crate::signals::Signals;
use crate::{descriptors, settings, up};

/// Must run on the main thread: the kernel kills the systems that `compare` starts when the thread that started them ends.
///
/// # Errors
/// If nothing can be measured; what fails later is in the result.
pub async fn bench(args: &BenchArgs) -> Result<ExitCode> {
    // A stream is a descriptor.
    descriptors::raise_limit();
    let stop = stop_on_signals()?;
    let outcome = match &args.command {
        None => {
            let options = Options {
                engines: args.engine.clone(),
                api_key: api_key(args)?,
                ..options(&args.measuring)?
            };
            baton_bench::bench(&args.url, options, stop).await?
        }
        Some(BenchCommand::Compare(args)) => compare(args, stop).await?,
    };
    Ok(report(&outcome))
}

async fn compare(args: &CompareArgs, stop: Stop) -> Result<Outcome> {
    let mut plans: Vec<SystemPlan> =
        args.strategies.iter().map(|strategy| SystemPlan::of_strategy(strategy, &args.up)).collect();
    for system in &args.system {
        plans.push(SystemPlan::read(system, &args.up).map_err(anyhow::Error::msg)?);
    }
    let launcher = Launcher {
        program: std::env::current_exe().context("cannot find this program")?.into_os_string(),
        environment: vec![(up::PARENT.to_owned(), std::process::id().to_string())],
        forgotten: settings::variables(),
        start_timeout: args.start_timeout.0,
    };
    baton_bench::compare(&plans, &launcher, options(&args.measuring)?, stop).await
}

/// Where the result is; a failure if nothing was answered.
fn report(outcome: &Outcome) -> ExitCode {
    println!("{}", outcome.dir.join(baton_workload::result::RESULT_FILE).display());
    let answered = outcome.result.points.iter().any(|point| point.ttft_ms.is_some());
    if answered { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The first signal ends the run and keeps its results, the second ends the program.
fn stop_on_signals() -> Result<Stop> {
    let mut signals = Signals::new()?;
    let (say, stop) = watch::channel(false);
    tokio::spawn(async move {
        signals.next().await;
        say.send_replace(true);
        signals.next().await;
        std::process::exit(130);
    });
    Ok(stop)
}

fn api_key(args: &BenchArgs) -> Result<Option<String>> {
    let read = |path: &PathBuf| {
        let key = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(key.trim().to_owned())
    };
    args.api_key_file.as_ref().map(read).transpose()
}

fn options(args: &MeasuringArgs) -> Result<Options> {
    let kind = args.trace.as_deref().map(TraceKind::of).transpose()?;
    let in_words = kind == Some(TraceKind::ShareGpt) || (kind.is_none() && args.turns.unwrap_or(1) > 1);
    let api = match (args.api, in_words) {
        (Some(ApiName::Completions), true) => {
            bail!("a conversation sends answers back, which takes --api chat")
        }
        (Some(ApiName::Chat), _) | (None, true) => Api::Chat,
        (Some(ApiName::Completions) | None, false) => Api::Completions,
    };
    let has_lengths = kind != Some(TraceKind::ShareGpt);
    Ok(Options {
        engines: Vec::new(),
        model: args.model.clone(),
        api,
        source: source(args, api)?,
        load: load(args, kind)?,
        time_scale: args.time_scale,
        limits: limits(args),
        rounds: args.rounds,
        ignore_eos: args.ignore_eos.unwrap_or(has_lengths),
        temperature: args.temperature,
        warmup: args.warmup,
        seed: args.seed.unwrap_or_else(another_seed),
        slo: args.slo,
        request_timeout: args.request_timeout.0,
        drain: args.drain.0,
        max_streams: args.max_streams,
        token_ids: args.token_ids,
        api_key: None,
        out: args.out.clone().unwrap_or_else(default_out),
        label: args.label.clone(),
        command: command_line(std::env::args_os()),
    })
}

fn source(args: &MeasuringArgs, api: Api) -> Result<Source> {
    Ok(match &args.trace {
        Some(path) => Source::Trace {
            path: path.clone(),
            max_prompt_tokens: args.max_prompt_tokens,
            output_tokens: match args.output {
                Lengths::Fixed(tokens) => tokens,
                _ => bail!("a trace's answers have one longest length: --output 512"),
            },
            turns: args.turns,
        },
        None => Source::Synthetic(Synthetic {
            input: args.input,
            output: args.output,
            shared_prefix_tokens: args.shared_prefix,
            distinct: args.distinct,
            turns: args.turns.unwrap_or(1),
            think: args.think.0,
            in_words: api == Api::Chat,
        }),
    })
}

fn load(args: &MeasuringArgs, kind: Option<TraceKind>) -> Result<LoadPlan> {
    if !args.concurrency.is_empty() {
        return match args.arrivals {
            None => Ok(LoadPlan::Clients(args.concurrency.clone())),
            Some(_) => bail!("clients that wait for their answers have no --arrivals"),
        };
    }
    match (args.rate.is_empty(), args.arrivals) {
        (false, Some(ArrivalsName::Trace)) => {
            bail!("a trace's own arrivals have no --rate; --time-scale makes them faster")
        }
        (false, arrivals) => {
            let arrivals = match arrivals {
                Some(ArrivalsName::Drawn(arrivals)) => arrivals,
                _ => Arrivals::Poisson,
            };
            Ok(LoadPlan::Rates { rates: args.rate.clone(), arrivals })
        }
        (true, Some(ArrivalsName::Drawn(_))) => bail!("drawn arrivals need a --rate"),
        (true, Some(ArrivalsName::Trace)) if kind.is_none() => bail!("--arrivals trace needs a --trace"),
        (true, Some(ArrivalsName::Trace)) => Ok(LoadPlan::Recorded),
        (true, None) if kind.is_some_and(TraceKind::has_arrivals) => Ok(LoadPlan::Recorded),
        (true, None) => bail!("give a --rate of requests per second, or a --concurrency of clients"),
    }
}

const DEFAULT_REQUESTS: u64 = 100;

fn limits(args: &MeasuringArgs) -> Limits {
    let endless = args.requests.is_none() && args.duration.is_none() && args.trace.is_none();
    Limits {
        requests: if endless { Some(DEFAULT_REQUESTS) } else { args.requests },
        duration: args.duration.map(|duration| duration.0),
    }
}

fn since_epoch() -> std::time::Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Small enough to be typed in again.
fn another_seed() -> u64 {
    u64::from(since_epoch().subsec_nanos()) ^ (since_epoch().as_secs() & 0xffff_ffff)
}

fn default_out() -> PathBuf {
    PathBuf::from(format!("bench-{}", since_epoch().as_secs()))
}

/// As it was typed, but for the program's directory.
fn command_line(argv: impl Iterator<Item = OsString>) -> Vec<String> {
    let mut words: Vec<String> = argv.map(|word| word.to_string_lossy().into_owned()).collect();
    if let Some(program) = words.first_mut() {
        let name = Path::new(program).file_name().map(|name| name.to_string_lossy().into_owned());
        *program = name.unwrap_or_default();
    }
    words
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    fn read(flags: &str) -> Result<Options> {
        let cli = Cli::try_parse_from(["baton", "bench"].into_iter().chain(flags.split_whitespace()))?;
        let Command::Bench(args) = cli.command else { panic!("bench") };
        options(&args.measuring)
    }

    #[test]
    fn flags_become_a_plan() {
        let swept = read("--rate 1,2,4 --seed 5").unwrap();
        assert_eq!(swept.load, LoadPlan::Rates { rates: vec![1.0, 2.0, 4.0], arrivals: Arrivals::Poisson });
        assert_eq!((swept.limits.requests, swept.api, swept.seed), (Some(100), Api::Completions, 5));
        assert!(swept.ignore_eos);
        let talk = read("--concurrency 8 --turns 3 --duration 2m --ignore-eos=false").unwrap();
        assert_eq!((talk.api, talk.limits.requests, talk.ignore_eos), (Api::Chat, None, false));
        assert_eq!(talk.load, LoadPlan::Clients(vec![8]));
        assert_ne!(read("--rate 1").unwrap().seed, read("--rate 1").unwrap().seed);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (flags, word) in [
            ("", "--rate"),
            ("--arrivals constant", "--rate"),
            ("--arrivals trace", "--trace"),
            ("--concurrency 2 --arrivals poisson", "--arrivals"),
            ("--rate 1 --concurrency 2", "--concurrency"),
            ("--rate 1 --turns 2 --api completions", "--api chat"),
            ("--rate 0", "positive"),
            ("--rate 1 --trace /nowhere", "/nowhere"),
        ] {
            let error = format!("{:#}", read(flags).unwrap_err());
            assert!(error.contains(word), "{flags}: {error}");
        }
    }

    #[test]
    fn compare_takes_what_up_takes_behind_two_dashes() {
        let words = "baton bench compare --strategies none,push --rate 1 -- --model emulated --prefill 2";
        let cli = Cli::try_parse_from(words.split(' ')).unwrap();
        let Command::Bench(args) = cli.command else { panic!("bench") };
        let Some(BenchCommand::Compare(compare)) = args.command else { panic!("compare") };
        assert_eq!((compare.strategies.len(), compare.up.len()), (2, 4));
    }
}
