//! The transports under test.

use std::sync::Arc;

use baton_transport::{
    MemoryHub, MemoryTransport, NixlBackend, NixlConfig, NixlLibrary, NixlReads, NixlTransport, PeerTls,
    ShmRegion, ShmTransport, TcpConfig, TcpTransport, Transport, TransportLimits,
};
use baton_types::{EngineId, HeapRegion, MemoryRegion};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

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

/// What is chosen about `tcp`.
#[derive(Default)]
pub struct TcpFabric(pub TcpConfig);

impl TcpFabric {
    /// Over IPv6, with checked bytes.
    pub fn v6_crc() -> Self {
        Self(TcpConfig { host: "::1".to_owned(), lanes: 3, crc: true, ..TcpConfig::default() })
    }

    /// Over one connection that is encrypted.
    pub fn tls() -> Self {
        Self(TcpConfig { lanes: 1, tls: Some(Authority::new().issue("127.0.0.1")), ..TcpConfig::default() })
    }

    /// The same over several, and with checked bytes.
    pub fn tls_crc() -> Self {
        let tls = Some(Authority::new().issue("127.0.0.1"));
        Self(TcpConfig { lanes: 4, crc: true, tls, ..TcpConfig::default() })
    }
}

impl Fabric for TcpFabric {
    fn region(&self, len: usize) -> Arc<dyn MemoryRegion> {
        Arc::new(HeapRegion::new(len))
    }

    fn transport(&self, id: EngineId, limits: TransportLimits) -> Box<dyn Transport> {
        Box::new(TcpTransport::new(id, limits, self.0.clone()).unwrap())
    }
}

/// Over the backend that `BATON_TEST_NIXL_BACKEND` chooses, which is UCX, and whatever `UCX_TLS` chooses, with the reads that
/// `BATON_TEST_NIXL_READS` chooses, and links at `BATON_TEST_HOST`. `NIXL_PREFIX` says where NIXL is.
pub struct NixlFabric;

impl Fabric for NixlFabric {
    fn region(&self, len: usize) -> Arc<dyn MemoryRegion> {
        Arc::new(HeapRegion::new(len))
    }

    fn transport(&self, id: EngineId, limits: TransportLimits) -> Box<dyn Transport> {
        let library = NixlLibrary::load(None).unwrap();
        let said = |name| std::env::var(name).ok();
        let reads = said("BATON_TEST_NIXL_READS").map_or(NixlReads::Auto, |reads| reads.parse().unwrap());
        let backend = said("BATON_TEST_NIXL_BACKEND").map_or(NixlBackend::Ucx, |name| name.parse().unwrap());
        let host = said("BATON_TEST_HOST").unwrap_or_else(|| NixlConfig::default().host);
        let takes_early_completions = backend == NixlBackend::Libfabric;
        let config = NixlConfig { backend, reads, host, takes_early_completions, ..NixlConfig::default() };
        Box::new(NixlTransport::new(id, limits, config, library).unwrap())
    }
}

/// Issues certificates to engines.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub fn issue(&self, host: &str) -> PeerTls {
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new([host.to_owned()]).unwrap().signed_by(&key, &self.0).unwrap();
        let [certificate, key, authority] = [certificate.pem(), key.serialize_pem(), self.0.pem()];
        PeerTls::from_pem(certificate.as_bytes(), key.as_bytes(), authority.as_bytes(), None).unwrap()
    }
}
