//! The shared secret, proved by both ends of a connection before either says a word of the protocol.
//!
//! Each end sends an opening and a nonce at once; the one that dialled proves first, and the other proves only what was proved to
//! it. A proof is an HMAC over a label, who proves, and both nonces: one that was overheard fits no other connection, and one that is
//! sent back does not fit the other end.

use std::io;

use hmac::Mac;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::peer_secret::PeerSecret;
use crate::random;

/// As a frame's length it would be far above the limit, so that an engine without a secret does not take it for a frame.
pub(super) const OPENING: [u8; 8] = *b"\xffBATON-1";
const LABEL: &[u8] = b"baton side channel 1";
const NONCE_BYTES: usize = 32;
const PROOF_BYTES: usize = 32;

/// Which end of a connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Dialler,
    Listener,
}

/// Why the other end is not let in.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unproved {
    #[error("it speaks without the peer secret that this engine has")]
    NoSecret,
    #[error("its peer secret is not the one that this engine has")]
    OtherSecret,
    #[error("it does not accept the peer secret that this engine has")]
    NotAccepted,
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl End {
    fn other(self) -> Self {
        match self {
            Self::Dialler => Self::Listener,
            Self::Listener => Self::Dialler,
        }
    }

    /// What tells the proofs of the two ends apart.
    fn name(self) -> &'static [u8] {
        match self {
            Self::Dialler => b"dialler",
            Self::Listener => b"listener",
        }
    }
}

/// Returns once each end has proved that it has the secret. Reads 72 bytes at most; the time is the caller's to limit.
pub(super) async fn prove(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    end: End,
    secret: &PeerSecret,
) -> Result<(), Unproved> {
    let ours: [u8; NONCE_BYTES] = random::draw_bytes();
    stream.write_all(&[&OPENING[..], &ours].concat()).await?;
    stream.flush().await?;
    let mut opening = [0; OPENING.len()];
    stream.read_exact(&mut opening).await?;
    if opening != OPENING {
        return Err(Unproved::NoSecret);
    }
    let mut theirs = [0; NONCE_BYTES];
    stream.read_exact(&mut theirs).await?;
    let nonces = match end {
        End::Dialler => [ours, theirs],
        End::Listener => [theirs, ours],
    };
    if end == End::Listener {
        hear_proof(stream, end.other(), secret, &nonces).await?;
    }
    stream.write_all(&proof(secret, end, &nonces).finalize().into_bytes()).await?;
    stream.flush().await?;
    if end == End::Dialler {
        hear_proof(stream, end.other(), secret, &nonces).await?;
    }
    Ok(())
}

async fn hear_proof(
    stream: &mut (impl AsyncRead + Unpin),
    of: End,
    secret: &PeerSecret,
    nonces: &[[u8; NONCE_BYTES]; 2],
) -> Result<(), Unproved> {
    let mut heard = [0; PROOF_BYTES];
    match stream.read_exact(&mut heard).await {
        // A listener that closes now has looked at our proof.
        Err(error) if of == End::Listener && error.kind() == io::ErrorKind::UnexpectedEof => {
            return Err(Unproved::NotAccepted);
        }
        read => read?,
    };
    // In constant time.
    proof(secret, of, nonces).verify_slice(&heard).map_err(|_| Unproved::OtherSecret)
}

fn proof(secret: &PeerSecret, of: End, nonces: &[[u8; NONCE_BYTES]; 2]) -> hmac::Hmac<sha2::Sha256> {
    secret.mac(&[LABEL, of.name(), &nonces[0], &nonces[1]])
}

#[cfg(test)]
mod tests {
    use tokio::io::{DuplexStream, duplex};

    use super::*;

    fn secret(text: &str) -> PeerSecret {
        PeerSecret::new(format!("{text} of sixteen bytes")).unwrap()
    }

    async fn meet(dialler: &str, listener: &str) -> (Result<(), Unproved>, Result<(), Unproved>) {
        let (mut a, mut b) = duplex(1 << 10);
        let (dialler, listener) = (secret(dialler), secret(listener));
        // Whoever gives up closes its end.
        let dial = async { prove(&mut a, End::Dialler, &dialler).await.inspect_err(|_| ()) };
        let listen = async move { prove(&mut b, End::Listener, &listener).await };
        tokio::join!(dial, listen)
    }

