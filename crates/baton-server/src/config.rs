//! Everything that an operator may choose about one engine.

use std::path::PathBuf;
use std::time::Duration;

use baton_engine::OnLostKv;
use baton_model::{CpuPrecision, EmulatedModel};
use baton_trace::TraceConfig;
use baton_transport::{PeerTlsFiles, TcpConfig};
use baton_types::{EngineName, EngineRole, KvDtype, KvOrder};
use serde::{Deserialize, Serialize};

use crate::error::ServerError;
use crate::nixl_choice::NixlChoice;
use crate::peer_secret::PeerSecret;

/// Tokens of a unit, where the block allows it.
const USUAL_UNIT: u32 = 16;

/// One engine process. Durations are in milliseconds, sizes in bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerConfig {
    /// Survives restarts; with the incarnation it is the engine's id. See [`EngineName`].
    pub name: String,
    /// What routers offer to this engine; it does whatever it is asked all the same.
    pub role: EngineRole,
    /// Where HTTP is served; port 0 lets the system choose.
    pub host: String,
    pub port: u16,
    /// HTTP connections at a time; more wait to be accepted.
    pub max_connections: u32,
    pub side_channel: SideChannelConfig,
    pub model: ModelChoice,
    /// The name that clients put into `model`; by default, the model's own.
    pub served_model_name: Option<String>,
    /// Bytes of KV; by default 1 GiB, or a quarter of the memory that is free if that is less.
    pub kv_memory_bytes: Option<u64>,
    /// Tokens per KV block; engines that exchange KV may differ.
    pub block_tokens: u32,
    /// Tokens of the unit that engines count KV in: a part of a block, equal on all engines that exchange KV. By default the
    /// largest that blocks of a multiple of 16 tokens have in common with it.
    pub unit_tokens: Option<u32>,
    /// KV heads are split over so many ranks, each with memory of its own; engines that exchange KV may differ, as long as one
    /// number divides the other.
    pub kv_ranks: u32,
    /// The type of KV elements: F32, F16 or BF16.
    pub kv_dtype: KvDtype,
    /// Whether KV may be exchanged with engines of another `kv_dtype`, which loses what the narrower type cannot hold. They
    /// must allow it as well.
    pub kv_convert: bool,
    /// How KV lies in the pool; the same on engines that exchange it. Anything but block by block is for the emulated model
    /// only, as a baseline to measure.
    pub kv_layout: KvOrder,
    /// Most tokens of a sequence, prompt and answer together; by default, what the model was trained for.
    pub max_model_len: Option<u32>,
    /// Sequences in one step.
    pub max_num_seqs: u32,
    /// Requests that wait for a place; beyond that they are refused with 429.
    pub max_waiting: u32,
    /// Sequences whose KV is on its way from a peer.
    pub max_receiving: u32,
    /// Tokens in one step.
    pub step_tokens: u32,
    /// Threads that compute; by default, one for each core.
    pub threads: Option<u32>,
    pub transport: TransportKind,
    pub tcp: TcpChoice,
    pub nixl: NixlChoice,
    /// Whether what this engine reads from a peer is posted by the engine's loop before its next step, not in the background;
    /// a baseline to measure, for the emulated model only.
    pub inline_post: bool,
    /// Whether this engine writes nothing to a peer (push) until the whole prompt is computed; likewise.
    pub push_at_end: bool,
    /// Whether a first token that came with its KV is given only once the next one can follow.
    pub hold_first_token: bool,
    pub prefix_cache: bool,
    /// How long a decode engine keeps the KV of prompt and answer for the conversation's next turn; 0 for not at all.
    pub retain_ttl_ms: u64,
    /// Most of the KV blocks that may be kept so, 0 to 1. They give way to whoever needs room.
    pub retain_max: f64,
    /// Whether each reading starts the time anew.
    pub retain_renewable: bool,
    /// Fewer tokens than this are computed rather than read from the engine that keeps them.
    pub reuse_threshold: u32,
    pub on_lost_kv: LostKv,
    /// How long a peer's right to blocks lasts without a sign of life, and how often one is given. At least
    /// three to one.
    pub lease_ms: u64,
    pub heartbeat_ms: u64,
    /// How long a decode engine waits for a prefill engine to take up what it registered (push).
    pub register_timeout_ms: u64,
    /// How long a request waits, in all, for KV from its peer before the KV counts as lost.
    pub kv_timeout_ms: u64,
    /// How long a drain waits for requests and leases.
    pub drain_timeout_ms: u64,
    pub max_body_bytes: usize,
    /// Where spans of what the engine does go.
    pub trace: TraceConfig,
}

