//! The passive side of a transfer: units offered to one peer, which reads them (pull) or writes them (push).

use std::collections::BTreeSet;
use std::time::Duration;

use baton_types::{BlockHash, EngineId, Mutant, Time, TransferId, UnitId};

use crate::action::{Ending, Event, Output, PeerAddress};
use crate::codec::Notification;
use crate::endpoint::Endpoint;
use crate::grant::Claimed;
use crate::message::{Message, Prefilled};
use crate::order::{Order, PULL, PUSH};
use crate::registration::{Registration, Wants};
use crate::timer::Reason;

#[derive(Clone, Debug)]
pub(crate) struct Lease {
    pub order: &'static Order,
    /// Who may claim. A pull's source learns it from the first claim whose chain fits: a transfer id alone, which may be mixed up,
    /// binds nobody.
    pub peer: Option<EngineId>,
    pub address: Option<PeerAddress>,
    pub chain: Vec<BlockHash>,
    /// Where in the chain `units` begin.
    pub first_unit: usize,
    /// Pull: as far as they are computed.
    pub units: Vec<UnitId>,
    /// The peer knows unit ids: from here on it may touch them (I3).
    pub granted: bool,
    /// Pull: the reader's right ends then, if nothing renews it. What is granted later is granted no longer.
    pub readable_until: Time,
    pub claimed: Option<Claimed>,
    pub stage: Stage,
    /// Pull: every unit is computed.
    pub prefilled: Option<Prefilled>,
    /// Lent out of a retention: nothing renews it beyond that one's end.
    pub ends: Option<Time>,
    arrived: Arrived,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Live,
    /// The engine wants the units back, or the wait is over; the peer has been told to let go and has not answered yet.
    Revoking(Ending),
}

/// Push: what the writer has said so far, in whatever order.
#[derive(Clone, Debug, Default)]
struct Arrived {
    notifications: BTreeSet<u32>,
    /// How many there are in all, and what came of the prompt.
    done: Option<(u32, Option<Prefilled>)>,
}

impl Lease {
    fn new(order: &'static Order, chain: Vec<BlockHash>) -> Self {
        Self {
            order,
            peer: None,
            address: None,
            chain,
            first_unit: 0,
            units: Vec::new(),
            granted: false,
            readable_until: Time::ZERO,
            claimed: None,
            stage: Stage::Live,
            prefilled: None,
            ends: None,
            arrived: Arrived::default(),
        }
    }

    /// Units of a retention, all complete, for a peer that has claimed them.
    pub fn lent(
        order: &'static Order,
        peer: EngineId,
        chain: Vec<BlockHash>,
        first_unit: usize,
        units: Vec<UnitId>,
        ends: Time,
    ) -> Self {
        Self { peer: Some(peer), first_unit, units, ends: Some(ends), ..Self::new(order, chain) }
    }

    /// Nothing more becomes available: from here on it has an end.
    pub fn is_complete(&self) -> bool {
        self.order.registers || self.prefilled.is_some() || self.ends.is_some()
    }

    /// Until when a sign of life at `now` keeps it.
    pub fn renewed(&self, now: Time, lease: Duration) -> Time {
        self.ends.map_or(now + lease, |ends| ends.min(now + lease))
    }
}

impl Endpoint {
    pub(crate) fn on_offer(&mut self, transfer: TransferId, chain: Vec<BlockHash>) {
        let waiting = self.take_registration(transfer);
        if let Some(why) = self.refuse_new(transfer, chain.len()) {
            self.event(Event::Released { transfer, why });
            return;
        }
        let mut lease = Lease::new(&PULL, chain);
        match waiting {
            Some(Registration { peer, wants: Wants::Offer }) => {
                self.say(&peer, Message::Offered { transfer });
                lease.peer = Some(peer);
            }
            Some(Registration { peer, wants: Wants::Claim { .. } }) => {
                self.say(&peer, Message::Abort { transfer });
            }
            None => {}
        }
        // It has no end before Complete: until then the engine computes it.
        self.leases.insert(transfer, lease);
    }

    /// Pull: more of the chain is computed.
    pub(crate) fn on_offer_progress(&mut self, transfer: TransferId, units: Vec<UnitId>) {
        let lease = self.leases.get_mut(&transfer).expect("looked up by the caller");
        assert!(lease.units.len() + units.len() <= lease.chain.len(), "no more units than the chain has");
        lease.units.extend(units);
        self.grant(transfer, false);
    }

    /// Pull: all of the chain is computed.
    pub(crate) fn on_offer_complete(&mut self, now: Time, transfer: TransferId, prefilled: Prefilled) {
        let lease = self.leases.get_mut(&transfer).expect("looked up by the caller");
        assert_eq!(lease.units.len(), lease.chain.len(), "every unit was named before Complete");
        lease.prefilled = Some(prefilled);
        if lease.stage == Stage::Live {
            let end = lease.readable_until.max(now + self.config.lease);
            self.timers.set(Reason::Expiry(transfer), end);
        }
        self.grant(transfer, false);
    }

