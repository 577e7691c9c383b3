//! The transport: paths between memories, and the bytes that move along them.
//!
//! A post's peer is whoever its path leads to by the metadata it was set up with: a life of a process, not a name. Bytes move in
//! pieces that do not care for the borders of blocks; a piece of a dead poster still lands, until its target has been fenced.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use baton_engine::BlockState;
use baton_model::KvMemory;
use baton_proto::{Direction, Input, PostId, RankPair};
use baton_types::{BlockId, EngineId, KvLayout, TransferId, UnitId};

use crate::fault::Fault;
use crate::node::{Life, Process, read_metadata};
use crate::scenario::EngineSpec;
use crate::split::Place;
use crate::stranger::is_stranger;
use crate::world::{Event, World};

/// How often a post looks whether it is let in.
const JOIN_POLL: Duration = Duration::from_millis(1);

#[derive(Debug, Default)]
pub(crate) struct Fabric {
    paths: BTreeMap<(Life, EngineId), Path>,
    pub posts: BTreeMap<u64, Moving>,
    next: u64,
}

/// One side's half. Bytes flow only while both sides have theirs, and the end of one is the end of the other.
#[derive(Clone, Copy, Debug)]
struct Path {
    target: Life,
    /// Of this half; new each time it is set up.
    generation: u64,
    /// The generation of the other half that this one has joined.
    joined: Option<u64>,
}

/// What an endpoint asked for.
#[derive(Debug)]
pub(crate) struct Order {
    pub post: PostId,
    pub engine: EngineId,
    pub direction: Direction,
    pub ranks: RankPair,
    pub pairs: Vec<(UnitId, UnitId)>,
    pub notify: Option<Vec<u8>>,
}

/// A post whose bytes are on their way.
#[derive(Debug)]
pub(crate) struct Moving {
    owner: Life,
    owner_id: EngineId,
    target: Life,
    order: Order,
    /// Those that it may belong to: more than one if blocks are shared by several.
    transfers: Vec<TransferId>,
    /// Memories live as long as something is in flight, also when their process does not.
    ours: Pool,
    theirs: Pool,
    /// The target's half of the path that lets the bytes in, as long as it is the one that they began with.
    admission: Option<u64>,
    /// Pieces in all, moved, and after how many it breaks off.
    pieces: u64,
    moved: u64,
    breaks_after: Option<u64>,
    /// Between two pieces, in microseconds.
    piece_us: u64,
}

/// One side's memory, and how it is cut.
#[derive(Clone, Debug)]
struct Pool {
    layout: KvLayout,
    /// None where no bytes move.
    memory: Option<KvMemory>,
    block_units: u32,
}

impl Fabric {
    /// This life's half of a path to that one.
    fn half(&self, of: Life, to: Life) -> Option<&Path> {
        self.paths.iter().find(|((owner, _), path)| *owner == of && path.target == to).map(|(_, path)| path)
    }

