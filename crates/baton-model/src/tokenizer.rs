//! Text to tokens and back, from a Hugging Face `tokenizer.json` or from the vocabulary inside a GGUF file.

mod gguf_vocabulary;
mod special;
mod token_bytes;

use std::path::Path;

use baton_types::TokenId;
pub use gguf_vocabulary::GgufVocabulary;
pub use special::SpecialTokens;
pub(crate) use special::{read_json, token_name};
use token_bytes::TokenBytes;

/// Why there is no tokenizer, or no tokens.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenizerError {
    #[error("{path}: {reason}")]
    File { path: String, reason: String },
    #[error("the tokenizer cannot be built: {0}")]
    Build(String),
    #[error("tokenizer.ggml.model is {0:?}; only \"gpt2\" (byte-level BPE) is supported")]
    VocabularyKind(String),
    #[error("tokenizer.ggml.pre is {0:?}; supported are {known}", known = gguf_vocabulary::PreTokenizer::NAMES)]
    PreTokenizer(String),
    #[error("the decoder {0} is not supported; ByteLevel, Metaspace and byte fallback are")]
    Decoder(String),
    #[error("the text cannot be tokenised: {0}")]
    Encode(String),
}

/// A model's tokenizer. Immutable, and so shared by all requests.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    bytes: TokenBytes,
    special: SpecialTokens,
}

impl Tokenizer {
    /// From the text of a `tokenizer.json`.
    ///
    /// # Errors
    /// If the file is not valid, or decodes in a way that is not supported.
    pub fn from_json(json: &[u8], special: SpecialTokens) -> Result<Self, TokenizerError> {
        let mut inner =
            tokenizers::Tokenizer::from_bytes(json).map_err(|e| TokenizerError::Build(e.to_string()))?;
        // A prompt is never cut or padded behind the client's back.
        inner.with_truncation(None).map_err(|e| TokenizerError::Build(e.to_string()))?;
        inner.with_padding(None);
        let bytes = TokenBytes::of(&inner, json)?;
        Ok(Self { inner, bytes, special })
    }

    /// From a checkpoint's directory: `tokenizer.json`, and the special tokens from the files beside it.
    ///
    /// # Errors
    /// If `tokenizer.json` is absent or not valid.
    pub fn from_directory(directory: &Path) -> Result<Self, TokenizerError> {
        let path = directory.join("tokenizer.json");
        let json = std::fs::read(&path)
            .map_err(|e| TokenizerError::File { path: path.display().to_string(), reason: e.to_string() })?;
        let mut tokenizer = Self::from_json(&json, SpecialTokens::default())?;
        tokenizer.special = SpecialTokens::from_directory(directory, |text| tokenizer.token_id(text))?;
        Ok(tokenizer)
    }

    /// From a GGUF file's own vocabulary.
    ///
    /// # Errors
    /// If its kind or pre-tokenizer is not supported, or its parts do not fit together.
    pub fn from_gguf(vocabulary: &GgufVocabulary) -> Result<Self, TokenizerError> {
        Self::from_json(&vocabulary.to_tokenizer_json()?, vocabulary.special_tokens())
    }

    /// `add_special_tokens` lets the tokenizer add what it adds around a text (BOS for Llama). Special tokens that are
    /// written out in `text` become their ids either way, as in vLLM.
    ///
    /// # Errors
    /// If the tokenizer has no way to write the text.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<TokenId>, TokenizerError> {
        let encoding = self
            .inner
            .encode_fast(text, add_special_tokens)
            .map_err(|e| TokenizerError::Encode(e.to_string()))?;
        Ok(encoding.get_ids().iter().copied().map(TokenId).collect())
    }

    /// The text of `tokens` on their own. Bytes that are not UTF-8 become U+FFFD; ids outside the vocabulary are skipped.
    pub fn decode(&self, tokens: &[TokenId], skip_special_tokens: bool) -> String {
        let mut bytes = Vec::new();
        for &token in tokens {
            if skip_special_tokens && self.is_special(token) {
                continue;
            }
            bytes.extend_from_slice(self.token_bytes(token));
        }
        let start = usize::from(self.bytes.strips_first_space() && bytes.first() == Some(&b' '));
        String::from_utf8_lossy(&bytes[start..]).into_owned()
    }

    /// What a token adds to a text; empty for ids outside the vocabulary.
    pub fn token_bytes(&self, token: TokenId) -> &[u8] {
        self.bytes.get(token)
    }

    /// Whether a token steers the model rather than being text, such as EOS.
    pub fn is_special(&self, token: TokenId) -> bool {
        self.bytes.is_special(token)
    }

    /// The token as the vocabulary writes it (`Ġhello`).
    pub fn token_text(&self, token: TokenId) -> Option<String> {
        self.inner.id_to_token(token.0)
    }

    pub fn token_id(&self, text: &str) -> Option<TokenId> {
        self.inner.token_to_id(text).map(TokenId)
    }

    /// One more than the highest id. A model's output may be wider: such rows are padding.
    pub fn vocab_size(&self) -> usize {
        self.bytes.len()
    }

    pub fn bos(&self) -> Option<TokenId> {
        self.special.bos
    }

    /// The tokens that end an answer.
    pub fn eos(&self) -> &[TokenId] {
        &self.special.eos
    }
}
