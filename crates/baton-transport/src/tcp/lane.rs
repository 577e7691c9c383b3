//! One connection of a path: frames in, frames out, payloads straight from and into the region.

use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use super::frame::{Fault, Frame, MAX_FRAME, Outcome, TRAILER, read_trailer, trailer};
use super::memory::{Memory, Ranges, crc_of, fill};
use super::wire::{Part, Wire, part, part_mut};
use crate::transport::Descriptor;

/// A connection. Only one thread has it, so what is checked before a call holds during it.
#[derive(Debug)]
pub(super) struct Lane {
    wire: Wire,
    /// Whether there may be something to read, or room to write: until a call says that there is not.
    pub readable: bool,
    pub writable: bool,
    /// Nothing will come but what is here, and then the end, of which nobody tells once more.
    pub ended: bool,
    /// When bytes last went through.
    pub moved_at: Instant,
    /// When there was last nothing to wait for.
    idle_at: Instant,
    staging: Staging,
    /// Whether what is staged may be enough to act on.
    unheard: bool,
    incoming: Option<Receiving>,
    outgoing: Sending,
}

/// What a lane had to say.
#[derive(Debug)]
pub(super) enum Heard {
    Frame(Frame),
    /// The payload that was awaited is in place, or thrown away.
    Payload(Outcome),
    /// Nothing more for now.
    Nothing,
    /// The other end is closed, dead, or says what no agent says.
    End,
}

/// So many bytes came, where there was room for so many.
struct Received {
    bytes: usize,
    room: usize,
}

impl From<Fault> for Heard {
    fn from(_: Fault) -> Self {
        Self::End
    }
}

/// Bytes that came and are not understood yet.
#[derive(Debug)]
struct Staging {
    bytes: Vec<u8>,
    begin: usize,
    end: usize,
}

/// A payload that is being received.
#[derive(Debug)]
struct Receiving {
    ranges: Ranges,
    left: usize,
    crc: Option<u32>,
    /// Not wanted: the bytes are read and dropped.
    refused: Option<Outcome>,
    /// How old the permits were when the ranges were last found to be covered.
    permits_age: u64,
}

/// What is being sent: bytes, then perhaps a payload, then bytes.
#[derive(Debug, Default)]
struct Sending {
    before: Vec<u8>,
    sent: usize,
    payload: Option<Payload>,
    /// Begins with the payload's trailer.
    after: Vec<u8>,
}

#[derive(Debug)]
struct Payload {
    ranges: Ranges,
    left: usize,
    /// Zeros go out in its place: it may not be read any more, but the other end counts its bytes.
    withdrawn: bool,
    permits_age: u64,
}

/// Of what follows a payload this much is taken along by the same system call: its trailer, and the next frame.
const LOOK_AHEAD: usize = TRAILER + MAX_FRAME;
/// Frames that wait to be sent: beyond this a lane is not read, so that nobody makes us answer without hearing
/// the answers.
const MAX_QUEUED: usize = 64 << 10;
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

impl Staging {
    fn new() -> Self {
        Self { bytes: Vec::new(), begin: 0, end: 0 }
    }

    fn held(&self) -> &[u8] {
        &self.bytes[self.begin..self.end]
    }

    /// The free bytes behind what is held, which is moved to the front.
    fn room(&mut self) -> &mut [u8] {
        // Not before it is used: a connection that says nothing costs nothing.
        self.bytes.resize(MAX_FRAME + LOOK_AHEAD, 0);
        self.bytes.copy_within(self.begin..self.end, 0);
        (self.begin, self.end) = (0, self.end - self.begin);
        &mut self.bytes[self.end..]
    }
}

impl Lane {
    pub fn new(wire: Wire, now: Instant) -> Self {
        Self {
            wire,
            readable: true,
            writable: true,
            ended: false,
            moved_at: now,
            idle_at: now,
            staging: Staging::new(),
            unheard: false,
            incoming: None,
            outgoing: Sending::default(),
        }
    }

    pub fn key(&self) -> u64 {
        self.wire.key()
    }

    /// When this lane counts as stalled, if it is `busy`.
    pub fn stalls_at(&mut self, busy: bool, now: Instant, patience: Duration) -> Option<Instant> {
        if !(busy || self.has_to_send() || self.incoming.is_some()) {
            self.idle_at = now;
            return None;
        }
        Some(self.moved_at.max(self.idle_at) + patience)
    }

    // In.

    /// Whether [`Lane::hear`] may hear something.
    pub fn may_hear(&self) -> bool {
        self.readable || self.unheard
    }

    /// Awaits the payload of a frame just heard; `refused` if its bytes are to be dropped.
    pub fn expect(&mut self, ranges: Vec<Descriptor>, bytes: usize, crc: bool, refused: Option<Outcome>) {
        let ranges = Ranges::new(ranges);
        self.incoming =
            Some(Receiving { ranges, left: bytes, crc: crc.then_some(0), refused, permits_age: 0 });
    }

