//! The passive side of a transfer: blocks offered to one peer, which reads them (pull) or writes them (push).

use std::collections::BTreeSet;

use baton_types::{BlockHash, BlockId, EngineId, Millis, Mutant, Time, TokenId, TransferId};

use crate::action::{Ending, Event, Output, PeerAddress};
use crate::codec::Notification;
use crate::endpoint::Endpoint;
use crate::message::{Decline, Message};
use crate::order::{Order, PULL, PUSH};
use crate::timer::Reason;

/// A reader's clock may be slower than the source's by one part in so many: far more than clocks of computers differ, but a virtual
/// machine's may be slowed down while it catches up.
const CLOCK_MARGIN: u32 = 15;

#[derive(Clone, Debug)]
pub(crate) struct Lease {
    pub order: &'static Order,
    /// Who may claim. A pull's source learns it from the first claim or heartbeat.
    pub peer: Option<EngineId>,
    pub address: Option<PeerAddress>,
    chain: Vec<BlockHash>,
    /// Where in the chain `blocks` begin.
    first_block: usize,
    blocks: Vec<BlockId>,
    /// The peer knows block ids: from here on it may touch them (I3).
    pub granted: bool,
    pub stage: Stage,
    /// Pull: what follows the chain.
    first_token: Option<TokenId>,
    arrived: Arrived,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Live,
    /// The engine wants the blocks back, or the wait is over; the peer has been told to let go and has not answered yet.
    Revoking(Ending),
}

/// Push: what the writer has said so far, in whatever order.
#[derive(Clone, Debug, Default)]
struct Arrived {
    notifications: BTreeSet<u32>,
    /// How many there are in all, and the token that follows.
    done: Option<(u32, Option<TokenId>)>,
}

impl Endpoint {
    pub(crate) fn on_offer(
        &mut self,
        now: Time,
        transfer: TransferId,
        chain: Vec<BlockHash>,
        blocks: Vec<BlockId>,
        first_token: TokenId,
    ) {
        assert_eq!(chain.len(), blocks.len(), "one hash for each block");
        if let Some(why) = self.refuse_new(transfer, chain.len()) {
            self.event(Event::Released { transfer, why });
            return;
        }
        let lease = Lease {
            order: &PULL,
            peer: None,
            address: None,
            chain,
            first_block: 0,
            blocks,
            granted: false,
            stage: Stage::Live,
            first_token: Some(first_token),
            arrived: Arrived::default(),
        };
        self.leases.insert(transfer, lease);
        self.timers.set(Reason::Expiry(transfer), now + self.config.lease);
    }

    pub(crate) fn on_receive(
        &mut self,
        now: Time,
        transfer: TransferId,
        peer: PeerAddress,
        chain: Vec<BlockHash>,
        first_block: usize,
        blocks: Vec<BlockId>,
    ) {
        assert_eq!(chain.len(), first_block + blocks.len(), "one hash for each block");
        // What Expect began goes on here.
        let known = self.transfers.remove(&transfer).is_some();
        let refused = if known { self.too_long(chain.len()) } else { self.refuse_new(transfer, chain.len()) };
        if let Some(why) = refused.or_else(|| (!self.seek_peer(&peer)).then_some(Ending::Limit)) {
            self.fail_unstarted(transfer, why);
            return;
        }
        let lease = Lease {
            order: &PUSH,
            peer: Some(peer.engine.clone()),
            address: Some(peer),
            chain,
            first_block,
            blocks,
            granted: false,
            stage: Stage::Live,
            first_token: None,
            arrived: Arrived::default(),
        };
        self.leases.insert(transfer, lease);
        self.timers.set(Reason::Expiry(transfer), now + self.config.register_timeout);
        self.ask_lease(now, transfer);
    }

    /// Says again what this lease waits to be answered: Register until it is claimed, Abort until the writer has let go.
    pub(crate) fn ask_lease(&mut self, now: Time, transfer: TransferId) {
        let Some(lease) = self.leases.get(&transfer) else { return };
        let Some(peer) = lease.peer.clone() else { return };
        let message = match lease.stage {
            Stage::Live if lease.order.registers && !lease.granted => {
                Message::Register { transfer, first_block: lease.first_block as u32 }
            }
            Stage::Live => return,
            Stage::Revoking(_) => Message::Abort { transfer },
        };
        self.say(&peer, message);
        self.timers.set(Reason::Retry(transfer), now + self.config.retry);
    }

