//! The network in two parts: what one part says to the other comes after the split, or not at all.

use std::collections::BTreeSet;

use baton_proto::ConnId;
use baton_types::Time;

use crate::fault::Fault;
use crate::world::World;

/// Where words come from and go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    Router,
    Node(usize),
}

#[derive(Debug, Default)]
pub(crate) struct Split {
    until: Time,
    side: BTreeSet<Place>,
}

impl World {
    /// Begins a split, unless there is one. Connections across it stall, or break.
    pub fn split(&mut self) -> bool {
        if self.now < self.split.until {
            return false;
        }
        let router = self.scenario.network.split_router.then_some(Place::Router);
        let places: Vec<Place> = (0..self.nodes.len()).map(Place::Node).chain(router).collect();
        let random = self.luck.of(Fault::Split);
        let side: BTreeSet<Place> = places.iter().copied().filter(|_| random.chance(400)).collect();
        if side.is_empty() || side.len() == places.len() {
            return false;
        }
        let lasts = random.duration(self.scenario.network.split_us.clone());
        self.note("chaos", format_args!("split off: {side:?}, for {lasts:?}"));
        self.split = Split { until: self.now + lasts, side };
        let across: Vec<ConnId> =
            self.wires.pairs().filter(|pair| self.is_apart(pair)).map(|pair| pair.0).collect();
        if self.scenario.network.split_breaks {
            across.into_iter().for_each(|conn| self.break_off(conn, true));
        }
        true
    }

    fn is_apart(&self, (_, one, other): &(ConnId, usize, usize)) -> bool {
        self.apart_until(Place::Node(*one), Place::Node(*other)).is_some()
    }

    /// Until when two places hear nothing of each other, if they do not.
    pub fn apart_until(&self, a: Place, b: Place) -> Option<Time> {
        let Split { until, side } = &self.split;
        let reached = !self.scenario.network.split_router && [a, b].contains(&Place::Router);
        let apart = self.now < *until && side.contains(&a) != side.contains(&b) && !reached;
        apart.then_some(*until)
    }

    /// When something that is sent now arrives.
    pub fn arrival(&mut self, from: Place, to: Place) -> Time {
        let at = self.after_delay();
        match self.apart_until(from, to) {
            Some(until) => at + until.since(self.now),
            None => at,
        }
    }
}
