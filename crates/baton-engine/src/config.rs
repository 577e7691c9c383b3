//! What an engine core is told when it is made. Every queue and table is bounded here (I11).

use std::fmt;

use std::time::Duration;

use baton_types::Mutation;

#[derive(Clone, Debug)]
pub struct Config {
    /// Blocks in the KV pool.
    pub num_blocks: u32,
    /// Tokens per block.
    pub block_tokens: u32,
    /// Sequences in one step; no new ones are admitted to compute while so many have blocks.
    pub max_running: usize,
    /// Tokens in one step.
    pub step_tokens: usize,
    /// Tokens of a sequence, prompt and answer together.
    pub max_model_len: usize,
    /// While so many sequences are without blocks, requests are refused. Preempted sequences may come on top.
    pub max_waiting: usize,
    /// Sequences whose KV is on its way from a peer. They hold blocks, but no place in the step. Of those whose source computes
    /// meanwhile no more are taken on than may be on their way at once, nor than the pool has room for at once (I8).
    pub max_receiving: usize,
    /// Blocks that sequences with KV from peers hold or wait for; beyond it such requests are refused, since what is queued
    /// behind a pool full of KV in flight only grows old.
    pub max_inbound_blocks: usize,
    /// Free blocks that an admission leaves for the running sequences to grow into.
    pub watermark_blocks: usize,
    pub prefix_cache: bool,
    /// Blocks that may be kept for conversations' next turns, all together. For how long is the protocol's to say.
    pub max_retained_blocks: usize,
    /// Fewer tokens than this are computed rather than read back, or kept to be read.
    pub reuse_threshold: usize,
    /// How long a sequence waits for KV that it could compute as well.
    pub reuse_timeout: Duration,
    pub on_lost_kv: OnLostKv,
    /// How long a sequence waits for KV from its peer, from its submission on, before the KV counts as lost: whatever has become of
    /// the peer, or of its source (I8).
    pub kv_timeout: Duration,
    /// Whether a first token that a peer sampled is given only once the sequence is among those of a step, so that nobody who
    /// has begun to read waits for a place. Otherwise it is given as soon as its KV is there.
    pub hold_first_token: bool,
    /// Whether a push names its blocks when the prompt is computed, not as they become complete: to be measured beside.
    pub push_at_end: bool,
    /// Ids below it are tokens of the model. What a peer has sampled beyond it is not taken over: no runner knows it.
    pub vocab: u32,
    /// Fingerprint of weights, configuration and arithmetic. Becomes `model` of every request's salt, whatever the driver left
    /// there (I13).
    pub model: String,
    pub proto: baton_proto::Config,
    pub mutation: Mutation,
}

/// What becomes of a sequence whose KV was to come from a peer and does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLostKv {
    /// The prompt is computed here.
    #[default]
    Recompute,
    /// The sequence ends with [`FinishReason::Failed`](crate::FinishReason::Failed).
    Fail,
}

/// A configuration that no engine can work under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// The field must not be zero.
    Zero(&'static str),
    /// A step of `max_running` sequences has at least one token for each.
    StepTokens { step_tokens: usize, max_running: usize },
    /// A block is a whole number of units.
    BlockUnits { block_units: u32, block_tokens: u32 },
    /// The protocol endpoint was told of another pool.
    ProtoUnits { units: u32, num_blocks: u32, block_units: u32 },
    /// The watermark leaves no room for a sequence.
    Watermark { watermark_blocks: usize, num_blocks: u32 },
}

impl Config {
    /// Defaults of a production engine: 256 sequences and 2,048 tokens a step, one percent of the pool kept for growth,
    /// half of it at most for conversations, of which 64 tokens are worth reading back.
    pub fn new(num_blocks: u32, block_tokens: u32, max_model_len: usize, proto: baton_proto::Config) -> Self {
        Self {
            num_blocks,
            block_tokens,
            max_running: 256,
            step_tokens: 2048,
            max_model_len,
            max_waiting: 1024,
            max_receiving: 128,
            max_inbound_blocks: 2 * num_blocks as usize,
            watermark_blocks: num_blocks as usize / 100,
            prefix_cache: true,
            max_retained_blocks: num_blocks as usize / 2,
            reuse_threshold: 64,
            reuse_timeout: Duration::from_secs(5),
            on_lost_kv: OnLostKv::Recompute,
            kv_timeout: Duration::from_secs(120),
            hold_first_token: false,
            push_at_end: false,
            vocab: u32::MAX,
            model: String::new(),
            proto,
            mutation: Mutation::NONE,
        }
    }

    /// # Errors
    /// The first thing that no engine can work under.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let sizes = [
            ("num_blocks", self.num_blocks as usize),
            ("block_tokens", self.block_tokens as usize),
            ("max_running", self.max_running),
            ("max_model_len", self.max_model_len),
            ("max_waiting", self.max_waiting),
            ("max_receiving", self.max_receiving),
            ("max_inbound_blocks", self.max_inbound_blocks),
        ];
        if let Some((name, _)) = sizes.into_iter().find(|(_, size)| *size == 0) {
            return Err(ConfigError::Zero(name));
        }
        let Self { step_tokens, max_running, watermark_blocks, num_blocks, .. } = *self;
        if step_tokens < max_running {
            return Err(ConfigError::StepTokens { step_tokens, max_running });
        }
        if watermark_blocks >= num_blocks as usize {
            return Err(ConfigError::Watermark { watermark_blocks, num_blocks });
        }
        let (units, block_units, block_tokens) =
            (self.proto.shape.units, self.proto.shape.block_units, self.block_tokens);
        if block_units == 0 || !block_tokens.is_multiple_of(block_units) {
            return Err(ConfigError::BlockUnits { block_units, block_tokens });
        }
        if num_blocks.checked_mul(block_units) != Some(units) {
            return Err(ConfigError::ProtoUnits { units, num_blocks, block_units });
        }
        Ok(())
    }

    /// Tokens that one hash of a chain covers; see [`PoolShape`](baton_types::PoolShape).
    pub fn unit_tokens(&self) -> usize {
        (self.block_tokens / self.proto.shape.block_units) as usize
    }

    /// The longest sequence that this engine can hold: the last token's KV is never computed, so it needs no place.
    pub fn max_len(&self) -> usize {
        self.max_model_len.min(self.num_blocks as usize * self.block_tokens as usize + 1)
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zero(name) => write!(f, "{name} must be at least 1"),
            Self::StepTokens { step_tokens, max_running } => {
                write!(f, "step_tokens ({step_tokens}) must be at least max_running ({max_running})")
            }
            Self::BlockUnits { block_units, block_tokens } => {
                write!(f, "a block of {block_tokens} tokens cannot be cut into {block_units} units")
            }
            Self::ProtoUnits { units, num_blocks, block_units } => {
                write!(f, "{num_blocks} blocks of {block_units} units are not the {units} of the protocol")
            }
            Self::Watermark { watermark_blocks, num_blocks } => {
                write!(f, "watermark_blocks ({watermark_blocks}) must be below num_blocks ({num_blocks})")
            }
        }
    }
}

impl std::error::Error for ConfigError {}
