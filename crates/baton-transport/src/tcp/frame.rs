//! What agents of `tcp` say to each other on a connection.
//!
//! A frame is a head of 24 bytes, what belongs to the head, and for two kinds a payload of KV bytes with a
//! trailer of 8. Integers are little-endian.
//!
//! | head | bytes |
//! |---|---|
//! | kind | 1 |
//! | flags | 1: whether the payload has a CRC (1), whether there is a notification (2) |
//! | count | 2: of runs (12 bytes each: offset u64, length u32), or of bytes of the body |
//! | payload length | 4 |
//! | post | 8: its number on this path |
//! | value | 4: chunks, or an outcome |
//! | CRC32C | 4: of the 20 bytes before it, and of the runs or the body |
//!
//! | frame | from | then |
//! |---|---|---|
//! | 1 Hello | connecting side | body: version u16, token 16, proof 16, path u64, lane u8, lanes u8, two engine ids |
//! | 2 Welcome | accepting side | body: version u16, region length u64 |
//! | 3 Write | connecting side | runs of the accepting side's region, payload, trailer |
//! | 4 Finish | connecting side | body: the notification. The value says how many Writes the post has |
//! | 5 Read | connecting side | runs of the accepting side's region |
//! | 6 Data | accepting side | payload of one Read, or nothing if it is refused, trailer |
//! | 7 Ended | accepting side | the value says how the post ended |
//!
//! The trailer is an outcome u32 and the CRC32C of the payload u32, 0 where the flag is not set.

use baton_types::EngineId;

use super::crc::crc32c;
use super::metadata::VERSION;
use crate::reader::Reader;
use crate::token::Token;
use crate::transport::{Descriptor, MAX_NOTIFICATION, TransportError};

/// Bytes of one payload, at most.
pub(super) const MAX_CHUNK: usize = 512 << 10;
/// Runs of one Write or Read, at most: with head and trailer they are sent by one system call (IOV_MAX is 1024).
pub(super) const MAX_RUNS: usize = 512;
/// Connections of one path, at most.
pub(super) const MAX_LANES: u8 = 16;
/// Reads that may be asked for on one lane before the first of them is answered.
pub(super) const MAX_READS: usize = 8;
/// Posts of one path that have begun and not ended, at most.
pub(super) const MAX_OPEN_POSTS: usize = 1024;

pub(super) const HEAD: usize = 24;
pub(super) const CRC_AT: usize = 20;
const RUN: usize = 12;
/// Longer than a Hello or a notification can be.
const MAX_BODY: usize = 512;
/// Without the payload no frame is longer.
pub(super) const MAX_FRAME: usize = HEAD + MAX_RUNS * RUN;
pub(super) const TRAILER: usize = 8;

const HAS_CRC: u8 = 1;
const HAS_NOTIFICATION: u8 = 2;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub token: Token,
    pub proof: Token,
    /// Drawn for each attempt to reach the peer: the lanes of two attempts are never taken for one path.
    pub path: u64,
    pub lane: u8,
    pub lanes: u8,
    pub from: EngineId,
    pub to: EngineId,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    Hello(Hello),
    Welcome { region_bytes: u64 },
    Write { post: u64, crc: bool, runs: Vec<Descriptor> },
    Finish { post: u64, writes: u32, notify: Option<Vec<u8>> },
    Read { post: u64, crc: bool, runs: Vec<Descriptor> },
    Data { post: u64, crc: bool, len: usize },
    Ended { post: u64, outcome: Outcome },
}

/// What became of a chunk or a post, as the side says whose memory it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Moved,
    NotPermitted,
    OutOfBounds,
    Damaged,
}

impl Outcome {
    const ALL: [Self; 4] = [Self::Moved, Self::NotPermitted, Self::OutOfBounds, Self::Damaged];

    fn of_number(number: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }

    pub fn error(self) -> Option<TransportError> {
        match self {
            Self::Moved => None,
            Self::NotPermitted => Some(TransportError::NotPermitted),
            Self::OutOfBounds => Some(TransportError::OutOfBounds),
            Self::Damaged => Some(TransportError::Damaged),
        }
    }
}

/// What no agent of this version says: the connection cannot be made sense of any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    Hello = 1,
    Welcome,
    Write,
    Finish,
    Read,
    Data,
    Ended,
}

impl Kind {
    const ALL: [Self; 7] =
        [Self::Hello, Self::Welcome, Self::Write, Self::Finish, Self::Read, Self::Data, Self::Ended];

