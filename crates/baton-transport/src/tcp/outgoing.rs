//! Our way into a peer's memory: connections that we made, and what we post on them.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::converting::Converting;
use super::frame::{Fault, Frame, MAX_READS, Outcome};
use super::lane::{Heard, Lane};
use super::memory::Memory;
use super::posting::{Chunk, Postings};
use crate::convert::Conversion;
use crate::lists::Lists;
use crate::posts::SLICE_BYTES;
use crate::transport::{Descriptor, Direction, Event, Post, TransportError};

/// Why a way cannot go on: a connection ended, or what came on it is not of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ended;

/// Reads asked for together.
const READS_AT_ONCE: usize = 4;

impl From<Fault> for Ended {
    fn from(_: Fault) -> Self {
        Self
    }
}

#[derive(Debug)]
struct OurLane {
    lane: Lane,
    converting: Option<Converting>,
    is_open: bool,
    /// Reads in the order in which they were asked for, which is the order of the answers.
    asked: VecDeque<Asked>,
    /// The post whose bytes are being received.
    landing: Option<Landing>,
}

#[derive(Debug)]
struct Asked {
    post: u64,
    local: Vec<Descriptor>,
    /// What the answer has: as much as `local`, unless it is to be converted.
    bytes: usize,
}

#[derive(Debug)]
struct Landing {
    post: u64,
    is_whole: bool,
    /// Where it is to be converted into; none where it is received in its place.
    convert_into: Vec<Descriptor>,
}

#[derive(Debug)]
pub(super) struct Outgoing {
    lanes: Vec<OurLane>,
    pub postings: Postings,
    crc: bool,
    region_bytes: u64,
    /// Whether sending stopped only to give others their turn.
    unfinished: bool,
    progress: Instant,
}

impl Outgoing {
    pub fn new(max_posts: usize, crc: bool, region_bytes: u64, now: Instant) -> Self {
        let postings = Postings::new(max_posts);
        Self { lanes: Vec::new(), postings, crc, region_bytes, unfinished: false, progress: now }
    }

    /// Takes these lanes, and no others, on each of which a Hello is queued.
    pub fn set_lanes(&mut self, lanes: Vec<Lane>) {
        let converting = || self.postings.conversion.map(Converting::new);
        let ours = |lane| OurLane {
            lane,
            converting: converting(),
            is_open: false,
            asked: VecDeque::new(),
            landing: None,
        };
        self.lanes = lanes.into_iter().map(ours).collect();
    }

    /// From here on the peer's elements have another type.
    pub fn convert(&mut self, conversion: Conversion) {
        self.postings.conversion = Some(conversion);
        for ours in &mut self.lanes {
            ours.converting = Some(Converting::new(conversion));
        }
    }

    pub fn close(&mut self) {
        self.lanes.clear();
    }

    pub fn is_open(&self) -> bool {
        !self.lanes.is_empty() && self.lanes.iter().all(|ours| ours.is_open)
    }

    /// Whether the peer has answered on any lane.
    pub fn is_answered(&self) -> bool {
        self.lanes.iter().any(|ours| ours.is_open)
    }

    pub fn lane_mut(&mut self, key: u64) -> Option<&mut Lane> {
        self.lanes.iter_mut().map(|ours| &mut ours.lane).find(|lane| lane.key() == key)
    }

    /// Takes what the peer sent: answers, and the bytes of our reads.
    pub fn read(&mut self, memory: &Memory, now: Instant, events: &mut Vec<Event>) -> Result<(), Ended> {
        for ours in &mut self.lanes {
            let mut budget = SLICE_BYTES;
            while ours.lane.may_hear() && budget > 0 {
                let place = ours.converting.as_ref().map_or(memory, |converting| &converting.scratch);
                match ours.lane.hear(place, &mut budget, now) {
                    Heard::Nothing => break,
                    Heard::Frame(Frame::Welcome { region_bytes })
                        if !ours.is_open && region_bytes == self.region_bytes =>
                    {
                        ours.is_open = true;
                    }
                    Heard::Frame(Frame::Data { post, crc, len }) => {
                        ours.expect(post, crc && self.crc, len)?
                    }
                    Heard::Payload(outcome) => {
                        let landing = ours.landing.take().ok_or(Ended)?;
                        if outcome == Outcome::Moved && !landing.is_whole {
                            return Err(Ended);
                        }
                        if let Some(converting) =
                            ours.converting.as_ref().filter(|_| outcome == Outcome::Moved)
                        {
                            converting.landed(memory, &landing.convert_into);
                        }
                        self.postings.landed(landing.post, outcome, events)?;
                    }
                    Heard::Frame(Frame::Ended { post, outcome }) => {
                        self.postings.ended(post, outcome, events)?
                    }
                    Heard::Frame(_) | Heard::End => return Err(Ended),
                }
            }
        }
        Ok(())
    }

