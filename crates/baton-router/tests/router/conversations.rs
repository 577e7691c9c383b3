//! What one turn leaves to the next.

use serde_json::{Value, json};

use crate::stub::{Behaviour, Stub, clean_stream};
use crate::world::{Answer, World, config};
use baton_router::{RouterConfig, Strategy};
use baton_types::EngineRole::{Decode, Prefill};
use baton_types::TransferMode;

const CHAT: &str = "/v1/chat/completions";
const PUSH: Strategy = Strategy::Bidirectional(TransferMode::Push);

struct Engines {
    p: Stub,
    d0: Stub,
    d1: Stub,
}

impl Engines {
    async fn start() -> Self {
        let p = Stub::start("p", Prefill).await;
        Self { p, d0: Stub::start("d0", Decode).await, d1: Stub::start("d1", Decode).await }
    }

    /// Decode engines retain what they have answered, each under ids of its own.
    async fn retaining() -> Self {
        let engines = Self::start().await;
        engines.d0.always(Behaviour::Retains { id: 0xd0, piece: 64 });
        engines.d1.always(Behaviour::Retains { id: 0xd1, piece: 64 });
        engines
    }

    async fn world(&self, strategy: Strategy) -> World {
        self.world_with(config(strategy, &[])).await
    }

    async fn world_with(&self, settings: RouterConfig) -> World {
        let engines = config(settings.strategy, &[&self.p, &self.d0, &self.d1]).engines;
        World::with(RouterConfig { engines, ..settings }).await
    }

    /// What the latest prefill leg was told that it may read: the id under which it is kept.
    fn offered(&self) -> Option<String> {
        let reuse = self.reuse();
        reuse["transfer_id"]
            .as_str()
            .map(|id| id.trim_start_matches("xfer-").trim_start_matches('0').to_owned())
    }

    fn reuse(&self) -> Value {
        self.p.seen().last().unwrap().params()["reuse"].clone()
    }
}

