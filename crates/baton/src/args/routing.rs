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
    /// How an engine is chosen among those of its role
    #[arg(long, value_enum, default_value_t = Policy::LeastLoaded)]
    pub policy: Policy,
    /// Most requests that wait for an engine; the next one is refused
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub max_queued: usize,
    /// Longest wait for an engine
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub queue_timeout: Span,
    /// Engines that a request is tried on, until its first byte has been sent
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub attempts: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Strategy {
    /// Prefill writes finished chunks into the decode engine's memory while it computes the next
    Push,
    /// Decode reads the blocks when prefill has finished
    Pull,
    /// No hand-off: one engine does both
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Policy {
    RoundRobin,
    LeastLoaded,
}

impl RoutingArgs {
    /// The flags that say the same to `baton route`.
    pub fn to_argv(&self) -> Vec<String> {
        vec![
            format!("--strategy={}", value_name(self.strategy)),
            format!("--policy={}", value_name(self.policy)),
            format!("--max-queued={}", self.max_queued),
            format!("--queue-timeout={}", self.queue_timeout),
            format!("--attempts={}", self.attempts),
        ]
    }
}
