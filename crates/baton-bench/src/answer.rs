//! One streamed answer, read as it comes. Only what is measured is read: any server's chunks will do.

use std::borrow::Cow;

use baton_openai::SseParser;
use baton_openai::sse::SseEvent;
use baton_workload::result::{Ending, RequestRecord};
use serde::Deserialize;
use serde_json::Value;

/// Longest event, in bytes.
const MAX_EVENT_BYTES: usize = 4 << 20;
/// Longest text of an error that is kept.
const MAX_ERROR_CHARS: usize = 300;

/// What a stream has told so far.
#[derive(Debug)]
pub(crate) struct Answer {
    parser: SseParser,
    events: Vec<SseEvent>,
    /// Kept only if somebody will send it back.
    text: Option<String>,
    done: bool,
    /// It cannot become an answer any more.
    failure: Option<Ending>,
}

impl Answer {
    pub fn new(keep_text: bool) -> Self {
        Self {
            parser: SseParser::new(MAX_EVENT_BYTES),
            events: Vec::new(),
            text: keep_text.then(String::new),
            done: false,
            failure: None,
        }
    }

    /// Takes bytes that came at `now_ms`, and notes what they say.
    pub fn feed(&mut self, bytes: &[u8], now_ms: f64, record: &mut RequestRecord) {
        if !bytes.is_empty() {
            record.first_byte_ms.get_or_insert(now_ms);
        }
        let mut events = std::mem::take(&mut self.events);
        let fed = self.parser.feed(bytes, &mut events);
        for event in events.drain(..) {
            self.take(&event, now_ms, record);
        }
        self.events = events;
        if let Err(error) = fed {
            self.fail(Ending::Malformed, &error.to_string(), record);
        }
    }

    /// Whether nothing more needs to be read.
    pub fn is_over(&self) -> bool {
        self.done || self.failure.is_some()
    }

    /// The stream has ended, or broken for the reason given: says how. Returns the text, if it was kept.
    pub fn end(self, broken: Option<&str>, ignore_eos: bool, record: &mut RequestRecord) -> Option<String> {
        if record.output_tokens.is_none() && record.finish_reason.is_none() {
            // Of an answer that failed on its way, the chunks are all that is known.
            record.output_tokens = Some(record.token_ms.len() as u32);
        }
        record.ending = match (self.failure, &record.finish_reason) {
            (Some(failure), _) => failure,
            (None, Some(_)) if ignore_eos && is_short(record) => Ending::Early,
            (None, Some(_)) => Ending::Complete,
            (None, None) => {
                let why = broken.unwrap_or("the stream ended without a finish reason");
                note_error(why, record);
                Ending::Cut
            }
        };
        self.text
    }

    fn take(&mut self, event: &SseEvent, now_ms: f64, record: &mut RequestRecord) {
        if event.is_done() {
            self.done = true;
            return;
        }
        let chunk: Chunk<'_> = match serde_json::from_slice(&event.data) {
            Ok(chunk) => chunk,
            Err(error) => return self.fail(Ending::Malformed, &error.to_string(), record),
        };
        if let Some(error) = chunk.error.filter(|error| !error.is_null()) {
            return self.fail(Ending::ErrorInStream, &error_text(&error), record);
        }
        if let Some(id) = chunk.id.filter(|_| record.answer_id.is_none()) {
            record.answer_id = Some(id.into_owned());
        }
        for choice in &chunk.choices {
            self.take_choice(choice, now_ms, record);
        }
        if let Some(usage) = chunk.usage {
            record.prompt_tokens = Some(usage.prompt_tokens);
            record.output_tokens = Some(usage.completion_tokens);
            record.cached_tokens = usage.prompt_tokens_details.and_then(|details| details.cached_tokens);
        }
    }

    fn take_choice(&mut self, choice: &Choice<'_>, now_ms: f64, record: &mut RequestRecord) {
        if choice.has_tokens() {
            record.token_ms.push(now_ms);
        }
        if let Some(text) = &mut self.text {
            text.push_str(choice.content());
        }
        let Some(reason) = &choice.finish_reason else { return };
        record.finish_reason = Some(reason.clone().into_owned());
        // vLLM ends a stream so whose answer is void.
        if matches!(reason.as_ref(), "error" | "abort") {
            self.fail(Ending::ErrorInStream, &format!("finish reason {reason}"), record);
        }
    }

    fn fail(&mut self, ending: Ending, why: &str, record: &mut RequestRecord) {
        self.failure.get_or_insert(ending);
        note_error(why, record);
    }
}

fn is_short(record: &RequestRecord) -> bool {
    match (record.output_tokens, record.wanted_output_tokens) {
        (Some(got), Some(wanted)) => got < wanted,
        // Nobody counted: only an end that the model chose is short.
        (None, Some(_)) => record.finish_reason.as_deref() == Some("stop"),
        (_, None) => false,
    }
}

/// The first reason is kept.
pub(crate) fn note_error(why: &str, record: &mut RequestRecord) {
    if record.error.is_none() {
        record.error = Some(why.chars().take(MAX_ERROR_CHARS).collect());
    }
}

/// The words of an error, however a server wraps them.
pub(crate) fn error_text(error: &Value) -> String {
    let message = error.get("message").or_else(|| error.get("detail")).and_then(Value::as_str);
    message.or(error.as_str()).map_or_else(|| error.to_string(), str::to_owned)
}

