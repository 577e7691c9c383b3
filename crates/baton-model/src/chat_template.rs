//! A conversation to the text that the model was trained on: the Jinja template that comes with a checkpoint, run as
//! Hugging Face's libraries run it.
//!
//! Template and messages both come from outside, so a rendering is bounded: in steps and copied bytes (fuel), in nesting,
//! and in the size of its text.

mod calendar;
mod environment;

use std::fmt;
use std::path::Path;

use minijinja::value::Serde;
use minijinja::{Environment, ErrorKind, Value};
use serde_json::{Map, Value as Json};

use crate::tokenizer::{TokenizerError, read_json, token_name};
use crate::weights::gguf::{Gguf, Value as GgufValue};

/// Longest template, in bytes. The longest published ones have about 20,000.
pub const MAX_TEMPLATE_BYTES: usize = 1 << 20;
/// Longest rendered prompt, in bytes.
pub const MAX_PROMPT_BYTES: usize = 64 << 20;

/// Why a conversation has no prompt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChatTemplateError {
    #[error("the model has no chat template")]
    Absent,
    #[error("the chat template does not compile: {0}")]
    Compile(String),
    /// The template's own refusal (`raise_exception`): the client is to blame and should read it.
    #[error("{0}")]
    Refused(String),
    #[error("the chat template failed: {0}")]
    Render(String),
    #[error("rendering the chat template took too many steps or too much text")]
    TooMuch,
    #[error("chat_template_kwargs must not set {0}")]
    Reserved(String),
    #[error(transparent)]
    File(#[from] TokenizerError),
}

/// What a template is run with.
#[derive(Clone, Copy, Debug)]
pub struct Conversation<'a> {
    /// Objects with at least `role` and `content`.
    pub messages: &'a [Json],
    pub add_generation_prompt: bool,
    /// The client's own variables, such as `enable_thinking`.
    pub kwargs: &'a Map<String, Json>,
    /// For templates that write today's date, in seconds since 1970, UTC.
    pub now_unix_s: u64,
}

/// The text of a template and of the tokens that it may write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TemplateSource {
    pub template: String,
    pub bos_token: Option<String>,
    pub eos_token: Option<String>,
}

impl TemplateSource {
    /// From a checkpoint's directory: `chat_template.jinja` or else `chat_template` in `tokenizer_config.json`, which is a
    /// text or a list of named ones (then the one named `default`).
    ///
    /// # Errors
    /// [`ChatTemplateError::Absent`] if neither is there; otherwise if a file cannot be read.
    pub fn from_directory(directory: &Path) -> Result<Self, ChatTemplateError> {
        let config = read_json(&directory.join("tokenizer_config.json"))?;
        let path = directory.join("chat_template.jinja");
        let template = match std::fs::read_to_string(&path) {
            Ok(text) => Some(text),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => default_template(&config["chat_template"]),
            Err(e) => {
                let (path, reason) = (path.display().to_string(), e.to_string());
                return Err(TokenizerError::File { path, reason }.into());
            }
        };
        Ok(Self {
            template: template.ok_or(ChatTemplateError::Absent)?,
            bos_token: token_name(&config["bos_token"]).map(str::to_owned),
            eos_token: token_name(&config["eos_token"]).map(str::to_owned),
        })
    }

    /// From a GGUF file.
    ///
    /// # Errors
    /// [`ChatTemplateError::Absent`] if it has none.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, ChatTemplateError> {
        let template = gguf.metadata("tokenizer.chat_template").and_then(GgufValue::as_str);
        let token = |key: &str| {
            let id = gguf.metadata(key).and_then(GgufValue::as_u64)?;
            let tokens = gguf.metadata("tokenizer.ggml.tokens")?.as_array()?;
            Some(tokens.get(usize::try_from(id).ok()?)?.as_str()?.to_owned())
        };
        Ok(Self {
            template: template.ok_or(ChatTemplateError::Absent)?.to_owned(),
            bos_token: token("tokenizer.ggml.bos_token_id"),
            eos_token: token("tokenizer.ggml.eos_token_id"),
        })
    }
}