    /// Looks again whether the payload that is being received is permitted, if permits were taken back since it
    /// last was.
    pub fn recheck_incoming(
        &mut self,
        age: u64,
        covered: impl FnOnce(&mut dyn Iterator<Item = Descriptor>) -> bool,
    ) {
        if let Some(incoming) = &mut self.incoming
            && incoming.refused.is_none()
            && incoming.permits_age != age
        {
            incoming.permits_age = age;
            if !covered(&mut incoming.ranges.left()) {
                incoming.refused = Some(Outcome::NotPermitted);
            }
        }
    }

    /// Reads on, until there is something to act on, or nothing to read, or `budget` is used up.
    pub fn hear(&mut self, memory: &Memory, budget: &mut usize, now: Instant) -> Heard {
        // What TLS could not send may have waited for what comes now.
        self.writable |= self.wire.is_tls();
        loop {
            match self.take_staged(memory) {
                Ok(Some(heard)) => return heard,
                Ok(None) => self.unheard = false,
                Err(fault) => return fault.into(),
            }
            if *budget == 0 || !self.readable {
                return Heard::Nothing;
            }
            match self.receive(memory) {
                Ok(Received { bytes: 0, .. }) => return Heard::End,
                Ok(Received { bytes, room }) => {
                    self.moved_at = now;
                    *budget = budget.saturating_sub(bytes);
                    self.unheard = true;
                    // A socket that has not filled the room has nothing left, which saves asking it. TLS may.
                    self.readable = bytes == room || self.ended || self.wire.is_tls();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.readable = false;
                    return Heard::Nothing;
                }
                Err(_) => return Heard::End,
            }
        }
    }

    /// Makes what it can of the bytes that are here.
    fn take_staged(&mut self, memory: &Memory) -> Result<Option<Heard>, Fault> {
        let Some(incoming) = &mut self.incoming else {
            let Some((frame, len)) = Frame::decode(self.staging.held())? else { return Ok(None) };
            self.staging.begin += len;
            return Ok(Some(Heard::Frame(frame)));
        };
        let n = incoming.left.min(self.staging.held().len());
        if n > 0 {
            incoming.left -= n;
            if incoming.refused.is_none() {
                let crc = &mut incoming.crc;
                fill(memory, &mut incoming.ranges, &self.staging.held()[..n], |range| {
                    add(crc, memory, range)
                });
            }
            self.staging.begin += n;
        }
        if incoming.left > 0 {
            return Ok(None);
        }
        let Some(bytes) = self.staging.held().first_chunk::<TRAILER>() else { return Ok(None) };
        let (mut outcome, crc) = read_trailer(bytes)?;
        self.staging.begin += TRAILER;
        if outcome == Outcome::Moved {
            outcome = match incoming.refused {
                Some(refused) => refused,
                None if incoming.crc.is_some_and(|ours| ours != crc) => Outcome::Damaged,
                None => Outcome::Moved,
            };
        }
        self.incoming = None;
        Ok(Some(Heard::Payload(outcome)))
    }

    #[allow(unsafe_code)]
    fn receive(&mut self, memory: &Memory) -> io::Result<Received> {
        let room = self.staging.room();
        let Some(incoming) = self.incoming.as_mut().filter(|it| it.left > 0 && it.refused.is_none()) else {
            // SAFETY: the staging is this lane's.
            let bytes = unsafe { self.wire.receive(&[part_mut(room)]) }?;
            let room = room.len();
            self.staging.end += bytes;
            return Ok(Received { bytes, room });
        };
        let room_of_all = incoming.left + LOOK_AHEAD;
        let mut parts: Vec<Part> = Vec::with_capacity(64);
        incoming.ranges.append_parts(memory, &mut parts);
        parts.push(part_mut(&mut room[..LOOK_AHEAD]));
        // SAFETY: ranges of the region, at most 512 (`Frame::decode`), and the staging. What a peer may write
        // was checked by whoever called `expect`, and no permit is taken back during this call.
        let bytes = unsafe { self.wire.receive(&parts) }?;
        let landed = bytes.min(incoming.left);
        incoming.left -= landed;
        let crc = &mut incoming.crc;
        incoming.ranges.advance(landed, |range| add(crc, memory, range));
        self.staging.end += bytes - landed;
        Ok(Received { bytes, room: room_of_all })
    }

    // Out.

    /// Queues a frame without a payload.
    pub fn say(&mut self, frame: &Frame) {
        let out = &mut self.outgoing;
        frame.encode(if out.payload.is_some() { &mut out.after } else { &mut out.before });
    }

    /// Queues a frame with these ranges as its payload, or with none and the reason.
    ///
    /// # Panics
    /// If the lane is already sending a payload.
    pub fn send_payload(
        &mut self,
        memory: &Memory,
        frame: &Frame,
        ranges: Vec<Descriptor>,
        crc: bool,
        outcome: Outcome,
    ) {
        assert!(!self.is_sending(), "one payload at a time");
        let ranges = Ranges::new(ranges);
        let left = ranges.bytes();
        let mut sum = crc.then_some(0);
        ranges.left().for_each(|range| add(&mut sum, memory, range));
        frame.encode(&mut self.outgoing.before);
        self.outgoing.after.extend(trailer(outcome, sum.unwrap_or(0)));
        self.outgoing.payload = Some(Payload { ranges, left, withdrawn: false, permits_age: 0 });
    }

