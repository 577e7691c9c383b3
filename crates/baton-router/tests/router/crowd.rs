//! Many requests at once, engines that fail at random, clients that leave, and a router that stops.

use std::time::Duration;

use baton_router::{BoundRouter, RouterConfig, Strategy};
use baton_types::EngineRole::{Both, Decode, Prefill};
use bytes::Bytes;
use http_body_util::BodyExt;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::stub::{Behaviour, StreamEnd, Stub, clean_stream, good_stream};
use crate::world::{World, config, until};

const ASK: &str = r#"{"model":"tiny","prompt":"x"}"#;
const STREAM: &str = r#"{"model":"tiny","prompt":"x","stream":true}"#;

/// A small generator, for behaviours only.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }

    fn behaviour(&mut self) -> Behaviour {
        let some = Bytes::copy_from_slice(&good_stream().as_bytes()[..200]);
        match self.roll(12) {
            0 => Behaviour::Status(503, ""),
            1 => Behaviour::Status(500, ""),
            2 => Behaviour::Reset,
            3 => Behaviour::Hang,
            4 => Behaviour::Json("{}"),
            5 => Behaviour::Stream(vec![some], StreamEnd::Dies),
            6 => Behaviour::Stream(vec![], StreamEnd::Hangs),
            _ => Behaviour::Good,
        }
    }
}

async fn crowd(strategy: Strategy) {
    let engines = [
        Stub::start("p0", Prefill).await,
        Stub::start("p1", Prefill).await,
        Stub::start("d0", Decode).await,
        Stub::start("d1", Decode).await,
        Stub::start("b0", Both).await,
        Stub::start("b1", Both).await,
    ];
    let mut settings = config(strategy, &engines.each_ref());
    let limits = &mut settings.limits;
    (limits.first_byte_ms, limits.answer_ms, limits.prefill_ms, limits.idle_ms) = (60, 60, 60, 60);
    (limits.max_legs_per_engine, limits.retry_pause_ms, limits.backoff_max_ms) = (8, 5, 50);
    let world = World::with(settings).await;
    let mut dice = Dice(strategy.as_str().len() as u64);
    for engine in &engines {
        for _ in 0..60 {
            engine.next(dice.behaviour());
        }
    }
    let mut clients = JoinSet::new();
    for n in 0..120 {
        let (client, patience) = (world.client(), dice.roll(200));
        clients.spawn(async move {
            let ask = if n % 2 == 0 { ASK } else { STREAM };
            if n % 5 == 0 {
                let impatient = tokio::time::timeout(Duration::from_millis(patience), client.complete(ask));
                drop(impatient.await);
                return;
            }
            let answer = client.complete(ask).await;
            match answer.status.as_u16() {
                200 if n % 2 == 0 => assert!(answer.text.contains("hello"), "{}", answer.text),
                200 => {
                    assert!(answer.text.ends_with("data: [DONE]\n\n"), "{}", answer.text);
                    assert_eq!(answer.text.matches("[DONE]").count(), 1);
                    let is_whole = answer.text == clean_stream();
                    assert!(is_whole != answer.text.contains("\"error\":"), "{}", answer.text);
                }
                502..=504 => assert!(answer.json()["error"]["message"].is_string()),
                status => panic!("{status}: {}", answer.text),
            }
        });
    }
    clients.join_all().await;
    // I8: nothing is left, here or there.
    for engine in &engines {
        until("no leg is left", || engine.open() == 0).await;
    }
    let metrics = world.get("/metrics").await.text;
    let live = |line: &&str| line.starts_with("baton_router_live_");
    assert!(metrics.lines().filter(live).all(|line| line.ends_with(" 0")), "{metrics}");
    // And all engines that are good now can be used again.
    for engine in &engines {
        engine.inner.next.lock().unwrap().clear();
    }
    for _ in 0..20 {
        assert_eq!(world.complete(ASK).await.status, 200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_crowd_is_served_or_told_and_leaves_nothing_behind() {
    for strategy in Strategy::ALL {
        crowd(strategy).await;
    }
}

/// Stops a router in the middle of a stream that ends so; the rest of the stream, and whether its leg was aborted.
async fn stop_in_a_stream(end: StreamEnd, drain_ms: u64) -> (String, bool) {
    let b = Stub::start("b", Both).await;
    let settings = RouterConfig { drain_ms, ..config(Strategy::None, &[&b]) };
    let bound = BoundRouter::bind(settings).await.unwrap();
    let world = World::attach(bound.local_addr());
    let (stop, stopped) = oneshot::channel::<()>();
    let router = tokio::spawn(bound.run(async { drop(stopped.await) }));
    world.wait_fit(1).await;
    let word = Bytes::from_static(b"data: {\"choices\":[{\"text\":\"a\"}]}\n\n");
    let mut pieces = vec![word; 20];
    if matches!(end, StreamEnd::Proper) {
        pieces.push(Bytes::from_static(b"data: [DONE]\n\n"));
    }
    b.next(Behaviour::Stream(pieces, end));
    let mut response = world.open("/v1/completions", STREAM, &[]).await;
    response.frame().await.unwrap().unwrap();
    stop.send(()).unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(5), router).await;
    ended.expect("the router stops").unwrap().unwrap();
    let rest = tokio::time::timeout(Duration::from_secs(5), response.into_body().collect()).await;
    let rest = rest.expect("the stream ends").map(|body| body.to_bytes()).unwrap_or_default();
    until("no leg is left", || b.open() == 0).await;
    (String::from_utf8(rest.to_vec()).unwrap(), b.aborted() > 0)
}

#[tokio::test]
async fn a_stop_lets_answers_end() {
    let (rest, aborted) = stop_in_a_stream(StreamEnd::Proper, 5_000).await;
    assert!(rest.ends_with("data: [DONE]\n\n"), "{rest}");
    assert!(!aborted);
}

#[tokio::test]
async fn a_stop_does_not_wait_for_ever() {
    let (_, aborted) = stop_in_a_stream(StreamEnd::Hangs, 100).await;
    assert!(aborted);
}
