//! The active side of a push: it claims what the destination has registered and writes it, chunk by chunk.

use baton_types::{BlockHash, EngineId, Time, TransferId, UnitId};

use crate::action::{Ending, Event};
use crate::endpoint::Endpoint;
use crate::message::{Message, Prefilled};
use crate::order::PUSH;
use crate::registration::{Registration, Wants};
use crate::timer::Reason;
use crate::transfer::{Stage, Transfer};

impl Endpoint {
    pub(crate) fn on_send(&mut self, now: Time, transfer: TransferId, chain: Vec<BlockHash>) {
        let waiting = self.take_registration(transfer);
        if let Some(why) = self.refuse_new(transfer, chain.len()) {
            self.event(Event::Released { transfer, why });
            return;
        }
        self.transfers.insert(transfer, Transfer::new(&PUSH, chain));
        match waiting {
            Some(Registration { peer, wants: Wants::Claim { first_unit } }) => {
                self.claim_registered(now, transfer, peer, first_unit);
            }
            Some(Registration { peer, wants: Wants::Offer }) => self.say(&peer, Message::Abort { transfer }),
            None => {}
        }
    }

    pub(crate) fn on_register(
        &mut self,
        now: Time,
        peer: &EngineId,
        transfer: TransferId,
        first_unit: usize,
    ) {
        let registration = Registration { peer: peer.clone(), wants: Wants::Claim { first_unit } };
        match self.transfers.get(&transfer) {
            Some(writer) if writer.stage == Stage::Waiting && !writer.reads() => {
                self.claim_registered(now, transfer, peer.clone(), first_unit);
            }
            // It was heard before, and its answer is on the way.
            Some(writer) if writer.peer.as_ref() == Some(peer) => {}
            // Nor can who holds the transfer as a lease ever claim: the two legs were told of different strategies.
            None if !self.leases.contains_key(&transfer)
                && !self.ended.contains(transfer)
                && self.registrations.insert(transfer, registration) =>
            {
                self.timers.set(Reason::Registration(transfer), now + self.config.lease);
            }
            _ => self.say(peer, Message::Abort { transfer }),
        }
    }

    pub(crate) fn claim_registered(
        &mut self,
        now: Time,
        transfer: TransferId,
        peer: EngineId,
        first_unit: usize,
    ) {
        let writer = self.transfers.get_mut(&transfer).expect("looked up by the caller");
        writer.peer = Some(peer);
        writer.first_unit = first_unit;
        writer.stage = Stage::Claiming;
        // From here on the peer's answers, or its loss, end it; the hold after Complete has a time limit as well.
        self.keep_beating(now);
        self.claim(now, transfer);
    }

    pub(crate) fn on_progress(&mut self, now: Time, transfer: TransferId, units: Vec<UnitId>) {
        let Some(writer) = self.transfers.get_mut(&transfer) else { return };
        assert!(writer.ours.len() + units.len() <= writer.chain.len(), "no more units than the chain has");
        writer.ours.extend(units);
        self.pump(now, transfer);
    }

    pub(crate) fn on_complete(&mut self, now: Time, transfer: TransferId, prefilled: Prefilled) {
        let Some(writer) = self.transfers.get_mut(&transfer) else { return };
        assert_eq!(writer.ours.len(), writer.chain.len(), "every unit was named before Complete");
        writer.complete = true;
        writer.prefilled = Some(prefilled);
        // The units are held for the destination so long and no longer.
        self.timers.set(Reason::Expiry(transfer), now + self.config.lease);
        self.pump(now, transfer);
    }

    /// Writer: posts what is complete and not yet posted; says Done when that was the last.
    pub(crate) fn pump(&mut self, now: Time, transfer: TransferId) {
        let writer = self.transfers.get_mut(&transfer).expect("looked up by the caller");
        if writer.stage != Stage::Moving {
            return;
        }
        let from = writer.posted.max(writer.first_unit);
        let to = writer.ours.len();
        writer.posted = to;
        if from < to {
            let theirs = &writer.theirs[from - writer.first_unit..to - writer.first_unit];
            let pairs: Vec<_> = writer.ours[from..to].iter().copied().zip(theirs.iter().copied()).collect();
            self.post(transfer, &pairs);
        }
        let writer = self.transfers.get_mut(&transfer).expect("looked up above");
        if writer.complete {
            // Said while the last bytes still move: the destination waits for their notifications as well.
            writer.stage = Stage::Finishing;
            self.say_done(now, transfer);
        }
    }

    pub(crate) fn say_done(&mut self, now: Time, transfer: TransferId) {
        let Some(writer) = self.transfers.get(&transfer) else { return };
        let peer = writer.peer.clone().expect("a moving transfer has a peer");
        let (notifications, prefilled) = (writer.notifications, writer.prefilled);
        self.say(&peer, Message::Done { transfer, notifications, prefilled });
        self.timers.set(Reason::Retry(transfer), now + self.config.retry);
    }

    /// The destination has everything. The units are released once our own posts are off them.
    pub(crate) fn on_done_ack(&mut self, peer: &EngineId, transfer: TransferId) {
        self.end_farewell(transfer, peer);
        let Some(writer) = self.transfers.get_mut(&transfer) else { return };
        if writer.peer.as_ref() != Some(peer) || writer.stage != Stage::Finishing {
            return;
        }
        writer.acked = true;
        self.timers.clear(&Reason::Retry(transfer));
        self.finish_write(transfer);
    }

    pub(crate) fn finish_write(&mut self, transfer: TransferId) {
        let over =
            self.transfers.get(&transfer).is_some_and(|writer| writer.acked && writer.in_flight.is_empty());
        if over {
            self.remove_transfer(transfer);
            self.event(Event::Released { transfer, why: Ending::Done });
        }
    }
}