    fn half_mut(&mut self, of: Life, to: Life) -> Option<&mut Path> {
        self.paths
            .iter_mut()
            .find(|((owner, _), path)| *owner == of && path.target == to)
            .map(|(_, path)| path)
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

impl World {
    pub fn add_path(&mut self, node: usize, engine: EngineId, metadata: &[u8]) {
        let owner = self.nodes[node].life().expect("it has just spoken");
        let target = read_metadata(metadata);
        if !(self.is_alive(target) || is_stranger(target)) || self.strikes(Fault::PathFails) {
            let at = self.after_delay();
            return self.queue.push(at, Event::PathRefused { owner, engine });
        }
        let generation = self.fabric.number();
        // It joins whatever half is there. A half that had joined another one before has lost that.
        let other = self.fabric.half_mut(target, owner);
        let is_of_another = other.as_ref().is_some_and(|other| other.joined.is_some());
        let met = other.as_ref().map(|other| other.generation);
        let lost = other.is_some_and(|other| *other.joined.get_or_insert(generation) != generation);
        // Unless each end of a path is its own: then the next one waits for another half, and what is posted to it as well.
        let joined = met.filter(|_| !(is_of_another && self.scenario.network.halves_pair_once));
        if let Some(other) = met.filter(|_| lost) {
            self.path_falls(target, other);
        }
        self.fabric.paths.insert((owner, engine), Path { target, generation, joined });
        if joined.is_none() {
            let patience = self.random.duration(self.scenario.network.join_us.clone());
            self.queue.push(self.now + patience, Event::PathUnjoined { owner, generation });
        }
    }

    /// There will be no half here. The peer's own stays un-joined, and what it has posted waits for us until it loses its patience.
    pub fn path_refused(&mut self, owner: Life, engine: EngineId) {
        self.tell_proto(owner.node, Input::PathRefused { engine });
    }

    /// The peer has not set up its half in time.
    pub fn path_unjoined(&mut self, owner: Life, generation: u64) {
        let waits = |path: &Path| path.generation == generation && path.joined.is_none();
        if self.fabric.paths.values().any(waits) {
            self.path_down(owner, generation);
        }
    }

    pub fn remove_path(&mut self, node: usize, engine: EngineId) {
        let owner = self.nodes[node].life().expect("it has just spoken");
        // Down already: PathLost is on its way, and comes once.
        let Some(path) = self.fabric.paths.get(&(owner, engine)) else { return };
        let generation = path.generation;
        let at = self.after_delay();
        self.queue.push(at, Event::PathDown { owner, generation });
    }

    /// A half is broken; its transport notices late.
    fn path_falls(&mut self, owner: Life, generation: u64) {
        let late = self.random.duration(self.scenario.network.fence_us.clone());
        self.queue.push(self.now + late, Event::PathDown { owner, generation });
    }

    /// The fence: from here on nothing lands here that was posted before.
    pub fn path_down(&mut self, owner: Life, generation: u64) {
        let mut known = self.fabric.paths.iter().filter(|((life, _), _)| *life == owner);
        let Some(((_, engine), path)) = known.find(|(_, path)| path.generation == generation) else { return };
        let (engine, target) = (engine.clone(), path.target);
        self.fabric.paths.remove(&(owner, engine.clone()));
        let name = &self.nodes[owner.node].name;
        self.log.line(self.now, name, format_args!("is fenced off {engine}"));
        let ours = |post: &Moving| (post.owner, post.target) == (owner, target);
        let cut: Vec<u64> =
            self.fabric.posts.iter().filter(|(_, post)| ours(post)).map(|(key, _)| *key).collect();
        for key in cut {
            self.end_post(key, false);
        }
        let other = self.fabric.half(target, owner).filter(|other| other.joined == Some(generation));
        if let Some(other) = other.map(|other| other.generation) {
            self.path_falls(target, other);
        }
        // At once: it is a word inside one process, and what the peer says after it has noticed must not be heard before it.
        self.queue.push(self.now, Event::Proto { to: owner, input: Input::PathLost { engine } });
    }

    /// The process at the end of these paths is dead. Its own go with it; what it posted may land until the fence.
    pub fn fence_off(&mut self, dead: Life) {
        self.fabric.paths.retain(|(owner, _), _| *owner != dead);
        let broken = self.fabric.paths.iter().filter(|(_, path)| path.target == dead);
        let broken: Vec<(Life, u64)> = broken.map(|((owner, _), path)| (*owner, path.generation)).collect();
        for (owner, generation) in broken {
            self.path_falls(owner, generation);
        }
        // Nobody waits for what it was to read.
        self.fabric.posts.retain(|_, post| post.owner != dead || post.order.direction == Direction::Write);
    }

    pub fn post(&mut self, node: usize, order: Order) {
        let process = self.nodes[node].process.as_ref().expect("it has just spoken");
        let (owner, owner_id) = (process.life, process.id.clone());
        let pool = |spec: &EngineSpec, process: &Process| Pool {
            layout: spec.layout.clone(),
            memory: process.runner.memory(),
            block_units: spec.block_units,
        };
        let ours = pool(&self.nodes[node].spec, process);
        let path = self.fabric.paths.get(&(owner, order.engine.clone())).copied();
        let theirs = path.and_then(|path| {
            let process = self.nodes.get(path.target.node)?.process.as_ref()?;
            let spec = &self.nodes[path.target.node].spec;
            (process.life == path.target).then(|| (path.target, pool(spec, process)))
        });
        let Some((target, theirs)) = theirs else {
            let at = self.after_delay();
            let input = Input::Moved { post: order.post, ok: false };
            return self.queue.push(at, Event::Proto { to: owner, input });
        };
        let units: Vec<UnitId> = order.pairs.iter().map(|(_, unit)| *unit).collect();
        let transfers = self.ledger.transfers_of(target, owner, &units);
        assert!(
            !transfers.is_empty(),
            "I5: {order:?} of {owner:?} goes where {target:?} has granted nothing"
        );
        self.tally.posts += 1;
        let elements = order.pairs.len() * shared_heads(&order, &ours, &theirs).len() * ours.head_elements();
        let pieces = self.random.within(1..self.scenario.network.pieces + 1).min(elements as u64);
        let block_us = self.random.within(self.scenario.network.block_us.clone());
        let usual_us = block_us * order.pairs.len() as u64;
        // So slow that the lease is in danger.
        let lease_us = self.scenario.proto.lease_ms * 1_000;
        let slow = self.strikes(Fault::PostSlow);
        let slow_us = slow.then(|| {
            let random = self.luck.of(Fault::PostSlow);
            match random.below(3) {
                0 => random.skewed(1_000..lease_us * 3),
                1 => random.within(lease_us / 2..lease_us * 3),
                _ => random.within(lease_us * 9 / 10..lease_us * 6 / 5),
            }
        });
        let piece_us = slow_us.unwrap_or(usual_us) / pieces;
        let breaks = self.strikes(Fault::PostFails);
        let breaks_after = breaks.then(|| self.luck.of(Fault::PostFails).below(pieces));
        let key = self.fabric.number();
        let (admission, moved) = (None, 0);
        let moving = Moving {
            owner,
            owner_id,
            target,
            order,
            transfers,
            ours,
            theirs,
            admission,
            pieces,
            moved,
            breaks_after,
            piece_us,
        };
        self.fabric.posts.insert(key, moving);
        self.next_piece(key);
    }

    fn next_piece(&mut self, key: u64) {
        let piece_us = self.fabric.posts[&key].piece_us;
        let at = self.now + self.random.duration(piece_us / 2..piece_us * 3 / 2 + 1);
        self.queue.push(at, Event::Piece { post: key });
    }

    pub fn piece_moves(&mut self, key: u64) {
        let Some(post) = self.fabric.posts.get(&key) else { return };
        let (owner, target) = (post.owner, post.target);
        let apart = self.apart_until(Place::Node(owner.node), Place::Node(target.node));
        if let Some(until) = apart.filter(|_| self.scenario.network.split_stops_bytes) {
            return self.queue.push(until, Event::Piece { post: key });
        }
        let joined = self.fabric.half(owner, target).and_then(|half| half.joined).or(post.admission);
        if joined.is_none() {
            // Bytes wait until the target lets them in. What a dead process had not begun is lost with it.
            return if self.is_alive(owner) {
                self.queue.push(self.now + JOIN_POLL, Event::Piece { post: key });
            } else {
                self.fabric.posts.remove(&key);
            };
        }
        let open = self.fabric.half(target, owner).map(|half| half.generation);
        let post = self.fabric.posts.get_mut(&key).expect("looked up above");
        post.admission = joined;
        if joined != open || post.breaks_after == Some(post.moved) {
            return self.end_post(key, false);
        }
        let post = &self.fabric.posts[&key];
        self.check_piece(post);
        self.note_late_read(key);
        let post = self.fabric.posts.get_mut(&key).expect("looked up above");
        post.move_piece();
        post.moved += 1;
        if post.moved == post.pieces {
            self.end_post(key, true);
        } else {
            self.next_piece(key);
        }
    }

    /// I3, from outside: no byte of a post lands in a block that its owner may use for something else, nor comes out of one.
    fn check_piece(&self, post: &Moving) {
        let (written, write) = match post.order.direction {
            Direction::Read => (post.owner, false),
            Direction::Write => (post.target, true),
        };
        let state = |life: Life, unit: UnitId| {
            let node = &self.nodes[life.node];
            let process = node.process.as_ref().filter(|process| process.life == life);
            let block = BlockId(unit.0 / node.spec.block_units);
            process.map(|process| process.core.block_state(block))
        };
        for (ours, theirs) in &post.order.pairs {
            let to = if write { *theirs } else { *ours };
            let found = state(written, to);
            assert!(
                matches!(found, None | Some(BlockState::Receiving | BlockState::Quarantined)),
                "I3: a byte of {:?} lands in {to:?} of {}, which is {found:?}",
                post.order,
                self.nodes[written.node].name
            );
            if write {
                let found = state(post.owner, *ours);
                assert_ne!(found, Some(BlockState::Free), "I3: {:?} reads {ours:?}", post.order);
            } else if self.is_bound(post) {
                let found = state(post.target, *theirs);
                assert_ne!(
                    found,
                    Some(BlockState::Free),
                    "I3: {theirs:?} is read, and free: {:?}",
                    post.order
                );
            }
        }
    }

    /// A reader must be able to tell that a byte came too late: by then the source may have put something else there.
    fn note_late_read(&mut self, key: u64) {
        let post = &self.fabric.posts[&key];
        let reads = post.order.direction == Direction::Read && self.is_alive(post.target);
        if reads && !self.is_bound(post) {
            let (owner, transfers) = (post.owner, post.transfers.clone());
            self.ledger.read_late(owner, &transfers);
        }
    }

    /// Whether the other side still answers for what is moved.
    fn is_bound(&self, post: &Moving) -> bool {
        let target = self.nodes.get(post.target.node).and_then(|node| node.process.as_ref());
        let target = target.filter(|process| process.life == post.target);
        target.is_some_and(|process| post.transfers.iter().any(|transfer| process.core.knows(*transfer)))
    }

    /// The last of a post: its completion, and its notification, each in its own time.
    fn end_post(&mut self, key: u64, moved: bool) {
        let post = self.fabric.posts.remove(&key).expect("a post ends once");
        let ok = moved && !self.strikes(Fault::PostLies);
        if ok {
            self.tally.posts_done += 1
        } else {
            self.tally.posts_failed += 1
        }
        let at = self.after_delay();
        self.queue
            .push(at, Event::Proto { to: post.owner, input: Input::Moved { post: post.order.post, ok } });
        if let Some(bytes) = post.order.notify.filter(|_| moved) {
            let copies = match () {
                () if self.strikes(Fault::NotifyLost) => 0,
                () if self.strikes(Fault::NotifyDoubled) => 2,
                () => 1,
            };
            for _ in 0..copies {
                let at = self.arrival(Place::Node(post.owner.node), Place::Node(post.target.node));
                let input = Input::Notified { engine: post.owner_id.clone(), bytes: bytes.clone() };
                self.queue.push(at, Event::Proto { to: post.target, input });
            }
        }
    }

    /// I3, from outside: who has said that he touches the blocks of a transfer no more has no post of it on its way.
    pub fn check_given_back(&self, from: Life, transfer: TransferId) {
        let of_it = |post: &&Moving| post.owner == from && post.transfers == [transfer];
        let moving = self.fabric.posts.values().find(of_it).map(|post| &post.order);
        assert!(moving.is_none(), "I3: {from:?} has let go of {transfer}, and moves {moving:?}");
    }
}

impl Moving {
    /// The next part of all its elements, which may begin and end in the middle of a unit. Types are converted, which loses
    /// nothing: the emulated model stores what is exact in all of them.
    fn move_piece(&mut self) {
        let heads = shared_heads(&self.order, &self.ours, &self.theirs);
        let of_unit = (heads.len() * self.ours.head_elements()) as u64;
        let all = self.order.pairs.len() as u64 * of_unit;
        let (from, to) = (all * self.moved / self.pieces, all * (self.moved + 1) / self.pieces);
        for index in from / of_unit..to.div_ceil(of_unit) {
            let (ours, theirs) = self.order.pairs[index as usize];
            let start = (from.max(index * of_unit) - index * of_unit) as usize;
            let end = (to.min((index + 1) * of_unit) - index * of_unit) as usize;
            let (source, from_unit, sink, to_unit) = match self.order.direction {
                Direction::Read => (&self.theirs, theirs, &self.ours, ours),
                Direction::Write => (&self.ours, ours, &self.theirs, theirs),
            };
            let (Some(whence), Some(into)) = (&source.memory, &sink.memory) else { return };
            let moved = whence.read_unit(from_unit, source.block_units, heads.clone());
            let mut unit = into.read_unit(to_unit, sink.block_units, heads.clone());
            unit[start..end].copy_from_slice(&moved[start..end]);
            into.write_unit(to_unit, sink.block_units, heads.clone(), &unit);
        }
    }
}

impl Pool {
    /// Elements of one head of a unit, over all layers, K and V.
    fn head_elements(&self) -> usize {
        let tokens = self.layout.block_tokens / self.block_units;
        (2 * self.layout.layers * tokens * self.layout.head_dim) as usize
    }
}

/// The heads that both ranks hold.
fn shared_heads(order: &Order, ours: &Pool, theirs: &Pool) -> Range<usize> {
    let of = |pool: &Pool, rank: u32| {
        let heads = pool.layout.rank_heads();
        rank as usize * heads..(rank as usize + 1) * heads
    };
    let (ours, theirs) = (of(ours, order.ranks.ours), of(theirs, order.ranks.theirs));
    let shared = ours.start.max(theirs.start)..ours.end.min(theirs.end);
    assert!(!shared.is_empty(), "the ranks of a post share heads: {order:?}");
    shared
}