/// Where other engines reach this one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SideChannelConfig {
    pub host: String,
    /// 0 lets the system choose.
    pub port: u16,
    /// What peers dial, where that is not `host`: behind a 0.0.0.0, or an address translation.
    pub advertised_host: Option<String>,
    /// Connections at a time that others opened, an eighth of them from one address; more are closed.
    pub max_connections: u32,
    /// By default, connections are neither encrypted nor tied to certificates.
    pub tls: Option<PeerTlsConfig>,
    /// By default, whoever reaches the port may speak. In no file: see [`PeerSecret::read`].
    #[serde(skip)]
    pub secret: Option<PeerSecret>,
}

/// Where the certificates for the side channel are: PEM files. All engines of a system have them, or none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerTlsConfig {
    /// This engine's certificate, with those between it and an authority.
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Who issues certificates to engines, and to nobody else.
    pub authorities: PathBuf,
    /// To whom every engine's certificate is issued; by default, to the host that is dialled.
    pub name: Option<String>,
}

impl From<&PeerTlsConfig> for PeerTlsFiles {
    fn from(config: &PeerTlsConfig) -> Self {
        Self {
            certificate: config.certificate.clone(),
            key: config.key.clone(),
            authorities: config.authorities.clone(),
            name: config.name.clone(),
        }
    }
}

/// How bytes reach this engine's KV.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TransportKind {
    /// Engines in one process.
    Memory,
    /// Engines on one machine.
    #[default]
    Shm,
    /// Engines on any machines.
    Tcp,
    /// Engines on any machines, over the networks that NIXL knows.
    Nixl,
}

/// How the transport `tcp` works. It listens on the side channel's host, and peers dial the side channel's
/// advertised host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TcpChoice {
    /// 0 lets the system choose.
    pub port: u16,
    /// Connections to each peer: 1 to 16.
    pub lanes: u8,
    /// Whether what moves carries a CRC32C.
    pub crc: bool,
}

impl Default for TcpChoice {
    fn default() -> Self {
        let TcpConfig { port, lanes, crc, .. } = TcpConfig::default();
        Self { port, lanes, crc }
    }
}

impl TransportKind {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Nixl => "nixl",
        }
    }
}

/// What becomes of a request whose KV was to come from a peer and does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LostKv {
    #[default]
    Recompute,
    Fail,
}

impl From<LostKv> for OnLostKv {
    fn from(choice: LostKv) -> Self {
        match choice {
            LostKv::Recompute => Self::Recompute,
            LostKv::Fail => Self::Fail,
        }
    }
}

/// What computes the tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum ModelChoice {
    Emulated(EmulatedChoice),
    Checkpoint(CheckpointChoice),
}

/// A real model, computed by this machine's processors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointChoice {
    /// As on the command line: see `baton_model::fetch::ModelSource::parse`.
    pub source: String,
    #[serde(default)]
    pub precision: Precision,
}

/// How activations enter matrix products. Engines that exchange KV have the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// The reference's words.
    #[default]
    Exact,
    /// Faster; now and then another word where two are nearly as likely.
    Int8,
}

impl From<Precision> for CpuPrecision {
    fn from(precision: Precision) -> Self {
        match precision {
            Precision::Exact => Self::Exact,
            Precision::Int8 => Self::Int8,
        }
    }
}

