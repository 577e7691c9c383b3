//! Which conversation a request is part of, as keys that the core can compare without knowing a word of it (I12).
//!
//! A client may name its conversation. For a chat that does not, the messages themselves do: a turn is stored under the hash
//! of its messages, and the next turn, which repeats them and adds to them, looks under the hashes of its own beginnings.
//!
//! Either is a hint for finding KV, never a right to it (I13). The key is of one tenant, so another tenant's name for a
//! conversation, guessed or copied, is another key; and whatever is found is read only as far as the engine that retains it
//! sees the same tokens under the same tenant, model and cache salt. An adapter is a model of its own name, as in vLLM.

use baton_openai::chat::MAX_MESSAGES;
use baton_openai::{ApiError, Body, Endpoint};
use baton_routing::{ConversationKey, Turn};
use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};

const X_CONVERSATION_ID: HeaderName = HeaderName::from_static("x-conversation-id");
const CONVERSATION_ID: &str = "conversation_id";
/// Longest name that a client may give a conversation.
const MAX_ID_BYTES: usize = 256;

type Hash = [u8; 32];

/// What a client calls its conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConversationId(Vec<u8>);

impl ConversationId {
    /// The member `conversation_id`, which is taken out, since no engine knows it, or the header `X-Conversation-ID`.
    ///
    /// # Errors
    /// A 400 if it is no text, empty or too long.
    pub fn take(body: &mut Body, headers: &HeaderMap) -> Result<Option<Self>, ApiError> {
        let named: Option<String> = body.read(CONVERSATION_ID)?;
        body.remove(CONVERSATION_ID);
        let header = || headers.get(X_CONVERSATION_ID).map(|value| value.as_bytes().to_vec());
        let Some(id) = named.map(String::into_bytes).or_else(header) else { return Ok(None) };
        if (1..=MAX_ID_BYTES).contains(&id.len()) {
            return Ok(Some(Self(id)));
        }
        let message = format!("{CONVERSATION_ID} must have 1 to {MAX_ID_BYTES} bytes.");
        Err(ApiError::bad_param(CONVERSATION_ID, message))
    }
}

/// Makes the keys.
#[derive(Debug)]
pub(crate) struct ConversationHasher {
    /// Random, and new in each life of the router: keys are in its logs, and text that can be guessed could be recognised.
    pub secret: Hash,
    /// Most keys to look under.
    pub lookups: usize,
}

impl ConversationHasher {
    /// None for a completion that its client has not named.
    pub fn turn(
        &self,
        endpoint: Endpoint,
        body: &Body,
        model: Option<&str>,
        tenant: Option<&HeaderValue>,
        id: Option<&ConversationId>,
    ) -> Option<Turn> {
        let salt = body.get("cache_salt").filter(|salt| !salt.is_null());
        let scope = [
            tenant.map(HeaderValue::as_bytes),
            model.map(str::as_bytes),
            salt.map(|salt| &salt.as_bytes()[..]),
        ];
        let scope = scope.into_iter().fold(self.secret, add_optional);
        match (endpoint, id) {
            (_, Some(id)) => {
                let key = key(add(add(scope, b"id"), &id.0));
                Some(Turn { find: vec![key], store: key })
            }
            (Endpoint::Chat, None) => self.turn_of_messages(add(scope, b"messages"), body),
            (Endpoint::Completions, None) => None,
        }
    }

    /// The longest beginning first; all of the messages are one too, of a turn that is asked for again.
    fn turn_of_messages(&self, scope: Hash, body: &Body) -> Option<Turn> {
        // What is no list of messages is the engine's to refuse.
        let messages = body.get("messages")?.elements(MAX_MESSAGES)?;
        let extend = |hash: &mut Hash, message: &str| {
            *hash = add(*hash, message.as_bytes());
            Some(key(*hash))
        };
        let keys: Vec<ConversationKey> = messages.into_iter().scan(scope, extend).collect();
        let find = keys.iter().rev().take(self.lookups).copied().collect();
        Some(Turn { find, store: *keys.last()? })
    }
}

/// One more link of a chain, of any length: the hash before it is the key.
fn add(hash: Hash, part: &[u8]) -> Hash {
    *blake3::keyed_hash(&hash, part).as_bytes()
}

/// An absent part is none of any bytes.
fn add_optional(hash: Hash, part: Option<&[u8]>) -> Hash {
    match part {
        None => add(hash, b""),
        Some(part) => add(add(hash, b"is"), part),
    }
}

