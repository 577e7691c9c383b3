//! The conversation so far, and the request that continues it.

use bytes::Bytes;
use serde::Serialize;

use crate::args::ChatArgs;

/// Both sides' messages, and how answers are to be made.
#[derive(Debug)]
pub struct Session {
    request: Request,
}

/// A chat request as OpenAI's API reads it.
#[derive(Debug, Serialize)]
struct Request {
    model: String,
    messages: Vec<Message>,
    stream: bool,
    stream_options: StreamOptions,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_p: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
}

#[derive(Debug, Serialize)]
struct StreamOptions {
    include_usage: bool,
}

#[derive(Debug, Serialize)]
struct Message {
    role: &'static str,
    content: String,
}

impl Session {
    pub fn new(args: &ChatArgs, model: String) -> Self {
        let system = args.system.iter().map(|text| Message { role: "system", content: text.clone() });
        Self {
            request: Request {
                model,
                messages: system.collect(),
                stream: true,
                stream_options: StreamOptions { include_usage: true },
                max_tokens: args.max_tokens,
                temperature: Some(args.temperature),
                top_p: args.top_p,
                seed: args.seed,
            },
        }
    }

    /// Adds the user's words and gives the request for an answer to them.
    ///
    /// # Errors
    /// If a number of the request is none of JSON's.
    pub fn ask(&mut self, text: String) -> serde_json::Result<Bytes> {
        self.request.messages.push(Message { role: "user", content: text });
        serde_json::to_vec(&self.request).map(Bytes::from)
    }

    /// Keeps what was answered; where nothing was, the question is forgotten as well, so that the sides keep alternating.
    pub fn keep(&mut self, answer: String) {
        if answer.is_empty() {
            self.request.messages.pop();
        } else {
            self.request.messages.push(Message { role: "assistant", content: answer });
        }
    }

    /// Forgets everything but the system's words.
    pub fn reset(&mut self) {
        self.request.messages.retain(|message| message.role == "system");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn session(flags: &[&str]) -> Session {
        let argv = ["baton", "chat"].into_iter().chain(flags.iter().copied()).map(Into::into);
        let crate::args::Command::Chat(args) = crate::settings::parse(argv).unwrap().command else {
            unreachable!()
        };
        Session::new(&args, "m".to_owned())
    }

    fn ask(session: &mut Session, text: &str) -> Value {
        serde_json::from_slice(&session.ask(text.to_owned()).unwrap()).unwrap()
    }

    #[test]
    fn the_history_goes_along_until_it_is_reset() {
        let mut session = session(&["--system", "Be brief.", "--max-tokens", "5", "--temperature", "0"]);
        ask(&mut session, "a");
        session.keep("b".to_owned());
        ask(&mut session, "lost");
        session.keep(String::new());
        let request = ask(&mut session, "c");
        assert_eq!(
            request["messages"],
            json!([
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "b"},
                {"role": "user", "content": "c"},
            ])
        );
        assert_eq!((&request["max_tokens"], &request["temperature"]), (&json!(5), &json!(0.0)));
        session.keep("d".to_owned());
        session.reset();
        assert_eq!(ask(&mut session, "e")["messages"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn what_is_not_said_is_left_to_the_server() {
        let request = ask(&mut session(&[]), "a");
        let mut members: Vec<&String> = request.as_object().unwrap().keys().collect();
        members.sort();
        assert_eq!(members, ["messages", "model", "stream", "stream_options", "temperature"]);
    }
}
