//! What a router does to bodies: takes out what a client must not say, makes the two legs, and takes the handle out of
//! answers. The rules are vLLM's (`kv_transfer_params` in requests and answers); Baton engines follow them too.

use bytes::{Bytes, BytesMut};

use crate::body::{Body, BodyError, RawJson};
use crate::sse::{SseError, SseEvent, SseParser};

/// The member that carries a hand-off, in requests and in answers.
pub const KV_TRANSFER_PARAMS: &str = "kv_transfer_params";

/// Every place from which vLLM reads transfer parameters. A client that reached one could crash an engine, or make it dial
/// an address of the client's choice.
const INTERNAL: &[&[&str]] = &[
    &[KV_TRANSFER_PARAMS],
    &["ec_transfer_params"],
    &["vllm_xargs", KV_TRANSFER_PARAMS],
    &["sampling_params", "extra_args", KV_TRANSFER_PARAMS],
];

impl Body {
    /// Removes what only the router may say to an engine; true if there was anything.
    ///
    /// # Errors
    /// If a nested object on the way has a key twice: nobody can say which of them an engine would read.
    pub fn strip_internal(&mut self) -> Result<bool, BodyError> {
        let mut found = false;
        for path in INTERNAL {
            found |= self.remove_path(path)?.is_some();
        }
        Ok(found)
    }

    /// The body of the prefill leg: one token, not streamed, with `params`. Everything else is the client's.
    #[must_use]
    pub fn prefill_leg(&self, params: RawJson) -> Self {
        let mut leg = self.clone();
        leg.set("stream", RawJson::FALSE);
        leg.remove("stream_options");
        leg.set("max_tokens", RawJson::ONE);
        // The newer names win over `max_tokens` where they are there.
        for name in ["max_completion_tokens", "max_output_tokens"] {
            if leg.contains(name) {
                leg.set(name, RawJson::ONE);
            }
        }
        leg.remove("min_tokens");
        leg.set("n", RawJson::ONE);
        leg.set(KV_TRANSFER_PARAMS, params);
        leg
    }

    /// The body of the decode leg: the client's, with the handle as it came.
    #[must_use]
    pub fn decode_leg(&self, params: RawJson) -> Self {
        let mut leg = self.clone();
        leg.set(KV_TRANSFER_PARAMS, params);
        leg
    }
}

/// Takes the handle, and whatever else speaks of transfers, out of an answer or a chunk. The other bytes stay the same.
/// The handle is `None` if it was absent or null.
///
/// # Errors
/// If the answer is no JSON object; it must then not reach a client.
pub fn strip_handle(answer: Bytes) -> Result<(Bytes, Option<RawJson>), BodyError> {
    let mut body = Body::parse(answer.clone(), usize::MAX)?;
    let handle = body.remove(KV_TRANSFER_PARAMS);
    let other = body.remove("ec_transfer_params");
    let clean = if handle.is_some() || other.is_some() { body.to_bytes() } else { answer };
    Ok((clean, handle.filter(|handle| !handle.is_null())))
}

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

/// Passes a stream of chunks on, event by event, without the handle, which it keeps. Holds at most one event.
#[derive(Debug)]
pub struct HandleFilter {
    parser: SseParser,
    events: Vec<SseEvent>,
    handle: Option<RawJson>,
    done: bool,
}

impl HandleFilter {
    /// `max_event_bytes` bounds one event and so the memory of the filter.
    pub fn new(max_event_bytes: usize) -> Self {
        Self { parser: SseParser::new(max_event_bytes), events: Vec::new(), handle: None, done: false }
    }

    /// Takes bytes as they arrive and gives what may be sent on now; empty while an event is incomplete. What comes after
    /// `[DONE]` is dropped, so that a client sees it once.
    ///
    /// # Errors
    /// The stream is broken and must end. What was complete before the fault is lost: the caller ends the stream anyway.
    pub fn push(&mut self, input: &[u8]) -> Result<Bytes, FilterError> {
        let parsed = self.parser.feed(input, &mut self.events);
        let mut out = BytesMut::new();
        for mut event in self.events.drain(..) {
            if self.done {
                continue;
            }
            self.done = event.is_done();
            if !self.done {
                let (data, handle) = strip_handle(event.data)?;
                event.data = data;
                self.handle = handle.or(self.handle.take());
            }
            event.encode_into(&mut out);
        }
        parsed?;
        Ok(out.freeze())
    }

    /// The handle, once the chunk with it has passed.
    pub fn take_handle(&mut self) -> Option<RawJson> {
        self.handle.take()
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