fn key(hash: Hash) -> ConversationKey {
    let (half, _) = hash.split_first_chunk().expect("32 bytes have a half");
    ConversationKey(u128::from_le_bytes(*half))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;

    const HASHER: ConversationHasher = ConversationHasher { secret: [7; 32], lookups: 4 };

    fn body(text: &str) -> Body {
        Body::parse(Bytes::copy_from_slice(text.as_bytes()), 1 << 20).unwrap()
    }

    fn messages(messages: &[&str]) -> Body {
        body(&format!(r#"{{"messages":[{}]}}"#, messages.join(",")))
    }

    fn chat(body: &Body) -> Turn {
        HASHER.turn(Endpoint::Chat, body, None, None, None).unwrap()
    }

    fn take(text: &str, header: Option<&'static str>) -> (Result<Option<ConversationId>, ApiError>, String) {
        let mut headers = HeaderMap::new();
        if let Some(value) = header {
            headers.insert(X_CONVERSATION_ID, HeaderValue::from_static(value));
        }
        let mut body = body(text);
        let id = ConversationId::take(&mut body, &headers);
        (id, String::from_utf8(body.to_bytes().to_vec()).unwrap())
    }

    #[test]
    fn a_turn_looks_where_the_ones_before_it_were_stored() {
        let first = chat(&messages(&["1"]));
        let second = chat(&messages(&["1", "2", "3"]));
        let third = chat(&messages(&["1", "2", "3", "4", "5"]));
        assert!(second.find.contains(&first.store));
        assert_eq!(third.find.len(), 4, "bounded: the longest ones");
        assert_eq!((third.find[0], third.find[2]), (third.store, second.store));
        assert!(!third.find.contains(&first.store));
        let edited = chat(&messages(&["1", "22", "3"]));
        assert_eq!(edited.find[2], first.store, "as far as it is the same");
        assert_ne!(edited.find[1], second.find[1]);
        assert_ne!(chat(&messages(&["12"])).store, chat(&messages(&["1", "2"])).store);
    }

    #[test]
    fn a_conversation_has_a_name_or_messages() {
        let plain = body(r#"{"prompt":"x"}"#);
        assert_eq!(HASHER.turn(Endpoint::Completions, &plain, None, None, None), None);
        let id = ConversationId(b"mine".to_vec());
        let named = HASHER.turn(Endpoint::Completions, &plain, None, None, Some(&id)).unwrap();
        assert_eq!(named.find, [named.store]);
        let chat = HASHER.turn(Endpoint::Chat, &messages(&["1"]), None, None, Some(&id)).unwrap();
        assert_eq!(chat, named, "whatever is said in it");
        for bad in [r#"{}"#, r#"{"messages":[]}"#, r#"{"messages":"hi"}"#, r#"{"messages":null}"#] {
            assert_eq!(HASHER.turn(Endpoint::Chat, &body(bad), None, None, None), None, "{bad}");
        }
        let many = body(&format!(r#"{{"messages":[{}1]}}"#, "1,".repeat(MAX_MESSAGES)));
        assert_eq!(HASHER.turn(Endpoint::Chat, &many, None, None, None), None);
    }

    #[test]
    fn a_name_comes_from_the_body_or_the_header_and_stays_here() {
        let id = |text: &str| Ok(Some(ConversationId(text.as_bytes().to_vec())));
        let named = r#"{"a" :1,"conversation_id": "b\u0065ne","z":null}"#;
        let rest = r#"{"a" :1,"z":null}"#.to_owned();
        assert_eq!(take(named, None), (id("bene"), rest.clone()));
        assert_eq!(take(named, Some("header")), (id("bene"), rest.clone()), "the body counts more");
        assert_eq!(take(&rest, Some("header")), (id("header"), rest.clone()));
        assert_eq!(take(&rest, None), (Ok(None), rest));
        assert_eq!(take(r#"{"conversation_id":null}"#, None), (Ok(None), "{}".to_owned()));
        for bad in ["3", "[]", r#""""#, &format!("{:?}", "x".repeat(257))] {
            let (refused, _) = take(&format!(r#"{{"conversation_id":{bad}}}"#), None);
            assert_eq!(refused.unwrap_err().status(), 400, "{bad}");
        }
        assert_eq!(take("{}", Some("")).0.unwrap_err().status(), 400);
    }

    /// What tells conversations apart: tenant, model, cache salt, name.
    type Parts = (Option<String>, Option<String>, Option<String>, Option<String>);

    fn parts() -> impl Strategy<Value = Parts> {
        let part = || prop::option::of("[ab]{0,2}");
        (part(), part(), part(), prop::option::of("[ab]{1,2}"))
    }

    fn turn(hasher: &ConversationHasher, (tenant, model, salt, id): &Parts) -> Turn {
        let salt = salt.as_ref().map_or(String::new(), |salt| format!(r#","cache_salt":"{salt}""#));
        let body = body(&format!(r#"{{"messages":["hi"]{salt}}}"#));
        let tenant = tenant.as_ref().map(|tenant| HeaderValue::from_str(tenant).unwrap());
        let id = id.as_ref().map(|id| ConversationId(id.clone().into_bytes()));
        hasher.turn(Endpoint::Chat, &body, model.as_deref(), tenant.as_ref(), id.as_ref()).unwrap()
    }

    proptest! {
        /// I13: equal names, and equal words, of two tenants are two conversations; nothing can be moved from one part to
        /// the next to make them one.
        #[test]
        fn keys_are_equal_only_if_every_part_is(a in parts(), b in parts()) {
            prop_assert_eq!(turn(&HASHER, &a) == turn(&HASHER, &b), a == b);
            let other = ConversationHasher { secret: [8; 32], ..HASHER };
            prop_assert_ne!(turn(&other, &a), turn(&HASHER, &a));
        }
    }
}
