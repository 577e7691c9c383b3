//! What `baton doctor` says, and when it is content.

use serde_json::Value;

use crate::program::{baton, stderr, stdout};

/// The status, and what was found.
fn examine(flags: &[&str], variables: &[(&str, &str)]) -> (Option<i32>, Value) {
    let argv = [&["doctor", "--json"], flags].concat();
    let output = baton(&argv).envs(variables.iter().copied()).output().unwrap();
    let findings = serde_json::from_str(&stdout(&output)).unwrap_or_else(|_| panic!("{}", stderr(&output)));
    (output.status.code(), findings)
}

/// State and words of a finding, with what to do.
fn found(findings: &Value, about: &str, name: &str) -> (String, String) {
    let all = findings["findings"].as_array().unwrap();
    let one = all.iter().find(|finding| finding["about"] == about && finding["name"] == name);
    let one = one.unwrap_or_else(|| panic!("nothing about {about} {name}: {findings:#}"));
    let text = |member: &str| one[member].as_str().unwrap_or_default().to_owned();
    (text("state"), format!("{} -> {}", text("what"), text("advice")))
}

const NO_NIXL: (&str, &str) = ("NIXL_PREFIX", "/nowhere");

#[test]
fn what_can_be_had_works_and_the_rest_is_no_fault() {
    let (status, findings) = examine(&[], &[NO_NIXL]);
    assert_eq!((status, &findings["ok"]), (Some(0), &true.into()));
    for name in ["shm", "tcp"] {
        let (state, words) = found(&findings, "transport", name);
        assert_eq!(state, "ok", "{words}");
        assert!(words.contains("wrote 256 KiB") && words.contains("read them"), "{words}");
    }
    let (state, words) = found(&findings, "transport", "nixl");
    assert!(state == "missing" && words.contains("baton nixl install"), "{state}: {words}");
    let (state, words) = found(&findings, "nixl", "library");
    assert!(state == "missing" && words.contains("/nowhere/lib/libnixl_capi.so"), "{state}: {words}");
    for (about, name) in [
        ("host", "cpu"),
        ("host", "memory"),
        ("shared memory", "memfd"),
        ("limits", "open files"),
        ("limits", "locked memory"),
        ("network", "loopback"),
        ("environment", "NIXL_PREFIX"),
    ] {
        found(&findings, about, name);
    }
}

#[test]
fn what_was_asked_for_must_work() {
    let (status, findings) = examine(&["--transport=shm,tcp"], &[NO_NIXL]);
    assert_eq!((status, &findings["ok"]), (Some(0), &true.into()));
    let (status, findings) = examine(&["--transport=nixl"], &[NO_NIXL]);
    assert_eq!((status, &findings["ok"]), (Some(1), &false.into()));
    // An address for documentation, which no machine has.
    let (status, findings) = examine(&["--transport=shm", "--transport=tcp", "--host=192.0.2.1"], &[NO_NIXL]);
    assert_eq!(status, Some(1));
    assert_eq!(found(&findings, "network", "listening").0, "failed");
    assert_eq!(found(&findings, "transport", "tcp").0, "failed");
    assert_eq!(found(&findings, "transport", "shm").0, "ok");
}

#[test]
fn people_get_lines() {
    let output = baton(&["doctor"]).env(NO_NIXL.0, NO_NIXL.1).output().unwrap();
    let text = stdout(&output);
    assert!(output.status.success() && text.contains("\ntransport\n"), "{text}");
    assert!(text.contains("  ok       shm") && text.contains("  missing  nixl"), "{text}");
    assert!(text.lines().all(|line| !line.trim_start().starts_with('{')), "{text}");
}

/// Where there is no libcuda, the one that `cargo x nixl` cannot have either.
#[test]
#[ignore = "needs NIXL: cargo x nixl"]
fn what_nixl_has_over_nixl() {
    let (status, findings) = examine(&["--transport=nixl"], &[]);
    let (state, words) = found(&findings, "transport", "nixl");
    assert_eq!((status, state.as_str()), (Some(0), "ok"), "{words}");
    assert_eq!(found(&findings, "nixl", "ucx").0, "ok");
    let (state, words) = found(&findings, "nixl", "devices");
    assert!(state == "ok" && words.contains("tcp/"), "{state}: {words}");
    let (state, words) = found(&findings, "nixl", "library");
    assert!(state == "ok" && words.contains("libnixl_capi.so"), "{state}: {words}");

    let (status, findings) = examine(&["--transport=nixl"], &[("UCX_TLS", "pigeon")]);
    assert_eq!(status, Some(1));
    assert_eq!(found(&findings, "transport", "nixl").0, "failed");
    assert_eq!(found(&findings, "environment", "UCX_TLS").1, "pigeon -> ");
}
