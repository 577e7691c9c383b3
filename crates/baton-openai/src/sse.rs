//! Server-sent events: the encoder of an engine's answers and the parser for whoever reads them.

mod encoder;
mod parser;

pub use encoder::SseEncoder;
pub use parser::{SseError, SseParser};

use bytes::{BufMut, Bytes, BytesMut};

/// The data of the event that ends an OpenAI stream.
pub const DONE: &[u8] = b"[DONE]";

/// One event, as the WHATWG's event stream interpretation dispatches it; comments and `retry` are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SseEvent {
    /// The `event` field: its type, if it is not the plain "message".
    pub name: Option<Bytes>,
    /// The lines of the `data` fields, joined by line feeds. Not checked to be UTF-8.
    pub data: Bytes,
    /// The `id` field of this event, if it has one.
    pub id: Option<Bytes>,
}

impl SseEvent {
    /// An event that has nothing but data.
    pub fn message(data: impl Into<Bytes>) -> Self {
        Self { name: None, data: data.into(), id: None }
    }

    /// Whether this is `[DONE]`.
    pub fn is_done(&self) -> bool {
        self.data.trim_ascii() == DONE
    }

    /// Appends the event in its plainest form: `data: ...`, line feeds only.
    pub fn encode_into(&self, out: &mut BytesMut) {
        for (field, value) in [("event", &self.name), ("id", &self.id)] {
            if let Some(value) = value {
                put_field(out, field, value);
            }
        }
        for line in self.data.split(|b| *b == b'\n') {
            put_field(out, "data", line);
        }
        out.put_u8(b'\n');
    }

    pub fn to_bytes(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(self.data.len() + 16);
        self.encode_into(&mut out);
        out.freeze()
    }
}

fn put_field(out: &mut BytesMut, field: &str, value: &[u8]) {
    out.put_slice(field.as_bytes());
    out.put_slice(b": ");
    out.put_slice(value);
    out.put_u8(b'\n');
}
