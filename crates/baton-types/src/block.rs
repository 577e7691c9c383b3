//! KV blocks: their ids inside one pool, and the hash chain that says what they hold. The only place that hashes tokens.

use std::fmt;

use crate::tokens::TokenId;

/// A block of one engine's KV pool: `0..num_blocks`. Means nothing outside that pool's incarnation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u32);

impl BlockId {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Debug for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b{}", self.0)
    }
}

/// A unit of one engine's KV pool, as peers name it: see [`PoolShape`](crate::PoolShape).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnitId(pub u32);

impl UnitId {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Debug for UnitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "u{}", self.0)
    }
}

/// What a unit holds: the first 128 bits of BLAKE3 over the hash of the unit before it and its own tokens.
///
/// Equal hashes mean equal tokens at equal positions under an equal [`CacheSalt`], and so equal KV.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockHash(pub [u8; 16]);

impl fmt::Debug for BlockHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{:02x}{:02x}{:02x}{:02x}", self.0[0], self.0[1], self.0[2], self.0[3])
    }
}

/// What must be equal before two equal token sequences may share KV (I13).
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CacheSalt {
    /// Fingerprint of the model's weights and configuration, and of the kernels' arithmetic.
    pub model: String,
    pub adapter: String,
    pub tenant: String,
    /// The client's own `cache_salt`.
    pub client: String,
}

impl CacheSalt {
    /// The hash that a chain starts from.
    fn root(&self) -> BlockHash {
        let mut hasher = blake3::Hasher::new_derive_key("baton 1 kv block chain");
        for part in [&self.model, &self.adapter, &self.tenant, &self.client] {
            // Lengths keep ("ab", "c") and ("a", "bc") apart.
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        truncate(&hasher)
    }
}

/// The hashes of a token sequence cut into units; the last unit may be partial, and its hash says how many tokens it has.
///
/// Grows by [`BlockChain::extend`]; only the hash of a partial last unit ever changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockChain {
    root: BlockHash,
    unit_tokens: usize,
    hashes: Vec<BlockHash>,
    tokens: usize,
}

impl BlockChain {
    /// # Panics
    /// If `unit_tokens` is zero.
    pub fn new(salt: &CacheSalt, unit_tokens: usize, tokens: &[TokenId]) -> Self {
        assert!(unit_tokens > 0, "a unit holds at least one token");
        let mut chain = Self { root: salt.root(), unit_tokens, hashes: Vec::new(), tokens: 0 };
        chain.extend(tokens);
        chain
    }

    /// Makes this the chain of `all_tokens`, which must begin with the tokens it has hashed already.
    pub fn extend(&mut self, all_tokens: &[TokenId]) {
        assert!(all_tokens.len() >= self.tokens, "a chain only grows");
        self.hashes.truncate(self.full());
        for unit in all_tokens[self.full() * self.unit_tokens..].chunks(self.unit_tokens) {
            let parent = self.hashes.last().copied().unwrap_or(self.root);
            self.hashes.push(hash_unit(parent, unit));
        }
        self.tokens = all_tokens.len();
    }

    /// One hash a unit, a partial last unit included: `ceil(tokens / unit_tokens)`.
    pub fn hashes(&self) -> &[BlockHash] {
        &self.hashes
    }

    /// The hashes of full blocks of `block_units` units each, which are those of their last units: what a prefix cache may
    /// hold (I2).
    pub fn full_blocks(&self, block_units: usize) -> Vec<BlockHash> {
        self.hashes[..self.full()].chunks_exact(block_units).map(|units| units[block_units - 1]).collect()
    }

    /// How many tokens are hashed.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    fn full(&self) -> usize {
        self.tokens / self.unit_tokens
    }
}

fn hash_unit(parent: BlockHash, tokens: &[TokenId]) -> BlockHash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&parent.0);
    for token in tokens {
        hasher.update(&token.0.to_le_bytes());
    }
    truncate(&hasher)
}

fn truncate(hasher: &blake3::Hasher) -> BlockHash {
    let mut out = [0; 16];
    out.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    BlockHash(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(n: u32) -> Vec<TokenId> {
        (0..n).map(TokenId).collect()
    }

    fn salt(tenant: &str, client: &str) -> CacheSalt {
        CacheSalt { tenant: tenant.into(), client: client.into(), ..CacheSalt::default() }
    }

    #[test]
    fn a_chain_grown_token_by_token_equals_one_hashed_at_once() {
        let all = tokens(50);
        let mut grown = BlockChain::new(&CacheSalt::default(), 16, &[]);
        for n in 0..=50 {
            grown.extend(&all[..n]);
            assert_eq!(grown, BlockChain::new(&CacheSalt::default(), 16, &all[..n]));
            assert_eq!(grown.hashes().len(), n.div_ceil(16));
            assert_eq!(grown.full_blocks(1).len(), n / 16);
            assert_eq!(grown.full_blocks(2).len(), n / 32);
        }
    }

    #[test]
    fn one_changed_token_changes_its_unit_and_all_after_it() {
        let a = BlockChain::new(&CacheSalt::default(), 16, &tokens(64));
        let mut changed = tokens(64);
        changed[20] = TokenId(99);
        let b = BlockChain::new(&CacheSalt::default(), 16, &changed);
        let equal: Vec<bool> = a.hashes().iter().zip(b.hashes()).map(|(x, y)| x == y).collect();
        assert_eq!(equal, [true, false, false, false]);
    }

    #[test]
    fn every_part_of_the_salt_separates() {
        let chain = |salt: &CacheSalt| BlockChain::new(salt, 16, &tokens(16)).hashes()[0];
        let all = [salt("", ""), salt("ab", "c"), salt("a", "bc"), salt("abc", ""), salt("", "abc")];
        for (i, a) in all.iter().enumerate() {
            for b in &all[i + 1..] {
                assert_ne!(chain(a), chain(b));
            }
        }
    }

    #[test]
    fn a_partial_unit_is_not_its_full_one() {
        let short = BlockChain::new(&CacheSalt::default(), 16, &tokens(15));
        let full = BlockChain::new(&CacheSalt::default(), 16, &tokens(16));
        assert_ne!(short.hashes(), full.hashes());
        assert!(short.full_blocks(1).is_empty());
        assert_eq!(full.full_blocks(1), full.hashes());
    }
}
