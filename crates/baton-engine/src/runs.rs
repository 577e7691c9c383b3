//! Sets of blocks that know which of them are neighbours.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A set of blocks, as the runs of neighbours that it consists of. Every call takes a time logarithmic in how many runs there are.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    /// From the first block of a run to its length.
    by_start: BTreeMap<u32, u32>,
    /// `(length, first block)`
    by_len: BTreeSet<(u32, u32)>,
    len: usize,
}

impl Runs {
    pub fn all(num_blocks: u32) -> Self {
        let mut runs = Self::default();
        runs.add(0..num_blocks);
        runs
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn contains(&self, id: u32) -> bool {
        self.around(id).is_some()
    }

    pub fn insert(&mut self, id: u32) {
        let (before, after) = (id.checked_sub(1).and_then(|id| self.around(id)), self.around(id + 1));
        let start = before.as_ref().map_or(id, |run| run.start);
        let end = after.as_ref().map_or(id + 1, |run| run.end);
        before.iter().chain(&after).for_each(|run| self.remove(run));
        self.add(start..end);
    }

    /// Takes `count` blocks, or all if there are fewer: those from `next` on, if they are there, and for the rest as few runs as
    /// can be.
    pub fn take(&mut self, count: usize, next: Option<u32>) -> Vec<u32> {
        let mut ids = Vec::with_capacity(count);
        ids.extend(next.map(|next| self.take_at(next, count)).into_iter().flatten());
        while ids.len() < count
            && let Some(start) = self.fitting(count - ids.len())
        {
            ids.extend(self.take_at(start, count - ids.len()));
        }
        ids
    }

    /// Takes `next`, or else the block in the middle of the longest run: so that whoever grows there finds room behind it, and so does
    /// whoever grows towards it.
    pub fn take_next(&mut self, next: u32) -> Option<u32> {
        let middle = || self.by_len.last().map(|(len, start)| start + len / 2);
        let id = if self.contains(next) { next } else { middle()? };
        self.take_at(id, 1).next()
    }

    /// Takes a block and those right behind it, at most `most`; none if it is not there.
    pub fn take_at(&mut self, id: u32, most: usize) -> Range<u32> {
        let Some(run) = self.around(id).filter(|_| most > 0) else { return id..id };
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        let taken = id..run.end.min(id.saturating_add(most));
        self.remove(&run);
        self.add(run.start..taken.start);
        self.add(taken.end..run.end);
        taken
    }

    /// Where the shortest run begins that has `count` blocks, or else the longest.
    fn fitting(&self, count: usize) -> Option<u32> {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let run = self.by_len.range((count, 0)..).next().or_else(|| self.by_len.last());
        run.map(|(_, start)| *start)
    }

    /// The run that a block is in.
    fn around(&self, id: u32) -> Option<Range<u32>> {
        let (&start, &len) = self.by_start.range(..=id).next_back()?;
        (id < start + len).then_some(start..start + len)
    }

    fn add(&mut self, run: Range<u32>) {
        if !run.is_empty() {
            self.by_start.insert(run.start, run.len() as u32);
            self.by_len.insert((run.len() as u32, run.start));
            self.len += run.len();
        }
    }

    fn remove(&mut self, run: &Range<u32>) {
        self.by_start.remove(&run.start);
        self.by_len.remove(&(run.len() as u32, run.start));
        self.len -= run.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_join_and_part() {
        let mut runs = Runs::default();
        for id in [5, 3, 9, 4, 0] {
            runs.insert(id);
        }
        assert_eq!(runs.by_start.iter().collect::<Vec<_>>(), [(&0, &1), (&3, &3), (&9, &1)]);
        assert_eq!((runs.len(), runs.contains(2), runs.contains(5)), (5, false, true));
        assert_eq!(runs.take_at(4, 1), 4..5);
        assert_eq!(runs.take_at(4, 1), 4..4);
        assert_eq!(runs.by_len.iter().collect::<Vec<_>>(), [&(1, 0), &(1, 3), &(1, 5), &(1, 9)]);
    }

    #[test]
    fn the_shortest_run_that_is_long_enough_is_taken_or_else_the_longest() {
        let mut runs = Runs::default();
        [0..4, 10..12, 20..23].into_iter().for_each(|run| runs.add(run));
        assert_eq!(runs.take(3, None), [20, 21, 22]);
        assert_eq!(runs.take(5, None), [0, 1, 2, 3, 10]);
        assert_eq!(runs.take(9, Some(11)), [11]);
        assert_eq!((runs.len(), runs.take_next(7)), (0, None));
    }
}
