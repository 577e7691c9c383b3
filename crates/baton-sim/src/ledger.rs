//! The reference for units: who was given which of whose, as anybody could write down who hears every word between the engines.
//! It knows no leases, no timers and no strategies; it only holds everybody to what was said (I3, I5).

use std::collections::{BTreeMap, BTreeSet};

use baton_proto::Message;
use baton_types::{TransferId, UnitId};

use crate::node::Life;

/// Last words of a life that it is still held to.
const REMEMBERED: usize = 8;

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// By the owner of the units and the transfer: who may touch them.
    grants: BTreeMap<(Life, TransferId), Grant>,
    /// Transfers of which a life has said that it has nothing to do with them any more, the latest last.
    last_words: BTreeMap<Life, Vec<TransferId>>,
    /// Reads that got bytes from a source that was not bound to keep them any more: by whom, and of which transfer.
    stale: BTreeSet<(Life, TransferId)>,
    /// Transfers that were granted, with the owner of the units and its peer: a stranger may have overheard them.
    parties: BTreeMap<TransferId, (Life, Life)>,
}

#[derive(Debug)]
struct Grant {
    to: Life,
    units: BTreeSet<UnitId>,
}

impl Ledger {
    /// Something is said; the transfer whose units the speaker gives back with it, if it does.
    pub fn hear(&mut self, from: Life, to: Life, message: &Message) -> Option<TransferId> {
        match message {
            Message::Granted { transfer, units, .. } => {
                self.parties.insert(*transfer, (from, to));
                let grant = self.grants.entry((from, *transfer));
                let grant = grant.or_insert(Grant { to, units: BTreeSet::new() });
                assert!(grant.to == to, "I3: {transfer} is granted to two peers");
                grant.units.extend(units);
            }
            // From a reader, which has nothing to tell; a writer says which token follows, and its last bytes may still move.
            Message::Done { transfer, prefilled: None, .. } => {
                let stale = self.stale.contains(&(from, *transfer));
                assert!(!stale, "I3: {from:?} keeps what it read of {transfer} after its lease");
                self.end(to, from, *transfer);
            }
            Message::DoneAck { transfer } => {
                self.end(from, to, *transfer);
            }
            Message::Abort { transfer } | Message::Aborted { transfer } => {
                if matches!(message, Message::Aborted { .. }) {
                    // An answer to somebody who has no part in the transfer changes nothing between those who have.
                    if self.parties.get(transfer).is_none_or(|pair| [pair.0, pair.1].contains(&to)) {
                        self.remember(from, *transfer);
                    }
                    self.end(from, to, *transfer);
                }
                return self.end(to, from, *transfer).then_some(*transfer);
            }
            _ => {}
        }
        None
    }

    /// What `owner` gave to that life under this transfer is given back, if there was anything.
    fn end(&mut self, owner: Life, to: Life, transfer: TransferId) -> bool {
        let given = self.grants.get(&(owner, transfer)).is_some_and(|grant| grant.to == to);
        given && self.grants.remove(&(owner, transfer)).is_some()
    }

    fn remember(&mut self, life: Life, transfer: TransferId) {
        let words = self.last_words.entry(life).or_default();
        words.retain(|known| *known != transfer);
        words.push(transfer);
        if words.len() > REMEMBERED {
            words.remove(0);
        }
    }

    /// The transfers under which `owner` has given all these units to that life.
    pub fn transfers_of(&self, owner: Life, who: Life, units: &[UnitId]) -> Vec<TransferId> {
        let all = (owner, TransferId(0))..=(owner, TransferId(u128::MAX));
        let of = |grant: &Grant| grant.to == who && units.iter().all(|unit| grant.units.contains(unit));
        self.grants.range(all).filter(|(_, grant)| of(grant)).map(|((_, transfer), _)| *transfer).collect()
    }

    /// A byte was read that its source was not bound to keep.
    pub fn read_late(&mut self, reader: Life, transfers: &[TransferId]) {
        self.stale.extend(transfers.iter().map(|transfer| (reader, *transfer)));
    }

    pub fn last_words(&self, life: Life) -> &[TransferId] {
        self.last_words.get(&life).map_or(&[], Vec::as_slice)
    }

    /// Transfers that this life takes part in.
    pub fn transfers_with(&self, life: Life) -> Vec<TransferId> {
        let with = |(_, (one, other)): &(&TransferId, &(Life, Life))| [*one, *other].contains(&life);
        self.parties.iter().filter(with).map(|(transfer, _)| *transfer).collect()
    }
}

#[cfg(test)]
mod tests {
    use baton_types::Millis;

    use super::*;

    const A: Life = Life { node: 0, number: 1 };
    const B: Life = Life { node: 1, number: 1 };
    const T: TransferId = TransferId(7);

    fn granted() -> Message {
        let (units, remaining) = (vec![UnitId(3), UnitId(4)], Millis(9));
        Message::Granted {
            transfer: T,
            attempt: 0,
            remaining,
            first_unit: 0,
            units,
            complete: true,
            prefilled: None,
        }
    }

    fn may_touch(ledger: &Ledger, unit: u32) -> bool {
        !ledger.transfers_of(A, B, &[UnitId(unit)]).is_empty()
    }

    #[test]
    fn a_block_may_be_touched_from_the_grant_to_the_last_word() {
        let mut ledger = Ledger::default();
        assert!(!may_touch(&ledger, 3));
        ledger.hear(A, B, &granted());
        assert!(may_touch(&ledger, 3) && !may_touch(&ledger, 5));
        assert!(ledger.transfers_of(B, A, &[UnitId(3)]).is_empty());
        // The owner wants it back: that alone ends nothing.
        assert_eq!(ledger.hear(A, B, &Message::Abort { transfer: T }), None);
        assert!(may_touch(&ledger, 3));
        assert_eq!(ledger.hear(B, A, &Message::Aborted { transfer: T }), Some(T));
        assert!(!may_touch(&ledger, 3));
        assert_eq!((ledger.last_words(B), ledger.last_words(A)), (&[T][..], &[][..]));
    }

    #[test]
    #[should_panic(expected = "is granted to two peers")]
    fn a_second_peer_is_seen() {
        let mut ledger = Ledger::default();
        ledger.hear(A, B, &granted());
        ledger.hear(A, Life { node: 2, number: 1 }, &granted());
    }
}
