//! Units between pools of any two shapes: the right elements land, and nothing else is touched.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use baton_transport::{
    Direction, Event, KvPool, KvPost, MemoryHub, MemoryTransport, PostId, ShmRegion, ShmTransport, TcpConfig,
    TcpTransport, TransferHandle, TransferThread, Transport, TransportLimits,
};
use baton_types::{EngineId, EngineName, HeapRegion, KvDtype, KvLayout, KvOrder, MemoryRegion, UnitId};
use half::{bf16, f16};
use proptest::prelude::*;

/// Where one engine differs from another.
#[derive(Clone, Copy, Debug)]
struct Shape {
    block_units: u32,
    ranks: u32,
    dtype: KvDtype,
}

/// What they share.
#[derive(Clone, Copy, Debug)]
struct Model {
    layers: u32,
    kv_heads: u32,
    head_dim: u32,
    unit_tokens: u32,
    units: u32,
    order: KvOrder,
}

#[derive(Clone, Debug)]
enum Over {
    Memory(Arc<MemoryHub>),
    Shm,
    Tcp { crc: bool },
}

struct Side {
    id: EngineId,
    model: Model,
    layout: KvLayout,
    blocks: u32,
    region: Arc<dyn MemoryRegion>,
    metadata: Vec<u8>,
    pool: KvPool,
    handle: TransferHandle,
    events: Receiver<Event>,
}

impl Side {
    fn new(name: &str, model: Model, shape: Shape, over: &Over) -> Self {
        let id = EngineId::new(EngineName::new(name).unwrap(), 1);
        let Model { layers, kv_heads, head_dim, unit_tokens, units, order } = model;
        let Shape { block_units, ranks, dtype } = shape;
        let block_tokens = unit_tokens * block_units;
        let layout = KvLayout { layers, kv_heads, head_dim, dtype, block_tokens, ranks, order };
        let blocks = units.div_ceil(block_units);
        let bytes = blocks as usize * layout.block_bytes();
        let limits = TransportLimits::default();
        let (mut transport, region): (Box<dyn Transport>, Arc<dyn MemoryRegion>) = match over {
            Over::Memory(hub) => (
                Box::new(MemoryTransport::new(id.clone(), hub.clone(), limits)),
                Arc::new(HeapRegion::new(bytes)),
            ),
            Over::Shm => (
                Box::new(ShmTransport::new(id.clone(), limits).unwrap()),
                Arc::new(ShmRegion::new(bytes).unwrap()),
            ),
            Over::Tcp { crc } => {
                let config = TcpConfig { crc: *crc, ..TcpConfig::default() };
                let transport = TcpTransport::new(id.clone(), limits, config).unwrap();
                (Box::new(transport), Arc::new(HeapRegion::new(bytes)))
            }
        };
        transport.register(region.clone()).unwrap();
        let metadata = transport.metadata();
        let pool = KvPool::new(layout.clone(), blocks, block_units).unwrap();
        let (sender, events) = channel();
        let sink = move |event| sender.send(event).unwrap();
        let handle = TransferThread::spawn(transport, pool.clone(), sink).unwrap();
        Self { id, model, layout, blocks, region, metadata, pool, handle, events }
    }

    fn add(&self, peer: &Side) {
        self.handle.add_peer(peer.id.clone(), peer.metadata.clone(), peer.pool.shape()).unwrap();
    }

    fn next(&self) -> Event {
        self.events.recv_timeout(Duration::from_secs(20)).unwrap()
    }

    /// Where one element of a unit is, by the definition of the layout and nothing else.
    fn element(&self, unit: u32, part: u32, head: u32, token: u32, at: u32) -> *mut u8 {
        let token = unit * self.model.unit_tokens + token;
        let (block, slot) = (token / self.layout.block_tokens, token % self.layout.block_tokens);
        let (layer, is_v) = (part as usize / 2, part as usize % 2);
        let run =
            self.layout.head_run_offset(self.blocks as usize, block as usize, layer, is_v, head as usize);
        let offset = run + (slot * self.layout.head_dim + at) as usize * self.layout.dtype.bytes();
        assert!(offset + self.layout.dtype.bytes() <= self.region.len());
        // SAFETY: inside the region (asserted).
        unsafe { self.region.base().as_ptr().add(offset) }
    }

    fn read(&self, at: *const u8) -> f32 {
        // SAFETY: an aligned element; the test moves nothing meanwhile.
        unsafe {
            match self.layout.dtype {
                KvDtype::F32 => at.cast::<f32>().read(),
                KvDtype::F16 => at.cast::<f16>().read().to_f32(),
                _ => at.cast::<bf16>().read().to_f32(),
            }
        }
    }

    fn write(&self, at: *mut u8, value: f32) {
        // SAFETY: as in `read`.
        unsafe {
            match self.layout.dtype {
                KvDtype::F32 => at.cast::<f32>().write(value),
                KvDtype::F16 => at.cast::<f16>().write(f16::from_f32(value)),
                _ => at.cast::<bf16>().write(bf16::from_f32(value)),
            }
        }
    }

