//! The active side of a transfer: it claims the peer's blocks, moves the bytes, and says done.

use std::collections::{BTreeMap, BTreeSet};

use baton_types::{BlockHash, BlockId, EngineId, Mutant, Time, TokenId, TransferId};

use crate::action::{Direction, Ending, Event, Output, PeerAddress, PostId};
use crate::codec::Notification;
use crate::endpoint::Endpoint;
use crate::message::Message;
use crate::order::{Order, PULL, PUSH};
use crate::registration::Registration;
use crate::timer::Reason;

/// Claims whose moment is remembered; an answer to an older one is not counted from.
const MAX_CLAIMS: usize = 16;

#[derive(Clone, Debug)]
pub(crate) struct Transfer {
    pub order: &'static Order,
    /// A push's source learns it from the registration.
    pub peer: Option<EngineId>,
    pub address: Option<PeerAddress>,
    chain: Vec<BlockHash>,
    /// Where in the chain the peer's blocks begin.
    first_block: usize,
    /// Reader: the blocks for `chain[first_block..]`. Writer: the complete blocks of `chain`, from its start.
    ours: Vec<BlockId>,
    /// The blocks the peer granted, for `chain[first_block..]`.
    theirs: Vec<BlockId>,
    pub stage: Stage,
    /// When each claim was asked: what is granted counts from there (I6).
    claims: BTreeMap<u32, Time>,
    attempts: u32,
    /// Reader: when its right ends.
    deadline: Time,
    first_token: Option<TokenId>,
    /// Writer: how much of the chain has been posted, in how many notified posts.
    posted: usize,
    notifications: u32,
    /// Writer: the engine has named every block and the token that follows.
    complete: bool,
    /// Writer: the destination has everything.
    acked: bool,
    /// Reader: it failed while our own posts were writing into our blocks.
    quarantined: bool,
    pub in_flight: BTreeSet<PostId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Reader: no blocks yet. Writer: no registration yet.
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
    fn new(order: &'static Order, chain: Vec<BlockHash>) -> Self {
        Self {
            order,
            peer: None,
            address: None,
            chain,
            first_block: 0,
            ours: Vec::new(),
            theirs: Vec::new(),
            stage: Stage::Waiting,
            claims: BTreeMap::new(),
            attempts: 0,
            deadline: Time::ZERO,
            first_token: None,
            posted: 0,
            notifications: 0,
            complete: false,
            acked: false,
            quarantined: false,
            in_flight: BTreeSet::new(),
        }
    }

    fn reads(&self) -> bool {
        self.order.direction == Direction::Read
    }
}

impl Endpoint {
    /// A destination knows of the request before it has blocks for it.
    pub(crate) fn on_expect(&mut self, now: Time, transfer: TransferId, peer: PeerAddress) {
        let refused = self.refuse_new(transfer, 0);
        if let Some(why) = refused.or_else(|| (!self.seek_peer(&peer)).then_some(Ending::Limit)) {
            self.fail_unstarted(transfer, why);
            return;
        }
        let mut expected = Transfer::new(&PULL, Vec::new());
        expected.peer = Some(peer.engine.clone());
        expected.address = Some(peer);
        self.transfers.insert(transfer, expected);
        self.keep_beating(now);
    }

    pub(crate) fn on_fetch(
        &mut self,
        now: Time,
        transfer: TransferId,
        peer: PeerAddress,
        chain: Vec<BlockHash>,
        first_block: usize,
        blocks: Vec<BlockId>,
    ) {
        assert_eq!(chain.len(), first_block + blocks.len(), "one hash for each block");
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
        reader.first_block = first_block;
        reader.ours = blocks;
        reader.stage = Stage::Claiming;
        self.timers.set(Reason::Expiry(transfer), now + self.config.lease);
        self.keep_beating(now);
        self.claim(now, transfer);
    }

    /// A destination's transfer that never began.
    pub(crate) fn fail_unstarted(&mut self, transfer: TransferId, why: Ending) {
        self.ended.insert(transfer);
        self.event(Event::Failed { transfer, why, quarantined: false });
    }

    pub(crate) fn on_send(&mut self, now: Time, transfer: TransferId, chain: Vec<BlockHash>) {
        if let Some(why) = self.refuse_new(transfer, chain.len()) {
            self.registrations.take(transfer);
            self.event(Event::Released { transfer, why });
            return;
        }
        self.transfers.insert(transfer, Transfer::new(&PUSH, chain));
        if let Some(registration) = self.registrations.take(transfer) {
            self.timers.clear(&Reason::Registration(transfer));
            self.claim_registered(now, transfer, registration);
        }
    }

