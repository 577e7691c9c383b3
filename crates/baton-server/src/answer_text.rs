//! From an answer's tokens to its text, as it may be sent.

use std::sync::Arc;

use baton_model::stop::StopMatcher;
use baton_types::TokenId;

use crate::text::{Decoder, Text};

/// What decides where an answer's text ends.
#[derive(Clone, Debug)]
pub(crate) struct TextLimits {
    pub stop_strings: Vec<String>,
    /// Before so many tokens, stop strings do not count.
    pub min_tokens: u32,
    /// Never part of the text: the request's stop tokens.
    pub stop_tokens: Vec<TokenId>,
}

/// One answer on its way. The pieces do not depend on when tokens come (I7).
#[derive(Debug)]
pub(crate) struct AnswerText {
    decoder: Decoder,
    matcher: StopMatcher,
    limits: TextLimits,
    tokens: u32,
    stopped: Option<usize>,
}

impl AnswerText {
    pub fn new(text: &Arc<Text>, limits: TextLimits) -> Self {
        let matcher = StopMatcher::new(limits.stop_strings.clone());
        Self { decoder: text.decoder(), matcher, limits, tokens: 0, stopped: None }
    }

    /// The text that may be sent now that `token` is there. Nothing after a stop string.
    pub fn push(&mut self, token: TokenId) -> String {
        if self.stopped.is_some() {
            return String::new();
        }
        self.tokens += 1;
        if self.limits.stop_tokens.contains(&token) {
            return String::new();
        }
        let piece = self.decoder.push(token);
        self.watch(&piece)
    }

    /// What was held back, once no token follows.
    pub fn finish(&mut self) -> String {
        if self.stopped.is_some() {
            return String::new();
        }
        let piece = self.decoder.finish();
        let mut text = self.watch(&piece);
        if self.stopped.is_none() {
            text.push_str(&self.matcher.finish());
        }
        text
    }

    /// The stop string that ended the text.
    pub fn stop_string(&self) -> Option<&str> {
        self.stopped.map(|index| self.limits.stop_strings[index].as_str())
    }

    fn watch(&mut self, piece: &str) -> String {
        if self.tokens <= self.limits.min_tokens {
            return self.matcher.pass(piece);
        }
        let step = self.matcher.push(piece);
        self.stopped = step.stop;
        step.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::byte_tokenizer::ByteTokenizer;

    fn answer(stop: &[&str], min_tokens: u32, text: &str) -> (Vec<String>, Option<String>) {
        let limits = TextLimits {
            stop_strings: stop.iter().map(|s| s.to_string()).collect(),
            min_tokens,
            stop_tokens: vec![TokenId(0)],
        };
        let mut answer = AnswerText::new(&Arc::new(Text::Bytes(ByteTokenizer::new(512))), limits);
        let mut pieces: Vec<String> = text.bytes().map(|b| answer.push(TokenId(b.into()))).collect();
        pieces.push(answer.finish());
        (pieces, answer.stop_string().map(str::to_owned))
    }

    #[test]
    fn the_text_ends_before_the_stop_string_and_nothing_follows() {
        let (pieces, stop) = answer(&["END", "."], 0, "an END. more");
        assert_eq!(pieces.concat(), "an ");
        assert_eq!(stop.as_deref(), Some("END"));
        let (pieces, stop) = answer(&["END"], 0, "an EN");
        assert_eq!((pieces.concat().as_str(), stop), ("an EN", None), "what was held comes at the end");
    }

    #[test]
    fn before_min_tokens_a_stop_string_is_text() {
        let (pieces, stop) = answer(&["."], 2, "a.b.c");
        assert_eq!((pieces.concat().as_str(), stop.as_deref()), ("a.b", Some(".")));
    }

    #[test]
    fn characters_are_whole_and_stop_tokens_are_no_text() {
        let (pieces, _) = answer(&[], 0, "ü€\0");
        assert_eq!(pieces, ["", "ü", "", "", "€", "", ""]);
    }
}
