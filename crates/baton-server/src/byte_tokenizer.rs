//! The emulated model's tokenizer: a byte is a token, and the ids above are written `<300>`.
//!
//! Reversible both ways for what the emulated model makes: its answers have only ids above the bytes, and
//! each of them reads back as itself.

use std::borrow::Cow;

use baton_types::TokenId;

/// Ids below are bytes.
const BYTES: u32 = 256;

#[derive(Clone, Copy, Debug)]
pub struct ByteTokenizer {
    vocab: u32,
}

impl ByteTokenizer {
    /// For ids in `0..vocab`.
    pub fn new(vocab: u32) -> Self {
        Self { vocab }
    }

    pub fn vocab_size(&self) -> usize {
        self.vocab as usize
    }

    pub fn encode(&self, text: &str) -> Vec<TokenId> {
        let mut tokens = Vec::with_capacity(text.len());
        let mut rest = text.as_bytes();
        while let Some((&byte, after)) = rest.split_first() {
            match self.leading_word(rest) {
                Some((token, len)) => {
                    tokens.push(token);
                    rest = &rest[len..];
                }
                None => {
                    tokens.push(TokenId(u32::from(byte)));
                    rest = after;
                }
            }
        }
        tokens
    }

    /// What a token adds to a text; nothing outside the vocabulary.
    pub fn token_bytes(&self, token: TokenId) -> Cow<'static, [u8]> {
        match token.0 {
            id if id >= self.vocab => Cow::Borrowed(&[]),
            id if id < BYTES => Cow::Owned(vec![id as u8]),
            id => Cow::Owned(format!("<{id}>").into_bytes()),
        }
    }

    pub fn decode(&self, tokens: &[TokenId]) -> String {
        let bytes: Vec<u8> = tokens.iter().flat_map(|token| self.token_bytes(*token).into_owned()).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The id that `text` begins with, if it begins with one as [`ByteTokenizer::token_bytes`] writes it, and
    /// its length.
    fn leading_word(&self, text: &[u8]) -> Option<(TokenId, usize)> {
        let inner = text.strip_prefix(b"<")?;
        let digits = inner.iter().take(10).position(|b| !b.is_ascii_digit())?;
        let id: u32 = std::str::from_utf8(&inner[..digits]).ok()?.parse().ok()?;
        let canonical = inner[0] != b'0' && inner[digits] == b'>';
        (canonical && (BYTES..self.vocab).contains(&id)).then_some((TokenId(id), digits + 2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_answers_read_back() {
        let tokenizer = ByteTokenizer::new(1000);
        for text in [
            "",
            "hello",
            "<",
            "<300",
            "<300>",
            "<0300>",
            "<1000>",
            "<999><256>",
            "<12>",
            "über <>",
            "a<<500>>",
        ] {
            assert_eq!(tokenizer.decode(&tokenizer.encode(text)), text);
        }
        let answer: Vec<TokenId> = (256..1000).map(TokenId).collect();
        assert_eq!(tokenizer.encode(&tokenizer.decode(&answer)), answer);
        assert_eq!(tokenizer.encode("<300>"), [TokenId(300)]);
        assert_eq!(tokenizer.encode("<255>").len(), 5, "a byte is written as itself only");
    }
}