    /// Whether a payload is on its way out.
    pub fn is_sending(&self) -> bool {
        self.outgoing.payload.is_some()
    }

    /// Whether anything waits to be sent.
    pub fn has_to_send(&self) -> bool {
        let out = &self.outgoing;
        out.sent < out.before.len() || out.payload.is_some() || self.wire.holds_back()
    }

    /// Whether so many frames wait that nothing more should be read that asks for another.
    pub fn is_full(&self) -> bool {
        self.outgoing.before.len() - self.outgoing.sent + self.outgoing.after.len() > MAX_QUEUED
    }

    /// Looks again whether the payload that is being sent may be read, as [`Lane::recheck_incoming`] does.
    pub fn recheck_outgoing(
        &mut self,
        age: u64,
        covered: impl FnOnce(&mut dyn Iterator<Item = Descriptor>) -> bool,
    ) {
        let out = &mut self.outgoing;
        if let Some(payload) = &mut out.payload
            && !payload.withdrawn
            && payload.permits_age != age
        {
            payload.permits_age = age;
            if payload.left > 0 && !covered(&mut payload.ranges.left()) {
                payload.withdrawn = true;
                out.after[..TRAILER].copy_from_slice(&trailer(Outcome::NotPermitted, 0));
            }
        }
    }

    /// Sends until nothing is left, or the other end takes no more, or `budget` is used up.
    pub fn send(&mut self, memory: &Memory, budget: &mut usize, now: Instant) -> io::Result<()> {
        while self.writable && self.has_to_send() && *budget > 0 {
            match self.send_some(memory) {
                Ok(n) => {
                    self.moved_at = now;
                    *budget = budget.saturating_sub(n);
                    self.outgoing.advance(n);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.writable = false,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    #[allow(unsafe_code)]
    fn send_some(&mut self, memory: &Memory) -> io::Result<usize> {
        let out = &self.outgoing;
        let mut parts: Vec<Part> = Vec::with_capacity(64);
        parts.push(part(&out.before[out.sent..]));
        if let Some(payload) = &out.payload {
            if payload.withdrawn {
                let whole = payload.left / ZEROS.len();
                parts.extend((0..whole).map(|_| part(&ZEROS)));
                parts.push(part(&ZEROS[..payload.left % ZEROS.len()]));
            } else {
                payload.ranges.append_parts(memory, &mut parts);
            }
            parts.push(part(&out.after));
        }
        // SAFETY: our own bytes, and at most 512 ranges of the region, which a post of ours names or a peer may
        // read: no permit is taken back during this call.
        unsafe { self.wire.send(&parts) }
    }
}

impl Sending {
    /// Notes that the next `n` bytes are sent.
    fn advance(&mut self, n: usize) {
        let head = n.min(self.before.len() - self.sent);
        self.sent += head;
        let mut n = n - head;
        if let Some(payload) = &mut self.payload {
            let moved = n.min(payload.left);
            payload.left -= moved;
            n -= moved;
            if !payload.withdrawn {
                payload.ranges.advance(moved, |_| {});
            }
            if payload.left == 0 && self.sent == self.before.len() {
                self.payload = None;
                self.before.clear();
                std::mem::swap(&mut self.before, &mut self.after);
                self.sent = n;
            }
        }
        if self.payload.is_none() && self.sent == self.before.len() {
            self.before.clear();
            self.sent = 0;
        }
    }
}

fn add(crc: &mut Option<u32>, memory: &Memory, range: Descriptor) {
    if let Some(crc) = crc {
        *crc = crc_of(memory, *crc, range);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;
    use crate::poller::{Poller, Ready, listen_at};

    /// The kernel tells of both at once, and of the end never again.
    #[test]
    fn an_end_that_came_with_the_last_bytes_is_heard() {
        let (nobody, _) = listen_at("127.0.0.1:0".parse().unwrap()).unwrap();
        let waker = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let mut poller = Poller::new(&nobody, &waker, Duration::from_secs(30)).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut lane =
            Lane::new(Wire::Plain(poller.connect(listener.local_addr().unwrap()).unwrap()), Instant::now());
        let (mut other, _) = listener.accept().unwrap();
        let mut frame = Vec::new();
        Frame::Welcome { region_bytes: 7 }.encode(&mut frame);
        other.write_all(&frame).unwrap();
        drop(other);
        std::thread::sleep(Duration::from_millis(50));
        let mut ready = Vec::new();
        poller.ready(Duration::from_secs(10), &mut ready);
        let Some(Ready::Socket { readable: true, ended, .. }) = ready.first() else { panic!("{ready:?}") };
        lane.ended = *ended;
        let (memory, budget) = (Memory::default(), &mut { 1 << 20 });
        let heard = lane.hear(&memory, budget, Instant::now());
        assert!(matches!(heard, Heard::Frame(Frame::Welcome { region_bytes: 7 })), "{heard:?}");
        assert!(lane.may_hear());
        assert!(matches!(lane.hear(&memory, budget, Instant::now()), Heard::End));
    }
}
