//! The HTTP API: routes, bodies, and errors in OpenAI's shape.

mod generate;
mod probes;
mod tokens;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use axum::routing::{get, post};
use baton_openai::{ApiError, ErrorKind};
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::Serialize;
use tokio::sync::OwnedSemaphorePermit;

use crate::app::App;

/// A client that takes longer to send its body has lost interest.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// Bodies below are parsed and tokenised where they arrive: that takes less than a thread's wake-up.
const SMALL_BODY_BYTES: usize = 8 << 10;

pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(generate::chat))
        .route("/v1/completions", post(generate::completions))
        .route("/v1/models", get(probes::models))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/health", get(probes::health))
        .route("/version", get(probes::version))
        .route("/metrics", get(probes::metrics))
        .route("/baton/info", get(probes::info))
        .fallback(async || error_response(&ApiError::new(ErrorKind::NotFound, "There is no such path.")))
        // The limit is the configuration's, enforced in `read_body` with an error in OpenAI's shape.
        .layer(axum::extract::DefaultBodyLimit::disable())
        .layer(axum::middleware::from_fn_with_state(app.clone(), count))
        .with_state(app)
}

/// Counts every answer by its route, never by the path that a client made up.
async fn count(State(app): State<Arc<App>>, request: Request, next: axum::middleware::Next) -> Response {
    const ROUTES: [&str; 9] = [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/models",
        "/tokenize",
        "/detokenize",
        "/health",
        "/version",
        "/metrics",
        "/baton/info",
    ];
    let route = ROUTES.into_iter().find(|route| *route == request.uri().path()).unwrap_or("other");
    let response = next.run(request).await;
    app.metrics.count_answer(route, response.status().as_u16());
    response
}

/// The whole body.
///
/// # Errors
/// A 413 beyond the limit, a 400 if it does not arrive.
async fn read_body(request: Request, limit: usize) -> Result<Bytes, ApiError> {
    let too_large = || {
        ApiError::new(
            ErrorKind::BodyTooLarge,
            format!("The request body is larger than the limit of {limit} bytes."),
        )
    };
    let announced = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    if announced.and_then(|text| text.parse().ok()).is_some_and(|bytes: u64| bytes > limit as u64) {
        return Err(too_large());
    }
    let body = Limited::new(request.into_body(), limit).collect();
    match tokio::time::timeout(BODY_TIMEOUT, body).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(_)) | Err(_) => {
            Err(ApiError::new(ErrorKind::BadRequest, "The request body did not arrive whole."))
        }
    }
}

/// Runs `work` on a body: off the async threads if it is large enough to keep one busy. The request keeps its `place` until the work
/// is done, be its client there or not: else whoever sends and leaves has more and more of it done at a time.
async fn with_body<T: Send + 'static>(
    body: Bytes,
    place: OwnedSemaphorePermit,
    work: impl FnOnce(Bytes) -> Result<T, ApiError> + Send + 'static,
) -> Result<(T, OwnedSemaphorePermit), ApiError> {
    if body.len() <= SMALL_BODY_BYTES {
        return Ok((work(body)?, place));
    }
    let done = tokio::task::spawn_blocking(move || Ok((work(body)?, place))).await;
    done.unwrap_or_else(|error| {
        tracing::error!(%error, "reading a request failed");
        Err(ApiError::new(ErrorKind::Internal, "The request could not be read."))
    })
}

fn respond(result: Result<Response, ApiError>) -> Response {
    result.unwrap_or_else(|error| error_response(&error))
}

fn error_response(error: &ApiError) -> Response {
    let mut response = Response::new(Body::from(error.to_json()));
    *response.status_mut() =
        StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if matches!(error.kind, ErrorKind::Overloaded | ErrorKind::Unavailable | ErrorKind::KvInFlight) {
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

fn json_response<T: Serialize>(value: &T) -> Response {
    let mut response = Response::new(Body::from(baton_openai::RawJson::of(value).as_bytes().clone()));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn whoever_leaves_has_a_place_until_its_body_is_read() {
        let places = Arc::new(Semaphore::new(1));
        let place = places.clone().try_acquire_owned().unwrap();
        let (begun, is_begun) = tokio::sync::oneshot::channel();
        let (go_on, wait) = mpsc::channel::<()>();
        let work = move |_| {
            begun.send(()).unwrap();
            let _ = wait.recv();
            Ok(())
        };
        let client = tokio::spawn(with_body(vec![b' '; SMALL_BODY_BYTES + 1].into(), place, work));
        is_begun.await.unwrap();
        client.abort();
        assert!(client.await.is_err());
        assert_eq!(places.available_permits(), 0, "it is still being read");
        drop(go_on);
        let again = tokio::time::timeout(Duration::from_secs(10), places.acquire()).await;
        assert!(again.is_ok(), "it has been read");
    }
}
