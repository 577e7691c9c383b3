//! Why a server does not start, or stops.

use std::io;

/// For the operator to read.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("the configuration cannot work: {0}")]
    Config(String),
    #[error("cannot listen on {host} port {port} for {what}: {source}")]
    Bind { what: &'static str, host: String, port: u16, source: io::Error },
    #[error("the model cannot be loaded: {0}")]
    Model(String),
    #[error("the transport cannot be used: {0}")]
    Transport(#[from] baton_transport::TransportError),
    #[error("peers cannot be spoken to over TLS: {0}")]
    PeerTls(#[from] baton_transport::PeerTlsError),
    #[error(transparent)]
    Trace(#[from] baton_trace::TraceError),
    #[error("no thread could be started: {0}")]
    Thread(io::Error),
    /// An invariant is broken or a runner died: the process must end.
    #[error("{0}")]
    Fault(String),
}
