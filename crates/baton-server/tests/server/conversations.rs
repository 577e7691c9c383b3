//! Turn after turn: decode keeps, prefill reads back, and the words are those of one engine that reuses nothing (I7).

use baton_model::EmulatedModel;
use baton_server::{CheckpointChoice, ModelChoice, Precision, ServerConfig, TransportKind};
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};

use crate::hand_off::{ask_decode, ask_prefill};
use crate::harness::{TestServer, config, expected, greedy, ids, prompt, with};

/// What a client does with its history before it asks on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Habit {
    Plain,
    /// Changes a few words in the middle.
    Edits,
    /// Leaves an early turn out.
    Drops,
    /// Changes the system prompt: nothing stays true.
    NewSystemPrompt,
    /// Asks each turn twice.
    Regenerates,
    /// Goes on in two directions at once.
    Branches,
}

const HABITS: [Habit; 6] =
    [Habit::Plain, Habit::Edits, Habit::Drops, Habit::NewSystemPrompt, Habit::Regenerates, Habit::Branches];

/// Conversations between clients and two engines of each kind; the second prefill engine caches no prefixes.
struct Cluster {
    prefill: [TestServer; 2],
    decode: [TestServer; 2],
    /// Says what is right.
    alone: TestServer,
}

/// How many conversations, and how long their turns are.
#[derive(Clone, Copy)]
struct Size {
    conversations: u32,
    most_turns: u32,
    answers: (u32, u32),
}

/// Seeded, and the same everywhere.
struct Dice(u32);

impl Dice {
    fn within(&mut self, from: u32, to: u32) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        from + (self.0 >> 8) % (to - from)
    }
}

impl Cluster {
    async fn start(make: impl Fn() -> ServerConfig) -> Self {
        let decode = || ServerConfig { retain_ttl_ms: 480_000, retain_max: 0.9, ..make() };
        let forgetful = ServerConfig { prefix_cache: false, ..make() };
        Self {
            prefill: [TestServer::start(make()).await, TestServer::start(forgetful).await],
            decode: [TestServer::start(decode()).await, TestServer::start(decode()).await],
            alone: TestServer::start(make()).await,
        }
    }

    /// One turn: the answer's tokens, and where they are kept.
    async fn turn(
        &self,
        dice: (usize, usize, u128),
        push: bool,
        body: &Value,
        kept: Option<&Value>,
    ) -> Value {
        let (p, d, transfer) = dice;
        let (prefill, decode) = (&self.prefill[p], &self.decode[d]);
        let mode = if push { "push" } else { "pull" };
        let mut params = ask_prefill(Some(transfer), mode);
        if let Some(kept) = kept {
            params["reuse"] = kept.clone();
        }
        let leg = with(with(body.clone(), "max_tokens", 1.into()), "kv_transfer_params", params);
        if push {
            let to = ask_decode(transfer, mode, &prefill.info().await);
            let body = with(body.clone(), "kv_transfer_params", to);
            let (_, answer) = tokio::join!(prefill.complete(&leg), decode.complete(&body));
            answer
        } else {
            let handle = prefill.complete(&leg).await["kv_transfer_params"].clone();
            decode.complete(&with(body.clone(), "kv_transfer_params", handle)).await
        }
    }

    async fn converse(&self, n: u32, size: Size) {
        let mut dice = Dice(n * 7919 + 1);
        let habit = HABITS[n as usize % HABITS.len()];
        let mut history = prompt(n, dice.within(100, 250));
        let mut kept: Option<Value> = None;
        let turns = dice.within(2, size.most_turns + 1);
        for turn in 0..turns {
            history.extend(prompt(n * 100 + turn, dice.within(5, 60)));
            let most = dice.within(size.answers.0, size.answers.1 + 1);
            let body = |prompt: &[u32]| with(greedy(prompt, most), "ignore_eos", json!(true));
            let asks = match habit {
                Habit::Regenerates => vec![body(&history), body(&history)],
                Habit::Branches => {
                    let other = [&history[..], &[11, 12, 13]].concat();
                    vec![body(&other), body(&history)]
                }
                _ => vec![body(&history)],
            };
            let push = dice.within(0, 2) == 0;
            let mut answers = Vec::new();
            for (i, ask) in asks.iter().enumerate() {
                let place = (dice.within(0, 2) as usize, dice.within(0, 2) as usize);
                let transfer = u128::from(n) << 64 | u128::from(turn) << 32 | i as u128;
                let kept = kept.as_ref();
                answers.push(async move { self.turn((place.0, place.1, transfer), push, ask, kept).await });
            }
            let answers = futures_util::future::join_all(answers).await;
            for (ask, answer) in asks.iter().zip(&answers) {
                let want = self.alone.complete(ask).await;
                assert_eq!(ids(answer), ids(&want), "{habit:?} {n}, turn {turn}, push {push}");
            }
            let answer = answers.last().expect("one at least");
            let handle = &answer["kv_transfer_params"];
            assert_eq!(handle["do_remote_decode"], true, "decode keeps every turn: {answer}");
            kept = Some(handle.clone());
            history.extend(ids(answer));
            match habit {
                Habit::Edits => history[dice.within(10, 90) as usize..][..3].reverse(),
                Habit::Drops if turn == 2 => drop(history.drain(40..80)),
                Habit::NewSystemPrompt if turn % 3 == 1 => history[..8].rotate_left(1),
                _ => {}
            }
        }
        println!("conversation {n} ({habit:?}): {turns} turns, {} tokens, the same words", history.len());
    }

