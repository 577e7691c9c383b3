//! `/v1/chat/completions` and `/v1/completions`.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use baton_openai::answer::ReturnedIds;
use baton_openai::{Answer, ApiError, Endpoint, ErrorKind, SseEncoder};
use baton_trace::TraceParent;
use baton_types::TokenId;
use bytes::{Bytes, BytesMut};

use super::{json_response, read_body, respond, with_body};
use crate::app::App;
use crate::exchange::{End, Exchange, Step};
use crate::random::draw_u128;
use crate::request;
use crate::timeline::Origin;

/// Whose request this is. Whoever stands in front of the engine says so; KV is never shared between tenants
/// (I13).
const TENANT_HEADER: &str = "x-baton-tenant";
const MAX_TENANT_BYTES: usize = 256;
/// What its client calls a request; in timelines only.
const REQUEST_ID_HEADER: &str = "x-request-id";
const MAX_REQUEST_ID_BYTES: usize = 256;

pub(super) async fn chat(State(app): State<Arc<App>>, request: Request) -> Response {
    respond(generate(app, Endpoint::Chat, request).await)
}

pub(super) async fn completions(State(app): State<Arc<App>>, request: Request) -> Response {
    respond(generate(app, Endpoint::Completions, request).await)
}

async fn generate(app: Arc<App>, endpoint: Endpoint, request: Request) -> Result<Response, ApiError> {
    let origin = origin(request.headers());
    let model = app.open()?.info.model.clone();
    let place = app.place()?;
    let tenant = tenant(request.headers())?;
    let limit = app.max_body_bytes;
    let body = read_body(request, limit).await?;
    let reader = app.clone();
    let (prepared, place) = with_body(body, place, move |body| {
        request::prepare(reader.serving()?, endpoint, body, tenant, limit)
    })
    .await?;
    let how = How {
        answer: Answer { endpoint, id: endpoint.answer_id(draw_u128()), created: unix_now(), model },
        include_usage: prepared.include_usage,
        prompt_ids: prepared.return_token_ids.then(|| prepared.request.prompt.clone()),
    };
    let stream = prepared.stream;
    let exchange = Exchange::begin(app, prepared, place, origin)?;
    if stream { streamed(exchange, how).await } else { whole(exchange, how).await }
}

/// How an answer is to be written.
struct How {
    answer: Answer,
    include_usage: bool,
    /// Present if ids are to be returned.
    prompt_ids: Option<Vec<TokenId>>,
}

/// # Errors
/// A 400 if the header is no short text.
fn tenant(headers: &HeaderMap) -> Result<String, ApiError> {
    let Some(value) = headers.get(TENANT_HEADER) else { return Ok(String::new()) };
    match value.to_str() {
        Ok(text) if text.len() <= MAX_TENANT_BYTES => Ok(text.to_owned()),
        _ => Err(ApiError::new(
            ErrorKind::BadRequest,
            format!("The tenant header must have at most {MAX_TENANT_BYTES} ASCII characters."),
        )),
    }
}

/// What the headers say of where a request comes from that arrives now.
fn origin(headers: &HeaderMap) -> Origin {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let parent = text(TraceParent::HEADER).and_then(TraceParent::parse);
    let request_id = text(REQUEST_ID_HEADER).filter(|id| id.len() <= MAX_REQUEST_ID_BYTES).map(str::to_owned);
    Origin { arrived: Instant::now(), parent, request_id }
}

fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

async fn whole(mut exchange: Exchange, how: How) -> Result<Response, ApiError> {
    let (mut text, mut ids) = (String::new(), Vec::new());
    let end = loop {
        match exchange.next().await? {
            Step::Token { token, text: piece } => {
                ids.push(token);
                text.push_str(&piece);
            }
            Step::End(end) => break end,
        }
    };
    text.push_str(&end.text);
    let ids = how.prompt_ids.map(|prompt| ReturnedIds { prompt, answer: ids });
    Ok(json_response(&how.answer.whole(text, end.ending, end.usage, ids)))
}

/// Waits for the first step, so that whatever goes wrong before it has a status of its own.
async fn streamed(mut exchange: Exchange, how: How) -> Result<Response, ApiError> {
    let first = exchange.next().await?;
    let writer = StreamWriter { exchange, first: Some(first), how, encoder: Some(SseEncoder::new()) };
    // Dropped with the connection, and with it the exchange: the client's leaving is heard at once.
    let events = futures_util::stream::unfold(writer, StreamWriter::write);
    let mut response = Response::new(Body::from_stream(events));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}

struct StreamWriter {
    exchange: Exchange,
    /// The step that came before the headers went out, until it is written.
    first: Option<Step>,
    how: How,
    /// Gone once the stream has ended.
    encoder: Option<SseEncoder>,
}

impl StreamWriter {
    /// The next bytes of the stream.
    async fn write(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        let encoder = self.encoder.take()?;
        let mut out = BytesMut::new();
        let step = match self.first.take() {
            Some(step) => {
                if let Some(head) = self.how.answer.first(self.how.prompt_ids.clone()) {
                    out.extend_from_slice(&encoder.chunk(&head));
                }
                Ok(step)
            }
            None => self.next_to_say().await,
        };
        match step {
            Ok(Step::Token { token, text }) => {
                if self.says(&text) {
                    out.extend_from_slice(&encoder.chunk(&self.how.answer.delta(text, self.ids(token))));
                }
                self.encoder = Some(encoder);
            }
            Ok(Step::End(end)) => out.extend_from_slice(&self.finish(encoder, *end)),
            Err(error) => out.extend_from_slice(&encoder.fail(&error)),
        }
        Some((Ok(out.freeze()), self))
    }

    /// The next step that makes a chunk.
    async fn next_to_say(&mut self) -> Result<Step, ApiError> {
        loop {
            match self.exchange.next().await? {
                Step::Token { text, .. } if !self.says(&text) => {}
                step => return Ok(step),
            }
        }
    }

    fn says(&self, text: &str) -> bool {
        !text.is_empty() || self.how.prompt_ids.is_some()
    }

    fn ids(&self, token: TokenId) -> Option<Vec<TokenId>> {
        self.how.prompt_ids.as_ref().map(|_| vec![token])
    }

    fn finish(&self, encoder: SseEncoder, end: End) -> Bytes {
        let ids = self.how.prompt_ids.as_ref().map(|_| Vec::new());
        let mut out = BytesMut::new();
        out.extend_from_slice(&encoder.chunk(&self.how.answer.finish(end.text, ids, end.ending)));
        if self.how.include_usage {
            out.extend_from_slice(&encoder.chunk(&self.how.answer.usage(end.usage)));
        }
        out.extend_from_slice(&encoder.finish());
        out.freeze()
    }
}
