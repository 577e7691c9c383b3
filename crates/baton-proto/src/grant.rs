//! What a passive side lets its peer touch: claims come in, grants go out, in one piece or as the prompt is computed.

use baton_types::{BlockHash, EngineId, Millis, Mutant, Time, TransferId};

use crate::action::{Ending, Output};
use crate::config::Config;
use crate::endpoint::Endpoint;
use crate::lease::{Lease, Stage};
use crate::message::{Decline, Held, Message};
use crate::registration::{Registration, Wants};
use crate::timer::Reason;

/// A reader's clock may be slower than the source's by one part in so many: far more than clocks of computers differ, but a virtual
/// machine's may be slowed down while it catches up.
const CLOCK_MARGIN: u32 = 15;

/// What a Claim names.
#[derive(Debug)]
pub(crate) struct Claim {
    pub attempt: u32,
    pub first_unit: usize,
    pub chain: Vec<BlockHash>,
    pub held: Held,
}

/// What the peer asked for last, and how much of it it has been granted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claimed {
    attempt: u32,
    /// For how long from when it asked.
    remaining: Millis,
    /// The next unit of the chain to grant, and the end of what the two chains have in common.
    next: usize,
    end: usize,
    /// That is all of both chains.
    whole: bool,
    /// All of it has been granted.
    complete: bool,
}

impl Lease {
    /// Grants what was claimed and has become available since; none if there is nothing new to say, and nobody asks.
    fn grant(&mut self, transfer: TransferId, asked: bool) -> Option<Message> {
        let available = self.first_unit + self.units.len();
        let complete = self.is_complete();
        let claimed = self.claimed.as_mut().filter(|claimed| !claimed.complete)?;
        let from = claimed.next;
        let to = claimed.end.min(available).max(from);
        claimed.complete = available >= claimed.end && (complete || claimed.end < self.chain.len());
        claimed.next = to;
        if from == to && !claimed.complete && !asked {
            return None;
        }
        self.granted = true;
        let units = if from < to { &self.units[from - self.first_unit..to - self.first_unit] } else { &[] };
        Some(Message::Granted {
            transfer,
            attempt: claimed.attempt,
            remaining: claimed.remaining,
            first_unit: from as u32,
            units: units.to_vec(),
            complete: claimed.complete,
            prefilled: self.prefilled.filter(|_| claimed.complete && claimed.whole),
        })
    }
}

impl Endpoint {
    /// Tells the peer what it may touch, and the transport.
    pub(crate) fn grant(&mut self, transfer: TransferId, asked: bool) {
        let Some(lease) = self.leases.get_mut(&transfer) else { return };
        if lease.stage != Stage::Live {
            return;
        }
        let Some(granted) = lease.grant(transfer, asked) else { return };
        let (direction, peer) = (lease.order.direction, lease.peer.clone().expect("who claimed is known"));
        if let Message::Granted { units, .. } = &granted
            && !units.is_empty()
        {
            let (engine, units) = (peer.clone(), units.clone());
            self.out.push_back(Output::Permit { engine, transfer, direction, units });
        }
        self.say(&peer, granted);
    }

    pub(crate) fn on_claim(&mut self, now: Time, peer: &EngineId, transfer: TransferId, claim: Claim) {
        let decline = |why| Message::Declined { transfer, why };
        if !self.leases.contains_key(&transfer) {
            let found = match claim.held {
                Held::Offered => false,
                Held::Early if self.await_offer(now, peer, transfer) => return,
                Held::Early => false,
                Held::Retained(retention) => self.lend(now, peer, transfer, retention, &claim),
            };
            if !found {
                self.say(peer, decline(Decline::Unknown));
                return;
            }
        }
        let lease = self.leases.get_mut(&transfer).expect("found or made above");
        let stranger = lease.peer.as_ref().is_some_and(|known| known != peer);
        if stranger || lease.stage != Stage::Live {
            self.say(peer, decline(Decline::Unknown));
            return;
        }
        let Claim { attempt, first_unit, chain, .. } = claim;
        // Only what both sides would compute the same bytes for is ever granted (I13).
        let any = self.config.mutation.is(Mutant::ChainNotCompared);
        let agrees = |(ours, theirs): &(&BlockHash, &BlockHash)| any || ours == theirs;
        let common = lease.chain.iter().zip(&chain).take_while(agrees).count();
        let whole = common == lease.chain.len() && common == chain.len();
        // A writer must write all of what was registered; a reader takes what there is. Who has it all may still ask for time.
        let enough = if lease.order.registers {
            whole && first_unit == lease.first_unit
        } else {
            // What was lent from a retention begins where its first claim did, and nothing before it is lent.
            let ahead = first_unit < common || (lease.granted && first_unit == common);
            first_unit >= lease.first_unit && ahead
        };
        if !enough {
            let useless = lease.order.registers;
            self.say(peer, decline(Decline::Chain));
            if useless {
                self.end_lease(now, transfer, Ending::Declined);
            }
            return;
        }
        lease.peer = Some(peer.clone());
        let until = lease.renewed(now, self.config.lease);
        let remaining = granted_time(&self.config, now, until);
        lease.readable_until = until;
        lease.claimed =
            Some(Claimed { attempt, remaining, next: first_unit, end: common, whole, complete: false });
        self.timers.clear(&Reason::Retry(transfer));
        if lease.is_complete() {
            self.timers.set(Reason::Expiry(transfer), until);
        }
        // Answered by what there is, be it nothing yet.
        self.grant(transfer, true);
    }

    /// An early reader that came first: false if it cannot wait here.
    fn await_offer(&mut self, now: Time, peer: &EngineId, transfer: TransferId) -> bool {
        let registration = Registration { peer: peer.clone(), wants: Wants::Offer };
        let known = self.transfers.contains_key(&transfer) || self.ended.contains(transfer);
        let waits = !known && self.registrations.insert(transfer, registration);
        if waits {
            self.timers.set(Reason::Registration(transfer), now + self.config.lease);
        }
        waits
    }
}

/// How long a reader may count on a lease that ends at `until`. Its clock may be slower than ours (I6), so not on the last part of
/// it.
fn granted_time(config: &Config, now: Time, until: Time) -> Millis {
    if config.mutation.is(Mutant::InstantOnTheWire) {
        return Millis::floor(until.since(Time::ZERO));
    }
    let left = until.since(now);
    Millis::floor(left - left / CLOCK_MARGIN)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use baton_types::{EngineId, EngineName, KvDtype, PoolShape};

    use super::*;
    use crate::Compat;

    #[test]
    fn a_reader_with_a_slow_clock_stops_before_the_lease_ends() {
        for lease_ms in [30, 301, 3_000, 29_999, 30_000] {
            let engine = EngineId::new(EngineName::new("p").unwrap(), 1);
            let lease = Duration::from_millis(lease_ms);
            let shape = PoolShape::whole_blocks(1, KvDtype::F32);
            let config =
                Config { lease, heartbeat: lease / 3, ..Config::new(engine, Compat([0; 16]), vec![], shape) };
            let now = Time::from_millis(7);
            let granted = Duration::from(granted_time(&config, now, now + lease));
            // What 14 shows on the reader's clock takes 15 on the source's.
            assert!(granted * 15 <= lease * 14 && granted * 16 > lease * 14, "{granted:?} of {lease:?}");
        }
    }
}
