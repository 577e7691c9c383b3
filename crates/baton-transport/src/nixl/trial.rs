//! Whether a NIXL works here: two agents in this process, a WRITE and a READ.

use std::sync::Arc;
use std::time::{Duration, Instant};

use baton_types::{EngineId, EngineName, HeapRegion, MemoryRegion};

use super::NixlTransport;
use super::agent::Agent;
use super::config::{NixlBackend, NixlConfig, NixlReads};
use super::library::{NixlError, NixlLibrary};
use crate::transport::{
    Descriptor, Direction, Event, ListId, Post, PostId, Transport, TransportError, TransportLimits,
};

/// What was moved, and how long all of it took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    pub bytes: u64,
    pub ms: u64,
}

const BYTES: u32 = 256 << 10;
const PATIENCE: Duration = Duration::from_secs(10);

/// The backends that this NIXL has.
///
/// # Errors
/// If it makes no agent with UCX.
pub fn backends(library: &'static NixlLibrary) -> Result<Vec<String>, NixlError> {
    Agent::new(library, "baton-check", NixlBackend::Ucx.plugin(), &[])?.plugins()
}

/// Writes a block from one agent to another and reads it back elsewhere.
///
/// # Errors
/// If that fails, takes ten seconds, or other bytes arrive.
pub fn move_bytes(library: &'static NixlLibrary) -> Result<Moved, NixlError> {
    let begin = Instant::now();
    let mut there = Side::new(library, "there")?;
    let mut here = Side::new(library, "here")?;
    here.transport.add_peer(&there.id, &there.transport.metadata()).map_err(failed)?;
    there.transport.add_peer(&here.id, &here.transport.metadata()).map_err(failed)?;
    let halves = [Descriptor { offset: 0, len: BYTES }, Descriptor { offset: BYTES.into(), len: BYTES }];
    let local = here.transport.prepare_local(&halves).map_err(failed)?;
    let remote = here.transport.prepare_remote(&there.id, &halves).map_err(failed)?;
    here.fill_first_half();
    for (direction, pair) in [(Direction::Write, (0, 0)), (Direction::Read, (1, 0))] {
        here.post(&there.id, direction, (local, remote), pair).map_err(failed)?;
        here.wait_for(&mut there)?;
    }
    if !here.halves_are_equal() {
        return Err(NixlError::Io("other bytes came back than were sent".to_owned()));
    }
    Ok(Moved { bytes: BYTES.into(), ms: begin.elapsed().as_millis() as u64 })
}

fn failed(error: TransportError) -> NixlError {
    NixlError::Io(error.to_string())
}

struct Side {
    id: EngineId,
    transport: NixlTransport,
    region: Arc<HeapRegion>,
}

impl Side {
    fn new(library: &'static NixlLibrary, name: &str) -> Result<Self, NixlError> {
        let name = EngineName::new(name).map_err(|error| NixlError::Io(error.to_string()))?;
        let id = EngineId::new(name, 1);
        let config = NixlConfig { reads: NixlReads::Native, ..NixlConfig::default() };
        let mut transport = NixlTransport::new(id.clone(), TransportLimits::default(), config, library)?;
        let region = Arc::new(HeapRegion::new(2 * BYTES as usize));
        transport.register(region.clone()).map_err(failed)?;
        Ok(Self { id, transport, region })
    }

    fn post(
        &mut self,
        peer: &EngineId,
        direction: Direction,
        (local, remote): (ListId, ListId),
        pair: (u32, u32),
    ) -> Result<(), TransportError> {
        let (id, peer) = (PostId(0), peer.clone());
        self.transport.post(Post { id, direction, peer, local, remote, pairs: vec![pair], notify: None })
    }

    /// Until the post of this side is over.
    fn wait_for(&mut self, other: &mut Self) -> Result<(), NixlError> {
        let until = Instant::now() + PATIENCE;
        let mut events = Vec::new();
        while Instant::now() < until {
            self.transport.poll(&mut events);
            other.transport.poll(&mut Vec::new());
            match events.pop() {
                Some(Event::Done(_)) => return Ok(()),
                Some(Event::Failed(_, error)) => return Err(failed(error)),
                _ => self.transport.wait(Duration::from_micros(50)),
            }
        }
        Err(NixlError::Io("nothing has moved for ten seconds".to_owned()))
    }

    #[allow(unsafe_code)]
    fn fill_first_half(&self) {
        for i in 0..BYTES as usize {
            // SAFETY: inside the region, which nobody uses yet.
            unsafe { self.region.base().as_ptr().add(i).write((i % 251) as u8) };
        }
    }

    #[allow(unsafe_code)]
    fn halves_are_equal(&self) -> bool {
        // SAFETY: the whole region, into which nothing moves any more.
        let bytes = unsafe { std::slice::from_raw_parts(self.region.base().as_ptr(), self.region.len()) };
        let (first, second) = bytes.split_at(BYTES as usize);
        first == second
    }
}
