//! A JSON object that can be edited while every byte that is not edited stays what it was: unknown members, number formats,
//! escapes and white space included. The router forwards bodies so; it never re-types them.
//!
//! One scan finds where the members begin and end; values are slices of the received bytes and are neither copied nor
//! parsed. A key that occurs twice is refused: two readers of one body that pick different values are how a forbidden
//! member is smuggled past the first of them. Keys are compared as decoded, so an escaped key does not slip through either.

use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};
use indexmap::IndexMap;
use serde::de::{DeserializeOwned, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use crate::error::{ApiError, ErrorKind, excerpt};

/// Most members of one object.
pub const MAX_MEMBERS: usize = 1024;

/// Why bytes are not an editable body.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    #[error("The request body has {bytes} bytes; the limit is {limit}.")]
    TooLarge { bytes: usize, limit: usize },
    #[error("The body is not a valid JSON object: {0}")]
    Json(String),
    #[error("The member \"{0}\" occurs twice.")]
    Duplicate(String),
    #[error("An object may have at most {MAX_MEMBERS} members.")]
    TooManyMembers,
}

impl From<BodyError> for ApiError {
    fn from(error: BodyError) -> Self {
        let kind = match error {
            BodyError::TooLarge { .. } => ErrorKind::BodyTooLarge,
            _ => ErrorKind::BadRequest,
        };
        Self::new(kind, error.to_string())
    }
}

/// One JSON value as text, known to be valid. What a router passes on without understanding it.
#[derive(Clone, PartialEq, Eq)]
pub struct RawJson(Bytes);

impl RawJson {
    pub const TRUE: Self = Self(Bytes::from_static(b"true"));
    pub const FALSE: Self = Self(Bytes::from_static(b"false"));
    pub const NULL: Self = Self(Bytes::from_static(b"null"));
    pub const ONE: Self = Self(Bytes::from_static(b"1"));

    /// # Errors
    /// If `text` is not exactly one JSON value in UTF-8.
    pub fn parse(text: impl Into<Bytes>) -> Result<Self, BodyError> {
        let text = text.into();
        serde_json::from_slice::<&RawValue>(&text).map_err(|error| BodyError::Json(error.to_string()))?;
        Ok(Self(text))
    }

    /// # Panics
    /// If the value cannot be JSON: a map with keys that are not texts, or a failing `Serialize`.
    pub fn of<T: Serialize + ?Sized>(value: &T) -> Self {
        Self(Bytes::from(serde_json::to_vec(value).expect("a value of ours is JSON")))
    }

    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("RawJson is UTF-8")
    }

    pub fn is_null(&self) -> bool {
        &self.0[..] == b"null"
    }

    /// The elements of a list as the text they are; none if this is no list, or one of more than `limit` elements.
    pub fn elements(&self, limit: usize) -> Option<Vec<&str>> {
        let mut deserializer = serde_json::Deserializer::from_slice(&self.0);
        deserializer.deserialize_seq(Elements { limit }).ok()
    }

    /// # Errors
    /// serde's, if the value has another shape than `T`.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.0)
    }
}

impl fmt::Debug for RawJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A member between its delimiters: `before` holds white space, key and colon, `after` white space.
#[derive(Clone, Debug)]
struct Member {
    before: Bytes,
    value: RawJson,
    after: Bytes,
}

/// The object. Cloning shares the values.
#[derive(Clone, Debug)]
pub struct Body {
    /// Up to and with `{`.
    head: Bytes,
    members: IndexMap<String, Member>,
    /// From `}`, or from behind `{` if there are no members.
    tail: Bytes,
}

impl Body {
    /// # Errors
    /// See [`BodyError`]; `limit` is in bytes.
    pub fn parse(text: Bytes, limit: usize) -> Result<Self, BodyError> {
        if text.len() > limit {
            return Err(BodyError::TooLarge { bytes: text.len(), limit });
        }
        let Scan(found) =
            serde_json::from_slice(&text).map_err(|error| BodyError::Json(error.to_string()))?;
        if found.len() > MAX_MEMBERS {
            return Err(BodyError::TooManyMembers);
        }
        let open = text.iter().position(|b| *b == b'{').expect("an object was scanned") + 1;
        let mut members = IndexMap::with_capacity(found.len());
        let mut start = open;
        let mut end = open;
        for (i, (key, value)) in found.iter().enumerate() {
            let value_bytes = text.slice_ref(value.get().as_bytes());
            let value_start = offset(&text, value.get());
            let value_end = value_start + value_bytes.len();
            // Only white space lies between a value and the delimiter behind it.
            let delimiter = if i + 1 < found.len() { b',' } else { b'}' };
            end = value_end
                + text[value_end..]
                    .iter()
                    .position(|b| *b == delimiter)
                    .expect("a scanned object is well formed");
            let member = Member {
                before: text.slice(start..value_start),
                value: RawJson(value_bytes),
                after: text.slice(value_end..end),
            };
            let name: String = serde_json::from_str(key.get()).map_err(|e| BodyError::Json(e.to_string()))?;
            if members.contains_key(&name) {
                return Err(BodyError::Duplicate(excerpt(&name)));
            }
            members.insert(name, member);
            start = end + 1;
        }
        Ok(Self { head: text.slice(..open), members, tail: text.slice(end..) })
    }

    pub fn get(&self, name: &str) -> Option<&RawJson> {
        self.members.get(name).map(|member| &member.value)
    }

