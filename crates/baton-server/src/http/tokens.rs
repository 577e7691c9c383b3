//! `/tokenize` and `/detokenize`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use baton_openai::tokenize::{
    DetokenizeRequest, DetokenizeResponse, TokenizeInput, TokenizeRequest, TokenizeResponse,
};
use baton_openai::{ApiError, Body, Prompt};
use bytes::Bytes;

use super::{json_response, read_body, respond, with_body};
use crate::app::{App, Serving};

pub(super) async fn tokenize(State(app): State<Arc<App>>, request: Request) -> Response {
    respond(answer(app, request, read_and_tokenize).await)
}

pub(super) async fn detokenize(State(app): State<Arc<App>>, request: Request) -> Response {
    respond(answer(app, request, read_and_detokenize).await)
}

async fn answer(
    app: Arc<App>,
    request: Request,
    work: fn(&Serving, &Body) -> Result<Response, ApiError>,
) -> Result<Response, ApiError> {
    app.open()?;
    let place = app.place()?;
    let limit = app.max_body_bytes;
    let body = read_body(request, limit).await?;
    let read = move |body: Bytes| work(app.serving()?, &Body::parse(body, limit)?);
    let (response, _place) = with_body(body, place, read).await?;
    Ok(response)
}

fn read_and_tokenize(serving: &Serving, body: &Body) -> Result<Response, ApiError> {
    let request = TokenizeRequest::read(body)?;
    serving.check_model(request.model.as_deref())?;
    let tokens = match request.input {
        TokenizeInput::Text { prompt, add_special_tokens } => {
            serving.text.encode(&prompt, add_special_tokens)?
        }
        TokenizeInput::Chat(prompt) => serving.text.encode_chat(&prompt)?,
    };
    let texts = || tokens.iter().map(|token| serving.text.token_text(*token)).collect();
    Ok(json_response(&TokenizeResponse {
        count: u32::try_from(tokens.len()).unwrap_or(u32::MAX),
        max_model_len: serving.info.max_model_len,
        token_strs: request.return_token_strs.then(texts),
        tokens,
    }))
}

fn read_and_detokenize(serving: &Serving, body: &Body) -> Result<Response, ApiError> {
    let request = DetokenizeRequest::read(body)?;
    serving.check_model(request.model.as_deref())?;
    let tokens = Prompt::Tokens(request.tokens);
    tokens.check_vocabulary(serving.vocab)?;
    let Prompt::Tokens(tokens) = tokens else { unreachable!("made above") };
    Ok(json_response(&DetokenizeResponse { prompt: serving.text.decode(&tokens) }))
}
