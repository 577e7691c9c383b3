//! Readers of traces, on excerpts; and on the whole traces where `BATON_TRACES` says where they are:
//! `BATON_TRACES=DIR cargo test -p baton-workload --test traces -- --ignored`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use baton_workload::trace::{Figures, Trace, TraceError, TraceKind, weka_raw};
use baton_workload::{Ask, Conversation, Prompt, Vocabulary};

fn excerpt(name: &str) -> Trace {
    Trace::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traces").join(name)).unwrap()
}

fn whole(name: &str) -> Trace {
    let dir = PathBuf::from(std::env::var_os("BATON_TRACES").expect("BATON_TRACES names the directory"));
    Trace::read(&dir.join(name)).unwrap()
}

fn near(value: Option<f64>, expected: f64, by: f64) {
    assert!(value.is_some_and(|value| (value - expected).abs() <= by), "{value:?}, not {expected}");
}

fn prompts(conversation: &Conversation) -> Vec<&Prompt> {
    conversation.turns.iter().map(|turn| prompt(&turn.ask)).collect()
}

fn prompt(ask: &Ask) -> &Prompt {
    match ask {
        Ask::Whole(prompt) => prompt,
        Ask::Next(_) => panic!("a trace of tokens"),
    }
}

fn common_blocks(a: &Prompt, b: &Prompt) -> usize {
    a.keys().zip(b.keys()).take_while(|(a, b)| a == b).count()
}

#[test]
fn mooncakes_excerpt_has_its_figures_and_its_words_their_prefixes() {
    let trace = excerpt("mooncake.jsonl");
    assert_eq!((trace.kind, trace.conversations.len()), (TraceKind::Mooncake, 120));
    let figures = Figures::of(&trace.conversations);
    // Counted with another program.
    near(figures.mean_input, 14_802.825, 0.01);
    near(figures.median_input, 9_418.0, 0.0);
    near(figures.p99_input, 87_172.0, 0.0);
    near(figures.shareable, 119.0 / 3_535.0, 1e-12);
    let words: Vec<_> = trace.conversations[..12]
        .iter()
        .map(|conversation| {
            let prompt = prompts(conversation)[0].clone();
            let words = prompt.write_out(&Vocabulary::bytes(), 1);
            assert_eq!(words.len(), prompt.tokens as usize);
            (prompt, words)
        })
        .collect();
    for (i, (a, a_words)) in words.iter().enumerate() {
        for (b, b_words) in &words[..i] {
            let shared = (512 * common_blocks(a, b)).min(a_words.len()).min(b_words.len());
            let common = a_words.iter().zip(b_words).take_while(|(a, b)| a == b).count();
            assert!((shared..=shared + 3).contains(&common), "{common} tokens for {shared}");
        }
    }
}

#[test]
fn wekas_excerpt_has_its_threads_and_hits() {
    let trace = excerpt("weka.csv.gz");
    assert_eq!((trace.kind, trace.conversations.len()), (TraceKind::Weka, 4));
    let figures = Figures::of(&trace.conversations);
    assert_eq!(figures.requests, 121);
    near(figures.mean_input, 81279.0413, 0.01);
    near(figures.shareable, 143_622.0 / 153_602.0, 1e-12);
    let named: BTreeMap<_, _> = trace.conversations.iter().map(|c| (c.name.as_deref().unwrap(), c)).collect();
    let agent = named["trace_0003/sub1"];
    // When the session's first request had ended.
    assert_eq!((agent.session, agent.offset), (0, Duration::from_millis(7270)));
    assert_eq!(agent.turns[1].think, Duration::from_secs(3));
    let main = prompts(named["trace_0044"]);
    assert_eq!(main[2].keys().count(), 1257);
    assert_eq!((common_blocks(main[1], main[2]), common_blocks(main[2], main[3])), (195, 1257));
    assert!(named["trace_0044"].turns[0].think.is_zero());
}