    pub(crate) fn on_register(
        &mut self,
        now: Time,
        peer: &EngineId,
        transfer: TransferId,
        first_block: usize,
    ) {
        let registration = Registration { peer: peer.clone(), first_block };
        match self.transfers.get(&transfer) {
            Some(writer) if writer.stage == Stage::Waiting && !writer.reads() => {
                self.claim_registered(now, transfer, registration);
            }
            // It was heard before, and its answer is on the way.
            Some(writer) if writer.peer.as_ref() == Some(peer) => {}
            None if !self.ended.contains(transfer) && self.registrations.insert(transfer, registration) => {
                self.timers.set(Reason::Registration(transfer), now + self.config.lease);
            }
            _ => self.say(peer, Message::Abort { transfer }),
        }
    }

    fn claim_registered(&mut self, now: Time, transfer: TransferId, registration: Registration) {
        let writer = self.transfers.get_mut(&transfer).expect("looked up by the caller");
        writer.peer = Some(registration.peer);
        writer.first_block = registration.first_block;
        writer.stage = Stage::Claiming;
        // From here on the peer's answers, or its loss, end it; the hold after Complete has a time limit as well.
        self.keep_beating(now);
        self.claim(now, transfer);
    }

    /// Asks for the peer's blocks; for a reader that moves already, for more time.
    fn claim(&mut self, now: Time, transfer: TransferId) {
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
        let first_block = active.first_block as u32;
        let chain = active.chain.clone();
        self.say(&peer, Message::Claim { transfer, attempt, first_block, chain });
        self.timers.set(Reason::Retry(transfer), now + self.config.retry);
    }

    /// Says again what this transfer waits to be answered.
    pub(crate) fn ask_transfer(&mut self, now: Time, transfer: TransferId) {
        let Some(active) = self.transfers.get(&transfer) else { return };
        match active.stage {
            Stage::Claiming => self.claim(now, transfer),
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
        remaining: std::time::Duration,
        grant: Grant,
    ) {
        let pool = self.peers.known.get(peer).map_or(0, |known| known.blocks);
        let Some(active) = self.transfers.get_mut(&transfer) else { return };
        let Some(asked) = active.claims.get(&attempt).copied() else { return };
        if active.peer.as_ref() != Some(peer) && !self.config.mutation.is(Mutant::GrantFromAnybody) {
            return;
        }
        let wanted = active.chain.len().saturating_sub(active.first_block);
        let fits = grant.first_block == active.first_block
            && (1..=wanted).contains(&grant.blocks.len())
            && (active.reads() || grant.blocks.len() == wanted)
            && grant.blocks.iter().all(|block| block.0 < pool);
        if !fits {
            self.end_transfer(now, transfer, Ending::PeerAborted, Answer::Abort);
            return;
        }
        if active.reads() {
            active.deadline = active.deadline.max(asked + remaining);
            let deadline = active.deadline;
            if self.config.mutation.is(Mutant::KeepLateBytes) {
                self.timers.clear(&Reason::Expiry(transfer));
            } else if matches!(active.stage, Stage::Claiming | Stage::Moving) {
                self.timers.set(Reason::Expiry(transfer), deadline);
            }
        }
        let active = self.transfers.get_mut(&transfer).expect("looked up above");
        if active.stage != Stage::Claiming {
            return;
        }
        active.stage = Stage::Moving;
        active.theirs = grant.blocks;
        self.timers.clear(&Reason::Retry(transfer));
        if active.reads() {
            active.first_token = grant.first_token;
            let pairs = active.ours.iter().copied().zip(active.theirs.iter().copied()).collect();
            self.post(transfer, pairs, None);
        } else {
            self.pump(now, transfer);
        }
    }

    pub(crate) fn on_declined(&mut self, now: Time, peer: &EngineId, transfer: TransferId) {
        let Some(active) = self.transfers.get(&transfer) else { return };
        if active.peer.as_ref() == Some(peer) && active.stage == Stage::Claiming {
            self.end_transfer(now, transfer, Ending::Declined, Answer::Nothing);
        }
    }

    pub(crate) fn on_progress(&mut self, now: Time, transfer: TransferId, blocks: Vec<BlockId>) {
        let Some(writer) = self.transfers.get_mut(&transfer) else { return };
        assert!(writer.ours.len() + blocks.len() <= writer.chain.len(), "no more blocks than the chain has");
        writer.ours.extend(blocks);
        self.pump(now, transfer);
    }

    pub(crate) fn on_complete(&mut self, now: Time, transfer: TransferId, first_token: TokenId) {
        let Some(writer) = self.transfers.get_mut(&transfer) else { return };
        assert_eq!(writer.ours.len(), writer.chain.len(), "every block was named before Complete");
        writer.complete = true;
        writer.first_token = Some(first_token);
        // The blocks are held for the destination so long and no longer.
        self.timers.set(Reason::Expiry(transfer), now + self.config.lease);
        self.pump(now, transfer);
    }

    /// Writer: posts what is complete and not yet posted; says Done when that was the last.
    fn pump(&mut self, now: Time, transfer: TransferId) {
        let writer = self.transfers.get_mut(&transfer).expect("looked up by the caller");
        if writer.stage != Stage::Moving {
            return;
        }
        let from = writer.posted.max(writer.first_block);
        let to = writer.ours.len();
        writer.posted = to;
        if from < to {
            let theirs = &writer.theirs[from - writer.first_block..to - writer.first_block];
            let pairs = writer.ours[from..to].iter().copied().zip(theirs.iter().copied()).collect();
            let notification = Notification { transfer, index: writer.notifications };
            writer.notifications += 1;
            self.post(transfer, pairs, Some(notification.encode()));
        }
        let writer = self.transfers.get_mut(&transfer).expect("looked up above");
        if writer.complete {
            // Said while the last bytes still move: the destination waits for their notifications as well.
            writer.stage = Stage::Finishing;
            self.say_done(now, transfer);
        }
    }

    fn say_done(&mut self, now: Time, transfer: TransferId) {
        let Some(writer) = self.transfers.get(&transfer) else { return };
        let peer = writer.peer.clone().expect("a moving transfer has a peer");
        let (notifications, first_token) = (writer.notifications, writer.first_token);
        self.say(&peer, Message::Done { transfer, notifications, first_token });
        self.timers.set(Reason::Retry(transfer), now + self.config.retry);
    }

    fn post(&mut self, transfer: TransferId, pairs: Vec<(BlockId, BlockId)>, notify: Option<Vec<u8>>) {
        let post = PostId(self.next_post);
        self.next_post += 1;
        self.posts.insert(post, transfer);
        let active = self.transfers.get_mut(&transfer).expect("a post belongs to a transfer");
        active.in_flight.insert(post);
        let engine = active.peer.clone().expect("a moving transfer has a peer");
        let direction = active.order.direction;
        self.out.push_back(Output::Post { post, engine, direction, pairs, notify });
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
            Stage::Moving if active.reads() => self.finish_read(now, transfer),
            Stage::Ending { .. } => self.close_transfer(now, transfer),
            _ => self.finish_write(transfer),
        }
    }

