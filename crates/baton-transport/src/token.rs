//! What shows that whoever connects was told to.

use std::io;

use baton_types::EngineId;

pub(crate) type Token = [u8; 16];

/// An agent as it shows itself to others.
#[derive(Clone, Debug)]
pub(crate) struct Us {
    pub id: EngineId,
    pub token: Token,
}

/// Shows that whoever dials was told the tokens of both sides: an agent that knows only ours cannot pass for
/// another. Neither token can be found from it.
pub(crate) fn proof(dialing: &Token, dialed: &Token, path: u64) -> Token {
    let mut key = [0; 32];
    key[..16].copy_from_slice(dialing);
    key[16..].copy_from_slice(dialed);
    let hash = blake3::keyed_hash(&key, &path.to_le_bytes());
    *hash.as_bytes().first_chunk().expect("a hash has 32 bytes")
}

/// Takes as long for tokens that differ early as for others.
pub(crate) fn is_equal(a: &Token, b: &Token) -> bool {
    a.iter().zip(b).fold(0, |different, (a, b)| different | (a ^ b)) == 0
}

/// 16 bytes that nobody can guess.
pub(crate) fn random_bytes() -> io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    assert_eq!(filled, bytes.len(), "so few bytes come whole");
    Ok(bytes)
}
