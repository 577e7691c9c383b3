//! One question and its answer, word by word as it comes.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use baton_openai::error::ErrorAnswer;
use baton_openai::response::Completion;
use baton_openai::{Endpoint, FinishReason, SseEvent, SseParser, Usage};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::Incoming;

use crate::http::{self, Server};

/// Longest event of a stream, in bytes.
const MAX_EVENT_BYTES: usize = 1 << 20;
/// The router's word on which engines answered.
const SERVED_BY: &str = "x-baton-served-by";

/// An answer that came to its end.
#[derive(Debug)]
pub struct Turn {
    pub finish_reason: Option<FinishReason>,
    pub figures: Figures,
}

/// How long it took and what it cost. Prints as one line.
#[derive(Debug, Default)]
pub struct Figures {
    /// From the request to the first text.
    pub first_text: Option<Duration>,
    /// From the request to the last text.
    pub last_text: Option<Duration>,
    pub usage: Option<Usage>,
    /// `prefill=prefill-0; decode=decode-0; strategy=push; reuse=640`.
    pub served_by: Option<String>,
}

/// Sends a request and gives every piece of the answer to `on_text`. Dropping the future ends the request.
///
/// # Errors
/// If there is no answer, the server refuses, or the stream breaks off.
pub async fn ask(server: &Server, request: Bytes, on_text: &mut dyn FnMut(&str)) -> Result<Turn> {
    let start = Instant::now();
    let response = server.post_json(Endpoint::Chat.path(), request).await?;
    if !response.status().is_success() {
        return Err(refusal(response).await);
    }
    let served_by =
        response.headers().get(SERVED_BY).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let mut reader =
        Reader { start, figures: Figures { served_by, ..Figures::default() }, finish_reason: None };
    let mut body = response.into_body();
    let mut parser = SseParser::new(MAX_EVENT_BYTES);
    let mut events = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.context("the answer broke off")?.into_data() else { continue };
        parser.feed(&data, &mut events)?;
        for event in events.drain(..) {
            if event.is_done() {
                return Ok(Turn { finish_reason: reader.finish_reason, figures: reader.figures });
            }
            reader.read(&event, on_text)?;
        }
    }
    bail!("the answer ended without its last event")
}

#[derive(Debug)]
struct Reader {
    start: Instant,
    figures: Figures,
    finish_reason: Option<FinishReason>,
}

impl Reader {
    fn read(&mut self, event: &SseEvent, on_text: &mut dyn FnMut(&str)) -> Result<()> {
        if let Ok(failure) = serde_json::from_slice::<ErrorAnswer>(&event.data) {
            bail!("the answer broke off: {}", failure.error.message);
        }
        let chunk: Completion =
            serde_json::from_slice(&event.data).context("an event of the answer is no chunk")?;
        let text = chunk.text();
        if !text.is_empty() {
            let now = self.start.elapsed();
            self.figures.first_text.get_or_insert(now);
            self.figures.last_text = Some(now);
            on_text(text);
        }
        self.finish_reason = chunk.finish_reason().or(self.finish_reason);
        self.figures.usage = chunk.usage.or(self.figures.usage);
        match self.finish_reason {
            Some(FinishReason::Error | FinishReason::Abort) => {
                bail!("the answer is void: the engine gave it up")
            }
            _ => Ok(()),
        }
    }
}

async fn refusal(response: Response<Incoming>) -> anyhow::Error {
    let status = response.status();
    let body = http::read_whole(response).await.unwrap_or_default();
    match serde_json::from_slice::<ErrorAnswer>(&body) {
        Ok(answer) => anyhow!("{} (status {})", answer.error.message, status.as_u16()),
        Err(_) => anyhow!("the server answered with status {status}"),
    }
}

impl Figures {
    /// The time per token after the first.
    fn per_token(&self) -> Option<Duration> {
        let later = self.usage?.completion_tokens.checked_sub(1).filter(|tokens| *tokens > 0)?;
        Some(self.last_text?.saturating_sub(self.first_text?) / later)
    }

