//! Where an agent of `tcp` listens, and what shows that whoever connects was told by it.

use crate::reader::Reader;
use crate::resolve::is_host;
use crate::token::Token;

/// Of the metadata and of what is said on a connection.
pub(super) const VERSION: u16 = 1;

const NAME: [u8; 3] = *b"tcp";
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
