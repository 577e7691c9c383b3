//! Prepared descriptor lists of one region, ours or a peer's.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::transport::{Descriptor, ListId, TransportError, TransportLimits};

/// The lists over one region. Every descriptor in them lies inside the region: a post only has to check
/// indices.
#[derive(Debug)]
pub(crate) struct Lists {
    region_bytes: u64,
    max_lists: usize,
    max_descriptors: usize,
    lists: BTreeMap<ListId, Arc<[Descriptor]>>,
}

impl Lists {
    pub fn new(region_bytes: u64, limits: &TransportLimits) -> Self {
        Self {
            region_bytes,
            max_lists: limits.lists,
            max_descriptors: limits.descriptors,
            lists: BTreeMap::new(),
        }
    }

    pub fn prepare(&mut self, id: ListId, descriptors: &[Descriptor]) -> Result<ListId, TransportError> {
        if self.lists.len() >= self.max_lists {
            return Err(TransportError::Limit("prepared lists"));
        }
        if descriptors.len() > self.max_descriptors {
            return Err(TransportError::Limit("descriptors of a list"));
        }
        let inside = |d: &Descriptor| {
            d.offset.checked_add(u64::from(d.len)).is_some_and(|end| end <= self.region_bytes)
        };
        if !descriptors.iter().all(inside) {
            return Err(TransportError::OutOfBounds);
        }
        self.lists.insert(id, descriptors.into());
        Ok(id)
    }

    /// A list of another region, or one that was never prepared, is as far out of bounds as a wrong index.
    pub fn get(&self, id: ListId) -> Result<&Arc<[Descriptor]>, TransportError> {
        self.lists.get(&id).ok_or(TransportError::OutOfBounds)
    }
}

/// Hands out list ids: one sequence for local and remote lists, so that neither is ever taken for the other.
#[derive(Debug, Default)]
pub(crate) struct ListIds(u32);

impl ListIds {
    pub fn next(&mut self) -> Result<ListId, TransportError> {
        let id = ListId(self.0);
        self.0 = self.0.checked_add(1).ok_or(TransportError::Limit("list ids"))?;
        Ok(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_descriptors_inside_the_region_are_prepared() {
        let mut lists = Lists::new(100, &TransportLimits::default());
        let at = |offset, len| [Descriptor { offset, len }];
        assert!(lists.prepare(ListId(0), &at(0, 100)).is_ok());
        assert!(lists.prepare(ListId(1), &at(100, 0)).is_ok());
        for outside in [at(0, 101), at(100, 1), at(u64::MAX, 1), at(u64::MAX - 3, 8)] {
            assert_eq!(lists.prepare(ListId(2), &outside), Err(TransportError::OutOfBounds));
        }
        assert_eq!(lists.get(ListId(2)), Err(TransportError::OutOfBounds));
    }

    #[test]
    fn lists_are_bounded() {
        let limits = TransportLimits { lists: 1, descriptors: 1, ..TransportLimits::default() };
        let mut lists = Lists::new(100, &limits);
        let one = Descriptor { offset: 0, len: 1 };
        assert!(matches!(lists.prepare(ListId(0), &[one, one]), Err(TransportError::Limit(_))));
        assert!(lists.prepare(ListId(0), &[one]).is_ok());
        assert!(matches!(lists.prepare(ListId(1), &[one]), Err(TransportError::Limit(_))));
    }
}