    /// The parts that are known, for people.
    pub fn line(&self) -> String {
        let milliseconds = |time: Duration| format!("{:.1} ms", time.as_secs_f64() * 1e3);
        let mut parts = Vec::new();
        parts.extend(self.first_text.map(|time| format!("TTFT {}", milliseconds(time))));
        parts.extend(self.per_token().map(|time| format!("TPOT {}", milliseconds(time))));
        if let Some(usage) = self.usage {
            parts.push(format!("{} tokens", usage.completion_tokens));
            let cached = usage.prompt_tokens_details.and_then(|details| details.cached_tokens).unwrap_or(0);
            parts.push(format!("{cached} of {} prompt tokens cached", usage.prompt_tokens));
        }
        parts.extend(self.served_by.as_deref().map(engines));
        parts.join(", ")
    }
}

/// `prefill=p; decode=d; strategy=push; reuse=640` as `push: p -> d, 640 tokens of earlier turns offered`; anything else as it
/// is.
fn engines(served_by: &str) -> String {
    let (mut strategy, mut reuse) = (String::new(), String::new());
    let mut path = Vec::new();
    for part in served_by.split(';') {
        match part.trim().split_once('=') {
            Some(("strategy", name)) => strategy = format!("{name}: "),
            Some(("reuse", tokens)) => reuse = format!(", {tokens} tokens of earlier turns offered"),
            Some((_, engine)) => path.push(engine),
            None => return served_by.to_owned(),
        }
    }
    format!("{strategy}{}{reuse}", path.join(" -> "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_what_is_known() {
        let mut figures = Figures::default();
        assert_eq!(figures.line(), "");
        figures.first_text = Some(Duration::from_micros(35_040));
        figures.last_text = Some(Duration::from_micros(135_040));
        figures.usage = Some(Usage::new(58, 11, 16));
        figures.served_by = Some("prefill=prefill-0; decode=decode-1; strategy=push".to_owned());
        assert_eq!(
            figures.line(),
            "TTFT 35.0 ms, TPOT 10.0 ms, 11 tokens, 16 of 58 prompt tokens cached, push: prefill-0 -> decode-1"
        );
    }

    #[test]
    fn engines_and_what_they_were_told_of_earlier_turns() {
        let split = "prefill=p; decode=d; strategy=push";
        assert_eq!(engines(split), "push: p -> d");
        let reused = engines(&format!("{split}; reuse=640"));
        assert_eq!(reused, "push: p -> d, 640 tokens of earlier turns offered");
        assert_eq!(engines("engine=b; strategy=none"), "none: b");
        assert_eq!(engines("engine=b"), "b");
        assert_eq!(engines("somebody"), "somebody");
    }

    #[test]
    fn one_token_has_no_time_per_token() {
        let time = Some(Duration::from_millis(5));
        let usage = Some(Usage::new(1, 1, 0));
        let figures = Figures { first_text: time, last_text: time, usage, served_by: None };
        assert_eq!(figures.per_token(), None);
    }

    #[test]
    fn chunks_are_read_and_errors_end_the_answer() {
        let start = Instant::now();
        let mut reader = Reader { start, figures: Figures::default(), finish_reason: None };
        let mut text = String::new();
        let mut read =
            |data: &str| reader.read(&SseEvent::message(data.to_owned()), &mut |t| text.push_str(t));
        let chunk = |choices: &str| {
            format!(r#"{{"id":"c","object":"o","created":1,"model":"m","choices":{choices}}}"#)
        };
        read(&chunk(r#"[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]"#))
            .unwrap();
        read(&chunk(r#"[{"index":0,"delta":{"content":"a"},"finish_reason":null}]"#)).unwrap();
        read(&chunk("[]")).unwrap();
        let broken = read(r#"{"error":{"message":"engine lost"}}"#).unwrap_err();
        assert!(broken.to_string().contains("engine lost"));
        assert!(read("no json").is_err());
        assert!(read(&chunk(r#"[{"index":0,"delta":{},"finish_reason":"error"}]"#)).is_err());
        assert_eq!(text, "a");
        assert!(reader.figures.first_text.is_some());
    }
}