    /// Sends what is queued, and chunks of posts in turn on every lane that takes more.
    pub fn send(&mut self, memory: &Memory, now: Instant, events: &mut Vec<Event>) -> Result<(), Ended> {
        let mut budget = SLICE_BYTES * self.lanes.len();
        let is_open = self.is_open();
        loop {
            let mut is_moving = false;
            for number in 0..self.lanes.len() {
                if is_open {
                    self.take_chunk(number, memory, events);
                    while let Some(finish) = self.postings.next_finish() {
                        self.lanes[0].lane.say(&finish);
                    }
                }
                let OurLane { lane, converting, .. } = &mut self.lanes[number];
                let place = converting.as_ref().map_or(memory, |converting| &converting.scratch);
                let had_to_send = lane.has_to_send();
                lane.send(place, &mut budget, now).map_err(|_| Ended)?;
                // Free for the next chunk, be it that this one was begun in an earlier turn.
                is_moving |= had_to_send && !lane.has_to_send();
            }
            self.unfinished = budget == 0;
            if !is_moving || self.unfinished {
                break;
            }
        }
        if self.postings.is_empty() || self.lanes.iter().any(|ours| ours.lane.moved_at == now) {
            self.progress = now;
        }
        // A word for the first lane may have come while another lane was sent on.
        self.unfinished |= self.lanes.iter().any(|ours| ours.lane.writable && ours.lane.has_to_send());
        Ok(())
    }

    /// Gives a lane the next chunk, if it has room for one.
    fn take_chunk(&mut self, number: usize, memory: &Memory, events: &mut Vec<Event>) {
        let ours = &mut self.lanes[number];
        if !ours.lane.writable || ours.lane.has_to_send() {
            return;
        }
        // Several reads are asked for by one call, and when several are answered: each call wakes the peer.
        let most =
            if ours.asked.len() <= MAX_READS - READS_AT_ONCE { ours.asked.len() + READS_AT_ONCE } else { 0 };
        let crc = self.crc;
        while self.postings.has_chunks()
            && let Some(Chunk { post, direction, local, remote }) =
                self.postings.next_chunk(ours.asked.len() < most, events)
        {
            match direction {
                Direction::Write => {
                    let frame = Frame::Write { post, crc, runs: remote };
                    let (place, ranges) = match &ours.converting {
                        None => (memory, local),
                        Some(converting) => (&converting.scratch, converting.outgoing(memory, &local)),
                    };
                    return ours.lane.send_payload(place, &frame, ranges, crc, Outcome::Moved);
                }
                Direction::Read => {
                    let bytes = remote.iter().map(|range| range.len as usize).sum();
                    ours.lane.say(&Frame::Read { post, crc, runs: remote });
                    ours.asked.push_back(Asked { post, local, bytes });
                }
            }
        }
    }

    /// Whether there is something to do at once.
    pub fn has_work(&self) -> bool {
        self.unfinished || self.lanes.iter().any(|ours| ours.lane.may_hear())
    }

    /// When the peer counts as stalled, unless bytes move before.
    pub fn stalls_at(&mut self, now: Instant, patience: Duration) -> Option<Instant> {
        let waits = (!self.postings.is_empty()).then_some(self.progress + patience);
        let lanes = self.lanes.iter_mut();
        lanes.filter_map(|ours| ours.lane.stalls_at(!ours.asked.is_empty(), now, patience)).chain(waits).min()
    }

    pub fn push(&mut self, post: Post, local: &Lists, remote: &Lists) -> Result<(), TransportError> {
        if self.postings.is_empty() {
            // Only from now on the peer has something to answer.
            self.progress = Instant::now();
        }
        self.postings.push(post, local, remote)
    }
}

impl OurLane {
    /// Makes ready for the answer to the read that was asked for first.
    fn expect(&mut self, post: u64, crc: bool, len: usize) -> Result<(), Ended> {
        let Asked { local, bytes, .. } =
            self.asked.pop_front().filter(|asked| asked.post == post).ok_or(Ended)?;
        let (place, convert_into) = match (&self.converting, len) {
            // Refused; the trailer says why.
            (_, 0) => (Vec::new(), Vec::new()),
            (_, len) if len != bytes => return Err(Ended),
            (None, _) => (local, Vec::new()),
            (Some(converting), len) => (converting.room(len), local),
        };
        self.landing = Some(Landing { post, is_whole: len == bytes, convert_into });
        self.lane.expect(place, len, crc && len > 0, None);
        Ok(())
    }
}