    pub(crate) fn on_receive(
        &mut self,
        now: Time,
        transfer: TransferId,
        peer: PeerAddress,
        chain: Vec<BlockHash>,
        first_unit: usize,
        units: Vec<UnitId>,
    ) {
        assert_eq!(chain.len(), first_unit + units.len(), "one hash for each unit");
        // What Expect began goes on here.
        let known = self.transfers.remove(&transfer).is_some();
        let refused = if known { self.too_long(chain.len()) } else { self.refuse_new(transfer, chain.len()) };
        if let Some(why) = refused.or_else(|| (!self.seek_peer(&peer)).then_some(Ending::Limit)) {
            self.fail_unstarted(transfer, why);
            return;
        }
        let mut lease = Lease::new(&PUSH, chain);
        lease.peer = Some(peer.engine.clone());
        lease.address = Some(peer);
        lease.first_unit = first_unit;
        lease.units = units;
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
                Message::Register { transfer, first_unit: lease.first_unit as u32 }
            }
            Stage::Live => return,
            Stage::Revoking(_) => Message::Abort { transfer },
        };
        self.say(&peer, message);
        self.timers.set(Reason::Retry(transfer), now + self.config.retry);
    }

    /// A sign of life from the active side renews the lease.
    pub(crate) fn renew(&mut self, now: Time, peer: &EngineId, transfer: TransferId) {
        let Some(lease) = self.leases.get_mut(&transfer) else { return };
        if lease.stage != Stage::Live || lease.peer.as_ref().is_some_and(|known| known != peer) {
            return;
        }
        if self.config.mutation.is(Mutant::HeartbeatsRenewNothing) && lease.order.registers {
            return;
        }
        if lease.is_complete() && (lease.granted || !lease.order.registers) {
            self.timers.set(Reason::Expiry(transfer), lease.renewed(now, self.config.lease));
        }
    }

    pub(crate) fn on_notified(&mut self, now: Time, peer: &EngineId, bytes: &[u8]) {
        // Bytes that no Baton wrote are no notification; the transport has checked whom they come from.
        let Ok(Notification { transfer, index }) = Notification::decode(bytes) else { return };
        let Some(lease) = self.leases.get_mut(&transfer) else { return };
        if lease.peer.as_ref() != Some(peer) || !lease.granted || !lease.order.registers {
            return;
        }
        // Never more than one a unit and pair of ranks: a peer cannot make the set grow beyond (I11).
        let shape = self.peers.known.get(peer).and_then(|known| known.shape);
        let pairs = shape.map_or(0, |theirs| theirs.ranks.max(self.config.shape.ranks));
        if (index as usize) < lease.units.len() * pairs as usize {
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
        prefilled: Option<Prefilled>,
    ) {
        let Some(lease) = self.leases.get_mut(&transfer) else { return };
        if lease.peer.as_ref() != Some(peer) || !lease.granted {
            return;
        }
        if lease.order.registers {
            lease.arrived.done = Some((notifications, prefilled));
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
        let Some((expected, prefilled)) = lease.arrived.done else { return };
        if (lease.arrived.notifications.len() as u32) + early < expected || lease.stage != Stage::Live {
            return;
        }
        let covered = lease.chain.len();
        let peer = lease.peer.clone().expect("a registered lease has a peer");
        self.remove_lease(transfer);
        self.event(Event::Ready { transfer, covered, prefilled });
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

    /// The active side has answered our Abort: it touches the units no more.
    pub(crate) fn on_lease_aborted(&mut self, peer: &EngineId, transfer: TransferId) {
        let revoking = self.leases.get(&transfer).is_some_and(|lease| {
            matches!(lease.stage, Stage::Revoking(_)) && lease.peer.as_ref() == Some(peer)
        });
        if revoking {
            self.let_go(transfer, Ending::PeerAborted);
        }
    }

    /// Time is up, or the engine wants the units back.
    pub(crate) fn end_lease(&mut self, now: Time, transfer: TransferId, why: Ending) {
        let Some(lease) = self.leases.get_mut(&transfer) else { return };
        if let Stage::Revoking(first) = lease.stage {
            if why != Ending::Expired {
                return;
            }
            if lease.order.lapses || self.config.mutation.is(Mutant::QuarantineTimesOut) {
                self.let_go(transfer, first);
            } else if let Some(peer) = lease.peer.clone() {
                // A writer's right does not run out, but a writer that does not answer is cut off: the fence frees the units.
                self.lose_peer(now, &peer, Ending::PeerLost);
            }
            return;
        }
        let lapsed = lease.order.lapses && now >= lease.readable_until;
        if lease.granted && !lapsed && !self.config.mutation.is(Mutant::FreeWithoutQuarantine) {
            lease.stage = Stage::Revoking(why);
            let end = if lease.order.lapses { lease.readable_until } else { now + self.config.lease };
            if lease.order.registers {
                self.event(Event::Failed { transfer, why, quarantined: true });
            }
            self.timers.set(Reason::Expiry(transfer), end);
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

    /// The peer cannot touch the units any more, or never could: the last word about this lease.
    pub(crate) fn let_go(&mut self, transfer: TransferId, why: Ending) {
        let Some(lease) = self.remove_lease(transfer) else { return };
        match (lease.order.registers, lease.stage) {
            (true, Stage::Live) => self.event(Event::Failed { transfer, why, quarantined: false }),
            (_, Stage::Revoking(first)) => self.event(Event::Released { transfer, why: first }),
            (false, Stage::Live) => self.event(Event::Released { transfer, why }),
        }
    }

    /// Whether this peer has been told of units of ours, and has not let go of them.
    pub(crate) fn has_granted(&self, engine: &EngineId) -> bool {
        self.leases.values().any(|lease| lease.granted && lease.peer.as_ref() == Some(engine))
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
        if let Some(engine) = lease.peer.clone().filter(|_| lease.granted) {
            self.out.push_back(Output::Forbid { engine, transfer });
        }
        Some(lease)
    }

    pub(crate) fn event(&mut self, event: Event) {
        self.out.push_back(Output::Event(event));
    }
}
