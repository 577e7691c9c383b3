//! `/v1/chat/completions` as an engine reads it.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::body::Body;
use crate::error::{ApiError, excerpt};
use crate::generation::Generation;
use crate::refusals;

/// Most messages in one conversation.
pub const MAX_MESSAGES: usize = 4096;
/// Longest role, in bytes.
const MAX_ROLE_BYTES: usize = 64;

/// A validated chat request.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatRequest {
    pub model: Option<String>,
    pub prompt: ChatPrompt,
    pub generation: Generation,
}

/// What a chat template makes a prompt of.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatPrompt {
    /// At least one.
    pub messages: Vec<ChatMessage>,
    /// Ends the rendered prompt where the assistant's answer begins. On unless the client says otherwise.
    pub add_generation_prompt: bool,
    /// Lets the tokenizer add BOS or EOS around the rendered prompt. Off: templates write them themselves.
    pub add_special_tokens: bool,
    /// Variables for the chat template, such as `enable_thinking`.
    pub chat_template_kwargs: Map<String, Value>,
}

impl ChatRequest {
    /// # Errors
    /// A 400 in OpenAI's shape: wrong types, values out of range, or a feature that Baton does not have.
    pub fn read(body: &Body) -> Result<Self, ApiError> {
        refusals::check(body)?;
        Ok(Self {
            model: body.model()?,
            prompt: ChatPrompt::read(body)?,
            generation: Generation::read(body, None)?,
        })
    }
}

impl ChatPrompt {
    /// # Errors
    /// As [`ChatRequest::read`].
    pub(crate) fn read(body: &Body) -> Result<Self, ApiError> {
        let messages: Option<Vec<ChatMessage>> = body.read("messages")?;
        let messages = messages.ok_or_else(|| ApiError::bad_param("messages", "messages is required."))?;
        check_messages(&messages)?;
        Ok(Self {
            messages,
            add_generation_prompt: body.read("add_generation_prompt")?.unwrap_or(true),
            add_special_tokens: body.read("add_special_tokens")?.unwrap_or(false),
            chat_template_kwargs: body.read("chat_template_kwargs")?.unwrap_or_default(),
        })
    }

    /// The messages as a chat template reads them.
    pub fn template_messages(&self) -> Vec<Value> {
        self.messages.iter().map(ChatMessage::to_template).collect()
    }
}

/// One message. Members that only a template knows (`name`, `tool_calls`, `tool_call_id`, `reasoning_content`) pass through.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct ChatMessage {
    pub role: String,
    /// Null for an assistant's message that has only tool calls.
    #[serde(default)]
    pub content: Option<Content>,
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// A message's content.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged, expecting = "content must be a string, a list of parts or null")]
pub enum Content {
    Text(String),
    Parts(Vec<ContentPart>),
}

/// A part of a content. Only those of type `text` have a meaning here.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct ContentPart {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default)]
    pub text: Option<String>,
}

impl Content {
    /// The text; parts are joined by line feeds, as vLLM joins them for templates that expect a text.
    pub fn to_text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Parts(parts) => {
                let texts: Vec<&str> = parts.iter().filter_map(|part| part.text.as_deref()).collect();
                texts.join("\n")
            }
        }
    }
}

impl ChatMessage {
    /// A template finds the content to be a text always, empty where it was null: most templates add it to another text.
    fn to_template(&self) -> Value {
        let mut members = Map::new();
        members.insert("role".to_owned(), Value::from(self.role.as_str()));
        let text = self.content.as_ref().map(Content::to_text).unwrap_or_default();
        members.insert("content".to_owned(), Value::from(text));
        members.extend(self.others.clone());
        Value::Object(members)
    }
}

fn check_messages(messages: &[ChatMessage]) -> Result<(), ApiError> {
    if messages.is_empty() {
        return Err(ApiError::bad_param("messages", "messages must have at least one message."));
    }
    if messages.len() > MAX_MESSAGES {
        let message = format!("messages may have at most {MAX_MESSAGES} messages, got {}.", messages.len());
        return Err(ApiError::bad_param("messages", message));
    }
    messages.iter().enumerate().try_for_each(|(i, message)| check_message(i, message))
}

fn check_message(i: usize, message: &ChatMessage) -> Result<(), ApiError> {
    let role = &message.role;
    if role.is_empty() || role.len() > MAX_ROLE_BYTES {
        let text = format!("A role must have 1 to {MAX_ROLE_BYTES} bytes.");
        return Err(ApiError::bad_param(&format!("messages[{i}].role"), text));
    }
    match &message.content {
        // An assistant may have said nothing but a tool call, or have been cut off before its first word.
        None if role != "assistant" => Err(ApiError::bad_param(
            &format!("messages[{i}].content"),
            format!("content is required in a message of role {role:?}."),
        )),
        Some(Content::Parts(parts)) => parts
            .iter()
            .enumerate()
            .try_for_each(|(j, part)| check_part(&format!("messages[{i}].content[{j}]"), part)),
        _ => Ok(()),
    }
}

fn check_part(param: &str, part: &ContentPart) -> Result<(), ApiError> {
    if part.kind != "text" {
        let message = format!("Only text parts are supported, not {:?}.", excerpt(&part.kind));
        return Err(ApiError::unsupported(param, message));
    }
    if part.text.is_none() {
        return Err(ApiError::bad_param(param, "A text part must have a text."));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(json: &Value) -> Result<ChatRequest, ApiError> {
        ChatRequest::read(&Body::parse(json.to_string().into(), 100_000)?)
    }

    #[test]
    fn a_conversation_reaches_the_template_whole() {
        let request = read(&json!({
            "model": "m",
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "me"},
                {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "function": {"name": "f"}}]},
                {"role": "tool", "content": "42", "tool_call_id": "1"},
            ],
            "chat_template_kwargs": {"enable_thinking": false},
            "unknown": {"deep": [1]},
        }))
        .unwrap();
        assert_eq!(
            request.prompt.template_messages(),
            [
                json!({"role": "system", "content": "Be brief."}),
                json!({"role": "user", "content": "a\nb", "name": "me"}),
                json!({"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": {"name": "f"}}]}),
                json!({"role": "tool", "content": "42", "tool_call_id": "1"}),
            ]
        );
        assert_eq!(request.model.as_deref(), Some("m"));
        assert_eq!(request.prompt.chat_template_kwargs["enable_thinking"], false);
        assert!(request.prompt.add_generation_prompt && !request.prompt.add_special_tokens);
        assert_eq!(request.generation.max_tokens, None);
    }

    #[test]
    fn bad_conversations_are_refused_by_name() {
        let user = json!({"role": "user", "content": "x"});
        for (json, param) in [
            (json!({}), "messages"),
            (json!({"messages": []}), "messages"),
            (json!({"messages": null}), "messages"),
            (json!({"messages": "hi"}), "messages"),
            (json!({"messages": [{"content": "x"}]}), "messages"),
            (json!({"messages": [{"role": "", "content": "x"}]}), "messages[0].role"),
            (json!({"messages": [user, {"role": "user"}]}), "messages[1].content"),
            (json!({"messages": [{"role": "user", "content": 5}]}), "messages"),
            (
                json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}),
                "messages[0].content[0]",
            ),
            (json!({"messages": [user], "tools": [{"type": "function"}]}), "tools"),
            (json!({"messages": [user], "max_tokens": 0}), "max_tokens"),
        ] {
            let error = read(&json).unwrap_err();
            assert_eq!((error.status(), error.param.as_deref()), (400, Some(param)), "{json}");
        }
        assert!(read(&json!({"messages": vec![user; MAX_MESSAGES + 1]})).is_err());
    }
}
