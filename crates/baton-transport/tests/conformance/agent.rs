//! An agent with its region, and two of them that know each other.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use baton_transport::{
    Descriptor, Direction, Event, ListId, Post, PostId, Transport, TransportError, TransportLimits,
};
use baton_types::{EngineId, EngineName, MemoryRegion};

use crate::fabric::Fabric;

/// Nothing here takes longer, unless it never happens.
pub const SOON: Duration = Duration::from_secs(10);

pub fn engine(name: &str, incarnation: u64) -> EngineId {
    EngineId::new(EngineName::new(name).unwrap(), incarnation)
}

pub struct Agent {
    pub id: EngineId,
    pub transport: Box<dyn Transport>,
    pub region: Arc<dyn MemoryRegion>,
    pub events: Vec<Event>,
}

impl Agent {
    pub fn new(fabric: &dyn Fabric, id: EngineId, region_bytes: usize, limits: TransportLimits) -> Self {
        let mut transport = fabric.transport(id.clone(), limits);
        let region = fabric.region(region_bytes);
        transport.register(region.clone()).unwrap();
        Self { id, transport, region, events: Vec::new() }
    }

    pub fn add(&mut self, peer: &Agent) -> Result<(), TransportError> {
        self.transport.add_peer(&peer.id, &peer.transport.metadata())
    }

    pub fn fill(&self, byte: impl Fn(usize) -> u8) {
        for i in 0..self.region.len() {
            // SAFETY: inside the region; the test moves nothing meanwhile.
            unsafe { self.region.base().as_ptr().add(i).write(byte(i)) };
        }
    }

    pub fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= self.region.len());
        // SAFETY: inside the region; a peer that writes meanwhile gives wrong bytes, which is what a test
        // looks for.
        (offset..offset + len)
            .map(|i| unsafe { self.region.base().as_ptr().add(i).read_volatile() })
            .collect()
    }

    pub fn all_bytes(&self) -> Vec<u8> {
        self.bytes(0, self.region.len())
    }

    /// Events of which `f` makes something.
    pub fn seen<T>(&self, f: impl Fn(&Event) -> Option<T>) -> Vec<T> {
        self.events.iter().filter_map(f).collect()
    }

    pub fn has(&self, event: &Event) -> bool {
        self.events.contains(event)
    }

    pub fn done(&self) -> Vec<u64> {
        self.seen(|event| if let Event::Done(PostId(id)) = event { Some(*id) } else { None })
    }

    pub fn failed(&self) -> Vec<u64> {
        self.seen(|event| if let Event::Failed(PostId(id), _) = event { Some(*id) } else { None })
    }

    pub fn notified(&self) -> Vec<Vec<u8>> {
        self.seen(|event| if let Event::Notified { bytes, .. } = event { Some(bytes.clone()) } else { None })
    }
}

/// Polls the agents in turn until `goal` is reached; panics if that takes too long.
pub fn pump(agents: &mut [&mut Agent], goal: impl Fn(&[&mut Agent]) -> bool) {
    let begin = Instant::now();
    while !goal(agents) {
        assert!(
            begin.elapsed() < SOON,
            "never happened; events: {:?}",
            agents.iter().map(|a| &a.events).collect::<Vec<_>>()
        );
        let mut more = false;
        for agent in agents.iter_mut() {
            more |= agent.transport.poll(&mut agent.events);
        }
        if !more {
            agents[0].transport.wait(Duration::from_millis(1));
        }
    }
}

/// Polls for a while: for what must not happen.
pub fn pump_for(agents: &mut [&mut Agent], time: Duration) {
    let begin = Instant::now();
    pump(agents, |_| begin.elapsed() >= time);
}

/// Two agents that have added each other, with lists of all their blocks.
pub struct Pair {
    pub a: Agent,
    pub b: Agent,
    pub a_lists: (ListId, ListId),
    pub b_lists: (ListId, ListId),
}

/// A list of every block.
pub fn every_block(block_bytes: usize, blocks: usize) -> Vec<Descriptor> {
    (0..blocks).map(|i| Descriptor { offset: (i * block_bytes) as u64, len: block_bytes as u32 }).collect()
}

impl Pair {
    pub fn new(fabric: &dyn Fabric, block_bytes: usize, blocks: usize) -> Self {
        Self::with_limits(fabric, block_bytes, blocks, TransportLimits::default())
    }

    pub fn with_limits(
        fabric: &dyn Fabric,
        block_bytes: usize,
        blocks: usize,
        limits: TransportLimits,
    ) -> Self {
        let mut a = Agent::new(fabric, engine("a", 1), block_bytes * blocks, limits.clone());
        let mut b = Agent::new(fabric, engine("b", 1), block_bytes * blocks, limits);
        a.add(&b).unwrap();
        b.add(&a).unwrap();
        let list = every_block(block_bytes, blocks);
        let a_lists = lists(&mut a, &b.id, &list);
        let b_lists = lists(&mut b, &a.id, &list);
        Self { a, b, a_lists, b_lists }
    }

    /// A post from `a` to `b`.
    pub fn post(&self, id: u64, direction: Direction, pairs: &[(u32, u32)]) -> Post {
        let (local, remote) = self.a_lists;
        Post {
            id: PostId(id),
            direction,
            peer: self.b.id.clone(),
            local,
            remote,
            pairs: pairs.to_vec(),
            notify: None,
        }
    }

    /// A post from `b` to `a`.
    pub fn post_back(&self, id: u64, direction: Direction, pairs: &[(u32, u32)]) -> Post {
        let (local, remote) = self.b_lists;
        Post { peer: self.a.id.clone(), local, remote, ..self.post(id, direction, pairs) }
    }

    pub fn pump(&mut self, goal: impl Fn(&Agent, &Agent) -> bool) {
        pump(&mut [&mut self.a, &mut self.b], |agents| goal(agents[0], agents[1]));
    }
}

pub fn lists(agent: &mut Agent, peer: &EngineId, list: &[Descriptor]) -> (ListId, ListId) {
    let local = agent.transport.prepare_local(list).unwrap();
    (local, agent.transport.prepare_remote(peer, list).unwrap())
}
