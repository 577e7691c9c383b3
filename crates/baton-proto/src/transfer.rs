//! The active side of a transfer: it claims the peer's units, moves the bytes, and says done.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use baton_types::{BlockHash, EngineId, Mutant, Time, TransferId, UnitId};

use crate::action::{Direction, Ending, Event, Output, PeerAddress, PostId, RankPair};
use crate::codec::Notification;
use crate::endpoint::Endpoint;
use crate::message::{Held, Message, Prefilled};
use crate::order::Order;
use crate::timer::Reason;

/// Claims whose moment is remembered; an answer to an older one is not counted from.
const MAX_CLAIMS: usize = 16;

#[derive(Clone, Debug)]
pub(crate) struct Transfer {
    pub order: &'static Order,
    /// A push's source learns it from the registration.
    pub peer: Option<EngineId>,
    pub address: Option<PeerAddress>,
    pub chain: Vec<BlockHash>,
    /// Where in the chain the peer's units begin.
    pub first_unit: usize,
    /// Reader: the units for `chain[first_unit..]`. Writer: the complete units of `chain`, from its start.
    pub ours: Vec<UnitId>,
    /// The units the peer granted so far, for `chain[first_unit..]`.
    pub theirs: Vec<UnitId>,
    /// Reader: how the source holds it.
    pub held: Held,
    pub stage: Stage,
    /// When each claim was asked: what is granted counts from there (I6).
    pub claims: BTreeMap<u32, Time>,
    pub attempts: u32,
    /// Reader: when its right ends.
    pub deadline: Time,
    pub prefilled: Option<Prefilled>,
    /// Writer: how much of the chain has been posted, in how many notified posts.
    pub posted: usize,
    pub notifications: u32,
    /// Writer: the engine has named every unit and what came of the prompt. Reader: no more will be granted.
    pub complete: bool,
    /// Writer: the destination has everything.
    pub acked: bool,
    /// Reader: it failed while our own posts were writing into our units.
    pub quarantined: bool,
    pub in_flight: BTreeSet<PostId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Reader: no units yet. Writer: no registration yet.
    Waiting,
    Claiming,
    Moving,
    /// Writer: all is posted and Done is said.
    Finishing,
    /// It has failed; what is in flight must land before anybody is told that it is over.
    Ending {
        why: Ending,
        answer: Answer,
    },
}

/// What the peer hears at the end of a failed transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Abort,
    Aborted,
    Nothing,
}

impl Transfer {
    pub fn new(order: &'static Order, chain: Vec<BlockHash>) -> Self {
        Self {
            order,
            peer: None,
            address: None,
            chain,
            first_unit: 0,
            ours: Vec::new(),
            theirs: Vec::new(),
            held: Held::Offered,
            stage: Stage::Waiting,
            claims: BTreeMap::new(),
            attempts: 0,
            deadline: Time::ZERO,
            prefilled: None,
            posted: 0,
            notifications: 0,
            complete: false,
            acked: false,
            quarantined: false,
            in_flight: BTreeSet::new(),
        }
    }

    pub fn reads(&self) -> bool {
        self.order.direction == Direction::Read
    }

    /// How far into the chain the peer has granted its units.
    pub fn granted_to(&self) -> usize {
        self.first_unit + self.theirs.len()
    }

    /// A grant that this side could have been given: inside the chain and the peer's `pool`; a writer's is always whole.
    pub fn accepts(&self, grant: &Grant, pool: u32) -> bool {
        let wanted = self.chain.len().saturating_sub(grant.first_unit);
        let fits = if self.reads() {
            (self.first_unit..=self.chain.len()).contains(&grant.first_unit) && grant.units.len() <= wanted
        } else {
            grant.first_unit == self.first_unit && grant.units.len() == wanted && wanted > 0
        };
        fits && grant.units.iter().all(|unit| unit.0 < pool)
    }

    /// Nothing moves, and more will be granted.
    pub fn awaits_grant(&self) -> bool {
        self.reads() && self.stage == Stage::Moving && !self.complete
    }
}

impl Endpoint {
    /// Asks for the peer's units; a reader that moves already asks for more time, and for those that it has not been granted.
    pub(crate) fn claim(&mut self, now: Time, transfer: TransferId) {
        let Some(active) = self.transfers.get_mut(&transfer) else { return };
        let Some(peer) = active.peer.clone() else { return };
        if self.peers.known.get(&peer).is_none_or(|known| known.conns.is_empty()) {
            // Asked when the handshake is done.
            return;
        }
        let attempt = active.attempts;
        active.attempts += 1;
        active.claims.insert(attempt, now);
        if active.claims.len() > MAX_CLAIMS {
            active.claims.pop_first();
        }
        let first_unit = active.granted_to() as u32;
        let (chain, held) = (active.chain.clone(), active.held);
        self.say(&peer, Message::Claim { transfer, attempt, first_unit, chain, held });
        self.timers.set(Reason::Retry(transfer), now + self.config.retry);
    }

