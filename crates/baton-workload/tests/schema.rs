//! The examples of docs/results.md are results.

use baton_workload::result::{Ending, ResultError, RunResult, WarningKind, read_requests};
use serde_json::Value;

const PAGE: &str = include_str!("../../../docs/results.md");

fn example(language: &str) -> &'static str {
    let start = PAGE.find(&format!("```{language}\n")).unwrap() + language.len() + 4;
    let end = PAGE[start..].find("```").unwrap();
    &PAGE[start..start + end]
}

/// Members of `documented` that `written` lacks: documented and no longer there.
fn lost(documented: &Value, written: &Value, at: &str, lost_at: &mut Vec<String>) {
    match (documented, written) {
        (Value::Object(a), Value::Object(b)) => {
            for (name, value) in a {
                match b.get(name) {
                    Some(other) => lost(value, other, &format!("{at}.{name}"), lost_at),
                    None => lost_at.push(format!("{at}.{name}")),
                }
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            a.iter().zip(b).for_each(|(a, b)| lost(a, b, &format!("{at}[]"), lost_at));
        }
        (a, b) if a == b || a.as_f64().is_some_and(|x| b.as_f64() == Some(x)) => {}
        (a, b) => lost_at.push(format!("{at}: {a} became {b}")),
    }
}

#[test]
fn the_documented_result_is_one() {
    let text = example("json");
    let result = RunResult::read(text).unwrap();
    assert_eq!(result.warnings[0].kind, WarningKind::Unfinished);
    assert_eq!(result.points[0].counts.of(Ending::Complete), 97);
    let mut written = Vec::new();
    result.write(&mut written).unwrap();
    let mut gone = Vec::new();
    lost(
        &serde_json::from_str(text).unwrap(),
        &serde_json::from_slice(&written).unwrap(),
        "result",
        &mut gone,
    );
    assert!(gone.is_empty(), "documented, but not in the types: {gone:#?}");
}

#[test]
fn the_documented_requests_are_some() {
    let text = example("jsonl");
    let records: Vec<_> = read_requests(text.as_bytes()).map(Result::unwrap).collect();
    assert_eq!((records[0].ending, records[1].ending), (Ending::Complete, Ending::Refused));
    let ttft = records[0].ttft_ms().unwrap();
    assert!((ttft - 67.8).abs() < 1e-6 && (records[0].tpot_ms().unwrap() - 15.35).abs() < 1e-6);
    assert_eq!(records[1].ttft_ms(), None);
    for (record, line) in records.iter().zip(text.lines()) {
        let mut gone = Vec::new();
        lost(
            &serde_json::from_str(line).unwrap(),
            &serde_json::to_value(record).unwrap(),
            "request",
            &mut gone,
        );
        assert!(gone.is_empty(), "{gone:#?}");
    }
}

#[test]
fn another_version_is_named_and_rubbish_is_refused() {
    let other = example("json").replace("\"schema_version\": 1", "\"schema_version\": 2");
    assert!(matches!(RunResult::read(&other), Err(ResultError::OtherVersion { found: 2 })));
    // The version decides, whatever else is missing.
    assert!(matches!(
        RunResult::read("{\"schema_version\": 9}"),
        Err(ResultError::OtherVersion { found: 9 })
    ));
    for rubbish in ["", "{}", "[]", "{\"schema_version\": 1}", "{\"schema_version\": \"1\"}"] {
        assert!(matches!(RunResult::read(rubbish), Err(ResultError::Malformed(_))), "{rubbish}");
    }
    let lines: Vec<_> = read_requests(&b"{\"index\":1}\n\nnonsense\n{\"index\":2}\n{\"ind"[..]).collect();
    assert_eq!(lines.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true, false]);
    assert!(matches!(lines[1], Err(ResultError::Record { line: 3, .. })));
}
