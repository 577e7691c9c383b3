//! Answers as OpenAI and vLLM write them. Engines write them through [`crate::answer::Answer`]; clients read them.

use baton_types::{KvTransferParams, TokenId};
use serde::{Deserialize, Serialize};

/// Which of the two APIs an answer belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Endpoint {
    Chat,
    Completions,
}

impl Endpoint {
    pub const fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
        }
    }

    /// The id of an answer: the API's prefix and 32 hex digits of the caller's randomness. Never a client's id.
    pub fn answer_id(self, random: u128) -> String {
        match self {
            Self::Chat => format!("chatcmpl-{random:032x}"),
            Self::Completions => format!("cmpl-{random:032x}"),
        }
    }

    pub(crate) const fn object(self, chunk: bool) -> &'static str {
        match (self, chunk) {
            (Self::Chat, false) => "chat.completion",
            (Self::Chat, true) => "chat.completion.chunk",
            (Self::Completions, _) => "text_completion",
        }
    }
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// EOS or a stop string.
    Stop,
    /// `max_tokens` or the end of the context.
    Length,
    ToolCalls,
    ContentFilter,
    /// vLLM: the request was taken back.
    Abort,
    /// vLLM: the answer is void, although the status is 200.
    Error,
    #[serde(other)]
    Other,
}

/// How many tokens a request took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    pub prompt_tokens: u32,
    pub completion_tokens: u32,
    pub total_tokens: u32,
    #[serde(default)]
    pub prompt_tokens_details: Option<PromptTokensDetails>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptTokensDetails {
    #[serde(default)]
    pub cached_tokens: Option<u32>,
}

impl Usage {
    /// `cached_tokens`: prompt tokens that nobody computed for this request. Tokens whose KV another engine has just
    /// computed and handed over are not cached.
    pub fn new(prompt_tokens: u32, completion_tokens: u32, cached_tokens: u32) -> Self {
        Self {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens.saturating_add(completion_tokens),
            prompt_tokens_details: Some(PromptTokensDetails { cached_tokens: Some(cached_tokens) }),
        }
    }
}

/// `chat.completion`, `chat.completion.chunk` and `text_completion`: they differ in their choices only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    pub id: String,
    pub object: String,
    /// Unix seconds.
    pub created: u64,
    pub model: String,
    pub choices: Vec<Choice>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Chat only; see [`Choice::prompt_token_ids`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<TokenId>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_transfer_params: Option<KvTransferParams>,
}

/// One choice: exactly one of `message`, `delta` and `text` is there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    pub index: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Message>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delta: Option<Message>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Always null: clients of OpenAI expect the member.
    #[serde(default)]
    pub logprobs: Option<()>,
    pub finish_reason: Option<FinishReason>,
    /// vLLM: the stop string that ended the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<StopReason>,
    /// The ids of this choice, or of this chunk, if `return_token_ids` was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<TokenId>>,
    /// Completions only: vLLM puts the prompt's ids here, and for chats one level up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<TokenId>>,
}

/// What vLLM calls the stop reason: a stop string, or a stop token's id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum StopReason {
    Text(String),
    Token(TokenId),
}

/// A chat's message, or what a chunk adds to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
}

impl Completion {
    /// The text of the first choice, or what this chunk adds to it; empty if there is none.
    pub fn text(&self) -> &str {
        let Some(choice) = self.choices.first() else { return "" };
        let message = choice.message.as_ref().or(choice.delta.as_ref());
        choice.text.as_deref().or(message.and_then(|m| m.content.as_deref())).unwrap_or("")
    }

    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.choices.first()?.finish_reason
    }
}
