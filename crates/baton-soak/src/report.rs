//! What a run saw, as a table.

use std::fmt::Write;

use crate::faults::Kind;
use crate::round::Findings;

const ROLES: [&str; 3] = ["prefill", "decode", "router"];

/// One column for each run, whose titles are given.
pub fn table(runs: &[(String, Findings)]) -> String {
    let mut text = String::new();
    line(&mut text, "", runs.iter().map(|(title, _)| title.clone()));
    let mut row = |name: &str, value: &dyn Fn(&Findings) -> String| {
        line(&mut text, name, runs.iter().map(|(_, findings)| value(findings)));
    };
    row("requests", &|f| f.tally.requests.to_string());
    row("right answers", &|f| f.tally.right.to_string());
    let kinds: std::collections::BTreeSet<&String> =
        runs.iter().flat_map(|(_, f)| f.tally.clean_errors.keys()).collect();
    for kind in kinds {
        row(&format!("clean error: {kind}"), &|f| {
            f.tally.clean_errors.get(kind).copied().unwrap_or(0).to_string()
        });
    }
    row("broken by the router's death", &|f| f.tally.router_died.to_string());
    row("wrong", &|f| f.tally.wrong.to_string());
    for kind in Kind::ALL {
        if runs.iter().all(|(_, f)| !f.faults.keys().any(|(known, _)| *known == kind)) {
            continue;
        }
        row(&format!("{}s of {}", kind.name(), ROLES.join(", ")), &|f| {
            ROLES.map(|role| f.faults.get(&(kind, role)).copied().unwrap_or(0).to_string()).join(", ")
        });
    }
    for role in ROLES {
        row(&format!("{role}: most descriptors before, after"), &|f| {
            most(f, role, |vitals| vitals.descriptors as u64)
        });
        row(&format!("{role}: most KiB before, after"), &|f| most(f, role, |vitals| vitals.memory_kib));
    }
    row("violations", &|f| f.violations.len().to_string());
    text
}

/// Of the processes of a role that a round spared.
fn most(findings: &Findings, role: &str, of: impl Fn(&crate::vitals::Vitals) -> u64) -> String {
    let spared = || findings.vitals.iter().filter(|(name, ..)| name.starts_with(role));
    let before = spared().map(|(_, before, _)| of(before)).max();
    let after = spared().map(|(_, _, after)| of(after)).max();
    before.zip(after).map_or_else(|| "-".to_owned(), |(before, after)| format!("{before}, {after}"))
}

fn line(text: &mut String, name: &str, cells: impl Iterator<Item = String>) {
    // Writing to a String cannot fail.
    let _ = write!(text, "{name:<44}");
    for cell in cells {
        let _ = write!(text, " {cell:>18}");
    }
    text.push('\n');
}
