//! What is still to happen, in the order of time; what is due together, in the order in which it was put here.

use std::collections::BTreeMap;

use baton_types::Time;

/// Where an event stands in the queue.
pub(crate) type Slot = (Time, u64);

#[derive(Debug)]
pub(crate) struct Queue<E> {
    events: BTreeMap<Slot, E>,
    next: u64,
}

impl<E> Queue<E> {
    pub fn new() -> Self {
        Self { events: BTreeMap::new(), next: 0 }
    }

    pub fn push(&mut self, at: Time, event: E) {
        self.next += 1;
        self.events.insert((at, self.next), event);
    }

    pub fn peek(&self) -> Option<Time> {
        self.events.keys().next().map(|(at, _)| *at)
    }

    pub fn pop(&mut self) -> Option<(Slot, E)> {
        self.events.pop_first()
    }

    /// Puts an event off. It keeps its number, so that a stream stays in order if all of it is put off to the same time.
    pub fn put_off(&mut self, slot: Slot, until: Time, event: E) {
        self.events.insert((until.max(slot.0), slot.1), event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_that_is_put_off_stays_in_order() {
        let mut queue = Queue::new();
        queue.push(Time(1), "a");
        queue.push(Time(5), "b");
        queue.push(Time(3), "c");
        let (slot, event) = queue.pop().unwrap();
        queue.put_off(slot, Time(5), event);
        let (slot, event) = queue.pop().unwrap();
        assert_eq!(event, "c");
        queue.put_off(slot, Time(5), event);
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).map(|(_, event)| event).collect();
        assert_eq!(order, ["a", "b", "c"]);
        assert_eq!(queue.peek(), None);
    }
}
