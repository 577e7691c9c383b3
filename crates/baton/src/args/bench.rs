//! `baton bench`.

use std::path::PathBuf;

use baton_types::TokenId;
use baton_workload::result::Slo;
use baton_workload::{Arrivals, Lengths};
use clap::builder::BoolishValueParser;
use clap::{ArgGroup, Args, Subcommand, ValueEnum};

use super::units::Span;

const EXAMPLES: &str = "\
Examples:
  512 tokens in, 128 out, at 1, 2 and 4 requests a second, 300 of each:
      baton bench --rate 1,2,4 --requests 300

  How many of 8 clients' answers keep their limits, for two minutes:
      baton bench --concurrency 8 --duration 2m --slo ttft=500ms,tpot=50ms

  A trace as it was recorded, ten times as fast; engines behind a router are looked at as well:
      baton bench --trace conversation.jsonl --time-scale 10 --engine http://10.0.0.5:8100

  Strategies side by side; what stands behind -- is for baton up:
      baton bench compare --strategies none,pull,push --rate 2 --rounds 3 -- --model smollm2

Latency counts from the moment that a request was due, not from when it was sent. Ctrl-C ends a run early and keeps its results.";

const COMPARE_EXAMPLES: &str = "\
Examples:
  baton bench compare --strategies none,pull,push --rate 1,2 --requests 100 --rounds 3
  baton bench compare --strategies pull --system 'pull-64=--strategy=pull --block-tokens=64' --concurrency 4 -- --model smollm2

The first system is what the others are divided by. Every round starts each of them anew, every second one in the opposite order, \
and all are sent the same requests.";

#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub command: Option<BenchCommand>,
    /// Where the system is
    #[arg(long, default_value = "http://127.0.0.1:8000", help_heading = "Endpoint")]
    pub url: String,
    /// An engine behind it, whose metrics and caches are looked at; may be given several times
    #[arg(long, value_name = "URL", value_delimiter = ',', help_heading = "Endpoint")]
    pub engine: Vec<String>,
    /// File with the key that the endpoint asks for
    #[arg(long, value_name = "FILE", help_heading = "Endpoint")]
    pub api_key_file: Option<PathBuf>,
    #[command(flatten)]
    pub measuring: MeasuringArgs,
}

#[derive(Clone, Debug, Subcommand)]
pub enum BenchCommand {
    /// Start systems one after the other, send them the same requests and compare them pair by pair
    Compare(Box<CompareArgs>),
}

#[derive(Clone, Debug, Args)]
#[command(after_help = COMPARE_EXAMPLES)]
pub struct CompareArgs {
    /// Systems that differ in their strategy, such as none,pull,push
    #[arg(long, value_name = "NAMES", value_delimiter = ',', help_heading = "Systems")]
    pub strategies: Vec<String>,
    /// A system with flags of its own for baton up; may be given several times
    #[arg(long, value_name = "NAME=FLAGS", allow_hyphen_values = true, help_heading = "Systems")]
    pub system: Vec<String>,
    /// How long a system may take to start
    #[arg(long, value_name = "TIME", default_value = "5m", help_heading = "Systems")]
    pub start_timeout: Span,
    /// Flags for baton up, the same for every system
    #[arg(last = true, value_name = "UP FLAGS", help_heading = "Systems")]
    pub up: Vec<String>,
    #[command(flatten)]
    pub measuring: MeasuringArgs,
}

