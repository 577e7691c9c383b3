//! What must be true of a run as a whole: answers, and the end.

use std::time::Duration;

use baton_routing::Failure;

use crate::client::ClientState;
use crate::fault::Fault;
use crate::world::World;

/// From the last fault to the end of everything: more than all time limits of a scenario in a row, by the slowest clock. What is
/// retained to its end comes on top.
const DRAIN: Duration = Duration::from_secs(600);

impl World {
    /// I7: an answer that ended well is whole.
    pub fn check_answer(&mut self, client: usize) {
        let asker = &self.clients[client];
        let (received, state) = (asker.received.len(), asker.state);
        assert_eq!(state, ClientState::Waiting, "r{client} ends twice");
        let shortest = self.scenario.engines.iter().map(|engine| self.scenario.max_len(engine)).min();
        let least = shortest.map_or(0, |max_len| asker.answer_len(max_len.max(asker.ask.prompt.len() + 1)));
        assert!(
            received == asker.expected.len() || (received >= least && self.cut_short(client)),
            "I7: r{client} got {received} tokens of {}",
            asker.expected.len()
        );
        self.end_client(client, ClientState::Answered);
    }

    /// Whether the answer is as long as one engine's limit lets it be.
    fn cut_short(&self, client: usize) -> bool {
        let asker = &self.clients[client];
        let lens = self.scenario.engines.iter().map(|engine| self.scenario.max_len(engine));
        lens.filter(|max_len| *max_len > asker.ask.prompt.len())
            .any(|max_len| asker.answer_len(max_len) == asker.received.len())
    }

    /// An error is one that what went wrong can cause.
    pub fn check_failure(&self, client: usize, why: Failure) {
        assert!(
            !self.scenario.owes_answers(),
            "r{client} failed ({why:?}) though nothing can cost an answer"
        );
        match why {
            Failure::Refused { .. } => {
                let fits = self.scenario.fits(&self.clients[client].ask);
                assert!(!fits, "r{client} is refused though every engine has room for it");
            }
            Failure::UnknownModel | Failure::OneSequenceOnly => {
                panic!("r{client} failed ({why:?}): there is one model, and each asks for one sequence")
            }
            Failure::NoEngine { .. } | Failure::Overloaded | Failure::EngineFailed | Failure::TimedOut => {}
        }
    }

    /// I4: whoever has answered an Abort has nothing to do with the transfer any more. But for what tables have no room for; and
    /// where handles are mixed up, somebody else may have a part in it.
    pub fn check_last_words(&self, node: usize) {
        let Some(process) = &self.nodes[node].process else { return };
        if self.scenario.proto.tables.is_some() || self.scenario.faults.of(Fault::WrongHandle) > 0 {
            return;
        }
        for transfer in self.ledger.last_words(process.life) {
            let knows = process.core.knows(*transfer);
            assert!(!knows, "I4: {} goes on with {transfer} after Aborted", self.nodes[node].name);
        }
    }

    /// I8: whether nothing is left of anything.
    ///
    /// # Panics
    /// If that takes too long.
    pub fn is_over(&self) -> bool {
        let Some(since) = self.quiet_since else { return false };
        let left = self.what_is_left();
        if let Some(left) = left {
            let retained = self.scenario.engines.iter().filter_map(|engine| engine.retain);
            let longest = retained.map(|retain| retain.ttl_ms).max().unwrap_or_default();
            let patience = DRAIN + Duration::from_millis(longest * 2);
            assert!(
                self.now.since(since) < patience,
                "I8: {patience:?} after the last fault there is still {left}"
            );
            return false;
        }
        true
    }

    fn what_is_left(&self) -> Option<String> {
        if let Some(client) = self.clients.iter().position(|client| !client.state.is_over()) {
            return Some(format!("r{client} without an end"));
        }
        if self.front.core.live_requests() > 0 || !self.front.legs.is_empty() {
            return Some(format!("{} legs at the router", self.front.legs.len()));
        }
        if !self.fabric.posts.is_empty() {
            return Some("bytes in flight".into());
        }
        self.nodes.iter().find_map(|node| {
            let Some(process) = &node.process else { return Some(format!("no process at {}", node.name)) };
            let (census, stats) = (process.core.census(), process.core.stats());
            let owed = census.leases
                + census.transfers
                + census.registrations
                + census.posts
                + census.farewells
                + census.retentions
                + process.served.len();
            let free = stats.blocks.free == node.spec.num_blocks as usize;
            let idle = process.core.is_idle() && owed == 0 && free;
            (!idle).then(|| format!("{} with {census:?}, {stats:?}", node.name))
        })
    }

    /// The last of a run.
    pub fn end(&mut self) {
        for node in 0..self.nodes.len() {
            let counters = self.nodes[node].process.as_ref().map(|process| process.core.stats().counters);
            self.tally.add(counters.unwrap_or_default());
        }
        let lost = (self.tally.lost, self.tally.unsent);
        assert!(
            !self.scenario.owes_transfers() || lost == (0, 0),
            "I8: {lost:?} transfers failed for nothing"
        );
        for client in &self.clients {
            match client.state {
                ClientState::Answered => self.tally.answered += 1,
                ClientState::Failed => self.tally.failed += 1,
                _ => self.tally.gone += 1,
            }
        }
        self.note("world", format_args!("is over"));
    }
}
