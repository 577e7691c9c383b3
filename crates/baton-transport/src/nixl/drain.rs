//! The wait for what a dead peer had sent: its process or its agent is gone, but bytes may still wait in our network.

use std::ffi::CStr;
use std::time::{Duration, Instant};

use super::agent::Agent;
use super::link::Said;

#[derive(Debug)]
pub(super) struct Drain {
    next_probe: Instant,
    polls_left: Option<u8>,
    /// The network has ended the link. Nobody knows what the peer still does, and nobody will.
    is_hopeless: bool,
}

/// Between two looks whether NIXL still reaches a peer that is gone.
const PROBE_EVERY: Duration = Duration::from_millis(2);
/// So often NIXL looks for what has come, after it has found a peer gone.
const POLLS: u8 = 4;

impl Drain {
    /// After the end of a link that the peer has not ended with a Bye. Where NIXL cannot be asked whether it still reaches a peer, the
    /// end of the link is all there is to go by.
    pub fn new(end: &Said, can_probe: bool, now: Instant) -> Self {
        let polls_left = (!can_probe).then_some(POLLS);
        Self { next_probe: now, polls_left, is_hopeless: *end == Said::Broken }
    }

    /// Whether everything has been taken out of the network.
    pub fn is_done(&mut self, agent: &Agent, peer: &CStr, now: Instant) -> bool {
        match &mut self.polls_left {
            _ if self.is_hopeless => {}
            Some(0) => return true,
            Some(polls) => *polls -= 1,
            None if now >= self.next_probe => {
                self.next_probe = now + PROBE_EVERY;
                // NIXL takes in all that has come on a connection before it finds its end.
                if agent.notify(peer, &[]).is_err() {
                    self.polls_left = Some(POLLS);
                }
            }
            None => {}
        }
        false
    }

    pub fn needs_progress(&self) -> bool {
        !self.is_hopeless
    }
}
