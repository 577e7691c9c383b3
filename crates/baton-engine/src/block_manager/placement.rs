//! Where blocks lie after long use, and what that costs: how many descriptors a hand-off takes, how much the prefix cache finds, how
//! long a block takes.
//!
//!     cargo test --release -p baton-engine placement -- --ignored --nocapture

use std::time::{Duration, Instant};

use baton_types::{BlockHash, BlockId, Mutation};

use super::{Admission, BlockManager};
use crate::block_table::BlockTable;

const POOL: u32 = 4096;
const BLOCK_TOKENS: usize = 16;
/// A prompt has 1 to so many blocks, 118 in the mean.
const MOST_PROMPT: usize = 235;
/// An answer has 0 to so many.
const MOST_ANSWER: usize = 32;
const CONVERSATIONS: usize = 96;

/// Numbers that are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % end as u64) as usize
    }
}

/// A sequence on one engine.
struct Live {
    table: BlockTable,
    hashes: Vec<BlockHash>,
    grows: usize,
}

/// One engine's blocks, which others use up to `most`.
struct Engine {
    manager: BlockManager,
    live: Vec<Live>,
    most: usize,
    queried: usize,
    hits: usize,
    /// In allocating, and for how many blocks.
    spent: Duration,
    allocated: u32,
}

impl Engine {
    fn new(prefix_cache: bool, percent: usize) -> Self {
        Self {
            manager: BlockManager::new(POOL, BLOCK_TOKENS, prefix_cache, Mutation::NONE),
            live: Vec::new(),
            most: POOL as usize * percent / 100,
            queried: 0,
            hits: 0,
            spent: Duration::ZERO,
            allocated: 0,
        }
    }

    fn used(&self) -> usize {
        POOL as usize - self.manager.counts().free
    }

    /// Ends sequences, whichever, until there is room.
    fn make_room(&mut self, blocks: usize, random: &mut Random) {
        while self.used() + blocks > self.most && !self.live.is_empty() {
            let mut ended = self.live.swap_remove(random.below(self.live.len()));
            let full = ended.hashes.len().min(ended.table.len().saturating_sub(1));
            self.manager.publish(&mut ended.table, &ended.hashes[..full]);
            self.manager.release(ended.table);
        }
    }

    /// A prompt whose last block is begun, and an answer that is to come.
    fn admit(&mut self, prompt: usize, hashes: Vec<BlockHash>, grows: usize, random: &mut Random) -> usize {
        self.make_room(prompt, random);
        let begun = Instant::now();
        let tokens = prompt * BLOCK_TOKENS - 1;
        let Admission { mut table, hit_blocks } =
            self.manager.admit(tokens, &hashes[..prompt - 1], 0).expect("there is room");
        self.spent += begun.elapsed();
        self.allocated += (prompt - hit_blocks) as u32;
        self.queried += prompt - 1;
        self.hits += hit_blocks;
        self.manager.publish(&mut table, &hashes[..prompt - 1]);
        self.live.push(Live { table, hashes, grows });
        hit_blocks
    }

    /// Every eighth sequence gets a block for its answer.
    fn grow(&mut self, random: &mut Random) {
        for i in 0..self.live.len() {
            if self.live[i].grows > 0 && random.below(8) == 0 && self.used() < self.most {
                let live = &mut self.live[i];
                live.grows -= 1;
                assert!(self.manager.grow(&mut live.table));
            }
        }
    }

    fn last(&self) -> &[BlockId] {
        self.live.last().expect("just admitted").table.blocks()
    }
}

/// How many pairs are no neighbours of the one before on either side.
fn runs(pairs: impl IntoIterator<Item = (BlockId, BlockId)>) -> usize {
    let mut last = None;
    let begins = |(ours, theirs): &(BlockId, BlockId)| {
        let neighbour = last == Some((ours.0.wrapping_sub(1), theirs.0.wrapping_sub(1)));
        last = Some((ours.0, theirs.0));
        !neighbour
    };
    pairs.into_iter().filter(begins).count()
}

/// Sums over some hand-offs.
#[derive(Debug, Default)]
struct Measured {
    hand_offs: usize,
    blocks: usize,
    /// Runs of neighbours in the source's and the destination's tables.
    source: usize,
    destination: usize,
    /// Descriptors, if neighbours are merged as they come in the sequence, and in memory.
    in_sequence: usize,
    in_memory: usize,
}

struct Cluster {
    random: Random,
    source: Engine,
    destination: Engine,
    /// What each has said, and how long it is.
    conversations: Vec<(u64, usize)>,
    next_words: u64,
}

