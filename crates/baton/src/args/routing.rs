//! How requests are routed: for `baton route` and `baton up`.

use clap::{Args, ValueEnum};

use super::units::Span;
use super::value_name;

#[derive(Clone, Debug, PartialEq, Args)]
#[command(next_help_heading = "Routing")]
pub struct RoutingArgs {
    /// Who moves the KV cache, and when
    #[arg(long, value_enum, default_value_t = Strategy::Push)]
    pub strategy: Strategy,
    /// Who moves the KV cache with --strategy bidirectional [default: push]
    #[arg(long, value_enum)]
    pub hand_off: Option<HandOff>,
    /// How an engine is chosen among those of its role
    #[arg(long, value_enum, default_value_t = Policy::LeastLoaded)]
    pub policy: Policy,
    /// Engines that a request is tried on, until its first byte has been sent
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub attempts: u32,

    /// Most requests at once, waiting ones included; the next one is refused
    #[arg(long, value_name = "N", default_value_t = 4096, help_heading = "Routing limits")]
    pub max_requests: usize,
    /// Most requests that wait for an engine; the next one is refused
    #[arg(long, value_name = "N", default_value_t = 1024, help_heading = "Routing limits")]
    pub max_queued: usize,
    /// Most requests at once on one engine
    #[arg(long, value_name = "N", default_value_t = 256, help_heading = "Routing limits")]
    pub max_legs_per_engine: usize,
    /// Longest wait for a free engine
    #[arg(long, value_name = "TIME", default_value = "30s", help_heading = "Routing limits")]
    pub queue_timeout: Span,
    /// Longest wait for a prefill engine's answer
    #[arg(long, value_name = "TIME", default_value = "2m", help_heading = "Routing limits")]
    pub prefill_timeout: Span,
    /// Longest wait for the first byte of a stream
    #[arg(long, value_name = "TIME", default_value = "2m", help_heading = "Routing limits")]
    pub first_byte_timeout: Span,
    /// Longest wait for an answer that is not streamed
    #[arg(long, value_name = "TIME", default_value = "10m", help_heading = "Routing limits")]
    pub answer_timeout: Span,
    /// Longest silence in a stream
    #[arg(long, value_name = "TIME", default_value = "1m", help_heading = "Routing limits")]
    pub idle_timeout: Span,
    /// Most turns of conversations to remember; those that are kept longest stay
    #[arg(long, value_name = "N", default_value_t = 65_536, help_heading = "Routing limits")]
    pub max_conversations: usize,
    /// How many requests more than the least busy decode engine the one that keeps a conversation may have and still get it
    #[arg(long, value_name = "N", default_value_t = 4, help_heading = "Routing limits")]
    pub conversation_slack: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Strategy {
    /// Prefill writes finished chunks into the decode engine's memory while it computes the next
    Push,
    /// Decode reads the blocks when prefill has finished
    Pull,
    /// Decode reads finished chunks while prefill computes the next
    EarlyPull,
    /// As --hand-off says, and prefill reads back what decode has kept of the conversation
    Bidirectional,
    /// No hand-off: one engine does both
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum HandOff {
    Push,
    Pull,
    EarlyPull,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Policy {
    RoundRobin,
    LeastLoaded,
}

impl RoutingArgs {
    /// The flags that say the same to `baton route`.
    pub fn to_argv(&self) -> Vec<String> {
        let mut argv = vec![
            format!("--strategy={}", value_name(self.strategy)),
            format!("--policy={}", value_name(self.policy)),
            format!("--attempts={}", self.attempts),
            format!("--max-requests={}", self.max_requests),
            format!("--max-queued={}", self.max_queued),
            format!("--max-legs-per-engine={}", self.max_legs_per_engine),
            format!("--queue-timeout={}", self.queue_timeout),
            format!("--prefill-timeout={}", self.prefill_timeout),
            format!("--first-byte-timeout={}", self.first_byte_timeout),
            format!("--answer-timeout={}", self.answer_timeout),
            format!("--idle-timeout={}", self.idle_timeout),
            format!("--max-conversations={}", self.max_conversations),
            format!("--conversation-slack={}", self.conversation_slack),
        ];
        argv.extend(self.hand_off.map(|hand_off| format!("--hand-off={}", value_name(hand_off))));
        argv
    }
}