    fn of_byte(byte: u8) -> Result<Self, Fault> {
        Self::ALL.into_iter().find(|&kind| kind as u8 == byte).ok_or(Fault)
    }

    /// Bytes that belong to the head, of which the head says that there are `count`.
    fn tail_bytes(self, count: usize) -> Result<usize, Fault> {
        match self {
            Self::Write | Self::Read if count <= MAX_RUNS => Ok(count * RUN),
            Self::Hello | Self::Welcome | Self::Finish if count <= MAX_BODY => Ok(count),
            Self::Data | Self::Ended if count == 0 => Ok(0),
            _ => Err(Fault),
        }
    }
}

/// The head but for its CRC.
struct Head {
    kind: Kind,
    flags: u8,
    count: u16,
    payload_bytes: u32,
    post: u64,
    value: u32,
}

impl Head {
    fn of(kind: Kind, post: u64) -> Self {
        Self { kind, flags: 0, count: 0, payload_bytes: 0, post, value: 0 }
    }

    fn encode(&self, tail: &[u8], bytes: &mut Vec<u8>) {
        let begin = bytes.len();
        bytes.extend([self.kind as u8, self.flags]);
        bytes.extend(self.count.to_le_bytes());
        bytes.extend(self.payload_bytes.to_le_bytes());
        bytes.extend(self.post.to_le_bytes());
        bytes.extend(self.value.to_le_bytes());
        let crc = crc32c(crc32c(0, &bytes[begin..]), tail);
        bytes.extend(crc.to_le_bytes());
        bytes.extend(tail);
    }

    fn decode(bytes: &[u8; HEAD]) -> Option<(Self, u32)> {
        let mut reader = Reader(bytes);
        let [kind, flags] = reader.array()?;
        let head = Self {
            kind: Kind::of_byte(kind).ok()?,
            flags,
            count: reader.u16()?,
            payload_bytes: reader.u32()?,
            post: reader.u64()?,
            value: reader.u32()?,
        };
        Some((head, reader.u32()?))
    }
}