impl Cluster {
    fn new(prefix_cache: bool, percent: usize) -> Self {
        Self {
            random: Random(7),
            source: Engine::new(prefix_cache, percent),
            destination: Engine::new(prefix_cache, percent),
            conversations: vec![(0, 0); CONVERSATIONS],
            next_words: 1,
        }
    }

    /// A turn of a conversation, or its beginning; some are more often.
    fn prompt(&mut self) -> (usize, Vec<BlockHash>) {
        let place = self.random.below(CONVERSATIONS).min(self.random.below(CONVERSATIONS));
        let (mut words, mut len) = self.conversations[place];
        len += 1 + self.random.below(MOST_PROMPT / 3);
        if len > MOST_PROMPT || words == 0 {
            (words, len) = (self.next_words, 1 + self.random.below(MOST_PROMPT));
            self.next_words += 1;
        }
        self.conversations[place] = (words, len);
        let hash = |i: usize| BlockHash((u128::from(words) << 32 | i as u128).to_le_bytes());
        (len, (0..len + MOST_ANSWER).map(hash).collect())
    }

    fn hand_over(&mut self, measured: &mut Measured) {
        let (prompt, hashes) = self.prompt();
        let grows = self.random.below(MOST_ANSWER + 1);
        self.source.admit(prompt, hashes.clone(), 0, &mut self.random);
        let first = self.destination.admit(prompt, hashes, grows, &mut self.random);
        let (from, to) = (&self.source.last()[first..], &self.destination.last()[first..]);
        let mut pairs: Vec<_> = from.iter().copied().zip(to.iter().copied()).collect();
        measured.hand_offs += 1;
        measured.blocks += pairs.len();
        measured.source += runs(from.iter().map(|id| (*id, *id)));
        measured.destination += runs(to.iter().map(|id| (*id, *id)));
        measured.in_sequence += runs(pairs.iter().copied());
        pairs.sort_unstable();
        measured.in_memory += runs(pairs);
        self.destination.grow(&mut self.random);
    }

    fn hand_overs(&mut self, count: usize) -> Measured {
        let mut measured = Measured::default();
        (0..count).for_each(|_| self.hand_over(&mut measured));
        self.source.manager.check();
        self.destination.manager.check();
        measured
    }
}

/// Without placement, a table of 148 blocks is in 130 pieces and more after so long.
#[test]
fn tables_stay_whole_in_long_use() {
    for (prefix_cache, percent, most) in
        [(false, 50, 1.5), (false, 80, 3.0), (false, 95, 8.0), (true, 50, 60.0)]
    {
        let mut cluster = Cluster::new(prefix_cache, percent);
        cluster.hand_overs(1_500);
        let Measured { hand_offs, in_memory, .. } = cluster.hand_overs(300);
        let each = in_memory as f64 / hand_offs as f64;
        assert!(each <= most, "{each} descriptors for a hand-off, {percent} % used, cache {prefix_cache}");
    }
}

#[test]
#[ignore = "a measurement"]
fn placement() {
    println!(
        "{:<6} {:>5} {:>6} | {:>6} {:>7} {:>11} | {:>11} {:>9} | {:>6} | {:>8}",
        "cache",
        "used",
        "",
        "blocks",
        "source",
        "destination",
        "in sequence",
        "in memory",
        "hits",
        "ns/block"
    );
    for (prefix_cache, percent) in
        [false, true].into_iter().flat_map(|cache| [50, 80, 95].map(|used| (cache, used)))
    {
        let mut cluster = Cluster::new(prefix_cache, percent);
        for (when, count) in [("fresh", 8), ("", 5_000), ("long", 2_000)] {
            for engine in [&mut cluster.source, &mut cluster.destination] {
                (engine.queried, engine.hits, engine.spent, engine.allocated) = (0, 0, Duration::ZERO, 0);
            }
            let measured = cluster.hand_overs(count);
            if when.is_empty() {
                continue;
            }
            let each = |sum: usize| sum as f64 / measured.hand_offs as f64;
            let (a, b) = (&cluster.source, &cluster.destination);
            println!(
                "{:<6} {:>4}% {:>6} | {:>6.1} {:>7.1} {:>11.1} | {:>11.1} {:>9.1} | {:>5.1}% | {:>8.0}",
                if prefix_cache { "on" } else { "off" },
                percent,
                when,
                each(measured.blocks),
                each(measured.source),
                each(measured.destination),
                each(measured.in_sequence),
                each(measured.in_memory),
                100.0 * (a.hits + b.hits) as f64 / (a.queried + b.queried) as f64,
                (a.spent + b.spent).as_nanos() as f64 / f64::from(a.allocated + b.allocated),
            );
        }
    }
}
