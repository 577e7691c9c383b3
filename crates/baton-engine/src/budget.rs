//! What one step may still take.

/// Tokens and sequences left of one step's limits.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    tokens: usize,
    entries: usize,
}

impl Budget {
    pub fn new(tokens: usize, entries: usize) -> Self {
        Self { tokens, entries }
    }

    /// Takes up to `wanted` tokens for one more sequence; how many it got. None if the step is full.
    pub fn take(&mut self, wanted: usize) -> Option<usize> {
        if self.entries == 0 || self.tokens == 0 {
            return None;
        }
        let taken = wanted.min(self.tokens);
        self.entries -= 1;
        self.tokens -= taken;
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_ends_at_either_limit() {
        let mut budget = Budget::new(10, 3);
        assert_eq!(budget.take(4), Some(4));
        assert_eq!(budget.take(9), Some(6));
        assert_eq!(budget.take(1), None, "no tokens left");
        let mut budget = Budget::new(10, 1);
        assert_eq!(budget.take(1), Some(1));
        assert_eq!(budget.take(1), None, "no entries left");
    }
}
