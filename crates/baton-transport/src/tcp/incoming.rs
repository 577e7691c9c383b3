//! A peer's way into our memory: connections that it made, and what it posts on them.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use baton_types::EngineId;

use super::frame::{Frame, Hello, MAX_READS, Outcome, is_inside};
use super::lane::{Heard, Lane};
use super::memory::Memory;
use super::outgoing::Ended;
use super::serving::Serving;
use crate::permits::{Access, HeldPermits, Permits};
use crate::posts::SLICE_BYTES;
use crate::transport::{Descriptor, Event};

#[derive(Debug)]
struct TheirLane {
    number: u8,
    lane: Lane,
    /// The post whose bytes are being received.
    landing: Option<u64>,
    /// Reads that are not answered.
    asked: VecDeque<Asked>,
}

#[derive(Debug)]
struct Asked {
    post: u64,
    crc: bool,
    runs: Vec<Descriptor>,
}

#[derive(Debug, Default)]
pub(super) struct Incoming {
    /// The number of the path, once a lane of it is here.
    path: Option<u64>,
    lanes: Vec<TheirLane>,
    serving: Serving,
    unfinished: bool,
}

impl Incoming {
    /// Whether lanes of this path may be let in: of one only, until all of them are gone.
    pub fn takes(&self, path: u64) -> bool {
        self.path.is_none_or(|known| known == path)
    }

    /// Lets a lane in, unless it is there already.
    pub fn admit(&mut self, hello: &Hello, mut lane: Lane, memory: &Memory) {
        if !self.takes(hello.path) || self.lanes.iter().any(|theirs| theirs.number == hello.lane) {
            return;
        }
        self.path = Some(hello.path);
        lane.say(&Frame::Welcome { region_bytes: memory.len() });
        // What it may have sent since.
        lane.readable = true;
        let (landing, asked) = (None, VecDeque::new());
        self.lanes.push(TheirLane { number: hello.lane, lane, landing, asked });
    }

    pub fn close(&mut self) {
        self.lanes.clear();
    }

    pub fn lane_mut(&mut self, key: u64) -> Option<&mut Lane> {
        self.lanes.iter_mut().map(|theirs| &mut theirs.lane).find(|lane| lane.key() == key)
    }

    /// Takes what the peer sent: bytes into our memory, and requests for bytes out of it.
    pub fn read(
        &mut self,
        peer: &EngineId,
        memory: &Memory,
        permits: &Permits,
        now: Instant,
        events: &mut Vec<Event>,
    ) -> Result<(), Ended> {
        for theirs in &mut self.lanes {
            let mut budget = SLICE_BYTES;
            while theirs.lane.may_hear() && !theirs.lane.is_full() && budget > 0 {
                // No permit is taken back between the look at it and the bytes' landing.
                let held = permits.hold();
                theirs.lane.recheck_incoming(held.age(), |left| held.cover(peer, Access::Write, left));
                match theirs.lane.hear(memory, &mut budget, now) {
                    Heard::Nothing => break,
                    Heard::Frame(Frame::Write { post, crc, runs }) => {
                        let bytes = runs.iter().map(|run| run.len as usize).sum();
                        let outcome =
                            check(&runs, memory, || held.cover(peer, Access::Write, runs.iter().copied()));
                        let refused = (outcome != Outcome::Moved).then_some(outcome);
                        theirs.lane.expect(runs, bytes, crc, refused);
                        theirs.landing = Some(post);
                    }
                    Heard::Payload(outcome) => {
                        self.serving.write_landed(theirs.landing.take().ok_or(Ended)?, outcome)?;
                    }
                    Heard::Frame(Frame::Finish { post, writes, notify }) if theirs.number == 0 => {
                        self.serving.finish(post, writes, notify)?;
                    }
                    Heard::Frame(Frame::Read { post, crc, runs }) if theirs.asked.len() < MAX_READS => {
                        theirs.asked.push_back(Asked { post, crc, runs });
                    }
                    Heard::Frame(_) | Heard::End => return Err(Ended),
                }
            }
        }
        let ended = self.serving.settle(peer, events)?;
        if let Some(first) = self.lanes.iter_mut().find(|theirs| theirs.number == 0) {
            ended.iter().for_each(|frame| first.lane.say(frame));
        }
        Ok(())
    }

    /// Sends what is queued, and answers reads.
    pub fn send(
        &mut self,
        peer: &EngineId,
        memory: &Memory,
        permits: &Permits,
        now: Instant,
    ) -> Result<(), Ended> {
        self.unfinished = false;
        for theirs in &mut self.lanes {
            let mut budget = SLICE_BYTES;
            loop {
                let held = permits.hold();
                theirs.answer(peer, memory, &held);
                if !theirs.lane.writable || !theirs.lane.has_to_send() {
                    break;
                }
                if budget == 0 {
                    self.unfinished = true;
                    break;
                }
                theirs.lane.recheck_outgoing(held.age(), |left| held.cover(peer, Access::Read, left));
                theirs.lane.send(memory, &mut budget, now).map_err(|_| Ended)?;
            }
        }
        Ok(())
    }

    /// Whether there is something to do at once.
    pub fn has_work(&self) -> bool {
        self.unfinished || self.lanes.iter().any(|theirs| theirs.lane.may_hear() && !theirs.lane.is_full())
    }

    /// When the peer counts as stalled, unless bytes move before.
    pub fn stalls_at(&mut self, now: Instant, patience: Duration) -> Option<Instant> {
        self.lanes.iter_mut().filter_map(|theirs| theirs.lane.stalls_at(false, now, patience)).min()
    }
}

impl TheirLane {
    /// Begins to answer the read that was asked for first, if the lane has room.
    fn answer(&mut self, peer: &EngineId, memory: &Memory, held: &HeldPermits<'_>) {
        if !self.lane.writable || self.lane.has_to_send() {
            return;
        }
        let Some(Asked { post, crc, runs }) = self.asked.pop_front() else { return };
        let outcome = check(&runs, memory, || held.cover(peer, Access::Read, runs.iter().copied()));
        let runs = if outcome == Outcome::Moved { runs } else { Vec::new() };
        let len = runs.iter().map(|run| run.len as usize).sum();
        self.lane.send_payload(memory, &Frame::Data { post, crc, len }, runs, crc, outcome);
    }
}

/// Whether a peer's post may touch these runs.
fn check(runs: &[Descriptor], memory: &Memory, is_permitted: impl FnOnce() -> bool) -> Outcome {
    if !runs.iter().all(|run| is_inside(run, memory.len())) {
        Outcome::OutOfBounds
    } else if !is_permitted() {
        Outcome::NotPermitted
    } else {
        Outcome::Moved
    }
}
