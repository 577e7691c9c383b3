//! What agents say to each other on a link. A word is a length u16, a tag u8 and the fields; integers are little-endian.
//!
//! | tag | word | from | bytes |
//! |---|---|---|---|
//! | 1 | Hello | dialler | version u16, token 16, proof 16, path u64, own engine id, peer's engine id (each a length u8 and text) |
//! | 2 | Welcome | other | nothing |
//! | 3 | Moving | dialler | 1 while posts are in flight, 0 when none is: whether the other side must keep its end of them going |
//! | 4 | Heard | other | so many notifications as u32 |
//! | 5 | Ask | dialler | number u32, and pieces: offset u64 in the other's region, offset u64 in the dialler's, bytes u32 |
//! | 6 | Given | other | number u32 of an Ask whose pieces have been written |
//! | 7 | Notified | dialler | so many notifications as u32 that are on their way: whoever sleeps wakes, and listens until they are there |
//! | 8 | Bye | both | nothing. The last word: nothing of what the link is for is in flight, and nothing will be |

use baton_types::EngineId;

use super::metadata::VERSION;
use crate::reader::Reader;
use crate::token::Token;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub token: Token,
    /// See [`proof`](crate::token::proof).
    pub proof: Token,
    /// Of the dialler: goes with each of its notifications.
    pub path: u64,
    pub from: EngineId,
    pub to: EngineId,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Word {
    Hello(Hello),
    Welcome,
    Moving(bool),
    Heard(u32),
    Ask { number: u32, pieces: Vec<AskedPiece> },
    Given(u32),
    Notified(u32),
    Bye,
}

/// Bytes that the other side is asked to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AskedPiece {
    /// In the region of who is asked.
    pub from: u64,
    /// In the region of who asks.
    pub to: u64,
    pub len: u32,
}

/// Pieces of one Ask, at most.
pub(super) const MAX_PIECES: usize = 256;
/// Bytes of a word behind its length, at most: an Ask is the longest.
const MAX_WORD: usize = 5 + 20 * MAX_PIECES;

impl Word {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0, 0];
        match self {
            Self::Hello(hello) => {
                bytes.push(1);
                bytes.extend(VERSION.to_le_bytes());
                bytes.extend(hello.token);
                bytes.extend(hello.proof);
                bytes.extend(hello.path.to_le_bytes());
                for id in [&hello.from, &hello.to] {
                    let text = id.to_string();
                    bytes.push(u8::try_from(text.len()).expect("an engine id has at most 81 characters"));
                    bytes.extend(text.into_bytes());
                }
            }
            Self::Welcome => bytes.push(2),
            Self::Moving(moving) => bytes.extend([3, u8::from(*moving)]),
            Self::Heard(count) => {
                bytes.push(4);
                bytes.extend(count.to_le_bytes());
            }
            Self::Ask { number, pieces } => {
                bytes.push(5);
                bytes.extend(number.to_le_bytes());
                for piece in pieces {
                    bytes.extend(piece.from.to_le_bytes());
                    bytes.extend(piece.to.to_le_bytes());
                    bytes.extend(piece.len.to_le_bytes());
                }
            }
            Self::Given(number) => {
                bytes.push(6);
                bytes.extend(number.to_le_bytes());
            }
            Self::Bye => bytes.push(8),
            Self::Notified(count) => {
                bytes.push(7);
                bytes.extend(count.to_le_bytes());
            }
        }
        let len = u16::try_from(bytes.len() - 2).expect("an Ask has at most 256 pieces");
        bytes[..2].copy_from_slice(&len.to_le_bytes());
        bytes
    }

    /// The first word of `bytes`, and how long it is with its length; none if it is not whole yet.
    ///
    /// # Errors
    /// If no agent of this version says that.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, Nonsense> {
        let Some((len, rest)) = bytes.split_first_chunk() else { return Ok(None) };
        let len = usize::from(u16::from_le_bytes(*len));
        if len > MAX_WORD {
            return Err(Nonsense);
        }
        let Some(body) = rest.get(..len) else { return Ok(None) };
        let mut reader = Reader(body);
        let word = Self::read(&mut reader).filter(|_| reader.0.is_empty()).ok_or(Nonsense)?;
        Ok(Some((word, 2 + len)))
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Some(match reader.array()? {
            [1] if reader.u16()? == VERSION => Self::Hello(Hello {
                token: reader.array()?,
                proof: reader.array()?,
                path: reader.u64()?,
                from: reader.engine_id()?,
                to: reader.engine_id()?,
            }),
            [2] => Self::Welcome,
            [3] => match reader.array()? {
                [0] => Self::Moving(false),
                [1] => Self::Moving(true),
                _ => return None,
            },
            [4] => Self::Heard(reader.u32()?),
            [5] => {
                let (number, mut pieces) = (reader.u32()?, Vec::new());
                while !reader.0.is_empty() {
                    pieces.push(AskedPiece { from: reader.u64()?, to: reader.u64()?, len: reader.u32()? });
                }
                Self::Ask { number, pieces }
            }
            [6] => Self::Given(reader.u32()?),
            [8] => Self::Bye,
            [7] => Self::Notified(reader.u32()?),
            _ => return None,
        })
    }
}

/// Bytes that no agent sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Nonsense;

#[cfg(test)]
mod tests {
    use super::*;
    use baton_types::EngineName;
    use proptest::prelude::*;

    fn words() -> impl Strategy<Value = Word> {
        let id = ("[A-Za-z0-9._-]{1,64}", any::<u64>())
            .prop_map(|(name, incarnation)| EngineId::new(EngineName::new(name).unwrap(), incarnation));
        let piece = (any::<u64>(), any::<u64>(), any::<u32>()).prop_map(|(from, to, len)| AskedPiece {
            from,
            to,
            len,
        });
        prop_oneof![
            (any::<Token>(), any::<Token>(), any::<u64>(), id.clone(), id).prop_map(
                |(token, proof, path, from, to)| Word::Hello(Hello { token, proof, path, from, to })
            ),
            Just(Word::Welcome),
            any::<bool>().prop_map(Word::Moving),
            any::<u32>().prop_map(Word::Heard),
            (any::<u32>(), proptest::collection::vec(piece, 0..=MAX_PIECES))
                .prop_map(|(number, pieces)| Word::Ask { number, pieces }),
            any::<u32>().prop_map(Word::Given),
            any::<u32>().prop_map(Word::Notified),
            Just(Word::Bye),
        ]
    }

    proptest! {
        #[test]
        fn words_read_back_when_they_are_whole(word in words(), next in words(), cut: prop::sample::Index) {
            let bytes = word.encode();
            let both = [&bytes[..], &next.encode()].concat();
            prop_assert_eq!(Word::decode(&both), Ok(Some((word, bytes.len()))));
            prop_assert_eq!(Word::decode(&bytes[..cut.index(bytes.len())]), Ok(None));
        }

        #[test]
        fn any_bytes_decode_or_do_not(bytes in proptest::collection::vec(any::<u8>(), 0..260)) {
            if let Ok(Some((word, len))) = Word::decode(&bytes) {
                prop_assert_eq!(word.encode(), &bytes[..len]);
            }
        }
    }

    #[test]
    fn what_is_too_long_is_nonsense_before_it_is_there() {
        let too_long = u16::try_from(MAX_WORD + 1).unwrap().to_le_bytes();
        assert_eq!(Word::decode(&too_long), Err(Nonsense));
    }
}