    /// All bytes are here; they count only if the source was still bound to keep them (I3).
    fn finish_read(&mut self, now: Time, transfer: TransferId) {
        let reader = self.transfers.get(&transfer).expect("looked up by the caller");
        if now >= reader.deadline && !self.config.mutation.is(Mutant::KeepLateBytes) {
            self.end_transfer(now, transfer, Ending::Expired, Answer::Abort);
            return;
        }
        let covered = reader.first_block + reader.theirs.len();
        let first_token = reader.first_token.filter(|_| covered == reader.chain.len());
        let reader = self.remove_transfer(transfer).expect("looked up above");
        self.event(Event::Ready { transfer, covered, first_token });
        let done = Message::Done { transfer, notifications: 0, first_token: None };
        self.bid_farewell(now, transfer, reader.peer.expect("a reader has a peer"), reader.address, done);
    }

    /// The destination has everything. The blocks are released once our own posts are off them.
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

    fn finish_write(&mut self, transfer: TransferId) {
        let over =
            self.transfers.get(&transfer).is_some_and(|writer| writer.acked && writer.in_flight.is_empty());
        if over {
            self.remove_transfer(transfer);
            self.event(Event::Released { transfer, why: Ending::Done });
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

    fn remove_transfer(&mut self, transfer: TransferId) -> Option<Transfer> {
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
            if let Some(peer) = &active.peer
                && !matches!(active.stage, Stage::Ending { .. })
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

    fn keep_beating(&mut self, now: Time) {
        if !self.transfers.is_empty() && !self.timers.is_set(&Reason::Heartbeat) {
            self.timers.set(Reason::Heartbeat, now + self.config.heartbeat);
        }
    }
}

/// What a Granted names.
#[derive(Debug)]
pub(crate) struct Grant {
    pub first_block: usize,
    pub blocks: Vec<BlockId>,
    pub first_token: Option<TokenId>,
}
