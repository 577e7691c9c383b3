//! When clients arrive: at their time, or a while after the one whose conversation they continue.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use baton_types::Time;

use crate::ask::Ask;
use crate::world::{Event, World};

#[derive(Debug)]
pub(crate) struct Arrivals {
    /// By a client, those that come after it, and how long they think.
    followers: BTreeMap<usize, Vec<(usize, Duration)>>,
    /// Clients that have not arrived yet.
    left: usize,
}

impl Arrivals {
    pub fn of(asks: &[Ask]) -> Self {
        let mut followers: BTreeMap<usize, Vec<(usize, Duration)>> = BTreeMap::new();
        let numbers: BTreeMap<u64, usize> = asks.iter().enumerate().map(|(i, ask)| (ask.number, i)).collect();
        for (client, ask) in asks.iter().enumerate() {
            let Some(after) = ask.after else { continue };
            // Only an earlier one of the list, so that nobody waits for himself.
            if let Some(before) = numbers.get(&after.number).filter(|before| **before < client) {
                let think = Duration::from_micros(after.think_us);
                followers.entry(*before).or_default().push((client, think));
            }
        }
        Self { followers, left: asks.len() }
    }

    /// Another one is there; whether it was the last.
    pub fn arrived(&mut self) -> bool {
        self.left -= 1;
        self.left == 0
    }
}

impl World {
    /// Has those arrive that follow nobody; when the first of them does.
    pub fn first_arrivals(&mut self) -> Time {
        let follows: BTreeSet<usize> =
            self.arrivals.followers.values().flatten().map(|(client, _)| *client).collect();
        let mut first: Option<Time> = None;
        for client in (0..self.clients.len()).filter(|client| !follows.contains(client)) {
            let at = self.earliest(client);
            first = Some(first.map_or(at, |first| first.min(at)));
            self.queue.push(at, Event::Arrive { client });
        }
        if self.clients.is_empty() {
            self.queue.push(Time::ZERO, Event::Quiet);
        }
        first.unwrap_or_default()
    }

    /// A client's request is over: those that follow it begin to think.
    pub fn begin_thinking(&mut self, over: usize) {
        if self.recording.is_some() {
            self.clients[over].forget();
        }
        for (client, think) in self.arrivals.followers.remove(&over).unwrap_or_default() {
            let at = (self.now + think).max(self.earliest(client));
            self.queue.push(at, Event::Arrive { client });
        }
    }

    fn earliest(&self, client: usize) -> Time {
        Time(self.clients[client].ask.at_us * 1_000)
    }
}
