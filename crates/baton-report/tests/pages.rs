//! Results on disk in, pages out: what must be in them, and what must not.

mod made_up;

use std::path::Path;

use base64::Engine;
use baton_report::{Input, InputError, Trace, markdown, page, report};
use baton_workload::result::Load;
use made_up::{HOSTILE, MadeUp, Plan, hostile, open};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

fn read(run: &MadeUp, name: &str) -> (TempDir, Input) {
    let directory = TempDir::new().unwrap();
    let path = run.write(directory.path(), name).unwrap();
    let input = Input::read(&path).unwrap();
    (directory, input)
}

fn page_of(run: &MadeUp) -> String {
    let (_directory, input) = read(run, "run");
    page(&report(&[input], &[], &Trace::default())).unwrap()
}

/// The elements' texts between `<tag …>` and `</tag>`, as a browser would find them.
fn elements<'a>(page: &'a str, tag: &str) -> Vec<(&'a str, &'a str)> {
    let (open, close) = (format!("<{tag}"), format!("</{tag}>"));
    let mut found = Vec::new();
    let mut rest = page;
    while let Some(start) = rest.find(&open) {
        let (attributes, after) = rest[start + open.len()..].split_once('>').unwrap();
        let (text, next) = after.split_once(&close).unwrap();
        found.push((attributes, text));
        rest = next;
    }
    found
}

fn data(page: &str) -> Value {
    let scripts = elements(page, "script");
    let (_, json) = scripts.iter().find(|(attributes, _)| attributes.contains("id=\"data\"")).unwrap();
    serde_json::from_str(json).unwrap()
}

fn chart<'a>(data: &'a Value, id: &str) -> &'a Value {
    let charts = data["charts"].as_array().unwrap();
    charts.iter().find(|chart| chart["id"] == id).unwrap_or_else(|| panic!("no chart {id}"))
}

