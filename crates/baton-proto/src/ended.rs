//! The transfers that are over, so that late words about them are understood. Bounded: the oldest are forgotten (I11).

use std::collections::{BTreeSet, VecDeque};

use baton_types::TransferId;

#[derive(Clone, Debug)]
pub(crate) struct Ended {
    known: BTreeSet<TransferId>,
    oldest_first: VecDeque<TransferId>,
    limit: usize,
}

impl Ended {
    pub fn new(limit: usize) -> Self {
        Self { known: BTreeSet::new(), oldest_first: VecDeque::new(), limit }
    }

    pub fn insert(&mut self, transfer: TransferId) {
        if !self.known.insert(transfer) {
            return;
        }
        self.oldest_first.push_back(transfer);
        if self.oldest_first.len() > self.limit
            && let Some(oldest) = self.oldest_first.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    pub fn contains(&self, transfer: TransferId) -> bool {
        self.known.contains(&transfer)
    }

    pub fn len(&self) -> usize {
        self.known.len()
    }
}
