//! What is sent: conversations of one turn or more, each turn waiting for the answer before it.

use std::time::Duration;

use crate::prompt::Prompt;

/// Turns that follow each other. A single request is a conversation of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conversation {
    /// None for a single request.
    pub name: Option<String>,
    /// Conversations of one session begin in step with each other; where there are no sessions, each is its own.
    pub session: u32,
    /// When it begins, counted from its session's beginning.
    pub offset: Duration,
    pub turns: Vec<Turn>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// From the end of the answer before it, or of the conversation's beginning, to this turn.
    pub think: Duration,
    pub ask: Ask,
    /// Length of the answer; none where the model is to end it by itself.
    pub output_tokens: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// All that the model is to read, whatever it answered before.
    Whole(Prompt),
    /// A message behind what was said and answered so far: the answers are the model's own.
    Next(Message),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    Text(String),
    /// As many words as the prompt has tokens.
    Words(Prompt),
}

impl Conversation {
    /// A request that belongs to nothing.
    pub fn single(prompt: Prompt, output_tokens: u32) -> Self {
        let turn =
            Turn { think: Duration::ZERO, ask: Ask::Whole(prompt), output_tokens: Some(output_tokens) };
        Self { name: None, session: 0, offset: Duration::ZERO, turns: vec![turn] }
    }
}

impl Turn {
    /// Tokens of the prompt that this turn brings, if they can be known.
    pub fn new_tokens(&self) -> Option<u32> {
        match &self.ask {
            Ask::Whole(prompt) | Ask::Next(Message::Words(prompt)) => Some(prompt.tokens),
            Ask::Next(Message::Text(_)) => None,
        }
    }
}
