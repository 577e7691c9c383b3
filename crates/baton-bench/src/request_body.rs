//! The JSON of one request.

use baton_types::TokenId;
use bytes::Bytes;
use serde::Serialize;

use crate::options::Api;

/// What all requests of a run have in common.
#[derive(Clone, Debug)]
pub(crate) struct Manner {
    pub model: String,
    pub ignore_eos: bool,
    pub temperature: f64,
}

/// What one request says.
#[derive(Clone, Debug)]
pub(crate) enum Words<'a> {
    Tokens(&'a [TokenId]),
    Messages(&'a [Message]),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Message {
    pub role: &'static str,
    pub content: String,
}

#[derive(Serialize)]
struct RequestBody<'a> {
    model: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt: Option<&'a [TokenId]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    messages: Option<&'a [Message]>,
    max_tokens: u32,
    /// Left out where it is false: not every server knows it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    ignore_eos: bool,
    temperature: f64,
    stream: bool,
    stream_options: StreamOptions,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

impl Words<'_> {
    pub const fn api(&self) -> Api {
        match self {
            Self::Tokens(_) => Api::Completions,
            Self::Messages(_) => Api::Chat,
        }
    }

    pub fn write(&self, manner: &Manner, max_tokens: u32) -> Bytes {
        let (prompt, messages) = match self {
            Self::Tokens(tokens) => (Some(*tokens), None),
            Self::Messages(messages) => (None, Some(*messages)),
        };
        let body = RequestBody {
            model: &manner.model,
            prompt,
            messages,
            max_tokens,
            ignore_eos: manner.ignore_eos,
            temperature: manner.temperature,
            stream: true,
            stream_options: StreamOptions { include_usage: true },
        };
        serde_json::to_vec(&body).expect("numbers and texts").into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_what_servers_read() {
        let manner = Manner { model: "m".to_owned(), ignore_eos: true, temperature: 0.0 };
        let body = Words::Tokens(&[TokenId(5), TokenId(6)]).write(&manner, 7);
        assert_eq!(
            body,
            r#"{"model":"m","prompt":[5,6],"max_tokens":7,"ignore_eos":true,"temperature":0.0,"stream":true,"stream_options":{"include_usage":true}}"#
        );
        let messages = [Message { role: "user", content: "a\"b".to_owned() }];
        let body = Words::Messages(&messages).write(&Manner { ignore_eos: false, ..manner }, 7);
        assert_eq!(
            body,
            r#"{"model":"m","messages":[{"role":"user","content":"a\"b"}],"max_tokens":7,"temperature":0.0,"stream":true,"stream_options":{"include_usage":true}}"#
        );
    }
}