    pub(crate) fn on_claim(
        &mut self,
        now: Time,
        peer: &EngineId,
        transfer: TransferId,
        attempt: u32,
        first_block: usize,
        chain: &[BlockHash],
    ) {
        let decline = |why| Message::Declined { transfer, why };
        let Some(lease) = self.leases.get_mut(&transfer) else {
            self.say(peer, decline(Decline::Unknown));
            return;
        };
        let stranger = lease.peer.as_ref().is_some_and(|known| known != peer);
        if stranger || lease.stage != Stage::Live {
            self.say(peer, decline(Decline::Unknown));
            return;
        }
        // Only what both sides would compute the same bytes for is ever granted (I13).
        let any = self.config.mutation.is(Mutant::ChainNotCompared);
        let common = lease.chain.iter().zip(chain).take_while(|(ours, theirs)| any || ours == theirs).count();
        // A writer must write all of what was registered; a reader takes what there is.
        let enough = if lease.order.registers {
            common == lease.chain.len() && common == chain.len() && first_block == lease.first_block
        } else {
            first_block >= lease.first_block && first_block < common
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
        lease.granted = true;
        let whole = common == lease.chain.len() && common == chain.len();
        let skip = first_block - lease.first_block;
        let blocks = lease.blocks[skip..common - lease.first_block].to_vec();
        let first_token = lease.first_token.filter(|_| whole);
        self.timers.clear(&Reason::Retry(transfer));
        self.timers.set(Reason::Expiry(transfer), now + self.config.lease);
        let remaining = self.granted_time(now);
        let first_block = first_block as u32;
        self.say(peer, Message::Granted { transfer, attempt, remaining, first_block, blocks, first_token });
    }

    /// How long a reader may count on a lease that was renewed just now. Its clock may be slower than ours (I6), so not on the last
    /// part of it.
    fn granted_time(&self, now: Time) -> Millis {
        let lease = self.config.lease;
        if self.config.mutation.is(Mutant::InstantOnTheWire) {
            return Millis::floor((now + lease).since(Time::ZERO));
        }
        Millis::floor(lease - lease / CLOCK_MARGIN)
    }

    /// A sign of life from the active side renews the lease.
    pub(crate) fn renew(&mut self, now: Time, peer: &EngineId, transfer: TransferId) {
        let Some(lease) = self.leases.get_mut(&transfer) else { return };
        if lease.stage != Stage::Live || lease.peer.as_ref().is_some_and(|known| known != peer) {
            return;
        }
        lease.peer = Some(peer.clone());
        if self.config.mutation.is(Mutant::HeartbeatsRenewNothing) && lease.order.registers {
            return;
        }
        if lease.granted || !lease.order.registers {
            self.timers.set(Reason::Expiry(transfer), now + self.config.lease);
        }
    }

    pub(crate) fn on_notified(&mut self, now: Time, peer: &EngineId, bytes: &[u8]) {
        // Bytes that no Baton wrote are no notification; the transport has checked whom they come from.
        let Ok(Notification { transfer, index }) = Notification::decode(bytes) else { return };
        let Some(lease) = self.leases.get_mut(&transfer) else { return };
        if lease.peer.as_ref() != Some(peer) || !lease.granted || !lease.order.registers {
            return;
        }
        // Never more than one a block: a peer cannot make the set grow beyond (I11).
        if (index as usize) < lease.blocks.len() {
            lease.arrived.notifications.insert(index);
        }
        self.renew(now, peer, transfer);
        self.settle(transfer);
    }

    /// Done for a lease: a reader has read, or a writer has written.
    pub(crate) fn on_lease_done(
        &mut self,
        peer: &EngineId,
        transfer: TransferId,
        notifications: u32,
        first_token: Option<TokenId>,
    ) {
        let Some(lease) = self.leases.get_mut(&transfer) else { return };
        if lease.peer.as_ref() != Some(peer) || !lease.granted {
            return;
        }
        if lease.order.registers {
            lease.arrived.done = Some((notifications, first_token));
            self.settle(transfer);
        } else {
            self.remove_lease(transfer);
            self.event(Event::Released { transfer, why: Ending::Done });
            self.say(peer, Message::DoneAck { transfer });
        }
    }

    /// The KV is complete when every expected notification has come, and not before.
    fn settle(&mut self, transfer: TransferId) {
        let early = u32::from(self.config.mutation.is(Mutant::ReadyOneNotificationEarly));
        let Some(lease) = self.leases.get(&transfer) else { return };
        let Some((expected, first_token)) = lease.arrived.done else { return };
        if (lease.arrived.notifications.len() as u32) + early < expected || lease.stage != Stage::Live {
            return;
        }
        let covered = lease.chain.len();
        let peer = lease.peer.clone().expect("a registered lease has a peer");
        self.remove_lease(transfer);
        self.event(Event::Ready { transfer, covered, first_token });
        self.say(&peer, Message::DoneAck { transfer });
    }

    /// The active side gives up; a writer says with it that nothing of its own is in flight.
    pub(crate) fn on_lease_abort(&mut self, peer: &EngineId, transfer: TransferId) {
        let Some(lease) = self.leases.get(&transfer) else { return };
        if lease.peer.as_ref().is_some_and(|known| known != peer) {
            return;
        }
        self.let_go(transfer, Ending::PeerAborted);
    }

    /// The active side has answered our Abort: it touches the blocks no more.
    pub(crate) fn on_lease_aborted(&mut self, peer: &EngineId, transfer: TransferId) {
        let revoking = self.leases.get(&transfer).is_some_and(|lease| {
            matches!(lease.stage, Stage::Revoking(_)) && lease.peer.as_ref() == Some(peer)
        });
        if revoking {
            self.let_go(transfer, Ending::PeerAborted);
        }
    }

    /// Time is up, or the engine wants the blocks back.
    pub(crate) fn end_lease(&mut self, now: Time, transfer: TransferId, why: Ending) {
        let Some(lease) = self.leases.get_mut(&transfer) else { return };
        if let Stage::Revoking(first) = lease.stage {
            if why != Ending::Expired {
                return;
            }
            if lease.order.lapses || self.config.mutation.is(Mutant::QuarantineTimesOut) {
                self.let_go(transfer, first);
            } else if let Some(peer) = lease.peer.clone() {
                // A writer's right does not run out, but a writer that does not answer is cut off: the fence frees the blocks.
                self.lose_peer(now, &peer, Ending::PeerLost);
            }
            return;
        }
        let lapsed = lease.order.lapses && why == Ending::Expired;
        if lease.granted && !lapsed && !self.config.mutation.is(Mutant::FreeWithoutQuarantine) {
            lease.stage = Stage::Revoking(why);
            if lease.order.registers {
                self.event(Event::Failed { transfer, why, quarantined: true });
                self.timers.set(Reason::Expiry(transfer), now + self.config.lease);
            }
            self.ask_lease(now, transfer);
            return;
        }
        let (peer, address) = (lease.peer.clone(), lease.address.clone());
        let tell = lease.order.registers || lease.granted;
        self.let_go(transfer, why);
        if let Some(peer) = peer.filter(|_| tell) {
            self.bid_farewell(now, transfer, peer, address, Message::Abort { transfer });
        }
    }

    /// The peer cannot touch the blocks any more, or never could: the last word about this lease.
    pub(crate) fn let_go(&mut self, transfer: TransferId, why: Ending) {
        let Some(lease) = self.remove_lease(transfer) else { return };
        match (lease.order.registers, lease.stage) {
            (true, Stage::Live) => self.event(Event::Failed { transfer, why, quarantined: false }),
            (_, Stage::Revoking(first)) => self.event(Event::Released { transfer, why: first }),
            (false, Stage::Live) => self.event(Event::Released { transfer, why }),
        }
    }

    /// The peer is lost but not yet fenced.
    pub(crate) fn lose_lease(&mut self, transfer: TransferId, why: Ending) {
        let Some(lease) = self.leases.get_mut(&transfer) else { return };
        if !lease.order.registers {
            // A reader may still read; its time limit or the fence ends that.
            return;
        }
        if !lease.granted {
            self.remove_lease(transfer);
            self.event(Event::Failed { transfer, why, quarantined: false });
        } else if lease.stage == Stage::Live {
            lease.stage = Stage::Revoking(Ending::PeerLost);
            self.timers.clear(&Reason::Expiry(transfer));
            self.event(Event::Failed { transfer, why, quarantined: true });
        }
    }

    fn remove_lease(&mut self, transfer: TransferId) -> Option<Lease> {
        let lease = self.leases.remove(&transfer)?;
        self.timers.clear(&Reason::Expiry(transfer));
        self.timers.clear(&Reason::Retry(transfer));
        self.ended.insert(transfer);
        Some(lease)
    }

    pub(crate) fn event(&mut self, event: Event) {
        self.out.push_back(Output::Event(event));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use baton_types::{EngineId, EngineName};

    use super::*;
    use crate::{Compat, Config};

    #[test]
    fn a_reader_with_a_slow_clock_stops_before_the_lease_ends() {
        for lease_ms in [30, 301, 3_000, 29_999, 30_000] {
            let engine = EngineId::new(EngineName::new("p").unwrap(), 1);
            let lease = Duration::from_millis(lease_ms);
            let config =
                Config { lease, heartbeat: lease / 3, ..Config::new(engine, Compat([0; 16]), vec![], 1) };
            let granted = Duration::from(Endpoint::new(config).granted_time(Time::from_millis(7)));
            // What 14 shows on the reader's clock takes 15 on the source's.
            assert!(granted * 15 <= lease * 14 && granted * 16 > lease * 14, "{granted:?} of {lease:?}");
        }
    }
}
