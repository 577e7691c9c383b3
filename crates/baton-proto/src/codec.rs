//! Messages as bytes. Total: every byte string decodes to exactly one message or is a [`PeerFault`].
//!
//! One tag byte, then the fields in the order of [`Message`], integers little-endian, lists with a u32 count. A frame's length is the
//! side channel's affair. The same module writes the notifications that travel with the data.

use baton_types::{BlockHash, EngineId, EngineName, KvDtype, Millis, PoolShape, TokenId, TransferId, UnitId};

use crate::message::{Compat, Decline, Held, Message, Mismatch, Prefilled};

/// Longest frame that a peer may send: a claim over a million tokens fits many times.
pub const MAX_FRAME_BYTES: usize = 4 << 20;

/// Longest metadata that a peer may send.
pub const MAX_METADATA_BYTES: usize = 64 << 10;

/// A type's number on the wire is its place here.
const DTYPES: [KvDtype; 4] = [KvDtype::F32, KvDtype::F16, KvDtype::Bf16, KvDtype::U8];

/// Why a frame is not a message. Its sender is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerFault {
    Truncated,
    TrailingBytes,
    UnknownTag,
    BadField,
    TooLong,
}

/// What a writer tells the destination with each post: which of its notifications this is, counted from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notification {
    pub transfer: TransferId,
    pub index: u32,
}

impl Notification {
    pub fn encode(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(20);
        out.extend(self.transfer.0.to_le_bytes());
        out.extend(self.index.to_le_bytes());
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, PeerFault> {
        let mut reader = Reader { bytes };
        let notification = Self { transfer: reader.transfer()?, index: reader.u32()? };
        reader.end()?;
        Ok(notification)
    }
}

pub fn encode(message: &Message) -> Vec<u8> {
    let mut w = Writer(Vec::new());
    match message {
        Message::Hello { version, engine, compat } => {
            // The version stands first for ever, so that any two versions can tell each other apart.
            w.u8(0).u16(*version).engine(engine).raw(&compat.0);
        }
        Message::Welcome { metadata, shape } => {
            w.u8(1).bytes(metadata).shape(shape);
        }
        Message::Incompatible { why } => {
            w.u8(2).u8(match why {
                Mismatch::Version => 0,
                Mismatch::Model => 1,
            });
        }
        Message::Register { transfer, first_unit } => {
            w.u8(3).transfer(*transfer).u32(*first_unit);
        }
        Message::Claim { transfer, attempt, first_unit, chain, held } => {
            w.u8(4).transfer(*transfer).u32(*attempt).u32(*first_unit).count(chain.len());
            for hash in chain {
                w.raw(&hash.0);
            }
            w.held(*held);
        }
        Message::Granted { transfer, attempt, remaining, first_unit, units, complete, prefilled } => {
            w.u8(5).transfer(*transfer).u32(*attempt).u32(remaining.0).u32(*first_unit).count(units.len());
            for unit in units {
                w.u32(unit.0);
            }
            w.flag(*complete).prefilled(*prefilled);
        }
        Message::Declined { transfer, why } => {
            w.u8(6).transfer(*transfer).u8(match why {
                Decline::Unknown => 0,
                Decline::Chain => 1,
            });
        }
        Message::Heartbeat { transfers } => {
            w.u8(7).count(transfers.len());
            for transfer in transfers {
                w.transfer(*transfer);
            }
        }
        Message::Done { transfer, notifications, prefilled } => {
            w.u8(8).transfer(*transfer).u32(*notifications).prefilled(*prefilled);
        }
        Message::DoneAck { transfer } => {
            w.u8(9).transfer(*transfer);
        }
        Message::Abort { transfer } => {
            w.u8(10).transfer(*transfer);
        }
        Message::Aborted { transfer } => {
            w.u8(11).transfer(*transfer);
        }
        Message::Offered { transfer } => {
            w.u8(12).transfer(*transfer);
        }
    }
    w.0
}

pub fn decode(frame: &[u8]) -> Result<Message, PeerFault> {
    if frame.len() > MAX_FRAME_BYTES {
        return Err(PeerFault::TooLong);
    }
    let mut r = Reader { bytes: frame };
    let message = match r.u8()? {
        0 => Message::Hello { version: r.u16()?, engine: r.engine()?, compat: Compat(r.array()?) },
        1 => Message::Welcome { metadata: r.metadata()?, shape: r.shape()? },
        2 => Message::Incompatible { why: r.one_of(&[Mismatch::Version, Mismatch::Model])? },
        3 => Message::Register { transfer: r.transfer()?, first_unit: r.u32()? },
        4 => Message::Claim {
            transfer: r.transfer()?,
            attempt: r.u32()?,
            first_unit: r.u32()?,
            chain: r.list(16, |r| r.array().map(BlockHash))?,
            held: r.held()?,
        },
        5 => Message::Granted {
            transfer: r.transfer()?,
            attempt: r.u32()?,
            remaining: Millis(r.u32()?),
            first_unit: r.u32()?,
            units: r.list(4, |r| r.u32().map(UnitId))?,
            complete: r.flag()?,
            prefilled: r.prefilled()?,
        },
        6 => {
            Message::Declined { transfer: r.transfer()?, why: r.one_of(&[Decline::Unknown, Decline::Chain])? }
        }
        7 => Message::Heartbeat { transfers: r.list(16, Reader::transfer)? },
        8 => Message::Done { transfer: r.transfer()?, notifications: r.u32()?, prefilled: r.prefilled()? },
        9 => Message::DoneAck { transfer: r.transfer()? },
        10 => Message::Abort { transfer: r.transfer()? },
        11 => Message::Aborted { transfer: r.transfer()? },
        12 => Message::Offered { transfer: r.transfer()? },
        _ => return Err(PeerFault::UnknownTag),
    };
    r.end()?;
    Ok(message)
}

struct Writer(Vec<u8>);

impl Writer {
    fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn u8(&mut self, value: u8) -> &mut Self {
        self.raw(&[value])
    }