#[test]
fn a_sweep_has_every_strategy_at_every_rate() {
    let run = MadeUp::new(&Plan::default());
    let page = page_of(&run);
    let data = data(&page);
    let names: Vec<&str> =
        data["series"].as_array().unwrap().iter().map(|s| s["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["none", "pull", "push"]);
    let p90 = &chart(&data, "rate-ttft")["views"][2];
    assert_eq!(p90.as_array().unwrap().len(), 3);
    assert_eq!(p90[2]["x"], serde_json::json!([0.5, 1.0, 2.0, 4.0, 6.0]));
    // The point's own figure and interval, to four digits.
    let point = run.result.points.iter().find(|p| p.system == "push" && p.load == open(4.0)).unwrap();
    let ttft = point.ttft_ms.unwrap().p90;
    for (member, value) in [("y", ttft.value), ("low", ttft.low.unwrap()), ("high", ttft.high.unwrap())] {
        let shown = p90[2][member][3].as_f64().unwrap();
        assert!((shown / value - 1.0).abs() < 1e-3, "{member}: {shown} for {value}");
    }
    for id in
        ["rate-tpot", "curve-ttft", "distribution-ttft", "lengths-ttft", "lengths-tpot", "servers-gauges"]
    {
        chart(&data, id);
    }
    let stalls = page.split("Between a step&#39;s end").nth(1).expect("the loop's stalls");
    assert!(stalls.contains(">12.5<"), "the p99 in milliseconds");
    for title in ["Warnings", "What differs", "By rate", "Single requests", "KV and transfers", "Conditions"]
    {
        assert!(page.contains(&format!(">{title}</h2>")), "{title}");
    }
    assert!(
        page.find("id=\"warnings\"").unwrap() < page.find("id=\"differences\"").unwrap(),
        "warnings come first"
    );
}

#[test]
fn a_distribution_is_that_of_the_requests() {
    let run = MadeUp::new(&Plan::default());
    let data = data(&page_of(&run));
    // The third load, the third strategy: point 8.
    let mut ttft: Vec<f64> = run
        .records
        .iter()
        .filter(|r| r.point == 8 && r.ending.is_answer())
        .filter_map(|r| r.ttft_ms())
        .collect();
    ttft.sort_unstable_by(f64::total_cmp);
    let line = &chart(&data, "distribution-ttft")["views"][2][2];
    for (share, value) in line["y"].as_array().unwrap().iter().zip(line["x"].as_array().unwrap()) {
        let (share, value) = (share.as_f64().unwrap(), value.as_f64().unwrap());
        let within = ttft.iter().filter(|ttft| **ttft <= value * 1.001).count() as f64;
        assert!(within / ttft.len() as f64 >= share - 1e-9, "{share}: {value}");
    }
}

#[test]
fn requests_are_the_slowest_and_the_same_for_all() {
    let run = MadeUp::new(&Plan::default());
    let data = data(&page_of(&run));
    let requests = data["timelines"][0]["requests"].as_array().unwrap();
    let of = |series: u64, kind: &str| {
        let wanted = |r: &&Value| r["l"] == 1 && r["s"] == series && r[kind] == true;
        let mut indices: Vec<u64> =
            requests.iter().filter(wanted).map(|r| r["i"].as_u64().unwrap()).collect();
        indices.sort_unstable();
        indices
    };
    assert_eq!(of(0, "few"), of(2, "few"));
    assert_eq!((of(0, "few").len(), of(0, "slow").len()), (16, 12));
    let e2e =
        |index: u64| run.records.iter().find(|r| r.point == 3 && r.index == index).unwrap().e2e_ms().unwrap();
    let slowest = of(0, "slow").into_iter().map(e2e).fold(f64::INFINITY, f64::min);
    let quicker = run
        .records
        .iter()
        .filter(|r| r.point == 3 && r.e2e_ms().is_some_and(|e2e| e2e > slowest + 1.0))
        .count();
    assert!(quicker < 12, "{quicker} took longer than one that is shown as one of the slowest");
}

#[test]
fn nothing_leaves_the_page_and_nothing_in_it_runs_but_its_own_scripts() {
    for run in [MadeUp::new(&Plan::default()), hostile()] {
        let page = page_of(&run);
        for outside in
            ["@import", "url(", "fetch(", "XMLHttpRequest", "href=\"http", "new Worker", "sendBeacon"]
        {
            assert!(!page.contains(outside), "{outside}");
        }
        let mut attributes: Vec<String> = tags(&page).iter().flat_map(|tag| attribute_names(tag)).collect();
        attributes.sort_unstable();
        attributes.dedup();
        for name in &attributes {
            assert!(!["src", "srcset", "action", "style", "data"].contains(&name.as_str()), "{attributes:?}");
            assert!(!name.starts_with("on"), "{attributes:?}");
        }
        for tag in ["img", "iframe", "link", "object", "embed", "form", "base"] {
            assert!(!tags(&page).iter().any(|found| found.split_whitespace().next() == Some(tag)), "{tag}");
        }
        let scripts = elements(&page, "script");
        assert_eq!(scripts.len(), 3, "data, library, page");
        let policy =
            page.split("Content-Security-Policy\" content=\"").nth(1).unwrap().split('"').next().unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'sha256-"), "{policy}");
        for (_, text) in scripts.iter().filter(|(attributes, _)| attributes.is_empty()) {
            let hash = base64::engine::general_purpose::STANDARD.encode(Sha256::digest(text));
            assert!(policy.contains(&hash), "a script that the policy forbids");
        }
        assert!(!policy.split("style-src").next().unwrap().contains("unsafe-inline"));
    }
}

/// What stands between `<` and `>`, outside of scripts, styles and comments.
fn tags(page: &str) -> Vec<&str> {
    let (mut found, mut rest) = (Vec::new(), page);
    while let Some(start) = rest.find('<') {
        rest = &rest[start + 1..];
        let skip = [("!--", "-->"), ("script", "</script>"), ("style", "</style>")];
        if let Some((_, end)) = skip.iter().find(|(begin, _)| rest.starts_with(begin)) {
            rest = rest.split_once(end).unwrap().1;
            continue;
        }
        // An attribute's value may hold what looks like an end.
        let mut quoted = false;
        let end = rest.find(|c| {
            quoted ^= c == '"';
            c == '>' && !quoted
        });
        let (tag, next) = rest.split_at(end.unwrap());
        found.push(tag);
        rest = next;
    }
    found
}

fn attribute_names(tag: &str) -> Vec<String> {
    // Every other piece is a quoted value.
    let unquoted: Vec<&str> = tag.split('"').step_by(2).collect();
    let names = unquoted.join(" ");
    names.split_whitespace().skip(1).map(|name| name.trim_end_matches('=').to_owned()).collect()
}

/// Hostile words as the page shows them, which are words.
fn made_up_escaped() -> String {
    HOSTILE
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', "&#39;")
}

#[test]
fn hostile_words_are_words() {
    let run = hostile();
    let page = page_of(&run);
    assert!(!page.contains(HOSTILE));
    assert!(page.matches(&made_up_escaped()).count() > 20, "titles, conditions, warnings, legends, tables");
    let data = data(&page);
    assert_eq!(data["series"][2]["name"], format!("push{HOSTILE}"));
    let (_directory, input) = read(&run, "run");
    let report = report(&[input], &[], &Trace::default());
    assert!(!markdown(&report).contains("<img"));
    let csv = report.tables().find(|table| table.id == "requests-table").unwrap().csv();
    let rows = csv.lines().count();
    assert_eq!(rows, report.tables().find(|table| table.id == "requests-table").unwrap().rows.len() + 1);
}

#[test]
fn a_hundred_thousand_requests_are_a_small_page() {
    let plan = Plan {
        strategies: vec!["pull", "push"],
        loads: vec![open(20.0), open(40.0)],
        requests: 25_000,
        output_tokens: 8,
        scrape: false,
        ..Plan::default()
    };
    let run = MadeUp::new(&plan);
    assert_eq!(run.records.len(), 100_000);
    let page = page_of(&run);
    assert!(page.len() < 600_000, "{} bytes", page.len());
    let data = data(&page);
    assert!(data["timelines"][0]["requests"].as_array().unwrap().len() <= 4 * 28);
    assert!(page.contains("of 100\u{202f}000 requests"), "it says what it leaves out");
}

#[test]
fn several_rounds_are_pooled_and_spread() {
    let plan = Plan {
        rounds: 3,
        requests: 100,
        compare: true,
        loads: vec![open(1.0), open(3.0)],
        ..Plan::default()
    };
    let run = MadeUp::new(&plan);
    let (_directory, input) = read(&run, "run");
    let report = report(&[input], &[], &Trace::default());
    let table = report.tables().find(|table| table.id == "ttft").unwrap();
    assert_eq!(table.rows.len(), 6, "rounds are no rows");
    let rounds: Vec<f64> = run
        .result
        .points
        .iter()
        .filter(|p| p.system == "none" && p.load == open(1.0))
        .map(|p| p.ttft_ms.unwrap().p90.value)
        .collect();
    let fields: Vec<f64> =
        table.csv().lines().nth(1).unwrap().split(',').filter_map(|f| f.parse().ok()).collect();
    // Samples, then mean, p50 and p90 with their ends.
    let (low, high) = (fields[8], fields[9]);
    assert!((low - rounds.iter().copied().fold(f64::INFINITY, f64::min)).abs() < 1e-3);
    assert!((high - rounds.iter().copied().fold(0.0, f64::max)).abs() < 1e-3);
    assert!(low <= fields[7] && fields[7] <= high);
    assert!(report.sections.iter().any(|section| section.id == "ratios"));
}

#[test]
fn two_results_are_told_apart() {
    let directory = TempDir::new().unwrap();
    let inputs: Vec<Input> = ["first", "second"]
        .iter()
        .zip([1, 2])
        .map(|(name, seed)| {
            let plan = Plan { seed, model: format!("model-{seed}"), requests: 20, ..Plan::default() };
            Input::read(&MadeUp::new(&plan).write(directory.path(), name).unwrap()).unwrap()
        })
        .collect();
    let report = report(&inputs, &[], &Trace::default());
    let names: Vec<&str> = report.series.iter().map(|series| series.name.as_str()).collect();
    assert_eq!(names[..2], ["first · none", "first · pull"]);
    assert_eq!(names[5], "second · push");
    let styles: Vec<_> = report.series.iter().map(|series| (series.colour, series.dash)).collect();
    assert_eq!(styles, [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)], "a system looks the same in both");
    let differs = report.tables().find(|table| table.id == "differences-table").unwrap();
    let conditions: Vec<&str> = differs.rows.iter().map(|row| row.cells[0].text.as_str()).collect();
    assert!(conditions.contains(&"Model") && conditions.contains(&"Seed"), "{conditions:?}");
    assert!(!conditions.contains(&"CPU") && !conditions.contains(&"Address"), "{conditions:?}");
    assert!(report.warnings.iter().any(|warning| warning.title == "Separate runs"));
}

#[test]
fn clients_are_an_axis_of_their_own() {
    let loads =
        [1, 4, 16].map(|concurrency| Load::Closed { concurrency }).into_iter().chain([open(1.0)]).collect();
    let data = data(&page_of(&MadeUp::new(&Plan { loads, requests: 30, ..Plan::default() })));
    assert_eq!(chart(&data, "clients-ttft")["views"][0][0]["x"], serde_json::json!([1.0, 4.0, 16.0]));
    assert_eq!(chart(&data, "rate-ttft")["kind"], "marks", "one rate is no line");
}

#[test]
fn a_result_without_points_says_so() {
    let page = page_of(&MadeUp::new(&Plan { loads: Vec::new(), ..Plan::default() }));
    assert!(page.contains("Nothing was measured") && page.contains("no load was measured to its end"));
    assert!(!page.contains("class=\"charts\""));
}

#[test]
fn what_cannot_be_read_is_told() {
    let directory = TempDir::new().unwrap();
    let error = |path: &Path| Input::read(path).unwrap_err().to_string();
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    assert!(error(&directory.path().join("none.json")).starts_with("cannot read "));
    assert!(error(directory.path()).contains("no result.json in this directory"));
    assert!(error(&file("empty.json", "\n")).contains("was the run stopped"));
    assert!(error(&file("cut.json", "{\"schema_version\":1,")).contains("no result of baton bench"));
    assert!(error(&file("other.json", "{\"schema_version\":99}")).contains("schema version 99"));
    let unread = [Input::read(&file("cut.json", "{\"schema_version\":1,")).unwrap_err()];
    assert!(matches!(unread[0], InputError::Result { .. }));
    let good =
        MadeUp::new(&Plan { requests: 20, ..Plan::default() }).write(directory.path(), "good").unwrap();
    let report = report(&[Input::read(&good).unwrap()], &unread, &Trace::default());
    assert_eq!(report.warnings[0].title, "A result could not be read");
}

#[test]
fn requests_that_cannot_be_read_are_counted() {
    let run = MadeUp::new(&Plan { requests: 20, ..Plan::default() });
    let directory = TempDir::new().unwrap();
    let path = run.write(directory.path(), "run").unwrap();
    let lines = path.join("requests.jsonl");
    let text = std::fs::read_to_string(&lines).unwrap();
    std::fs::write(&lines, format!("{text}{{\"point\":77}}\nno json\n\n{}", &text[..40])).unwrap();
    let report = report(&[Input::read(&path).unwrap()], &[], &Trace::default());
    let warning = &report.warnings[0];
    assert_eq!(warning.title, "Some requests could not be read");
    assert!(
        warning.text.starts_with("3 of 303 lines; the first: request 0 is of point 77"),
        "{}",
        warning.text
    );
    std::fs::remove_file(&lines).unwrap();
    let without = baton_report::report(&[Input::read(&path).unwrap()], &[], &Trace::default());
    assert_eq!(without.warnings[0].title, "The file with the requests is missing");
    assert!(without.sections.iter().all(|section| section.id != "distributions" && section.id != "requests"));
    assert!(without.sections.iter().any(|section| section.id == "rate"), "sweeps need no requests");
}

#[test]
fn every_table_has_rows_as_long_as_its_heading() {
    for run in [MadeUp::new(&Plan { compare: true, ..Plan::default() }), hostile()] {
        let (_directory, input) = read(&run, "run");
        let report = report(&[input], &[], &Trace::default());
        let mut ids: Vec<&str> = report.tables().map(|table| table.id.as_str()).collect();
        assert!(ids.len() > 15);
        for table in report.tables() {
            assert!(!table.rows.is_empty(), "{}", table.id);
            assert!(table.rows.iter().all(|row| row.cells.len() == table.columns.len()), "{}", table.id);
        }
        ids.sort_unstable();
        let all = ids.len();
        ids.dedup();
        assert_eq!(ids.len(), all, "a name names one table");
    }
}

#[test]
fn spans_of_servers_lie_upon_the_bars() {
    let run = MadeUp::new(&Plan { requests: 30, ..Plan::default() });
    let (directory, input) = read(&run, "run");
    let spans = directory.path().join("spans.json");
    std::fs::write(&spans, run.trace().to_string()).unwrap();
    let mut trace = Trace::default();
    trace.read(&spans).unwrap();
    let page = page(&report(&[input], &[], &trace)).unwrap();
    let data = data(&page);
    let push = data["timelines"][0]["requests"]
        .as_array()
        .unwrap()
        .iter()
        .find(|r| r["s"] == 2 && r["bad"].is_null());
    let phases: Vec<&str> =
        push.unwrap()["ph"].as_array().unwrap().iter().map(|phase| phase[0].as_str().unwrap()).collect();
    assert_eq!(phases[..4], ["client", "server", "queue", "prefill"], "{phases:?}");
    assert_eq!(phases.iter().filter(|phase| **phase == "transfer").count(), 4, "{phases:?}");
    assert_eq!(phases[phases.len() - 2..], ["first_step", "tokens"], "{phases:?}");
    assert!(page.contains("from their traces"));
}
