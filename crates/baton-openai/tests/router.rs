//! What a router does to bodies and answers.

use baton_openai::filter::FilterError;
use baton_openai::{AnswerFilter, ApiError, Body, BodyError, ErrorKind, RawJson, SseEncoder, strip_handle};
use baton_types::TokenId;
use bytes::Bytes;
use proptest::prelude::*;

fn body(text: &str) -> Body {
    Body::parse(Bytes::copy_from_slice(text.as_bytes()), 1 << 20).unwrap()
}

fn text(body: &Body) -> String {
    String::from_utf8(body.to_bytes().to_vec()).unwrap()
}

fn raw(text: &str) -> RawJson {
    RawJson::parse(text.to_owned()).unwrap()
}

#[test]
fn no_client_reaches_the_transfer_parameters() {
    let mut b = body(concat!(
        r#"{"kv_transfer_params":{"do_remote_prefill":true},"a": 1.0,"ec_transfer\u005fparams":{},"#,
        r#""vllm_xargs":{ "x":1 ,"kv_transfer_params":"{}"},"#,
        r#""sampling_params":{"n":1,"extra_args":{"kv\u005ftransfer_params":{},"y": [1]}},"z":null}"#
    ));
    assert_eq!(b.strip_internal(), Ok(true));
    assert_eq!(
        text(&b),
        r#"{"a": 1.0,"vllm_xargs":{ "x":1 },"sampling_params":{"n":1,"extra_args":{"y": [1]}},"z":null}"#
    );
    assert_eq!(b.strip_internal(), Ok(false));
}

#[test]
fn a_harmless_body_is_not_touched() {
    for same in [
        r#"{"messages":[{"content":"kv_transfer_params"}], "vllm_xargs":null}"#,
        r#"{"vllm_xargs":[{"kv_transfer_params":1}],"sampling_params":{"extra_args":"kv_transfer_params"}}"#,
        r#"{"vllm_xargs":{ "a":1 }}"#,
    ] {
        let mut b = body(same);
        assert_eq!(b.strip_internal(), Ok(false));
        assert_eq!(text(&b), same);
    }
}

