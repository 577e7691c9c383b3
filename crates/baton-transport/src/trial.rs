//! Whether a transport works here: two agents in this process, a WRITE and a READ.

use std::sync::Arc;
use std::time::{Duration, Instant};

use baton_types::{EngineId, EngineName, MemoryRegion};

use crate::shm::ShmRegion;
use crate::transport::{Descriptor, Direction, Event, ListId, Post, PostId, Transport, TransportError};

/// What was moved, and how long it took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Each way.
    pub bytes: u64,
    /// Until both agents knew each other.
    pub setup_ms: u64,
    pub write_us: u64,
    pub read_us: u64,
}

const BYTES: u32 = 256 << 10;
const PATIENCE: Duration = Duration::from_secs(10);

/// Writes a block from one agent to another and reads it back elsewhere. The memory is of the kind that engines keep KV in.
///
/// # Errors
/// If that fails, takes ten seconds, or other bytes arrive.
pub fn move_bytes(
    agent: impl Fn(EngineId) -> Result<Box<dyn Transport>, TransportError>,
) -> Result<Moved, TransportError> {
    let begin = Instant::now();
    let mut there = Side::new(&agent, "there")?;
    let mut here = Side::new(&agent, "here")?;
    here.transport.add_peer(&there.id, &there.transport.metadata())?;
    there.transport.add_peer(&here.id, &here.transport.metadata())?;
    let halves = [Descriptor { offset: 0, len: BYTES }, Descriptor { offset: BYTES.into(), len: BYTES }];
    let lists = (here.transport.prepare_local(&halves)?, here.transport.prepare_remote(&there.id, &halves)?);
    // Nothing moves before each side has let the other in.
    here.post(&mut there, Direction::Write, lists, &[])?;
    let setup = begin.elapsed();
    here.fill_first_half();
    let write = here.post(&mut there, Direction::Write, lists, &[(0, 0)])?;
    let read = here.post(&mut there, Direction::Read, lists, &[(1, 0)])?;
    if !here.halves_are_equal() {
        return Err(TransportError::Damaged);
    }
    let us = |time: Duration| time.as_micros() as u64;
    Ok(Moved {
        bytes: BYTES.into(),
        setup_ms: setup.as_millis() as u64,
        write_us: us(write),
        read_us: us(read),
    })
}

struct Side {
    id: EngineId,
    transport: Box<dyn Transport>,
    region: Arc<ShmRegion>,
}

impl Side {
    fn new(
        agent: impl Fn(EngineId) -> Result<Box<dyn Transport>, TransportError>,
        name: &str,
    ) -> Result<Self, TransportError> {
        let id = EngineId::new(EngineName::new(name).expect("letters are a name"), 1);
        let mut transport = agent(id.clone())?;
        let region = ShmRegion::populated(2 * BYTES as usize)
            .map_err(|error| TransportError::Io(format!("memory for KV: {error}")))?;
        let region = Arc::new(region);
        transport.register(region.clone())?;
        Ok(Self { id, transport, region })
    }

    /// Moves pairs of halves; how long that took.
    fn post(
        &mut self,
        other: &mut Self,
        direction: Direction,
        (local, remote): (ListId, ListId),
        pairs: &[(u32, u32)],
    ) -> Result<Duration, TransportError> {
        let begin = Instant::now();
        let (id, peer, pairs) = (PostId(0), other.id.clone(), pairs.to_vec());
        self.transport.post(Post { id, direction, peer, local, remote, pairs, notify: None })?;
        let mut events = Vec::new();
        while begin.elapsed() < PATIENCE {
            let more = self.transport.poll(&mut events) | other.transport.poll(&mut Vec::new());
            match events.pop() {
                Some(Event::Done(_)) => return Ok(begin.elapsed()),
                Some(Event::Failed(_, error)) => return Err(error),
                Some(Event::PeerLost(peer)) => return Err(TransportError::PeerGone(peer)),
                _ if more => {}
                _ => self.transport.wait(Duration::from_micros(50)),
            }
        }
        Err(TransportError::Io("nothing has moved for ten seconds".to_owned()))
    }

    #[allow(unsafe_code)]
    fn fill_first_half(&self) {
        for i in 0..BYTES as usize {
            // SAFETY: inside the region, which nobody else uses yet.
            unsafe { self.region.base().as_ptr().add(i).write((i % 251) as u8) };
        }
    }

    #[allow(unsafe_code)]
    fn halves_are_equal(&self) -> bool {
        // SAFETY: the whole region, into which nothing moves any more.
        let bytes = unsafe { std::slice::from_raw_parts(self.region.base().as_ptr(), self.region.len()) };
        let (first, second) = bytes.split_at(BYTES as usize);
        first == second && first.iter().any(|byte| *byte != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{MemoryHub, MemoryTransport};
    use crate::shm::ShmTransport;
    use crate::tcp::{TcpConfig, TcpTransport};
    use crate::transport::TransportLimits;

    #[test]
    fn what_works_is_found_to_work() {
        let io = |error: std::io::Error| TransportError::Io(error.to_string());
        let limits = TransportLimits::default;
        let shm = move_bytes(|id| Ok(Box::new(ShmTransport::new(id, limits()).map_err(io)?)));
        assert_eq!(shm.unwrap().bytes, 256 << 10);
        let tcp = |config: TcpConfig| {
            move_bytes(|id| Ok(Box::new(TcpTransport::new(id, limits(), config.clone()).map_err(io)?)))
        };
        assert!(tcp(TcpConfig::default()).is_ok());
        let elsewhere = TcpConfig { host: "192.0.2.1".to_owned(), ..TcpConfig::default() };
        assert!(matches!(tcp(elsewhere), Err(TransportError::Io(_))), "no address of this host");
    }

    #[test]
    fn agents_that_never_meet_are_found_out() {
        let limits =
            || TransportLimits { handshake: Duration::from_millis(50), ..TransportLimits::default() };
        let apart = move_bytes(|id| Ok(Box::new(MemoryTransport::new(id, MemoryHub::new(), limits()))));
        assert!(apart.is_err());
    }
}
