//! The HTTP API that clients see.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body as AxumBody;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use baton_openai::models::{ModelCard, ModelList};
use baton_openai::{ApiError, Body, Endpoint, ErrorKind};
use baton_routing::{Failure, RequestEnd};
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{HeaderMap, StatusCode};

use crate::client_answer::{AnswerBytes, StreamBody};
use crate::conductor::{Arrival, Begin, Conductor};
use crate::conversation::{ConversationHasher, ConversationId};
use crate::failure::{api_error, error_response, json_response};
use crate::leg_request::{Ask, X_BATON_TENANT, X_REQUEST_ID, forwarded_headers};

const SERVED_BY: HeaderName = HeaderName::from_static("x-baton-served-by");
/// A client's id is echoed and logged, nothing else; a longer one is replaced.
const MAX_CLIENT_ID_BYTES: usize = 256;

/// What the handlers share.
#[derive(Debug)]
pub(crate) struct Front {
    pub conductor: Arc<Conductor>,
    pub max_body_bytes: usize,
    pub body_timeout: Duration,
    pub expose_served_by: bool,
    pub tenant_header: Option<HeaderName>,
    /// None where no turn reuses anything of another.
    pub conversations: Option<ConversationHasher>,
    /// Unix seconds of the start, the `created` of all models.
    pub started_s: u64,
    /// For answers to clients that bring no id.
    pub next_id: AtomicU64,
    pub id_salt: u32,
}

pub(crate) fn routes(front: Arc<Front>) -> Router {
    Router::new()
        .route(Endpoint::Chat.path(), post(chat))
        .route(Endpoint::Completions.path(), post(completions))
        .route("/v1/models", get(models))
        .route("/health", get(health))
        .route("/metrics", get(metrics))
        .fallback(|| async { error_response(&ApiError::new(ErrorKind::NotFound, "There is no such path.")) })
        .method_not_allowed_fallback(wrong_method)
        .with_state(front)
}

async fn chat(State(front): State<Arc<Front>>, headers: HeaderMap, body: AxumBody) -> Response {
    generate(front, Endpoint::Chat, headers, body).await
}

async fn completions(State(front): State<Arc<Front>>, headers: HeaderMap, body: AxumBody) -> Response {
    generate(front, Endpoint::Completions, headers, body).await
}

async fn health(State(front): State<Arc<Front>>) -> StatusCode {
    if front.conductor.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

async fn models(State(front): State<Arc<Front>>) -> Response {
    let card = |(name, max_model_len): (String, u32)| ModelCard::new(&name, front.started_s, max_model_len);
    let list = ModelList::new(front.conductor.models().into_iter().map(card).collect());
    axum::Json(list).into_response()
}

async fn metrics(State(front): State<Arc<Front>>) -> Response {
    let text = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    ([(CONTENT_TYPE, text)], front.conductor.render_metrics()).into_response()
}

async fn wrong_method() -> Response {
    let error = ApiError::new(ErrorKind::BadRequest, "This path does not take this method.");
    json_response(StatusCode::METHOD_NOT_ALLOWED, error.to_json())
}

async fn generate(front: Arc<Front>, endpoint: Endpoint, headers: HeaderMap, body: AxumBody) -> Response {
    let id = front.answer_id(&headers);
    let mut response = match front.read(endpoint, &headers, body).await {
        Ok(arrival) => front.route(id.to_str().unwrap_or_default(), arrival).await,
        Err(error) => error_response(&error),
    };
    response.headers_mut().insert(X_REQUEST_ID, id);
    response
}

impl Front {
    /// The client's own id, or one of ours.
    fn answer_id(&self, headers: &HeaderMap) -> HeaderValue {
        let clients = headers.get(X_REQUEST_ID);
        let usable = |id: &&HeaderValue| id.len() <= MAX_CLIENT_ID_BYTES && id.to_str().is_ok();
        clients.filter(usable).cloned().unwrap_or_else(|| {
            let n = self.next_id.fetch_add(1, Ordering::Relaxed);
            HeaderValue::try_from(format!("req-{:08x}-{n}", self.id_salt)).expect("hex digits")
        })
    }

    /// Reads a request and takes out what is not a client's to say. Values are left to the engines to judge.
    async fn read(
        &self,
        endpoint: Endpoint,
        headers: &HeaderMap,
        body: AxumBody,
    ) -> Result<Arrival, ApiError> {
        let text = self.collect(body).await?;
        let mut body = Body::parse(text, self.max_body_bytes)?;
        body.strip_internal()?;
        let (model, streaming) = (body.model()?, body.stream()?);
        let prompts = u32::try_from(body.prompt_count()).unwrap_or(u32::MAX);
        let sequences = body.n()?.saturating_mul(prompts);
        let id = ConversationId::take(&mut body, headers)?;
        let headers = forwarded_headers(headers, self.tenant_header.as_ref());
        let tenant = headers.get(X_BATON_TENANT);
        let turn = self.conversations.as_ref();
        let turn =
            turn.and_then(|hasher| hasher.turn(endpoint, &body, model.as_deref(), tenant, id.as_ref()));
        Ok(Arrival { ask: Ask { endpoint, body, streaming, headers }, model, sequences, turn })
    }

    async fn collect(&self, body: AxumBody) -> Result<Bytes, ApiError> {
        let limited = Limited::new(body, self.max_body_bytes);
        let late = |_| ApiError::new(ErrorKind::BadRequest, "The request body did not come in time.");
        let collected = tokio::time::timeout(self.body_timeout, limited.collect()).await.map_err(late)?;
        let collected = collected.map_err(|error| {
            if error.is::<LengthLimitError>() {
                let message = format!("The request body has more than {} bytes.", self.max_body_bytes);
                return ApiError::new(ErrorKind::BodyTooLarge, message);
            }
            ApiError::new(ErrorKind::BadRequest, "The request body could not be read.")
        })?;
        Ok(collected.to_bytes())
    }

    /// `client_id` is for the log and the timeline: nothing else knows both ids.
    async fn route(&self, client_id: &str, arrival: Arrival) -> Response {
        let model = arrival.model.clone();
        let (guard, begin) = self.conductor.arrive(arrival, client_id);
        tracing::info!(client_id, request = ?guard.request, "arrived");
        match begin.await {
            Ok(Begin::Answer { bytes, end, served_by }) => {
                let mut response = match bytes {
                    AnswerBytes::Whole(text) => {
                        // The leg's end follows its only bytes at once. Until then the client is not to look gone.
                        let _ = end.await;
                        drop(guard);
                        json_response(StatusCode::OK, text)
                    }
                    AnswerBytes::Stream(events) => event_stream(StreamBody::new(events, end, guard)),
                };
                if self.expose_served_by
                    && let Ok(value) = HeaderValue::try_from(served_by.to_text())
                {
                    response.headers_mut().insert(SERVED_BY, value);
                }
                response
            }
            Ok(Begin::End { refusal: Some(refusal), end: RequestEnd::Failed(Failure::Refused { .. }) }) => {
                refusal.into_response()
            }
            Ok(Begin::End { end: RequestEnd::Failed(failure), .. }) => {
                error_response(&api_error(failure, model.as_deref()))
            }
            // The client is gone, or the router shuts down: nobody reads this.
            Ok(Begin::End { .. }) | Err(_) => error_response(&api_error(Failure::EngineFailed, None)),
        }
    }
}

fn event_stream(body: StreamBody) -> Response {
    let mut response = Response::new(AxumBody::new(body));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Reverse proxies that buffer would undo the streaming.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}