    /// Says again what this transfer waits to be answered.
    pub(crate) fn ask_transfer(&mut self, now: Time, transfer: TransferId) {
        let Some(active) = self.transfers.get(&transfer) else { return };
        match active.stage {
            Stage::Claiming => self.claim(now, transfer),
            Stage::Moving if active.awaits_grant() => self.claim(now, transfer),
            Stage::Finishing => self.say_done(now, transfer),
            Stage::Waiting | Stage::Moving | Stage::Ending { .. } => {}
        }
    }

    pub(crate) fn on_granted(
        &mut self,
        now: Time,
        peer: &EngineId,
        transfer: TransferId,
        attempt: u32,
        remaining: Duration,
        grant: Grant,
    ) {
        let pool = self.peers.known.get(peer).and_then(|known| known.shape).map_or(0, |shape| shape.units);
        let Some(active) = self.transfers.get_mut(&transfer) else { return };
        let Some(asked) = active.claims.get(&attempt).copied() else { return };
        if active.peer.as_ref() != Some(peer) && !self.config.mutation.is(Mutant::GrantFromAnybody) {
            return;
        }
        if !active.accepts(&grant, pool) {
            self.end_transfer(now, transfer, Ending::PeerAborted, Answer::Abort);
            return;
        }
        if !matches!(active.stage, Stage::Claiming | Stage::Moving) {
            return;
        }
        self.timers.clear(&Reason::Retry(transfer));
        if active.reads() {
            active.deadline = active.deadline.max(asked + remaining);
            if self.config.mutation.is(Mutant::KeepLateBytes) {
                self.timers.clear(&Reason::Expiry(transfer));
            } else {
                self.timers.set(Reason::Expiry(transfer), active.deadline);
            }
            self.read(now, transfer, grant);
        } else if active.stage == Stage::Claiming {
            active.stage = Stage::Moving;
            active.theirs = grant.units;
            self.pump(now, transfer);
        }
    }

    pub(crate) fn on_declined(&mut self, now: Time, peer: &EngineId, transfer: TransferId) {
        let Some(active) = self.transfers.get(&transfer) else { return };
        if active.peer.as_ref() == Some(peer) && active.stage == Stage::Claiming {
            self.end_transfer(now, transfer, Ending::Declined, Answer::Nothing);
        }
    }

    /// Moves units, one post for each pair of ranks that share heads. Each post of a writer is notified.
    pub(crate) fn post(&mut self, transfer: TransferId, pairs: &[(UnitId, UnitId)]) {
        let active = self.transfers.get_mut(&transfer).expect("a post belongs to a transfer");
        let engine = active.peer.clone().expect("a moving transfer has a peer");
        let shape = self.peers.known.get(&engine).and_then(|peer| peer.shape);
        let theirs = shape.expect("I5: units move to and from a peer that has shaken hands").ranks;
        for ranks in RankPair::all(self.config.shape.ranks, theirs) {
            let post = PostId(self.next_post);
            self.next_post += 1;
            self.posts.insert(post, transfer);
            active.in_flight.insert(post);
            let direction = active.order.direction;
            let notify = (direction == Direction::Write).then(|| {
                let index = active.notifications;
                active.notifications += 1;
                Notification { transfer, index }.encode()
            });
            let (engine, pairs) = (engine.clone(), pairs.to_vec());
            self.out.push_back(Output::Post { post, engine, direction, ranks, pairs, notify });
        }
    }

    pub(crate) fn on_moved(&mut self, now: Time, post: PostId, ok: bool) {
        let Some(transfer) = self.posts.remove(&post) else { return };
        let active = self.transfers.get_mut(&transfer).expect("a post in flight keeps its transfer (I4)");
        assert!(active.in_flight.remove(&post), "a post ends once");
        if !ok && !matches!(active.stage, Stage::Ending { .. }) {
            self.end_transfer(now, transfer, Ending::Transport, Answer::Abort);
            return;
        }
        if !active.in_flight.is_empty() {
            return;
        }
        match active.stage {
            Stage::Moving if active.reads() && active.complete => self.finish_read(now, transfer),
            Stage::Moving if active.reads() => {}
            Stage::Ending { .. } => self.close_transfer(now, transfer),
            _ => self.finish_write(transfer),
        }
    }

