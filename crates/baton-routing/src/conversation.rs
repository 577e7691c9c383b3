//! Where the KV of conversations is: which decode engine retains it, under which id, until when.
//!
//! Positions and deadlines, never tensors or text (I12); losing the table costs time and nothing else. An entry is a hint
//! for finding KV, never a right to it (I13): what may be read is for the engine to decide that retains it, by the chain of
//! the new prompt, which is salted by tenant, model and cache salt. So a wrong key, be it guessed, stolen or stale, finds
//! KV that does not fit.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use baton_types::{Incarnation, Time, TransferId};

use crate::config::ConversationLimits;
use crate::engine_table::EngineKey;

/// A hash, by the driver, of tenant, model, cache salt and what tells one conversation from another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConversationKey(pub u128);

impl fmt::Debug for ConversationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "c{:x}", self.0)
    }
}

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Under which keys an earlier turn may have been stored, best first. What is beyond the limit is ignored.
    pub find: Vec<ConversationKey>,
    /// Under which key this one will be.
    pub store: ConversationKey,
}

/// What one engine retains of one conversation. Of a fixed size, so that the table's bytes are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub engine: EngineKey,
    pub incarnation: Incarnation,
    pub transfer: TransferId,
    pub tokens: u32,
    /// Earlier than the engine's own.
    pub deadline: Time,
}

/// Why an entry is no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dropped {
    /// A later turn was stored under the same key.
    Replaced,
    Expired,
    /// The table was full.
    Evicted,
    /// Another incarnation answers in its engine's place.
    Restarted,
    /// Its engine does not answer.
    Unreachable,
    /// An attempt to which it was given has failed.
    Failed,
}

impl Dropped {
    pub const ALL: [Self; 6] =
        [Self::Replaced, Self::Expired, Self::Evicted, Self::Restarted, Self::Unreachable, Self::Failed];
}

/// What has become of conversations so far, and how many there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConversationCounts {
    /// Requests that looked for an earlier turn.
    pub lookups: u64,
    /// Of them, those that were given one.
    pub found: u64,
    pub stored: u64,
    pub dropped: BTreeMap<Dropped, u64>,
    pub entries: usize,
    /// Memory of the entries, by estimate.
    pub bytes: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct ConversationTable {
    capacity: usize,
    entries: BTreeMap<ConversationKey, Entry>,
    deadlines: BTreeSet<(Time, ConversationKey)>,
    lookups: u64,
    found: u64,
    stored: u64,
    dropped: BTreeMap<Dropped, u64>,
}

impl ConversationTable {
    /// What one entry takes, with its deadline; nodes of B-trees may be half empty.
    pub const ENTRY_BYTES: usize =
        2 * (size_of::<(ConversationKey, Entry)>() + size_of::<(Time, ConversationKey)>());

    pub fn new(limits: &ConversationLimits) -> Self {
        Self {
            capacity: limits.entries.min(limits.bytes / Self::ENTRY_BYTES),
            entries: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            lookups: 0,
            found: 0,
            stored: 0,
            dropped: BTreeMap::new(),
        }
    }

    pub fn get(&self, key: ConversationKey) -> Option<&Entry> {
        self.entries.get(&key)
    }

    /// I11: where the table is full, whatever ends first goes, the new entry included.
    pub fn store(&mut self, key: ConversationKey, entry: Entry) {
        self.remove(key, Dropped::Replaced);
        self.stored += 1;
        self.deadlines.insert((entry.deadline, key));
        self.entries.insert(key, entry);
        while self.entries.len() > self.capacity
            && let Some((_, first)) = self.deadlines.first().copied()
        {
            self.remove(first, Dropped::Evicted);
        }
    }

    pub fn remove(&mut self, key: ConversationKey, why: Dropped) {
        if let Some(entry) = self.entries.remove(&key) {
            self.deadlines.remove(&(entry.deadline, key));
            *self.dropped.entry(why).or_default() += 1;
        }
    }

    pub fn expire(&mut self, now: Time) {
        while let Some((deadline, key)) = self.deadlines.first().copied()
            && deadline <= now
        {
            self.remove(key, Dropped::Expired);
        }
    }

    /// Forgets everything that the engine retains, or has retained before it was restarted.
    pub fn forget_engine(&mut self, engine: EngineKey, why: Dropped) {
        let of_it = self.entries.iter().filter(|(_, entry)| entry.engine == engine);
        let lost: Vec<ConversationKey> = of_it.map(|(key, _)| *key).collect();
        for key in lost {
            self.remove(key, why);
        }
    }