fn say(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

fn chat(messages: &[Value], stream: bool) -> String {
    json!({"model": "tiny", "messages": messages, "stream": stream}).to_string()
}

async fn ask(world: &World, messages: &[Value]) -> Answer {
    world.post(CHAT, &chat(messages, false), &[]).await
}

fn served_by(answer: &Answer) -> &str {
    answer.header("x-baton-served-by").unwrap()
}

#[tokio::test]
async fn a_chat_finds_its_last_turn_by_its_own_words() {
    for strategy in
        [TransferMode::Push, TransferMode::Pull, TransferMode::EarlyPull].map(Strategy::Bidirectional)
    {
        let engines = Engines::retaining().await;
        let world = engines.world(strategy).await;
        let mut messages = vec![say("system", "s"), say("user", "one")];
        let first = ask(&world, &messages).await;
        assert_eq!(engines.reuse(), Value::Null);
        assert_eq!(first.text, r#"{"id":"x","choices":[{"text":"hello","finish_reason":"length"}]}"#);
        assert!(!served_by(&first).contains("reuse"), "{}", served_by(&first));
        messages.extend([say("assistant", "hello"), say("user", "two")]);
        let second = ask(&world, &messages).await;
        // Round robin would have been d1's turn.
        assert!(served_by(&second).starts_with("prefill=p; decode=d0; strategy="), "{}", served_by(&second));
        assert!(served_by(&second).ends_with("; reuse=640"), "{}", served_by(&second));
        let reuse = engines.reuse();
        assert_eq!(engines.offered().as_deref(), Some("d0"));
        assert_eq!(reuse["remote_engine_id"], "d0@0000000000000001");
        assert_eq!((&reuse["remote_host"], &reuse["remote_port"]), (&json!("127.0.0.1"), &json!(5600)));
        assert_eq!((&reuse["do_remote_decode"], &reuse["remote_num_tokens"]), (&json!(true), &json!(640)));
        let left = reuse["remote_ttl_ms"].as_u64().unwrap();
        assert!((400_000..=475_000).contains(&left), "{left}");
        // The second turn again, and a branch off the first one.
        ask(&world, &messages).await;
        assert_eq!(engines.offered().as_deref(), Some("d0"));
        messages[3] = say("user", "something else");
        ask(&world, &messages).await;
        assert_eq!(engines.offered().as_deref(), Some("d0"));
        messages[0] = say("system", "another");
        ask(&world, &messages).await;
        assert_eq!(engines.offered(), None);
    }
}

/// And has done so when the client has its end: the next turn may follow at once.
#[tokio::test]
async fn a_stream_leaves_its_handle_here_however_it_is_cut() {
    let engines = Engines::retaining().await;
    let world = engines.world(PUSH).await;
    let mut messages = vec![say("user", "0")];
    for (turn, piece) in [1, 7, 4096, 4096, 4096, 4096, 4096, 4096].into_iter().enumerate() {
        engines.d0.always(Behaviour::Retains { id: 0xd0, piece });
        let answer = world.post(CHAT, &chat(&messages, true), &[]).await;
        assert_eq!(answer.text, clean_stream());
        assert_eq!(engines.offered().as_deref(), (turn > 0).then_some("d0"), "turn {turn}");
        messages.extend([say("assistant", "hello"), say("user", &turn.to_string())]);
    }
}

#[tokio::test]
async fn a_named_conversation_is_found_by_its_name() {
    let engines = Engines::retaining().await;
    let world = engines.world(PUSH).await;
    let ask = r#"{"model":"tiny","prompt":"x","conversation_id":"c","other":1.50}"#;
    world.complete(ask).await;
    assert_eq!(engines.offered(), None);
    for stub in [&engines.p, &engines.d0] {
        let text = &stub.seen()[0].text;
        assert!(text.contains(r#""prompt":"x","other":1.50"#) && !text.contains("conversation_id"), "{text}");
    }
    world.complete(ask).await;
    assert_eq!(engines.offered().as_deref(), Some("d0"));
    // The same name in a header, and for a chat.
    let headers = [("x-conversation-id", "c")];
    world.post(CHAT, &chat(&[say("user", "hi")], false), &headers).await;
    assert_eq!(engines.offered().as_deref(), Some("d0"));
    assert_eq!(engines.p.seen().last().unwrap().header("x-conversation-id"), None);
    // A completion without a name is no conversation, and a chat with another name another.
    world.complete(r#"{"model":"tiny","prompt":"x"}"#).await;
    assert_eq!(engines.offered(), None);
    world.post(CHAT, &chat(&[say("user", "hi")], false), &[("x-conversation-id", "d")]).await;
    assert_eq!(engines.offered(), None);
    assert_eq!(world.complete(r#"{"model":"tiny","prompt":"x","conversation_id":7}"#).await.status, 400);
}

/// I13
#[tokio::test]
async fn tenants_and_salts_share_no_conversation() {
    let engines = Engines::retaining().await;
    let settings = RouterConfig { tenant_header: Some("x-team".into()), ..config(PUSH, &[]) };
    let world = engines.world_with(settings).await;
    let named = |rest: &str| format!(r#"{{"model":"tiny","prompt":"x","conversation_id":"c"{rest}}}"#);
    let messages = chat(&[say("user", "hi")], false);
    let mut seen = Vec::new();
    for (team, rest) in
        [("blue", ""), ("red", ""), ("blue", r#","cache_salt":"s""#), ("", ""), ("blue", ""), ("red", "")]
    {
        world.post("/v1/completions", &named(rest), &[("x-team", team)]).await;
        let by_name = engines.offered().is_some();
        let salted = format!("{}{rest}}}", messages.strip_suffix('}').unwrap());
        world.post(CHAT, &salted, &[("x-team", team)]).await;
        seen.push((by_name, engines.offered().is_some()));
    }
    let (no, yes) = ((false, false), (true, true));
    assert_eq!(seen, [no, no, no, no, yes, yes]);
}

/// An engine speaks for itself; and a handle of another kind says nothing here.
#[tokio::test]
async fn what_an_engine_says_of_another_is_ignored() {
    const OTHERS: &str = r#"{"choices":[{"text":"a","finish_reason":"stop"}],"kv_transfer_params":{
        "do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"xfer-000000000000000000000000000000ee",
        "remote_engine_id":"d1@0000000000000001","remote_num_tokens":640,"remote_ttl_ms":480000}}"#;
    let engines = Engines::start().await;
    let world = engines.world(PUSH).await;
    let messages = [say("user", "hi")];
    engines.d0.always(Behaviour::Json(OTHERS));
    for _ in 0..4 {
        assert_eq!(ask(&world, &messages).await.status, 200);
        assert_eq!(engines.offered(), None);
    }
    assert_eq!((engines.d0.seen().len(), engines.d1.seen().len()), (2, 2));
    // It is believed from d1 itself.
    engines.d1.always(Behaviour::Json(OTHERS));
    for _ in 0..3 {
        ask(&world, &messages).await;
    }
    assert_eq!(engines.offered().as_deref(), Some("ee"));
}

#[tokio::test]
async fn a_restart_voids_what_was_retained() {
    let engines = Engines::retaining().await;
    let world = engines.world(PUSH).await;
    let messages = [say("user", "hi")];
    ask(&world, &messages).await;
    engines.d0.restart(2);
    let dropped = r#"baton_router_conversations_dropped_total{reason="restarted"} 1"#;
    for _ in 0..1000 {
        if world.get("/metrics").await.text.contains(dropped) {
            break;
        }
    }
    ask(&world, &messages).await;
    assert_eq!(engines.offered(), None);
    let metrics = world.get("/metrics").await.text;
    for line in [
        dropped,
        r#"baton_router_conversations_dropped_total{reason="expired"} 0"#,
        "baton_router_conversation_lookups_total 2",
        "baton_router_conversations_found_total 0",
        "baton_router_conversations_stored_total 2",
        "baton_router_conversations 1",
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
}

#[tokio::test]
async fn a_retry_goes_without() {
    let engines = Engines::retaining().await;
    let world = engines.world(PUSH).await;
    let messages = [say("user", "hi")];
    ask(&world, &messages).await;
    engines.p.next(Behaviour::Status(500, ""));
    engines.d0.next(Behaviour::Hang);
    let answer = ask(&world, &messages).await;
    assert_eq!(answer.status, 200);
    assert!(!served_by(&answer).contains("reuse"), "{}", served_by(&answer));
    let seen = engines.p.seen();
    let offered: Vec<bool> = seen.iter().map(|seen| !seen.params()["reuse"].is_null()).collect();
    assert_eq!(offered, [false, true, false]);
}

#[tokio::test]
async fn other_strategies_take_the_name_out_and_do_nothing_with_it() {
    let engines = Engines::retaining().await;
    let world = engines.world(Strategy::Push).await;
    let ask = r#"{"model":"tiny","prompt":"x","conversation_id":"c"}"#;
    for _ in 0..2 {
        world.complete(ask).await;
        assert_eq!(engines.offered(), None);
        assert!(!engines.p.seen().last().unwrap().text.contains("conversation_id"));
    }
}
