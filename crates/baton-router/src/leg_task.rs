//! One leg: sends its request, reads the answer, and reports to the conductor. Being aborted drops the connection.

use std::sync::Arc;
use std::time::{Duration, Instant};

use baton_openai::ErrorKind;
use baton_openai::body::RawJson;
use baton_openai::error::ErrorAnswer;
use baton_routing::{LegFault, LegId, LegStart, Retained};
use baton_trace::TraceParent;
use baton_types::LegKind;
use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::CONTENT_TYPE;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use crate::answer_gate::{AnswerGate, whole_answer};
use crate::client_answer::AnswerBytes;
use crate::conductor::Conductor;
use crate::engine_client::{EngineAnswer, EngineClient, ExchangeError};
use crate::failure::Refusal;
use crate::leg_request::Ask;
use crate::retained;

/// Pieces of a stream that wait for a slow client before its engine is kept waiting.
const STREAM_BACKLOG: usize = 32;
/// Largest error answer that is read.
const MAX_ERROR_BYTES: usize = 64 << 10;
/// How long a stream may take to end after `[DONE]`, for its connection to be of use again.
const TRAIL: Duration = Duration::from_millis(500);

/// What a leg tells the conductor.
#[derive(Debug)]
pub(crate) enum Report {
    Connected,
    FirstByte(AnswerBytes),
    Progress,
    Blocked,
    Retained(Retained),
    Ended { handle: Option<RawJson> },
    Failed(LegFault),
    Refused(Refusal),
}

#[derive(Debug)]
pub(crate) struct LegTask {
    pub start: LegStart,
    pub ask: Arc<Ask>,
    /// The handle for a decode leg that needs one.
    pub handle: Option<RawJson>,
    /// What the engine is to continue; where there is none, it gets what the client brought.
    pub trace_parent: Option<TraceParent>,
    pub engine: Arc<EngineClient>,
    pub conductor: Arc<Conductor>,
    pub limits: AnswerLimits,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct AnswerLimits {
    pub max_answer_bytes: usize,
    pub max_event_bytes: usize,
    /// How often a stream's progress is reported.
    pub progress: Duration,
}

impl LegTask {
    pub async fn run(mut self) {
        if let Err(report) = self.exchange().await {
            self.report(report);
        }
    }

    fn report(&self, report: Report) {
        self.conductor.report(self.leg(), report);
    }

    fn report_retained(&self, params: Option<&RawJson>) {
        if let Some(retained) = params.and_then(retained::read) {
            self.report(Report::Retained(retained));
        }
    }

    fn leg(&self) -> LegId {
        self.start.leg
    }

    async fn exchange(&mut self) -> Result<(), Report> {
        let request = self.ask.leg(&self.start, self.handle.take(), self.trace_parent);
        let connected = || self.report(Report::Connected);
        let mut answer = self.engine.send(request, connected).await.map_err(failed)?;
        if answer.status != StatusCode::OK {
            return Err(refusal(self.start.kind, &mut answer).await);
        }
        if self.start.kind == LegKind::Prefill {
            let (_, handle) = self.whole(&mut answer).await?;
            self.report(Report::Ended { handle });
        } else if self.ask.streaming {
            self.stream(answer).await?;
        } else {
            let (text, handle) = self.whole(&mut answer).await?;
            self.report_retained(handle.as_ref());
            self.report(Report::FirstByte(AnswerBytes::Whole(text)));
            self.report(Report::Ended { handle: None });
        }
        Ok(())
    }

    async fn whole(&self, answer: &mut EngineAnswer) -> Result<(Bytes, Option<RawJson>), Report> {
        let text = answer.collect(self.limits.max_answer_bytes).await.map_err(failed)?;
        whole_answer(text).map_err(Report::Failed)
    }

