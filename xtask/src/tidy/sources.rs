//! Sizes and words of the source files.

use xshell::{Shell, cmd};

/// A file above this holds two nouns, or its tests want a file of their own.
const MAX_LINES: usize = 800;

/// Unfinished work, and what only one machine knows. Written in halves, so that this file passes its own check.
const FORBIDDEN: &[(&str, &str)] = &[
    ("todo", "!("),
    ("unimpl", "emented!("),
    ("FIX", "ME"),
    ("XX", "X:"),
    ("dbg", "!("),
    ("/ro", "ot/"),
    ("/wo", "rk/"),
    ("pypi", ".org"),
    ("files.python", "hosted"),
    ("index.cra", "tes.io"),
];

pub fn check(sh: &Shell) -> anyhow::Result<Vec<String>> {
    let files = cmd!(sh, "git ls-files --cached --others --exclude-standard").quiet().read()?;
    let mut faults = Vec::new();
    for file in files.lines() {
        let written_by_hand =
            [".rs", ".md", ".toml", ".sh", ".yml", "run"].iter().any(|end| file.ends_with(end));
        if !written_by_hand || !sh.path_exists(file) {
            continue;
        }
        let text = sh.read_file(file)?;
        for (number, line) in text.lines().enumerate() {
            for (left, right) in FORBIDDEN {
                if line.contains(&format!("{left}{right}")) {
                    faults.push(format!("{file}:{}: {left}{right}", number + 1));
                }
            }
        }
        let lines = text.lines().count();
        if file.ends_with(".rs") && lines > MAX_LINES {
            faults.push(format!("{file}: {lines} lines, more than {MAX_LINES}"));
        }
    }
    Ok(faults)
}
