//! `cargo x report-shots`: pages of made-up results in a headless browser, which uses them and leaves screenshots.

use anyhow::{Context, ensure};
use xshell::{Shell, cmd};

use crate::built;

/// The browser's remote control, fetched once. Its major version goes with that of Node.
const PUPPETEER: &str = "puppeteer-core@25";
const BROWSERS: &[&str] = &["chromium", "chromium-browser", "google-chrome"];

pub fn run(sh: &Shell) -> anyhow::Result<()> {
    ensure!(
        cmd!(sh, "node --version").quiet().ignore_stdout().run().is_ok(),
        "Node 20 and npm are needed: apt-get install nodejs npm"
    );
    let browser = browser(sh)?;
    let place = built::target_directory(sh)?.join("report-shots");
    let (pages, shots) = (place.join("pages"), place.join("shots"));
    sh.remove_path(&pages)?;
    sh.create_dir(&pages)?;
    cmd!(sh, "cargo run --quiet --package baton-report --example made_up -- {pages}").run()?;
    if !sh.path_exists(place.join("node_modules/puppeteer-core")) {
        cmd!(sh, "npm install --no-audit --no-fund --prefix {place} {PUPPETEER}").run()?;
    }
    cmd!(sh, "node crates/baton-report/browser/check.mjs {pages} {shots} {place} {browser}").run()?;
    Ok(())
}

fn browser(sh: &Shell) -> anyhow::Result<String> {
    BROWSERS
        .iter()
        .find_map(|name| cmd!(sh, "which {name}").quiet().ignore_stderr().read().ok())
        .context("Chromium is needed: apt-get install chromium")
}
