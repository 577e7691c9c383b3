//! The saboteur: what goes wrong, when, and that it stops.

use std::time::Duration;

use baton_routing::{LegFault, RouterCore, RoutingConfig};
use baton_types::{Mutation, Time};

use crate::client::ClientState;
use crate::fault::Fault;
use crate::front::{LegNews, Line};
use crate::scenario::Scenario;
use crate::split::{Place, Split};
use crate::world::{Event, World};

impl World {
    /// Whether a fault of this kind happens at this opportunity.
    pub fn strikes(&mut self, fault: Fault) -> bool {
        let strikes = self.quiet_since.is_none() && self.luck.strikes(fault);
        if strikes {
            self.tally.count(fault);
        }
        strikes
    }

    /// When something that is sent now arrives, unless the network is split.
    pub fn after_delay(&mut self) -> Time {
        let network = &self.scenario.network;
        let usual = self.random.duration(network.delay_us.clone());
        if !self.strikes(Fault::Spike) {
            return self.now + usual;
        }
        self.now + usual + self.luck.of(Fault::Spike).duration(self.scenario.network.spike_us.clone())
    }

    /// One of the turns of this kind of deed, and its next.
    pub fn turn(&mut self, deed: Fault) {
        if self.quiet_since.is_some() {
            return;
        }
        let again = self.now + self.luck.of(deed).duration(self.scenario.turn_us.clone());
        self.queue.push(again, Event::Turn { deed });
        if self.luck.strikes(deed) && self.commit(deed) {
            self.tally.count(deed);
        }
    }

    /// Whether there was somebody to do it to.
    fn commit(&mut self, deed: Fault) -> bool {
        match deed {
            Fault::Disconnect => self.disconnect(),
            Fault::Split => self.split(),
            Fault::Stranger => self.stranger(),
            Fault::Reset => self.reset(),
            Fault::RouterCrash => self.router_dies(),
            Fault::ClientGone => {
                let client = self.pick_client(deed, |_, state| state == ClientState::Waiting);
                client.inspect(|client| self.client_leaves(*client)).is_some()
            }
            Fault::ClientStalls => {
                let streams = |attached, state| attached && state == ClientState::Waiting;
                let client = self.pick_client(deed, streams);
                client.inspect(|client| self.client_stalls(*client)).is_some()
            }
            Fault::Crash | Fault::Drain | Fault::Pause => {
                let alive = (0..self.nodes.len()).filter(|i| self.nodes[*i].process.is_some());
                let alive: Vec<usize> = alive.collect();
                if !alive.is_empty() {
                    let node = self.luck.of(deed).pick(&alive);
                    self.harm(node, deed);
                }
                !alive.is_empty()
            }
            other => unreachable!("{other} is no deed"),
        }
    }

    /// One of the clients for which this is true of being attached to an answer, and of the state.
    fn pick_client(&mut self, deed: Fault, fits: impl Fn(bool, ClientState) -> bool) -> Option<usize> {
        let clients = self.clients.iter().enumerate();
        let fitting = clients.filter(|(_, client)| fits(client.attached.is_some(), client.state));
        let fitting: Vec<usize> = fitting.map(|(i, _)| i).collect();
        (!fitting.is_empty()).then(|| self.luck.of(deed).pick(&fitting))
    }

    fn client_stalls(&mut self, client: usize) {
        let lasts = self.luck.of(Fault::ClientStalls).skewed(1_000..3_000_000);
        let until = self.now + Duration::from_micros(lasts);
        self.note("client", format_args!("r{client} takes nothing for {lasts} us"));
        let stalled_until = &mut self.clients[client].stalled_until;
        *stalled_until = until.max(*stalled_until);
    }

