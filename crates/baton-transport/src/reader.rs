//! Decoding of what other processes sent.

use baton_types::EngineId;

/// What is left to decode; integers are little-endian.
pub(crate) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk()?;
        self.0 = tail;
        Some(*head)
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A text behind its length.
    pub fn text(&mut self) -> Option<&'a str> {
        let [len] = self.array()?;
        let (text, tail) = self.0.split_at_checked(usize::from(len))?;
        self.0 = tail;
        std::str::from_utf8(text).ok()
    }

    pub fn engine_id(&mut self) -> Option<EngineId> {
        self.text()?.parse().ok()
    }
}
