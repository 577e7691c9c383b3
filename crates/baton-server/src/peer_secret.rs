//! A secret that all engines of a system share, so that strangers on the network are not taken for engines.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Shorter ones can be guessed from one overheard handshake.
const MIN_BYTES: usize = 16;
/// What is longer is not a secret but another file.
const MAX_BYTES: usize = 4096;

/// Never shown: not in logs, not in a configuration that is printed.
#[derive(Clone, PartialEq, Eq)]
pub struct PeerSecret(Arc<[u8]>);

/// Why there is no secret. Says nothing of its bytes.
#[derive(Debug, thiserror::Error)]
pub enum PeerSecretError {
    #[error("a peer secret has {MIN_BYTES} to {MAX_BYTES} bytes, spaces and line ends around it not counted")]
    Length,
    #[error("the peer secret cannot be read from {path}: {source}")]
    Io { path: String, source: std::io::Error },
}

impl PeerSecret {
    /// White space around it does not count: files end with a line end.
    ///
    /// # Errors
    /// If it is too short or too long.
    pub fn new(text: impl AsRef<[u8]>) -> Result<Self, PeerSecretError> {
        let bytes = text.as_ref().trim_ascii();
        if !(MIN_BYTES..=MAX_BYTES).contains(&bytes.len()) {
            return Err(PeerSecretError::Length);
        }
        Ok(Self(bytes.into()))
    }

    /// # Errors
    /// If the file cannot be read, or holds no secret.
    pub fn read(path: &Path) -> Result<Self, PeerSecretError> {
        let text = std::fs::read(path)
            .map_err(|source| PeerSecretError::Io { path: path.display().to_string(), source })?;
        Self::new(text)
    }

    /// HMAC-SHA256 over `parts`, one behind the other.
    pub(crate) fn mac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        for part in parts {
            mac.update(part);
        }
        mac
    }
}

impl fmt::Debug for PeerSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PeerSecret(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_read_without_its_line_end_and_never_shown() {
        let text = "correct horse battery staple";
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!("{text}\n")).unwrap();
        let read = PeerSecret::read(file.path()).unwrap();
        assert_eq!(read, PeerSecret::new(text).unwrap());
        assert_eq!(format!("{read:?}"), "PeerSecret(hidden)");
    }

    #[test]
    fn what_is_no_secret_is_refused_without_being_shown() {
        for bad in ["", "short", "fifteen bytes!!   \n", &"x".repeat(4097)] {
            let error = PeerSecret::new(bad).unwrap_err().to_string();
            assert!(bad.is_empty() || !error.contains(bad.trim()), "{error}");
        }
        let error = PeerSecret::read(Path::new("/none")).unwrap_err().to_string();
        assert!(error.contains("/none"), "{error}");
    }
}