    fn harm(&mut self, node: usize, deed: Fault) {
        let name = self.nodes[node].name.clone();
        self.note("chaos", format_args!("{deed} of {name}"));
        match deed {
            Fault::Crash => self.end_process(node),
            Fault::Drain => {
                self.nodes[node].process.as_mut().expect("alive").draining = true;
                self.tell_engine(node, baton_engine::Input::Drain);
            }
            _ => {
                let pause = self.luck.of(deed).skewed(1_000..3_000_000);
                // Never shorter than a pause that lasts: what was put off to its end must not be overtaken.
                let until = self.now + Duration::from_micros(pause);
                let paused_until = &mut self.nodes[node].paused_until;
                *paused_until = until.max(*paused_until);
            }
        }
    }

    /// The process is gone, in whatever way. Whoever had to do with it hears of that in his own time, and it comes back.
    pub fn end_process(&mut self, node: usize) {
        let process = self.nodes[node].process.take().expect("alive");
        self.nodes[node].paused_until = Time::ZERO;
        self.tally.add(process.core.stats().counters);
        for served in process.served.values().filter(|served| !served.dropped) {
            let at = self.arrival(Place::Node(node), Place::Router).max(served.arrived);
            let news = LegNews::Failed(LegFault::Broken);
            self.queue.push(at, Event::News { line: served.line, news });
        }
        self.hang_up(process.life);
        self.fence_off(process.life);
        let pause = self.random.duration(self.scenario.network.restart_us.clone());
        self.queue.push(self.now + pause, Event::Restart { node });
    }

    /// The router is gone: every client hears its connection break, every engine those of its legs, and it comes back.
    fn router_dies(&mut self) -> bool {
        if self.front.down {
            return false;
        }
        self.note("chaos", format_args!("router dies"));
        let router = self.front.lives;
        for (leg, open) in self.front.die() {
            self.hang_up_leg(Line { router, leg }, &open);
        }
        for client in 0..self.clients.len() {
            if self.clients[client].state == ClientState::Waiting {
                self.end_client(client, ClientState::Failed);
            }
        }
        let pause = self.random.duration(self.scenario.network.restart_us.clone());
        self.queue.push(self.now + pause, Event::RouterRestart);
        true
    }

    pub fn router_restarts(&mut self) {
        self.note("router", format_args!("starts again"));
        let core = router_core(&self.scenario, self.random.next(), self.mutation);
        self.front.start(core);
    }

    /// A leg's connection breaks; each side learns of it by itself.
    fn reset(&mut self) -> bool {
        let legs = self.nodes.iter().enumerate().flat_map(|(node, place)| {
            let served = place.process.iter().flat_map(|process| process.served.iter());
            served.filter(|(_, served)| !served.dropped).map(move |(seq, _)| (node, *seq))
        });
        let legs: Vec<_> = legs.collect();
        if legs.is_empty() {
            return false;
        }
        let (node, seq) = self.luck.of(Fault::Reset).pick(&legs);
        let (to_router, to_engine) = (self.after_delay(), self.after_delay());
        let process = self.nodes[node].process.as_mut().expect("it serves");
        let served = process.served.get_mut(&seq).expect("just listed");
        let line = served.line;
        served.arrived = served.arrived.max(to_router);
        let at = served.arrived;
        self.queue.push(at, Event::News { line, news: LegNews::Failed(LegFault::Broken) });
        self.queue.push(to_engine, Event::LegDrops { node, line });
        self.note("chaos", format_args!("{:?} breaks", line.leg));
        true
    }

    /// From here on nothing goes wrong any more.
    pub fn quiet(&mut self) {
        self.note("chaos", format_args!("ends"));
        self.quiet_since = Some(self.now);
        self.split = Split::default();
    }
}

/// The router's core at the start of its process.
pub(crate) fn router_core(scenario: &Scenario, seed: u64, mutation: Mutation) -> RouterCore {
    let mut core_seed = [0; 32];
    core_seed[..8].copy_from_slice(&seed.to_le_bytes());
    let config = RoutingConfig {
        engines: scenario.faces().into_iter().map(|(_, role)| role).collect(),
        strategy: scenario.strategy,
        policy: scenario.policy,
        limits: scenario.limits.clone(),
        mutation,
    };
    RouterCore::new(config, core_seed)
}
