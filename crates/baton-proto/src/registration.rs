//! Destinations that came before the prefill leg they belong to: either may come first.

use std::collections::BTreeMap;

use baton_types::{EngineId, TransferId};

/// A destination that waits for the source to know of the transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Registration {
    pub peer: EngineId,
    pub wants: Wants,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wants {
    /// Push: that its units from there on are claimed.
    Claim { first_unit: usize },
    /// Early pull: to hear that it can claim.
    Offer,
}

#[derive(Clone, Debug)]
pub(crate) struct Registrations {
    waiting: BTreeMap<TransferId, Registration>,
    limit: usize,
}

impl Registrations {
    pub fn new(limit: usize) -> Self {
        Self { waiting: BTreeMap::new(), limit }
    }

    /// False if the table is full, or another peer registered under this transfer.
    pub fn insert(&mut self, transfer: TransferId, registration: Registration) -> bool {
        match self.waiting.get(&transfer) {
            Some(known) => known.peer == registration.peer,
            None if self.waiting.len() >= self.limit => false,
            None => {
                self.waiting.insert(transfer, registration);
                true
            }
        }
    }

    pub fn take(&mut self, transfer: TransferId) -> Option<Registration> {
        self.waiting.remove(&transfer)
    }

    /// Takes it only if it is this peer's; whether it was.
    pub fn withdraw(&mut self, transfer: TransferId, peer: &EngineId) -> bool {
        let is_theirs = self.waiting.get(&transfer).is_some_and(|known| known.peer == *peer);
        if is_theirs {
            self.waiting.remove(&transfer);
        }
        is_theirs
    }

    /// Takes all of a lost peer's, and says which they were.
    pub fn take_of(&mut self, peer: &EngineId) -> Vec<TransferId> {
        let gone: Vec<_> = self.waiting.iter().filter(|(_, r)| r.peer == *peer).map(|(id, _)| *id).collect();
        for id in &gone {
            self.waiting.remove(id);
        }
        gone
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }
}
