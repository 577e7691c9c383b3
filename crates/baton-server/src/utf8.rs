//! Characters from bytes that come in pieces.

/// Holds back the beginning of a character (at most three bytes) until the rest is there. The pieces together
/// are what [`String::from_utf8_lossy`] makes of all bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Utf8Assembler {
    pending: Vec<u8>,
}

impl Utf8Assembler {
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        let open = open_bytes(&self.pending);
        let rest = self.pending.split_off(self.pending.len() - open);
        String::from_utf8_lossy(&std::mem::replace(&mut self.pending, rest)).into_owned()
    }

    /// U+FFFD if the bytes stop inside a character.
    pub fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned()
    }
}

/// How many of the last bytes begin a character and do not end it.
fn open_bytes(bytes: &[u8]) -> usize {
    let mut rest = bytes;
    loop {
        match std::str::from_utf8(rest) {
            Ok(_) => return 0,
            Err(error) => match error.error_len() {
                None => return rest.len() - error.valid_up_to(),
                Some(len) => rest = &rest[error.valid_up_to() + len..],
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_any_size_give_the_lossy_text() {
        let bytes = b"a\xC3\xBC\xE2\x82\xAC\xF0\x9F\x8E\x82\xFF\xE2\x82b\xE2\x82";
        for size in 1..=bytes.len() {
            let mut assembler = Utf8Assembler::default();
            let mut text: String = bytes.chunks(size).map(|piece| assembler.push(piece)).collect();
            text.push_str(&assembler.finish());
            assert_eq!(text, String::from_utf8_lossy(bytes), "in pieces of {size}");
        }
    }
}
