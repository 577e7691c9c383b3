//! Where an agent of `tcp` listens, and what shows that whoever connects was told by it.

use baton_types::EngineId;

/// Of the metadata and of what is said on a connection.
pub(super) const VERSION: u16 = 1;

const NAME: [u8; 3] = *b"tcp";
/// Of a DNS name, which is the longest that a host can have.
const MAX_HOST: usize = 253;

pub(super) type Token = [u8; 16];

/// An agent as it shows itself to others.
#[derive(Clone, Debug)]
pub(super) struct Us {
    pub id: EngineId,
    pub token: Token,
}

/// Shows that whoever dials was told the tokens of both sides: an agent that knows only ours cannot pass for
/// another. Neither token can be found from it.
pub(super) fn proof(dialing: &Token, dialed: &Token, path: u64) -> Token {
    let mut key = [0; 32];
    key[..16].copy_from_slice(dialing);
    key[16..].copy_from_slice(dialed);
    let hash = blake3::keyed_hash(&key, &path.to_le_bytes());
    *hash.as_bytes().first_chunk().expect("a hash has 32 bytes")
}

/// Takes as long for tokens that differ early as for others.
pub(super) fn is_equal(a: &Token, b: &Token) -> bool {
    a.iter().zip(b).fold(0, |different, (a, b)| different | (a ^ b)) == 0
}

/// The bytes are: `tcp`, version u16, token 16, region length u64, 1 if TLS is spoken or 0, port u16, and the
/// host as a length u8 and text. Integers are little-endian.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Metadata {
    pub token: Token,
    pub region_bytes: u64,
    pub tls: bool,
    pub port: u16,
    /// A name or an IP address, without brackets.
    pub host: String,
}

impl Metadata {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = NAME.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(self.token);
        bytes.extend(self.region_bytes.to_le_bytes());
        bytes.push(u8::from(self.tls));
        bytes.extend(self.port.to_le_bytes());
        bytes.push(u8::try_from(self.host.len()).expect("a host has at most 253 characters"));
        bytes.extend(self.host.bytes());
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        let mut reader = Reader(bytes);
        if reader.array() != Some(NAME) {
            return Err("not of the transport `tcp`");
        }
        if reader.u16() != Some(VERSION) {
            return Err("of another version of `tcp`");
        }
        let mut read = || {
            let (token, region_bytes) = (reader.array()?, reader.u64()?);
            let tls = match reader.array()? {
                [0] => false,
                [1] => true,
                _ => return None,
            };
            let (port, host) = (reader.u16()?, reader.text()?);
            reader.0.is_empty().then(|| Self { token, region_bytes, tls, port, host: host.to_owned() })
        };
        let metadata = read().ok_or("wrong length, or not metadata at all")?;
        if !is_host(&metadata.host) || metadata.port == 0 {
            return Err("nobody can be reached there");
        }
        Ok(metadata)
    }
}

/// Whether it may be a host name, or an IP address with or without a zone.
pub(super) fn is_host(host: &str) -> bool {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '%');
    !host.is_empty() && host.len() <= MAX_HOST && host.chars().all(legal)
}

/// What is left to decode.
pub(super) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk()?;
        self.0 = tail;
        Some(*head)
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A text behind its length.
    pub fn text(&mut self) -> Option<&'a str> {
        let [len] = self.array()?;
        let (text, tail) = self.0.split_at_checked(usize::from(len))?;
        self.0 = tail;
        std::str::from_utf8(text).ok()
    }

    pub fn engine_id(&mut self) -> Option<EngineId> {
        self.text()?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn metadata() -> impl Strategy<Value = Metadata> {
        let host = prop_oneof!["[a-z0-9.-]{1,253}", Just("fe80::1%eth0".to_owned())];
        (any::<Token>(), any::<u64>(), any::<bool>(), 1u16.., host).prop_map(
            |(token, region_bytes, tls, port, host)| Metadata { token, region_bytes, tls, port, host },
        )
    }

    proptest! {
        #[test]
        fn metadata_reads_back_whole_and_only_whole(metadata in metadata(), cut: prop::sample::Index) {
            let mut bytes = metadata.encode();
            prop_assert!(Metadata::decode(&bytes[..cut.index(bytes.len())]).is_err());
            bytes.push(0);
            prop_assert!(Metadata::decode(&bytes).is_err());
            bytes.pop();
            prop_assert_eq!(Metadata::decode(&bytes), Ok(metadata));
        }

        #[test]
        fn any_bytes_decode_or_do_not(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let bytes = [&b"tcp\x01\x00"[..], &bytes].concat();
            if let Ok(metadata) = Metadata::decode(&bytes) {
                prop_assert_eq!(metadata.encode(), bytes);
            }
        }
    }
}
