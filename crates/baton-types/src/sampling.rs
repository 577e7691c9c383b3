//! How the next token is chosen.

/// Parameters of one sequence's sampling. `temperature` 0 is greedy; then nothing else matters.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    pub temperature: f32,
    /// Smallest set of tokens whose probabilities reach this sum; 1 keeps all.
    pub top_p: f32,
    /// The most likely so many tokens; 0 keeps all.
    pub top_k: u32,
    /// The randomness of a token is a function of this seed and the token's position alone, so that neither batching,
    /// preemption nor a hand-off changes it (I7).
    pub seed: u64,
}

impl SamplingParams {
    pub const GREEDY: Self = Self { temperature: 0.0, top_p: 1.0, top_k: 0, seed: 0 };

    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self::GREEDY
    }
}
