//! `cargo x bench transfer`: the transports and what could move the same bytes without them.

use std::path::{Path, PathBuf};

use xshell::{Shell, cmd};

use super::conditions::{Conditions, Load, Meanwhile};
use crate::nixl;

/// Each is a program of its own, which alternates between those that it compares; and what it is told of NIXL.
const EXAMPLES: [(&str, &str, &str); 4] = [
    ("transfer_bench", "shm beside memcpy, GB/s, the best of 7 rounds", ""),
    ("tcp_bench", "tcp beside a plain loopback stream, GB/s, medians of 11 rounds, ratios by round", ""),
    ("transports_bench", "all of them, the best of 3 rounds; nixl over UCX by shared memory", "all"),
    ("transports_bench", "all of them, the best of 3 rounds; nixl over UCX by TCP", "tcp"),
];

#[derive(clap::Args)]
pub struct Args {
    /// Plot what all transports do: one file for each way that NIXL takes, FILE-all.svg and FILE-tcp.svg
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

pub fn run(sh: &Shell, args: &Args) -> anyhow::Result<()> {
    let conditions = Conditions::read(sh)?;
    cmd!(sh, "cargo build --release --quiet --package baton-transport --examples").run()?;
    print!("{conditions}");
    let nixl = nixl::find(sh)?;
    let _env = nixl.map(|prefix| sh.push_env("NIXL_PREFIX", prefix));
    for (example, title, ucx_tls) in EXAMPLES {
        println!("\n{title}");
        let before = Load::read()?;
        let plot = args.svg.as_deref().filter(|_| !ucx_tls.is_empty()).map(|path| plot_path(path, ucx_tls));
        let plot = plot.iter().flat_map(|path| [Path::new("--svg"), path]);
        cmd!(sh, "cargo run --release --quiet --package baton-transport --example {example} -- {plot...}")
            .env("UCX_TLS", ucx_tls)
            .env("UCX_NET_DEVICES", "lo")
            // By shared memory the comparison is with NIXL's own reads, which are good there.
            .env("NIXL_READS", if ucx_tls == "all" { "native" } else { "asked" })
            .quiet()
            .run()?;
        print!("{}", Meanwhile { before, after: Load::read()? });
    }
    Ok(())
}

/// `speed.svg` of NIXL by TCP is `speed-tcp.svg`.
fn plot_path(path: &Path, way: &str) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!("{stem}-{way}.svg"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_has_a_plot_of_its_own() {
        assert_eq!(plot_path(Path::new("docs/speed.svg"), "tcp"), Path::new("docs/speed-tcp.svg"));
    }
}
