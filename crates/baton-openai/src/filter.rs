//! A stream on its way from an engine to a client.

use baton_types::TokenId;
use bytes::{Bytes, BytesMut};

use crate::body::{BodyError, RawJson};
use crate::sse::{SseError, SseEvent, SseParser};
use crate::strip::{AnswerTokens, strip_handle, strip_token_ids};

/// Why a stream of chunks cannot be passed on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    #[error(transparent)]
    Sse(#[from] SseError),
    #[error("a chunk is not what it should be: {0}")]
    Chunk(#[from] BodyError),
    #[error("the stream ended before [DONE]")]
    Truncated,
}

/// Passes a stream of chunks on, event by event, and keeps what is for the router: the handle, and token ids if told so.
/// Holds at most one event and the ids.
#[derive(Debug)]
pub struct AnswerFilter {
    parser: SseParser,
    events: Vec<SseEvent>,
    handle: Option<RawJson>,
    ids: Option<Ids>,
    done: bool,
}

#[derive(Debug)]
struct Ids {
    limit: usize,
    prompt: Option<Vec<TokenId>>,
    answer: Vec<TokenId>,
    over: bool,
}

impl AnswerFilter {
    /// `max_event_bytes` bounds one event and so the memory of the filter.
    pub fn new(max_event_bytes: usize) -> Self {
        let parser = SseParser::new(max_event_bytes);
        Self { parser, events: Vec::new(), handle: None, ids: None, done: false }
    }

    /// Also takes out the token ids that `return_token_ids` adds, because the client did not ask for them. At most
    /// `max_tokens` are kept.
    #[must_use]
    pub fn taking_token_ids(mut self, max_tokens: usize) -> Self {
        self.ids = Some(Ids { limit: max_tokens, prompt: None, answer: Vec::new(), over: false });
        self
    }

    /// Takes bytes as they arrive and gives what may be sent on now; empty while an event is incomplete. What comes after
    /// `[DONE]` is dropped, so that a client sees it once.
    ///
    /// # Errors
    /// The stream is broken and must end. Events before the fault that came in the same call are lost with it.
    pub fn push(&mut self, input: &[u8]) -> Result<Bytes, FilterError> {
        let mut events = std::mem::take(&mut self.events);
        let parsed = self.parser.feed(input, &mut events);
        let mut out = BytesMut::new();
        for event in events.drain(..) {
            if !self.done {
                self.pass(event, &mut out)?;
            }
        }
        self.events = events;
        parsed?;
        Ok(out.freeze())
    }

    fn pass(&mut self, mut event: SseEvent, out: &mut BytesMut) -> Result<(), FilterError> {
        self.done = event.is_done();
        if !self.done {
            let (data, handle) = strip_handle(event.data)?;
            event.data = data;
            self.handle = handle.or(self.handle.take());
            if let Some(ids) = &mut self.ids {
                let (data, found) = strip_token_ids(event.data)?;
                event.data = data;
                ids.add(found);
            }
        }
        event.encode_into(out);
        Ok(())
    }

    /// The handle, once the chunk with it has passed.
    pub fn take_handle(&mut self) -> Option<RawJson> {
        self.handle.take()
    }

    /// The ids of prompt and answer up to now; `None` if they were not to be taken, if there was no prompt, or if there
    /// were more than the limit.
    pub fn take_tokens(&mut self) -> Option<AnswerTokens> {
        let ids = self.ids.take()?;
        let tokens = AnswerTokens { prompt: Some(ids.prompt?), answer: ids.answer };
        (!ids.over).then_some(tokens)
    }

    /// Whether `[DONE]` has passed.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// To be called when no more bytes come.
    ///
    /// # Errors
    /// [`FilterError::Truncated`] unless `[DONE]` has passed.
    pub fn end(&self) -> Result<(), FilterError> {
        if self.done { Ok(()) } else { Err(FilterError::Truncated) }
    }
}

impl Ids {
    fn add(&mut self, found: AnswerTokens) {
        self.prompt = self.prompt.take().or(found.prompt);
        self.answer.extend(found.answer);
        if self.answer.len() + self.prompt.as_ref().map_or(0, Vec::len) > self.limit {
            self.over = true;
            self.prompt = None;
            self.answer = Vec::new();
        }
    }
}
