//! Conversations in words: ShareGPT's `conversations` of `from` and `value`, or `messages` of `role` and `content`; one JSON
//! array, or an object a line.
//!
//! What the user said is said; what was answered then is left out, since the model's own answers are sent back.

use std::io::BufRead;
use std::time::Duration;

use serde::Deserialize;

use super::TraceError;
use crate::conversation::{Ask, Conversation, Message, Turn};

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ShareGptRecord {
    #[serde(default)]
    pub id: Option<String>,
    #[serde(alias = "messages")]
    pub conversations: Vec<Said>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Said {
    #[serde(alias = "role")]
    pub from: String,
    #[serde(alias = "content")]
    pub value: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Document {
    Array(Vec<ShareGptRecord>),
    One(ShareGptRecord),
}

pub fn records(text: impl BufRead) -> impl Iterator<Item = Result<ShareGptRecord, TraceError>> {
    let documents = serde_json::Deserializer::from_reader(text).into_iter::<Document>();
    documents.zip(1..).flat_map(|(document, number)| match document {
        Ok(Document::Array(records)) => records.into_iter().map(Ok).collect(),
        Ok(Document::One(record)) => vec![Ok(record)],
        Err(error) => vec![Err(TraceError::record(number, error))],
    })
}

/// Records in which no user says anything are left out.
pub(super) fn conversations(text: impl BufRead) -> Result<Vec<Conversation>, TraceError> {
    let mut conversations = Vec::new();
    for record in records(text) {
        let record = record?;
        let turns = turns(record.conversations);
        if turns.is_empty() {
            continue;
        }
        let session = u32::try_from(conversations.len()).unwrap_or(u32::MAX);
        let name = record.id.unwrap_or_else(|| format!("c{session}"));
        conversations.push(Conversation { name: Some(name), session, offset: Duration::ZERO, turns });
    }
    Ok(conversations)
}

fn turns(said: Vec<Said>) -> Vec<Turn> {
    let mut turns: Vec<Turn> = Vec::new();
    // What comes before the user's first word, such as a system prompt, is read in front of it.
    let mut before = String::new();
    for Said { from, value } in said {
        match from.as_str() {
            "human" | "user" => {
                let text = std::mem::take(&mut before) + &value;
                turns.push(Turn {
                    think: Duration::ZERO,
                    ask: Ask::Next(Message::Text(text)),
                    output_tokens: None,
                });
            }
            "system" if turns.is_empty() => before = value + "\n\n",
            _ => {}
        }
    }
    turns
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARRAY: &str = r#"[
        {"id": "a", "conversations": [{"from": "system", "value": "Be short."}, {"from": "human", "value": "Hi"},
            {"from": "gpt", "value": "Hello"}, {"from": "human", "value": "Bye"}]},
        {"conversations": [{"from": "gpt", "value": "nobody asked"}]},
        {"messages": [{"role": "user", "content": "What?"}]}]"#;

    #[test]
    fn users_speak_and_recorded_answers_are_left_out() {
        let all = conversations(ARRAY.as_bytes()).unwrap();
        assert_eq!(all.len(), 2);
        let said: Vec<&Ask> = all[0].turns.iter().map(|turn| &turn.ask).collect();
        let text = |text: &str| Ask::Next(Message::Text(text.to_owned()));
        assert_eq!(said, [&text("Be short.\n\nHi"), &text("Bye")]);
        assert_eq!((all[0].name.as_deref(), all[1].name.as_deref()), (Some("a"), Some("c1")));
    }

    #[test]
    fn an_object_a_line_will_do_and_rubbish_is_named() {
        let lines = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}\n{\"messages\":[{\"role\":\"user\",\"content\":\"b\"}]}\n";
        assert_eq!(conversations(lines.as_bytes()).unwrap().len(), 2);
        assert!(matches!(conversations(&b"[{\"id\": 5}]"[..]), Err(TraceError::Record { record: 1, .. })));
    }
}