    /// Calls `f(head, element)` for every element of a unit.
    fn each(&self, unit: u32, mut f: impl FnMut(u32, *mut u8)) {
        for part in 0..2 * self.model.layers {
            for head in 0..self.model.kv_heads {
                for token in 0..self.model.unit_tokens {
                    (0..self.model.head_dim)
                        .for_each(|at| f(head, self.element(unit, part, head, token, at)));
                }
            }
        }
    }

    /// Gives each element a value of its own, as far as there are so many that all types hold exactly.
    fn fill(&self, seed: u32) {
        let mut state = seed;
        for unit in 0..self.model.units {
            self.each(unit, |_, element| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                self.write(element, (state >> 24) as f32 - 128.0);
            });
        }
    }

    fn values(&self, unit: u32) -> Vec<(u32, f32)> {
        let mut values = Vec::new();
        self.each(unit, |head, element| values.push((head, self.read(element))));
        values
    }
}

fn shapes(kv_heads: u32) -> impl Strategy<Value = (Shape, Shape)> {
    let ranks = move |less: u32, times: u32| {
        let (less, more) = (less, less * times);
        if kv_heads.is_multiple_of(more) { (less, more) } else { (1, 1) }
    };
    let dtype = || prop_oneof![3 => Just(KvDtype::F32), 1 => Just(KvDtype::F16), 1 => Just(KvDtype::Bf16)];
    let ranks = (1u32..4, 1u32..5, any::<bool>()).prop_map(move |(less, times, swap)| {
        let (a, b) = ranks(less, times);
        if swap { (b, a) } else { (a, b) }
    });
    (1u32..5, 1u32..5, any::<bool>(), ranks, dtype(), dtype()).prop_map(
        |(a, b, equal, ranks, ours, theirs)| {
            let b = if equal { a } else { b };
            let ours = Shape { block_units: a, ranks: ranks.0, dtype: ours };
            (ours, Shape { block_units: b, ranks: ranks.1, dtype: theirs })
        },
    )
}

/// Pairs of units: runs of neighbours, as transfers have them, so that whole blocks are among them.
fn pairs() -> impl Strategy<Value = Vec<(UnitId, UnitId)>> {
    proptest::collection::vec((0u32..24, 0u32..24, 1u32..9), 0..4).prop_map(|runs| {
        let mut pairs: Vec<(UnitId, UnitId)> = Vec::new();
        for (ours, theirs, len) in runs {
            for i in 0..len {
                let (our, their) = (UnitId((ours + i) % 24), UnitId((theirs + i) % 24));
                // No unit is written twice: which one is last would be chance.
                if !pairs.iter().any(|pair| pair.0 == our || pair.1 == their) {
                    pairs.push((our, their));
                }
            }
        }
        pairs
    })
}

/// Moves, and compares every element of both pools with a copy element by element.
fn check(a: &Side, b: &Side, direction: Direction, ranks: (u32, u32), pairs: &[(UnitId, UnitId)]) {
    a.fill(1);
    b.fill(2);
    let (source, sink) = match direction {
        Direction::Read => (b, a),
        Direction::Write => (a, b),
    };
    let units = 0..a.model.units;
    let mut want: Vec<Vec<(u32, f32)>> = units.clone().map(|unit| sink.values(unit)).collect();
    let source_before: Vec<_> = units.clone().map(|unit| source.values(unit)).collect();
    let shared = |head: u32| {
        head / a.layout.rank_heads() as u32 == ranks.0 && head / b.layout.rank_heads() as u32 == ranks.1
    };
    for &(our, their) in pairs {
        let (from, to) = match direction {
            Direction::Read => (their, our),
            Direction::Write => (our, their),
        };
        for (want, moved) in want[to.index()].iter_mut().zip(&source_before[from.index()]) {
            if shared(want.0) {
                *want = *moved;
            }
        }
    }
    let (peer, notify) = (b.id.clone(), Some(b"moved".to_vec()));
    let post = KvPost { id: PostId(7), direction, peer, ranks, pairs: pairs.to_vec(), notify };
    a.handle.post(post).unwrap();
    assert_eq!(a.next(), Event::Done(PostId(7)));
    assert_eq!(b.next(), Event::Notified { peer: a.id.clone(), bytes: b"moved".to_vec() });
    for unit in units {
        assert_eq!(sink.values(unit), want[unit as usize], "unit {unit}");
        assert_eq!(source.values(unit), source_before[unit as usize], "unit {unit} of the source");
    }
}

fn meet(model: Model, (ours, theirs): (Shape, Shape), over: &Over) -> (Side, Side) {
    let (a, b) = (Side::new("a", model, ours, over), Side::new("b", model, theirs, over));
    a.add(&b);
    b.add(&a);
    (a, b)
}

