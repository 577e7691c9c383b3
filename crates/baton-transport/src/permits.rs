//! What each peer may do with our memory.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use baton_types::EngineId;

use crate::transport::{Descriptor, TransportError, TransportLimits};

/// Chosen by whoever permits; one permit of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PermitId(pub u64);

/// What a peer's post does with our memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
}

/// The permits of one agent, shared between whoever gives them and the thread that moves bytes.
///
/// A post of a peer is let through if every byte it touches is covered by the permits of that peer, by one or
/// by several together. Two permits may cover the same bytes: each is taken back on its own. They belong to
/// whoever gave them and not to a path: the end of a path takes none back.
///
/// Both calls have effect when they return. A transport holds the lock while it touches memory for a peer, for
/// a slice at a time, so after [`Permits::forbid`] nothing of the peer's lands under that permit, nor is any
/// byte read (I3, I13).
#[derive(Clone)]
pub struct Permits(Arc<Shared>);

struct Shared {
    enforced: bool,
    max_permits: usize,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    peers: BTreeMap<EngineId, PeerPermits>,
    /// How many permits were taken back: while it stays the same, what was covered is.
    taken_back: u64,
}

impl Permits {
    pub(crate) fn new(limits: &TransportLimits) -> Self {
        Self(Arc::new(Shared {
            enforced: limits.enforce_permits,
            max_permits: limits.permits,
            table: Mutex::default(),
        }))
    }

    /// Lets `peer` read, or write, these ranges of our region until [`Permits::forbid`].
    ///
    /// # Errors
    /// If the peer has a permit of this id already, or too many. Nothing is permitted then, so the peer's posts
    /// are refused.
    pub fn permit(
        &self,
        peer: &EngineId,
        id: PermitId,
        access: Access,
        ranges: impl IntoIterator<Item = Descriptor>,
    ) -> Result<(), TransportError> {
        let peers = &mut self.lock().peers;
        let known: usize = peers.values().map(|peer| peer.permits.len()).sum();
        if known >= self.0.max_permits {
            return Err(TransportError::Limit("permits"));
        }
        let permits = peers.entry(peer.clone()).or_default();
        if permits.permits.contains_key(&id) {
            return Err(TransportError::Limit("permits of one id"));
        }
        let ranges = merged(ranges);
        let coverage = permits.coverage_mut(access);
        ranges.iter().for_each(|&(begin, end)| coverage.add(begin, end));
        permits.permits.insert(id, (access, ranges));
        Ok(())
    }

    /// Takes a permit back; nothing happens if there is none of this id.
    pub fn forbid(&self, peer: &EngineId, id: PermitId) {
        let mut table = self.lock();
        let Some(permits) = table.peers.get_mut(peer) else { return };
        let Some((access, ranges)) = permits.permits.remove(&id) else { return };
        let coverage = permits.coverage_mut(access);
        ranges.iter().for_each(|&(begin, end)| coverage.remove(begin, end));
        if permits.permits.is_empty() {
            table.peers.remove(peer);
        }
        table.taken_back += 1;
    }

    /// Whether posts without a permit are refused.
    pub fn is_enforced(&self) -> bool {
        self.0.enforced
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // A panic elsewhere while the table was held is one while bytes were moved, which leaves it whole.
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds every permit as it is for as long as the value lives.
    pub(crate) fn hold(&self) -> HeldPermits<'_> {
        HeldPermits(self.0.enforced.then(|| self.lock()))
    }
}

impl fmt::Debug for Permits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Permits(enforced: {})", self.0.enforced)
    }
}

/// The permits at one moment, which lasts as long as this value.
pub(crate) struct HeldPermits<'a>(Option<MutexGuard<'a, Table>>);

impl HeldPermits<'_> {
    /// Whether `peer` may do that with every byte of the ranges; always, where permits are not enforced.
    pub fn cover(
        &self,
        peer: &EngineId,
        access: Access,
        ranges: impl IntoIterator<Item = Descriptor>,
    ) -> bool {
        let Some(table) = &self.0 else { return true };
        let coverage = table.peers.get(peer).map(|permits| permits.coverage(access));
        ranges.into_iter().filter(|range| range.len > 0).all(|range| {
            let end = range.offset.saturating_add(u64::from(range.len));
            coverage.is_some_and(|coverage| coverage.covers(range.offset, end))
        })
    }

    /// What was covered at an equal age is covered now.
    pub fn age(&self) -> u64 {
        self.0.as_ref().map_or(0, |table| table.taken_back)
    }
}

#[derive(Debug, Default)]
struct PeerPermits {
    permits: BTreeMap<PermitId, (Access, Vec<(u64, u64)>)>,
    read: Coverage,
    write: Coverage,
}

impl PeerPermits {
    fn coverage(&self, access: Access) -> &Coverage {
        match access {
            Access::Read => &self.read,
            Access::Write => &self.write,
        }
    }

    fn coverage_mut(&mut self, access: Access) -> &mut Coverage {
        match access {
            Access::Read => &mut self.read,
            Access::Write => &mut self.write,
        }
    }
}

/// Begin and end of each range, neighbours put together.
fn merged(ranges: impl IntoIterator<Item = Descriptor>) -> Vec<(u64, u64)> {
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for Descriptor { offset, len } in ranges {
        let end = offset.saturating_add(u64::from(len));
        match merged.last_mut() {
            Some(last) if last.1 == offset => last.1 = end,
            _ => merged.push((offset, end)),
        }
    }
    merged.retain(|(begin, end)| begin < end);
    merged
}