    /// It fails: nothing more is posted, and it is over when nothing of it is in flight.
    pub(crate) fn end_transfer(&mut self, now: Time, transfer: TransferId, why: Ending, answer: Answer) {
        let Some(active) = self.transfers.get_mut(&transfer) else { return };
        if let Stage::Ending { answer: said, .. } = &mut active.stage {
            // A peer that asked in the meantime gets its answer.
            if answer == Answer::Aborted {
                *said = answer;
            }
            return;
        }
        let quarantined = !active.in_flight.is_empty();
        active.stage = Stage::Ending { why, answer };
        let reads = active.reads();
        if self.config.mutation.is(Mutant::AbortedBeforePostsLand) && !reads && answer == Answer::Aborted {
            let peer = active.peer.clone().expect("it has asked");
            self.say(&peer, Message::Aborted { transfer });
        }
        let active = self.transfers.get_mut(&transfer).expect("looked up above");
        active.quarantined = reads && quarantined;
        self.timers.clear(&Reason::Retry(transfer));
        self.timers.clear(&Reason::Expiry(transfer));
        if reads {
            self.event(Event::Failed { transfer, why, quarantined });
        }
        if !quarantined {
            self.close_transfer(now, transfer);
        }
    }

    /// Nothing is in flight any more.
    fn close_transfer(&mut self, now: Time, transfer: TransferId) {
        let active = self.remove_transfer(transfer).expect("looked up by the caller");
        let Stage::Ending { why, answer } = active.stage else {
            unreachable!("only an ending transfer closes")
        };
        if active.quarantined || !active.reads() {
            self.event(Event::Released { transfer, why });
        }
        let Some(peer) = active.peer else { return };
        match answer {
            Answer::Abort => {
                self.bid_farewell(now, transfer, peer, active.address, Message::Abort { transfer })
            }
            Answer::Aborted => self.say(&peer, Message::Aborted { transfer }),
            Answer::Nothing => {}
        }
    }

    /// The passive side gives up. It may be the first word from it, if its registration was never heard.
    pub(crate) fn on_transfer_abort(&mut self, now: Time, peer: &EngineId, transfer: TransferId) {
        let Some(active) = self.transfers.get_mut(&transfer) else { return };
        if active.peer.get_or_insert_with(|| peer.clone()) == peer {
            self.end_transfer(now, transfer, Ending::PeerAborted, Answer::Aborted);
        }
    }

    pub(crate) fn remove_transfer(&mut self, transfer: TransferId) -> Option<Transfer> {
        let active = self.transfers.remove(&transfer)?;
        assert!(active.in_flight.is_empty(), "I4: a transfer outlives its posts");
        self.timers.clear(&Reason::Retry(transfer));
        self.timers.clear(&Reason::Expiry(transfer));
        self.ended.insert(transfer);
        Some(active)
    }

    /// The lease's other half: the peers of what is active here hear that it is still wanted, and readers ask for more time.
    pub(crate) fn on_heartbeat_due(&mut self, now: Time) {
        let mut by_peer: BTreeMap<EngineId, Vec<TransferId>> = BTreeMap::new();
        for (id, active) in &self.transfers {
            let silent = matches!(active.stage, Stage::Ending { .. })
                || (active.stage == Stage::Waiting && active.held == Held::Early);
            if let Some(peer) = &active.peer
                && !silent
            {
                by_peer.entry(peer.clone()).or_default().push(*id);
            }
        }
        let renewing: Vec<_> = self
            .transfers
            .iter()
            .filter(|(_, t)| t.reads() && t.stage == Stage::Moving)
            .map(|(id, _)| *id)
            .collect();
        for (peer, transfers) in by_peer {
            self.say(&peer, Message::Heartbeat { transfers });
        }
        for transfer in renewing {
            self.claim(now, transfer);
        }
        self.keep_beating(now);
    }

    pub(crate) fn keep_beating(&mut self, now: Time) {
        if !self.transfers.is_empty() && !self.timers.is_set(&Reason::Heartbeat) {
            self.timers.set(Reason::Heartbeat, now + self.config.heartbeat);
        }
    }
}

/// What a Granted names.
#[derive(Debug)]
pub(crate) struct Grant {
    pub first_unit: usize,
    pub units: Vec<UnitId>,
    pub complete: bool,
    pub prefilled: Option<Prefilled>,
}
