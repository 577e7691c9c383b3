//! One engine process: listens, loads, serves, drains, ends.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use baton_engine::EngineCore;
use baton_trace::{Process, Tracer};
use baton_transport::{KvPool, PeerTls, TransportError, TransportLimits};
use baton_types::{EngineId, EngineInfo, EngineName, EngineRole, PoolShape};
use tokio::net::TcpListener;
use tokio::runtime;

use crate::app::{App, Serving};
use crate::config::{ServerConfig, TransportKind};
use crate::engine_thread::{EngineThread, Links};
use crate::error::ServerError;
use crate::fault::{FaultReporter, Faults, faults};
use crate::hand_off::Identity;
use crate::http_front::HttpFront;
use crate::inbox::{Inbox, inbox};
use crate::metrics::StepMetrics;
use crate::model_loading::{self, Loaded};
use crate::random;
use crate::runner_thread::RunnerThread;
use crate::side_channel::{Door, SideChannel};
use crate::timeline::{Timeline, UnitSize};
use crate::transfer_link::{self, Posting, TransferLink};

/// Requests that are being read and tokenised, beyond those that the engine holds.
const READING_REQUESTS: usize = 256;
/// How often a drain looks whether it is done.
const DRAIN_POLL: Duration = Duration::from_millis(20);

/// How long the last spans may take to get out.
const LAST_SPANS: Duration = Duration::from_secs(2);

/// A server whose addresses are known, and which answers nothing yet.
#[derive(Debug)]
pub struct Server {
    config: ServerConfig,
    engine: EngineId,
    http: TcpListener,
    side_channel: TcpListener,
    door: Door,
    tracer: Option<Tracer>,
}

impl Server {
    /// Binds both listeners, before anything is loaded.
    ///
    /// # Errors
    /// If the configuration cannot work, or an address cannot be had.
    pub async fn bind(config: ServerConfig) -> Result<Self, ServerError> {
        config.validate()?;
        let http = listen("HTTP", &config.host, config.port).await?;
        Self::with_http(http, config).await
    }

    /// Listens for HTTP where the caller does already, whatever the configuration says of it.
    ///
    /// # Errors
    /// If the configuration cannot work, or the side channel's address cannot be had.
    pub async fn on(http: std::net::TcpListener, config: ServerConfig) -> Result<Self, ServerError> {
        config.validate()?;
        let of_config =
            |source| ServerError::Bind { what: "HTTP", host: config.host.clone(), port: config.port, source };
        let http = TcpListener::from_std(http).map_err(of_config)?;
        Self::with_http(http, config).await
    }

    async fn with_http(http: TcpListener, config: ServerConfig) -> Result<Self, ServerError> {
        let name = EngineName::new(config.name.as_str()).map_err(|e| ServerError::Config(e.to_string()))?;
        let side = &config.side_channel;
        let tls = side.tls.as_ref().map(|files| PeerTls::load(&files.into())).transpose()?;
        let engine = EngineId::new(name, random::draw_u64());
        Ok(Self {
            door: Door { tls, secret: side.secret.clone() },
            tracer: Tracer::open(&config.trace, &process(&config, &engine))?,
            engine,
            http,
            side_channel: listen("the side channel", &side.host, side.port).await?,
            config,
        })
    }

    pub fn engine_id(&self) -> &EngineId {
        &self.engine
    }

    /// # Errors
    /// The operating system's.
    pub fn http_addr(&self) -> std::io::Result<SocketAddr> {
        self.http.local_addr()
    }

    /// # Errors
    /// The operating system's.
    pub fn side_channel_addr(&self) -> std::io::Result<SocketAddr> {
        self.side_channel.local_addr()
    }

    /// Serves until `shutdown` resolves, then drains: requests and leases may end, up to the configuration's
    /// limit. Dropping the future ends the engine without a drain.
    ///
    /// # Errors
    /// If the server cannot start, or a fault ended it: then the process must end as well.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send) -> Result<(), ServerError> {
        let Self { config, engine, http, side_channel, door, tracer } = self;
        let started = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let max_requests = (config.max_num_seqs + config.max_waiting) as usize + READING_REQUESTS;
        let app = Arc::new(App::new(max_requests, config.max_body_bytes, started));
        let front = HttpFront::start(http, app.clone(), config.max_connections as usize);
        let (reporter, mut faults) = faults();
        tokio::pin!(shutdown);