fn default_template(config: &Json) -> Option<String> {
    if let Some(text) = config.as_str() {
        return Some(text.to_owned());
    }
    let named = config.as_array()?;
    let default = named.iter().find(|one| one["name"] == "default").or_else(|| named.first());
    default?["template"].as_str().map(str::to_owned)
}

/// A compiled template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos_token: Option<String>,
    eos_token: Option<String>,
}

/// The one template's name in its environment.
const NAME: &str = "chat";
/// Variables that say what the request is; a client must not change them through its own.
const RESERVED: [&str; 4] = ["messages", "add_generation_prompt", "bos_token", "eos_token"];

impl ChatTemplate {
    /// # Errors
    /// If the template is too long or not Jinja as far as we speak it.
    pub fn compile(source: TemplateSource) -> Result<Self, ChatTemplateError> {
        if source.template.len() > MAX_TEMPLATE_BYTES {
            return Err(ChatTemplateError::Compile(format!("it has more than {MAX_TEMPLATE_BYTES} bytes")));
        }
        let mut environment = environment::hugging_face();
        environment
            .add_template_owned(NAME, environment::without_generation_tags(&source.template))
            .map_err(|e| ChatTemplateError::Compile(e.to_string()))?;
        Ok(Self { environment, bos_token: source.bos_token, eos_token: source.eos_token })
    }

    /// The prompt's text. Special tokens are in it as text; the tokenizer must not add its own.
    ///
    /// # Errors
    /// If the template refuses the conversation, fails, or takes too much.
    pub fn render(&self, conversation: Conversation<'_>) -> Result<String, ChatTemplateError> {
        if let Some(name) = RESERVED.into_iter().find(|name| conversation.kwargs.contains_key(*name)) {
            return Err(ChatTemplateError::Reserved(name.to_owned()));
        }
        let template = self.environment.get_template(NAME).expect("compiled above");
        let mut text = BoundedText { bytes: Vec::new(), limit: MAX_PROMPT_BYTES };
        let rendered = template.render_captured_to(self.context(conversation), &mut text);
        rendered.map(drop).map_err(|error| failure(&error))?;
        Ok(String::from_utf8(text.bytes).expect("a template writes text"))
    }

    fn context(&self, conversation: Conversation<'_>) -> Value {
        let fixed = [
            ("messages", Value::from(Serde(conversation.messages))),
            ("add_generation_prompt", Value::from(conversation.add_generation_prompt)),
            ("bos_token", Value::from(self.bos_token.as_deref().unwrap_or(""))),
            ("eos_token", Value::from(self.eos_token.as_deref().unwrap_or(""))),
            ("tools", Value::from(())),
            ("documents", Value::from(())),
            (environment::NOW, Value::from(conversation.now_unix_s)),
        ];
        let own = conversation.kwargs.iter().map(|(name, value)| (name.as_str(), Value::from(Serde(value))));
        Value::from_pairs(fixed.into_iter().chain(own))
    }
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate").finish_non_exhaustive()
    }
}

fn failure(error: &minijinja::Error) -> ChatTemplateError {
    // A failing writer is ours: only the limit makes it fail.
    if matches!(error.kind(), ErrorKind::OutOfFuel | ErrorKind::WriteFailure) {
        return ChatTemplateError::TooMuch;
    }
    match environment::refusal(error) {
        Some(message) => ChatTemplateError::Refused(message),
        None => ChatTemplateError::Render(error.to_string()),
    }
}

/// A buffer that does not grow above its limit.
struct BoundedText {
    bytes: Vec<u8>,
    limit: usize,
}

impl std::io::Write for BoundedText {
    fn write(&mut self, part: &[u8]) -> std::io::Result<usize> {
        if self.bytes.len() + part.len() > self.limit {
            return Err(std::io::Error::other("the prompt is too long"));
        }
        self.bytes.extend_from_slice(part);
        Ok(part.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
