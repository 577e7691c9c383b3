//! The least that still fails: fewer faults, requests and engines, shorter texts, plainer settings, as long as the same thing goes
//! wrong. What is left is for people to read.

use std::time::{Duration, Instant};

use baton_types::TokenId;

use crate::ask::{Conversation, Reference};
use crate::fault::Fault;
use crate::run::{Failed, SimConfig, try_scenario};
use crate::scenario::{Clock, Scenario};

/// Whatever is taken away changes which chance meets what: so often each smaller scenario gets another one.
const CHANCES: u64 = 6;

/// Makes a failed scenario smaller for as long as `time` allows. The result fails as the first one did.
pub fn shrink(config: &SimConfig, failed: Failed, time: Duration) -> Failed {
    let kind = kind(&failed.why);
    let mut least = Shrinker { config, kind, failed, until: Instant::now() + time };
    loop {
        let before = least.failed.scenario.clone();
        least.fewer_faults();
        least.fewer_requests();
        least.fewer_engines();
        least.rarer_faults();
        least.shorter_texts();
        least.plainer();
        if least.failed.scenario == before || Instant::now() >= least.until {
            return least.failed;
        }
    }
}

/// What went wrong, without the numbers: the invariant if one is named, else the beginning of the words.
fn kind(why: &str) -> String {
    match why.split_once(':') {
        Some((invariant, _)) if invariant.starts_with('I') && invariant.len() < 8 => invariant.to_owned(),
        _ => why.chars().filter(|c| c.is_alphabetic()).take(24).collect(),
    }
}

struct Shrinker<'a> {
    config: &'a SimConfig,
    kind: String,
    failed: Failed,
    until: Instant,
}

impl Shrinker<'_> {
    /// Takes a change if the changed scenario still fails in the same way; whether it did.
    fn attempt(&mut self, change: impl FnOnce(&mut Scenario)) -> bool {
        let mut smaller = self.failed.scenario.clone();
        change(&mut smaller);
        if smaller == self.failed.scenario {
            return false;
        }
        let seed = smaller.seed;
        for chance in 0..CHANCES {
            if Instant::now() >= self.until {
                return false;
            }
            smaller.seed = seed.wrapping_add(chance);
            if let Err(failed) = try_scenario(self.config, &smaller)
                && kind(&failed.why) == self.kind
            {
                self.failed = Failed { seed: None, ..*failed };
                return true;
            }
        }
        false
    }

    fn fewer_faults(&mut self) {
        for fault in Fault::ALL {
            self.attempt(|scenario| scenario.faults.set(fault, 0));
        }
    }

    /// Halves, then quarters, down to single ones.
    fn fewer_requests(&mut self) {
        let mut run = self.failed.scenario.requests.len() / 2;
        while run > 0 {
            let mut from = 0;
            while from < self.failed.scenario.requests.len() {
                let gone = self.attempt(|scenario| {
                    let to = (from + run).min(scenario.requests.len());
                    if to - from < scenario.requests.len() {
                        scenario.requests.drain(from..to);
                    }
                });
                if !gone {
                    from += run;
                }
            }
            run /= 2;
        }
    }

    fn fewer_engines(&mut self) {
        for i in (0..self.failed.scenario.engines.len()).rev() {
            self.attempt(|scenario| {
                if scenario.engines.len() > 1 {
                    scenario.engines.remove(i);
                }
            });
        }
    }

    /// The first few of each kind may do; and faults end as early as they can.
    fn rarer_faults(&mut self) {
        for fault in Fault::ALL {
            for most in [1, 2, 4, 8] {
                if self.failed.scenario.faults.most(fault).is_some_and(|now| now <= most)
                    || self.attempt(|scenario| scenario.faults.limit(fault, most))
                {
                    break;
                }
            }
        }
        while self.failed.scenario.unrest_us > 1_000 && self.attempt(|scenario| scenario.unrest_us /= 2) {}
    }

    fn shorter_texts(&mut self) {
        for i in 0..self.failed.scenario.requests.len() {
            while self.attempt(|scenario| {
                let prompt = &mut scenario.requests[i].prompt;
                prompt.truncate(prompt.len().div_ceil(2));
            }) {}
            while self.attempt(|scenario| {
                let ask = &mut scenario.requests[i];
                ask.max_tokens = ask.max_tokens.div_ceil(2);
                ask.min_tokens = ask.min_tokens.min(ask.max_tokens);
            }) {}
            self.attempt(|scenario| {
                let ask = &mut scenario.requests[i];
                (ask.min_tokens, ask.stop_after, ask.sample_seed) = (0, None, None);
                ask.stop_tokens.clear();
            });
            while self.attempt(|scenario| {
                if let Some(after) = &mut scenario.requests[i].after {
                    after.think_us /= 2;
                }
            }) {}
        }
    }

    fn plainer(&mut self) {
        self.attempt(|scenario| scenario.router_clock = Clock::TRUE);
        self.attempt(|scenario| scenario.crossed = false);
        self.attempt(|scenario| scenario.network.halves_pair_once = false);
        for i in 0..self.failed.scenario.engines.len() {
            self.attempt(|scenario| scenario.engines[i].clock = Clock::TRUE);
            self.attempt(|scenario| scenario.engines[i].watermark_blocks = 0);
            self.attempt(|scenario| scenario.engines[i].retain = None);
        }
        self.attempt(|scenario| scenario.proto.tables = None);
        self.attempt(|scenario| scenario.names_are_global = false);
        for i in 0..self.failed.scenario.requests.len() {
            self.attempt(|scenario| scenario.requests[i].after = None);
            self.attempt(|scenario| scenario.requests[i].reference = Reference::Found);
            self.attempt(|scenario| scenario.requests[i].conversation = Conversation::Untold);
        }
        self.attempt(|scenario| scenario.network.pieces = 1);
        self.attempt(|scenario| {
            let prompts = scenario.requests.iter_mut().flat_map(|ask| &mut ask.prompt);
            prompts.for_each(|token| *token = TokenId(token.0 % 10));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_of_one_kind_whatever_their_numbers() {
        assert_eq!(kind("I7: token 3 of the answer"), kind("I7: token 12 of the answer"));
        assert_ne!(kind("I3: a byte of l3 lands"), kind("I7: token 12 of the answer"));
        assert_eq!(kind("r3 is refused though"), kind("r17 is refused though"));
        assert_ne!(kind("r3 is refused though"), kind("r3 failed (Overloaded) though"));
    }
}
