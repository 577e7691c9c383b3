//! From a configuration to a runner over a registered pool, its text, and what peers must share with it.

use std::sync::Arc;

use baton_engine::ModelRunner;
use baton_model::fetch::{ModelFiles, ModelSource};
use baton_model::{CostProfile, CpuModel, CpuRunner, EmulatedRunner, KvMemory, Paced};
use baton_proto::Compat;
use baton_types::{KvLayout, MemoryRegion, TokenId};

use crate::byte_tokenizer::ByteTokenizer;
use crate::config::{CheckpointChoice, EmulatedChoice, ModelChoice, ServerConfig};
use crate::error::ServerError;
use crate::text::Text;
use crate::{model_files, transfer_link};

/// Without a configured size, at most this much KV.
const DEFAULT_KV_BYTES: u64 = 1 << 30;
/// And at most this share of the memory that is free.
const FREE_MEMORY_SHARE: u64 = 4;
/// Sequences of the emulated model, unless the configuration says otherwise.
const EMULATED_CONTEXT: u32 = 32_768;

/// A model, ready to run.
pub(crate) struct Loaded {
    pub runner: Box<dyn ModelRunner>,
    pub text: Text,
    /// Ids below it are tokens of both model and tokenizer.
    pub vocab: usize,
    /// The tokens that end an answer.
    pub eos: Vec<TokenId>,
    pub region: Arc<dyn MemoryRegion>,
    pub layout: KvLayout,
    pub blocks: u32,
    /// Of weights, configuration and arithmetic: equal only if equal tokens give equal KV.
    pub fingerprint: String,
    pub max_model_len: u32,
    /// The model's own name.
    pub name: String,
}

impl std::fmt::Debug for Loaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loaded")
            .field("name", &self.name)
            .field("blocks", &self.blocks)
            .finish_non_exhaustive()
    }
}

/// May take minutes: not for an async thread.
///
/// # Errors
/// If the model is not there or not understood, or its KV pool does not fit.
pub(crate) fn load(config: &ServerConfig) -> Result<Loaded, ServerError> {
    match &config.model {
        ModelChoice::Emulated(choice) => load_emulated(config, choice),
        ModelChoice::Checkpoint(choice) => load_checkpoint(config, choice),
    }
}

fn load_emulated(config: &ServerConfig, choice: &EmulatedChoice) -> Result<Loaded, ServerError> {
    let layout = KvLayout {
        layers: choice.layers,
        kv_heads: choice.kv_heads,
        head_dim: choice.head_dim,
        dtype: config.kv_dtype,
        block_tokens: config.block_tokens,
        ranks: config.kv_ranks,
        order: config.kv_layout,
    };
    let profile = CostProfile::named(&choice.profile).ok_or_else(|| {
        let known: Vec<&str> = CostProfile::names().collect();
        ServerError::Config(format!("no profile {:?}; there are {}", choice.profile, known.join(", ")))
    })?;
    let mut model = choice.model;
    let text = match &choice.tokenizer {
        None => Text::Bytes(ByteTokenizer::new(model.vocab)),
        Some(source) => model_files::text(&model_files::fetch(source)?)?,
    };
    model.vocab = u32::try_from(text.vocab_size()).unwrap_or(u32::MAX);
    let memory = allocate(config, layout)?;
    let runner = EmulatedRunner::new(model, memory.clone()).map_err(model_error)?;
    Ok(Loaded {
        runner: Box::new(Paced { runner, profile }),
        vocab: text.vocab_size(),
        eos: text.eos().to_vec(),
        text,
        region: memory.region().clone(),
        layout: memory.layout().clone(),
        blocks: memory.num_blocks(),
        fingerprint: model.fingerprint(),
        max_model_len: config.max_model_len.unwrap_or(EMULATED_CONTEXT),
        name: "emulated".to_owned(),
    })
}