    async fn stream(&self, mut answer: EngineAnswer) -> Result<(), Report> {
        let media_type = answer.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        if !media_type.is_some_and(|value| value.starts_with("text/event-stream")) {
            return Err(Report::Failed(LegFault::BadAnswer));
        }
        let mut gate = AnswerGate::new(self.limits.max_event_bytes);
        let mut client = ClientStream::new(self);
        while !gate.is_done() {
            let Some(input) = answer.next().await.map_err(failed)? else {
                // It ended without [DONE].
                return Err(Report::Failed(LegFault::Broken));
            };
            let (events, fault) = gate.push(&input);
            // Before the client has the answer's end, and may send its next turn.
            self.report_retained(gate.take_handle().as_ref());
            client.send(events).await;
            if let Some(fault) = fault {
                return Err(Report::Failed(fault));
            }
        }
        // The client's stream ends here, before the core says how.
        drop(client);
        self.report(Report::Ended { handle: None });
        // Nothing waits for this leg any more, so the time limit is its own.
        let _ = tokio::time::timeout(TRAIL, answer.collect(MAX_ERROR_BYTES)).await;
        Ok(())
    }
}

/// The sending end of the client's stream; begins with the first bytes.
struct ClientStream<'a> {
    leg: &'a LegTask,
    events: Option<mpsc::Sender<Bytes>>,
    reported: Instant,
}

impl<'a> ClientStream<'a> {
    fn new(leg: &'a LegTask) -> Self {
        Self { leg, events: None, reported: Instant::now() }
    }

    async fn send(&mut self, events: Bytes) {
        if self.events.is_none() && events.is_empty() {
            return;
        }
        let sender = self.events.get_or_insert_with(|| {
            let (sender, receiver) = mpsc::channel(STREAM_BACKLOG);
            self.leg.report(Report::FirstByte(AnswerBytes::Stream(receiver)));
            sender
        });
        let blocked = match sender.try_send(events) {
            // A client that is gone: the core knows, or is about to.
            Ok(()) | Err(TrySendError::Closed(_)) => false,
            Err(TrySendError::Full(events)) => {
                self.leg.report(Report::Blocked);
                let _ = sender.send(events).await;
                true
            }
        };
        if blocked || self.reported.elapsed() >= self.leg.limits.progress {
            self.reported = Instant::now();
            self.leg.report(Report::Progress);
        }
    }
}

fn failed(error: ExchangeError) -> Report {
    tracing::debug!(%error, "leg");
    Report::Failed(match error {
        ExchangeError::Connect(_) => LegFault::Connect,
        ExchangeError::Broken(_) => LegFault::Broken,
        ExchangeError::TooLong(_) => LegFault::BadAnswer,
    })
}

/// Whether an error answer says that it is of this kind.
fn has_code(body: &[u8], kind: ErrorKind) -> bool {
    let answer = serde_json::from_slice::<ErrorAnswer>(body);
    answer.is_ok_and(|answer| kind.code().is_some_and(|code| answer.error.code == code))
}

/// What a status other than 200 means. A 3xx has no business here.
async fn refusal(kind: LegKind, answer: &mut EngineAnswer) -> Report {
    let status = answer.status;
    let fault = match status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => LegFault::Overloaded,
        StatusCode::REQUEST_TIMEOUT => LegFault::ServerError,
        // Baton's own word for it: `kv_receiver_gone`.
        StatusCode::CONFLICT if kind == LegKind::Prefill => LegFault::Unwanted,
        _ if status.is_server_error() => LegFault::ServerError,
        _ if !status.is_client_error() => LegFault::BadAnswer,
        _ => match answer.collect(MAX_ERROR_BYTES).await {
            Ok(body) => return Report::Refused(Refusal { status, body }),
            Err(error) => return failed(error),
        },
    };
    // Read to its end, the connection can be used again; the fault does not wait for that long.
    let body = tokio::time::timeout(TRAIL, answer.collect(MAX_ERROR_BYTES)).await.ok();
    tracing::debug!(%status, ?body, "leg");
    let is_full_of_kv = fault == LegFault::Overloaded
        && matches!(&body, Some(Ok(body)) if has_code(body, ErrorKind::KvInFlight));
    Report::Failed(if is_full_of_kv { LegFault::KvInFlight } else { fault })
}

#[cfg(test)]
mod tests {
    use baton_openai::ApiError;

    use super::*;

    #[test]
    fn an_engine_full_of_kv_is_told_from_one_that_is_only_full() {
        let is_full_of_kv = |kind| has_code(&ApiError::new(kind, "No.").to_json(), ErrorKind::KvInFlight);
        assert!(is_full_of_kv(ErrorKind::KvInFlight));
        assert!(!is_full_of_kv(ErrorKind::Overloaded) && !is_full_of_kv(ErrorKind::Unavailable));
        assert!(!has_code(b"<html>busy</html>", ErrorKind::KvInFlight));
    }
}
