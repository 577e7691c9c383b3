//! One request with its engine, from submission to its ending, as steps of text.

use std::sync::Arc;
use std::time::Instant;

use baton_engine::{FinishReason, Handle, Refusal, Retained, SeqFailure, Usage};
use baton_openai::answer::Ending;
use baton_openai::{ApiError, ErrorKind};
use baton_types::TokenId;
use tokio::sync::OwnedSemaphorePermit;

use crate::answer_text::AnswerText;
use crate::app::{App, draining, overloaded, unavailable};
use crate::hand_off;
use crate::inbox::SeqEvent;
use crate::request::Prepared;
use crate::reuse;
use crate::ticket::Ticket;
use crate::timeline::Origin;

/// What an answer grows by.
#[derive(Debug)]
pub(crate) enum Step {
    Token {
        token: TokenId,
        /// Often empty.
        text: String,
    },
    End(Box<End>),
}

#[derive(Debug)]
pub(crate) struct End {
    /// What is left to say.
    pub text: String,
    pub ending: Ending,
    pub usage: baton_openai::Usage,
}

/// Dropping it takes the request back.
#[derive(Debug)]
pub(crate) struct Exchange {
    app: Arc<App>,
    ticket: Ticket,
    text: AnswerText,
    timing: Timing,
    _place: OwnedSemaphorePermit,
}

impl Exchange {
    /// Submits the request.
    ///
    /// # Errors
    /// A 429 or 503 if the engine does not take it.
    pub fn begin(
        app: Arc<App>,
        prepared: Prepared,
        place: OwnedSemaphorePermit,
        origin: Origin,
    ) -> Result<Self, ApiError> {
        let serving = app.open()?;
        let text = AnswerText::new(&serving.text, prepared.limits);
        let arrived = origin.arrived;
        let ticket = serving.submit(prepared.request, origin)?;
        let timing = Timing { arrived, first: None, last: arrived, tokens: 0 };
        Ok(Self { app, ticket, text, timing, _place: place })
    }

    /// The next step. Nothing may be asked after an End or an error.
    ///
    /// # Errors
    /// If the request was refused, or cannot be answered to its end.
    pub async fn next(&mut self) -> Result<Step, ApiError> {
        loop {
            match self.ticket.next().await {
                // Computed before the engine heard of the stop string.
                Some(SeqEvent::Token(_)) if self.text.stop_string().is_some() => {}
                Some(SeqEvent::Token(token)) => {
                    self.timing.token(&self.app);
                    let text = self.text.push(token);
                    if self.text.stop_string().is_some() {
                        self.ticket.stop();
                    }
                    return Ok(Step::Token { token, text });
                }
                Some(SeqEvent::Finished { reason, usage, handle, retained }) => {
                    return self.end(reason, usage, handle, retained);
                }
                Some(SeqEvent::Refused(why)) => return Err(refused(why)),
                None => return Err(draining()),
            }
        }
    }

    fn end(
        &mut self,
        reason: FinishReason,
        usage: Usage,
        handle: Option<Handle>,
        retained: Option<Retained>,
    ) -> Result<Step, ApiError> {
        let text = self.text.finish();
        let stop_string = self.text.stop_string().map(str::to_owned);
        let reason = match reason {
            // Length, if the token that completed the stop string was the last one allowed.
            FinishReason::Stop | FinishReason::Length if stop_string.is_some() => {
                baton_openai::FinishReason::Stop
            }
            FinishReason::Stop => baton_openai::FinishReason::Stop,
            FinishReason::Length => baton_openai::FinishReason::Length,
            FinishReason::Aborted => return Err(unavailable("The request was aborted.")),
            FinishReason::Failed(why) => return Err(failed(why)),
        };
        self.timing.end(&self.app);
        let serving = self.app.serving()?;
        // A prefill leg hands over, any other may be kept.
        let kv_transfer_params = handle
            .map(|handle| hand_off::answer(&handle, &serving.identity))
            .or_else(|| retained.map(|retained| reuse::answer(&retained, serving)));
        Ok(Step::End(Box::new(End {
            text,
            ending: Ending { reason, stop_string, kv_transfer_params },
            usage: answer_usage(usage),
        })))
    }
}

fn answer_usage(usage: Usage) -> baton_openai::Usage {
    baton_openai::Usage::new(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens)
}

/// When the tokens of one answer came.
#[derive(Debug)]
struct Timing {
    arrived: Instant,
    first: Option<Instant>,
    last: Instant,
    tokens: u32,
}

impl Timing {
    fn token(&mut self, app: &App) {
        let now = Instant::now();
        match self.first {
            None => {
                self.first = Some(now);
                app.metrics.time_to_first_token.record(now - self.arrived);
            }
            Some(_) => app.metrics.inter_token.record(now - self.last),
        }
        self.last = now;
        self.tokens += 1;
    }

    fn end(&self, app: &App) {
        if let Some(first) = self.first
            && self.tokens > 1
        {
            app.metrics.time_per_output_token.record((self.last - first) / (self.tokens - 1));
        }
        app.metrics.end_to_end.record(self.arrived.elapsed());
    }
}

fn refused(why: Refusal) -> ApiError {
    let context = |message: String| ApiError {
        kind: ErrorKind::ContextLength,
        message,
        param: Some("prompt".to_owned()),
    };
    match why {
        Refusal::Empty => ApiError::bad_param("prompt", "The prompt has no tokens."),
        Refusal::ContextTooLong { tokens, limit } => context(format!(
            "This model's maximum context length is {limit} tokens; the prompt has {tokens}."
        )),
        Refusal::PoolTooSmall { .. } => context("The prompt does not fit this server's KV cache.".to_owned()),
        Refusal::Overloaded => overloaded(),
        Refusal::Draining => draining(),
        Refusal::KvInFlight(limit) => {
            tracing::debug!(%limit, "refused: too much KV in flight");
            let message = format!("Too much KV is in flight here ({limit}); try another server.");
            ApiError::new(ErrorKind::KvInFlight, message)
        }
        Refusal::TransferInUse => ApiError::bad_param(
            "kv_transfer_params",
            "This transfer_id is in use; draw a new one for every attempt.",
        ),
        Refusal::OwnPeer => {
            ApiError::bad_param("kv_transfer_params", "remote_engine_id is the engine that was asked.")
        }
    }
}

/// Never tells what is inside; the log does.
fn failed(why: SeqFailure) -> ApiError {
    tracing::warn!(?why, "a request failed");
    match why {
        SeqFailure::Step => ApiError::new(ErrorKind::Internal, "The request could not be computed."),
        SeqFailure::Kv(_) => unavailable("The prompt's KV cache could not be fetched."),
        SeqFailure::Receiver(_) => {
            ApiError::new(ErrorKind::KvReceiverGone, "The prompt's KV cache is not wanted any more.")
        }
    }
}
