//! vLLM's `/tokenize` and `/detokenize`.

use baton_types::TokenId;
use serde::{Deserialize, Serialize};

use crate::body::Body;
use crate::chat::ChatPrompt;
use crate::error::ApiError;

/// A text or a conversation to tokenise.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenizeRequest {
    pub model: Option<String>,
    pub input: TokenizeInput,
    /// Give the tokens' texts as well.
    pub return_token_strs: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum TokenizeInput {
    /// Special tokens are added around the text unless the client says otherwise. The text may be empty.
    Text {
        prompt: String,
        add_special_tokens: bool,
    },
    Chat(ChatPrompt),
}

impl TokenizeRequest {
    /// # Errors
    /// A 400 unless there is exactly one of `prompt` and `messages`, both as in the other endpoints.
    pub fn read(body: &Body) -> Result<Self, ApiError> {
        let prompt: Option<String> = body.read("prompt")?;
        let input = match (prompt, body.contains("messages")) {
            (Some(prompt), false) => TokenizeInput::Text {
                prompt,
                add_special_tokens: body.read("add_special_tokens")?.unwrap_or(true),
            },
            (None, true) => TokenizeInput::Chat(ChatPrompt::read(body)?),
            _ => {
                return Err(ApiError::bad_param("prompt", "Exactly one of prompt and messages is required."));
            }
        };
        Ok(Self {
            model: body.model()?,
            input,
            return_token_strs: body.read("return_token_strs")?.unwrap_or(false),
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenizeResponse {
    pub count: u32,
    pub max_model_len: u32,
    pub tokens: Vec<TokenId>,
    #[serde(default)]
    pub token_strs: Option<Vec<String>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DetokenizeRequest {
    pub model: Option<String>,
    pub tokens: Vec<TokenId>,
}

impl DetokenizeRequest {
    /// # Errors
    /// A 400 if `tokens` is absent or no list of ids.
    pub fn read(body: &Body) -> Result<Self, ApiError> {
        let tokens: Option<Vec<TokenId>> = body.read("tokens")?;
        let tokens = tokens.ok_or_else(|| ApiError::bad_param("tokens", "tokens is required."))?;
        Ok(Self { model: body.model()?, tokens })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DetokenizeResponse {
    pub prompt: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(json: &str) -> Body {
        Body::parse(json.to_owned().into(), 10_000).unwrap()
    }

    #[test]
    fn a_text_or_a_chat_but_not_both() {
        let text = TokenizeRequest::read(&body(r#"{"prompt":"a"}"#)).unwrap();
        assert_eq!(text.input, TokenizeInput::Text { prompt: "a".into(), add_special_tokens: true });
        let chat = r#"{"messages":[{"role":"user","content":"a"}],"add_generation_prompt":false}"#;
        let TokenizeInput::Chat(prompt) = TokenizeRequest::read(&body(chat)).unwrap().input else {
            panic!("a chat")
        };
        assert!(!prompt.add_generation_prompt && !prompt.add_special_tokens);
        for bad in ["{}", r#"{"prompt":"a","messages":[{"role":"user","content":"a"}]}"#, r#"{"prompt":5}"#] {
            assert_eq!(TokenizeRequest::read(&body(bad)).unwrap_err().status(), 400, "{bad}");
        }
    }

    #[test]
    fn ids_are_ids() {
        let request = DetokenizeRequest::read(&body(r#"{"tokens":[1,2]}"#)).unwrap();
        assert_eq!(request.tokens, [TokenId(1), TokenId(2)]);
        for bad in ["{}", r#"{"tokens":[-1]}"#, r#"{"tokens":["a"]}"#] {
            assert_eq!(
                DetokenizeRequest::read(&body(bad)).unwrap_err().param.as_deref(),
                Some("tokens"),
                "{bad}"
            );
        }
    }
}
