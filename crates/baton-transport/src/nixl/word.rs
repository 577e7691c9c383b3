//! What agents say to each other on a link. A word is a length u8, a tag u8 and the fields; integers are little-endian.
//!
//! | tag | word | from | bytes |
//! |---|---|---|---|
//! | 1 | Hello | dialler | version u16, token 16, proof 16, path u64, own engine id, peer's engine id (each a length u8 and text) |
//! | 2 | Moving | dialler | 1 while posts are in flight, 0 when none is: whether the other side must keep its end of them going |
//! | 3 | Bye | dialler | nothing. The last word: nothing that the dialler posted is in flight, and nothing will be |
//! | 4 | Welcome | other | nothing |
//! | 5 | Heard | other | so many notifications as u32 |

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
    Moving(bool),
    Bye,
    Welcome,
    Heard(u32),
}

impl Word {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0];
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
            Self::Moving(moving) => bytes.extend([2, u8::from(*moving)]),
            Self::Bye => bytes.push(3),
            Self::Welcome => bytes.push(4),
            Self::Heard(count) => {
                bytes.push(5);
                bytes.extend(count.to_le_bytes());
            }
        }
        bytes[0] = u8::try_from(bytes.len() - 1).expect("no word is longer");
        bytes
    }

    /// The first word of `bytes`, and how long it is with its length; none if it is not whole yet.
    ///
    /// # Errors
    /// If no agent of this version says that.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, Nonsense> {
        let Some((&len, rest)) = bytes.split_first() else { return Ok(None) };
        let Some(body) = rest.get(..usize::from(len)) else { return Ok(None) };
        let mut reader = Reader(body);
        let word = Self::read(&mut reader).filter(|_| reader.0.is_empty()).ok_or(Nonsense)?;
        Ok(Some((word, 1 + body.len())))
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
            [2] => match reader.array()? {
                [0] => Self::Moving(false),
                [1] => Self::Moving(true),
                _ => return None,
            },
            [3] => Self::Bye,
            [4] => Self::Welcome,
            [5] => Self::Heard(reader.u32()?),
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
        prop_oneof![
            (any::<Token>(), any::<Token>(), any::<u64>(), id.clone(), id).prop_map(
                |(token, proof, path, from, to)| Word::Hello(Hello { token, proof, path, from, to })
            ),
            any::<bool>().prop_map(Word::Moving),
            Just(Word::Bye),
            Just(Word::Welcome),
            any::<u32>().prop_map(Word::Heard),
        ]
    }

    proptest! {
        #[test]
        fn words_read_back_when_they_are_whole(word in words(), next in words()) {
            let bytes = word.encode();
            let both = [&bytes[..], &next.encode()].concat();
            prop_assert_eq!(Word::decode(&both), Ok(Some((word, bytes.len()))));
            for cut in 0..bytes.len() {
                prop_assert_eq!(Word::decode(&bytes[..cut]), Ok(None));
            }
        }

        #[test]
        fn any_bytes_decode_or_do_not(bytes in proptest::collection::vec(any::<u8>(), 0..260)) {
            if let Ok(Some((word, len))) = Word::decode(&bytes) {
                prop_assert_eq!(word.encode(), &bytes[..len]);
            }
        }
    }
}
