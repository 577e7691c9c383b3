//! What an engine can be told, by `baton serve` and for each of its engines by `baton up`.

use std::path::PathBuf;

use baton_model::CostProfile;
use clap::builder::{BoolishValueParser, PossibleValuesParser};
use clap::{Args, Parser, ValueEnum};

use super::units::{ByteSize, Span};
use super::value_name;

#[derive(Clone, Debug, PartialEq, Args)]
pub struct EngineArgs {
    /// Model to serve: `smollm2` (98 MB, fetched once), a directory with config.json and safetensors, a .gguf file, a
    /// Hugging Face id such as Qwen/Qwen3-0.6B, or `emulated` for no model but the times of one
    #[arg(long, default_value = "smollm2", help_heading = "Model")]
    pub model: String,
    /// How activations enter matrix products; the same on every engine of a system
    #[arg(long, value_enum, default_value_t = Precision::Exact, help_heading = "Model")]
    pub precision: Precision,
    /// Name of the model in the API [default: the model's own]
    #[arg(long, value_name = "NAME", help_heading = "Model")]
    pub served_model_name: Option<String>,
    /// The hardware whose times the model `emulated` takes
    #[arg(long, value_name = "NAME", default_value = "tiny", help_heading = "Model",
          value_parser = PossibleValuesParser::new(CostProfile::names()))]
    pub emulated_profile: String,
    /// Model whose tokenizer and chat template the model `emulated` uses [default: a byte is a token]
    #[arg(long, value_name = "MODEL", help_heading = "Model")]
    pub emulated_tokenizer: Option<String>,
    /// Layers of the KV of the model `emulated`
    #[arg(long, value_name = "N", default_value_t = 2, help_heading = "Model", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub emulated_layers: u32,
    /// KV heads of the model `emulated`
    #[arg(long, value_name = "N", default_value_t = 4, help_heading = "Model", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub emulated_heads: u32,
    /// Elements of a KV head of the model `emulated`, a multiple of 4
    #[arg(long, value_name = "N", default_value_t = 8, help_heading = "Model", value_parser = clap::value_parser!(u32).range(4..=1024))]
    pub emulated_head_dim: u32,
    /// Let each token of the model `emulated` depend on every N-th group of 16 positions, the next one on the groups before them, not
    /// all on all; the same on every engine of a system
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Model", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub emulated_reads_every: u32,
    /// Longest sequence, prompt and answer together, in tokens [default: the model's limit]
    #[arg(long, value_name = "TOKENS", help_heading = "Model")]
    pub max_model_len: Option<u32>,

    /// Memory for KV blocks, such as 2GiB [default: 1GiB, or a quarter of the free memory if that is less]
    #[arg(long, value_name = "SIZE", help_heading = "KV cache")]
    pub kv_memory: Option<ByteSize>,
    /// Tokens per KV block
    #[arg(long, value_name = "TOKENS", default_value_t = 16, help_heading = "KV cache")]
    pub block_tokens: u32,
    /// Tokens of the unit that engines count KV in, a part of a block; the same on every engine of a system [default: 16, or
    /// what a block has in common with it]
    #[arg(long, value_name = "TOKENS", help_heading = "KV cache")]
    pub unit_tokens: Option<u32>,
    /// Split the KV heads over so many ranks, each with memory of its own
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "KV cache")]
    pub kv_ranks: u32,
    /// Type of KV elements; the same on every engine of a system, unless --kv-convert
    #[arg(long, value_enum, value_name = "TYPE", default_value_t = KvType::F32, help_heading = "KV cache")]
    pub kv_dtype: KvType,
    /// Exchange KV with engines of another --kv-dtype too, converted; said on both sides, and with --transport=shm only
    #[arg(long, value_name = "BOOL", help_heading = "KV cache", action = clap::ArgAction::Set,
          num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false",
          hide_default_value = true, value_parser = BoolishValueParser::new())]
    pub kv_convert: bool,
    /// How KV lies in memory; the same on every engine of a system. Layer-major is how others lay it out, and a baseline to measure:
    /// with --model=emulated only
    #[arg(long, value_enum, value_name = "ORDER", default_value_t = KvOrderName::BlockMajor, help_heading = "KV cache")]
    pub kv_layout: KvOrderName,
    /// Compute every prompt anew, even if its beginning is in the cache
    #[arg(long, value_name = "BOOL", help_heading = "KV cache", action = clap::ArgAction::Set,
          num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false",
          hide_default_value = true, value_parser = BoolishValueParser::new())]
    pub no_prefix_cache: bool,

    /// Keep the KV of prompt and answer for the conversation's next turn, for so long, on engines that decode; 0s for not at all
    #[arg(long, value_name = "TIME", default_value = "0s", help_heading = "Conversations")]
    pub retain_ttl: Span,
    /// Most of the KV blocks to keep so, 0 to 1; they give way to whoever needs room
    #[arg(long, value_name = "SHARE", default_value_t = 0.5, help_heading = "Conversations")]
    pub retain_max: f64,
    /// Start that time anew whenever it is read
    #[arg(long, value_name = "BOOL", help_heading = "Conversations", action = clap::ArgAction::Set,
          num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false",
          hide_default_value = true, value_parser = BoolishValueParser::new())]
    pub retain_renewable: bool,
    /// Fewest tokens to read from the engine that keeps them, on engines that prefill; fewer are computed
    #[arg(long, value_name = "TOKENS", default_value_t = 64, help_heading = "Conversations")]
    pub reuse_threshold: u32,

    /// Most sequences in one step
    #[arg(long, value_name = "N", default_value_t = 64, help_heading = "Batching")]
    pub max_num_seqs: u32,
    /// Most tokens in one step; longer prompts are computed in chunks of this size
    #[arg(long, value_name = "TOKENS", default_value_t = 512, help_heading = "Batching")]
    pub step_tokens: u32,
    /// Give a first token that came with its KV only once the next can follow: nobody who has begun to read waits for a place in a step
    #[arg(long, value_name = "BOOL", help_heading = "Batching", action = clap::ArgAction::Set,
          num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false",
          hide_default_value = true, value_parser = BoolishValueParser::new())]
    pub hold_first_token: bool,
    /// Most requests that wait for a place; the next one is refused
    #[arg(long, value_name = "N", default_value_t = 1024, help_heading = "Batching")]
    pub max_waiting: u32,
    /// Threads that compute [default: the cores of this machine, shared between the engines of `baton up`]
    #[arg(long, value_name = "N", help_heading = "Batching", value_parser = clap::value_parser!(u32).range(1..))]
    pub threads: Option<u32>,

    /// How KV blocks travel between engines
    #[arg(long, value_enum, default_value_t = TransportKind::Shm, help_heading = "Hand-off")]
    pub transport: TransportKind,
    /// Connections to each peer, 1 to 16, with --transport=tcp
    #[arg(long, value_name = "N", default_value_t = 2, help_heading = "Hand-off",
          value_parser = clap::value_parser!(u8).range(1..=16))]
    pub tcp_lanes: u8,
    /// Check blocks for damage on the way by a CRC32C, with --transport=tcp
    #[arg(long, value_name = "BOOL", help_heading = "Hand-off", action = clap::ArgAction::Set,
          num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false",
          hide_default_value = true, value_parser = BoolishValueParser::new())]
    pub tcp_crc: bool,
    /// What NIXL moves blocks with, with --transport=nixl; the same on every engine of a system
    #[arg(long, value_enum, default_value_t = NixlBackend::Ucx, help_heading = "Hand-off")]
    pub nixl_backend: NixlBackend,
    /// How what this engine reads comes to it, with --transport=nixl
    #[arg(long, value_enum, default_value_t = NixlReads::Auto, help_heading = "Hand-off")]
    pub nixl_reads: NixlReads,
    /// Parameter of the backend, KEY=VALUE, with --transport=nixl; several, or several flags
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',', help_heading = "Hand-off", value_parser = nixl_param)]
    pub nixl_param: Vec<(String, String)>,
    /// Let the engine's loop post what it reads from a peer (pull) before its next step, and wait until it is posted, as engines do
    /// whose scheduler posts; a baseline to measure: with --model=emulated only
    #[arg(long, value_name = "BOOL", help_heading = "Hand-off", action = clap::ArgAction::Set,
          num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false",
          hide_default_value = true, value_parser = BoolishValueParser::new())]
    pub inline_post: bool,
    /// Write nothing to a peer (push) until the whole prompt is computed; a baseline to measure: with --model=emulated only
    #[arg(long, value_name = "BOOL", help_heading = "Hand-off", action = clap::ArgAction::Set,
          num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false",
          hide_default_value = true, value_parser = BoolishValueParser::new())]
    pub push_at_end: bool,
    /// What becomes of a request whose KV does not arrive
    #[arg(long, value_enum, default_value_t = LostKv::Recompute, help_heading = "Hand-off")]
    pub on_lost_kv: LostKv,
    /// How long a peer may use this engine's blocks without a sign of life
    #[arg(long, value_name = "TIME", default_value = "30s", help_heading = "Hand-off")]
    pub lease: Span,
    /// How often it gives one; at most a third of the lease
    #[arg(long, value_name = "TIME", default_value = "5s", help_heading = "Hand-off")]
    pub heartbeat: Span,
    /// How long a decode engine waits for a prefill engine to take up its request (push)
    #[arg(long, value_name = "TIME", default_value = "2m", help_heading = "Hand-off")]
    pub register_timeout: Span,
    /// Most sequences whose KV is on its way from a peer
    #[arg(long, value_name = "N", default_value_t = 64, help_heading = "Hand-off")]
    pub max_receiving: u32,

    /// File with a secret of at least 16 bytes that all engines of a system share; without it whoever reaches the side
    /// channel may speak [else: the secret itself in BATON_PEER_SECRET]
    #[arg(long, value_name = "FILE", help_heading = "Trust between engines")]
    pub peer_secret_file: Option<PathBuf>,
    /// This engine's certificate for the side channel (PEM); on every engine of a system, or on none
    #[arg(long, value_name = "FILE", requires_all = ["peer_tls_key", "peer_tls_ca"], help_heading = "Trust between engines")]
    pub peer_tls_cert: Option<PathBuf>,
    /// The key of that certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "peer_tls_cert", help_heading = "Trust between engines")]
    pub peer_tls_key: Option<PathBuf>,
    /// The authorities that issue certificates to engines, and to nobody else (PEM)
    #[arg(long, value_name = "FILE", requires = "peer_tls_cert", help_heading = "Trust between engines")]
    pub peer_tls_ca: Option<PathBuf>,
    /// Name that every engine's certificate is issued to [default: the host that is dialled]
    #[arg(long, value_name = "NAME", requires = "peer_tls_cert", help_heading = "Trust between engines")]
    pub peer_tls_name: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Precision {
    /// The reference's words
    Exact,
    /// Faster; now and then another word where two are nearly as likely
    Int8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KvType {
    F32,
    F16,
    Bf16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KvOrderName {
    /// All layers of a block in one run: one descriptor for each block
    BlockMajor,
    /// All blocks of a layer in one run: two descriptors for each block and layer
    LayerMajor,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TransportKind {
    /// Shared memory: engines of one machine and user
    Shm,
    /// TCP: engines of any machines
    Tcp,
    /// NIXL: engines of any machines, over InfiniBand, RoCE, EFA, TCP or shared memory; see `baton nixl`
    Nixl,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum NixlBackend {
    /// InfiniBand, RoCE, TCP, and shared memory
    #[default]
    Ucx,
    /// EFA of AWS, among others
    Libfabric,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NixlReads {
    /// Native where this machine has an RDMA device or the backend is libfabric, else asked
    Auto,
    /// This engine reads by itself
    Native,
    /// The peer is asked to write
    Asked,
}

/// Reads KEY=VALUE.
pub fn nixl_param(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("it is no KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LostKv {
    /// The decode engine computes the prompt itself
    Recompute,
    /// The request fails
    Fail,
}

/// Some engines' flags, said after those of all.
#[derive(Debug, Parser)]
#[command(name = "an engine of `baton up`", no_binary_name = true, args_override_self = true)]
struct Amended {
    #[command(flatten)]
    engine: EngineArgs,
}

impl EngineArgs {
    /// These settings but for what `flags` say, separated by blanks.
    ///
    /// # Errors
    /// If they are no flags of an engine that all engines of a system share.
    pub fn amended(&self, flags: &str) -> Result<Self, clap::Error> {
        let argv = self.to_argv().into_iter().chain(flags.split_whitespace().map(str::to_owned));
        Amended::try_parse_from(argv).map(|amended| amended.engine)
    }

    /// A flag of the model `emulated` that says something else than its default.
    pub fn emulated_only(&self) -> Option<&'static str> {
        let Ok(Amended { engine: usual }) = Amended::try_parse_from([""; 0]) else { return None };
        let differs = [
            ("--emulated-profile", self.emulated_profile != usual.emulated_profile),
            ("--emulated-tokenizer", self.emulated_tokenizer != usual.emulated_tokenizer),
            ("--emulated-layers", self.emulated_layers != usual.emulated_layers),
            ("--emulated-heads", self.emulated_heads != usual.emulated_heads),
            ("--emulated-head-dim", self.emulated_head_dim != usual.emulated_head_dim),
            ("--emulated-reads-every", self.emulated_reads_every != usual.emulated_reads_every),
        ];
        differs.into_iter().find_map(|(flag, differs)| differs.then_some(flag))
    }

    /// The flags that say the same to `baton serve`.
    pub fn to_argv(&self) -> Vec<String> {
        let mut argv = vec![
            format!("--model={}", self.model),
            format!("--precision={}", value_name(self.precision)),
            format!("--block-tokens={}", self.block_tokens),
            format!("--kv-ranks={}", self.kv_ranks),
            format!("--kv-dtype={}", value_name(self.kv_dtype)),
            format!("--kv-convert={}", self.kv_convert),
            format!("--kv-layout={}", value_name(self.kv_layout)),
            format!("--no-prefix-cache={}", self.no_prefix_cache),
            format!("--retain-ttl={}", self.retain_ttl),
            format!("--retain-max={}", self.retain_max),
            format!("--retain-renewable={}", self.retain_renewable),
            format!("--reuse-threshold={}", self.reuse_threshold),
            format!("--max-num-seqs={}", self.max_num_seqs),
            format!("--step-tokens={}", self.step_tokens),
            format!("--hold-first-token={}", self.hold_first_token),
            format!("--max-waiting={}", self.max_waiting),
            format!("--emulated-profile={}", self.emulated_profile),
            format!("--emulated-layers={}", self.emulated_layers),
            format!("--emulated-heads={}", self.emulated_heads),
            format!("--emulated-head-dim={}", self.emulated_head_dim),
            format!("--emulated-reads-every={}", self.emulated_reads_every),
            format!("--transport={}", value_name(self.transport)),
            format!("--tcp-lanes={}", self.tcp_lanes),
            format!("--tcp-crc={}", self.tcp_crc),
            format!("--nixl-backend={}", value_name(self.nixl_backend)),
            format!("--nixl-reads={}", value_name(self.nixl_reads)),
            format!("--inline-post={}", self.inline_post),
            format!("--push-at-end={}", self.push_at_end),
            format!("--on-lost-kv={}", value_name(self.on_lost_kv)),
            format!("--lease={}", self.lease),
            format!("--heartbeat={}", self.heartbeat),
            format!("--register-timeout={}", self.register_timeout),
            format!("--max-receiving={}", self.max_receiving),
        ];
        argv.extend(self.served_model_name.as_ref().map(|name| format!("--served-model-name={name}")));
        argv.extend(self.emulated_tokenizer.as_ref().map(|model| format!("--emulated-tokenizer={model}")));
        argv.extend(self.unit_tokens.map(|tokens| format!("--unit-tokens={tokens}")));
        argv.extend(self.kv_memory.map(|size| format!("--kv-memory={size}")));
        argv.extend(self.max_model_len.map(|tokens| format!("--max-model-len={tokens}")));
        argv.extend(self.nixl_param.iter().map(|(key, value)| format!("--nixl-param={key}={value}")));
        argv.extend(self.threads.map(|threads| format!("--threads={threads}")));
        // Paths and names only: a secret itself is in no argument, which every user of the machine could read.
        let files = [
            ("peer-secret-file", &self.peer_secret_file),
            ("peer-tls-cert", &self.peer_tls_cert),
            ("peer-tls-key", &self.peer_tls_key),
            ("peer-tls-ca", &self.peer_tls_ca),
        ];
        let said = files.into_iter().filter_map(|(flag, path)| Some((flag, path.as_ref()?)));
        argv.extend(said.map(|(flag, path)| format!("--{flag}={}", path.display())));
        argv.extend(self.peer_tls_name.as_ref().map(|name| format!("--peer-tls-name={name}")));
        argv
    }
}
