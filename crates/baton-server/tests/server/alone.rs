//! One engine that does whole requests.

use baton_server::TransportKind::Memory;
use serde_json::json;

use crate::harness::{TestServer, config, emulated, expected, greedy, ids, prompt, with};

#[tokio::test(flavor = "multi_thread")]
async fn answers_are_the_model_s_alone_and_together() {
    let server = TestServer::start(config(Memory)).await;
    let bodies: Vec<_> = (0..24).map(|i| (prompt(i, 5 + i * 9), 1 + i)).collect();
    let answers = bodies.iter().map(|(prompt, n)| {
        let (server, body) = (&server, greedy(prompt, *n));
        async move { server.complete(&body).await }
    });
    let answers = futures_util::future::join_all(answers).await;
    for ((prompt, n), answer) in bodies.iter().zip(&answers) {
        assert_eq!(ids(answer), expected(prompt, *n));
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
        assert_eq!(answer["usage"]["prompt_tokens"], prompt.len());
        assert_eq!(answer["usage"]["completion_tokens"], *n);
        assert!(answer.get("kv_transfer_params").is_none());
    }
    server.idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_says_what_the_whole_answer_says() {
    let server = TestServer::start(config(Memory)).await;
    for (path, body) in [
        ("/v1/completions", json!({"prompt": "Once upon", "max_tokens": 20, "temperature": 0})),
        (
            "/v1/completions",
            json!({"prompt": "Seeded", "max_tokens": 20, "seed": 5, "return_token_ids": true}),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": "Hi ü"}], "max_tokens": 9, "temperature": 0}),
        ),
    ] {
        let (_, whole) = server.post(path, &body).await;
        let choice = &whole["choices"][0];
        let text = choice["text"].as_str().or(choice["message"]["content"].as_str()).unwrap();
        assert!(text.starts_with('<'), "{whole}");

        let options = json!({"include_usage": true});
        let streamed = with(with(body, "stream", true.into()), "stream_options", options);
        let chunks = server.stream(path, &streamed).await;
        let said: String = chunks
            .iter()
            .filter_map(|c| {
                let choice = c["choices"].get(0)?;
                choice["text"].as_str().or(choice["delta"]["content"].as_str())
            })
            .collect();
        assert_eq!(said, text);
        let (usage, finish) = (&chunks[chunks.len() - 1], &chunks[chunks.len() - 2]);
        // The prefix cache knows the prompt by now; the rest of the usage is the same.
        assert_eq!(usage["usage"]["total_tokens"], whole["usage"]["total_tokens"]);
        assert_eq!(usage["choices"], json!([]));
        assert_eq!(finish["choices"][0]["finish_reason"], "length");
        let streamed_ids: Vec<_> =
            chunks.iter().filter_map(|c| c["choices"].get(0)?["token_ids"].as_array()).flatten().collect();
        assert_eq!(
            streamed_ids,
            choice["token_ids"].as_array().iter().copied().flatten().collect::<Vec<_>>()
        );
    }
    server.idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_prefix_cache_is_counted_and_kept_apart_by_tenant_and_salt() {
    let server = TestServer::start(config(Memory)).await;
    let body = greedy(&prompt(1, 100), 4);
    let cached =
        |answer: &serde_json::Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    let salted = with(body.clone(), "cache_salt", "s".into());
    for (tenant, body, want) in [
        ("", &body, 0),
        ("", &body, 96),
        ("t", &body, 0),
        ("t", &body, 96),
        ("t", &salted, 0),
        ("t", &salted, 96),
        ("u", &salted, 0),
    ] {
        let (_, answer) = server.post_as(tenant, "/v1/completions", body).await;
        assert_eq!(cached(&answer), Some(want), "{tenant:?} {body}");
        assert_eq!(ids(&answer), expected(&prompt(1, 100), 4));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_string_ends_the_text_before_it() {
    // Slow enough that the stop comes long before the length.
    let server =
        TestServer::start(baton_server::ServerConfig { model: emulated("tiny"), ..config(Memory) }).await;
    let body = greedy(&prompt(3, 20), 2_000);
    let first = expected(&prompt(3, 20), 8);
    let stop = format!("<{}>", first[6]);
    let body = with(body, "stop", json!(["never", stop]));
    let answer = server.complete(&body).await;
    let text: String = first[..6].iter().map(|id| format!("<{id}>")).collect();
    assert_eq!(answer["choices"][0]["text"], text);
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert_eq!(answer["choices"][0]["stop_reason"], stop);
    assert_eq!(ids(&answer), first[..7]);
    let chunks = server.stream("/v1/completions", &with(body, "stream", true.into())).await;
    let said: String = chunks.iter().filter_map(|c| c["choices"][0]["text"].as_str()).collect();
    assert_eq!(said, text);
    server.idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unseeded_sampling_differs_and_seeded_does_not() {
    let server = TestServer::start(config(Memory)).await;
    let body = json!({"prompt": "x", "max_tokens": 8, "return_token_ids": true});
    let (a, b) = (server.complete(&body).await, server.complete(&body).await);
    assert_ne!(ids(&a), ids(&b));
    let seeded = with(body, "seed", 11.into());
    let (a, b) = (server.complete(&seeded).await, server.complete(&seeded).await);
    assert_eq!(ids(&a), ids(&b));
}
