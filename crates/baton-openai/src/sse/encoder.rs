//! Writing a stream.

use bytes::Bytes;
use serde::Serialize;

use super::{DONE, SseEvent};
use crate::body::RawJson;
use crate::error::ApiError;

/// One answer's stream. Its two endings consume it, so that `[DONE]` is sent exactly once and nothing after it.
#[derive(Debug, Default)]
pub struct SseEncoder(());

impl SseEncoder {
    pub fn new() -> Self {
        Self(())
    }

    /// One chunk. JSON text has no line breaks, so it is one `data` line.
    ///
    /// # Panics
    /// If `chunk` cannot be JSON; see [`RawJson::of`].
    pub fn chunk<T: Serialize + ?Sized>(&self, chunk: &T) -> Bytes {
        SseEvent::message(RawJson::of(chunk).as_bytes().clone()).to_bytes()
    }

    /// A comment, which clients skip: keeps a silent connection alive.
    pub fn keep_alive(&self) -> Bytes {
        Bytes::from_static(b": keep-alive\n\n")
    }

    /// The proper end.
    pub fn finish(self) -> Bytes {
        SseEvent::message(DONE).to_bytes()
    }

    /// The end after a failure: an error event and `[DONE]`. By now the HTTP status is out; this is the only way to tell.
    pub fn fail(self, error: &ApiError) -> Bytes {
        let mut out = bytes::BytesMut::new();
        SseEvent::message(error.to_json()).encode_into(&mut out);
        SseEvent::message(DONE).encode_into(&mut out);
        out.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn events_are_one_data_line_and_a_blank_one() {
        let encoder = SseEncoder::new();
        assert_eq!(&encoder.chunk(&"a\nb\r")[..], b"data: \"a\\nb\\r\"\n\n");
        assert_eq!(&encoder.finish()[..], b"data: [DONE]\n\n");
    }

    #[test]
    fn a_failure_is_an_event_and_then_the_end() {
        let bytes = SseEncoder::new().fail(&ApiError::new(ErrorKind::Internal, "lost an engine"));
        let text = std::str::from_utf8(&bytes).unwrap();
        assert!(text.starts_with("data: {\"error\":{\"message\":\"lost an engine\""), "{text}");
        assert!(text.ends_with("}\n\ndata: [DONE]\n\n"), "{text}");
    }
}
