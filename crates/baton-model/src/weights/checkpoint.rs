//! One checkpoint, whatever its container: configuration and tensors under Hugging Face's names and row order.

use std::path::{Path, PathBuf};

use super::dtype::Dtype;
use super::gguf::{Gguf, GgufError};
use super::safetensors::{self, Safetensors, SafetensorsError};
use crate::config::{Architecture, ConfigError, ModelConfig};

/// Why a checkpoint cannot be opened, or lacks a tensor.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error("{0} is neither a .gguf file nor a directory with config.json and model.safetensors")]
    NotACheckpoint(PathBuf),
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Gguf(#[from] GgufError),
    #[error(transparent)]
    Safetensors(#[from] SafetensorsError),
    #[error("tensor {name} has shape {found:?}, and the configuration asks for {wanted:?}")]
    Shape { name: String, found: Vec<usize>, wanted: Vec<usize> },
}

/// An open checkpoint.
#[derive(Debug)]
pub struct Checkpoint {
    config: ModelConfig,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Safetensors(Safetensors),
    Gguf(Gguf),
}

/// One tensor of a checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    /// Outermost dimension first.
    pub shape: &'a [usize],
    pub dtype: Dtype,
    pub bytes: &'a [u8],
    row_order: RowOrder,
}

/// Where row `r` of the model is stored.
#[derive(Clone, Copy, Debug)]
enum RowOrder {
    Plain,
    /// Rows of each head hold the pairs that rotate together side by side; the model has their halves apart.
    Interleaved {
        head_dim: usize,
    },
}

impl<'a> Tensor<'a> {
    pub fn rows(&self) -> usize {
        self.shape[0]
    }

    /// Elements of one row; 1 for a vector.
    pub fn columns(&self) -> usize {
        self.shape[1..].iter().product()
    }

    /// The stored bytes of row `row`, in the model's order of rows.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, row: usize) -> &'a [u8] {
        let stored = match self.row_order {
            RowOrder::Plain => row,
            RowOrder::Interleaved { head_dim } => {
                let (head, i) = (row / head_dim, row % head_dim);
                let (half, pair) = (i / (head_dim / 2), i % (head_dim / 2));
                head * head_dim + 2 * pair + half
            }
        };
        let row_bytes = self.bytes.len() / self.rows();
        &self.bytes[stored * row_bytes..][..row_bytes]
    }

    /// All elements, widened to f32, in the model's order.
    pub fn to_f32(&self) -> Vec<f32> {
        let columns = self.columns();
        let mut out = vec![0.0; self.rows() * columns];
        for (row, out) in out.chunks_exact_mut(columns).enumerate() {
            self.dtype.widen(self.row(row), out);
        }
        out
    }
}

