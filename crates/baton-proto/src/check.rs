//! What must be true of an endpoint after every input. Called by the simulator and by tests; each line panics.

use crate::action::Direction;
use crate::endpoint::Endpoint;
use crate::transfer::Stage;

impl Endpoint {
    /// # Panics
    /// If an invariant is broken.
    pub fn check(&self) {
        self.check_bounds();
        self.check_retentions();
        for (post, transfer) in &self.posts {
            let active = self.transfers.get(transfer).expect("I4: a post in flight keeps its transfer");
            assert!(active.in_flight.contains(post), "I4: a transfer knows its posts");
        }
        let in_flight: usize = self.transfers.values().map(|active| active.in_flight.len()).sum();
        assert_eq!(in_flight, self.posts.len(), "I4: every post in flight is known once");
        for (id, active) in &self.transfers {
            assert!(!self.leases.contains_key(id), "I4: one side of a transfer is passive, the other active");
            let moving = matches!(active.stage, Stage::Moving | Stage::Finishing);
            assert!(!moving || active.peer.is_some(), "I5: bytes move to and from a known peer only");
            let reads = active.order.direction == Direction::Read && active.stage == Stage::Moving;
            assert!(
                !reads || active.awaits_grant() || !active.in_flight.is_empty(),
                "I8: a reader that moves has posts in flight, or waits to be granted more"
            );
        }
        for (id, lease) in &self.leases {
            assert!(!lease.granted || lease.peer.is_some(), "I5: {id}: unit ids go to a known peer only");
        }
        for (conn, state) in &self.peers.conns {
            if let Some(engine) = state.ready() {
                let peer = self.peers.known.get(engine).expect("I5: a ready connection has a peer");
                assert!(peer.conns.contains(conn), "I5: a peer knows its ready connections");
            }
        }
    }

    fn check_bounds(&self) {
        let limits = &self.config.limits;
        assert!(self.leases.len() + self.transfers.len() <= limits.transfers, "I11: transfers");
        assert!(self.farewells.len() <= limits.transfers, "I11: farewells");
        assert!(self.peers.known.len() <= limits.peers, "I11: peers");
        assert!(self.peers.conns.len() <= limits.connections, "I11: connections");
        assert!(self.registrations.len() <= limits.registrations, "I11: registrations");
        assert!(self.ended.len() <= limits.memories, "I11: memories");
        assert!(self.retentions.len() <= limits.retentions, "I11: retentions");
        let owners = limits.transfers * 4
            + limits.registrations
            + limits.retentions
            + limits.peers * 2
            + limits.connections
            + 1;
        assert!(self.timers.len() <= owners, "I11: timers");
    }
}