    pub fn looked_up(&mut self, found: bool) {
        self.lookups += 1;
        self.found += u64::from(found);
    }

    pub fn counts(&self) -> ConversationCounts {
        ConversationCounts {
            lookups: self.lookups,
            found: self.found,
            stored: self.stored,
            dropped: self.dropped.clone(),
            entries: self.entries.len(),
            bytes: self.entries.len() * Self::ENTRY_BYTES,
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (ConversationKey, &Entry)> {
        self.entries.iter().map(|(key, entry)| (*key, entry))
    }

    /// # Panics
    /// If the table does not agree with itself.
    pub fn check(&self, now: Time) {
        // I11
        assert!(self.entries.len() <= self.capacity, "more conversations than there may be");
        let deadlines: BTreeSet<_> = self.iter().map(|(key, entry)| (entry.deadline, key)).collect();
        assert_eq!(deadlines, self.deadlines);
        assert!(deadlines.first().is_none_or(|(at, _)| *at > now), "what has expired is forgotten");
        let gone: u64 = self.dropped.values().sum();
        assert_eq!(self.stored, gone + self.entries.len() as u64, "each entry is dropped once");
        assert!(self.found <= self.lookups);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(engine: u32, deadline_ms: u64) -> Entry {
        Entry {
            engine: EngineKey(engine),
            incarnation: Incarnation(1),
            transfer: TransferId(1),
            tokens: 64,
            deadline: Time::from_millis(deadline_ms),
        }
    }

    fn table(entries: usize, bytes: usize) -> ConversationTable {
        ConversationTable::new(&ConversationLimits { entries, bytes, ..ConversationLimits::default() })
    }

    fn keys(table: &ConversationTable) -> Vec<u128> {
        table.iter().map(|(key, _)| key.0).collect()
    }

    #[test]
    fn a_full_table_forgets_what_ends_first() {
        let mut table = table(2, usize::MAX);
        table.store(ConversationKey(1), entry(0, 30));
        table.store(ConversationKey(2), entry(0, 10));
        table.store(ConversationKey(3), entry(0, 20));
        assert_eq!(keys(&table), [1, 3]);
        table.store(ConversationKey(4), entry(0, 5));
        assert_eq!(keys(&table), [1, 3], "that may be the newest");
        assert_eq!(table.counts().dropped, BTreeMap::from([(Dropped::Evicted, 2)]));
        table.check(Time::ZERO);
    }

    #[test]
    fn bytes_bound_the_table_as_well() {
        let mut table = table(usize::MAX, 3 * ConversationTable::ENTRY_BYTES + 1);
        for key in 0..100 {
            table.store(ConversationKey(key), entry(0, 10 + key as u64));
        }
        assert_eq!(keys(&table), [97, 98, 99]);
        assert!(table.counts().bytes <= 3 * ConversationTable::ENTRY_BYTES);
        let mut none = self::table(0, usize::MAX);
        none.store(ConversationKey(1), entry(0, 10));
        assert_eq!(keys(&none), [0; 0]);
    }

    #[test]
    fn entries_end_with_time_with_their_engine_and_by_a_later_turn() {
        let mut table = table(9, usize::MAX);
        for (key, engine, deadline_ms) in [(1, 0, 10), (2, 1, 20), (3, 0, 30), (4, 1, 40)] {
            table.store(ConversationKey(key), entry(engine, deadline_ms));
        }
        table.expire(Time::from_millis(9));
        assert_eq!(keys(&table), [1, 2, 3, 4]);
        table.expire(Time::from_millis(20));
        assert_eq!(keys(&table), [3, 4]);
        table.store(ConversationKey(3), entry(1, 50));
        table.forget_engine(EngineKey(0), Dropped::Restarted);
        assert_eq!(keys(&table), [3, 4], "the later turn is on another engine");
        table.forget_engine(EngineKey(1), Dropped::Unreachable);
        assert_eq!(keys(&table), [0; 0]);
        let dropped = [(Dropped::Replaced, 1), (Dropped::Expired, 2), (Dropped::Unreachable, 2)];
        assert_eq!(table.counts().dropped, BTreeMap::from(dropped));
        table.check(Time::ZERO);
    }
}
