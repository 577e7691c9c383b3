//! What a client is told when its request fails: OpenAI's shape, and nothing about what is inside.

use axum::body::Body;
use axum::response::Response;
use baton_openai::error::ErrorAnswer;
use baton_openai::{ApiError, ErrorKind};
use baton_routing::Failure;
use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};

/// How long a client that was refused for lack of room should wait.
const RETRY_AFTER_S: u64 = 1;

/// An engine's 4xx.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub status: StatusCode,
    pub body: Bytes,
}

impl Refusal {
    /// The engine's status and its words, if they have OpenAI's shape: re-written, so that nothing else in it passes.
    pub fn into_response(self) -> Response {
        let words = serde_json::from_slice::<ErrorAnswer>(&self.body).ok();
        let body = words.and_then(|words| serde_json::to_vec(&words).ok()).map_or_else(
            || ApiError::new(ErrorKind::BadRequest, "The request was refused.").to_json(),
            Bytes::from,
        );
        json_response(self.status, body)
    }
}

/// A failure in words. `model` is what the client asked for.
pub(crate) fn api_error(failure: Failure, model: Option<&str>) -> ApiError {
    match failure {
        Failure::Refused { .. } => ApiError::new(ErrorKind::BadRequest, "The request was refused."),
        Failure::UnknownModel => ApiError::model_not_found(model.unwrap_or("")),
        Failure::OneSequenceOnly => {
            ApiError::unsupported("n", "This deployment serves one prompt and one choice per request.")
        }
        Failure::NoEngine { .. } => {
            ApiError::new(ErrorKind::Unavailable, "No engine can take the request now.")
        }
        Failure::Overloaded => {
            ApiError::new(ErrorKind::Unavailable, "There is no room now; try again later.")
        }
        Failure::EngineFailed => ApiError::new(ErrorKind::BadGateway, "An engine failed."),
        Failure::TimedOut => ApiError::new(ErrorKind::Timeout, "An engine took too long."),
    }
}

pub(crate) fn error_response(error: &ApiError) -> Response {
    let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = json_response(status, error.to_json());
    if matches!(error.kind, ErrorKind::Unavailable | ErrorKind::Overloaded) {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(RETRY_AFTER_S));
    }
    response
}

pub(crate) fn json_response(status: StatusCode, body: Bytes) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_refusal_keeps_the_engines_words_and_loses_the_rest() {
        let body = r#"{"error":{"message":"too long","type":"invalid_request_error","param":null,"code":"context_length_exceeded","host":"10.0.0.1"},"kv_transfer_params":{}}"#;
        let refusal = Refusal { status: StatusCode::BAD_REQUEST, body: Bytes::from_static(body.as_bytes()) };
        let response = refusal.into_response();
        assert_eq!(response.status(), 400);
        let text = axum::body::to_bytes(response.into_body(), 4096).await.unwrap();
        let text = std::str::from_utf8(&text).unwrap();
        assert!(text.contains("too long") && text.contains("context_length_exceeded"), "{text}");
        assert!(!text.contains("10.0.0.1") && !text.contains("kv_transfer"), "{text}");
        let odd = Refusal { status: StatusCode::NOT_FOUND, body: Bytes::from_static(b"at 10.0.0.1") };
        let text = axum::body::to_bytes(odd.into_response().into_body(), 4096).await.unwrap();
        assert!(!std::str::from_utf8(&text).unwrap().contains("10.0.0.1"));
    }

    #[test]
    fn a_lack_of_room_says_when_to_come_back() {
        let response = error_response(&api_error(Failure::Overloaded, None));
        assert_eq!(response.status(), 503);
        assert!(response.headers().contains_key(RETRY_AFTER));
        assert_eq!(error_response(&api_error(Failure::EngineFailed, None)).status(), 502);
        assert_eq!(error_response(&api_error(Failure::TimedOut, None)).status(), 504);
        assert_eq!(error_response(&api_error(Failure::UnknownModel, Some("m"))).status(), 404);
    }
}
