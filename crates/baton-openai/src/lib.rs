//! The HTTP API's words: what a client may ask, what an engine answers, server-sent events, and the raw bodies that the
//! router edits. No sockets and no clock: bytes in, bytes out.
//!
//! Engines read requests whole and typed ([`ChatRequest`], [`CompletionRequest`]) and refuse what they cannot do. The router
//! must not: it edits a [`Body`] whose untouched members stay byte for byte what the client sent.

pub mod answer;
pub mod body;
pub mod chat;
pub mod completion;
pub mod error;
pub mod filter;
pub mod generation;
pub mod legs;
pub mod models;
pub mod refusals;
pub mod response;
pub mod sse;
pub mod stream_item;
pub mod strip;
pub mod tokenize;

pub use answer::Answer;
pub use body::{Body, BodyError, RawJson};
pub use chat::{ChatMessage, ChatRequest};
pub use completion::{CompletionRequest, Prompt};
pub use error::{ApiError, ErrorKind};
pub use filter::AnswerFilter;
pub use generation::Generation;
pub use response::{Endpoint, FinishReason, Usage};
pub use sse::{SseEncoder, SseEvent, SseParser};
pub use stream_item::StreamItem;
pub use strip::{AnswerTokens, strip_handle, strip_token_ids};
