//! `cargo x fuzz`: one target for so many minutes, from the seeds in the repository and from what earlier runs found.

use anyhow::{Context, bail, ensure};
use clap::ValueEnum;
use xshell::{Shell, cmd};

#[derive(clap::Args)]
pub struct Args {
    /// What is attacked
    target: Target,
    /// How long
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    minutes: u64,
}

#[derive(Clone, Copy, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Target {
    /// Bytes of one frame of the side channel
    Codec,
    /// One protocol endpoint, with peers that say and do anything
    SideChannel,
    /// Bytes of one frame of the transport tcp
    TcpFrame,
}

impl Target {
    fn name(self) -> &'static str {
        match self {
            Self::Codec => "codec",
            Self::SideChannel => "side_channel",
            Self::TcpFrame => "tcp_frame",
        }
    }

    /// Longer inputs find nothing that shorter ones do not.
    fn max_len(self) -> &'static str {
        match self {
            Self::Codec => "4096",
            Self::TcpFrame | Self::SideChannel => "8192",
        }
    }
}

pub fn run(sh: &Shell, args: &Args) -> anyhow::Result<()> {
    check_tools(sh)?;
    let name = args.target.name();
    let (corpus, seeds) = (format!("fuzz/corpus/{name}"), format!("fuzz/seeds/{name}"));
    sh.create_dir(&corpus)?;
    let seconds = args.minutes.checked_mul(60).context("that many minutes")?.to_string();
    let max_len = args.target.max_len();
    // The profile has assertions and overflow checks on. The first directory takes what is found.
    cmd!(sh, "cargo +nightly fuzz run {name} {corpus} {seeds} -- -max_total_time={seconds} -max_len={max_len} -timeout=10 -print_final_stats=1")
        .run()?;
    Ok(())
}

fn check_tools(sh: &Shell) -> anyhow::Result<()> {
    let works = |command: xshell::Cmd<'_>| command.quiet().ignore_stdout().ignore_stderr().run().is_ok();
    if !works(cmd!(sh, "cargo +nightly --version")) {
        bail!("fuzzing needs a nightly compiler: rustup toolchain install nightly");
    }
    ensure!(
        works(cmd!(sh, "cargo +nightly fuzz --version")),
        "fuzzing needs cargo-fuzz: cargo install cargo-fuzz"
    );
    Ok(())
}
