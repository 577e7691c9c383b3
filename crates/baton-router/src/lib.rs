//! The router: an OpenAI-compatible server that sends each request to one engine, or to a prefill and a decode engine.
//!
//! All decisions are `baton-routing`'s. This crate turns HTTP into the core's inputs and its outputs into HTTP.

mod answer_gate;
mod client_answer;
mod conductor;
pub mod config;
mod conversation;
mod engine_client;
mod failure;
mod leg_request;
mod leg_task;
mod metrics;
mod probe;
mod retained;
mod served_by;
mod server;
mod timeline;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use baton_routing::{EngineKey, RouterCore};
use rand::TryRng;
use rand::rngs::SysRng;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use baton_trace::{Process, TraceError, Tracer};

use crate::conductor::{Conductor, EngineLink};
use crate::conversation::ConversationHasher;
use crate::engine_client::EngineClient;
use crate::leg_task::AnswerLimits;
use crate::probe::Prober;
use crate::server::Front;

pub use baton_routing::{ConversationLimits, Limits, PolicyKind, Strategy};
pub use baton_trace::TraceConfig;
pub use config::{ConfigError, EngineConfig, RouterConfig};

/// How long the last spans may take to get out.
const LAST_SPANS: Duration = Duration::from_secs(2);

/// Why a router ended without being told to.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("cannot listen on {address}: {error}")]
    Listen { address: SocketAddr, error: io::Error },
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error("no randomness from the operating system: {0}")]
    Randomness(String),
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Nothing that the core says after that can be trusted.
    #[error("a fault in the router")]
    Panicked,
}

/// A router that listens already and so knows its address.
#[derive(Debug)]
pub struct BoundRouter {
    config: RouterConfig,
    listener: TcpListener,
    local_addr: SocketAddr,
    clients: Vec<Arc<EngineClient>>,
    conductor: Arc<Conductor>,
    front: Arc<Front>,
    tracer: Option<Tracer>,
}

impl BoundRouter {
    /// Listens, but answers nothing yet.
    ///
    /// # Errors
    /// If the configuration is wrong, or the address cannot be listened on.
    pub async fn bind(config: RouterConfig) -> Result<Self, ServeError> {
        // What is wrong with the engines' addresses is said before one is listened on.
        config.addresses()?;
        let address = config.listen;
        let listener =
            TcpListener::bind(address).await.map_err(|error| ServeError::Listen { address, error })?;
        Self::with_listener(listener, config)
    }

    /// Listens where the caller does already, whatever the configuration says of it. In a runtime of tokio's.
    ///
    /// # Errors
    /// If the configuration is wrong.
    pub fn on(listener: std::net::TcpListener, config: RouterConfig) -> Result<Self, ServeError> {
        Self::with_listener(TcpListener::from_std(listener)?, config)
    }

    fn with_listener(listener: TcpListener, config: RouterConfig) -> Result<Self, ServeError> {
        let addresses = config.addresses()?;
        let tenant_header = config.tenant_header()?;
        let local_addr = listener.local_addr()?;
        let clients: Vec<Arc<EngineClient>> = addresses.into_iter().map(EngineClient::new).collect();
        let link =
            |(client, label): (&Arc<EngineClient>, String)| EngineLink { client: Arc::clone(client), label };
        let links = clients.iter().zip(config.labels()).map(link).collect();
        let seed = random_bytes()?;
        let limits = AnswerLimits {
            max_answer_bytes: config.max_answer_bytes,
            max_event_bytes: config.max_event_bytes,
            // Often enough that a stream that goes on never looks idle.
            progress: Duration::from_millis(config.limits.idle_ms / 8),
        };
        let name = format!("router {local_addr}");
        let process = Process { name, service: "baton-router", order: 0 };
        let tracer = Tracer::open(&config.trace, &process)?;
        let core = RouterCore::new(config.routing(), seed);
        let conductor = Conductor::new(core, links, limits, tracer.clone());
        let lookups = config.limits.conversations.lookups;
        let hasher = ConversationHasher { secret: random_bytes()?, lookups };
        let front = Arc::new(Front {
            conductor: Arc::clone(&conductor),
            max_body_bytes: config.max_body_bytes,
            body_timeout: Duration::from_millis(config.body_timeout_ms),
            expose_served_by: config.expose_served_by,
            tenant_header,
            conversations: config.strategy.plan().reuse.then_some(hasher),
            started_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            next_id: AtomicU64::new(0),
            id_salt: u32::from_le_bytes(random_bytes()?),
        });
        Ok(Self { config, listener, local_addr, clients, conductor, front, tracer })
    }

    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Routes until `shutdown` is ready; then takes no more connections, lets requests in flight go on for
    /// [`RouterConfig::drain_ms`], and returns.
    ///
    /// # Errors
    /// If a fault ended it: then the process must end as well.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send) -> Result<(), ServeError> {
        // Dropped, and so aborted, when this returns.
        let mut background = JoinSet::new();
        background.spawn(Arc::clone(&self.conductor).run_timer());
        let labels = self.config.labels();
        for ((engine, client), label) in (0..).map(EngineKey).zip(&self.clients).zip(labels) {
            let prober = Prober {
                engine,
                label,
                client: Arc::clone(client),
                conductor: Arc::clone(&self.conductor),
                interval: self.config.probe_interval(),
                timeout: self.config.probe_timeout(),
            };
            background.spawn(prober.run());
        }
        let (stop, stopped) = oneshot::channel::<()>();
        let stopped = async {
            // Stops as well if the other end is dropped.
            let _ = stopped.await;
        };
        let limits = self.config.http();
        let server = baton_http::serve(self.listener, server::routes(self.front), limits, stopped);
        let drain = Duration::from_millis(self.config.drain_ms);
        let limit = async {
            shutdown.await;
            let _ = stop.send(());
            tokio::time::sleep(drain).await;
        };
        tokio::select! {
            () = server => {}
            () = limit => {}
            // They run for ever, and the probers ask the core all the time: one that ends says that it has panicked.
            _ = background.join_next() => return Err(ServeError::Panicked),
        }
        self.conductor.abandon_all();
        if let Some(tracer) = self.tracer {
            let _ = tokio::task::spawn_blocking(move || tracer.finish(LAST_SPANS)).await;
        }
        Ok(())
    }
}

fn random_bytes<const N: usize>() -> Result<[u8; N], ServeError> {
    let mut bytes = [0; N];
    SysRng.try_fill_bytes(&mut bytes).map_err(|error| ServeError::Randomness(error.to_string()))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use baton_types::EngineRole;

    use super::*;

    /// A process that answers nobody is left by its supervisor only if it ends.
    #[tokio::test]
    async fn a_router_whose_core_has_panicked_ends() {
        let engine = EngineConfig { role: EngineRole::Both, url: "http://127.0.0.1:9".to_owned() };
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let config =
            RouterConfig { listen, engines: vec![engine], probe_interval_ms: 10, ..Default::default() };
        let router = BoundRouter::bind(config).await.unwrap();
        let conductor = Arc::clone(&router.conductor);
        let panicked = thread::spawn(move || conductor.fail()).join();
        assert!(panicked.is_err());
        let ended = tokio::time::timeout(Duration::from_secs(10), router.run(std::future::pending())).await;
        assert!(matches!(ended, Ok(Err(ServeError::Panicked))), "{ended:?}");
    }
}
