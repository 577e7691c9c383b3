//! Every dependency's licence is one that deny.toml allows. Advisories need the network: `cargo deny check advisories`.

use std::collections::BTreeSet;

use anyhow::Context;
use serde_json::Value;

pub fn check(metadata: &Value, deny: &str) -> anyhow::Result<Vec<String>> {
    let deny: toml::Value = toml::from_str(deny).context("deny.toml")?;
    let allowed = deny["licenses"]["allow"].as_array().context("deny.toml: licenses.allow")?;
    let allowed: BTreeSet<&str> = allowed.iter().filter_map(toml::Value::as_str).collect();
    let mut faults = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let name = package["name"].as_str().unwrap_or_default();
        let licence = package["license"].as_str().unwrap_or_default();
        if !satisfied(licence, &allowed) {
            faults.push(format!("{name}: licence {licence:?} is not allowed by deny.toml"));
        }
    }
    Ok(faults)
}

/// An SPDX expression as crates write them: alternatives of conjunctions, parentheses around alternatives.
fn satisfied(expression: &str, allowed: &BTreeSet<&str>) -> bool {
    let old_style = expression.replace('/', " OR ");
    let terms = old_style.replace(['(', ')'], " ");
    let ok = |term: &str| allowed.contains(term.trim());
    if old_style.contains('(') {
        // "(A OR B) AND C": each conjunct needs one allowed alternative.
        return old_style
            .split(" AND ")
            .all(|part| part.trim().trim_matches(['(', ')']).split(" OR ").any(ok));
    }
    terms.split(" OR ").any(|alternative| alternative.split(" AND ").all(ok))
}
