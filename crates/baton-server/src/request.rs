//! From a body to what the engine is asked: parsing, tokenising, limits.

use baton_engine::{HandOff, Request};
use baton_openai::chat::ChatPrompt;
use baton_openai::{ApiError, Body, ChatRequest, CompletionRequest, Endpoint, Generation, Prompt};
use baton_types::{CacheSalt, SeqId};
use bytes::Bytes;

use crate::answer_text::TextLimits;
use crate::app::Serving;
use crate::hand_off;
use crate::random::draw_u64;
use crate::reuse;

/// A request that may be submitted, and how its answer is to be written.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub request: Request,
    pub limits: TextLimits,
    pub stream: bool,
    pub include_usage: bool,
    pub return_token_ids: bool,
}

/// Takes as long as the body is: not for an async thread if it is large.
///
/// # Errors
/// A 4xx that says what is wrong with the request.
pub(crate) fn prepare(
    serving: &Serving,
    endpoint: Endpoint,
    body: Bytes,
    tenant: String,
    max_body_bytes: usize,
) -> Result<Prepared, ApiError> {
    let body = Body::parse(body, max_body_bytes)?;
    let (prompt, generation) = match endpoint {
        Endpoint::Chat => {
            let chat = ChatRequest::read(&body)?;
            serving.check_model(chat.model.as_deref())?;
            (Input::Chat(chat.prompt), chat.generation)
        }
        Endpoint::Completions => {
            let completion = CompletionRequest::read(&body)?;
            serving.check_model(completion.model.as_deref())?;
            (Input::Prompt(completion.prompt, completion.add_special_tokens), completion.generation)
        }
    };
    let hand_off = hand_off::read(generation.kv_transfer_params.as_ref())?;
    let reuse = reuse::read(generation.kv_transfer_params.as_ref(), &hand_off)?;
    let prompt = match prompt {
        Input::Chat(chat) => serving.text.encode_chat(&chat)?,
        Input::Prompt(Prompt::Tokens(tokens), _) => tokens,
        Input::Prompt(Prompt::Text(text), add_special_tokens) => {
            serving.text.encode(&text, add_special_tokens)?
        }
    };
    // Whoever wrote them: a runner knows no other ids.
    let prompt = Prompt::Tokens(prompt);
    prompt.check_vocabulary(serving.vocab)?;
    let Prompt::Tokens(prompt) = prompt else { unreachable!("made above") };
    let mut prepared = finish(serving, prompt, generation, hand_off, tenant)?;
    prepared.request.reuse = reuse.map(Box::new);
    Ok(prepared)
}

enum Input {
    Chat(ChatPrompt),
    Prompt(Prompt, bool),
}

fn finish(
    serving: &Serving,
    prompt: Vec<baton_types::TokenId>,
    mut generation: Generation,
    hand_off: HandOff,
    tenant: String,
) -> Result<Prepared, ApiError> {
    let source = matches!(hand_off, HandOff::ToPeer { .. });
    if source {
        // The prompt and one token; where the answer ends is for the decode leg to see, which sees that token
        // too.
        (generation.max_tokens, generation.min_tokens) = (Some(1), 0);
        generation.stop.clear();
    }
    let max_tokens = generation.answer_limit(prompt.len(), serving.max_len)?;
    let stop_tokens = if generation.ignore_eos { Vec::new() } else { serving.eos.clone() };
    let salt = CacheSalt {
        tenant,
        client: generation.cache_salt.clone().unwrap_or_default(),
        // The core fills in the model (I13).
        ..CacheSalt::default()
    };
    Ok(Prepared {
        request: Request {
            // The inbox gives it.
            seq: SeqId(0),
            prompt,
            salt,
            max_tokens,
            min_tokens: generation.min_tokens,
            stop_tokens: stop_tokens.clone(),
            sampling: generation.sampling(draw_u64()),
            reuse: None,
            retention: reuse::retention(serving),
            hand_off,
        },
        limits: TextLimits { stop_strings: generation.stop, min_tokens: generation.min_tokens, stop_tokens },
        stream: generation.stream,
        include_usage: generation.include_usage,
        return_token_ids: generation.return_token_ids,
    })
}