        let start = start(&config, engine, side_channel, door, tracer.clone(), &reporter);
        let (serving, thread) = tokio::select! {
            started = start => started?,
            () = &mut shutdown => return Ok(()),
        };
        let inbox = serving.inbox.clone();
        tracing::info!(engine = %serving.identity.engine, model = serving.info.model, "serving");
        app.begin_serving(serving);

        tokio::select! {
            fault = faults.next() => return Err(ServerError::Fault(fault)),
            () = &mut shutdown => {}
        }
        app.begin_draining();
        drain(&inbox, &mut faults, config.drain_timeout()).await?;
        // Whatever still runs ends with its engine, and its client is told so.
        tokio::task::spawn_blocking(move || drop(thread))
            .await
            .map_err(|e| ServerError::Fault(e.to_string()))?;
        front.finish().await;
        if let Some(tracer) = tracer {
            let _ = tokio::task::spawn_blocking(move || tracer.finish(LAST_SPANS)).await;
        }
        Ok(())
    }
}

fn process(config: &ServerConfig, engine: &EngineId) -> Process {
    let order = if config.role == EngineRole::Decode { 2 } else { 1 };
    Process { name: engine.to_string(), service: "baton-engine", order }
}

async fn listen(what: &'static str, host: &str, port: u16) -> Result<TcpListener, ServerError> {
    let bound = TcpListener::bind((host, port)).await;
    bound.map_err(|source| ServerError::Bind { what, host: host.to_owned(), port, source })
}

/// Loads the model and starts the threads.
async fn start(
    config: &ServerConfig,
    engine: EngineId,
    side_channel: TcpListener,
    door: Door,
    tracer: Option<Tracer>,
    reporter: &FaultReporter,
) -> Result<(Serving, EngineThread), ServerError> {
    if config.transport == TransportKind::Nixl {
        // Before the model, so that who has no NIXL hears of it at once.
        config.nixl.library().map_err(|error| TransportError::Io(error.to_string()))?;
    }
    let loading = config.clone();
    let loaded = tokio::task::spawn_blocking(move || model_loading::load(&loading)).await;
    let loaded = loaded.map_err(|error| ServerError::Model(format!("loading failed: {error}")))??;

    let transport = transfer_link::open(config, engine.clone(), loaded.region.clone(), door.tls.clone())?;
    let block_units = config.block_tokens / config.unit_tokens();
    let pool = KvPool::new(loaded.layout.clone(), loaded.blocks, block_units)
        .map_err(|error| ServerError::Config(error.to_string()))?;
    let core_config = core_config(config, &engine, &loaded, transport.metadata(), pool.shape());
    core_config.validate().map_err(|error| ServerError::Config(error.to_string()))?;
    let max_len = core_config.max_len();
    let port = side_channel.local_addr().map_err(ServerError::Thread)?.port();
    let unit_bytes = loaded.layout.token_bytes() * config.unit_tokens() as usize;
    let unit = UnitSize { bytes: unit_bytes, ranks: loaded.layout.ranks };
    let (inbox, items) = inbox(runtime::Handle::current());
    let posting = if config.inline_post { Posting::InLoop } else { Posting::InBackground };
    let steps = Arc::new(StepMetrics::default());
    let links = Links {
        runner: RunnerThread::spawn(loaded.runner, inbox.clone(), steps.clone(), reporter)
            .map_err(ServerError::Thread)?,
        transfer: TransferLink::spawn(transport, pool, inbox.clone(), posting)?,
        side_channel: SideChannel::start(
            side_channel,
            door,
            config.side_channel.max_connections as usize,
            inbox.clone(),
        ),
        timeline: tracer.map(|tracer| Timeline::new(tracer, unit)),
    };
    let core = EngineCore::new(core_config);
    let thread = EngineThread::spawn(engine.name.clone(), core, links, inbox.clone(), items, reporter)
        .map_err(ServerError::Thread)?;
    let serving = Serving {
        retain_ttl: (config.retain_ttl_ms > 0).then(|| Duration::from_millis(config.retain_ttl_ms)),
        token_bytes: loaded.layout.block_bytes() / config.block_tokens as usize,
        inbox,
        steps,
        vocab: loaded.vocab,
        eos: loaded.eos,
        text: Arc::new(loaded.text),
        identity: identity(config, &engine, port),
        info: engine_info(config, &engine, &loaded.name, port, max_len),
        max_len,
    };
    Ok((serving, thread))
}