/// How many ranges cover each byte: from each key on, as many as the value says, up to the next key.
#[derive(Debug, Default)]
struct Coverage(BTreeMap<u64, u32>);

impl Coverage {
    fn at(&self, byte: u64) -> u32 {
        self.0.range(..=byte).next_back().map_or(0, |(_, &count)| count)
    }

    /// Makes `byte` a key, without a change of meaning.
    fn split(&mut self, byte: u64) {
        let count = self.at(byte);
        self.0.entry(byte).or_insert(count);
    }

    /// Takes a key away that says nothing.
    fn join(&mut self, byte: u64) {
        let before = self.0.range(..byte).next_back().map_or(0, |(_, &count)| count);
        if self.0.get(&byte) == Some(&before) {
            self.0.remove(&byte);
        }
    }

    fn change(&mut self, begin: u64, end: u64, change: impl Fn(u32) -> u32) {
        self.split(begin);
        self.split(end);
        self.0.range_mut(begin..end).for_each(|(_, count)| *count = change(*count));
        self.join(begin);
        self.join(end);
    }

    fn add(&mut self, begin: u64, end: u64) {
        self.change(begin, end, |count| count + 1);
    }

    /// # Panics
    /// If the range was not added.
    fn remove(&mut self, begin: u64, end: u64) {
        self.change(begin, end, |count| {
            count.checked_sub(1).expect("a range is removed as often as it was added")
        });
    }

    fn covers(&self, begin: u64, end: u64) -> bool {
        self.at(begin) > 0 && self.0.range(begin..end).all(|(_, &count)| count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_types::EngineName;
    use proptest::prelude::*;

    fn engine(name: &str) -> EngineId {
        EngineId::new(EngineName::new(name).unwrap(), 1)
    }

    fn permits(max: usize) -> Permits {
        Permits::new(&TransportLimits { enforce_permits: true, permits: max, ..TransportLimits::default() })
    }

    fn at(offset: u64, len: u32) -> [Descriptor; 1] {
        [Descriptor { offset, len }]
    }

    #[test]
    fn a_permit_is_one_peer_s_and_one_way() {
        let permits = permits(8);
        let (a, b) = (engine("a"), engine("b"));
        let two = [Descriptor { offset: 10, len: 10 }, Descriptor { offset: 20, len: 10 }];
        permits.permit(&a, PermitId(1), Access::Write, two).unwrap();
        let covered = |peer, access, range| permits.hold().cover(peer, access, range);
        assert!(covered(&a, Access::Write, at(12, 15)), "over both");
        assert!(covered(&a, Access::Write, at(12, 0)) && covered(&b, Access::Write, at(99, 0)));
        assert!(!covered(&a, Access::Write, at(9, 2)) && !covered(&a, Access::Write, at(29, 2)));
        assert!(!covered(&a, Access::Write, at(u64::MAX - 1, 9)));
        assert!(!covered(&a, Access::Read, at(12, 1)) && !covered(&b, Access::Write, at(12, 1)));
        permits.forbid(&b, PermitId(1));
        assert!(covered(&a, Access::Write, at(12, 1)));
        permits.forbid(&a, PermitId(1));
        permits.forbid(&a, PermitId(1));
        assert!(!covered(&a, Access::Write, at(12, 1)));
        assert!(permits.lock().peers.is_empty(), "nothing is left");
    }

    #[test]
    fn permits_are_bounded_and_ids_unique() {
        let permits = permits(2);
        let a = engine("a");
        permits.permit(&a, PermitId(1), Access::Read, at(0, 4)).unwrap();
        assert!(permits.permit(&a, PermitId(1), Access::Read, at(0, 9)).is_err());
        assert!(!permits.hold().cover(&a, Access::Read, at(5, 1)));
        permits.permit(&engine("b"), PermitId(2), Access::Read, at(0, 4)).unwrap();
        assert!(matches!(
            permits.permit(&a, PermitId(3), Access::Read, at(0, 4)),
            Err(TransportError::Limit(_))
        ));
    }

    proptest! {
        #[test]
        fn coverage_counts_each_byte(
            ranges in proptest::collection::vec((0u64..60, 1u64..20, any::<bool>()), 0..24),
            probe in (0u64..80, 1u64..10),
        ) {
            let mut coverage = Coverage::default();
            let mut counts = [0u32; 100];
            for &(begin, len, _) in &ranges {
                coverage.add(begin, begin + len);
                counts[begin as usize..(begin + len) as usize].iter_mut().for_each(|count| *count += 1);
            }
            for &(begin, len, _) in ranges.iter().filter(|range| range.2) {
                coverage.remove(begin, begin + len);
                counts[begin as usize..(begin + len) as usize].iter_mut().for_each(|count| *count -= 1);
            }
            let (begin, end) = (probe.0, probe.0 + probe.1);
            let expected = counts[begin as usize..end as usize].iter().all(|&count| count > 0);
            prop_assert_eq!(coverage.covers(begin, end), expected);
            for &(begin, len, _) in ranges.iter().filter(|range| !range.2) {
                coverage.remove(begin, begin + len);
            }
            prop_assert!(coverage.0.is_empty());
        }
    }
}
