//! Tokens to text while they come.

use std::sync::Arc;

use baton_types::TokenId;

use crate::tokenizer::Tokenizer;

/// The text of one answer, piece by piece. A piece never has half a character: bytes that may become one wait for the next
/// token (at most three). Special tokens are not text. The pieces together are what [`Tokenizer::decode`] gives for all
/// tokens at once, but that a first space is kept: an answer continues a text.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    /// Bytes that begin a character and do not end it.
    pending: Vec<u8>,
}

impl Detokenizer {
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        Self { tokenizer, pending: Vec::new() }
    }

    /// The text that `token` completes; often empty in scripts whose characters take several tokens.
    pub fn push(&mut self, token: TokenId) -> String {
        if self.tokenizer.is_special(token) {
            return String::new();
        }
        self.pending.extend_from_slice(self.tokenizer.token_bytes(token));
        take_complete(&mut self.pending)
    }

    /// The end of the text: U+FFFD if it stops inside a character.
    pub fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned()
    }
}

/// Takes all but an incomplete last character out of `bytes`; what can never become a character becomes U+FFFD, exactly as
/// in [`String::from_utf8_lossy`] over the whole.
fn take_complete(bytes: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut rest = &bytes[..];
    let kept = loop {
        match std::str::from_utf8(rest) {
            Ok(all) => {
                text.push_str(all);
                break 0;
            }
            Err(error) => {
                let (valid, after) = rest.split_at(error.valid_up_to());
                text.push_str(&String::from_utf8_lossy(valid));
                match error.error_len() {
                    None => break after.len(),
                    Some(len) => {
                        text.push(char::REPLACEMENT_CHARACTER);
                        rest = &after[len..];
                    }
                }
            }
        }
    };
    bytes.drain(..bytes.len() - kept);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn half_a_character_waits() {
        let mut pending = Vec::new();
        let mut feed = |bytes: &[u8]| {
            pending.extend_from_slice(bytes);
            (take_complete(&mut pending), pending.len())
        };
        assert_eq!(feed(b"a\xf0\x9f"), ("a".into(), 2));
        assert_eq!(feed(b"\x99"), (String::new(), 3));
        assert_eq!(feed(b"\x82b"), ("🙂b".into(), 0));
        assert_eq!(feed(b"\xf0\x9fb"), ("\u{fffd}b".into(), 0));
        assert_eq!(feed(b"\xff\xc3"), ("\u{fffd}".into(), 1));
    }

    proptest! {
        #[test]
        fn pieces_are_the_whole(pieces in prop::collection::vec(
            prop_oneof![
                prop::collection::vec(any::<u8>(), 0..4),
                "[aé日🙂]{1,3}".prop_map(String::into_bytes),
                Just(vec![0xF0, 0x9F]), Just(vec![0x99]), Just(vec![0x82]), Just(vec![0xED, 0xA0]), Just(vec![0xC3]),
            ], 0..20)
        ) {
            let mut pending = Vec::new();
            let mut text = String::new();
            for piece in &pieces {
                pending.extend_from_slice(piece);
                text.push_str(&take_complete(&mut pending));
                prop_assert!(pending.len() <= 3);
            }
            text.push_str(&String::from_utf8_lossy(&pending));
            prop_assert_eq!(text, String::from_utf8_lossy(&pieces.concat()).into_owned());
        }
    }
}