fn core_config(
    config: &ServerConfig,
    engine: &EngineId,
    loaded: &Loaded,
    metadata: Vec<u8>,
    shape: PoolShape,
) -> baton_engine::Config {
    let (unit_tokens, convert) = (config.unit_tokens(), config.kv_convert);
    let compat = model_loading::compat(&loaded.fingerprint, &loaded.layout, unit_tokens, convert);
    let mut proto = baton_proto::Config::new(engine.clone(), compat, metadata, shape);
    // A peer beyond the transport's limit is refused before the handshake, not after.
    proto.limits.peers = TransportLimits::default().peers;
    proto.lease = Duration::from_millis(config.lease_ms);
    proto.heartbeat = Duration::from_millis(config.heartbeat_ms);
    proto.retain_ttl = Duration::from_millis(config.retain_ttl_ms);
    proto.retain_renewable = config.retain_renewable;
    proto.register_timeout = Duration::from_millis(config.register_timeout_ms);
    let max_running = config.max_num_seqs as usize;
    let defaults =
        baton_engine::Config::new(loaded.blocks, config.block_tokens, loaded.max_model_len as usize, proto);
    baton_engine::Config {
        max_running,
        // A step has a token at least for each of its sequences.
        step_tokens: (config.step_tokens as usize).max(max_running),
        max_waiting: config.max_waiting as usize,
        max_receiving: config.max_receiving as usize,
        prefix_cache: config.prefix_cache,
        max_retained_blocks: (f64::from(loaded.blocks) * config.retain_max) as usize,
        reuse_threshold: config.reuse_threshold as usize,
        on_lost_kv: config.on_lost_kv.into(),
        kv_timeout: Duration::from_millis(config.kv_timeout_ms),
        hold_first_token: config.hold_first_token,
        push_at_end: config.push_at_end,
        vocab: u32::try_from(loaded.vocab).unwrap_or(u32::MAX),
        model: loaded.fingerprint.clone(),
        ..defaults
    }
}

fn identity(config: &ServerConfig, engine: &EngineId, port: u16) -> Identity {
    let side = &config.side_channel;
    let host = side.advertised_host.as_ref().unwrap_or(&side.host).clone();
    Identity { engine: engine.clone(), host, port }
}

fn engine_info(
    config: &ServerConfig,
    engine: &EngineId,
    model: &str,
    port: u16,
    max_len: usize,
) -> EngineInfo {
    let Identity { engine, host, port } = identity(config, engine, port);
    EngineInfo {
        engine_id: engine,
        role: config.role,
        model: config.served_model_name.as_deref().unwrap_or(model).to_owned(),
        side_channel: baton_types::info::SideChannel { host, port },
        transports: vec![config.transport.as_str().to_owned()],
        max_model_len: u32::try_from(max_len).unwrap_or(u32::MAX),
        block_tokens: config.block_tokens,
        unit_tokens: config.unit_tokens(),
        kv_dtype: (!config.kv_convert).then_some(config.kv_dtype),
        prefix_cache: Some(config.prefix_cache),
        load: Default::default(),
    }
}

/// Waits until nothing is left to do for clients and peers.
///
/// # Errors
/// If a fault ends the engine meanwhile.
async fn drain(inbox: &Inbox, faults: &mut Faults, limit: Duration) -> Result<(), ServerError> {
    tracing::info!("draining");
    let idle = async {
        inbox.send(baton_engine::Input::Drain).await;
        loop {
            match inbox.snapshot().await {
                Some(snapshot) if snapshot.idle => return,
                Some(_) => tokio::time::sleep(DRAIN_POLL).await,
                // The engine has died; the fault says why.
                None => std::future::pending().await,
            }
        }
    };
    tokio::select! {
        fault = faults.next() => return Err(ServerError::Fault(fault)),
        drained = tokio::time::timeout(limit, idle) => match drained {
            Ok(()) => tracing::info!("drained"),
            Err(_) => tracing::warn!("the drain's time is over; what is left is cut off"),
        },
    }
    Ok(())
}
