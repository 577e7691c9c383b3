//! The active side of a pull: it claims what the source has computed and reads it.

use baton_types::{BlockHash, EngineId, Mutant, Time, TransferId, UnitId};

use crate::action::{Ending, Event, PeerAddress};
use crate::endpoint::Endpoint;
use crate::message::{Held, Message};
use crate::order::PULL;
use crate::timer::Reason;
use crate::transfer::{Answer, Grant, Stage, Transfer};

/// What a Fetch names.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub chain: Vec<BlockHash>,
    pub first_unit: usize,
    pub units: Vec<UnitId>,
    pub held: Held,
}

impl Endpoint {
    /// A destination knows of the request before it has units for it.
    pub(crate) fn on_expect(&mut self, now: Time, transfer: TransferId, peer: PeerAddress, early: bool) {
        let refused = self.refuse_new(transfer, 0);
        if let Some(why) = refused.or_else(|| (!self.seek_peer(&peer)).then_some(Ending::Limit)) {
            self.fail_unstarted(transfer, why);
            return;
        }
        let mut expected = Transfer::new(&PULL, Vec::new());
        expected.peer = Some(peer.engine.clone());
        expected.address = Some(peer);
        expected.held = if early { Held::Early } else { Held::Offered };
        self.transfers.insert(transfer, expected);
        self.keep_beating(now);
    }

    pub(crate) fn on_fetch(&mut self, now: Time, transfer: TransferId, peer: PeerAddress, wanted: Wanted) {
        let Wanted { chain, first_unit, units, held } = wanted;
        assert_eq!(chain.len(), first_unit + units.len(), "one hash for each unit");
        let known = self.transfers.contains_key(&transfer);
        let refused = if known { self.too_long(chain.len()) } else { self.refuse_new(transfer, chain.len()) };
        if let Some(why) = refused.or_else(|| (!self.seek_peer(&peer)).then_some(Ending::Limit)) {
            self.remove_transfer(transfer);
            self.fail_unstarted(transfer, why);
            return;
        }
        let reader = self.transfers.entry(transfer).or_insert_with(|| Transfer::new(&PULL, Vec::new()));
        reader.peer = Some(peer.engine.clone());
        reader.address = Some(peer);
        reader.chain = chain;
        reader.first_unit = first_unit;
        reader.ours = units;
        reader.held = held;
        reader.stage = Stage::Claiming;
        let patience = if held == Held::Early { self.config.register_timeout } else { self.config.lease };
        self.timers.set(Reason::Expiry(transfer), now + patience);
        self.keep_beating(now);
        self.claim(now, transfer);
    }

    /// A destination's transfer that never began.
    pub(crate) fn fail_unstarted(&mut self, transfer: TransferId, why: Ending) {
        self.ended.insert(transfer);
        self.event(Event::Failed { transfer, why, quarantined: false });
    }

    /// Reader: posts what is newly granted.
    pub(crate) fn read(&mut self, now: Time, transfer: TransferId, grant: Grant) {
        let reader = self.transfers.get_mut(&transfer).expect("looked up by the caller");
        reader.stage = Stage::Moving;
        let have = reader.granted_to();
        let end = grant.first_unit + grant.units.len();
        if grant.first_unit > have {
            // What lies between was lost with a connection.
            self.claim(now, transfer);
            return;
        }
        if end < have || reader.complete {
            return;
        }
        let from = reader.theirs.len();
        reader.theirs.extend_from_slice(&grant.units[have - grant.first_unit..]);
        reader.complete = grant.complete;
        reader.prefilled = grant.prefilled;
        let (ours, theirs) = (&reader.ours[from..], &reader.theirs[from..]);
        let pairs: Vec<_> = ours.iter().copied().zip(theirs.iter().copied()).collect();
        if !pairs.is_empty() {
            self.post(transfer, &pairs);
        } else if reader.complete && reader.in_flight.is_empty() {
            self.finish_read(now, transfer);
        }
    }

    /// What an early reader claimed is there now.
    pub(crate) fn on_offered(&mut self, now: Time, peer: &EngineId, transfer: TransferId) {
        let waits = |active: &Transfer| active.stage == Stage::Claiming && active.peer.as_ref() == Some(peer);
        if self.transfers.get(&transfer).is_some_and(waits) {
            self.claim(now, transfer);
        }
    }

    /// All bytes are here; they count only if the source was still bound to keep them (I3).
    pub(crate) fn finish_read(&mut self, now: Time, transfer: TransferId) {
        let reader = self.transfers.get(&transfer).expect("looked up by the caller");
        if now >= reader.deadline && !self.config.mutation.is(Mutant::KeepLateBytes) {
            self.end_transfer(now, transfer, Ending::Expired, Answer::Abort);
            return;
        }
        let covered = reader.granted_to();
        let prefilled = reader.prefilled.filter(|_| covered == reader.chain.len());
        let reader = self.remove_transfer(transfer).expect("looked up above");
        self.event(Event::Ready { transfer, covered, prefilled });
        let done = Message::Done { transfer, notifications: 0, prefilled: None };
        self.bid_farewell(now, transfer, reader.peer.expect("a reader has a peer"), reader.address, done);
    }
}