impl Frame {
    /// Appends the frame but for its payload and trailer.
    ///
    /// # Panics
    /// If a list is longer than agents send them.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        let count = |len: usize| u16::try_from(len).expect("no list is that long");
        match self {
            Self::Hello(hello) => {
                let mut body = VERSION.to_le_bytes().to_vec();
                body.extend(hello.token);
                body.extend(hello.proof);
                body.extend(hello.path.to_le_bytes());
                body.extend([hello.lane, hello.lanes]);
                for id in [&hello.from, &hello.to] {
                    let text = id.to_string();
                    body.push(u8::try_from(text.len()).expect("an engine id has at most 81 characters"));
                    body.extend(text.bytes());
                }
                Head { count: count(body.len()), ..Head::of(Kind::Hello, 0) }.encode(&body, bytes);
            }
            Self::Welcome { region_bytes } => {
                let mut body = VERSION.to_le_bytes().to_vec();
                body.extend(region_bytes.to_le_bytes());
                Head { count: count(body.len()), ..Head::of(Kind::Welcome, 0) }.encode(&body, bytes);
            }
            Self::Write { post, crc, runs } | Self::Read { post, crc, runs } => {
                let kind = if matches!(self, Self::Write { .. }) { Kind::Write } else { Kind::Read };
                let tail: Vec<u8> = runs
                    .iter()
                    .flat_map(|run| run.offset.to_le_bytes().into_iter().chain(run.len.to_le_bytes()))
                    .collect();
                let payload_bytes = runs.iter().map(|run| run.len).sum();
                let head = Head {
                    flags: u8::from(*crc) * HAS_CRC,
                    count: count(runs.len()),
                    payload_bytes,
                    ..Head::of(kind, *post)
                };
                head.encode(&tail, bytes);
            }
            Self::Finish { post, writes, notify } => {
                let body = notify.as_deref().unwrap_or_default();
                let flags = u8::from(notify.is_some()) * HAS_NOTIFICATION;
                let head =
                    Head { flags, count: count(body.len()), value: *writes, ..Head::of(Kind::Finish, *post) };
                head.encode(body, bytes);
            }
            Self::Data { post, crc, len } => {
                let payload_bytes = u32::try_from(*len).expect("no payload is that long");
                let flags = u8::from(*crc) * HAS_CRC;
                Head { flags, payload_bytes, ..Head::of(Kind::Data, *post) }.encode(&[], bytes);
            }
            Self::Ended { post, outcome } => {
                Head { value: *outcome as u32, ..Head::of(Kind::Ended, *post) }.encode(&[], bytes);
            }
        }
    }

    /// The frame that `bytes` begin with, and how long it is without payload and trailer; none if some of it is
    /// still to come. What cannot become a frame is a fault as early as that can be seen.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, Fault> {
        if let Some(&kind) = bytes.first() {
            Kind::of_byte(kind)?;
        }
        let Some((head, rest)) = bytes.split_first_chunk::<HEAD>() else { return Ok(None) };
        let (fields, crc) = Head::decode(head).ok_or(Fault)?;
        let tail_bytes = fields.kind.tail_bytes(usize::from(fields.count))?;
        let Some(tail) = rest.get(..tail_bytes) else { return Ok(None) };
        if crc32c(crc32c(0, &head[..CRC_AT]), tail) != crc {
            return Err(Fault);
        }
        let frame = Self::of_parts(&fields, tail).ok_or(Fault)?;
        Ok(Some((frame, HEAD + tail_bytes)))
    }

    fn of_parts(head: &Head, tail: &[u8]) -> Option<Self> {
        let (post, crc) = (head.post, head.flags & HAS_CRC != 0);
        let payload_bytes = usize::try_from(head.payload_bytes).ok()?;
        if payload_bytes > MAX_CHUNK {
            return None;
        }
        let mut reader = Reader(tail);
        let frame = match head.kind {
            Kind::Hello => {
                (reader.u16()? == VERSION).then_some(())?;
                let (token, proof) = (reader.array()?, reader.array()?);
                let (path, [lane, lanes]) = (reader.u64()?, reader.array()?);
                (lane < lanes && lanes <= MAX_LANES).then_some(())?;
                let (from, to) = (reader.engine_id()?, reader.engine_id()?);
                Self::Hello(Hello { token, proof, path, lane, lanes, from, to })
            }
            Kind::Welcome => {
                (reader.u16()? == VERSION).then_some(())?;
                Self::Welcome { region_bytes: reader.u64()? }
            }
            Kind::Write | Kind::Read => {
                let runs = runs(&mut reader)?;
                let bytes: u64 = runs.iter().map(|run| u64::from(run.len)).sum();
                (bytes == u64::from(head.payload_bytes) && bytes > 0).then_some(())?;
                match head.kind {
                    Kind::Write => Self::Write { post, crc, runs },
                    _ => Self::Read { post, crc, runs },
                }
            }
            Kind::Finish => {
                let body = std::mem::take(&mut reader.0);
                let notify = (head.flags & HAS_NOTIFICATION != 0).then(|| body.to_vec());
                (body.len() <= MAX_NOTIFICATION && (notify.is_some() || body.is_empty())).then_some(())?;
                Self::Finish { post, writes: head.value, notify }
            }
            Kind::Data => Self::Data { post, crc, len: payload_bytes },
            Kind::Ended => Self::Ended { post, outcome: Outcome::of_number(head.value)? },
        };
        reader.0.is_empty().then_some(frame)
    }
}

fn runs(reader: &mut Reader<'_>) -> Option<Vec<Descriptor>> {
    let mut runs = Vec::with_capacity(reader.0.len() / RUN);
    while !reader.0.is_empty() {
        runs.push(Descriptor { offset: reader.u64()?, len: reader.u32()? });
    }
    Some(runs)
}