    async fn assert_same_words(&self, size: Size) {
        let all = stream::iter(0..size.conversations).for_each_concurrent(4, |n| self.converse(n, size));
        all.await;
        let (mut done, mut tokens, mut lost) = (0.0, 0.0, 0.0);
        for prefill in &self.prefill {
            done += prefill.metric("baton_readbacks_done_total").await;
            tokens += prefill.metric("baton_readback_tokens_total").await;
            for reason in ["declined", "expired", "failed"] {
                lost += prefill.metric(&format!("baton_readbacks_lost_total{{reason=\"{reason}\"}}")).await;
            }
        }
        println!("{done} readings of {tokens} tokens, {lost} that came to nothing");
        assert!(done > f64::from(size.conversations) && tokens > done * 64.0, "{done} {tokens}");
        for decode in &self.decode {
            assert_eq!(decode.metric("baton_recomputed_total").await, 0.0, "every hand-off moved KV");
        }
        for server in &self.prefill {
            server.idle().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_the_emulated_model() {
    let make = || ServerConfig { kv_memory_bytes: Some(64 << 20), ..config(TransportKind::Memory) };
    let size = Size { conversations: 30, most_turns: 12, answers: (50, 300) };
    Cluster::start(make).await.assert_same_words(size).await;
}

fn smollm2() -> ServerConfig {
    let choice = CheckpointChoice { source: "smollm2".to_owned(), precision: Precision::Exact };
    ServerConfig {
        model: ModelChoice::Checkpoint(choice),
        threads: Some(1),
        kv_memory_bytes: Some(1 << 30),
        ..config(TransportKind::Memory)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_smollm2() {
    let size = Size { conversations: 6, most_turns: 3, answers: (20, 40) };
    Cluster::start(smollm2).await.assert_same_words(size).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes many minutes: cargo x conversations"]
async fn of_smollm2_at_length() {
    let size = Size { conversations: 30, most_turns: 12, answers: (50, 300) };
    Cluster::start(smollm2).await.assert_same_words(size).await;
}

/// A pair whose decode engine keeps, and what it kept of a first turn: its tokens and its handle.
async fn first_turn(change: impl Fn(&mut ServerConfig)) -> (TestServer, TestServer, Vec<u32>, Value) {
    let make = |change: &dyn Fn(&mut ServerConfig)| {
        let mut config = ServerConfig { retain_ttl_ms: 480_000, ..config(TransportKind::Memory) };
        config.prefix_cache = false;
        change(&mut config);
        config
    };
    let prefill = TestServer::start(make(&|_| {})).await;
    let decode = TestServer::start(make(&change)).await;
    let (said, handle) = turn(&prefill, &decode, &prompt(5, 100), None).await;
    (prefill, decode, [prompt(5, 100), said].concat(), handle)
}

/// The tokens and the handle of a pulled answer of 60 tokens, which must be right.
async fn turn(
    prefill: &TestServer,
    decode: &TestServer,
    history: &[u32],
    kept: Option<&Value>,
) -> (Vec<u32>, Value) {
    let (said, answer) = ask("", prefill, decode, history, kept).await;
    (said, answer["kv_transfer_params"].clone())
}

async fn ask(
    tenant: &str,
    prefill: &TestServer,
    decode: &TestServer,
    history: &[u32],
    kept: Option<&Value>,
) -> (Vec<u32>, Value) {
    let body = greedy(history, 60);
    let mut params = ask_prefill(None, "pull");
    if let Some(kept) = kept {
        params["reuse"] = kept.clone();
    }
    let leg = with(with(body.clone(), "max_tokens", 1.into()), "kv_transfer_params", params);
    let (_, handed) = prefill.post_as(tenant, "/v1/completions", &leg).await;
    let body = with(body, "kv_transfer_params", handed["kv_transfer_params"].clone());
    let (_, answer) = decode.post_as(tenant, "/v1/completions", &body).await;
    assert_eq!(ids(&answer), expected(history, 60));
    (ids(&answer), answer)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_read_back_counts_as_cached() {
    let (prefill, decode, mut history, handle) = first_turn(|_| {}).await;
    // 100 + 60 tokens, of which the last has no KV: 9 full blocks.
    assert_eq!(handle["remote_num_tokens"], 144);
    assert_eq!(handle["remote_ttl_ms"], 480_000);
    history.extend(prompt(6, 30));
    let (_, answer) = ask("", &prefill, &decode, &history, Some(&handle)).await;
    assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 144);
    assert_eq!(prefill.metric("baton_readback_tokens_total").await, 144.0);
    assert_eq!(decode.metric("baton_lent_tokens_total").await, 144.0);
    assert_eq!(prefill.metric("baton_cached_tokens_total{source=\"readback\"}").await, 144.0);
    // Twice more, at once: many may read it.
    let (a, b) = tokio::join!(
        turn(&prefill, &decode, &history, Some(&handle)),
        turn(&prefill, &decode, &history, Some(&handle))
    );
    assert_eq!(a.0, b.0);
    assert_eq!(prefill.metric("baton_readbacks_done_total").await, 3.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_a_stop_string_ends_is_kept_too_and_streams_bring_the_handle_at_their_end() {
    let (prefill, decode, ..) = first_turn(|_| {}).await;
    let whole = expected(&prompt(8, 90), 60);
    let layout = EmulatedModel::default_layout(16);
    assert_eq!(layout.block_tokens, 16);
    let leg = with(greedy(&prompt(8, 90), 1), "kv_transfer_params", ask_prefill(None, "pull"));
    let handle = prefill.complete(&leg).await["kv_transfer_params"].clone();
    let body = with(greedy(&prompt(8, 90), 60), "kv_transfer_params", handle);
    let chunks = decode.stream("/v1/completions", &with(body, "stream", true.into())).await;
    let with_handle: Vec<&Value> = chunks.iter().filter(|c| !c["kv_transfer_params"].is_null()).collect();
    assert_eq!(with_handle.len(), 1, "{chunks:?}");
    assert_eq!(with_handle[0]["choices"][0]["finish_reason"], "length");
    let text: String =
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect::<Vec<_>>().concat();

    // Somewhere in the second half of the text; the answer ends there.
    let stop: String = text.chars().skip(text.chars().count() / 2).take(3).collect();
    let leg = with(greedy(&prompt(8, 90), 1), "kv_transfer_params", ask_prefill(None, "pull"));
    let handle = prefill.complete(&leg).await["kv_transfer_params"].clone();
    let body = with(greedy(&prompt(8, 90), 60), "kv_transfer_params", handle);
    let stopped = decode.complete(&with(body, "stop", json!([stop]))).await;
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    let said = ids(&stopped);
    assert!(said.len() < 60 && whole.starts_with(&said), "{said:?}");
    let kept = stopped["kv_transfer_params"].clone();
    assert!(kept["remote_num_tokens"].as_u64().unwrap() >= 96, "{kept}");
    let history = [&prompt(8, 90)[..], &said, &prompt(9, 20)].concat();
    turn(&prefill, &decode, &history, Some(&kept)).await;
    assert!(prefill.metric("baton_readback_tokens_total").await >= 96.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reference_of_another_tenant_a_forged_and_an_expired_one_give_nothing() {
    let (prefill, decode, mut history, handle) = first_turn(|_| {}).await;
    history.extend(prompt(6, 30));
    // The same words by another tenant, with the reference that it has got hold of.
    let (_, answer) = ask("mallory", &prefill, &decode, &history, Some(&handle)).await;
    assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let forged = with(handle.clone(), "transfer_id", json!("xfer-00000000000000000000000000000bad"));
    let (_, answer) = ask("", &prefill, &decode, &history, Some(&forged)).await;
    assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let stale = with(handle.clone(), "remote_engine_id", json!("e0@0000000000000001"));
    ask("", &prefill, &decode, &history, Some(&stale)).await;
    let nobody = with(handle, "remote_port", json!(9));
    let nobody = with(nobody, "remote_engine_id", json!("e9999@0000000000000001"));
    ask("", &prefill, &decode, &history, Some(&nobody)).await;
    assert_eq!(prefill.metric("baton_readback_tokens_total").await, 0.0);
    assert_eq!(prefill.metric("baton_readbacks_lost_total{reason=\"declined\"}").await, 2.0);
    assert_eq!(prefill.metric("baton_readbacks_lost_total{reason=\"failed\"}").await, 2.0);

    let (prefill, decode, mut history, handle) = first_turn(|c| c.retain_ttl_ms = 300).await;
    decode.until("it has expired", async || decode.metric("baton_retained_expired_total").await == 1.0).await;
    history.extend(prompt(6, 30));
    turn(&prefill, &decode, &history, Some(&handle)).await;
    assert_eq!(prefill.metric("baton_readbacks_lost_total{reason=\"declined\"}").await, 1.0);
    decode
        .until("nothing is kept", async || decode.metric("baton_retained_conversations").await == 0.0)
        .await;
    decode.idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decode_engine_that_dies_takes_what_it_kept_with_it_and_no_answer() {
    let (prefill, decode, mut history, handle) = first_turn(|_| {}).await;
    decode.kill().await;
    history.extend(prompt(6, 30));
    let other = TestServer::start(config(TransportKind::Memory)).await;
    turn(&prefill, &other, &history, Some(&handle)).await;
    assert_eq!(prefill.metric("baton_readback_tokens_total").await, 0.0);
    prefill.idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_kept_unless_asked_for() {
    let (prefill, decode, _, handle) = first_turn(|c| c.retain_ttl_ms = 0).await;
    assert_eq!(handle, Value::Null);
    prefill.idle().await;
    decode.idle().await;
    let answer = decode.complete(&greedy(&prompt(1, 200), 5)).await;
    assert_eq!(answer.get("kv_transfer_params"), None);
}
