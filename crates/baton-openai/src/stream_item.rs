//! What a client finds in a stream.

use crate::error::{ErrorAnswer, ErrorDetail};
use crate::response::Completion;
use crate::sse::SseEvent;

/// The meaning of one event, from whichever server.
#[derive(Clone, Debug, PartialEq)]
pub enum StreamItem {
    Chunk(Box<Completion>),
    /// The answer has failed after the HTTP status was sent.
    Error(ErrorDetail),
    Done,
}

impl StreamItem {
    /// # Errors
    /// serde's, if the event is neither a chunk nor an error.
    pub fn read(event: &SseEvent) -> Result<Self, serde_json::Error> {
        if event.is_done() {
            return Ok(Self::Done);
        }
        if let Ok(ErrorAnswer { error }) = serde_json::from_slice(&event.data) {
            return Ok(Self::Error(error));
        }
        serde_json::from_slice(&event.data).map(|chunk| Self::Chunk(Box::new(chunk)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(data: &'static str) -> Result<StreamItem, serde_json::Error> {
        StreamItem::read(&SseEvent::message(data))
    }

    #[test]
    fn vllms_events_are_understood() {
        let chunk = r#"{"id": "chatcmpl-t", "object": "chat.completion.chunk", "created": 1795959711, "model": "smollm2",
            "choices": [{"index": 0, "delta": {"content": "1"}, "logprobs": null, "finish_reason": "length",
            "stop_reason": null, "token_ids": null}]}"#;
        let StreamItem::Chunk(chunk) = read(chunk).unwrap() else { panic!("a chunk") };
        assert_eq!(chunk.text(), "1");
        let usage = r#"{"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [],
            "usage": {"prompt_tokens": 537, "total_tokens": 585, "completion_tokens": 48}, "system_fingerprint": "v"}"#;
        let StreamItem::Chunk(chunk) = read(usage).unwrap() else { panic!("a chunk") };
        assert_eq!((chunk.text(), chunk.usage.unwrap().prompt_tokens), ("", 537));
        let failure = r#"{"error": {"message": "Internal server error", "type": "InternalServerError", "param": null, "code": 500}}"#;
        assert!(
            matches!(read(failure), Ok(StreamItem::Error(error)) if error.message == "Internal server error")
        );
        assert_eq!(read("[DONE]").unwrap(), StreamItem::Done);
        assert!(read("<html>").is_err());
    }
}
