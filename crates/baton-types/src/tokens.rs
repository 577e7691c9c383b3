//! Tokens are what an engine computes on; text exists only at its HTTP edge (I12).

use std::fmt;

use serde::{Deserialize, Serialize};

/// An index into the model's vocabulary.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TokenId(pub u32);

impl fmt::Debug for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