/// What is sent, when, and what becomes of the figures.
#[derive(Clone, Debug, Args)]
#[command(group = ArgGroup::new("load").args(["rate", "concurrency"]))]
pub struct MeasuringArgs {
    /// Model to ask for [default: the first that is served]
    #[arg(long, help_heading = "Requests")]
    pub model: Option<String>,
    /// Prompts of token ids, or messages of words [default: completions; chat for conversations]
    #[arg(long, value_enum, help_heading = "Requests")]
    pub api: Option<ApiName>,
    /// Tokens of a prompt: 512, 256-1024, normal:MEAN,DEVIATION or lognormal:MEDIAN,SIGMA
    #[arg(long, value_name = "LENGTHS", default_value = "512", help_heading = "Requests")]
    pub input: Lengths,
    /// Tokens of an answer; where a trace does not say, at most so many
    #[arg(long, value_name = "LENGTHS", default_value = "128", help_heading = "Requests")]
    pub output: Lengths,
    /// Tokens that all prompts begin with
    #[arg(long, value_name = "TOKENS", default_value_t = 0, help_heading = "Requests")]
    pub shared_prefix: u32,
    /// So many different prompts, again and again [default: every prompt is new]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), help_heading = "Requests")]
    pub distinct: Option<u64>,
    /// Turns of a conversation, each with the model's own answers before it; of a trace, at most so many
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000), help_heading = "Requests")]
    pub turns: Option<u32>,
    /// Time between an answer's end and the next turn
    #[arg(long, value_name = "TIME", default_value = "0s", help_heading = "Requests")]
    pub think: Span,
    /// Requests of a trace: Mooncake jsonl, WEKA csv or session json, ShareGPT-like json
    #[arg(long, value_name = "FILE", help_heading = "Requests")]
    pub trace: Option<PathBuf>,
    /// Leave out a trace's requests with longer prompts
    #[arg(long, value_name = "TOKENS", help_heading = "Requests")]
    pub max_prompt_tokens: Option<u32>,
    /// Let every answer have its whole length, whatever the model says [default: true where lengths are known]
    #[arg(long, value_name = "BOOL", help_heading = "Requests", action = clap::ArgAction::Set,
          num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = BoolishValueParser::new())]
    pub ignore_eos: Option<bool>,
    /// 0 is greedy; higher is more random
    #[arg(long, default_value_t = 0.0, help_heading = "Requests")]
    pub temperature: f64,
    /// Ids that prompts are made of, such as 1000-9000 [default: those of common words, if the endpoint tells them]
    #[arg(long, value_name = "FROM-TO", value_parser = read_token_ids, help_heading = "Requests")]
    pub token_ids: Option<(TokenId, TokenId)>,

    /// Requests, conversations or sessions a second; one measurement for each
    #[arg(long, value_name = "RATES", value_delimiter = ',', value_parser = read_rate, help_heading = "Load")]
    pub rate: Vec<f64>,
    /// poisson, gamma:SHAPE, constant, or trace: as it was recorded [default: trace without --rate, else poisson]
    #[arg(long, value_name = "HOW", value_parser = read_arrivals, help_heading = "Load")]
    pub arrivals: Option<ArrivalsName>,
    /// So many clients that wait for their answers; one measurement for each
    #[arg(long, value_name = "CLIENTS", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=100_000), help_heading = "Load")]
    pub concurrency: Vec<u32>,
    /// How many times as fast as recorded; think times as well
    #[arg(long, value_name = "FACTOR", default_value = "1", value_parser = read_rate, help_heading = "Load")]
    pub time_scale: f64,
    /// End each measurement after so many requests [default: 100 unless --duration or --trace is given]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000_000), help_heading = "Load")]
    pub requests: Option<u64>,
    /// Let nothing new begin after so long
    #[arg(long, value_name = "TIME", help_heading = "Load")]
    pub duration: Option<Span>,
    /// How long answers may take after that
    #[arg(long, value_name = "TIME", default_value = "30s", help_heading = "Load")]
    pub drain: Span,
    /// Measure everything so many times, with new prompts each time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000), help_heading = "Load")]
    pub rounds: u32,
    /// Requests that are sent and forgotten before each measurement
    #[arg(long, value_name = "N", default_value_t = 4, help_heading = "Load")]
    pub warmup: u64,
    /// Makes arrivals, lengths and prompts repeatable [default: another one each time; it is written down]
    #[arg(long, help_heading = "Load")]
    pub seed: Option<u64>,

    /// Limits of a good answer, such as ttft=500ms,tpot=50ms,e2e=10s
    #[arg(long, value_name = "LIMITS", value_parser = read_slo, help_heading = "Results")]
    pub slo: Option<Slo>,
    /// Directory for the results [default: bench- and the time]
    #[arg(long, value_name = "DIR", help_heading = "Results")]
    pub out: Option<PathBuf>,
    /// What to call the run
    #[arg(long, value_name = "TEXT", help_heading = "Results")]
    pub label: Option<String>,

    /// Longest wait for the end of one answer
    #[arg(long, value_name = "TIME", default_value = "10m", help_heading = "Client")]
    pub request_timeout: Span,
    /// Most requests at once; more wait, and the wait is told as the client's
    #[arg(long, value_name = "N", default_value_t = 16_384, value_parser = read_streams, help_heading = "Client")]
    pub max_streams: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ApiName {
    Completions,
    Chat,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ArrivalsName {
    Trace,
    Drawn(Arrivals),
}

fn read_arrivals(text: &str) -> Result<ArrivalsName, String> {
    match text {
        "trace" => Ok(ArrivalsName::Trace),
        text => text.parse().map(ArrivalsName::Drawn),
    }
}

fn read_rate(text: &str) -> Result<f64, String> {
    let rate: Option<f64> = text.parse().ok().filter(|rate| (1e-6..=1e6).contains(rate));
    rate.ok_or_else(|| format!("a positive number, not {text:?}"))
}

fn read_streams(text: &str) -> Result<usize, String> {
    let streams: Option<usize> = text.parse().ok().filter(|n| (1..=1_000_000).contains(n));
    streams.ok_or_else(|| format!("a number from 1 to 1000000, not {text:?}"))
}

fn read_token_ids(text: &str) -> Result<(TokenId, TokenId), String> {
    let ids = text.split_once('-').and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
    match ids {
        // A vocabulary is no larger.
        Some((from, to)) if from < to && to < 1 << 24 => Ok((TokenId(from), TokenId(to))),
        _ => Err(format!("ids read 1000-9000, not {text:?}")),
    }
}

fn read_slo(text: &str) -> Result<Slo, String> {
    let mut slo = Slo::default();
    for limit in text.split(',') {
        let (name, span) =
            limit.split_once('=').ok_or_else(|| format!("a limit reads ttft=500ms, not {limit:?}"))?;
        let ms = Some(span.parse::<Span>()?.ms() as f64);
        match name.trim() {
            "ttft" => slo.ttft_ms = ms,
            "tpot" => slo.tpot_ms = ms,
            "e2e" => slo.e2e_ms = ms,
            other => return Err(format!("limits are ttft, tpot and e2e, not {other:?}")),
        }
    }
    Ok(slo)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_rates_and_ids_are_read() {
        let slo = read_slo("ttft=500ms,tpot=50ms").unwrap();
        assert_eq!((slo.ttft_ms, slo.tpot_ms, slo.e2e_ms), (Some(500.0), Some(50.0), None));
        assert!(read_slo("").is_err() && read_slo("itl=5ms").is_err() && read_slo("ttft=5").is_err());
        assert_eq!(read_token_ids("10-20"), Ok((TokenId(10), TokenId(20))));
        assert!(read_token_ids("20-10").is_err() && read_token_ids("5").is_err());
        assert!(read_rate("0").is_err() && read_rate("nan").is_err() && read_rate("0.5").is_ok());
        assert_eq!(read_arrivals("trace"), Ok(ArrivalsName::Trace));
        assert_eq!(read_arrivals("gamma:2"), Ok(ArrivalsName::Drawn(Arrivals::Gamma { shape: 2.0 })));
    }
}
