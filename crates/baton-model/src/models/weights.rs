//! A decoder's weights in memory.

use std::path::Path;

use baton_types::{KvDtype, KvLayout, KvOrder, TokenId};

use super::linear::Linear;
use crate::config::ModelConfig;
use crate::kernels::activations::CpuPrecision;
use crate::kernels::arena::Arena;
use crate::weights::{Checkpoint, CheckpointError};

/// Why a model cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}

/// A loaded model. Several runners of one process may share it.
#[derive(Debug)]
pub struct CpuModel {
    /// Kept open: rows of the embedding table are read from it.
    checkpoint: Checkpoint,
    fingerprint: String,
    pub precision: CpuPrecision,
    pub(super) layers: Vec<LayerWeights>,
    pub(super) final_norm: Vec<f32>,
    pub(super) lm_head: Linear,
    /// `[position][head_dim / 2]`.
    pub(super) cos: Vec<f32>,
    pub(super) sin: Vec<f32>,
}

#[derive(Debug)]
pub(super) struct LayerWeights {
    pub input_norm: Vec<f32>,
    /// Outputs: q, k, v.
    pub qkv: Linear,
    /// Of queries and keys, per head; empty in families without.
    pub q_norm: Vec<f32>,
    pub k_norm: Vec<f32>,
    pub output: Linear,
    pub post_norm: Vec<f32>,
    pub gate: Linear,
    pub up: Linear,
    pub down: Linear,
}

const EMBEDDING: &str = "model.embed_tokens.weight";

impl CpuModel {
    /// Loads a `.gguf` file, or a directory with `config.json` and safetensors.
    pub fn load(path: &Path, precision: CpuPrecision) -> Result<Self, LoadError> {
        let checkpoint = Checkpoint::open(path)?;
        let config = checkpoint.config();
        let mut loader = Loader { checkpoint: &checkpoint, config, precision, arena: Arena::default() };
        let layers = (0..config.layers).map(|layer| loader.layer(layer)).collect::<Result<_, _>>()?;
        let embedding = [config.vocab, config.hidden];
        // Opened here so that a missing or misshapen table is an error now, not in the first step.
        checkpoint.tensor(EMBEDDING, &embedding)?;
        let head = if config.tied_embeddings { EMBEDDING } else { "lm_head.weight" };
        let head = [checkpoint.tensor(head, &embedding)?];
        let lm_head = Linear::new(&head, Vec::new(), precision, &mut loader.arena);
        let final_norm = loader.vector("model.norm.weight", config.hidden)?;
        let (cos, sin) = rotations(config);
        let fingerprint = format!("{}-{}", checkpoint.fingerprint(), arithmetic(precision));
        Ok(Self { fingerprint, precision, layers, final_norm, lm_head, cos, sin, checkpoint })
    }

    pub fn config(&self) -> &ModelConfig {
        self.checkpoint.config()
    }

    /// The KV layout of this model, in one rank and full precision. Runners also take F16 and BF16, and any ranks that split the
    /// heads evenly.
    pub fn kv_layout(&self, block_tokens: u32) -> KvLayout {
        let config = self.config();
        KvLayout {
            layers: config.layers as u32,
            kv_heads: config.kv_heads as u32,
            head_dim: config.head_dim as u32,
            dtype: KvDtype::F32,
            block_tokens,
            ranks: 1,
            order: KvOrder::BlockMajor,
        }
    }

    /// A name for weights, configuration and arithmetic: engines with equal names may exchange KV, and give the same words.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Bytes of weights that computing one token reads.
    pub fn weight_bytes(&self) -> usize {
        let layer = |l: &LayerWeights| {
            [&l.qkv, &l.output, &l.gate, &l.up, &l.down].map(Linear::bytes).iter().sum::<usize>()
        };
        self.layers.iter().map(layer).sum::<usize>() + self.lm_head.bytes()
    }

    /// Widens the embedding of `token` into `out`.
    ///
    /// # Panics
    /// If the token is outside the vocabulary.
    pub(super) fn embed(&self, token: TokenId, out: &mut [f32]) {
        let config = self.config();
        let table = self.checkpoint.tensor(EMBEDDING, &[config.vocab, config.hidden]);
        let table = table.expect("the table was there when the model was loaded");
        table.dtype.widen(table.row(token.0 as usize), out);
    }
}

/// A name for how products are computed; a change of any result's bits needs another.
fn arithmetic(precision: CpuPrecision) -> &'static str {
    match precision {
        CpuPrecision::Exact => "exact1",
        CpuPrecision::Int8 => "int8-1",
    }
}

struct Loader<'a> {
    checkpoint: &'a Checkpoint,
    config: &'a ModelConfig,
    precision: CpuPrecision,
    arena: Arena,
}

impl Loader<'_> {
    fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, CheckpointError> {
        Ok(self.checkpoint.tensor(name, &[len])?.to_f32())
    }

    /// The matrices of that names below one another, with their biases where the checkpoint has them (or must have them).
    fn linear(
        &mut self,
        names: &[(String, usize)],
        inputs: usize,
        needs_bias: bool,
    ) -> Result<Linear, CheckpointError> {
        let tensors = names
            .iter()
            .map(|(name, outputs)| self.checkpoint.tensor(&format!("{name}.weight"), &[*outputs, inputs]))
            .collect::<Result<Vec<_>, _>>()?;
        let mut bias = Vec::new();
        for (name, outputs) in names {
            let name = format!("{name}.bias");
            if needs_bias || self.checkpoint.has_tensor(&name) {
                bias.extend(self.vector(&name, *outputs)?);
            }
        }
        Ok(Linear::new(&tensors, bias, self.precision, &mut self.arena))
    }

    fn layer(&mut self, layer: usize) -> Result<LayerWeights, CheckpointError> {
        let config = self.config;
        let (q, kv) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
        let (hidden, intermediate) = (config.hidden, config.intermediate);
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        let attention = [("self_attn.q_proj", q), ("self_attn.k_proj", kv), ("self_attn.v_proj", kv)]
            .map(|(n, o)| (name(n), o));
        // In the order in which a step reads them.
        let qkv = self.linear(&attention, hidden, config.attention_bias)?;
        let mut one = |part: &str, outputs, inputs| self.linear(&[(name(part), outputs)], inputs, false);
        let output = one("self_attn.o_proj", hidden, q)?;
        let gate = one("mlp.gate_proj", intermediate, hidden)?;
        let up = one("mlp.up_proj", intermediate, hidden)?;
        let down = one("mlp.down_proj", hidden, intermediate)?;
        let head_norm = |part: &str| match config.architecture.has_qk_norm() {
            true => self.vector(&name(part), config.head_dim),
            false => Ok(Vec::new()),
        };
        Ok(LayerWeights {
            input_norm: self.vector(&name("input_layernorm.weight"), hidden)?,
            qkv,
            q_norm: head_norm("self_attn.q_norm.weight")?,
            k_norm: head_norm("self_attn.k_norm.weight")?,
            output,
            post_norm: self.vector(&name("post_attention_layernorm.weight"), hidden)?,
            gate,
            up,
            down,
        })
    }
}

/// Cosines and sines of every position's angles, the angles in f32 as the reference implementation has them.
fn rotations(config: &ModelConfig) -> (Vec<f32>, Vec<f32>) {
    let angles = || {
        (0..config.max_positions).flat_map(|position| {
            config.inverse_frequencies.iter().map(move |frequency| f64::from(position as f32 * frequency))
        })
    };
    (angles().map(|a| a.cos() as f32).collect(), angles().map(|a| a.sin() as f32).collect())
}
