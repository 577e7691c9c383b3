//! What agents tell each other: the metadata, and the packets on a connection. Integers are little-endian.
//!
//! | packet | from | bytes |
//! |---|---|---|
//! | Hello | connecting side | 1, version u16, token 16, own engine id, peer's engine id (each a length u8 and text) |
//! | Welcome | accepting side | 2, version u16, region length u64; the region's file rides along |
//! | Notify | connecting side | 3, up to 256 bytes |

use baton_types::EngineId;

use crate::transport::MAX_NOTIFICATION;

const VERSION: u16 = 1;

/// No packet is longer; one that is does not come from an agent.
pub(super) const MAX_PACKET: usize = 512;

pub(super) type Token = [u8; 16];

/// How to reach an agent, and the length of what it shares. The token shows that whoever connects was told by
/// the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Metadata {
    pub socket: [u8; 16],
    pub token: Token,
    pub region_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Packet {
    Hello { token: Token, from: EngineId, to: EngineId },
    Welcome { region_bytes: u64 },
    Notify(Vec<u8>),
}

impl Metadata {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = b"shm".to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(self.socket);
        bytes.extend(self.token);
        bytes.extend(self.region_bytes.to_le_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        let mut reader = Reader(bytes);
        if reader.array::<3>() != Some(*b"shm") {
            return Err("not of the transport `shm`");
        }
        if reader.u16() != Some(VERSION) {
            return Err("of another version of `shm`");
        }
        let read = || Some((reader.array()?, reader.array()?, reader.u64()?, reader));
        match read() {
            Some((socket, token, region_bytes, Reader([]))) => Ok(Self { socket, token, region_bytes }),
            _ => Err("wrong length"),
        }
    }
}

impl Packet {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64);
        match self {
            Packet::Hello { token, from, to } => {
                bytes.push(1);
                bytes.extend(VERSION.to_le_bytes());
                bytes.extend(token);
                for id in [from, to] {
                    let text = id.to_string();
                    bytes.push(u8::try_from(text.len()).expect("an engine id has at most 81 characters"));
                    bytes.extend(text.into_bytes());
                }
            }
            Packet::Welcome { region_bytes } => {
                bytes.push(2);
                bytes.extend(VERSION.to_le_bytes());
                bytes.extend(region_bytes.to_le_bytes());
            }
            Packet::Notify(notification) => {
                bytes.push(3);
                bytes.extend(notification);
            }
        }
        bytes
    }

    /// None for whatever an agent of this version does not say.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let packet = match reader.array()? {
            [1] if reader.u16()? == VERSION => {
                Packet::Hello { token: reader.array()?, from: reader.engine_id()?, to: reader.engine_id()? }
            }
            [2] if reader.u16()? == VERSION => Packet::Welcome { region_bytes: reader.u64()? },
            [3] => Packet::Notify(reader.rest(MAX_NOTIFICATION)?.to_vec()),
            _ => return None,
        };
        reader.0.is_empty().then_some(packet)
    }
}

/// What is left to decode.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk()?;
        self.0 = tail;
        Some(*head)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn engine_id(&mut self) -> Option<EngineId> {
        let [len] = self.array()?;
        let (text, tail) = self.0.split_at_checked(usize::from(len))?;
        self.0 = tail;
        std::str::from_utf8(text).ok()?.parse().ok()
    }

    fn rest(&mut self, max_len: usize) -> Option<&'a [u8]> {
        let rest = std::mem::take(&mut self.0);
        (rest.len() <= max_len).then_some(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_types::EngineName;
    use proptest::prelude::*;

    fn packets() -> impl Strategy<Value = Packet> {
        let id = ("[A-Za-z0-9._-]{1,64}", any::<u64>())
            .prop_map(|(name, incarnation)| EngineId::new(EngineName::new(name).unwrap(), incarnation));
        prop_oneof![
            (any::<Token>(), id.clone(), id).prop_map(|(token, from, to)| Packet::Hello { token, from, to }),
            any::<u64>().prop_map(|region_bytes| Packet::Welcome { region_bytes }),
            proptest::collection::vec(any::<u8>(), 0..=MAX_NOTIFICATION).prop_map(Packet::Notify),
        ]
    }

    proptest! {
        #[test]
        fn packets_read_back_and_fit(packet in packets()) {
            let bytes = packet.encode();
            prop_assert!(bytes.len() <= MAX_PACKET);
            prop_assert_eq!(Packet::decode(&bytes), Some(packet));
        }

        #[test]
        fn any_bytes_decode_or_do_not(bytes in proptest::collection::vec(any::<u8>(), 0..MAX_PACKET)) {
            if let Some(packet) = Packet::decode(&bytes) {
                prop_assert_eq!(packet.encode(), bytes);
            }
        }

        #[test]
        fn metadata_reads_back_whole_and_only_whole(socket: [u8; 16], token: Token, region_bytes: u64, cut in 0usize..44) {
            let metadata = Metadata { socket, token, region_bytes };
            let mut bytes = metadata.encode();
            prop_assert_eq!(Metadata::decode(&bytes), Ok(metadata));
            prop_assert!(Metadata::decode(&bytes[..cut]).is_err());
            bytes.push(0);
            prop_assert!(Metadata::decode(&bytes).is_err());
        }
    }
}
