//! One engine process: the OpenAI-compatible API in front of an engine core, with its runner, side channel
//! and transport.
//!
//! A driver: it moves inputs and outputs between the core and the world, and holds no rule about scheduling,
//! blocks or the protocol. Threads: the engine (core and clock), the runner (computes steps), the transfer
//! thread (moves blocks), and tokio's (HTTP, side channel).

mod answer_text;
mod app;
pub mod byte_tokenizer;
pub mod config;
mod engine_thread;
mod error;
mod exchange;
mod fault;
mod hand_off;
mod http;
mod http_front;
mod inbox;
pub mod loop_trace;
mod metrics;
mod model_files;
mod model_loading;
mod nixl_choice;
mod peer_secret;
mod random;
mod request;
mod reuse;
mod runner_thread;
mod server;
mod short_slices;
mod side_channel;
mod text;
mod ticket;
mod timeline;
mod transfer_link;
mod utf8;

pub use baton_trace::TraceConfig;
/// The library that the transport `nixl` needs.
pub use baton_transport::nixl;
pub use baton_transport::trial::Moved;
pub use byte_tokenizer::ByteTokenizer;
pub use config::{
    CheckpointChoice, EmulatedChoice, LostKv, ModelChoice, PeerTlsConfig, Precision, ServerConfig,
    SideChannelConfig, TcpChoice, TransportKind,
};
pub use error::ServerError;
pub use nixl_choice::NixlChoice;
pub use peer_secret::{PeerSecret, PeerSecretError};
pub use server::Server;
pub use transfer_link::try_transport;
