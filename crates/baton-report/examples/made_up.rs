//! Writes made-up results and their pages, for looking at: `cargo run -p baton-report --example made_up -- DIRECTORY`.

#[path = "../tests/made_up/mod.rs"]
mod made_up;

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use baton_report::{Input, Trace, page, report};
use baton_workload::result::Load;
use made_up::{MadeUp, Plan, hostile, open};

fn main() -> Result<(), Box<dyn Error>> {
    let into = std::env::args().nth(1).ok_or("name a directory")?;
    let into = Path::new(&into);
    let write = |name: &str, run: &MadeUp| run.write(into, name);
    let sweep =
        write("sweep", &MadeUp::new(&Plan { label: Some("first sweep".to_owned()), ..Plan::default() }))?;
    let second = Plan {
        label: Some("second sweep".to_owned()),
        model: "smollm2-360m-instruct".to_owned(),
        seed: 9,
        ..Plan::default()
    };
    let second = write("second", &MadeUp::new(&second))?;
    let strategies = vec!["none", "pull", "push", "bidirectional"];
    let loads = vec![open(1.0), open(3.0)];
    let compare = Plan { strategies, loads, rounds: 4, requests: 60, compare: true, ..Plan::default() };
    let compare = MadeUp::new(&compare);
    let traced = compare.trace();
    let compare = write("compare", &compare)?;
    let one =
        Plan { loads: vec![Load::Closed { concurrency: 8 }], strategies: vec!["push"], ..Plan::default() };
    let one = write("one", &MadeUp::new(&one))?;
    let hostile = write("hostile", &hostile())?;
    let huge = Plan {
        loads: vec![open(20.0), open(40.0)],
        strategies: vec!["pull", "push"],
        requests: 25_000,
        ..Plan::default()
    };
    let huge = write("huge", &MadeUp::new(&huge))?;
    let empty = write("empty", &MadeUp::new(&Plan { loads: Vec::new(), ..Plan::default() }))?;
    let broken = into.join("broken");
    std::fs::create_dir_all(&broken)?;
    std::fs::write(broken.join("result.json"), "{\"schema_version\":1, \"conditions\":")?;

    let mut trace = Trace::default();
    let spans = into.join("spans.json");
    std::fs::write(&spans, traced.to_string())?;
    trace.read(&spans)?;

    for (name, results) in [
        ("sweep", vec![&sweep]),
        ("compare", vec![&compare]),
        ("two", vec![&sweep, &second]),
        ("one", vec![&one]),
        ("hostile", vec![&hostile]),
        ("huge", vec![&huge]),
        ("empty", vec![&empty]),
        ("broken", vec![&one, &broken]),
    ] {
        let started = Instant::now();
        let (mut inputs, mut unread) = (Vec::new(), Vec::new());
        for result in results {
            match Input::read(result) {
                Ok(input) => inputs.push(input),
                Err(error) => unread.push(error),
            }
        }
        let page = page(&report(&inputs, &unread, &trace))?;
        std::fs::write(into.join(format!("{name}.html")), &page)?;
        println!("{name}.html: {} KiB in {} ms", page.len() / 1024, started.elapsed().as_millis());
    }
    Ok(())
}