/// No model: real KV bytes, the times of some hardware, and text that depends on every byte of KV.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EmulatedChoice {
    pub model: EmulatedModel,
    /// The name of a cost profile; see `baton_model::CostProfile`.
    pub profile: String,
    /// KV geometry, elements of 32 bits: `2 x layers x kv_heads x head_dim x 4` bytes a token.
    pub layers: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
    /// A model whose tokenizer and chat template are used, so that texts have as many tokens as they would
    /// have with it; named as on the command line. By default a byte is a token.
    pub tokenizer: Option<String>,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            name: "engine".to_owned(),
            role: EngineRole::Both,
            host: "127.0.0.1".to_owned(),
            port: 8000,
            max_connections: 4096,
            side_channel: SideChannelConfig::default(),
            model: ModelChoice::Emulated(EmulatedChoice::default()),
            served_model_name: None,
            kv_memory_bytes: None,
            block_tokens: 16,
            unit_tokens: None,
            kv_ranks: 1,
            kv_dtype: KvDtype::F32,
            kv_convert: false,
            kv_layout: KvOrder::BlockMajor,
            max_model_len: None,
            max_num_seqs: 64,
            max_waiting: 1024,
            max_receiving: 64,
            step_tokens: 512,
            threads: None,
            transport: TransportKind::default(),
            tcp: TcpChoice::default(),
            nixl: NixlChoice::default(),
            inline_post: false,
            push_at_end: false,
            hold_first_token: false,
            prefix_cache: true,
            retain_ttl_ms: 0,
            retain_max: 0.5,
            retain_renewable: false,
            reuse_threshold: 64,
            on_lost_kv: LostKv::Recompute,
            lease_ms: 30_000,
            heartbeat_ms: 5_000,
            register_timeout_ms: 120_000,
            kv_timeout_ms: 120_000,
            drain_timeout_ms: 60_000,
            max_body_bytes: 8 << 20,
            trace: TraceConfig::default(),
        }
    }
}

impl Default for SideChannelConfig {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            port: 0,
            advertised_host: None,
            max_connections: 4096,
            tls: None,
            secret: None,
        }
    }
}

impl Default for EmulatedChoice {
    fn default() -> Self {
        let layout = EmulatedModel::default_layout(16);
        Self {
            model: EmulatedModel::default(),
            profile: "tiny".to_owned(),
            layers: layout.layers,
            kv_heads: layout.kv_heads,
            head_dim: layout.head_dim,
            tokenizer: None,
        }
    }
}

impl ServerConfig {
    /// What can be seen to be wrong before anything is loaded.
    ///
    /// # Errors
    /// The first member that no engine can work with.
    pub fn validate(&self) -> Result<(), ServerError> {
        let wrong = |text: String| Err(ServerError::Config(text));
        if let Err(error) = EngineName::new(self.name.as_str()) {
            return wrong(error.to_string());
        }
        let counts = [
            ("max_connections", self.max_connections),
            ("side_channel.max_connections", self.side_channel.max_connections),
            ("block_tokens", self.block_tokens),
            ("unit_tokens", self.unit_tokens.unwrap_or(1)),
            ("kv_ranks", self.kv_ranks),
            ("max_num_seqs", self.max_num_seqs),
            ("max_waiting", self.max_waiting),
            ("max_receiving", self.max_receiving),
            ("step_tokens", self.step_tokens),
            ("max_model_len", self.max_model_len.unwrap_or(1)),
            ("threads", self.threads.unwrap_or(1)),
        ];
        if let Some((name, _)) = counts.iter().find(|(_, count)| *count == 0) {
            return wrong(format!("{name} must be at least 1"));
        }
        if self.heartbeat_ms == 0 || self.heartbeat_ms.saturating_mul(3) > self.lease_ms {
            return wrong(format!(
                "heartbeat_ms ({}) must be above 0 and at most a third of lease_ms ({})",
                self.heartbeat_ms, self.lease_ms
            ));
        }
        if !(0.0..=1.0).contains(&self.retain_max) {
            return wrong(format!("retain_max ({}) must be between 0 and 1", self.retain_max));
        }
        let (block, unit) = (self.block_tokens, self.unit_tokens());
        if !block.is_multiple_of(unit) {
            return wrong(format!("unit_tokens ({unit}) must divide block_tokens ({block})"));
        }
        if self.kv_dtype == KvDtype::U8 {
            return wrong("kv_dtype must be f32, f16 or bf16".to_owned());
        }
        if self.kv_convert && self.transport == TransportKind::Nixl {
            return wrong(format!(
                "kv_convert does not go with the transport {}, which moves bytes as they are",
                self.transport.as_str()
            ));
        }
        if let (ModelChoice::Checkpoint(_), Some(what)) = (&self.model, self.baseline()) {
            return wrong(format!(
                "{what} is a baseline to measure with the emulated model; a real one is served without it"
            ));
        }
        if let Err(error) = self.nixl.validate() {
            return wrong(error);
        }
        if self.max_body_bytes == 0 {
            return wrong("max_body_bytes must be at least 1".to_owned());
        }
        Ok(())
    }

