//! A client that knows what an answer must look like.

use std::io::Read;
use std::net::SocketAddr;
use std::time::Duration;

use baton_openai::{SseEvent, SseParser};
use serde_json::{Value, json};
use ureq::http::Response;
use ureq::{Agent, Body};

/// Longer than any answer takes, whatever happens to the processes meanwhile.
pub const PATIENCE: Duration = Duration::from_secs(150);
const MAX_EVENT_BYTES: usize = 1 << 20;

/// One greedy completion.
#[derive(Clone, Debug)]
pub struct Ask {
    pub prompt: String,
    pub max_tokens: u32,
    pub stream: bool,
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Got {
    Text(String),
    /// An error in OpenAI's shape, and what had been said before it.
    CleanError {
        kind: String,
        text: String,
    },
    /// The connection broke. Only the death of whom was asked may look like this.
    Broken(String),
    /// No clean end, or none in time.
    Wrong(String),
}

#[derive(Clone, Debug)]
pub struct Client(Agent);

impl Default for Client {
    fn default() -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // Each request is a connection of its own, so that each failure is one request's.
            .max_idle_connections(0)
            .timeout_global(Some(PATIENCE))
            .build();
        Self(config.into())
    }
}

impl Client {
    /// The body of a GET that is answered with 200 within `patience`.
    pub fn get(&self, address: SocketAddr, path: &str, patience: Duration) -> Option<String> {
        let request =
            self.0.get(format!("http://{address}{path}")).config().timeout_global(Some(patience)).build();
        let mut response = request.call().ok()?;
        (response.status() == 200).then(|| response.body_mut().read_to_string().ok()).flatten()
    }

    pub fn complete(&self, address: SocketAddr, ask: &Ask) -> Got {
        let body = json!({
            "prompt": ask.prompt, "max_tokens": ask.max_tokens, "temperature": 0, "ignore_eos": true, "stream": ask.stream,
        });
        let request = self.0.post(format!("http://{address}/v1/completions"));
        let answer = request.header("content-type", "application/json").send(body.to_string());
        match answer {
            Err(error) => broken(&error),
            Ok(response) if response.status() == 200 && ask.stream => read_stream(response),
            Ok(response) => read_whole(response),
        }
    }
}

fn broken(error: &ureq::Error) -> Got {
    match error {
        ureq::Error::Timeout(_) => Got::Wrong(format!("no end within {PATIENCE:?}")),
        error => Got::Broken(error.to_string()),
    }
}

fn read_whole(mut response: Response<Body>) -> Got {
    let text = match response.body_mut().read_to_string() {
        Ok(text) => text,
        Err(error) => return broken(&error),
    };
    let json: Value = match serde_json::from_str(&text) {
        Ok(json) => json,
        Err(_) => return Got::Wrong(format!("no JSON: {text}")),
    };
    if response.status() == 200 {
        return match json["choices"][0]["text"].as_str() {
            Some(text) => Got::Text(text.to_owned()),
            None => Got::Wrong(format!("200 without an answer: {json}")),
        };
    }
    match error_kind(&json) {
        // A client that did nothing wrong is not to be blamed.
        Some(kind) if response.status().is_server_error() || response.status() == 429 => {
            Got::CleanError { kind: format!("{} {kind}", response.status().as_u16()), text: String::new() }
        }
        _ => Got::Wrong(format!("{}: {json}", response.status())),
    }
}

/// Text, then an error perhaps, then `[DONE]` and nothing behind it.
fn read_stream(mut response: Response<Body>) -> Got {
    let (mut text, mut failed, mut done) = (String::new(), None, false);
    let (mut parser, mut bytes) = (SseParser::new(MAX_EVENT_BYTES), [0; 4096]);
    let mut reader = response.body_mut().as_reader();
    loop {
        let count = match reader.read(&mut bytes) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) => return broken(&error.into()),
        };
        let mut events: Vec<SseEvent> = Vec::new();
        if let Err(error) = parser.feed(&bytes[..count], &mut events) {
            return Got::Wrong(error.to_string());
        }
        for event in events {
            if done {
                return Got::Wrong("something behind [DONE]".to_owned());
            }
            if event.is_done() {
                done = true;
                continue;
            }
            let Ok(json) = serde_json::from_slice::<Value>(&event.data) else {
                return Got::Wrong(format!("no JSON: {event:?}"));
            };
            failed = failed.or(error_kind(&json));
            text += json["choices"][0]["text"].as_str().unwrap_or_default();
        }
    }
    match (done, failed) {
        (false, _) => Got::Broken("the stream ended without [DONE]".to_owned()),
        (true, Some(kind)) => Got::CleanError { kind: format!("mid-stream {kind}"), text },
        (true, None) => Got::Text(text),
    }
}

/// The kind of an error in OpenAI's shape.
fn error_kind(json: &Value) -> Option<String> {
    let error = json.get("error")?;
    error["message"].as_str()?;
    Some(error["code"].as_str().or(error["type"].as_str()).unwrap_or("error").to_owned())
}
