//! A set of block keys, as ranges: traces number new blocks in a row, and have millions of them.

use std::collections::BTreeMap;

use crate::prompt::Run;

#[derive(Debug, Default)]
pub(super) struct KeySet {
    /// First key to the one behind the last; ranges neither touch nor overlap.
    ranges: BTreeMap<u64, u64>,
}

impl KeySet {
    /// Adds a run and says how many of its keys were there.
    pub fn insert(&mut self, run: Run) -> u64 {
        let (mut start, mut end) = (run.first, run.first.saturating_add(u64::from(run.blocks)));
        let mut known = 0;
        // All ranges that overlap or touch: the last that begins at or before `end`, and backwards.
        while let Some((&from, &to)) = self.ranges.range(..=end).next_back() {
            if to < start {
                break;
            }
            known +=
                to.min(run.first.saturating_add(u64::from(run.blocks))).saturating_sub(from.max(run.first));
            (start, end) = (start.min(from), end.max(to));
            self.ranges.remove(&from);
        }
        self.ranges.insert(start, end);
        known
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_set(runs in prop::collection::vec((0_u64..60, 1_u32..12), 0..40)) {
            let (mut set, mut model) = (KeySet::default(), BTreeSet::new());
            for (first, blocks) in runs {
                let known = (first..first + u64::from(blocks)).filter(|key| !model.insert(*key)).count();
                prop_assert_eq!(set.insert(Run { first, blocks }), known as u64);
            }
        }
    }
}
