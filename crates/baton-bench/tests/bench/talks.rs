//! Conversations, traces, and what prompts have in common.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use baton_bench::{Api, LoadPlan, Source};
use baton_workload::Lengths;
use baton_workload::result::{Ending, WarningKind};
use serde_json::Value;

use crate::stub::{Behaviour, Stub, StubEnding};
use crate::world::{measure, synthetic};

#[test]
fn the_models_own_answers_are_sent_back_after_a_think() {
    let stub = Stub::start(|_| Behaviour::default());
    let talk = baton_workload::Synthetic {
        input: Lengths::Fixed(5),
        turns: 3,
        think: Duration::from_millis(50),
        in_words: true,
        ..synthetic()
    };
    let measured = measure(&stub, 12, |options| {
        options.api = Api::Chat;
        options.source = Source::Synthetic(talk);
    });
    assert_eq!(measured.ending(Ending::Complete), 12);
    let asked: BTreeMap<String, Value> =
        stub.asked().into_iter().map(|asked| (asked.id, asked.body["messages"].clone())).collect();
    for turns in measured.records.chunks(3) {
        let [first, second, third] = turns else { panic!("three turns") };
        assert_eq!((first.conversation.as_ref(), third.turn), (second.conversation.as_ref(), 2));
        let [one, two, three] =
            [first, second, third].map(|record| asked[&record.id].as_array().unwrap().clone());
        assert_eq!((one.len(), two.len(), three.len()), (1, 3, 5));
        assert_eq!((&two[0], &three[..3]), (&one[0], &two[..]));
        assert_eq!(two[1]["role"], "assistant");
        assert_eq!(two[1]["content"], " t0 t1 t2 t3 t4 t5 t6 t7");
        // Counted from when it was due: the end of the answer, and the think.
        assert!((second.scheduled_ms - first.done_ms.unwrap() - 50.0).abs() < 0.01);
        assert!(second.sent_ms.unwrap() >= second.scheduled_ms - 0.01);
    }
}

#[test]
fn a_turn_that_fails_ends_its_conversation() {
    let stub = Stub::start(|asked| match asked.body["messages"].as_array().map(Vec::len) {
        Some(3) => Behaviour { ending: StubEnding::Cut, ..Behaviour::default() },
        _ => Behaviour::default(),
    });
    let talk = baton_workload::Synthetic { turns: 3, in_words: true, ..synthetic() };
    let measured = measure(&stub, 6, |options| {
        options.api = Api::Chat;
        options.source = Source::Synthetic(talk);
    });
    let counts = [Ending::Complete, Ending::Cut, Ending::Unfinished].map(|ending| measured.ending(ending));
    assert_eq!(counts, [2, 2, 2]);
}

fn excerpt(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../baton-workload/tests/traces").join(name)
}

#[test]
fn a_trace_is_replayed_with_its_prefixes_and_times() {
    let stub = Stub::start(|_| Behaviour {
        ttft: Duration::from_millis(2),
        itl: Duration::ZERO,
        ..Behaviour::default()
    });
    let measured = measure(&stub, 40, |options| {
        options.load = LoadPlan::Recorded;
        options.time_scale = 20.0;
        options.source = Source::Trace {
            path: excerpt("mooncake.jsonl"),
            max_prompt_tokens: Some(20_000),
            output_tokens: 1,
            turns: None,
        };
    });
    assert_eq!(measured.ending(Ending::Complete), 40);
    let prompts: Vec<Vec<Value>> =
        stub.asked().into_iter().map(|asked| asked.body["prompt"].as_array().unwrap().clone()).collect();
    // All of them begin with the block of id 0.
    assert!(prompts.iter().all(|prompt| prompt.len() <= 20_000 && prompt[..512] == prompts[0][..512]));
    let gap = measured
        .records
        .windows(2)
        .map(|pair| pair[1].scheduled_ms - pair[0].scheduled_ms)
        .fold(0.0, f64::max);
    // Every 3 s there, every 150 ms here.
    assert!((150.0..=450.0).contains(&gap), "{gap}");
    let shareable = measured.outcome.result.workload.shareable_share.unwrap();
    assert!(shareable > 0.02, "{shareable}");
    let kinds = measured.outcome.result.warnings.iter().map(|warning| warning.kind);
    assert!(kinds.into_iter().any(|kind| kind == WarningKind::RepeatedPrompts));
}

#[test]
fn recorded_sessions_are_taken_by_clients_turn_by_turn() {
    let stub = Stub::start(|_| Behaviour {
        ttft: Duration::from_millis(1),
        itl: Duration::ZERO,
        ..Behaviour::default()
    });
    let measured = measure(&stub, 30, |options| {
        options.load = LoadPlan::Clients(vec![2]);
        options.time_scale = 10_000.0;
        options.source = Source::Trace {
            path: excerpt("weka.csv.gz"),
            max_prompt_tokens: None,
            output_tokens: 1,
            turns: Some(10),
        };
    });
    assert_eq!(measured.ending(Ending::Complete), 30);
    let of = |name: &str| measured.records.iter().filter(|r| r.conversation.as_deref() == Some(name)).count();
    assert_eq!((of("trace_0003"), of("trace_0003/sub1")), (10, 10));
}

#[test]
fn a_server_that_had_the_prompts_before_is_noticed() {
    let stub = Stub::start(|_| Behaviour { cached_tokens: 30, ..Behaviour::default() });
    let measured = measure(&stub, 40, |_| {});
    let warning =
        measured.outcome.result.warnings.iter().find(|w| w.kind == WarningKind::RepeatedPrompts).unwrap();
    assert!(warning.text.contains("94 %"), "{}", warning.text);
}
