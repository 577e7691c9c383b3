//! Where an agent is reached, by us and by NIXL.

use crate::reader::Reader;
use crate::resolve::is_host;
use crate::token::Token;

/// Of the metadata and of what is said on a link.
pub(super) const VERSION: u16 = 1;

const NAME: [u8; 4] = *b"nixl";
/// NIXL's own metadata: some hundred bytes for each network device.
const MAX_AGENT_BYTES: usize = 256 << 10;

/// The bytes are: `nixl`, version u16, token 16, the region's address and length as u64, port u16, the host as a
/// length u8 and text, the backend in the same way, NIXL's own metadata to the end, and 16 bytes of the hash of all
/// that. Integers are little-endian.
///
/// What is behind the hash goes to NIXL, which checks little: the hash keeps out what was damaged. Whoever can change
/// the metadata on purpose can change the hash as well, and must be kept from it by what carries the metadata.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Metadata {
    pub token: Token,
    pub region_base: u64,
    pub region_bytes: u64,
    pub port: u16,
    /// A name or an IP address, without brackets.
    pub host: String,
    pub backend: String,
    pub agent: Vec<u8>,
}

fn hash(bytes: &[u8]) -> Token {
    *blake3::hash(bytes).as_bytes().first_chunk().expect("a hash has 32 bytes")
}

impl Metadata {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = NAME.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(self.token);
        bytes.extend(self.region_base.to_le_bytes());
        bytes.extend(self.region_bytes.to_le_bytes());
        bytes.extend(self.port.to_le_bytes());
        for text in [&self.host, &self.backend] {
            bytes.push(
                u8::try_from(text.len()).expect("names of hosts and backends have at most 253 characters"),
            );
            bytes.extend(text.bytes());
        }
        bytes.extend(&self.agent);
        bytes.extend(hash(&bytes));
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        let (content, sum) = bytes.split_last_chunk().ok_or("too short")?;
        let mut reader = Reader(content);
        if reader.array() != Some(NAME) {
            return Err("not of the transport `nixl`");
        }
        if reader.u16() != Some(VERSION) {
            return Err("of another version of `nixl`");
        }
        if *sum != hash(content) {
            return Err("damaged");
        }
        let mut read = || {
            let token = reader.array()?;
            let (region_base, region_bytes) = (reader.u64()?, reader.u64()?);
            let (port, host) = (reader.u16()?, reader.text()?.to_owned());
            let backend = reader.text()?.to_owned();
            let agent = reader.0.to_vec();
            Some(Self { token, region_base, region_bytes, port, host, backend, agent })
        };
        let metadata = read().ok_or("too short")?;
        if !is_host(&metadata.host) || metadata.port == 0 {
            return Err("nobody can be reached there");
        }
        if metadata.region_base.checked_add(metadata.region_bytes).is_none() {
            return Err("its region cannot be");
        }
        if metadata.agent.len() > MAX_AGENT_BYTES {
            return Err("too long");
        }
        Ok(metadata)
    }
}

impl std::fmt::Debug for Metadata {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Metadata({} at {}:{}, {} bytes)", self.backend, self.host, self.port, self.region_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn metadata_reads_back_whole_and_only_whole(
            token: Token, region: (u32, u32), port in 1u16.., host in "[a-z0-9.-]{1,253}", backend in "[A-Z]{0,9}",
            agent in proptest::collection::vec(any::<u8>(), 0..300), flip: prop::sample::Index,
        ) {
            let (region_base, region_bytes) = (region.0.into(), region.1.into());
            let metadata = Metadata { token, region_base, region_bytes, port, host, backend, agent };
            let mut bytes = metadata.encode();
            prop_assert!(Metadata::decode(&bytes[..flip.index(bytes.len())]).is_err());
            let at = flip.index(bytes.len());
            bytes[at] ^= 0x10;
            prop_assert!(Metadata::decode(&bytes).is_err());
            bytes[at] ^= 0x10;
            prop_assert_eq!(Metadata::decode(&bytes), Ok(metadata));
        }
    }

    #[test]
    fn a_region_beyond_the_end_of_memory_is_refused() {
        let metadata = Metadata {
            token: [1; 16],
            region_base: u64::MAX,
            region_bytes: 2,
            port: 1,
            host: "host".to_owned(),
            backend: "UCX".to_owned(),
            agent: Vec::new(),
        };
        assert!(Metadata::decode(&metadata.encode()).is_err());
    }
}