impl Checkpoint {
    /// Opens a `.gguf` file, or a directory with `config.json` and safetensors.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        if path.extension().is_some_and(|extension| extension == "gguf") {
            let gguf = Gguf::open(path)?;
            return Ok(Self { config: ModelConfig::from_gguf(&gguf)?, source: Source::Gguf(gguf) });
        }
        let config_path = path.join("config.json");
        if !config_path.is_file()
            || ![safetensors::SINGLE, safetensors::INDEX].iter().any(|f| path.join(f).is_file())
        {
            return Err(CheckpointError::NotACheckpoint(path.to_owned()));
        }
        let read = |path: PathBuf| {
            std::fs::read_to_string(&path).map_err(|source| CheckpointError::Io { path, source })
        };
        let generation_path = path.join("generation_config.json");
        let generation = generation_path.is_file().then(|| read(generation_path)).transpose()?;
        let config = ModelConfig::from_hugging_face(&read(config_path)?, generation.as_deref())?;
        Ok(Self { config, source: Source::Safetensors(Safetensors::open_directory(path)?) })
    }

    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Whether there is a tensor of that (Hugging Face) name.
    pub fn has_tensor(&self, name: &str) -> bool {
        match &self.source {
            Source::Safetensors(tensors) => tensors.has_tensor(name),
            Source::Gguf(gguf) => gguf_name(name).is_some_and(|name| gguf.has_tensor(&name)),
        }
    }

    /// The tensor of that (Hugging Face) name, which must have that shape.
    pub fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor<'_>, CheckpointError> {
        let (found, dtype, bytes) = match &self.source {
            Source::Safetensors(tensors) => tensors.tensor(name)?,
            Source::Gguf(gguf) => {
                let stored = gguf_name(name).ok_or_else(|| GgufError::MissingTensor(name.to_owned()))?;
                let tensor = gguf.tensor(&stored)?;
                (tensor.shape, tensor.dtype, tensor.bytes)
            }
        };
        if found != shape || shape.is_empty() {
            let (name, found, wanted) = (name.to_owned(), found.to_vec(), shape.to_vec());
            return Err(CheckpointError::Shape { name, found, wanted });
        }
        Ok(Tensor { shape: found, dtype, bytes, row_order: self.row_order(name) })
    }

    /// GGUF's converter permutes the rows of q and k of llama models, and of those alone.
    fn row_order(&self, name: &str) -> RowOrder {
        let permuted = matches!(self.source, Source::Gguf(_))
            && self.config.architecture == Architecture::Llama
            && ["q_proj.weight", "k_proj.weight"].iter().any(|end| name.ends_with(end));
        match permuted {
            true => RowOrder::Interleaved { head_dim: self.config.head_dim },
            false => RowOrder::Plain,
        }
    }

    /// A name for these weights and this configuration: different weights, different name.
    ///
    /// Up to 1 GiB every byte of every tensor is hashed; of larger checkpoints, 64 evenly spaced pages of each tensor.
    pub fn fingerprint(&self) -> String {
        let mut hasher = blake3::Hasher::new_derive_key("baton 1 model fingerprint");
        // Debug of plain data: the same text for the same values.
        hasher.update(format!("{:?}", self.config).as_bytes());
        let tensors = self.all_tensors();
        let total: usize = tensors.iter().map(|(_, _, bytes)| bytes.len()).sum();
        for (name, kind, bytes) in tensors {
            hasher.update(format!("\n{name} {kind} {}\n", bytes.len()).as_bytes());
            if total <= WHOLE_HASH_LIMIT_BYTES || bytes.len() <= SAMPLED_PAGES * PAGE_BYTES {
                hasher.update(bytes);
                continue;
            }
            let stride = (bytes.len() - PAGE_BYTES) / (SAMPLED_PAGES - 1);
            for page in 0..SAMPLED_PAGES {
                hasher.update(&bytes[page * stride..][..PAGE_BYTES]);
            }
        }
        hasher.finalize().to_hex()[..32].to_owned()
    }

    /// Name, shape and type, and bytes of every tensor that can be read, by name.
    fn all_tensors(&self) -> Vec<(&str, String, &[u8])> {
        match &self.source {
            Source::Safetensors(tensors) => tensors
                .tensor_names()
                .filter_map(|name| {
                    tensors.tensor(name).ok().map(|t| (name, format!("{:?} {:?}", t.0, t.1), t.2))
                })
                .collect(),
            Source::Gguf(gguf) => gguf
                .tensor_infos()
                .filter_map(|(name, _)| {
                    gguf.tensor(name).ok().map(|t| (name, format!("{:?} {:?}", t.shape, t.dtype), t.bytes))
                })
                .collect(),
        }
    }
}

const WHOLE_HASH_LIMIT_BYTES: usize = 1 << 30;
const SAMPLED_PAGES: usize = 64;
const PAGE_BYTES: usize = 4096;

/// GGUF's name of a Hugging Face tensor.
fn gguf_name(name: &str) -> Option<String> {
    let fixed = match name {
        "model.embed_tokens.weight" => Some("token_embd.weight"),
        "model.norm.weight" => Some("output_norm.weight"),
        "lm_head.weight" => Some("output.weight"),
        _ => None,
    };
    if let Some(fixed) = fixed {
        return Some(fixed.to_owned());
    }
    let (layer, part) = name.strip_prefix("model.layers.")?.split_once('.')?;
    let (module, kind) = part.rsplit_once('.')?;
    let module = match module {
        "input_layernorm" => "attn_norm",
        "post_attention_layernorm" => "ffn_norm",
        "self_attn.q_proj" => "attn_q",
        "self_attn.k_proj" => "attn_k",
        "self_attn.v_proj" => "attn_v",
        "self_attn.o_proj" => "attn_output",
        "self_attn.q_norm" => "attn_q_norm",
        "self_attn.k_norm" => "attn_k_norm",
        "mlp.gate_proj" => "ffn_gate",
        "mlp.up_proj" => "ffn_up",
        "mlp.down_proj" => "ffn_down",
        _ => return None,
    };
    Some(format!("blk.{layer}.{module}.{kind}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interleaved_rows_are_put_back() {
        let bytes: Vec<u8> = (0..16u32).flat_map(|row| (row as f32).to_le_bytes()).collect();
        let row_order = RowOrder::Interleaved { head_dim: 8 };
        let tensor = Tensor { shape: &[16, 1], dtype: Dtype::F32, bytes: &bytes, row_order };
        let rows: Vec<u32> = tensor.to_f32().iter().map(|x| *x as u32).collect();
        assert_eq!(rows, [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15]);
    }

    #[test]
    fn names_map_to_gguf_s() {
        let name = |hf| gguf_name(hf).unwrap();
        assert_eq!(name("model.layers.12.self_attn.q_proj.bias"), "blk.12.attn_q.bias");
        assert_eq!(name("model.layers.0.mlp.down_proj.weight"), "blk.0.ffn_down.weight");
        assert_eq!(name("lm_head.weight"), "output.weight");
        assert_eq!(gguf_name("model.layers.0.mlp.experts.0.weight"), None);
    }
}
