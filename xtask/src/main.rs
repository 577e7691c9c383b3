//! The project's own chores: `cargo x --help`.

mod bench;
mod built;
mod ci;
mod conversations;
mod fuzz;
mod nixl;
mod report_shots;
mod sim;
mod soak;
mod tidy;

use std::path::{Path, PathBuf};

use clap::{Parser, Subcommand};
use xshell::Shell;

#[derive(Parser)]
#[command(name = "cargo x", about = "Baton's chores", disable_help_subcommand = true)]
struct Args {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Formatting, lints, the arrows between crates, sizes of files, licences; seconds to a minute
    Tidy,
    /// Everything that a change must pass: tidy, all tests, the simulator, the deliberate bugs
    Ci,
    /// The simulator: `cargo x sim --seeds 5000`, `--seed 7 --log`, `--shrink 7`, `--scenario FILE`, `--mutants`
    Sim {
        /// Handed to the simulator; `--help` lists them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Hostile bytes and hostile peers, found by coverage: needs a nightly compiler and cargo-fuzz
    ///
    /// What it finds lies in fuzz/artifacts; an input that is worth keeping goes to fuzz/seeds, which every test run replays.
    Fuzz(fuzz::Args),
    /// Real processes, killed, stopped and cut off under load: `cargo x soak --kills 300 --stops 300`
    Soak {
        /// Handed to the soak; `--help` lists them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// 30 conversations of up to 12 turns with a real model: read back or not, the same words; takes many minutes
    Conversations,
    /// The transport nixl: fetches NIXL with pip if it is not here (70 MB), and runs the transports' suite over it
    Nixl(nixl::Args),
    /// Speed, as ratios measured side by side in one run
    Bench {
        #[command(subcommand)]
        what: bench::What,
    },
    /// Pages of `baton report` in a headless browser: used, and photographed; needs Node and Chromium
    ReportShots,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let sh = Shell::new()?;
    sh.change_dir(root());
    match args.chore {
        Chore::Tidy => tidy::run(&sh),
        Chore::Ci => ci::run(&sh),
        Chore::Sim { args } => sim::run(&sh, built::Profile::Release, &args),
        Chore::Fuzz(args) => fuzz::run(&sh, &args),
        Chore::Soak { args } => soak::run(&sh, &args),
        Chore::Conversations => conversations::run(&sh),
        Chore::Nixl(args) => nixl::run(&sh, &args),
        Chore::Bench { what } => bench::run(&sh, what),
        Chore::ReportShots => report_shots::run(&sh),
    }
}

/// The workspace's root, wherever the chore was started.
fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_path_buf()
}
