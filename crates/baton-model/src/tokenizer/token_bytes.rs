//! The bytes that each token adds to a text. A token may be half a character, so bytes are the only exact answer.

use baton_types::TokenId;
use serde_json::Value;

use super::TokenizerError;

/// How a vocabulary writes bytes as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spelling {
    /// GPT-2: every byte is one printable character (`Ġ` is a space).
    ByteLevel,
    /// SentencePiece: `▁` is a space, `<0x0A>` a byte.
    Metaspace { strips_first_space: bool },
}

/// A table over the whole vocabulary, in one run of bytes.
#[derive(Debug)]
pub(crate) struct TokenBytes {
    spelling: Spelling,
    bytes: Vec<u8>,
    /// Where each token's bytes end; they begin where those of the token before it end.
    ends: Vec<u32>,
    special: Vec<bool>,
}

impl TokenBytes {
    /// `json` is the file that `tokenizer` was built from: only it says how to decode.
    pub fn of(tokenizer: &tokenizers::Tokenizer, json: &[u8]) -> Result<Self, TokenizerError> {
        let spelling = Spelling::read(json)?;
        let vocabulary = tokenizer.get_vocab(true);
        let added = tokenizer.get_added_tokens_decoder();
        let highest = vocabulary.values().copied().max().unwrap_or(0);
        if highest as usize > MAX_VOCABULARY {
            return Err(TokenizerError::Build(format!("token id {highest} is above {MAX_VOCABULARY}")));
        }
        let mut texts: Vec<&str> = vec![""; highest as usize + 1];
        for (text, id) in &vocabulary {
            texts[*id as usize] = text;
        }
        let mut table = Self { spelling, bytes: Vec::new(), ends: Vec::new(), special: Vec::new() };
        let from_byte_level = byte_level_table();
        for (id, text) in texts.into_iter().enumerate() {
            let added = added.get(&(id as u32));
            match (added, spelling) {
                // Added tokens are matched in the text before it is spelled, so they are written as they are.
                (Some(token), _) => table.bytes.extend_from_slice(token.content.as_bytes()),
                (None, Spelling::ByteLevel) => push_byte_level(&mut table.bytes, text, &from_byte_level),
                (None, Spelling::Metaspace { .. }) => push_metaspace(&mut table.bytes, text),
            }
            table.special.push(added.is_some_and(|token| token.special));
            let end = u32::try_from(table.bytes.len());
            table
                .ends
                .push(end.map_err(|_| TokenizerError::Build("the vocabulary is above 4 GiB".to_owned()))?);
        }
        Ok(table)
    }

    pub fn get(&self, token: TokenId) -> &[u8] {
        let i = token.0 as usize;
        let Some(&end) = self.ends.get(i) else { return &[] };
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        &self.bytes[start as usize..end as usize]
    }

    pub fn is_special(&self, token: TokenId) -> bool {
        self.special.get(token.0 as usize).copied().unwrap_or(false)
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether the space at the very beginning of a text is the tokenizer's own.
    pub fn strips_first_space(&self) -> bool {
        matches!(self.spelling, Spelling::Metaspace { strips_first_space: true })
    }
}

/// Ids above this are a broken file, not a vocabulary; the largest known are near 262,144.
const MAX_VOCABULARY: usize = 1 << 22;

impl Spelling {
    fn read(json: &[u8]) -> Result<Self, TokenizerError> {
        let file: Value = serde_json::from_slice(json).map_err(|e| TokenizerError::Build(e.to_string()))?;
        let decoder = &file["decoder"];
        let steps = match decoder["decoders"].as_array() {
            Some(steps) => steps.as_slice(),
            None => std::slice::from_ref(decoder),
        };
        let step = |kind: &str| steps.iter().find(|step| step["type"] == kind);
        if step("ByteLevel").is_some() {
            return Ok(Self::ByteLevel);
        }
        if let Some(metaspace) = step("Metaspace") {
            return Ok(Self::Metaspace { strips_first_space: metaspace["prepend_scheme"] != "never" });
        }
        if step("Replace").is_some_and(|step| step["pattern"]["String"] == "▁" && step["content"] == " ") {
            let strip = step("Strip").is_some_and(|s| s["content"] == " " && s["start"].as_u64() > Some(0));
            return Ok(Self::Metaspace { strips_first_space: strip });
        }
        let kinds: Vec<String> = steps.iter().map(|step| step["type"].to_string()).collect();
        Err(TokenizerError::Decoder(kinds.join(", ")))
    }
}

/// The byte of each of the 256 characters of GPT-2's alphabet; their code points are below 512.
fn byte_level_table() -> [Option<u8>; 512] {
    let mut table = [None; 512];
    let mut next = 256;
    for byte in 0..=255u8 {
        let printable = matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
        let at = if printable {
            usize::from(byte)
        } else {
            next += 1;
            next - 1
        };
        table[at] = Some(byte);
    }
    table
}

/// A token with any character outside the alphabet is written as it is.
fn push_byte_level(out: &mut Vec<u8>, text: &str, table: &[Option<u8>; 512]) {
    let start = out.len();
    for c in text.chars() {
        match table.get(c as usize).copied().flatten() {
            Some(byte) => out.push(byte),
            None => {
                out.truncate(start);
                out.extend_from_slice(text.as_bytes());
                return;
            }
        }
    }
}

fn push_metaspace(out: &mut Vec<u8>, text: &str) {
    let hex = text.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>')).filter(|hex| hex.len() == 2);
    match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
        Some(byte) => out.push(byte),
        None => out.extend_from_slice(text.replace('▁', " ").as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_has_every_byte_once() {
        let mut bytes: Vec<u8> = byte_level_table().into_iter().flatten().collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
        assert_eq!(byte_level_table()['Ġ' as usize], Some(b' '));
        assert_eq!(byte_level_table()['Ċ' as usize], Some(b'\n'));
    }

    #[test]
    fn tokens_are_spelled_out() {
        let mut out = Vec::new();
        push_byte_level(&mut out, "Ġcaf\u{c3}\u{a9}", &byte_level_table());
        assert_eq!(out, " café".as_bytes());
        out.clear();
        push_byte_level(&mut out, "日é", &byte_level_table());
        assert_eq!(out, "日é".as_bytes());
        out.clear();
        push_metaspace(&mut out, "▁a▁b");
        push_metaspace(&mut out, "<0x0A>");
        push_metaspace(&mut out, "<0x+1>x");
        assert_eq!(out, b" a b\n<0x+1>x");
    }

    #[test]
    fn decoders_are_known_or_refused() {
        let read = |decoder: &str| Spelling::read(format!("{{\"decoder\":{decoder}}}").as_bytes());
        assert_eq!(read(r#"{"type":"ByteLevel"}"#), Ok(Spelling::ByteLevel));
        assert_eq!(
            read(
                r#"{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},
                    {"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]}"#
            ),
            Ok(Spelling::Metaspace { strips_first_space: true })
        );
        assert_eq!(
            read(r#"{"type":"Metaspace","prepend_scheme":"never"}"#),
            Ok(Spelling::Metaspace { strips_first_space: false })
        );
        assert!(matches!(read(r#"{"type":"WordPiece"}"#), Err(TokenizerError::Decoder(_))));
        assert!(matches!(read("null"), Err(TokenizerError::Decoder(_))));
    }
}