    #[tokio::test]
    async fn equal_secrets_meet_and_others_do_not() {
        assert!(matches!(meet("one", "one").await, (Ok(()), Ok(()))));
        let wrong = meet("one", "two").await;
        assert!(matches!(wrong, (Err(Unproved::NotAccepted), Err(Unproved::OtherSecret))), "{wrong:?}");
    }

    /// What an end with the secret says to a stranger that says `said`, byte for byte.
    async fn overhear(mut stream: DuplexStream, said: Vec<u8>) -> Vec<u8> {
        // The end may have closed already.
        let _ = stream.write_all(&said).await;
        let _ = stream.shutdown().await;
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard).await.unwrap();
        heard
    }

    #[tokio::test]
    async fn a_stranger_learns_a_nonce_and_nothing_made_of_the_secret() {
        let (mut ours, theirs) = duplex(1 << 10);
        let secret = secret("one");
        let listen = async move { prove(&mut ours, End::Listener, &secret).await };
        let garbage = [&OPENING[..], &[7; NONCE_BYTES + PROOF_BYTES]].concat();
        let (heard, refused) = tokio::join!(overhear(theirs, garbage), listen);
        assert_eq!(heard.len(), OPENING.len() + NONCE_BYTES);
        assert!(matches!(refused, Err(Unproved::OtherSecret)));
    }

    #[tokio::test]
    async fn an_overheard_proof_fits_no_other_connection() {
        // A dialler talks to somebody in the middle, who hands its words on and writes them down.
        let secret = secret("one");
        let (mut a, mut middle_a) = duplex(1 << 10);
        let (mut middle_b, mut b) = duplex(1 << 10);
        let mut said = vec![0; OPENING.len() + NONCE_BYTES + PROOF_BYTES];
        let relay = async {
            let (first, proof) = said.split_at_mut(OPENING.len() + NONCE_BYTES);
            middle_a.read_exact(first).await.unwrap();
            middle_b.write_all(first).await.unwrap();
            let mut back = vec![0; OPENING.len() + NONCE_BYTES];
            middle_b.read_exact(&mut back).await.unwrap();
            middle_a.write_all(&back).await.unwrap();
            middle_a.read_exact(proof).await.unwrap();
            middle_b.write_all(proof).await.unwrap();
            let mut back = [0; PROOF_BYTES];
            middle_b.read_exact(&mut back).await.unwrap();
            middle_a.write_all(&back).await.unwrap();
        };
        let dial = prove(&mut a, End::Dialler, &secret);
        let listen = prove(&mut b, End::Listener, &secret);
        let ((), dialled, listened) = tokio::join!(relay, dial, listen);
        assert!(dialled.is_ok() && listened.is_ok());
        // The same words again, to an end that has drawn another nonce.
        let (mut ours, theirs) = duplex(1 << 10);
        let again = async move { prove(&mut ours, End::Listener, &secret).await };
        let (_, refused) = tokio::join!(overhear(theirs, said), again);
        assert!(matches!(refused, Err(Unproved::OtherSecret)), "{refused:?}");
    }

    #[tokio::test]
    async fn words_that_are_sent_back_prove_nothing() {
        let secret = secret("one");
        let (mut ours, mut mirror) = duplex(1 << 10);
        let dial = async move { prove(&mut ours, End::Dialler, &secret).await };
        let reflect = async {
            let mut byte = [0; 1];
            while let Ok(1) = mirror.read(&mut byte).await {
                if mirror.write_all(&byte).await.is_err() {
                    break;
                }
            }
        };
        let (refused, ()) = tokio::join!(dial, reflect);
        assert!(matches!(refused, Err(Unproved::OtherSecret)), "{refused:?}");
    }

    #[tokio::test]
    async fn an_engine_without_a_secret_is_told_apart() {
        let (mut ours, theirs) = duplex(1 << 10);
        let secret = secret("one");
        let listen = async move { prove(&mut ours, End::Listener, &secret).await };
        let hello = vec![40, 0, 0, 0, 0, 1, 0, 3, b'p'];
        let (_, refused) = tokio::join!(overhear(theirs, hello), listen);
        assert!(matches!(refused, Err(Unproved::NoSecret)), "{refused:?}");
    }
}
