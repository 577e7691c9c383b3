//! Identities. None of them is ever chosen by a client.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The name an operator gives an engine; it survives restarts. 1 to 64 characters of `[A-Za-z0-9._-]`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EngineName(String);

/// Why a text is not an [`EngineName`] or [`EngineId`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    #[error("an engine name has 1 to 64 characters of [A-Za-z0-9._-], not {0:?}")]
    Name(String),
    #[error("an engine id reads NAME@16-hex-digits, not {0:?}")]
    EngineId(String),
    #[error("a transfer id reads xfer- and 32 hex digits, not {0:?}")]
    Transfer(String),
}

impl EngineName {
    pub const MAX_LEN: usize = 64;

    pub fn new(name: impl Into<String>) -> Result<Self, IdError> {
        let name = name.into();
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if name.is_empty() || name.len() > Self::MAX_LEN || !name.chars().all(legal) {
            return Err(IdError::Name(name));
        }
        Ok(Self(name))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for EngineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for EngineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One life of an engine process: drawn at random when it starts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

impl fmt::Debug for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Name and incarnation: a restarted engine is another engine, and what referred to the old one is void.
///
/// Reads and prints as `name@0123456789abcdef`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EngineId {
    pub name: EngineName,
    pub incarnation: Incarnation,
}

impl EngineId {
    pub fn new(name: EngineName, incarnation: u64) -> Self {
        Self { name, incarnation: Incarnation(incarnation) }
    }
}

impl fmt::Display for EngineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{:016x}", self.name, self.incarnation.0)
    }
}

impl fmt::Debug for EngineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for EngineId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let wrong = || IdError::EngineId(text.to_owned());
        let (name, hex) = text.rsplit_once('@').ok_or_else(wrong)?;
        if hex.len() != 16 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        let incarnation = u64::from_str_radix(hex, 16).map_err(|_| wrong())?;
        Ok(Self::new(EngineName::new(name).map_err(|_| wrong())?, incarnation))
    }
}

impl Serialize for EngineId {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for EngineId {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A sequence inside one engine process; counted up, never reused in an incarnation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeqId(pub u64);

impl fmt::Debug for SeqId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{}", self.0)
    }
}

/// One attempt to hand one request's KV from one engine to another; both legs carry it.
///
/// Minted at random by whoever starts the attempt (the router, or the prefill engine where nobody did), new for every
/// attempt. Reads and prints as `xfer-` and 32 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransferId(pub u128);

impl fmt::Display for TransferId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "xfer-{:032x}", self.0)
    }
}

impl fmt::Debug for TransferId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "x{:x}", self.0)
    }
}

impl FromStr for TransferId {
    type Err = IdError;

    /// Hyphens between the hex digits are skipped, so that a UUID is accepted as well.
    fn from_str(text: &str) -> Result<Self, IdError> {
        let wrong = || IdError::Transfer(text.to_owned());
        let hex: String =
            text.strip_prefix("xfer-").ok_or_else(wrong)?.chars().filter(|c| *c != '-').collect();
        if hex.len() != 32 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        u128::from_str_radix(&hex, 16).map(Self).map_err(|_| wrong())
    }
}

impl Serialize for TransferId {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TransferId {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_read_back_as_printed() {
        let id = EngineId::new(EngineName::new("prefill-0").unwrap(), 0xbeef);
        assert_eq!(id.to_string().parse::<EngineId>(), Ok(id));
        let transfer = TransferId(0x1234 << 100);
        assert_eq!(transfer.to_string().parse::<TransferId>(), Ok(transfer));
        let uuid = "xfer-123e4567-e89b-12d3-a456-426614174000";
        assert_eq!(uuid.parse::<TransferId>(), Ok(TransferId(0x123e4567e89b12d3a456426614174000)));
    }

    #[test]
    fn bad_ids_are_refused() {
        for bad in ["", "a b", "a@b", "ü"] {
            assert!(EngineName::new(bad).is_err(), "{bad}");
        }
        for bad in ["p", "p@", "p@12", "p@+123456789abcdef", "@0123456789abcdef"] {
            assert!(bad.parse::<EngineId>().is_err(), "{bad}");
        }
        for bad in ["xfer-12", "0123", "xfer-+0000000000000000000000000000000"] {
            assert!(bad.parse::<TransferId>().is_err(), "{bad}");
        }
    }
}
