//! What a checkpoint says about its model, read from Hugging Face's `config.json` or from GGUF metadata.

use baton_types::TokenId;
use serde::{Deserialize, Serialize};

use crate::weights::gguf::{Gguf, GgufError};

/// The model families that the CPU runner computes. They differ in biases and in the normalisation of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Architecture {
    Llama,
    Qwen2,
    Qwen3,
}

impl Architecture {
    fn named(name: &str) -> Result<Self, ConfigError> {
        match name {
            "llama" => Ok(Self::Llama),
            "qwen2" => Ok(Self::Qwen2),
            "qwen3" => Ok(Self::Qwen3),
            other => Err(ConfigError::UnsupportedModel(other.to_owned())),
        }
    }

    /// Whether queries and keys are normalised per head before rotation.
    pub fn has_qk_norm(self) -> bool {
        self == Self::Qwen3
    }
}

/// Sizes and constants of one decoder-only model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelConfig {
    pub architecture: Architecture,
    pub layers: usize,
    pub hidden: usize,
    pub intermediate: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub vocab: usize,
    pub norm_eps: f32,
    /// Radians per position of each rotated pair, scaling applied: `head_dim / 2` of them.
    pub inverse_frequencies: Vec<f32>,
    /// Whether the checkpoint must have biases on q, k and v.
    pub attention_bias: bool,
    /// Whether the output matrix is the embedding table.
    pub tied_embeddings: bool,
    pub max_positions: usize,
    pub bos: Option<TokenId>,
    /// Any of these ends a sequence. May be empty.
    pub eos: Vec<TokenId>,
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("{file}: {source}")]
    Json { file: &'static str, source: serde_json::Error },
    #[error("model type {0} is not supported (llama, qwen2 and qwen3 are)")]
    UnsupportedModel(String),
    #[error("{field} is {value}, which is not supported ({supported})")]
    UnsupportedField { field: &'static str, value: String, supported: &'static str },
    #[error("{0}")]
    Impossible(String),
    #[error(transparent)]
    Gguf(#[from] GgufError),
}

/// The fields of `config.json` that matter here. Unknown fields are ignored: they are many, and most say nothing about arithmetic.
#[derive(Debug, Deserialize)]
struct HfConfig {
    model_type: String,
    num_hidden_layers: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    vocab_size: usize,
    rms_norm_eps: f32,
    #[serde(default = "default_activation")]
    hidden_act: String,
    rope_parameters: Option<HfRope>,
    rope_theta: Option<f64>,
    rope_scaling: Option<HfRope>,
    partial_rotary_factor: Option<f64>,
    attention_bias: Option<bool>,
    #[serde(default)]
    mlp_bias: bool,
    #[serde(default)]
    tie_word_embeddings: bool,
    max_position_embeddings: usize,
    #[serde(default)]
    use_sliding_window: bool,
    layer_types: Option<Vec<String>>,
    bos_token_id: Option<OneOrMany>,
    eos_token_id: Option<OneOrMany>,
    quantization_config: Option<serde_json::Value>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct HfRope {
    rope_theta: Option<f64>,
    /// `type` is the old name.
    #[serde(alias = "type")]
    rope_type: Option<String>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
}

#[derive(Debug, Deserialize)]
struct HfGenerationConfig {
    eos_token_id: Option<OneOrMany>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(u32),
    Many(Vec<u32>),
}

impl OneOrMany {
    fn tokens(&self) -> Vec<TokenId> {
        match self {
            Self::One(id) => vec![TokenId(*id)],
            Self::Many(ids) => ids.iter().copied().map(TokenId).collect(),
        }
    }
}

fn default_activation() -> String {
    "silu".to_owned()
}

impl ModelConfig {
    /// Reads `config.json` and, where there is one, `generation_config.json`, whose end-of-sequence ids win.
    pub fn from_hugging_face(config: &str, generation_config: Option<&str>) -> Result<Self, ConfigError> {
        let json = |file| move |source| ConfigError::Json { file, source };
        // The model's type first: a foreign model lacks other fields, and its type is the better message.
        #[derive(Deserialize)]
        struct OnlyType {
            model_type: String,
        }
        let OnlyType { model_type } = serde_json::from_str(config).map_err(json("config.json"))?;
        let architecture = Architecture::named(&model_type)?;
        let hf: HfConfig = serde_json::from_str(config).map_err(json("config.json"))?;
        debug_assert_eq!(hf.model_type, model_type);
        hf.refuse_unsupported()?;
        let generation: Option<HfGenerationConfig> = generation_config
            .map(serde_json::from_str)
            .transpose()
            .map_err(json("generation_config.json"))?;
        let eos = generation.and_then(|g| g.eos_token_id).or_else(|| hf.eos_token_id.clone());
        let head_dim =
            hf.head_dim.unwrap_or_else(|| hf.hidden_size.checked_div(hf.num_attention_heads).unwrap_or(0));
        let config = Self {
            architecture,
            layers: hf.num_hidden_layers,
            hidden: hf.hidden_size,
            intermediate: hf.intermediate_size,
            heads: hf.num_attention_heads,
            kv_heads: hf.num_key_value_heads.unwrap_or(hf.num_attention_heads),
            head_dim,
            vocab: hf.vocab_size,
            norm_eps: hf.rms_norm_eps,
            inverse_frequencies: hf.inverse_frequencies(head_dim)?,
            attention_bias: hf.attention_bias.unwrap_or(architecture == Architecture::Qwen2),
            tied_embeddings: hf.tie_word_embeddings,
            max_positions: hf.max_position_embeddings,
            bos: hf.bos_token_id.and_then(|ids| ids.tokens().first().copied()),
            eos: eos.map(|ids| ids.tokens()).unwrap_or_default(),
        };
        config.checked()
    }

    /// Reads GGUF metadata.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, ConfigError> {
        let name = gguf.get_str("general.architecture")?;
        let architecture = Architecture::named(name)?;
        let size = |key: &str| -> Result<usize, ConfigError> {
            let value = gguf.get_u64(&format!("{name}.{key}"))?;
            usize::try_from(value).map_err(|_| ConfigError::Impossible(format!("{name}.{key} is {value}")))
        };
        let optional_size = |key: &str| match size(key) {
            Err(ConfigError::Gguf(GgufError::MissingKey(_))) => Ok(None),
            other => other.map(Some),
        };
        if optional_size("expert_count")?.is_some_and(|experts| experts > 0) {
            return Err(ConfigError::UnsupportedModel(format!("{name} with experts")));
        }
        let (hidden, heads) = (size("embedding_length")?, size("attention.head_count")?);
        let head_dim = match optional_size("attention.key_length")? {
            Some(dim) => dim,
            None => hidden.checked_div(heads).unwrap_or(0),
        };
        let rotated = optional_size("rope.dimension_count")?.unwrap_or(head_dim);
        if rotated != head_dim {
            let value = format!("{rotated} of {head_dim}");
            return Err(unsupported("rope.dimension_count", value, "all of a head is"));
        }
        let vocab = gguf.tensor("token_embd.weight")?.shape.first().copied().unwrap_or(0);
        let config = Self {
            architecture,
            layers: size("block_count")?,
            hidden,
            intermediate: size("feed_forward_length")?,
            heads,
            kv_heads: optional_size("attention.head_count_kv")?.unwrap_or(heads),
            head_dim,
            vocab,
            norm_eps: gguf.get_f64(&format!("{name}.attention.layer_norm_rms_epsilon"))? as f32,
            inverse_frequencies: gguf_inverse_frequencies(gguf, name, head_dim)?,
            attention_bias: architecture == Architecture::Qwen2,
            tied_embeddings: !gguf.has_tensor("output.weight"),
            max_positions: size("context_length")?,
            bos: gguf_token(gguf, "tokenizer.ggml.bos_token_id"),
            eos: ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"]
                .iter()
                .filter_map(|key| gguf_token(gguf, key))
                .collect(),
        };
        config.checked()
    }

    /// Refuses sizes that no model has, so that the code behind this never divides by zero or overflows.
    fn checked(self) -> Result<Self, ConfigError> {
        let impossible = |what: String| Err(ConfigError::Impossible(what));
        let sizes = [
            ("layers", self.layers),
            ("hidden size", self.hidden),
            ("intermediate size", self.intermediate),
            ("heads", self.heads),
            ("kv heads", self.kv_heads),
            ("head dim", self.head_dim),
            ("vocabulary", self.vocab),
            ("maximum positions", self.max_positions),
        ];
        for (what, size) in sizes {
            if size == 0 || size > 1 << 24 {
                return impossible(format!("{what} is {size}"));
            }
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return impossible(format!("{} heads do not share {} kv heads", self.heads, self.kv_heads));
        }
        let step = if self.architecture.has_qk_norm() { 16 } else { 8 };
        if !self.head_dim.is_multiple_of(step) || self.head_dim > 512 {
            return impossible(format!("head dim {} is not a multiple of {step} up to 512", self.head_dim));
        }
        for (what, size) in [
            ("hidden size", self.hidden),
            ("intermediate size", self.intermediate),
            ("heads x head dim", self.heads * self.head_dim),
        ] {
            if !size.is_multiple_of(32) {
                return impossible(format!("{what} {size} is not a multiple of 32"));
            }
        }
        if let Some(eos) = self.eos.iter().chain(&self.bos).find(|id| id.0 as usize >= self.vocab) {
            return impossible(format!("special token {eos:?} is outside the vocabulary of {}", self.vocab));
        }
        Ok(self)
    }
}

fn unsupported(field: &'static str, value: impl ToString, supported: &'static str) -> ConfigError {
    ConfigError::UnsupportedField { field, value: value.to_string(), supported }
}

impl HfConfig {
    fn refuse_unsupported(&self) -> Result<(), ConfigError> {
        if self.hidden_act != "silu" {
            return Err(unsupported("hidden_act", &self.hidden_act, "silu is"));
        }
        if self.use_sliding_window {
            return Err(unsupported("use_sliding_window", true, "full attention is"));
        }
        let windowed = self.layer_types.iter().flatten().find(|kind| *kind != "full_attention");
        if let Some(kind) = windowed {
            return Err(unsupported("layer_types", kind, "full_attention is"));
        }
        if self.mlp_bias {
            return Err(unsupported("mlp_bias", true, "false is"));
        }
        if self.partial_rotary_factor.is_some_and(|factor| factor != 1.0) {
            return Err(unsupported(
                "partial_rotary_factor",
                self.partial_rotary_factor.unwrap_or(0.0),
                "1 is",
            ));
        }
        if self.quantization_config.is_some() {
            return Err(unsupported("quantization_config", "present", "f32, f16 and bf16 tensors are"));
        }
        Ok(())
    }

    fn inverse_frequencies(&self, head_dim: usize) -> Result<Vec<f32>, ConfigError> {
        let rope = self.rope_parameters.clone().or_else(|| self.rope_scaling.clone()).unwrap_or_default();
        let theta = rope.rope_theta.or(self.rope_theta).unwrap_or(10_000.0);
        let plain = inverse_frequencies(theta, head_dim);
        let needed = |value: Option<f64>, field| {
            value
                .filter(|v| *v > 0.0)
                .ok_or_else(|| ConfigError::Impossible(format!("rope needs {field} > 0")))
        };
        match rope.rope_type.as_deref().unwrap_or("default") {
            "default" => Ok(plain),
            "linear" => {
                let factor = needed(rope.factor, "factor")? as f32;
                Ok(plain.into_iter().map(|f| f / factor).collect())
            }
            "llama3" => {
                let scaling = Llama3Scaling {
                    factor: needed(rope.factor, "factor")?,
                    low: needed(rope.low_freq_factor, "low_freq_factor")?,
                    high: needed(rope.high_freq_factor, "high_freq_factor")?,
                    original: needed(
                        rope.original_max_position_embeddings,
                        "original_max_position_embeddings",
                    )?,
                };
                Ok(plain.into_iter().map(|f| scaling.scale(f)).collect())
            }
            other => Err(unsupported("rope_type", other, "default, linear and llama3 are")),
        }
    }
}

/// `theta^(-2i / head_dim)`, in f32 steps as the reference implementation takes them.
fn inverse_frequencies(theta: f64, head_dim: usize) -> Vec<f32> {
    (0..head_dim / 2)
        .map(|i| {
            let exponent = (2 * i) as f32 / head_dim as f32;
            1.0 / (theta.powf(f64::from(exponent)) as f32)
        })
        .collect()
}

/// Llama 3.1's scaling: long wavelengths are stretched by `factor`, short ones kept, those between blended.
struct Llama3Scaling {
    factor: f64,
    low: f64,
    high: f64,
    original: f64,
}

impl Llama3Scaling {
    fn scale(&self, frequency: f32) -> f32 {
        let frequency = f64::from(frequency);
        let wavelength = 2.0 * std::f64::consts::PI / frequency;
        let scaled = if wavelength < self.original / self.high {
            frequency
        } else if wavelength > self.original / self.low {
            frequency / self.factor
        } else {
            let smooth = (self.original / wavelength - self.low) / (self.high - self.low);
            (1.0 - smooth) * frequency / self.factor + smooth * frequency
        };
        scaled as f32
    }
}

/// GGUF carries llama3 scaling as a tensor of divisors.
fn gguf_inverse_frequencies(gguf: &Gguf, name: &str, head_dim: usize) -> Result<Vec<f32>, ConfigError> {
    let theta = match gguf.get_f64(&format!("{name}.rope.freq_base")) {
        Err(GgufError::MissingKey(_)) => 10_000.0,
        other => other?,
    };
    let mut frequencies = inverse_frequencies(theta, head_dim);
    match gguf.get_str(&format!("{name}.rope.scaling.type")) {
        Err(GgufError::MissingKey(_)) | Ok("none") => {}
        Ok("linear") => {
            let factor = gguf.get_f64(&format!("{name}.rope.scaling.factor"))? as f32;
            frequencies.iter_mut().for_each(|f| *f /= factor);
        }
        Ok(other) => return Err(unsupported("rope.scaling.type", other, "none and linear are")),
        Err(wrong) => return Err(wrong.into()),
    }
    if gguf.has_tensor("rope_freqs.weight") {
        let tensor = gguf.tensor("rope_freqs.weight")?;
        if tensor.shape != [frequencies.len()] {
            return Err(ConfigError::Impossible(format!("rope_freqs.weight has shape {:?}", tensor.shape)));
        }
        let mut divisors = vec![0.0; frequencies.len()];
        tensor.dtype.widen(tensor.bytes, &mut divisors);
        frequencies.iter_mut().zip(divisors).for_each(|(f, divisor)| *f /= divisor);
    }
    Ok(frequencies)
}

fn gguf_token(gguf: &Gguf, key: &str) -> Option<TokenId> {
    gguf.get_u64(key).ok().and_then(|id| u32::try_from(id).ok()).map(TokenId)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn llama(extra: &str) -> String {
        format!(
            r#"{{"model_type":"llama","num_hidden_layers":2,"hidden_size":64,"intermediate_size":96,
               "num_attention_heads":4,"num_key_value_heads":2,"vocab_size":100,"rms_norm_eps":1e-5,
               "max_position_embeddings":512,"eos_token_id":[2,3]{extra}}}"#
        )
    }

    #[test]
    fn old_and_new_rope_fields_give_the_same_frequencies() {
        let scaling = r#""rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,
            "original_max_position_embeddings":64"#;
        let new = llama(&format!(r#","rope_parameters":{{"rope_theta":500000.0,{scaling}}}"#));
        let old = llama(&format!(r#","rope_theta":500000.0,"rope_scaling":{{{scaling}}}"#));
        let read = |json: &str| ModelConfig::from_hugging_face(json, None).unwrap();
        assert_eq!(read(&new), read(&old));
        assert_ne!(read(&new).inverse_frequencies, read(&llama("")).inverse_frequencies);
    }

    #[test]
    fn the_generation_config_s_end_ids_win() {
        let read = |generation| ModelConfig::from_hugging_face(&llama(""), generation).unwrap().eos;
        assert_eq!(read(None), [TokenId(2), TokenId(3)]);
        assert_eq!(read(Some(r#"{"eos_token_id":7}"#)), [TokenId(7)]);
        assert_eq!(read(Some("{}")), [TokenId(2), TokenId(3)]);
    }

    #[test]
    fn what_cannot_be_computed_is_refused_by_name() {
        for (json, names) in [
            (llama("").replace("llama", "mixtral"), "mixtral"),
            (llama(r#","use_sliding_window":true"#), "use_sliding_window"),
            (llama(r#","layer_types":["full_attention","sliding_attention"]"#), "sliding_attention"),
            (llama(r#","hidden_act":"gelu""#), "hidden_act"),
            (llama(r#","rope_scaling":{"type":"yarn","factor":4.0}"#), "yarn"),
            (llama(r#","head_dim":20"#), "head dim 20"),
            (llama("").replace("\"hidden_size\":64,", ""), "hidden_size"),
            (llama("").replace("\"num_key_value_heads\":2", "\"num_key_value_heads\":0"), "kv heads"),
            (r#"{"model_type":"deepseek_v3"}"#.to_owned(), "deepseek_v3"),
        ] {
            let error = ModelConfig::from_hugging_face(&json, None).unwrap_err().to_string();
            assert!(error.contains(names), "{error}");
        }
    }
}
