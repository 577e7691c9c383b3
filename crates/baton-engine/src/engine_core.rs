//! The core that a driver talks to: the engine's decisions and the protocol endpoint, each hearing the other at once.

use baton_proto::Endpoint;
use baton_types::{BlockId, Time, TransferId};

use crate::action::{Input, Output, Reason};
use crate::block_pool::BlockState;
use crate::config::Config;
use crate::engine::Engine;
use crate::stats::Stats;

#[derive(Debug)]
pub struct EngineCore {
    engine: Engine,
    endpoint: Endpoint,
}

impl EngineCore {
    /// # Panics
    /// If the configuration is not valid; see [`Config::validate`].
    pub fn new(config: Config) -> Self {
        let endpoint = Endpoint::new(config.proto.clone());
        Self { engine: Engine::new(config), endpoint }
    }

    /// Outputs must be polled to the end before the next input.
    pub fn handle_input(&mut self, now: Time, input: Input) {
        // Deadlines first, however busy the driver is: no command of the engine may cross an ending that was due before it.
        self.tell_endpoint(now, baton_proto::Input::Tick);
        while let Some((_, seq)) = self.engine.next_overdue().filter(|(at, _)| *at <= now) {
            self.engine.give_up_kv(seq);
            self.settle(now);
        }
        match input {
            Input::Proto(input) => {
                assert!(!is_command(&input), "the engine alone commands the protocol: {input:?}");
                self.tell_endpoint(now, input);
            }
            Input::Tick => {}
            input => self.engine.handle(now, input),
        }
        self.settle(now);
        self.engine.schedule(now);
        // What was admitted may at once turn out to get no KV: then there is something to schedule again. Each transfer ends once,
        // so this comes to an end.
        while self.settle(now) {
            self.engine.schedule(now);
        }
    }

    /// The next step and what goes to peers and the transport come before tokens and endings: while a step's tokens travel to
    /// their clients, the step after it is being computed.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.engine.outputs.pop_front().or_else(|| self.engine.answers.pop_front())
    }

    pub fn poll_timeout(&self) -> Option<(Time, Reason)> {
        let overdue = self.engine.next_overdue().map(|(at, seq)| (at, Reason::KvOverdue(seq)));
        let proto = self.endpoint.poll_timeout().map(|(at, reason)| (at, Reason::Proto(reason)));
        overdue.into_iter().chain(proto).min()
    }

    pub fn stats(&self) -> Stats {
        self.engine.stats()
    }

    /// Who may touch a block at the moment: for whoever wants to see I3 from outside.
    ///
    /// # Panics
    /// If the pool has no such block.
    pub fn block_state(&self, block: BlockId) -> BlockState {
        self.engine.blocks.pool().state(block)
    }

    pub fn census(&self) -> baton_proto::Census {
        self.endpoint.census()
    }

    /// Whether this transfer is going on between this engine and a peer.
    pub fn knows(&self, transfer: TransferId) -> bool {
        self.endpoint.knows(transfer)
    }

    /// Whether nothing is left to do for any client or peer: a drained engine may exit.
    pub fn is_idle(&self) -> bool {
        self.engine.is_idle() && self.endpoint.census().farewells == 0
    }

    /// Passes the engine's commands on until it has no more; whether there were any.
    fn settle(&mut self, now: Time) -> bool {
        let mut any = false;
        while let Some(command) = self.engine.commands.pop_front() {
            any = true;
            self.tell_endpoint(now, command);
        }
        any
    }

    fn tell_endpoint(&mut self, now: Time, input: baton_proto::Input) {
        self.endpoint.handle_input(now, input);
        while let Some(output) = self.endpoint.poll_output() {
            match output {
                baton_proto::Output::Event(event) => self.engine.handle_event(now, event),
                output => self.engine.outputs.push_back(Output::Proto(output)),
            }
        }
    }

    /// Asserts I1 to I5 and I11, as far as one engine can see them. For simulators and tests, between inputs.
    ///
    /// # Panics
    /// If an invariant is broken.
    pub fn check(&self) {
        self.engine.check();
        self.endpoint.check();
        // I4: engine and endpoint agree on what is going on.
        for transfer in self.engine.transfers.keys() {
            assert!(self.endpoint.knows(*transfer), "I4: {transfer:?}");
        }
        let (census, known) = (self.endpoint.census(), self.engine.transfers.len());
        assert_eq!(census.leases + census.transfers, known, "I4: transfers that nobody here answers for");
        assert_eq!(census.retentions, self.engine.retentions.len(), "I4: retentions");
    }
}

fn is_command(input: &baton_proto::Input) -> bool {
    use baton_proto::Input::{
        Cancel, Complete, Expect, Fetch, Offer, Progress, Receive, Retain, Revoke, Send,
    };
    matches!(
        input,
        Expect { .. }
            | Fetch { .. }
            | Receive { .. }
            | Offer { .. }
            | Send { .. }
            | Progress { .. }
            | Complete { .. }
            | Retain { .. }
            | Revoke { .. }
            | Cancel { .. }
    )
}
