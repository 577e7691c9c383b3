//! `tcp` leaves nothing behind. Alone in its executable: it counts what the process has open.

use std::sync::Arc;
use std::time::Duration;

use baton_transport::{
    Descriptor, Direction, Event, Post, PostId, TcpConfig, TcpTransport, Transport, TransportLimits,
};
use baton_types::{EngineId, EngineName, HeapRegion};

fn agent(name: &str, incarnation: u64) -> (EngineId, TcpTransport) {
    let id = EngineId::new(EngineName::new(name).unwrap(), incarnation);
    let limits = TransportLimits { handshake: Duration::from_millis(100), ..TransportLimits::default() };
    let mut transport = TcpTransport::new(id.clone(), limits, TcpConfig::default()).unwrap();
    transport.register(Arc::new(HeapRegion::new(1 << 20))).unwrap();
    (id, transport)
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn no_file_descriptor_and_no_memory_is_left() {
    let (a_id, mut a) = agent("a", 1);
    let files = open_files();
    let mut resident = 0;
    let mut events = Vec::new();
    let mut ended = [0; 2];
    for round in 0..1500 {
        let (b_id, mut b) = agent("b", round);
        a.add_peer(&b_id, &b.metadata()).unwrap();
        b.add_peer(&a_id, &a.metadata()).unwrap();
        let block = [Descriptor { offset: 0, len: 1 << 20 }];
        let remote = a.prepare_remote(&b_id, &block).unwrap();
        if round == 0 {
            // Ids are one sequence: the list above has 0.
            a.prepare_local(&block).unwrap();
        }
        let (id, direction, peer) = (PostId(round), Direction::Write, b_id.clone());
        let local = baton_transport::ListId(1);
        a.post(Post { id, direction, peer, local, remote, pairs: vec![(0, 0)], notify: Some(vec![1]) })
            .unwrap();
        // Some end in the handshake, some in a write, some later; some by us, some by the peer, some by its end.
        for _ in 0..round % 11 {
            a.poll(&mut events);
            b.poll(&mut events);
        }
        match round % 3 {
            0 => a.remove_peer(&b_id),
            1 => b.remove_peer(&a_id),
            _ => b = agent("unrelated", round).1,
        }
        while !events.contains(&Event::PeerLost(b_id.clone())) {
            a.wait(Duration::from_millis(1));
            a.poll(&mut events);
            b.poll(&mut events);
        }
        ended[0] += usize::from(events.contains(&Event::Done(PostId(round))));
        ended[1] += usize::from(events.iter().any(|event| matches!(event, Event::Failed(..))));
        events.clear();
        if round == 500 {
            resident = resident_kib();
        }
    }
    assert!(ended.iter().all(|&n| n > 50), "{ended:?}: both ends were seen");
    assert_eq!(ended.iter().sum::<usize>(), 1500, "each post ended once");
    // What the last peers left at the door.
    a.wait(Duration::from_millis(1));
    std::thread::sleep(Duration::from_millis(120));
    a.poll(&mut events);
    assert_eq!(open_files(), files);
    let grown = resident_kib().saturating_sub(resident);
    assert!(grown < 4096, "{grown} KiB more after a thousand peers");
}
