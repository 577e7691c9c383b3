//! KV of a conversation that this side keeps for its next turn: many peers may read it, until an end that is fixed from the start.
//!
//! A retention gives nobody a right. Each reader's claim becomes a lease of its own, over the units that hold what both chains
//! have in common, and never beyond the retention's end; so a retention can be revoked at any moment (I3: what is being read stays
//! with its leases), and the reader that comes too late is declined.

use std::collections::BTreeMap;

use baton_types::{BlockHash, EngineId, Mutant, Time, TransferId, UnitId};

use crate::action::Event;
use crate::endpoint::Endpoint;
use crate::grant::Claim;
use crate::lease::Lease;
use crate::order::PULL;
use crate::timer::Reason;

#[derive(Clone, Debug)]
pub(crate) struct Retention {
    /// Full units only: both have one entry for each.
    chain: Vec<BlockHash>,
    units: Vec<UnitId>,
    since: Time,
    pub until: Time,
}

impl Endpoint {
    pub(crate) fn on_retain(
        &mut self,
        now: Time,
        retention: TransferId,
        chain: Vec<BlockHash>,
        units: Vec<UnitId>,
    ) {
        assert_eq!(chain.len(), units.len(), "one hash for each unit");
        assert!(!self.retentions.contains_key(&retention), "I4: each retention is named once");
        if self.retentions.len() >= self.config.limits.retentions {
            // The one that ends first gives way (I11).
            let oldest =
                self.retentions.iter().min_by_key(|(id, held)| (held.until, **id)).map(|(id, _)| *id);
            self.lapse(oldest.expect("the limit is not zero"));
        }
        let until = now + self.config.retain_ttl;
        self.retentions.insert(retention, Retention { chain, units, since: now, until });
        self.timers.set(Reason::Retention(retention), until);
    }

    /// The engine needs the room. Whoever reads already is not disturbed.
    pub(crate) fn on_revoke(&mut self, retention: TransferId) {
        self.timers.clear(&Reason::Retention(retention));
        self.retentions.remove(&retention);
    }

    /// Its time is over.
    pub(crate) fn lapse(&mut self, retention: TransferId) {
        self.on_revoke(retention);
        self.event(Event::Lapsed { retention });
    }

    /// Makes a claim on a retention a lease of what the chains have in common; false if that is nothing new. A retention that is over,
    /// one that holds other tokens, and one that never was are the same to whoever asks (I13).
    pub(crate) fn lend(
        &mut self,
        now: Time,
        peer: &EngineId,
        transfer: TransferId,
        retention: TransferId,
        claim: &Claim,
    ) -> bool {
        if self.refuse_lease(transfer) {
            return false;
        }
        let (ttl, renewable) = (self.config.retain_ttl, self.config.retain_renewable);
        let renewed = renewable || self.config.mutation.is(Mutant::RetentionRenewedOnAccess);
        let beyond = self.config.mutation.is(Mutant::GrantBeyondCommonPrefix);
        let held = self.retentions.get_mut(&retention).filter(|held| now < held.until);
        let Some(held) = held else { return false };
        let agrees = |(ours, theirs): &(&BlockHash, &BlockHash)| ours == theirs;
        let mut common = held.chain.iter().zip(&claim.chain).take_while(agrees).count();
        if claim.first_unit >= common {
            return false;
        }
        if beyond {
            common = held.chain.len().min(claim.chain.len());
        }
        if renewed {
            held.until = now + ttl;
            self.timers.set(Reason::Retention(retention), held.until);
        }
        let units = held.units[claim.first_unit..common].to_vec();
        let chain = if beyond { claim.chain[..common].to_vec() } else { held.chain[..common].to_vec() };
        let lease = Lease::lent(&PULL, peer.clone(), chain, claim.first_unit, units.clone(), held.until);
        self.leases.insert(transfer, lease);
        self.event(Event::Lent { retention, transfer, units });
        true
    }

    /// A retention's end is fixed when it begins.
    pub(crate) fn check_retentions(&self) {
        for held in self.retentions.values() {
            let longest = held.since + self.config.retain_ttl;
            assert!(held.until <= longest || self.config.retain_renewable, "I6: a retention was renewed");
        }
    }
}

pub(crate) type Retentions = BTreeMap<TransferId, Retention>;

#[cfg(test)]
mod tests {
    use baton_types::{EngineName, KvDtype, PoolShape};

    use super::*;
    use crate::action::{ConnId, Input, Output};
    use crate::codec;
    use crate::config::Config;
    use crate::message::{Compat, Decline, Held, Message, VERSION};

    const TRANSFER: TransferId = TransferId(1);
    const RETENTION: TransferId = TransferId(2);

    fn engine(name: &str) -> EngineId {
        EngineId::new(EngineName::new(name).unwrap(), 1)
    }

    /// What the endpoint says to a frame from its only peer.
    fn hear(endpoint: &mut Endpoint, message: Message) -> Vec<Message> {
        let frame = codec::encode(&message);
        endpoint.handle_input(Time::ZERO, Input::Received { conn: ConnId(1), frame });
        endpoint.check();
        let said = |output| if let Output::Send { message, .. } = output { Some(message) } else { None };
        std::iter::from_fn(|| endpoint.poll_output()).filter_map(said).collect()
    }

    #[test]
    fn a_reader_that_goes_back_is_lent_nothing_more() {
        let (compat, shape) = (Compat([0; 16]), PoolShape::whole_blocks(8, KvDtype::F32));
        let chain: Vec<BlockHash> = (0..4).map(|n| BlockHash([n; 16])).collect();
        let units = (0..4).map(UnitId).collect();
        let mut endpoint = Endpoint::new(Config::new(engine("d"), compat, vec![], shape));
        endpoint.handle_input(Time::ZERO, Input::Accepted { conn: ConnId(1) });
        hear(&mut endpoint, Message::Hello { version: VERSION, engine: engine("p"), compat });
        hear(&mut endpoint, Message::Welcome { metadata: vec![], shape });
        let retain = Input::Retain { retention: RETENTION, chain: chain.clone(), units };
        endpoint.handle_input(Time::ZERO, retain);

        let claim = |first_unit| {
            let held = Held::Retained(RETENTION);
            Message::Claim { transfer: TRANSFER, attempt: first_unit, first_unit, chain: chain.clone(), held }
        };
        let granted = |said: &[Message]| match said {
            [Message::Granted { first_unit, units, .. }] => Some((*first_unit, units.clone())),
            _ => None,
        };
        assert_eq!(granted(&hear(&mut endpoint, claim(2))), Some((2, vec![UnitId(2), UnitId(3)])));
        // Its lease begins at 2: the units before are still the retention's alone, which may give them up (I3).
        let declined = Message::Declined { transfer: TRANSFER, why: Decline::Chain };
        for first_unit in [1, 0] {
            assert_eq!(hear(&mut endpoint, claim(first_unit)), std::slice::from_ref(&declined));
        }
        // What it has it keeps.
        assert_eq!(granted(&hear(&mut endpoint, claim(3))), Some((3, vec![UnitId(3)])));
    }
}