    pub fn contains(&self, name: &str) -> bool {
        self.members.contains_key(name)
    }

    /// The members' names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.members.keys().map(String::as_str)
    }

    /// Replaces the value where it stands, or appends a member.
    pub fn set(&mut self, name: &str, value: RawJson) {
        if let Some(member) = self.members.get_mut(name) {
            member.value = value;
            return;
        }
        let mut before = BytesMut::from(&RawJson::of(name).0[..]);
        before.put_u8(b':');
        let member = Member { before: before.freeze(), value, after: Bytes::new() };
        self.members.insert(name.to_owned(), member);
    }

    pub fn remove(&mut self, name: &str) -> Option<RawJson> {
        self.members.shift_remove(name).map(|member| member.value)
    }

    /// Removes a member of nested objects, e.g. `["sampling_params", "extra_args", "kv_transfer_params"]`. A step that is
    /// absent or no object ends the walk: there is nothing to remove then.
    ///
    /// # Errors
    /// If an object on the way has a key twice or too many members.
    pub fn remove_path(&mut self, path: &[&str]) -> Result<Option<RawJson>, BodyError> {
        let (name, rest) = match path {
            [] => return Ok(None),
            [name] => return Ok(self.remove(name)),
            [name, rest @ ..] => (*name, rest),
        };
        let Some(object) = self.get(name).filter(|value| value.0.first() == Some(&b'{')) else {
            return Ok(None);
        };
        let mut inner = Self::parse(object.0.clone(), usize::MAX)?;
        let removed = inner.remove_path(rest)?;
        if removed.is_some() {
            self.set(name, RawJson(inner.to_bytes()));
        }
        Ok(removed)
    }

    /// A member as a `T`; `None` if it is absent or null.
    ///
    /// # Errors
    /// A 400 that blames the member, if it has another shape.
    pub fn read<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, ApiError> {
        match self.get(name) {
            None => Ok(None),
            Some(value) => value
                .read::<Option<T>>()
                .map_err(|error| ApiError::bad_param(name, format!("{name} is not valid: {error}."))),
        }
    }

    /// `stream`, as OpenAI and vLLM read it: absent, null and `false` are no.
    ///
    /// # Errors
    /// A 400 if it is no boolean.
    pub fn stream(&self) -> Result<bool, ApiError> {
        Ok(self.read("stream")?.unwrap_or(false))
    }

    /// # Errors
    /// A 400 if it is no text.
    pub fn model(&self) -> Result<Option<String>, ApiError> {
        self.read("model")
    }

    /// # Errors
    /// A 400 if it is no text.
    pub fn cache_salt(&self) -> Result<Option<String>, ApiError> {
        self.read("cache_salt")
    }

    /// How many choices are asked for per prompt.
    ///
    /// # Errors
    /// A 400 if it is no count.
    pub fn n(&self) -> Result<u32, ApiError> {
        Ok(self.read("n")?.unwrap_or(1))
    }

    /// How many prompts `prompt` holds: a text or a list of token ids is one. 1 if absent (a chat).
    pub fn prompt_count(&self) -> usize {
        let Some(prompt) = self.get("prompt") else { return 1 };
        let Some(items) = prompt.0.strip_prefix(b"[") else { return 1 };
        match items.iter().find(|b| !b.is_ascii_whitespace()) {
            // One look is enough for a list of ids, however long.
            Some(b'0'..=b'9' | b'-') => 1,
            _ => prompt.read::<Vec<IgnoredAny>>().map_or(1, |items| items.len()),
        }
    }

    /// The length of [`Body::to_bytes`].
    pub fn len(&self) -> usize {
        let members = self.members.values();
        let inner: usize = members.map(|m| m.before.len() + m.value.0.len() + m.after.len()).sum();
        self.head.len() + inner + self.members.len().saturating_sub(1) + self.tail.len()
    }

    /// True if the object has no members.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub fn to_bytes(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(self.len());
        out.put_slice(&self.head);
        for (i, member) in self.members.values().enumerate() {
            if i > 0 {
                out.put_u8(b',');
            }
            out.put_slice(&member.before);
            out.put_slice(&member.value.0);
            out.put_slice(&member.after);
        }
        out.put_slice(&self.tail);
        out.freeze()
    }
}

/// Where `part`, a slice of `text`, starts in it.
fn offset(text: &Bytes, part: &str) -> usize {
    part.as_ptr() as usize - text.as_ptr() as usize
}

/// Reads a list, and gives up behind its limit: what a client may send is bounded in bytes only.
struct Elements {
    limit: usize,
}

impl<'de> Visitor<'de> for Elements {
    type Value = Vec<&'de str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {} elements", self.limit)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = list.next_element::<&RawValue>()? {
            if elements.len() == self.limit {
                return Err(A::Error::invalid_length(self.limit + 1, &self));
            }
            elements.push(element.get());
        }
        Ok(elements)
    }
}

/// The members of an object in order, as the bytes they are.
struct Scan<'a>(Vec<(&'a RawValue, &'a RawValue)>);

impl<'de> Deserialize<'de> for Scan<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Scan<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Scan<'de>, A::Error> {
                let mut found = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    // The caller refuses one too many; there is no need to keep the rest.
                    if found.len() <= MAX_MEMBERS {
                        found.push(entry);
                    }
                }
                Ok(Scan(found))
            }
        }
        deserializer.deserialize_map(Members)
    }
}