#[test]
fn a_nested_double_key_is_refused() {
    let mut b = body(r#"{"vllm_xargs":{"kv_transfer_params":1,"kv_transfer_params":2}}"#);
    assert_eq!(b.strip_internal(), Err(BodyError::Duplicate("kv_transfer_params".into())));
}

#[test]
fn the_prefill_leg_makes_one_token() {
    let client = body(concat!(
        r#"{"stream": true,"stream_options":{"include_usage":true},"max_completion_tokens":50,"min_tokens":5,"#,
        r#""messages":[{"content":null,"t":1.50}],"n":1,"u":"\u00e9"}"#
    ));
    let params = raw(r#"{"do_remote_decode":true,"do_remote_prefill":false}"#);
    assert_eq!(
        text(&client.prefill_leg(params)),
        concat!(
            r#"{"stream": false,"max_completion_tokens":1,"messages":[{"content":null,"t":1.50}],"n":1,"u":"\u00e9","#,
            r#""max_tokens":1,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false}}"#
        )
    );
    let bare = body(r#"{"prompt":"a"}"#).prefill_leg(RawJson::NULL);
    assert_eq!(
        text(&bare),
        r#"{"prompt":"a","stream":false,"max_tokens":1,"n":1,"kv_transfer_params":null}"#
    );
}

#[test]
fn the_decode_leg_is_the_clients_body_and_the_handle() {
    let client = r#"{"stream": true, "max_tokens":  7}"#;
    let handle = r#"{ "remote_block_ids" : [[1,2]], "x": 1.0e0 }"#;
    let leg = body(client).decode_leg(raw(handle));
    assert_eq!(text(&leg), format!("{},\"kv_transfer_params\":{handle}}}", &client[..client.len() - 1]));
}

#[test]
fn the_handle_leaves_an_answer_and_nothing_else_changes() {
    let answer = r#"{"id": "cmpl-1", "x": 1.0, "kv_transfer_params": {"remote_host": "10.0.0.1"}, "ec_transfer_params": null, "m": null}"#;
    let (clean, handle) = strip_handle(Bytes::from_static(answer.as_bytes())).unwrap();
    assert_eq!(clean, r#"{"id": "cmpl-1", "x": 1.0, "m": null}"#);
    assert_eq!(handle, Some(raw(r#"{"remote_host": "10.0.0.1"}"#)));
    let (clean, handle) =
        strip_handle(Bytes::from_static(b"{\"a\" :1,\"kv_transfer_params\":null}")).unwrap();
    assert_eq!((&clean[..], handle), (&b"{\"a\" :1}"[..], None));
    let same = Bytes::from_static(b" {\"a\" :1} ");
    assert_eq!(strip_handle(same.clone()), Ok((same, None)));
    assert!(strip_handle(Bytes::from_static(b"Internal Server Error")).is_err());
}

const STREAM: &str = concat!(
    "data: {\"id\": \"c\", \"choices\": [{\"delta\": {\"content\": \"é \\u00e9\"}, \"finish_reason\": null}]}\n\n",
    "data: {\"id\": \"c\", \"choices\": [{\"finish_reason\": \"length\"}], \"kv_transfer_params\": {\"remote_port\": 1}}\n\n",
    "data: {\"choices\": [], \"usage\": {\"prompt_tokens\": 5}}\n\n",
    "data: [DONE]\n\n",
);

#[test]
fn a_stream_passes_at_once_and_without_its_handle() {
    let mut filter = AnswerFilter::new(4096);
    let mut sent = Vec::new();
    for (i, event) in STREAM.split_inclusive("\n\n").enumerate() {
        assert!(filter.push(&event.as_bytes()[..9]).unwrap().is_empty());
        let out = filter.push(&event.as_bytes()[9..]).unwrap();
        assert!(!out.is_empty(), "event {i} is not held back");
        sent.extend_from_slice(&out);
    }
    let expected = STREAM.replace(", \"kv_transfer_params\": {\"remote_port\": 1}", "");
    assert_eq!(String::from_utf8(sent).unwrap(), expected);
    assert_eq!(filter.take_handle(), Some(raw("{\"remote_port\": 1}")));
    assert_eq!((filter.is_done(), filter.end()), (true, Ok(())));
    assert!(filter.push(b"data: [DONE]\n\ndata: {}\n\n").unwrap().is_empty(), "a client sees one [DONE]");
}

#[test]
fn token_ids_that_only_the_router_asked_for_are_kept_back() {
    let stream = concat!(
        "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}],\"prompt_token_ids\":[1,2]}\n\n",
        "data: {\"choices\":[{\"delta\":{},\"token_ids\":[3]}]}\n\n",
        "data: {\"choices\":[{\"delta\":{},\"token_ids\":[4,5]}]}\n\n",
        "data: [DONE]\n\n",
    );
    let mut filter = AnswerFilter::new(4096).taking_token_ids(5);
    let out = filter.push(stream.as_bytes()).unwrap();
    let expected = stream.replace("[1,2]", "null").replace("[3]", "null").replace("[4,5]", "null");
    assert_eq!(String::from_utf8(out.to_vec()).unwrap(), expected);
    let tokens = filter.take_tokens().unwrap();
    assert_eq!(tokens.prompt, Some(vec![TokenId(1), TokenId(2)]));
    assert_eq!(tokens.answer, [3, 4, 5].map(TokenId));
    let mut small = AnswerFilter::new(4096).taking_token_ids(4);
    assert_eq!(small.push(stream.as_bytes()).unwrap(), out);
    assert_eq!(small.take_tokens(), None);
}

#[test]
fn a_broken_stream_is_an_error() {
    let mut cut = AnswerFilter::new(4096);
    cut.push(&STREAM.as_bytes()[..STREAM.len() - 1]).unwrap();
    assert_eq!(cut.end(), Err(FilterError::Truncated));
    let html = AnswerFilter::new(4096).push(b"data: <html>\n\n");
    assert!(matches!(html, Err(FilterError::Chunk(_))));
    let long = AnswerFilter::new(10).push(STREAM.as_bytes());
    assert!(matches!(long, Err(FilterError::Sse(_))));
}

#[test]
fn an_engines_own_error_event_passes() {
    let failure = SseEncoder::new().fail(&ApiError::new(ErrorKind::Internal, "Internal server error"));
    let mut filter = AnswerFilter::new(4096);
    assert_eq!(filter.push(&failure).unwrap(), failure);
    assert!(filter.is_done());
}

proptest! {
    #[test]
    fn any_split_sends_the_same_bytes(cuts in prop::collection::vec(0..STREAM.len(), 0..20)) {
        let mut whole = AnswerFilter::new(4096);
        let expected = whole.push(STREAM.as_bytes()).unwrap();
        let mut cuts = cuts;
        cuts.extend([0, STREAM.len()]);
        cuts.sort_unstable();
        let mut filter = AnswerFilter::new(4096);
        let mut sent = Vec::new();
        for w in cuts.windows(2) {
            sent.extend_from_slice(&filter.push(&STREAM.as_bytes()[w[0]..w[1]]).unwrap());
        }
        prop_assert_eq!(&sent[..], &expected[..]);
        prop_assert_eq!(filter.take_handle(), whole.take_handle());
    }
}