fn load_checkpoint(config: &ServerConfig, choice: &CheckpointChoice) -> Result<Loaded, ServerError> {
    let files = model_files::fetch(&choice.source)?;
    let text = model_files::text(&files)?;
    let (ModelFiles::Directory(path) | ModelFiles::Gguf(path)) = &files;
    tracing::info!(model = choice.source, "loading weights");
    let model = Arc::new(CpuModel::load(path, choice.precision.into()).map_err(model_error)?);
    let trained = u32::try_from(model.config().max_positions).unwrap_or(u32::MAX);
    let max_model_len = config.max_model_len.unwrap_or(trained);
    if max_model_len > trained {
        let text =
            format!("max_model_len ({max_model_len}) is beyond the model's context of {trained} tokens");
        return Err(ServerError::Config(text));
    }
    let (ranks, dtype) = (config.kv_ranks, config.kv_dtype);
    let memory = allocate(config, KvLayout { ranks, dtype, ..model.kv_layout(config.block_tokens) })?;
    let threads = config.threads.map_or_else(cores, |threads| threads as usize);
    tracing::info!(threads, weight_bytes = model.weight_bytes(), "weights loaded");
    let runner = CpuRunner::new(model.clone(), memory.clone(), threads).map_err(model_error)?;
    let mut eos: Vec<TokenId> = text.eos().iter().chain(&model.config().eos).copied().collect();
    eos.sort_unstable();
    eos.dedup();
    Ok(Loaded {
        runner: Box::new(runner),
        vocab: text.vocab_size().min(model.config().vocab),
        eos,
        text,
        region: memory.region().clone(),
        layout: memory.layout().clone(),
        blocks: memory.num_blocks(),
        fingerprint: model.fingerprint().to_owned(),
        max_model_len,
        name: public_name(&choice.source),
    })
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// A name for clients: a path of this machine is none of their business.
fn public_name(source: &str) -> String {
    match ModelSource::parse(source) {
        Ok(ModelSource::Directory(path) | ModelSource::Gguf(path)) => {
            let stem = if path.is_dir() { path.file_name() } else { path.file_stem() };
            stem.map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
        }
        _ => source.to_owned(),
    }
}

/// The KV pool: whole blocks in memory that the configured transport can move.
fn allocate(config: &ServerConfig, layout: KvLayout) -> Result<KvMemory, ServerError> {
    let KvLayout { kv_heads, ranks, .. } = layout;
    if !kv_heads.is_multiple_of(ranks) {
        let text = format!("kv_ranks ({ranks}) must divide the model's {kv_heads} KV heads");
        return Err(ServerError::Config(text));
    }
    let block_bytes = layout.block_bytes() as u64;
    let bytes = config.kv_memory_bytes.unwrap_or_else(default_kv_bytes);
    let blocks = bytes.checked_div(block_bytes).unwrap_or(0).min(u64::from(u32::MAX));
    if blocks == 0 {
        let text = format!("kv_memory_bytes ({bytes}) is less than one KV block ({block_bytes} bytes)");
        return Err(ServerError::Config(text));
    }
    let bytes = usize::try_from(blocks * block_bytes).map_err(model_error)?;
    let region = transfer_link::region(config.transport, bytes)?;
    tracing::info!(blocks, block_bytes, "KV pool allocated");
    KvMemory::new(region, layout).map_err(model_error)
}

fn default_kv_bytes() -> u64 {
    free_memory_bytes().map_or(DEFAULT_KV_BYTES, |free| DEFAULT_KV_BYTES.min(free / FREE_MEMORY_SHARE))
}

/// What Linux says is available without swapping.
fn free_memory_bytes() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

fn model_error(error: impl std::fmt::Display) -> ServerError {
    ServerError::Model(error.to_string())
}

/// What two engines must share before either may read the other's KV: block size and ranks not, and the type of elements only
/// unless both may convert.
pub(crate) fn compat(fingerprint: &str, layout: &KvLayout, unit_tokens: u32, convert: bool) -> Compat {
    let mut hasher = blake3::Hasher::new_derive_key("baton 1 kv compatibility");
    let KvLayout { layers, kv_heads, head_dim, dtype, block_tokens: _, ranks: _, order } = layout;
    let dtype = if convert { "converted".to_owned() } else { format!("{dtype:?}") };
    let layout = format!("{layers} {kv_heads} {head_dim} {dtype} {unit_tokens} {order:?}");
    for part in [fingerprint, &layout] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    let mut out = [0; 16];
    out.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    Compat(out)
}

#[cfg(test)]
mod tests {
    use baton_types::{KvDtype, KvOrder};

    use super::*;

    #[test]
    fn another_model_or_layout_is_incompatible() {
        let layout = baton_model::EmulatedModel::default_layout(16);
        let same = compat("a", &layout, 16, false);
        assert_eq!(same, compat("a", &KvLayout { block_tokens: 64, ranks: 4, ..layout.clone() }, 16, false));
        assert_ne!(same, compat("b", &layout, 16, false));
        assert_ne!(same, compat("a", &KvLayout { kv_heads: 8, ..layout.clone() }, 16, false));
        assert_ne!(same, compat("a", &layout, 8, false));
        assert_ne!(same, compat("a", &KvLayout { order: KvOrder::LayerMajor, ..layout.clone() }, 16, false));
        let half = KvLayout { dtype: KvDtype::F16, ..layout.clone() };
        assert_ne!(same, compat("a", &half, 16, false));
        assert_ne!(same, compat("a", &layout, 16, true), "both must allow it");
        assert_eq!(compat("a", &half, 16, true), compat("a", &layout, 16, true));
    }

    #[test]
    fn a_pool_smaller_than_a_block_and_an_unknown_profile_are_the_operator_s_fault() {
        let small = ServerConfig { kv_memory_bytes: Some(100), ..ServerConfig::default() };
        assert!(matches!(load(&small), Err(ServerError::Config(text)) if text.contains("kv_memory_bytes")));
        let split = ServerConfig { kv_ranks: 3, ..ServerConfig::default() };
        assert!(matches!(load(&split), Err(ServerError::Config(text)) if text.contains("kv_ranks (3)")));
        let choice = EmulatedChoice { profile: "warp".to_owned(), ..EmulatedChoice::default() };
        let unknown = ServerConfig { model: ModelChoice::Emulated(choice), ..ServerConfig::default() };
        assert!(matches!(load(&unknown), Err(ServerError::Config(text)) if text.contains("instant")));
        assert_eq!(public_name("Qwen/Qwen3-0.6B"), "Qwen/Qwen3-0.6B");
        assert!(!public_name(env!("CARGO_MANIFEST_DIR")).contains('/'));
        assert!(free_memory_bytes().is_none_or(|bytes| bytes > 1 << 20));
    }
}
