//! `cargo x nixl`: the transport's suite over NIXL, which is fetched if it is not here; and whole systems over it.

mod namespaces;

use std::path::PathBuf;

use anyhow::{Context, bail};
use xshell::{Shell, cmd};

use self::namespaces::Namespaces;
use crate::built;

#[derive(clap::Args)]
pub struct Args {
    /// The quick part: shared memory with NIXL's own reads, TCP between network namespaces; no kills of whole systems
    #[arg(long)]
    short: bool,
    /// Over libfabric and what FI_PROVIDER chooses, instead of UCX; NIXL_PREFIX names a NIXL that has it
    #[arg(long)]
    libfabric: bool,
    /// Only tests with this in their names
    filter: Option<String>,
}

/// What UCX may use, and how reads are made.
struct Way {
    title: &'static str,
    ucx_tls: &'static str,
    reads: &'static str,
    is_short: bool,
}

const WAYS: [Way; 3] = [
    Way { title: "shared memory, NIXL's reads", ucx_tls: "all", reads: "native", is_short: true },
    Way { title: "shared memory, asked reads", ucx_tls: "all", reads: "asked", is_short: false },
    Way { title: "TCP, asked reads", ucx_tls: "tcp", reads: "asked", is_short: false },
];

/// Seconds that fetching may take.
const FETCH_S: &str = "150";

pub fn run(sh: &Shell, args: &Args) -> anyhow::Result<()> {
    match find(sh)? {
        Some(prefix) => test(sh, args, &prefix),
        None => bail!("there is no NIXL here, and it could not be fetched"),
    }
}

/// As a step of CI, which a missing network does not fail.
pub fn run_if_possible(sh: &Shell) -> anyhow::Result<()> {
    match find(sh)? {
        Some(prefix) => test(sh, &Args { short: true, libfabric: false, filter: None }, &prefix),
        None => {
            eprintln!(
                "SKIPPED: the transport nixl was not tested, because NIXL could not be fetched (see above)"
            );
            Ok(())
        }
    }
}

/// Where NIXL is: `NIXL_PREFIX`, or in the cache, where it is fetched to. None if it cannot be fetched.
pub fn find(sh: &Shell) -> anyhow::Result<Option<PathBuf>> {
    if let Some(prefix) = std::env::var_os("NIXL_PREFIX").filter(|prefix| !prefix.is_empty()) {
        return Ok(Some(prefix.into()));
    }
    let cache = cache_directory()?;
    let install = built::example(sh, "nixl_install")?;
    let fetched = cmd!(sh, "timeout {FETCH_S} {install} {cache}").quiet().ignore_status().output()?;
    eprint!("{}", String::from_utf8_lossy(&fetched.stderr));
    match fetched.status.code() {
        Some(0) => Ok(Some(String::from_utf8(fetched.stdout)?.trim().into())),
        // It could not be fetched, or not in that time.
        Some(3 | 124) => Ok(None),
        _ => bail!("NIXL is here but does not work"),
    }
}

/// `$XDG_CACHE_HOME/baton`, or `$HOME/.cache/baton`.
fn cache_directory() -> anyhow::Result<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")));
    Ok(base.context("set HOME, or XDG_CACHE_HOME to an absolute path")?.join("baton"))
}

fn test(sh: &Shell, args: &Args, prefix: &PathBuf) -> anyhow::Result<()> {
    let _env = [
        sh.push_env("NIXL_PREFIX", prefix),
        // What they say about peers that die is expected.
        sh.push_env("UCX_LOG_LEVEL", "fatal"),
        sh.push_env("NIXL_LOG_LEVEL", "FATAL"),
    ];
    let filter = args.filter.as_deref().unwrap_or("nixl");
    let suite = || cmd!(sh, "cargo test --quiet --workspace --test conformance -- --ignored");
    if args.libfabric {
        let _env = sh.push_env("BATON_TEST_NIXL_BACKEND", "libfabric");
        suite().args([filter, "--test-threads=1"]).run()?;
        return Ok(());
    }
    for way in WAYS.iter().filter(|way| way.is_short || !args.short) {
        eprintln!("nixl over UCX: {}", way.title);
        let _env = [
            sh.push_env("UCX_TLS", way.ucx_tls),
            sh.push_env("BATON_TEST_NIXL_READS", way.reads),
            sh.push_env("UCX_NET_DEVICES", "lo"),
        ];
        // Each agent has a poll of its own; more tests at once than cores only make all of them late.
        suite().args([filter, "--test-threads=2"]).run()?;
        if args.filter.is_none() {
            // Kills and fences take minutes.
            let systems = if args.short { "same_words" } else { "over_nixl" };
            cmd!(sh, "cargo test --quiet --workspace --test system -- --ignored {systems}").run()?;
        }
    }
    match Namespaces::new() {
        Ok(namespaces) => {
            eprintln!("nixl over UCX: TCP between two network namespaces");
            let _env: Vec<_> = namespaces.variables().map(|(name, value)| sh.push_env(name, value)).collect();
            let _env = [sh.push_env("UCX_TLS", "tcp"), sh.push_env("BATON_TEST_NIXL_READS", "asked")];
            suite().args(["process::nixl", "--test-threads=1"]).run()?;
        }
        Err(error) => eprintln!("SKIPPED: two network namespaces: {error:#}"),
    }
    Ok(())
}