#[derive(Deserialize)]
struct Chunk<'a> {
    #[serde(borrow, default)]
    id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    choices: Vec<Choice<'a>>,
    #[serde(default)]
    usage: Option<Usage>,
    #[serde(default)]
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow, default)]
    text: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    delta: Option<Delta<'a>>,
    #[serde(borrow, default)]
    finish_reason: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Delta<'a> {
    #[serde(borrow, default)]
    role: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    content: Option<Cow<'a, str>>,
    #[serde(borrow, default, alias = "reasoning")]
    reasoning_content: Option<Cow<'a, str>>,
    #[serde(default)]
    tool_calls: Option<Vec<Value>>,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: u32,
    completion_tokens: u32,
    #[serde(default)]
    prompt_tokens_details: Option<PromptDetails>,
}

#[derive(Deserialize)]
struct PromptDetails {
    #[serde(default)]
    cached_tokens: Option<u32>,
}

impl Choice<'_> {
    fn content(&self) -> &str {
        let delta = || self.delta.as_ref().and_then(|delta| delta.content.as_deref());
        self.text.as_deref().or_else(delta).unwrap_or_default()
    }

    /// Whether the chunk was sent because a token was there. One whose text is still incomplete is sent empty; the chunk that
    /// names the role and the one that only gives the finish reason are not of a token.
    fn has_tokens(&self) -> bool {
        let delta = self.delta.as_ref();
        let said = |text: &Option<Cow<'_, str>>| text.as_deref().is_some_and(|text| !text.is_empty());
        let more = delta.is_some_and(|delta| {
            said(&delta.reasoning_content) || delta.tool_calls.as_ref().is_some_and(|calls| !calls.is_empty())
        });
        let names_role = delta.is_some_and(|delta| delta.role.is_some());
        !self.content().is_empty() || more || (self.finish_reason.is_none() && !names_role)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each event a millisecond after the one before.
    fn read(events: &[&str], ignore_eos: bool) -> (RequestRecord, Option<String>) {
        let mut record = RequestRecord { wanted_output_tokens: Some(3), ..RequestRecord::default() };
        let mut answer = Answer::new(true);
        for (event, now_ms) in events.iter().zip(1..) {
            answer.feed(format!("data: {event}\n\n").as_bytes(), f64::from(now_ms), &mut record);
        }
        let text = answer.end(None, ignore_eos, &mut record);
        (record, text)
    }

    const ROLE: &str = r#"{"id":"c1","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#;
    const ONE: &str = r#"{"id":"c1","choices":[{"index":0,"delta":{"content":"one"},"finish_reason":null}]}"#;
    const HALF: &str = r#"{"id":"c1","choices":[{"index":0,"delta":{"content":""},"finish_reason":null}]}"#;
    const LAST: &str =
        r#"{"id":"c1","choices":[{"index":0,"delta":{"content":"\n2"},"finish_reason":"length"}]}"#;
    const END: &str = r#"{"id":"c1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
    const USAGE: &str = r#"{"id":"c1","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12,"prompt_tokens_details":{"cached_tokens":4}}}"#;

    #[test]
    fn chunks_with_tokens_are_timed() {
        let (record, text) = read(&[ROLE, ONE, HALF, LAST, USAGE, "[DONE]"], true);
        assert_eq!(record.token_ms, [2.0, 3.0, 4.0]);
        assert_eq!((record.first_byte_ms, text.as_deref()), (Some(1.0), Some("one\n2")));
        assert_eq!((record.ending, record.answer_id.as_deref()), (Ending::Complete, Some("c1")));
        assert_eq!(
            (record.prompt_tokens, record.output_tokens, record.cached_tokens),
            (Some(9), Some(3), Some(4))
        );
        let (record, _) = read(&[r#"{"choices":[{"text":"a","finish_reason":null}]}"#, END], false);
        assert_eq!(record.token_ms, [1.0]);
    }

    #[test]
    fn endings_are_told_apart() {
        let failed = r#"{"error":{"message":"no memory","type":"x","code":500}}"#;
        let void = r#"{"choices":[{"text":"","finish_reason":"error"}]}"#;
        let few = r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}}"#;
        for (events, ignore_eos, ending) in [
            (&[ONE, END, few][..], true, Ending::Early),
            (&[ONE, END, few], false, Ending::Complete),
            (&[ONE, END], true, Ending::Early),
            (&[ONE, LAST], true, Ending::Complete),
            (&[ONE, failed, "[DONE]"], true, Ending::ErrorInStream),
            (&[failed], true, Ending::ErrorInStream),
            (&[void], true, Ending::ErrorInStream),
            (&[ONE, ONE], true, Ending::Cut),
            (&[ONE, "[DONE]"], true, Ending::Cut),
            (&[], true, Ending::Cut),
            (&["<html>"], true, Ending::Malformed),
            (&["5"], true, Ending::Malformed),
        ] {
            assert_eq!(read(events, ignore_eos).0.ending, ending, "{events:?} {ignore_eos}");
        }
        assert_eq!(read(&[failed], true).0.error.as_deref(), Some("no memory"));
        // Of what was cut, the chunks are counted.
        assert_eq!(read(&[ONE, ONE], true).0.output_tokens, Some(2));
    }
}
