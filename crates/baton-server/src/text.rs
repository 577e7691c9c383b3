//! The model's text: prompts to tokens, tokens to text.

use baton_openai::ApiError;
use baton_openai::chat::ChatPrompt;
use baton_types::TokenId;

use crate::byte_tokenizer::ByteTokenizer;
use crate::utf8::Utf8Assembler;

/// Immutable, shared by all requests.
#[derive(Debug)]
pub(crate) enum Text {
    /// The emulated model's.
    Bytes(ByteTokenizer),
}

impl Text {
    /// # Errors
    /// A 400 if the tokenizer has no way to write the text.
    pub fn encode(&self, text: &str, _add_special_tokens: bool) -> Result<Vec<TokenId>, ApiError> {
        match self {
            Self::Bytes(tokenizer) => Ok(tokenizer.encode(text)),
        }
    }

    /// The tokens of a conversation.
    ///
    /// # Errors
    /// A 400 if the template refuses it.
    pub fn encode_chat(&self, prompt: &ChatPrompt) -> Result<Vec<TokenId>, ApiError> {
        match self {
            Self::Bytes(tokenizer) => Ok(tokenizer.encode(&join(prompt))),
        }
    }

    /// The text of `tokens`, special ones written out.
    pub fn decode(&self, tokens: &[TokenId]) -> String {
        match self {
            Self::Bytes(tokenizer) => tokenizer.decode(tokens),
        }
    }

    pub fn decoder(&self) -> Decoder {
        match self {
            Self::Bytes(tokenizer) => Decoder::Bytes(*tokenizer, Utf8Assembler::default()),
        }
    }

    pub fn vocab_size(&self) -> usize {
        match self {
            Self::Bytes(tokenizer) => tokenizer.vocab_size(),
        }
    }

    /// The tokens that end an answer.
    pub fn eos(&self) -> &[TokenId] {
        match self {
            Self::Bytes(_) => &[],
        }
    }
}

/// One answer's text, piece by piece; a piece never has half a character.
#[derive(Debug)]
pub(crate) enum Decoder {
    Bytes(ByteTokenizer, Utf8Assembler),
}

impl Decoder {
    pub fn push(&mut self, token: TokenId) -> String {
        match self {
            Self::Bytes(tokenizer, assembler) => assembler.push(&tokenizer.token_bytes(token)),
        }
    }

    pub fn finish(&mut self) -> String {
        match self {
            Self::Bytes(_, assembler) => assembler.finish(),
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
