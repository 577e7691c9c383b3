//! Errors as OpenAI's clients expect them: an HTTP status and `{"error":{"message","type","param","code"}}`.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// What went wrong, as far as a client, a retry or a circuit breaker must tell it apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request can never succeed as it is: 400.
    BadRequest,
    /// Prompt and answer do not fit the model: 400 with code `context_length_exceeded`.
    ContextLength,
    /// The request is fine, but this system does not do that: 400 with code `unsupported_parameter`.
    Unsupported,
    /// No such model: 404 with code `model_not_found`.
    ModelNotFound,
    /// No such path: 404.
    NotFound,
    /// The body is larger than the limit: 413.
    BodyTooLarge,
    /// A prefill leg whose KV the engine that was to take it has given up: 409 with code `kv_receiver_gone`.
    KvReceiverGone,
    /// Queues are full; try again later: 429.
    Overloaded,
    /// A fault of this system: 500. The message must not tell what is inside.
    Internal,
    /// An engine behind this system failed: 502.
    BadGateway,
    /// No engine can take the request now: 503.
    Unavailable,
    /// So much KV is on its way to or from this engine that more would wait for long: 503 with code `kv_in_flight`.
    KvInFlight,
    /// An engine did not answer in time: 504.
    Timeout,
}

impl ErrorKind {
    pub const fn status(self) -> u16 {
        match self {
            Self::BadRequest | Self::ContextLength | Self::Unsupported => 400,
            Self::ModelNotFound | Self::NotFound => 404,
            Self::BodyTooLarge => 413,
            Self::KvReceiverGone => 409,
            Self::Overloaded => 429,
            Self::Internal => 500,
            Self::BadGateway => 502,
            Self::Unavailable | Self::KvInFlight => 503,
            Self::Timeout => 504,
        }
    }

    /// The client's own fault: says nothing about the health of an engine and is never retried.
    pub const fn is_client_fault(self) -> bool {
        self.status() < 500 && !matches!(self, Self::Overloaded | Self::KvReceiverGone)
    }

    const fn type_name(self) -> &'static str {
        match self {
            Self::BadRequest | Self::ContextLength | Self::Unsupported | Self::BodyTooLarge => {
                "invalid_request_error"
            }
            Self::ModelNotFound | Self::NotFound => "not_found_error",
            Self::Overloaded => "rate_limit_error",
            Self::KvReceiverGone => "conflict_error",
            Self::Internal | Self::BadGateway => "server_error",
            Self::Unavailable | Self::KvInFlight => "service_unavailable",
            Self::Timeout => "timeout",
        }
    }

    /// The word for programs, where there is one.
    pub const fn code(self) -> Option<&'static str> {
        match self {
            Self::ContextLength => Some("context_length_exceeded"),
            Self::Unsupported => Some("unsupported_parameter"),
            Self::ModelNotFound => Some("model_not_found"),
            Self::BodyTooLarge => Some("body_too_large"),
            Self::KvReceiverGone => Some("kv_receiver_gone"),
            Self::KvInFlight => Some("kv_in_flight"),
            Self::Overloaded => Some("overloaded"),
            _ => None,
        }
    }
}

/// An answer that is an error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    pub kind: ErrorKind,
    /// For the client to read: no addresses, no internal names.
    pub message: String,
    /// The request's member that is to blame.
    pub param: Option<String>,
}

impl ApiError {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), param: None }
    }

    /// A 400 that blames one member of the request.
    pub fn bad_param(param: &str, message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::BadRequest, message: message.into(), param: Some(param.to_owned()) }
    }

    /// A 400 for a feature that this system does not have.
    pub fn unsupported(param: &str, message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Unsupported, message: message.into(), param: Some(param.to_owned()) }
    }

    pub fn model_not_found(model: &str) -> Self {
        let message = format!("The model `{}` does not exist.", excerpt(model));
        Self { kind: ErrorKind::ModelNotFound, message, param: Some("model".to_owned()) }
    }

    pub fn status(&self) -> u16 {
        self.kind.status()
    }

    /// The whole body: `{"error":{...}}`.
    pub fn to_json(&self) -> Bytes {
        Bytes::from(self.to_value().to_string())
    }

    fn to_value(&self) -> Value {
        json!({"error": {
            "message": self.message,
            "type": self.kind.type_name(),
            "param": self.param,
            "code": self.kind.code(),
        }})
    }
}

/// At most 64 characters of a client's text, for quoting it in a message.
pub(crate) fn excerpt(text: &str) -> String {
    const LIMIT: usize = 64;
    match text.char_indices().nth(LIMIT) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// The inside of an error answer as a client reads it, from whichever server: OpenAI's `code` is a text, vLLM's a number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ErrorDetail {
    pub message: String,
    #[serde(default, rename = "type")]
    pub kind: Option<String>,
    #[serde(default)]
    pub param: Option<String>,
    #[serde(default)]
    pub code: Value,
}

/// `{"error": ...}`, as a client reads it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ErrorAnswer {
    pub error: ErrorDetail,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shape_is_openais() {
        let error = ApiError::bad_param("temperature", "too hot");
        assert_eq!(error.status(), 400);
        assert_eq!(
            &error.to_json()[..],
            br#"{"error":{"message":"too hot","type":"invalid_request_error","param":"temperature","code":null}}"#
        );
    }

    #[test]
    fn errors_of_other_servers_can_be_read() {
        let vllm = r#"{"error": {"message": "Internal server error", "type": "InternalServerError", "param": null, "code": 500}}"#;
        let answer: ErrorAnswer = serde_json::from_str(vllm).unwrap();
        assert_eq!(answer.error.code, json!(500));
    }

    #[test]
    fn a_client_fault_is_no_fault_of_an_engine() {
        assert!(ErrorKind::ContextLength.is_client_fault());
        assert!(ErrorKind::BodyTooLarge.is_client_fault());
        assert!(!ErrorKind::Overloaded.is_client_fault());
        assert!(!ErrorKind::BadGateway.is_client_fault());
    }

    #[test]
    fn quoted_names_are_cut() {
        let error = ApiError::model_not_found(&"é".repeat(5000));
        assert!(error.message.len() < 300);
    }
}
