//! An engine's answer on its way to the client: is it one at all, and what must be taken out of it?

use std::collections::BTreeMap;

use baton_openai::body::RawJson;
use baton_openai::{Body, SseEvent, SseParser, strip_handle};
use baton_routing::LegFault;
use bytes::{Bytes, BytesMut};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

/// Events without a word of the answer that are held back, at most.
const MAX_HELD_EVENTS: usize = 8;

/// Checks a complete answer and takes the handle out.
///
/// # Errors
/// [`LegFault::BadAnswer`] if there is no answer in it, whatever the status said.
pub(crate) fn whole_answer(text: Bytes) -> Result<(Bytes, Option<RawJson>), LegFault> {
    let (clean, handle) = strip_handle(text).map_err(|_| LegFault::BadAnswer)?;
    let body = Body::parse(clean.clone(), usize::MAX).map_err(|_| LegFault::BadAnswer)?;
    let choices: Vec<ChoiceEnd> = body.read("choices").ok().flatten().unwrap_or_default();
    if choices.is_empty() || choices.iter().any(ChoiceEnd::is_error) || has_error_member(&body) {
        return Err(LegFault::BadAnswer);
    }
    Ok((clean, handle))
}

/// A stream of chunks, event by event. Holds at most one event, and before the first word those that say nothing yet: as
/// long as the client has no byte, another engine can take over.
#[derive(Debug)]
pub(crate) struct AnswerGate {
    parser: SseParser,
    events: Vec<SseEvent>,
    held: BytesMut,
    held_events: usize,
    handle: Option<RawJson>,
    begun: bool,
    done: bool,
}

impl AnswerGate {
    pub fn new(max_event_bytes: usize) -> Self {
        Self {
            parser: SseParser::new(max_event_bytes),
            events: Vec::new(),
            held: BytesMut::new(),
            held_events: 0,
            handle: None,
            begun: false,
            done: false,
        }
    }

    /// Takes bytes as they come. Gives what may go to the client now, and the fault that ends the stream, if there is one;
    /// the bytes before it are good.
    pub fn push(&mut self, input: &[u8]) -> (Bytes, Option<LegFault>) {
        let parsed = self.parser.feed(input, &mut self.events);
        let mut out = BytesMut::new();
        for event in std::mem::take(&mut self.events) {
            // Whatever follows [DONE] is no part of the answer.
            if self.done {
                break;
            }
            if let Err(fault) = self.take(event, &mut out) {
                return (out.freeze(), Some(fault));
            }
        }
        (out.freeze(), parsed.err().map(|_| LegFault::BadAnswer))
    }

    /// The handle, as soon as its chunk has passed without it.
    pub fn take_handle(&mut self) -> Option<RawJson> {
        self.handle.take()
    }

    /// Whether `[DONE]` has passed.
    pub fn is_done(&self) -> bool {
        self.done
    }

    fn take(&mut self, mut event: SseEvent, out: &mut BytesMut) -> Result<(), LegFault> {
        self.done = event.is_done();
        if !self.done {
            let (data, handle) = strip_handle(event.data).map_err(|_| LegFault::BadAnswer)?;
            event.data = data;
            self.handle = handle.or(self.handle.take());
            if reports_error(&event.data) {
                return Err(LegFault::BadAnswer);
            }
        }
        if !self.begun {
            if self.done {
                return Err(LegFault::BadAnswer);
            }
            if self.held_events < MAX_HELD_EVENTS && says_nothing(&event.data) {
                self.held_events += 1;
                event.encode_into(&mut self.held);
                return Ok(());
            }
            self.begun = true;
            out.extend_from_slice(&self.held.split());
        }
        event.encode_into(out);
        Ok(())
    }
}

#[derive(Deserialize)]
struct ChoiceEnd {
    finish_reason: Option<Value>,
}

impl ChoiceEnd {
    fn is_error(&self) -> bool {
        self.finish_reason.as_ref().is_some_and(|reason| reason == "error")
    }
}

fn has_error_member(body: &Body) -> bool {
    body.get("error").is_some_and(|error| !error.is_null())
}

/// `{"error": ...}`, or a choice that finished by "error". Text that merely contains the word is no report.
fn reports_error(chunk: &Bytes) -> bool {
    let word = br#""error""#;
    if !chunk.windows(word.len()).any(|window| window == word) {
        return false;
    }
    let Ok(body) = Body::parse(chunk.clone(), usize::MAX) else { return true };
    let choices: Vec<ChoiceEnd> = body.read("choices").ok().flatten().unwrap_or_default();
    has_error_member(&body) || choices.iter().any(ChoiceEnd::is_error)
}

