//! `baton chat`.

use clap::Args;

const EXAMPLES: &str = "\
Examples:
  baton chat
  baton chat --url http://10.0.0.5:8000 --system 'Answer in one sentence.'
  baton chat --once 'What is a KV cache?'
  printf '%s\\n' 'My name is Ada.' 'What is my name?' | baton chat

In the chat: /reset forgets the conversation, /help lists the commands, /quit leaves. Ctrl-C stops an answer.";

#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ChatArgs {
    /// Where the system is
    #[arg(long, default_value = "http://127.0.0.1:8000", help_heading = "Connection")]
    pub url: String,
    /// Model to ask for [default: the first that is served]
    #[arg(long, help_heading = "Connection")]
    pub model: Option<String>,

    /// Ask this one question, print the answer and leave
    #[arg(long, value_name = "QUESTION", help_heading = "Conversation")]
    pub once: Option<String>,
    /// What the model is told before the conversation
    #[arg(long, value_name = "TEXT", help_heading = "Conversation")]
    pub system: Option<String>,

    /// Longest answer, in tokens [default: what the model's context leaves]
    #[arg(long, value_name = "TOKENS", help_heading = "Sampling", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_tokens: Option<u32>,
    /// 0 is greedy; higher is more random
    #[arg(long, default_value_t = 0.0, help_heading = "Sampling")]
    pub temperature: f32,
    /// Sample from the most likely tokens that make up this share [default: the server's]
    #[arg(long, value_name = "SHARE", help_heading = "Sampling")]
    pub top_p: Option<f32>,
    /// Makes sampling repeatable
    #[arg(long, help_heading = "Sampling")]
    pub seed: Option<u64>,
}
