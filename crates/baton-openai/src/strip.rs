//! Taking out of an answer what is for the router only. The bytes around it stay what they were.

use baton_types::TokenId;
use bytes::{BufMut, Bytes, BytesMut};
use serde_json::value::RawValue;

use crate::body::{Body, BodyError, RawJson};
use crate::legs::KV_TRANSFER_PARAMS;

/// Takes the handle, and whatever else speaks of transfers, out of an answer or a chunk. The handle is `None` if it was
/// absent or null.
///
/// # Errors
/// If the answer is no JSON object; it must then not reach a client.
pub fn strip_handle(answer: Bytes) -> Result<(Bytes, Option<RawJson>), BodyError> {
    let mut body = Body::parse(answer.clone(), usize::MAX)?;
    let handle = body.remove(KV_TRANSFER_PARAMS);
    let other = body.remove("ec_transfer_params");
    let clean = if handle.is_some() || other.is_some() { body.to_bytes() } else { answer };
    Ok((clean, handle.filter(|handle| !handle.is_null())))
}

/// The ids that `return_token_ids` adds to answers, for a router that asked for them on its own account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnswerTokens {
    /// `None` if this answer or chunk does not have them; in a stream the first chunk does.
    pub prompt: Option<Vec<TokenId>>,
    pub answer: Vec<TokenId>,
}

const PROMPT_IDS: &str = "prompt_token_ids";
const ANSWER_IDS: &str = "token_ids";

/// Takes the ids of prompt and answer out of an answer or a chunk with at most one choice, and leaves null, as vLLM writes
/// where nobody asked.
///
/// # Errors
/// If the answer is no JSON object, or the ids are no ids.
pub fn strip_token_ids(answer: Bytes) -> Result<(Bytes, AnswerTokens), BodyError> {
    let mut body = Body::parse(answer.clone(), usize::MAX)?;
    let mut tokens = AnswerTokens { prompt: take_ids(&mut body, PROMPT_IDS)?, answer: Vec::new() };
    let mut changed = tokens.prompt.is_some();
    if let Some((before, mut choice, after)) = only_choice(&body)? {
        let prompt = take_ids(&mut choice, PROMPT_IDS)?;
        let ids = take_ids(&mut choice, ANSWER_IDS)?;
        if prompt.is_some() || ids.is_some() {
            changed = true;
            tokens.prompt = tokens.prompt.or(prompt);
            tokens.answer = ids.unwrap_or_default();
            let mut choices = BytesMut::with_capacity(before.len() + choice.len() + after.len());
            choices.put_slice(&before);
            choices.put_slice(&choice.to_bytes());
            choices.put_slice(&after);
            body.set("choices", RawJson::parse(choices.freeze())?);
        }
    }
    Ok((if changed { body.to_bytes() } else { answer }, tokens))
}

fn take_ids(body: &mut Body, name: &str) -> Result<Option<Vec<TokenId>>, BodyError> {
    let Some(value) = body.get(name).filter(|value| !value.is_null()) else { return Ok(None) };
    let ids = value.read().map_err(|error| BodyError::Json(error.to_string()))?;
    body.set(name, RawJson::NULL);
    Ok(Some(ids))
}

/// The one element of `choices`, with the bytes of the list before and after it; `None` if there is none or more.
fn only_choice(body: &Body) -> Result<Option<(Bytes, Body, Bytes)>, BodyError> {
    let Some(choices) = body.get("choices").map(RawJson::as_bytes) else { return Ok(None) };
    let all: Vec<&RawValue> =
        serde_json::from_slice(choices).map_err(|error| BodyError::Json(error.to_string()))?;
    let [only] = all.as_slice() else { return Ok(None) };
    let text = choices.slice_ref(only.get().as_bytes());
    let start = text.as_ptr() as usize - choices.as_ptr() as usize;
    let end = start + text.len();
    Ok(Some((choices.slice(..start), Body::parse(text, usize::MAX)?, choices.slice(end..))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(ids: &[u32]) -> Vec<TokenId> {
        ids.iter().copied().map(TokenId).collect()
    }

    fn strip(text: &str) -> (String, AnswerTokens) {
        let (clean, tokens) = strip_token_ids(Bytes::copy_from_slice(text.as_bytes())).unwrap();
        (String::from_utf8(clean.to_vec()).unwrap(), tokens)
    }

    #[test]
    fn a_chats_ids_are_taken() {
        let (clean, tokens) = strip(
            r#"{"choices": [ {"m": 1.0, "token_ids": [3, 4]} ], "prompt_token_ids": [1, 2], "x": null}"#,
        );
        assert_eq!(
            clean,
            r#"{"choices": [ {"m": 1.0, "token_ids": null} ], "prompt_token_ids": null, "x": null}"#
        );
        assert_eq!(tokens, AnswerTokens { prompt: Some(ids(&[1, 2])), answer: ids(&[3, 4]) });
    }

    #[test]
    fn a_completions_ids_are_taken() {
        let (clean, tokens) =
            strip(r#"{"choices":[{"prompt_token_ids":[1],"token_ids":[2],"text":"\u00e9"}]}"#);
        assert_eq!(clean, r#"{"choices":[{"prompt_token_ids":null,"token_ids":null,"text":"\u00e9"}]}"#);
        assert_eq!(tokens, AnswerTokens { prompt: Some(ids(&[1])), answer: ids(&[2]) });
    }

    #[test]
    fn an_answer_without_ids_is_not_touched() {
        for same in [
            r#"{"choices": [], "usage": {}}"#,
            r#"{"error": {"message": "token_ids"}}"#,
            r#"{"choices":[{"token_ids":null, "delta":{}}]}"#,
            r#"{"choices":[{"token_ids":[1]},{"token_ids":[2]}]}"#,
        ] {
            assert_eq!(strip(same), (same.to_owned(), AnswerTokens::default()));
        }
    }

    #[test]
    fn what_is_no_answer_is_an_error() {
        for bad in ["", "[]", r#"{"choices":{}}"#, r#"{"choices":[1]}"#, r#"{"prompt_token_ids":"x"}"#] {
            assert!(strip_token_ids(Bytes::from_static(bad.as_bytes())).is_err(), "{bad}");
        }
    }
}
