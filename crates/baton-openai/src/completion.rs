//! `/v1/completions` as an engine reads it.

use baton_types::TokenId;
use serde::Deserialize;

use crate::body::Body;
use crate::error::ApiError;
use crate::generation::Generation;
use crate::refusals;

/// OpenAI's limit on the answer when the client gives none.
pub const DEFAULT_MAX_TOKENS: u32 = 16;

/// A validated completion request.
#[derive(Clone, Debug, PartialEq)]
pub struct CompletionRequest {
    pub model: Option<String>,
    pub prompt: Prompt,
    pub generation: Generation,
    /// Lets the tokenizer add what it adds around a text (BOS for Llama). On unless the client says otherwise; nothing is
    /// added to token ids.
    pub add_special_tokens: bool,
}

/// The one prompt of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    Text(String),
    /// At least one; ids are not checked against a vocabulary yet.
    Tokens(Vec<TokenId>),
}

impl CompletionRequest {
    /// # Errors
    /// A 400 in OpenAI's shape: wrong types, values out of range, or a feature that Baton does not have.
    pub fn read(body: &Body) -> Result<Self, ApiError> {
        refusals::check(body)?;
        let prompt: Option<PromptWire> = body.read("prompt")?;
        Ok(Self {
            model: body.model()?,
            prompt: prompt.ok_or_else(|| ApiError::bad_param("prompt", "prompt is required."))?.only_one()?,
            generation: Generation::read(body, Some(DEFAULT_MAX_TOKENS))?,
            add_special_tokens: body.read("add_special_tokens")?.unwrap_or(true),
        })
    }
}

impl Prompt {
    /// # Errors
    /// A 400 if an id is outside a vocabulary of `vocab_size`.
    pub fn check_vocabulary(&self, vocab_size: usize) -> Result<(), ApiError> {
        let Self::Tokens(tokens) = self else { return Ok(()) };
        match tokens.iter().find(|token| token.0 as usize >= vocab_size) {
            None => Ok(()),
            Some(token) => {
                let message = format!("Token id {} is out of the vocabulary of {vocab_size}.", token.0);
                Err(ApiError::bad_param("prompt", message))
            }
        }
    }
}

/// OpenAI's four forms.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "prompt must be a string or a list of token ids, or a list with one of them")]
pub(crate) enum PromptWire {
    Text(String),
    Tokens(Vec<TokenId>),
    Texts(Vec<String>),
    TokenLists(Vec<Vec<TokenId>>),
}

impl PromptWire {
    /// # Errors
    /// A 400 if there are no or several prompts, or if the prompt is empty.
    pub(crate) fn only_one(self) -> Result<Prompt, ApiError> {
        let prompt = match self {
            Self::Text(text) => Prompt::Text(text),
            Self::Tokens(tokens) => Prompt::Tokens(tokens),
            Self::Texts(texts) => Prompt::Text(only(texts)?),
            Self::TokenLists(lists) => Prompt::Tokens(only(lists)?),
        };
        let empty = match &prompt {
            Prompt::Text(text) => text.is_empty(),
            Prompt::Tokens(tokens) => tokens.is_empty(),
        };
        if empty {
            return Err(ApiError::bad_param("prompt", "prompt must not be empty."));
        }
        Ok(prompt)
    }
}

/// Several prompts would have to share one hand-off; nobody could say whose KV it carries.
fn only<T>(prompts: Vec<T>) -> Result<T, ApiError> {
    let count = prompts.len();
    let mut prompts = prompts.into_iter();
    match (prompts.next(), prompts.next()) {
        (Some(prompt), None) => Ok(prompt),
        _ => Err(ApiError::unsupported(
            "prompt",
            format!("A request must have exactly one prompt, got {count}."),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(prompt: &str) -> Result<CompletionRequest, ApiError> {
        let json = format!(r#"{{"prompt":{prompt}}}"#);
        CompletionRequest::read(&Body::parse(json.into(), 10_000)?)
    }

    fn tokens(ids: &[u32]) -> Prompt {
        Prompt::Tokens(ids.iter().copied().map(TokenId).collect())
    }

    #[test]
    fn one_prompt_in_its_four_forms() {
        assert_eq!(read(r#""a""#).unwrap().prompt, Prompt::Text("a".into()));
        assert_eq!(read(r#"["a"]"#).unwrap().prompt, Prompt::Text("a".into()));
        assert_eq!(read("[1,2]").unwrap().prompt, tokens(&[1, 2]));
        assert_eq!(read("[[1,2]]").unwrap().prompt, tokens(&[1, 2]));
        assert_eq!(read(r#""a""#).unwrap().generation.max_tokens, Some(16));
    }

    #[test]
    fn other_prompts_are_refused() {
        for prompt in [
            "null",
            r#""""#,
            "[]",
            r#"["a","b"]"#,
            "[[1],[2]]",
            "[[]]",
            "[-1]",
            "[1.5]",
            "[\"a\",1]",
            "{}",
            "7",
        ] {
            let error = read(prompt).unwrap_err();
            assert_eq!((error.status(), error.param.as_deref()), (400, Some("prompt")), "{prompt}");
        }
        assert!(read(r#"["a","b"]"#).unwrap_err().message.contains("exactly one prompt, got 2"));
    }

    #[test]
    fn ids_outside_the_vocabulary_are_refused() {
        assert!(tokens(&[0, 9]).check_vocabulary(10).is_ok());
        assert!(tokens(&[0, 10]).check_vocabulary(10).unwrap_err().message.contains("10"));
    }
}
