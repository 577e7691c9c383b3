//! `baton-sim replay`: a trace at several times to live, once with room for everything and once with a cap, as a table and a plot.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use baton_model::CostProfile;
use baton_sim::{Replay, Replayed, replay};
use baton_workload::Conversation;
use baton_workload::trace::Trace;
use clap::Args;

use crate::replay_plot::plot;

/// So much is more than any trace needs: nothing is revoked.
const ROOM_BLOCKS: u32 = 1 << 21;
/// Bytes a second at which one engine's KV is read by another: eight links of 400 Gbit/s.
const LINK_BYTES_PER_S: f64 = 400e9;

/// Replays conversations with their recorded think times, and says what retaining them saves and takes.
#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    /// Traces in any format that the bench reads, one after the other.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// How long the KV of a turn is retained, in seconds.
    #[arg(long, value_delimiter = ',', default_values_t = [60, 240, 480, 900, 3600])]
    ttl: Vec<u64>,
    /// Blocks of the trace that are told apart only together: the more, the faster, and the less exact.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    grain: u32,
    /// Sessions that go on at the same time.
    #[arg(long, default_value_t = 64)]
    at_once: usize,
    /// KV memory of the decode engine where retention has a cap, in GB.
    #[arg(long, default_value_t = 2000.0)]
    kv_gb: f64,
    /// The share of it that may be retained.
    #[arg(long, default_value_t = 0.5)]
    retain_max: f64,
    /// The KV of one token in all layers: of Qwen3-32B in 16 bits, unless said otherwise.
    #[arg(long, default_value_t = 262_144)]
    kv_bytes_per_token: u64,
    /// How long the engines' steps take: the name of a cost profile.
    #[arg(long, default_value = "qwen3-32b-tp8", value_parser = parse_profile)]
    profile: CostProfile,
    #[arg(long, default_value_t = 4)]
    prefill_engines: usize,
    /// Where to write the plot.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    #[arg(long, default_value_t = std::thread::available_parallelism().map_or(1, std::num::NonZero::get))]
    threads: usize,
}

fn parse_profile(name: &str) -> Result<CostProfile, String> {
    CostProfile::named(name).ok_or_else(|| format!("no profile has the name {name}"))
}

/// One row of the table.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub ttl_s: u64,
    pub capped: bool,
    pub replayed: Replayed,
    pub kv_bytes_per_token: u64,
}

impl Row {
    /// Of the turns that have one before them.
    pub fn found(&self) -> f64 {
        self.replayed.found as f64 / self.replayed.later_turns.max(1) as f64
    }

    pub fn saved_tokens(&self) -> u64 {
        self.replayed.saved * u64::from(self.replayed.grain_tokens)
    }

    pub fn saved(&self) -> f64 {
        self.saved_tokens() as f64 / self.replayed.prompt_tokens.max(1) as f64
    }

    pub fn mean_gb(&self) -> f64 {
        self.gb(self.replayed.retained_mean)
    }

    pub fn most_gb(&self) -> f64 {
        self.gb(self.replayed.retained_most as f64)
    }

    fn gb(&self, grains: f64) -> f64 {
        grains * f64::from(self.replayed.grain_tokens) * self.kv_bytes_per_token as f64 / 1e9
    }
}

