//! Who may depend on whom: the table of ARCHITECTURE.md, compared with what cargo says.

use serde_json::Value;

/// A crate and the Baton crates that it may use. Arrows go down only.
const ARROWS: &[(&str, &[&str])] = &[
    ("baton-types", &[]),
    // Cores.
    ("baton-proto", &["baton-types"]),
    ("baton-engine", &["baton-types", "baton-proto"]),
    ("baton-routing", &["baton-types"]),
    // Edges.
    ("baton-model", &["baton-types", "baton-engine"]),
    ("baton-transport", &["baton-types"]),
    ("baton-http", &[]),
    ("baton-openai", &["baton-types"]),
    ("baton-workload", &["baton-types"]),
    ("baton-trace", &[]),
    ("baton-plot", &[]),
    // Programs.
    (
        "baton-server",
        &[
            "baton-types",
            "baton-proto",
            "baton-engine",
            "baton-model",
            "baton-transport",
            "baton-http",
            "baton-openai",
            "baton-trace",
        ],
    ),
    ("baton-router", &["baton-types", "baton-routing", "baton-http", "baton-openai", "baton-trace"]),
    (
        "baton-sim",
        &[
            "baton-types",
            "baton-proto",
            "baton-engine",
            "baton-routing",
            "baton-model",
            "baton-workload",
            "baton-plot",
        ],
    ),
    ("baton-bench", &["baton-types", "baton-workload", "baton-openai"]),
    ("baton-soak", &["baton-openai"]),
    ("baton-report", &["baton-workload"]),
    (
        "baton",
        &[
            "baton-types",
            "baton-server",
            "baton-router",
            "baton-model",
            "baton-openai",
            "baton-bench",
            "baton-report",
            "baton-trace",
            "baton-workload",
        ],
    ),
    ("xtask", &[]),
];

/// Cores do no I/O: of the world they may use only what is plain data, or a seeded generator (I10).
const CORE_CRATES: &[&str] = &["baton-proto", "baton-engine", "baton-routing"];
const CORE_MAY_USE: &[&str] = &["rand_chacha", "serde", "thiserror"];

pub fn check(metadata: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        if !package["source"].is_null() {
            continue;
        }
        let name = package["name"].as_str().unwrap_or_default();
        let Some((_, allowed)) = ARROWS.iter().find(|(known, _)| *known == name) else {
            faults.push(format!(
                "{name} is not in the table of arrows (xtask/src/tidy/arrows.rs, ARCHITECTURE.md)"
            ));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            // Tests may look at anything.
            if dependency["kind"].as_str() == Some("dev") {
                continue;
            }
            let on = dependency["name"].as_str().unwrap_or_default();
            let inside = on.starts_with("baton");
            if inside && !allowed.contains(&on) {
                faults.push(format!("{name} may not depend on {on}"));
            }
            if !inside && CORE_CRATES.contains(&name) && !CORE_MAY_USE.contains(&on) {
                faults.push(format!("{name} is a core and may not use {on}"));
            }
        }
    }
    faults
}