    fn u16(&mut self, value: u16) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    fn count(&mut self, len: usize) -> &mut Self {
        self.u32(u32::try_from(len).expect("lists are bounded by Limits::units"))
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.count(bytes.len()).raw(bytes)
    }

    fn transfer(&mut self, transfer: TransferId) -> &mut Self {
        self.raw(&transfer.0.to_le_bytes())
    }

    fn flag(&mut self, flag: bool) -> &mut Self {
        self.u8(u8::from(flag))
    }

    fn held(&mut self, held: Held) -> &mut Self {
        match held {
            Held::Offered => self.u8(0),
            Held::Early => self.u8(1),
            Held::Retained(retention) => self.u8(2).transfer(retention),
        }
    }

    fn prefilled(&mut self, prefilled: Option<Prefilled>) -> &mut Self {
        self.flag(prefilled.is_some());
        match prefilled {
            None => self,
            Some(Prefilled { first_token, cached_tokens }) => self.u32(first_token.0).u32(cached_tokens),
        }
    }

    fn shape(&mut self, shape: &PoolShape) -> &mut Self {
        let PoolShape { units, block_units, ranks, dtype } = *shape;
        let dtype = DTYPES.iter().position(|known| *known == dtype).expect("every type has its place");
        self.u32(units).u32(block_units).u32(ranks).u8(dtype as u8)
    }

    fn engine(&mut self, engine: &EngineId) -> &mut Self {
        let name = engine.name.as_str();
        self.u8(name.len() as u8).raw(name.as_bytes()).raw(&engine.incarnation.0.to_le_bytes())
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
}

impl Reader<'_> {
    fn take(&mut self, len: usize) -> Result<&[u8], PeerFault> {
        let (taken, rest) = self.bytes.split_at_checked(len).ok_or(PeerFault::Truncated)?;
        self.bytes = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], PeerFault> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    fn u8(&mut self) -> Result<u8, PeerFault> {
        self.array().map(u8::from_le_bytes)
    }

    fn u16(&mut self) -> Result<u16, PeerFault> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, PeerFault> {
        self.array().map(u32::from_le_bytes)
    }

    fn transfer(&mut self) -> Result<TransferId, PeerFault> {
        self.array().map(|bytes| TransferId(u128::from_le_bytes(bytes)))
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> Result<T, PeerFault> {
        all.get(usize::from(self.u8()?)).copied().ok_or(PeerFault::BadField)
    }

    fn flag(&mut self) -> Result<bool, PeerFault> {
        self.one_of(&[false, true])
    }

    fn held(&mut self) -> Result<Held, PeerFault> {
        match self.u8()? {
            0 => Ok(Held::Offered),
            1 => Ok(Held::Early),
            2 => self.transfer().map(Held::Retained),
            _ => Err(PeerFault::BadField),
        }
    }

    fn prefilled(&mut self) -> Result<Option<Prefilled>, PeerFault> {
        if !self.flag()? {
            return Ok(None);
        }
        Ok(Some(Prefilled { first_token: TokenId(self.u32()?), cached_tokens: self.u32()? }))
    }

    fn shape(&mut self) -> Result<PoolShape, PeerFault> {
        let (units, block_units, ranks) = (self.u32()?, self.u32()?, self.u32()?);
        Ok(PoolShape { units, block_units, ranks, dtype: self.one_of(&DTYPES)? })
    }

    /// Allocates no more than the bytes that are really there can fill, whatever the count says (I11).
    fn list<T>(
        &mut self,
        item_bytes: usize,
        item: impl Fn(&mut Self) -> Result<T, PeerFault>,
    ) -> Result<Vec<T>, PeerFault> {
        let count = self.u32()? as usize;
        if count > self.bytes.len() / item_bytes {
            return Err(PeerFault::Truncated);
        }
        (0..count).map(|_| item(self)).collect()
    }

    fn metadata(&mut self) -> Result<Vec<u8>, PeerFault> {
        let len = self.u32()? as usize;
        if len > MAX_METADATA_BYTES {
            return Err(PeerFault::TooLong);
        }
        self.take(len).map(<[u8]>::to_vec)
    }

    fn engine(&mut self) -> Result<EngineId, PeerFault> {
        let len = usize::from(self.u8()?);
        let name = std::str::from_utf8(self.take(len)?).map_err(|_| PeerFault::BadField)?;
        let name = EngineName::new(name).map_err(|_| PeerFault::BadField)?;
        let incarnation = self.array().map(u64::from_le_bytes)?;
        Ok(EngineId::new(name, incarnation))
    }

    fn end(&self) -> Result<(), PeerFault> {
        if self.bytes.is_empty() { Ok(()) } else { Err(PeerFault::TrailingBytes) }
    }
}
