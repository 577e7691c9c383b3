//! The reference for conversations: what is retained, and what of it is granted to whom. It knows every client's true words, tenant
//! and salt, whatever the engines make of them: nobody is granted a unit that does not begin as his own prompt does (I13), nor for
//! longer than was said when it was retained (I6).

use std::collections::BTreeMap;
use std::time::Duration;

use baton_proto::{Held, Message};
use baton_types::{BlockHash, Time, TransferId};

use crate::node::Life;

#[derive(Debug, Default)]
pub(crate) struct RetentionBook {
    retained: BTreeMap<(Life, TransferId), Retention>,
    /// What each reading's prompt truly is.
    readers: BTreeMap<TransferId, Vec<BlockHash>>,
    /// By who is asked, and the reading.
    claims: BTreeMap<(Life, TransferId), TransferId>,
}

#[derive(Debug)]
struct Retention {
    chain: Vec<BlockHash>,
    /// By the clock of the engine that retains; none if each reader renews it.
    until: Option<Time>,
}

impl RetentionBook {
    /// An engine says that it retains the words of this chain.
    pub fn retains(&mut self, by: Life, retention: TransferId, chain: &[BlockHash], until: Option<Time>) {
        let before = self.retained.insert((by, retention), Retention { chain: chain.to_vec(), until });
        assert!(before.is_none(), "I4: {retention} is retained twice");
    }

    /// A request is to read something, if it is there.
    pub fn reads(&mut self, reading: TransferId, chain: &[BlockHash]) {
        self.readers.insert(reading, chain.to_vec());
    }

    /// Something is said, at this time of the speaker's clock.
    pub fn hear(&mut self, from: Life, to: Life, message: &Message, shown: Time) {
        match message {
            Message::Claim { transfer, held: Held::Retained(retention), .. } => {
                self.claims.insert((to, *transfer), *retention);
            }
            Message::Granted { transfer, first_unit, units, remaining, .. } => {
                let Some(retention) = self.claims.get(&(from, *transfer)) else { return };
                let held = self.retained.get(&(from, *retention));
                let held =
                    held.unwrap_or_else(|| panic!("I13: {from:?} grants {retention}, which is nothing"));
                let reader = self.readers.get(transfer).map_or(&[][..], Vec::as_slice);
                let common =
                    held.chain.iter().zip(reader).take_while(|(ours, theirs)| ours == theirs).count();
                let end = *first_unit as usize + units.len();
                assert!(
                    end <= common,
                    "I13: {transfer} is granted {end} units of {retention}, and shares {common}"
                );
                let ends = shown + Duration::from(*remaining);
                let fixed = held.until.is_none_or(|until| ends <= until);
                assert!(
                    fixed,
                    "I6: {transfer} may read {retention} until {ends:?}, which ends {:?}",
                    held.until
                );
            }
            _ => {}
        }
    }

    /// Ids under which a life retains or has retained something: anybody may have overheard them.
    pub fn known(&self, of: Life) -> impl Iterator<Item = TransferId> {
        let all = (of, TransferId(0))..=(of, TransferId(u128::MAX));
        self.retained.range(all).map(|((_, retention), _)| *retention)
    }
}

#[cfg(test)]
mod tests {
    use baton_types::{Millis, UnitId};

    use super::*;

    const HOLDER: Life = Life { node: 0, number: 1 };
    const READER: Life = Life { node: 1, number: 1 };
    const KEPT: TransferId = TransferId(7);
    const READING: TransferId = TransferId(8);

    fn hash(n: u8) -> BlockHash {
        BlockHash([n; 16])
    }

    /// The reader shares two units of three, of what is retained until 1 s.
    fn book() -> RetentionBook {
        let mut book = RetentionBook::default();
        book.retains(HOLDER, KEPT, &[hash(1), hash(2), hash(3)], Some(Time::from_millis(1_000)));
        book.reads(READING, &[hash(1), hash(2), hash(4)]);
        let chain = vec![hash(1), hash(2), hash(4)];
        let held = Held::Retained(KEPT);
        let claim = Message::Claim { transfer: READING, attempt: 0, first_unit: 0, chain, held };
        book.hear(READER, HOLDER, &claim, Time::ZERO);
        book
    }

    fn granted(units: u32, remaining_ms: u32) -> Message {
        Message::Granted {
            transfer: READING,
            attempt: 0,
            remaining: Millis(remaining_ms),
            first_unit: 0,
            units: (0..units).map(UnitId).collect(),
            complete: true,
            prefilled: None,
        }
    }

    #[test]
    fn what_both_begin_with_is_granted_until_its_end() {
        book().hear(HOLDER, READER, &granted(2, 400), Time::from_millis(600));
    }

    #[test]
    #[should_panic(expected = "I13: ")]
    fn one_unit_more_is_seen() {
        book().hear(HOLDER, READER, &granted(3, 400), Time::from_millis(600));
    }

    #[test]
    #[should_panic(expected = "I6: ")]
    fn a_millisecond_more_is_seen() {
        book().hear(HOLDER, READER, &granted(2, 401), Time::from_millis(600));
    }
}
