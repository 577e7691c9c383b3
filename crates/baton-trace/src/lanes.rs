//! Lanes of a timeline: which rows of the picture are in use.

use std::collections::BTreeSet;

/// Numbers for what goes on at the same time, the smallest free one first: as many lanes as there ever were requests at once, however
/// many come one after the other.
#[derive(Clone, Debug)]
pub struct Lanes {
    free: BTreeSet<u32>,
    next: u32,
}

impl Lanes {
    pub const fn from(first: u32) -> Self {
        Self { free: BTreeSet::new(), next: first }
    }

    pub fn take(&mut self) -> u32 {
        self.free.pop_first().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        })
    }

    pub fn give_back(&mut self, lane: u32) {
        let new = lane < self.next && self.free.insert(lane);
        assert!(new, "a lane is given back once");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_used_again() {
        let mut lanes = Lanes::from(1);
        assert_eq!([lanes.take(), lanes.take(), lanes.take()], [1, 2, 3]);
        lanes.give_back(3);
        lanes.give_back(1);
        assert_eq!([lanes.take(), lanes.take(), lanes.take()], [1, 3, 4]);
    }
}
