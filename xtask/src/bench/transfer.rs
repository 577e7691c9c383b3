//! `cargo x bench transfer`: the transports and what could move the same bytes without them.

use xshell::{Shell, cmd};

use super::conditions::{Conditions, Load, Meanwhile};

/// Each is a program of its own, which alternates between the two that it compares.
const EXAMPLES: [(&str, &str); 2] = [
    ("transfer_bench", "shm beside memcpy, GB/s, the best of 7 rounds"),
    ("tcp_bench", "tcp beside a plain loopback stream, GB/s, medians of 7 rounds, ratios by round"),
];

pub fn run(sh: &Shell) -> anyhow::Result<()> {
    let conditions = Conditions::read(sh)?;
    cmd!(sh, "cargo build --release --quiet --package baton-transport --examples").run()?;
    print!("{conditions}");
    for (example, title) in EXAMPLES {
        println!("\n{title}");
        let before = Load::read()?;
        cmd!(sh, "cargo run --release --quiet --package baton-transport --example {example}")
            .quiet()
            .run()?;
        print!("{}", Meanwhile { before, after: Load::read()? });
    }
    Ok(())
}
