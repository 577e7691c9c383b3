//! Real models on the CPU.

use std::sync::Arc;

use baton_engine::{Batch, BatchEntry, ModelRunner, RunnerError, StepResult};
use baton_types::{KvDtype, KvLayout};

use crate::kernels::simd::Isa;
use crate::kv_memory::KvMemory;
use crate::models::CpuModel;
use crate::models::decoder::Decoder;
use crate::models::pass::{MAX_ROWS, Pass};
use crate::sampler;

/// Runs a [`CpuModel`] over a KV pool.
///
/// Its results are the same bits for every chunking, batch, thread count and instruction set, block size and number of ranks
/// (I7). The pool's element type does matter.
#[derive(Debug)]
pub struct CpuRunner {
    decoder: Decoder,
}

/// Why there can be no runner.
#[derive(Debug, thiserror::Error)]
pub enum CpuRunnerError {
    #[error("the KV pool is laid out as {found:?}, and the model needs {wanted:?}")]
    Layout { found: Box<KvLayout>, wanted: Box<KvLayout> },
}

impl CpuRunner {
    /// `threads` in all, the calling one included; at least one.
    ///
    /// # Errors
    /// If the pool's layout is not [`CpuModel::kv_layout`] for its block size, ranks and element type, which is a float.
    pub fn new(model: Arc<CpuModel>, memory: KvMemory, threads: usize) -> Result<Self, CpuRunnerError> {
        Self::with_isa(model, memory, threads, Isa::best())
    }

    /// The same with kernels for a given instruction set.
    ///
    /// # Panics
    /// If the processor lacks it.
    pub fn with_isa(
        model: Arc<CpuModel>,
        memory: KvMemory,
        threads: usize,
        isa: Isa,
    ) -> Result<Self, CpuRunnerError> {
        let KvLayout { block_tokens, ranks, dtype, .. } = *memory.layout();
        let dtype = if dtype == KvDtype::U8 { KvDtype::F32 } else { dtype };
        let wanted = KvLayout { ranks, dtype, ..model.kv_layout(block_tokens) };
        if *memory.layout() != wanted {
            let found = Box::new(memory.layout().clone());
            return Err(CpuRunnerError::Layout { found, wanted: Box::new(wanted) });
        }
        Ok(Self { decoder: Decoder::new(model, memory, isa, threads) })
    }

    pub fn model(&self) -> &CpuModel {
        self.decoder.model()
    }

    pub fn memory(&self) -> &KvMemory {
        self.decoder.memory()
    }

    /// Computes `batch`, and gives each sampling entry and its logits to `on_logits`, in the order of the entries.
    pub fn run_logits(
        &mut self,
        batch: &Batch,
        mut on_logits: impl FnMut(&BatchEntry, &[f32]),
    ) -> Result<(), RunnerError> {
        batch.entries.iter().try_for_each(|entry| self.check(entry))?;
        for pass in Pass::cut(batch, MAX_ROWS) {
            let sampled = pass.sampled();
            for (&(_, entry), logits) in sampled.iter().zip(self.decoder.forward(&pass, batch)) {
                on_logits(&batch.entries[entry], logits);
            }
        }
        Ok(())
    }

    fn check(&self, entry: &BatchEntry) -> Result<(), RunnerError> {
        let config = self.model().config();
        if entry.end() > config.max_positions {
            let (seq, max) = (entry.seq, config.max_positions);
            return Err(RunnerError(format!(
                "{seq:?} reaches position {}, the model has {max}",
                entry.end()
            )));
        }
        if let Some(token) = entry.tokens.iter().find(|token| token.0 as usize >= config.vocab) {
            return Err(RunnerError(format!("{:?} has token {token:?}, outside the vocabulary", entry.seq)));
        }
        self.memory().check_entry(entry)
    }
}

impl ModelRunner for CpuRunner {
    fn run(&mut self, batch: &Batch) -> Result<StepResult, RunnerError> {
        let mut sampled = Vec::new();
        self.run_logits(batch, |entry, logits| {
            if let Some(params) = &entry.sample {
                sampled.push((entry.seq, sampler::sample(logits, params, entry.end() as u32)));
            }
        })?;
        Ok(StepResult { step: batch.step, sampled })
    }
}
