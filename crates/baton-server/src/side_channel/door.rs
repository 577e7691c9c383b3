//! Who is let in: what a new connection must show, if anything, before the protocol hears of it.

use std::io;
use std::time::Duration;

use baton_transport::{PeerTls, PeerTlsError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::challenge::{self, End, Unproved};
use crate::peer_secret::PeerSecret;

/// How long a stranger may take to show what is asked of it.
const PATIENCE: Duration = Duration::from_secs(5);
/// The first bytes of a TLS connection: a handshake record.
const TLS_OPENING: [u8; 2] = [0x16, 3];

/// What engines ask of each other. Nothing, unless the operator wants it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Door {
    pub tls: Option<PeerTls>,
    pub secret: Option<PeerSecret>,
}

/// A connection with a peer that was let in.
pub(super) trait PeerStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> PeerStream for S {}

/// Why one was not.
#[derive(Debug, thiserror::Error)]
pub(super) enum TurnedAway {
    #[error("TLS: {0}")]
    Tls(io::Error),
    #[error("TLS: {0}")]
    Name(#[from] PeerTlsError),
    #[error(transparent)]
    Secret(#[from] Unproved),
    #[error("it did not show in {PATIENCE:?} who it is")]
    Slow,
}

impl Door {
    /// Lets in whoever dialled us.
    pub(super) async fn admit(&self, stream: TcpStream) -> Result<Box<dyn PeerStream>, TurnedAway> {
        let show = async {
            let stream: Box<dyn PeerStream> = match &self.tls {
                Some(tls) => {
                    let acceptor = TlsAcceptor::from(tls.server().clone());
                    Box::new(acceptor.accept(stream).await.map_err(TurnedAway::Tls)?)
                }
                None => Box::new(stream),
            };
            self.check(stream, End::Listener).await
        };
        timeout(PATIENCE, show).await.unwrap_or(Err(TurnedAway::Slow))
    }

    /// Shows who we are to whom we dialled at `host`, and asks the same of it.
    pub(super) async fn enter(
        &self,
        stream: TcpStream,
        host: &str,
    ) -> Result<Box<dyn PeerStream>, TurnedAway> {
        let show = async {
            let stream: Box<dyn PeerStream> = match &self.tls {
                Some(tls) => {
                    let connector = TlsConnector::from(tls.client().clone());
                    let name = tls.server_name(host)?;
                    Box::new(connector.connect(name, stream).await.map_err(TurnedAway::Tls)?)
                }
                None => Box::new(stream),
            };
            self.check(stream, End::Dialler).await
        };
        timeout(PATIENCE, show).await.unwrap_or(Err(TurnedAway::Slow))
    }

    async fn check(
        &self,
        mut stream: Box<dyn PeerStream>,
        end: End,
    ) -> Result<Box<dyn PeerStream>, TurnedAway> {
        if let Some(secret) = &self.secret {
            challenge::prove(&mut stream, end, secret).await?;
        }
        Ok(stream)
    }
}

/// What a peer wants of us that sends this where a frame should begin.
pub(super) fn unexpected_opening(bytes: [u8; 4]) -> Option<&'static str> {
    if challenge::OPENING.starts_with(&bytes) {
        return Some("it asks for a peer secret, and this engine has none");
    }
    bytes.starts_with(&TLS_OPENING).then_some("it speaks TLS, and this engine does not")
}