/// What follows a payload.
pub(super) fn trailer(outcome: Outcome, crc: u32) -> [u8; TRAILER] {
    let mut bytes = [0; TRAILER];
    bytes[..4].copy_from_slice(&(outcome as u32).to_le_bytes());
    bytes[4..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

pub(super) fn read_trailer(bytes: &[u8; TRAILER]) -> Result<(Outcome, u32), Fault> {
    let mut reader = Reader(bytes);
    let (outcome, crc) = (reader.u32().and_then(Outcome::of_number), reader.u32());
    outcome.zip(crc).ok_or(Fault)
}

/// Whether a range lies inside a region of that many bytes.
pub(super) fn is_inside(run: &Descriptor, region_bytes: u64) -> bool {
    run.offset.checked_add(u64::from(run.len)).is_some_and(|end| end <= region_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_types::EngineName;
    use proptest::prelude::*;

    fn runs() -> impl Strategy<Value = Vec<Descriptor>> {
        let run = (any::<u64>(), 1u32..1024).prop_map(|(offset, len)| Descriptor { offset, len });
        proptest::collection::vec(run, 1..=MAX_RUNS)
    }

    fn frames() -> impl Strategy<Value = Frame> {
        let id = || {
            ("[A-Za-z0-9._-]{1,64}", any::<u64>())
                .prop_map(|(name, incarnation)| EngineId::new(EngineName::new(name).unwrap(), incarnation))
        };
        let outcome = prop::sample::select(Outcome::ALL.to_vec());
        let notification = proptest::collection::vec(any::<u8>(), 0..=MAX_NOTIFICATION);
        prop_oneof![
            (any::<[Token; 2]>(), any::<u64>(), 0..MAX_LANES, id(), id()).prop_map(
                |([token, proof], path, lane, from, to)| Frame::Hello(Hello {
                    token,
                    proof,
                    path,
                    lane,
                    lanes: lane + 1,
                    from,
                    to
                })
            ),
            any::<u64>().prop_map(|region_bytes| Frame::Welcome { region_bytes }),
            (any::<u64>(), any::<bool>(), runs()).prop_map(|(post, crc, runs)| Frame::Write {
                post,
                crc,
                runs
            }),
            (any::<u64>(), any::<u32>(), proptest::option::of(notification))
                .prop_map(|(post, writes, notify)| Frame::Finish { post, writes, notify }),
            (any::<u64>(), any::<bool>(), runs()).prop_map(|(post, crc, runs)| Frame::Read {
                post,
                crc,
                runs
            }),
            (any::<u64>(), any::<bool>(), 0..=MAX_CHUNK).prop_map(|(post, crc, len)| Frame::Data {
                post,
                crc,
                len
            }),
            (any::<u64>(), outcome).prop_map(|(post, outcome)| Frame::Ended { post, outcome }),
        ]
    }

    fn encoded(frame: &Frame) -> Vec<u8> {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        bytes
    }

    proptest! {
        #[test]
        fn frames_read_back_whatever_follows(frame in frames(), more in proptest::collection::vec(any::<u8>(), 0..9)) {
            let bytes = encoded(&frame);
            prop_assert!(bytes.len() <= MAX_FRAME);
            let read = Frame::decode(&[&bytes[..], &more].concat());
            prop_assert_eq!(read, Ok(Some((frame, bytes.len()))));
        }

        #[test]
        fn part_of_a_frame_is_none(frame in frames(), cut: prop::sample::Index) {
            let bytes = encoded(&frame);
            prop_assert_eq!(Frame::decode(&bytes[..cut.index(bytes.len())]), Ok(None));
        }

        #[test]
        fn a_flipped_bit_is_never_another_frame(frame in frames(), bit: prop::sample::Index) {
            let mut bytes = encoded(&frame);
            let bit = bit.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            // A longer count may well ask for more bytes, but never for many.
            prop_assert!(!matches!(Frame::decode(&bytes), Ok(Some(_))));
        }

        #[test]
        fn any_bytes_decode_or_do_not(bytes in proptest::collection::vec(any::<u8>(), 0..MAX_FRAME + 1)) {
            let decoded = Frame::decode(&bytes);
            prop_assert!(bytes.len() < MAX_FRAME || decoded != Ok(None), "no frame asks for more than that");
        }
    }

    #[test]
    fn what_breaks_a_rule_is_a_fault() {
        let run = Descriptor { offset: 0, len: 4 };
        let faulty = [
            Frame::Write { post: 1, crc: false, runs: vec![] },
            Frame::Read { post: 1, crc: false, runs: vec![Descriptor { len: 0, ..run }] },
            Frame::Write { post: 1, crc: false, runs: vec![Descriptor { len: MAX_CHUNK as u32 + 1, ..run }] },
            Frame::Finish { post: 1, writes: 0, notify: Some(vec![0; MAX_NOTIFICATION + 1]) },
        ];
        for frame in faulty {
            assert_eq!(Frame::decode(&encoded(&frame)), Err(Fault), "{frame:?}");
        }
        assert_eq!(Frame::decode(b"GET / HTTP/1.1"), Err(Fault));
        assert_eq!(read_trailer(&[9, 0, 0, 0, 0, 0, 0, 0]), Err(Fault));
        assert_eq!(read_trailer(&trailer(Outcome::Damaged, 7)), Ok((Outcome::Damaged, 7)));
    }

    #[test]
    fn a_range_ends_inside_its_region() {
        let inside = |offset, len| is_inside(&Descriptor { offset, len }, 100);
        assert!(inside(0, 100) && inside(100, 0));
        assert!(!inside(1, 100) && !inside(u64::MAX, 1));
    }
}