/// A chunk without a word: the role that begins a chat, or an empty text. A chunk of a shape unknown here says something.
fn says_nothing(chunk: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Chunk {
        choices: Vec<Choice>,
    }
    #[derive(Deserialize)]
    struct Choice {
        finish_reason: Option<IgnoredAny>,
        text: Option<String>,
        delta: Option<BTreeMap<String, Value>>,
    }
    let empty = |name: &String, value: &Value| match name.as_str() {
        "role" => true,
        "content" => value.is_null() || value == "",
        _ => false,
    };
    let nothing = |choice: &Choice| {
        choice.finish_reason.is_none()
            && choice.text.as_ref().is_none_or(String::is_empty)
            && choice.delta.iter().flatten().all(|(name, value)| empty(name, value))
    };
    serde_json::from_slice::<Chunk>(chunk).is_ok_and(|chunk| {
        let choices = &chunk.choices;
        !choices.is_empty() && choices.iter().all(nothing)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROLE: &str = r#"data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}

"#;
    const WORD: &str = r#"data: {"choices":[{"index":0,"delta":{"content":"an \"error\""},"finish_reason":null}]}

"#;
    const END: &str = r#"data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"kv_transfer_params":{"remote_host":"h"}}

"#;
    const DONE: &str = "data: [DONE]\n\n";

    fn filter(text: &str, piece: usize) -> (String, Option<LegFault>, bool) {
        let mut filter = AnswerGate::new(1 << 16);
        let mut out = Vec::new();
        for bytes in text.as_bytes().chunks(piece) {
            let (bytes, fault) = filter.push(bytes);
            out.extend_from_slice(&bytes);
            if fault.is_some() {
                return (String::from_utf8(out).unwrap(), fault, filter.is_done());
            }
        }
        (String::from_utf8(out).unwrap(), None, filter.is_done())
    }

    #[test]
    fn a_stream_passes_without_its_handle_however_it_is_cut() {
        let text = [ROLE, WORD, END, DONE, "data: more\n\n"].concat();
        let end = END.replace(r#","kv_transfer_params":{"remote_host":"h"}"#, "");
        let expected = [ROLE, WORD, &end, DONE].concat();
        for piece in [1, 2, 7, 64, 4096] {
            assert_eq!(filter(&text, piece), (expected.clone(), None, true), "{piece}");
        }
    }

    #[test]
    fn the_handle_is_there_before_the_client_has_its_chunk_however_the_stream_is_cut() {
        let text = [ROLE, WORD, END, DONE].concat();
        let chunk = text.find(END).unwrap() + END.len();
        for piece in [1, 2, 7, 64, 4096] {
            let mut gate = AnswerGate::new(1 << 16);
            let (mut fed, mut sent) = (0, Vec::new());
            for bytes in text.as_bytes().chunks(piece) {
                let (out, fault) = gate.push(bytes);
                fed += bytes.len();
                let handle = gate.take_handle();
                let is_here = fed - bytes.len() < chunk && chunk <= fed;
                assert_eq!(handle.is_some(), is_here, "{piece}: {fed}");
                assert!(handle.is_none_or(|h| h.as_str() == r#"{"remote_host":"h"}"#));
                assert_eq!(fault, None);
                sent.extend_from_slice(&out);
            }
            assert!(!String::from_utf8(sent).unwrap().contains("kv_transfer_params"), "{piece}");
        }
    }

    #[test]
    fn nothing_is_given_before_the_first_word() {
        assert_eq!(filter(ROLE, 5).0, "");
        assert_eq!(filter(&[ROLE, WORD].concat(), 5).0, [ROLE, WORD].concat());
        let many = ROLE.repeat(MAX_HELD_EVENTS + 1);
        assert_eq!(filter(&many, 50).0, many, "what is held is bounded");
        for chunk in [r#"{"choices":[]}"#, r#"{"choices":[{"delta":{"tool_calls":[]}}]}"#, r#"{"other":1}"#] {
            assert!(!says_nothing(chunk.as_bytes()), "{chunk}");
        }
        assert!(says_nothing(br#"{"choices":[{"text":"","finish_reason":null}]}"#));
    }

    #[test]
    fn faults_that_come_with_status_200() {
        let error = "data: {\"error\": {\"message\": \"Internal server error\"}}\n\n";
        let bad = Some(LegFault::BadAnswer);
        assert_eq!(filter(&[ROLE, error].concat(), 9), (String::new(), bad, false));
        assert_eq!(filter(&[WORD, error, DONE].concat(), 4096), (WORD.to_owned(), bad, false));
        let ended = END.replace("stop", "error");
        assert_eq!(filter(&[WORD, &ended].concat(), 9).1, bad);
        assert_eq!(filter(DONE, 9).1, bad);
        assert_eq!(filter("data: <html>\n\n", 9).1, bad);
        assert_eq!(filter(&format!("data: {}", "x".repeat(1 << 17)), 4096).1, bad);
    }

    #[test]
    fn whole_answers() {
        let whole = |text: &'static str| whole_answer(Bytes::from_static(text.as_bytes()));
        let (clean, handle) =
            whole(r#"{"choices":[{"text":"a","finish_reason":"length"}],"kv_transfer_params":{"a":1}}"#)
                .unwrap();
        assert_eq!(clean, r#"{"choices":[{"text":"a","finish_reason":"length"}]}"#);
        assert_eq!(handle.unwrap().as_str(), r#"{"a":1}"#);
        assert_eq!(whole(r#"{"choices":[{"text":"a"}],"kv_transfer_params":null}"#).unwrap().1, None);
        for bad in [
            "",
            "[]",
            "{}",
            r#"{"choices":[]}"#,
            r#"{"choices":null}"#,
            r#"{"choices":[{"text":"","finish_reason":"error"}]}"#,
            r#"{"choices":[{"text":""}],"error":{"message":"x"}}"#,
        ] {
            assert_eq!(whole(bad), Err(LegFault::BadAnswer), "{bad}");
        }
    }
}
