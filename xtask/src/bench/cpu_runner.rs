//! Baton's side: the example `cpu_speed` of baton-model, one process for each measurement, as on the other side.

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Deserialize;
use xshell::{Shell, cmd};

use super::speed::Speed;

/// What the example prints.
#[derive(Deserialize)]
pub struct Measured {
    pub model: PathBuf,
    pub isa: String,
    prefill_tok_s: f64,
    decode_tok_s: f64,
}

impl Measured {
    pub fn speed(&self) -> Speed {
        Speed { prefill: self.prefill_tok_s, decode: self.decode_tok_s }
    }
}

/// The path of the executable: cargo is out of the way while it is measured.
pub fn build(sh: &Shell) -> anyhow::Result<PathBuf> {
    eprintln!("building Baton's CPU runner");
    let messages = cmd!(
        sh,
        "cargo build --release --quiet --package baton-model --example cpu_speed --message-format json"
    )
    .quiet()
    .read()?;
    messages.lines().find_map(executable).context("cargo built no executable cpu_speed")
}

fn executable(message: &str) -> Option<PathBuf> {
    let message: serde_json::Value = serde_json::from_str(message).ok()?;
    let path = message["executable"].as_str().filter(|_| message["target"]["name"] == "cpu_speed");
    path.map(PathBuf::from)
}

/// `model` is a path, or `smollm2`, which is fetched if it is not here.
pub fn measure(
    sh: &Shell,
    executable: &Path,
    model: &Path,
    threads: usize,
    precision: &str,
) -> anyhow::Result<Measured> {
    let threads = threads.to_string();
    let line = cmd!(sh, "{executable} {model} {threads} {precision}").quiet().read()?;
    Ok(serde_json::from_str(&line)?)
}
