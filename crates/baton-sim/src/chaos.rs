//! The saboteur: what goes wrong, when, and that it stops.

use std::time::Duration;

use baton_routing::LegFault;
use baton_types::Time;

use crate::client::ClientState;
use crate::fault::Fault;
use crate::front::LegNews;
use crate::world::{Event, World};

impl World {
    /// Whether a fault of this kind happens at this opportunity.
    pub fn strikes(&mut self, fault: Fault) -> bool {
        let strikes = self.quiet_since.is_none() && self.random.chance(self.scenario.faults.of(fault));
        if strikes {
            self.tally.count(fault);
        }
        strikes
    }

    /// When something that is sent now arrives.
    pub fn after_delay(&mut self) -> Time {
        let network = &self.scenario.network;
        let usual = self.random.duration(network.delay_us.clone());
        let spike = self.random.duration(network.spike_us.clone());
        if self.strikes(Fault::Spike) { self.now + usual + spike } else { self.now + usual }
    }

    /// One deed of those that this run has, and the next turn.
    pub fn turn(&mut self) {
        if self.quiet_since.is_some() {
            return;
        }
        let again = self.now + self.random.duration(self.scenario.turn_us.clone());
        self.queue.push(again, Event::Turn);
        let weights = Fault::DEEDS.map(|deed| u64::from(self.scenario.faults.of(deed)));
        let mut at = self.random.below(weights.iter().sum());
        for (deed, weight) in Fault::DEEDS.into_iter().zip(weights) {
            if at < weight {
                if self.commit(deed) {
                    self.tally.count(deed);
                }
                return;
            }
            at -= weight;
        }
    }

    /// Whether there was somebody to do it to.
    fn commit(&mut self, deed: Fault) -> bool {
        match deed {
            Fault::Disconnect => self.disconnect(),
            Fault::Reset => self.reset(),
            Fault::ClientGone => {
                let waits = |state: ClientState| state == ClientState::Waiting;
                let waiting = (0..self.clients.len()).filter(|i| waits(self.clients[*i].state));
                let waiting: Vec<usize> = waiting.collect();
                if !waiting.is_empty() {
                    let client = self.random.pick(&waiting);
                    self.client_leaves(client);
                }
                !waiting.is_empty()
            }
            Fault::Crash | Fault::Drain | Fault::Pause => {
                let alive = (0..self.nodes.len()).filter(|i| self.nodes[*i].process.is_some());
                let alive: Vec<usize> = alive.collect();
                if !alive.is_empty() {
                    let node = self.random.pick(&alive);
                    self.harm(node, deed);
                }
                !alive.is_empty()
            }
            other => unreachable!("{other} is no deed"),
        }
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
                let pause = self.random.skewed(1_000..3_000_000);
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
            let at = self.after_delay().max(served.arrived);
            self.queue.push(at, Event::News { leg: served.leg, news: LegNews::Failed(LegFault::Broken) });
        }
        self.hang_up(process.life);
        self.fence_off(process.life);
        let pause = self.random.duration(self.scenario.network.restart_us.clone());
        self.queue.push(self.now + pause, Event::Restart { node });
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
        let (node, seq) = self.random.pick(&legs);
        let (to_router, to_engine) = (self.after_delay(), self.after_delay());
        let process = self.nodes[node].process.as_mut().expect("it serves");
        let served = process.served.get_mut(&seq).expect("just listed");
        let leg = served.leg;
        served.arrived = served.arrived.max(to_router);
        let at = served.arrived;
        self.queue.push(at, Event::News { leg, news: LegNews::Failed(LegFault::Broken) });
        self.queue.push(to_engine, Event::LegDrops { node, leg });
        self.note("chaos", format_args!("{leg:?} breaks"));
        true
    }

    /// From here on nothing goes wrong any more.
    pub fn quiet(&mut self) {
        self.note("chaos", format_args!("ends"));
        self.quiet_since = Some(self.now);
    }
}
