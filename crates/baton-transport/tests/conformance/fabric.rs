//! The transports under test.

use std::sync::Arc;

use baton_transport::{MemoryHub, MemoryTransport, ShmRegion, ShmTransport, Transport, TransportLimits};
use baton_types::{EngineId, HeapRegion, MemoryRegion};

/// Makes agents that can reach each other.
pub trait Fabric {
    fn region(&self, len: usize) -> Arc<dyn MemoryRegion>;
    fn transport(&self, id: EngineId, limits: TransportLimits) -> Box<dyn Transport>;
}

#[derive(Default)]
pub struct MemoryFabric(Arc<MemoryHub>);

impl Fabric for MemoryFabric {
    fn region(&self, len: usize) -> Arc<dyn MemoryRegion> {
        Arc::new(HeapRegion::new(len))
    }

    fn transport(&self, id: EngineId, limits: TransportLimits) -> Box<dyn Transport> {
        Box::new(MemoryTransport::new(id, self.0.clone(), limits))
    }
}

pub struct ShmFabric;

impl Fabric for ShmFabric {
    fn region(&self, len: usize) -> Arc<dyn MemoryRegion> {
        Arc::new(ShmRegion::new(len).unwrap())
    }

    fn transport(&self, id: EngineId, limits: TransportLimits) -> Box<dyn Transport> {
        Box::new(ShmTransport::new(id, limits).unwrap())
    }
}
