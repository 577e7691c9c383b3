//! `baton report`: the example of docs/results.md as a page, as Markdown and as CSV; what is wrong is said.

use std::path::{Path, PathBuf};
use std::process::Output;

use tempfile::TempDir;

use crate::program::{baton, stderr, stdout};

/// The text between a fence of this kind and the next.
fn example(kind: &str) -> &'static str {
    let page = include_str!("../../../../docs/results.md");
    let begin = page.split_once(&format!("```{kind}\n")).unwrap().1;
    begin.split_once("```").unwrap().0
}

fn result() -> (TempDir, PathBuf) {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("run");
    std::fs::create_dir(&path).unwrap();
    std::fs::write(path.join("result.json"), example("json")).unwrap();
    std::fs::write(path.join("requests.jsonl"), example("jsonl")).unwrap();
    (directory, path)
}

fn report(result: &Path, flags: &[&str]) -> Output {
    let argv = [&["report", result.to_str().unwrap()], flags].concat();
    baton(&argv).current_dir(result.parent().unwrap()).output().unwrap()
}

#[test]
fn a_result_becomes_a_page_or_text() {
    let (directory, result) = result();
    let output = report(&result, &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    let page = std::fs::read_to_string(directory.path().join("report.html")).unwrap();
    assert!(page.contains("3 of 100 requests were not over when the measurement ended."));
    let output = report(&result, &["--format=md"]);
    assert!(
        stdout(&output).contains("**Warning: Requests were not over at the end.**"),
        "{}",
        stdout(&output)
    );
    let output = report(&result, &["--format=csv", "--table=ttft", "-o", "ttft.csv"]);
    assert!(output.status.success() && stdout(&output).is_empty());
    let csv = std::fs::read_to_string(directory.path().join("ttft.csv")).unwrap();
    assert!(csv.contains("push,4 req/s,97,80.1,71,92.3,"), "{csv}");
    let output = report(&result, &["--format=csv", "--table=tftt"]);
    assert!(!output.status.success());
    assert!(
        stderr(&output).contains("no table \"tftt\"; there are ") && stderr(&output).contains(", ttft, ")
    );
}

#[test]
fn what_cannot_be_read_is_said_and_is_no_success() {
    let (directory, result) = result();
    let broken = directory.path().join("broken.json");
    std::fs::write(&broken, "{").unwrap();
    let output = report(&result, &["broken.json"]);
    assert!(!output.status.success());
    assert!(stderr(&output).contains("broken.json: this is no result of baton bench"), "{}", stderr(&output));
    let page = std::fs::read_to_string(directory.path().join("report.html")).unwrap();
    assert!(page.contains("A result could not be read"), "the rest is shown");
    let output = report(&broken, &["-o", "none.html"]);
    assert!(!output.status.success() && stderr(&output).contains("nothing to report"));
    assert!(!directory.path().join("none.html").exists());
    let output = report(&result, &["--trace", "broken.json"]);
    assert!(!output.status.success() && stderr(&output).contains("no trace"), "{}", stderr(&output));
}