    /// What is set that only slows an engine down.
    fn baseline(&self) -> Option<&'static str> {
        match () {
            () if self.kv_layout != KvOrder::BlockMajor => Some("kv_layout layer-major"),
            () if self.inline_post => Some("inline_post"),
            () if self.push_at_end => Some("push_at_end"),
            () => None,
        }
    }

    /// Tokens of a unit.
    pub fn unit_tokens(&self) -> u32 {
        let common = |block: u32| 1 << block.trailing_zeros().min(USUAL_UNIT.trailing_zeros());
        self.unit_tokens.unwrap_or_else(|| common(self.block_tokens))
    }

    pub(crate) fn drain_timeout(&self) -> Duration {
        Duration::from_millis(self.drain_timeout_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_is_defaults_and_what_is_said() {
        let said = r#"{"name":"p0","role":"prefill","transport":"memory","model":{"kind":"emulated","profile":"instant"}}"#;
        let config: ServerConfig = serde_json::from_str(said).unwrap();
        assert_eq!((config.role, config.transport), (EngineRole::Prefill, TransportKind::Memory));
        assert_eq!(config.block_tokens, 16);
        config.validate().unwrap();
        let again: ServerConfig = serde_json::from_str(&serde_json::to_string(&config).unwrap()).unwrap();
        assert_eq!(again, config);
        assert!(
            serde_json::from_str::<ServerConfig>(r#"{"nmae":"p0"}"#).is_err(),
            "a misspelt member is an error"
        );
    }

    #[test]
    fn a_unit_is_what_a_block_has_in_common_with_sixteen_tokens() {
        let unit = |block_tokens| ServerConfig { block_tokens, ..ServerConfig::default() }.unit_tokens();
        assert_eq!([1, 8, 16, 24, 48, 64, 100].map(unit), [1, 8, 16, 8, 16, 16, 4]);
        assert_eq!(ServerConfig { unit_tokens: Some(2), ..ServerConfig::default() }.unit_tokens(), 2);
    }

    #[test]
    fn what_cannot_work_is_refused() {
        let wrong = |change: fn(&mut ServerConfig)| {
            let mut config = ServerConfig::default();
            change(&mut config);
            config.validate().unwrap_err().to_string()
        };
        assert!(wrong(|c| c.name = "a b".to_owned()).contains("engine name"));
        assert!(wrong(|c| c.block_tokens = 0).contains("block_tokens"));
        assert!(wrong(|c| c.unit_tokens = Some(5)).contains("unit_tokens (5)"));
        assert!(wrong(|c| c.kv_ranks = 0).contains("kv_ranks"));
        assert!(wrong(|c| c.kv_dtype = KvDtype::U8).contains("kv_dtype"));
        assert!(wrong(|c| (c.kv_convert, c.transport) = (true, TransportKind::Nixl)).contains("kv_convert"));
        let baselines: [fn(&mut ServerConfig); 3] =
            [|c| c.kv_layout = KvOrder::LayerMajor, |c| c.inline_post = true, |c| c.push_at_end = true];
        for set in baselines {
            let mut config = ServerConfig::default();
            set(&mut config);
            config.validate().unwrap();
            let (source, precision) = ("smollm2".to_owned(), Precision::Exact);
            config.model = ModelChoice::Checkpoint(CheckpointChoice { source, precision });
            let refused = config.validate().unwrap_err().to_string();
            assert!(refused.contains("emulated model"), "{refused}");
        }
        assert!(wrong(|c| c.heartbeat_ms = 10_001).contains("heartbeat_ms"));
        assert!(wrong(|c| c.retain_max = f64::NAN).contains("retain_max"));
        ServerConfig::default().validate().unwrap();
    }
}