/// The pairs of ranks that share heads.
fn rank_pairs(a: &Side, b: &Side) -> Vec<(u32, u32)> {
    let (ours, theirs) = (a.layout.ranks, b.layout.ranks);
    let most = ours.max(theirs);
    (0..most).map(|i| (i / (most / ours), i / (most / theirs))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn any_units_move_between_any_shapes(
        (kv_heads, shapes) in prop_oneof![Just(1u32), Just(4), Just(6), Just(8)]
            .prop_flat_map(|heads| (Just(heads), shapes(heads))),
        layers in 1u32..3,
        unit_tokens in 1u32..4,
        pairs in pairs(),
        writes in any::<bool>(),
        order in prop_oneof![Just(KvOrder::BlockMajor), Just(KvOrder::LayerMajor)],
        over in prop_oneof![
            Just(Over::Memory(MemoryHub::new())),
            Just(Over::Shm),
            any::<bool>().prop_map(|crc| Over::Tcp { crc }),
        ],
    ) {
        // 24 units are whole blocks of 1 to 4 units.
        let model = Model { layers, kv_heads, head_dim: 4, unit_tokens, units: 24, order };
        let (a, b) = meet(model, shapes, &over);
        let direction = if writes { Direction::Write } else { Direction::Read };
        for ranks in rank_pairs(&a, &b) {
            check(&a, &b, direction, ranks, &pairs);
        }
    }
}

/// More runs than one post of the transport takes, of blocks and of units: one event, one notification, after every byte.
#[test]
fn a_post_that_has_to_be_split_ends_once() {
    let shape = |block_units, ranks| Shape { block_units, ranks, dtype: KvDtype::F32 };
    let (by_block, by_layer) = (KvOrder::BlockMajor, KvOrder::LayerMajor);
    for (ours, theirs, order, layers, units) in [
        (shape(1, 1), shape(3, 1), by_block, 16, 150),
        (shape(2, 2), shape(2, 1), by_block, 16, 150),
        (shape(1, 8), shape(1, 1), by_block, 16, 150),
        (shape(1, 1), shape(1, 1), by_layer, 80, 120),
    ] {
        let model = Model { layers, kv_heads: 8, head_dim: 2, unit_tokens: 1, units, order };
        let all = |skip| (skip..units).map(|i| (UnitId(i), UnitId(i))).collect::<Vec<_>>();
        let (a, b) = meet(model, (ours, theirs), &Over::Shm);
        for (direction, ranks) in [(Direction::Write, (0, 0)), (Direction::Read, (ours.ranks - 1, 0))] {
            check(&a, &b, direction, ranks, &all(1));
        }
        assert!(a.events.try_recv().is_err() && b.events.try_recv().is_err());
    }
}

/// Many chunks of tcp, converted at one end: each byte of the wire is of the peer's type.
#[test]
fn elements_are_converted_over_tcp() {
    let order = KvOrder::BlockMajor;
    let model = Model { layers: 8, kv_heads: 4, head_dim: 32, unit_tokens: 4, units: 96, order };
    let all: Vec<_> = (0..96).map(|i| (UnitId(i), UnitId((i + 7) % 96))).collect();
    let types = [KvDtype::F32, KvDtype::F16, KvDtype::Bf16];
    for (ours, theirs) in types.iter().flat_map(|ours| types.map(|theirs| (*ours, theirs))) {
        let shape = |block_units, dtype| Shape { block_units, ranks: 1, dtype };
        let (a, b) = meet(model, (shape(2, ours), shape(2, theirs)), &Over::Tcp { crc: true });
        for direction in [Direction::Write, Direction::Read] {
            check(&a, &b, direction, (0, 0), &all);
        }
    }
}

#[test]
fn ranks_and_units_that_are_not_there_or_share_no_head_are_refused() {
    let order = KvOrder::BlockMajor;
    let model = Model { layers: 1, kv_heads: 4, head_dim: 4, unit_tokens: 4, units: 8, order };
    let shape = |ranks| Shape { block_units: 2, ranks, dtype: KvDtype::F32 };
    let (a, b) = meet(model, (shape(4), shape(2)), &Over::Shm);
    let ask = |ranks, pair: (u32, u32)| {
        let (peer, pairs) = (b.id.clone(), vec![(UnitId(pair.0), UnitId(pair.1))]);
        a.handle
            .post(KvPost { id: PostId(1), direction: Direction::Write, peer, ranks, pairs, notify: None })
            .unwrap();
        matches!(a.next(), Event::Done(_))
    };
    assert!(ask((3, 1), (7, 7)));
    for (ranks, pair) in
        [((4, 1), (0, 0)), ((3, 2), (0, 0)), ((3, 0), (0, 0)), ((3, 1), (8, 0)), ((3, 1), (0, 8))]
    {
        assert!(!ask(ranks, pair), "{ranks:?} {pair:?}");
    }
}
