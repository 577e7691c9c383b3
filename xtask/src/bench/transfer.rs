//! `cargo x bench transfer`: the transports and what could move the same bytes without them.

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

pub fn run(sh: &Shell) -> anyhow::Result<()> {
    let conditions = Conditions::read(sh)?;
    cmd!(sh, "cargo build --release --quiet --package baton-transport --examples").run()?;
    print!("{conditions}");
    let nixl = nixl::find(sh)?;
    let _env = nixl.map(|prefix| sh.push_env("NIXL_PREFIX", prefix));
    for (example, title, ucx_tls) in EXAMPLES {
        println!("\n{title}");
        let before = Load::read()?;
        cmd!(sh, "cargo run --release --quiet --package baton-transport --example {example}")
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
