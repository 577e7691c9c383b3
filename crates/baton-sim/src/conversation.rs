//! Conversations at the router's edge: keys that its core compares, and what engines say they retain.
//!
//! The keys stand for the router program's: hashes of tenant, cache salt and the client's name for the conversation, or of its
//! messages. Where names are global, the router has been told of no tenants: then only the engines keep them apart (I13).

use std::time::Duration;

use baton_proto::PeerAddress;
use baton_routing::{ConversationKey, Retained, Reuse, Turn};
use baton_types::{BlockChain, CacheSalt, TokenId, TransferId};

use crate::ask::{Ask, Conversation};

/// What an engine has said that it retains.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RetainedAt {
    pub retention: TransferId,
    pub peer: PeerAddress,
    pub tokens: u32,
    pub ttl: Duration,
}

impl RetainedAt {
    /// As the router's core hears it.
    pub fn told(&self) -> Retained {
        let engine = self.peer.engine.clone();
        Retained { engine, transfer: self.retention, tokens: self.tokens, ttl: self.ttl }
    }
}

impl From<Reuse> for RetainedAt {
    fn from(reuse: Reuse) -> Self {
        let Reuse { holder, transfer, tokens, ttl } = reuse;
        let peer = PeerAddress { engine: holder.id, host: holder.host, port: holder.port };
        Self { retention: transfer, peer, tokens, ttl }
    }
}

impl Ask {
    pub(crate) fn turn(&self, names_are_global: bool) -> Option<Turn> {
        let scope =
            CacheSalt { tenant: self.tenant.clone(), client: self.salt.clone(), ..CacheSalt::default() };
        match &self.conversation {
            Conversation::Untold => None,
            Conversation::Named(name) => {
                let letters: Vec<TokenId> = name.bytes().map(|byte| TokenId(u32::from(byte))).collect();
                let scope = if names_are_global { CacheSalt::default() } else { scope };
                let key = key(&CacheSalt { adapter: "name".into(), ..scope }, &letters);
                Some(Turn { find: vec![key], store: key })
            }
            Conversation::Messages(ends) => {
                let keys = ends.iter().map(|end| key(&scope, &self.prompt[..(*end).min(self.prompt.len())]));
                let keys: Vec<ConversationKey> = keys.collect();
                Some(Turn { find: keys.iter().rev().copied().collect(), store: *keys.last()? })
            }
        }
    }
}

fn key(scope: &CacheSalt, words: &[TokenId]) -> ConversationKey {
    let chain = BlockChain::new(scope, words.len().max(1), words);
    ConversationKey(chain.hashes().last().map_or(0, |hash| u128::from_le_bytes(hash.0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ask::Reference;

    fn ask(tenant: &str, conversation: Conversation) -> Ask {
        Ask {
            number: 0,
            at_us: 0,
            after: None,
            prompt: (0..9).map(TokenId).collect(),
            tenant: tenant.into(),
            salt: String::new(),
            conversation,
            reference: Reference::Found,
            max_tokens: 1,
            min_tokens: 0,
            stop_tokens: Vec::new(),
            stop_after: None,
            streaming: false,
            sample_seed: None,
        }
    }

    #[test]
    fn a_turn_finds_those_before_it_and_nobody_else_s() {
        let turn = |tenant, ends: &[usize]| {
            ask(tenant, Conversation::Messages(ends.to_vec())).turn(true).expect("it has messages")
        };
        let (first, second) = (turn("a", &[2, 4]), turn("a", &[2, 4, 6, 9]));
        assert_eq!(second.find[2], first.store);
        assert!(!turn("b", &[2, 4, 6, 9]).find.contains(&first.store));
        let named =
            |tenant, global| ask(tenant, Conversation::Named("x".into())).turn(global).expect("a name");
        assert_ne!(named("a", false), named("b", false));
        assert_eq!(named("a", true), named("b", true));
        assert_eq!(ask("a", Conversation::Untold).turn(false), None);
    }
}
