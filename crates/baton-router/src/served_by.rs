//! Who served a request: what `x-baton-served-by` says.

use std::collections::BTreeMap;

use baton_types::{LegKind, TransferMode};

/// The engines of the current attempt, by the names they gave themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServedBy {
    attempt: u32,
    mode: Option<TransferMode>,
    reuse_tokens: Option<u32>,
    engines: BTreeMap<LegKind, String>,
}

impl ServedBy {
    pub fn leg_started(&mut self, attempt: u32, kind: LegKind, mode: Option<TransferMode>, name: String) {
        if attempt != self.attempt {
            *self = Self { attempt, mode, reuse_tokens: None, engines: BTreeMap::new() };
        }
        self.engines.insert(kind, name);
    }

    /// Prefill was told where KV of so many tokens is. How many it read, its answer's `cached_tokens` include.
    pub fn reuse_offered(&mut self, tokens: u32) {
        self.reuse_tokens = Some(tokens);
    }

    /// `prefill=a; decode=b; strategy=push`, or `engine=a; strategy=none`; with `; reuse=640` where so many tokens were offered.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for (kind, name) in &self.engines {
            let kind = match kind {
                LegKind::Prefill => "prefill",
                LegKind::Decode => "decode",
                LegKind::Whole => "engine",
            };
            text.push_str(&format!("{kind}={name}; "));
        }
        let strategy = match self.mode {
            None => "none",
            Some(TransferMode::Pull) => "pull",
            Some(TransferMode::EarlyPull) => "early-pull",
            Some(TransferMode::Push) => "push",
        };
        text.push_str("strategy=");
        text.push_str(strategy);
        if let Some(tokens) = self.reuse_tokens {
            text.push_str(&format!("; reuse={tokens}"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_attempt_counts() {
        let mut served = ServedBy::default();
        let push = Some(TransferMode::Push);
        served.leg_started(1, LegKind::Prefill, push, "p0".into());
        served.leg_started(1, LegKind::Decode, push, "d0".into());
        served.reuse_offered(640);
        assert_eq!(served.to_text(), "prefill=p0; decode=d0; strategy=push; reuse=640");
        served.leg_started(2, LegKind::Prefill, push, "p1".into());
        served.leg_started(2, LegKind::Decode, push, "d1".into());
        assert_eq!(served.to_text(), "prefill=p1; decode=d1; strategy=push");
        served.leg_started(3, LegKind::Whole, None, "b".into());
        assert_eq!(served.to_text(), "engine=b; strategy=none");
    }
}
