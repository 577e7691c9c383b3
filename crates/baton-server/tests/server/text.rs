//! A real tokenizer and chat template in front of the emulated model.

use std::path::Path;

use baton_model::EmulatedModel;
use baton_server::{EmulatedChoice, ModelChoice, ServerConfig, TransportKind::Memory};
use hyper::StatusCode;
use serde_json::{Value, json};

use crate::harness::{TestServer, config, ids, with};

/// Byte-level BPE without merges: the 256 byte characters in ascending order, and one special token above
/// them.
pub fn write_tokenizer(directory: &Path) {
    let printable = |b: u32| matches!(b, 33..=126 | 161..=172 | 174..=255);
    let mut next = 256;
    let mut vocabulary = serde_json::Map::new();
    for byte in 0..256 {
        let mut code = byte;
        if !printable(byte) {
            (code, next) = (next, next + 1);
        }
        vocabulary.insert(char::from_u32(code).unwrap().to_string(), byte.into());
    }
    vocabulary.insert("<end>".to_owned(), 256.into());
    let level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [{"id": 256, "content": "<end>", "single_word": false, "lstrip": false, "rstrip": false,
                          "normalized": false, "special": true}],
        "pre_tokenizer": level, "decoder": level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                  "vocab": vocabulary, "merges": []},
    });
    let template = "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}\
                    [{{ m.role }}]{{ m.content }}<end>{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";
    let write = |name: &str, text: String| std::fs::write(directory.join(name), text).unwrap();
    write("tokenizer.json", tokenizer.to_string());
    write("tokenizer_config.json", json!({"eos_token": "<end>", "chat_template": template}).to_string());
}

async fn server(first_token: u32) -> TestServer {
    let directory = tempfile::tempdir().unwrap();
    write_tokenizer(directory.path());
    std::fs::write(directory.path().join("config.json"), "{}").unwrap();
    let choice = EmulatedChoice {
        model: EmulatedModel { first_token, ..EmulatedModel::default() },
        profile: "instant".to_owned(),
        tokenizer: Some(directory.path().to_str().unwrap().to_owned()),
        ..EmulatedChoice::default()
    };
    TestServer::start(ServerConfig { model: ModelChoice::Emulated(choice), ..config(Memory) }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn chats_are_rendered_and_answers_have_whole_characters() {
    // Any byte may be answered, so the text has broken characters, and cuts through whole ones.
    let server = server(0).await;
    let chat = json!({"messages": [{"role": "user", "content": "hü"}], "max_tokens": 300, "seed": 3, "ignore_eos": true,
                      "return_token_ids": true});
    let (status, answer) = server.post("/v1/chat/completions", &chat).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let prompt: Vec<u32> = b"[user]h\xC3\xBC"
        .iter()
        .map(|b| u32::from(*b))
        .chain([256])
        .chain(b"[assistant]".map(u32::from))
        .collect();
    assert_eq!(answer["prompt_token_ids"], json!(prompt));
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
    let bytes: Vec<u8> = ids(&answer).into_iter().filter_map(|id| u8::try_from(id).ok()).collect();
    assert_eq!(text, String::from_utf8_lossy(&bytes));

    let chunks = server.stream("/v1/chat/completions", &with(chat.clone(), "stream", true.into())).await;
    let said: String = chunks.iter().filter_map(|c| c["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(said, text);

    let refused = with(chat, "messages", json!([{"role": "tool", "content": "x"}]));
    let (status, answer) = server.post("/v1/chat/completions", &refused).await;
    assert_eq!((status, &answer["error"]["message"]), (StatusCode::BAD_REQUEST, &json!("no tools here")));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_ends_at_the_end_of_sequence_unless_that_is_ignored() {
    // The model has nothing but the end of sequence to say.
    let server = server(256).await;
    let body = json!({"prompt": "x", "max_tokens": 5, "return_token_ids": true});
    let answer = server.complete(&body).await;
    let choice = &answer["choices"][0];
    assert_eq!((&choice["finish_reason"], &choice["text"]), (&json!("stop"), &json!("")));
    assert_eq!(ids(&answer), [256]);
    let least = server.complete(&with(body.clone(), "min_tokens", 3.into())).await;
    assert_eq!(ids(&least), [256; 3]);
    let ignored = server.complete(&with(body.clone(), "ignore_eos", true.into())).await;
    assert_eq!(ids(&ignored), [256; 5]);
    assert_eq!(ignored["choices"][0]["finish_reason"], "length");
    // A prefill leg whose first token ends the answer still hands over: where answers end is for the decode
    // leg to see.
    let leg = with(body, "kv_transfer_params", json!({"do_remote_decode": true}));
    let answer: Value = server.complete(&leg).await;
    assert_eq!(ids(&answer), [256]);
}