pub(crate) fn run(args: &ReplayArgs) -> Result<ExitCode, String> {
    let started = Instant::now();
    let conversations = read(&args.files)?;
    let block_tokens = block_tokens(&conversations).ok_or("there is nothing to replay")?;
    let rows = replay_all(args, &conversations, block_tokens)?;
    print(args, &rows);
    println!("\nreplayed in {:.0} s", started.elapsed().as_secs_f64());
    if let Some(path) = &args.svg {
        std::fs::write(path, plot(&rows)).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Each file's sessions are its own.
fn read(files: &[PathBuf]) -> Result<Vec<Conversation>, String> {
    let mut conversations: Vec<Conversation> = Vec::new();
    for file in files {
        let first = conversations.last().map_or(0, |last| last.session + 1);
        let trace = Trace::read(file).map_err(|error| error.to_string())?;
        let of_file = trace.conversations.into_iter();
        conversations.extend(of_file.map(|one| Conversation { session: first + one.session, ..one }));
    }
    Ok(conversations)
}

fn block_tokens(conversations: &[Conversation]) -> Option<u32> {
    let asks = conversations.iter().flat_map(|conversation| &conversation.turns).map(|turn| &turn.ask);
    asks.into_iter().find_map(|ask| match ask {
        baton_workload::Ask::Whole(prompt) => Some(prompt.block_tokens),
        baton_workload::Ask::Next(_) => None,
    })
}

/// Every time to live, without a cap and with it.
fn replay_all(
    args: &ReplayArgs,
    conversations: &[Conversation],
    block_tokens: u32,
) -> Result<Vec<Row>, String> {
    let grain_bytes = u64::from(block_tokens * args.grain) * args.kv_bytes_per_token;
    let kv_blocks = (args.kv_gb * 1e9 / grain_bytes as f64) as u32;
    let runs = args.ttl.iter().flat_map(|ttl_s| [(*ttl_s, false), (*ttl_s, true)]);
    let waiting = Mutex::new(runs.clone().enumerate().collect::<Vec<_>>().into_iter());
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..args.threads.max(1) {
            scope.spawn(|| {
                loop {
                    let next = waiting.lock().expect("no replay panics").next();
                    let Some((place, (ttl_s, capped))) = next else { return };
                    let (kv_blocks, retain_blocks) = match capped {
                        true => (kv_blocks, (f64::from(kv_blocks) * args.retain_max) as usize),
                        false => (ROOM_BLOCKS, ROOM_BLOCKS as usize),
                    };
                    let how = Replay {
                        retain_ttl: Duration::from_secs(ttl_s),
                        grain: args.grain,
                        at_once: args.at_once,
                        prefill_engines: args.prefill_engines,
                        kv_blocks,
                        retain_blocks,
                        profile: args.profile,
                        grain_us: (grain_bytes as f64 / LINK_BYTES_PER_S * 1e6) as u64,
                    };
                    let row = replay(conversations, &how).map(|replayed| {
                        let kv_bytes_per_token = args.kv_bytes_per_token;
                        Row { ttl_s, capped, replayed, kv_bytes_per_token }
                    });
                    done.lock().expect("no replay panics").push((place, row));
                }
            });
        }
    });
    let mut rows = done.into_inner().expect("all replays are over");
    rows.sort_by_key(|(place, _)| *place);
    rows.into_iter().map(|(_, row)| row).collect()
}

fn print(args: &ReplayArgs, rows: &[Row]) {
    let Some(first) = rows.first() else { return };
    let Replayed { turns, later_turns, prompt_tokens, grain_tokens, .. } = first.replayed;
    println!("{turns} turns, {later_turns} of them with one before; {prompt_tokens} prompt tokens;");
    println!(
        "{} sessions at once; counted in steps of {grain_tokens} tokens, {} bytes of KV a token; {} prefill engines, 1 decode engine;",
        args.at_once, args.kv_bytes_per_token, args.prefill_engines
    );
    println!(
        "cap: {} GB of KV memory, of which {:.0} % retained at most",
        args.kv_gb,
        args.retain_max * 100.0
    );
    println!();
    println!(
        "| ttl | memory | turns that find KV | prompt tokens saved | | retained, mean | | most | | expired | revoked | declined |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|");
    for row in rows {
        let Replayed { retained_mean, retained_most, expired, revoked, declined, took, .. } = &row.replayed;
        let tokens = |grains: f64| grains * f64::from(grain_tokens) / 1e6;
        println!(
            "| {} s | {} | {:.1} % | {:.3} G | {:.1} % | {:.2} M tokens | {:.0} GB | {:.2} M tokens | {:.0} GB | {expired} | {revoked} | {declined} |",
            row.ttl_s,
            if row.capped { "capped" } else { "unbounded" },
            row.found() * 100.0,
            row.saved_tokens() as f64 / 1e9,
            row.saved() * 100.0,
            tokens(*retained_mean),
            row.mean_gb(),
            tokens(*retained_most as f64),
            row.most_gb(),
        );
        eprintln!("{} s: {:.0} h of virtual time", row.ttl_s, took.as_secs_f64() / 3600.0);
    }
}
