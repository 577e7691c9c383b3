//! The model's text: prompts to tokens, tokens to text.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use baton_model::chat_template::{ChatTemplate, ChatTemplateError, Conversation};
use baton_model::detokenizer::Detokenizer;
use baton_model::tokenizer::Tokenizer;
use baton_openai::chat::ChatPrompt;
use baton_openai::{ApiError, ErrorKind};
use baton_types::TokenId;

use crate::byte_tokenizer::ByteTokenizer;
use crate::utf8::Utf8Assembler;

/// Immutable, shared by all requests.
#[derive(Debug)]
pub(crate) enum Text {
    /// The emulated model's.
    Bytes(ByteTokenizer),
    Model {
        tokenizer: Arc<Tokenizer>,
        /// Absent in base models: they have completions only.
        template: Option<Box<ChatTemplate>>,
    },
}

impl Text {
    /// # Errors
    /// A 400 if the tokenizer has no way to write the text.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<TokenId>, ApiError> {
        match self {
            Self::Bytes(tokenizer) => Ok(tokenizer.encode(text)),
            Self::Model { tokenizer, .. } => encode(tokenizer, text, add_special_tokens),
        }
    }

    /// The tokens of a conversation.
    ///
    /// # Errors
    /// A 400 if the model has no chat template, or its template refuses the conversation.
    pub fn encode_chat(&self, prompt: &ChatPrompt) -> Result<Vec<TokenId>, ApiError> {
        match self {
            Self::Bytes(tokenizer) => Ok(tokenizer.encode(&join(prompt))),
            Self::Model { tokenizer, template } => {
                let template = template.as_ref().ok_or_else(|| chat_error(&ChatTemplateError::Absent))?;
                let text = template
                    .render(Conversation {
                        messages: &prompt.template_messages(),
                        add_generation_prompt: prompt.add_generation_prompt,
                        kwargs: &prompt.chat_template_kwargs,
                        now_unix_s: SystemTime::now()
                            .duration_since(UNIX_EPOCH)
                            .map_or(0, |since| since.as_secs()),
                    })
                    .map_err(|error| chat_error(&error))?;
                encode(tokenizer, &text, prompt.add_special_tokens)
            }
        }
    }

    /// The text of `tokens`, special ones written out.
    pub fn decode(&self, tokens: &[TokenId]) -> String {
        match self {
            Self::Bytes(tokenizer) => tokenizer.decode(tokens),
            Self::Model { tokenizer, .. } => tokenizer.decode(tokens, false),
        }
    }

    pub fn decoder(&self) -> Decoder {
        match self {
            Self::Bytes(tokenizer) => Decoder::Bytes(*tokenizer, Utf8Assembler::default()),
            Self::Model { tokenizer, .. } => Decoder::Model(Detokenizer::new(tokenizer.clone())),
        }
    }

    /// The token as the vocabulary writes it.
    pub fn token_text(&self, token: TokenId) -> String {
        match self {
            Self::Bytes(tokenizer) => tokenizer.decode(&[token]),
            Self::Model { tokenizer, .. } => tokenizer.token_text(token).unwrap_or_default(),
        }
    }

    pub fn vocab_size(&self) -> usize {
        match self {
            Self::Bytes(tokenizer) => tokenizer.vocab_size(),
            Self::Model { tokenizer, .. } => tokenizer.vocab_size(),
        }
    }

    /// The tokens that end an answer.
    pub fn eos(&self) -> &[TokenId] {
        match self {
            Self::Bytes(_) => &[],
            Self::Model { tokenizer, .. } => tokenizer.eos(),
        }
    }
}

/// One answer's text, piece by piece; a piece never has half a character.
#[derive(Debug)]
pub(crate) enum Decoder {
    Bytes(ByteTokenizer, Utf8Assembler),
    Model(Detokenizer),
}

impl Decoder {
    pub fn push(&mut self, token: TokenId) -> String {
        match self {
            Self::Bytes(tokenizer, assembler) => assembler.push(&tokenizer.token_bytes(token)),
            Self::Model(detokenizer) => detokenizer.push(token),
        }
    }

    pub fn finish(&mut self) -> String {
        match self {
            Self::Bytes(_, assembler) => assembler.finish(),
            Self::Model(detokenizer) => detokenizer.finish(),
        }
    }
}

fn encode(tokenizer: &Tokenizer, text: &str, add_special_tokens: bool) -> Result<Vec<TokenId>, ApiError> {
    tokenizer.encode(text, add_special_tokens).map_err(|error| {
        tracing::info!(%error, "a prompt cannot be tokenised");
        ApiError::bad_param("prompt", "The prompt cannot be written in this model's tokens.")
    })
}

/// A template's refusal is for the client to read; its failures are for the log.
fn chat_error(error: &ChatTemplateError) -> ApiError {
    match error {
        ChatTemplateError::Refused(message) => ApiError::bad_param("messages", message.as_str()),
        ChatTemplateError::Absent | ChatTemplateError::Reserved(_) | ChatTemplateError::TooMuch => {
            ApiError::bad_param("messages", format!("The conversation cannot be rendered: {error}."))
        }
        ChatTemplateError::Compile(_) | ChatTemplateError::Render(_) | ChatTemplateError::File(_) => {
            tracing::warn!(%error, "a conversation cannot be rendered");
            ApiError::new(ErrorKind::BadRequest, "The model's chat template cannot render these messages.")
        }
    }
}

/// The emulated model's chat template.
fn join(prompt: &ChatPrompt) -> String {
    let mut text = String::new();
    for message in &prompt.messages {
        let content = message.content.as_ref().map(|content| content.to_text()).unwrap_or_default();
        text.push_str(&format!("{}: {content}\n", message.role));
    }
    if prompt.add_generation_prompt {
        text.push_str("assistant:");
    }
    text
}