#[test]
fn what_is_no_trace_is_refused_with_its_place() {
    let dir = std::env::temp_dir().join(format!("baton-traces-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let read = |text: &str| {
        let path = dir.join("trace");
        std::fs::write(&path, text).unwrap();
        Trace::read(&path).unwrap_err()
    };
    let header = "trace,idx,sub,t,type,in,out,block_size,nblocks,prefix_hit_blocks,think_time,api_time\n";
    let good = r#"{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [1]}"#;
    assert!(matches!(read(""), TraceError::Unknown { .. }));
    assert!(matches!(read("hello"), TraceError::Unknown { .. }));
    assert!(matches!(read(header), TraceError::Empty { .. }));
    assert!(matches!(read(&format!("{good}\n{{\"timestamp\": -1}}")), TraceError::Record { record: 2, .. }));
    // More in common than there was.
    let row = "a,0,,0.0,n,640,5,64,10,0,0.0,1.0\na,1,,5.0,n,640,5,64,10,11,0.0,1.0\n";
    assert!(matches!(read(&format!("{header}{row}")), TraceError::Record { record: 2, .. }));
    let row = "a,0,,-5.0,n,640,5,64,10,0,0.0,1.0\n";
    assert!(matches!(read(&format!("{header}{row}")), TraceError::Record { record: 1, .. }));
    assert!(matches!(Trace::read(&dir.join("none")), Err(TraceError::Io { .. })));
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
#[ignore = "needs the whole traces: BATON_TRACES"]
fn mooncake_is_what_its_readme_says() {
    let trace = whole("mooncake_conversation.jsonl");
    let figures = Figures::of(&trace.conversations);
    assert_eq!(figures.requests, 12_031);
    near(figures.mean_input, 12_035.0, 1.0);
    near(figures.median_input, 6_909.0, 0.0);
    near(figures.p99_input, 85_000.0, 1_000.0);
    near(figures.mean_output, 343.0, 1.0);
    near(figures.shareable, 0.366, 0.0005);
    near(Some(figures.requests as f64 / figures.span.as_secs_f64()), 3.4, 0.05);
}

#[test]
#[ignore = "needs the whole traces: BATON_TRACES"]
fn weka_is_what_its_readme_says() {
    let trace = whole("weka_claude_code_compact.csv.gz");
    let figures = Figures::of(&trace.conversations);
    assert_eq!((figures.requests, figures.conversations), (49_334, 773));
    assert_eq!(trace.conversations.last().unwrap().session, 709);
    near(figures.mean_input, 122_378.997, 0.001);
    near(figures.shareable, 0.962_801_3, 1e-6);
}

/// Both files tell of the same session: the ids of one, the counts of the other.
#[test]
#[ignore = "needs the whole traces: BATON_TRACES"]
fn wekas_recordings_are_its_compact_sessions() {
    let compact = whole("weka_claude_code_compact.csv.gz");
    for name in ["trace_0044", "trace_0060"] {
        let raw = whole(&format!("weka_raw/{name}.json"));
        assert_eq!(raw.kind, TraceKind::WekaRaw);
        let [recorded] = &raw.conversations[..] else { panic!("one session") };
        let told = compact.conversations.iter().find(|c| c.name == recorded.name).unwrap();
        assert_eq!(recorded.turns.len(), told.turns.len());
        let (recorded_prompts, told_prompts) = (prompts(recorded), prompts(told));
        for (i, (a, b)) in recorded.turns.iter().zip(&told.turns).enumerate() {
            assert_eq!((a.think, a.output_tokens), (b.think, b.output_tokens));
            let (a, b) = (recorded_prompts[i], told_prompts[i]);
            assert_eq!((a.tokens, a.keys().count()), (b.tokens, b.keys().count()));
            if let Some(before) = i.checked_sub(1) {
                let hits = common_blocks(recorded_prompts[before], a);
                assert_eq!(hits, common_blocks(told_prompts[before], b));
            }
        }
    }
}

#[test]
fn a_recorded_session_is_read() {
    let text = r#"{"id":"s","block_size":64,"hash_id_scope":"local","requests":[
        {"t":0.0,"type":"n","in":130,"out":75,"hash_ids":[1,2],"api_time":3.37,"think_time":0.0},
        {"t":9.0,"type":"s","in":200,"out":0,"hash_ids":[1,2,3],"think_time":2.5}]}"#;
    let sessions: Result<Vec<_>, _> = weka_raw::sessions(text.as_bytes()).collect();
    assert_eq!(sessions.unwrap()[0].requests[1].think_time, Some(2.5));
}
