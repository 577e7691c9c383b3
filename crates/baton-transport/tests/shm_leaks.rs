//! `shm` leaves nothing behind. Alone in its executable: it counts what the process has open.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use baton_transport::{Descriptor, Event, ShmRegion, ShmTransport, Transport, TransportLimits};
use baton_types::{EngineId, EngineName};

fn agent(name: &str, incarnation: u64) -> (EngineId, ShmTransport) {
    let id = EngineId::new(EngineName::new(name).unwrap(), incarnation);
    let limits = TransportLimits { handshake: Duration::from_millis(100), ..TransportLimits::default() };
    let mut transport = ShmTransport::new(id.clone(), limits).unwrap();
    transport.register(Arc::new(ShmRegion::populated(1 << 20).unwrap())).unwrap();
    (id, transport)
}

fn names_in(path: &str) -> BTreeSet<String> {
    std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn mapped_regions() -> usize {
    std::fs::read_to_string("/proc/self/maps")
        .unwrap()
        .lines()
        .filter(|line| line.contains("memfd:baton-kv"))
        .count()
}

#[test]
fn no_file_descriptor_mapping_or_name_is_left() {
    let (a_id, mut a) = agent("a", 1);
    let before = (names_in("/proc/self/fd").len(), mapped_regions());
    let names_before = names_in("/dev/shm");
    let mut events = Vec::new();
    for round in 0..200 {
        let (b_id, mut b) = agent("b", round);
        a.add_peer(&b_id, &b.metadata()).unwrap();
        b.add_peer(&a_id, &a.metadata()).unwrap();
        a.prepare_remote(&b_id, &[Descriptor { offset: 0, len: 4096 }]).unwrap();
        // Some end in the handshake, some later; some by us, some by the peer, some by its end.
        for _ in 0..round % 5 {
            a.poll(&mut events);
            b.poll(&mut events);
        }
        if round == 100 {
            assert!(mapped_regions() >= 2);
        }
        match round % 3 {
            0 => a.remove_peer(&b_id),
            1 => b.remove_peer(&a_id),
            _ => b = agent("unrelated", round).1,
        }
        events.clear();
        while !events.contains(&Event::PeerLost(b_id.clone())) {
            a.wait(Duration::from_millis(1));
            a.poll(&mut events);
            b.poll(&mut events);
        }
    }
    assert_eq!((names_in("/proc/self/fd").len(), mapped_regions()), before);
    assert_eq!(names_in("/dev/shm"), names_before);
}
