//! One request and its answer.

use std::time::Duration;

use baton_workload::result::{Ending, RequestRecord};
use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::{Response, StatusCode};
use serde_json::Value;
use tokio::time::timeout;

use crate::answer::{Answer, error_text, note_error};
use crate::clock::Clock;
use crate::endpoint::{Endpoint, root_cause};
use crate::options::Api;
use crate::progress::Progress;

/// Longest error body that is read, in bytes.
const MAX_ERROR_BYTES: usize = 64 << 10;
/// Longest wait for the end of a body behind its last event.
const END_TIMEOUT: Duration = Duration::from_millis(100);

/// How requests are sent, the same for all of a point.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub endpoint: Endpoint,
    pub clock: Clock,
    pub ignore_eos: bool,
    pub request_timeout: Duration,
    pub progress: Progress,
}

impl Exchange {
    /// Sends and reads, and writes everything down as it happens: whoever drops the future keeps what has been seen. Gives the
    /// answer's text, if it is to be kept and there is one.
    pub async fn run(
        &self,
        api: Api,
        body: Bytes,
        keep_text: bool,
        record: &mut RequestRecord,
    ) -> Option<String> {
        record.sent_ms = Some(self.clock.now_ms());
        let text = match timeout(self.request_timeout, self.send(api, body, keep_text, record)).await {
            Ok(text) => text,
            Err(_) => {
                record.ending = Ending::TimedOut;
                note_error(&format!("no end within {:?}", self.request_timeout), record);
                None
            }
        };
        record.done_ms.get_or_insert_with(|| self.clock.now_ms());
        text
    }

    async fn send(
        &self,
        api: Api,
        body: Bytes,
        keep_text: bool,
        record: &mut RequestRecord,
    ) -> Option<String> {
        let response = match self.endpoint.ask(api.path(), &record.id, body).await {
            Ok(response) => response,
            Err(error) => {
                record.ending = if error.is_connect() { Ending::Unreachable } else { Ending::Cut };
                note_error(&root_cause(&error), record);
                return None;
            }
        };
        record.status = Some(response.status().as_u16());
        if response.status() != StatusCode::OK {
            self.refused(response, record).await;
            return None;
        }
        self.read(response.into_body(), keep_text, record).await
    }

    async fn refused(&self, response: Response<Incoming>, record: &mut RequestRecord) {
        record.ending = Ending::Refused;
        // What cannot be read is no reason.
        let body = Limited::new(response.into_body(), MAX_ERROR_BYTES).collect().await;
        let body = body.map(|body| body.to_bytes()).unwrap_or_default();
        let why = match serde_json::from_slice::<Value>(&body) {
            Ok(value) => error_text(value.get("error").unwrap_or(&value)),
            Err(_) => String::from_utf8_lossy(&body).into_owned(),
        };
        note_error(&why, record);
    }

    async fn read(&self, mut body: Incoming, keep_text: bool, record: &mut RequestRecord) -> Option<String> {
        let mut answer = Answer::new(keep_text);
        let mut broken = None;
        while let Some(frame) = body.frame().await {
            let now_ms = self.clock.now_ms();
            let bytes = match frame {
                Ok(frame) => frame.into_data().unwrap_or_default(),
                Err(error) => {
                    broken = Some(root_cause(&error));
                    break;
                }
            };
            let had = record.token_ms.len();
            answer.feed(&bytes, now_ms, record);
            self.progress.tokens(had, record);
            if answer.is_over() {
                record.done_ms = Some(now_ms);
                // A connection is used again only if its body was read to the end, which is near.
                let _ = timeout(END_TIMEOUT, body.frame()).await;
                break;
            }
        }
        answer.end(broken.as_deref(), self.ignore_eos, record)
    }
}
