//! What must happen when nothing else does.

use std::collections::{BTreeMap, BTreeSet};

use baton_types::{EngineId, Time, TransferId};

/// What a timer is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// A lease, or the wait for a claim, runs out.
    Expiry(TransferId),
    /// A question about this transfer has not been answered.
    Retry(TransferId),
    /// A parting word has not been answered.
    Farewell(TransferId),
    /// A registration whose prefill leg has not come is forgotten.
    Registration(TransferId),
    /// A retention comes to its end.
    Retention(TransferId),
    /// The peers of active transfers must hear that they are still wanted.
    Heartbeat,
    /// A peer is dialled again.
    Redial(EngineId),
    /// A dropped connection has not come back.
    Grace(EngineId),
    /// A connection has not shaken hands.
    Handshake(crate::action::ConnId),
}

/// At most one deadline for each reason.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timers {
    deadlines: BTreeMap<Reason, Time>,
    order: BTreeSet<(Time, Reason)>,
}

impl Timers {
    /// Sets or moves the deadline.
    pub fn set(&mut self, reason: Reason, at: Time) {
        if let Some(old) = self.deadlines.insert(reason.clone(), at) {
            self.order.remove(&(old, reason.clone()));
        }
        self.order.insert((at, reason));
    }

    pub fn clear(&mut self, reason: &Reason) {
        if let Some(old) = self.deadlines.remove(reason) {
            self.order.remove(&(old, reason.clone()));
        }
    }

    pub fn is_set(&self, reason: &Reason) -> bool {
        self.deadlines.contains_key(reason)
    }

    pub fn next(&self) -> Option<(Time, Reason)> {
        self.order.first().cloned()
    }

    /// Takes one timer whose time has come.
    pub fn pop_due(&mut self, now: Time) -> Option<Reason> {
        let (at, reason) = self.order.first()?.clone();
        if at > now {
            return None;
        }
        self.clear(&reason);
        Some(reason)
    }

    pub fn len(&self) -> usize {
        self.order.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moved_timer_fires_once_at_its_new_time() {
        let mut timers = Timers::default();
        timers.set(Reason::Heartbeat, Time(5));
        timers.set(Reason::Heartbeat, Time(9));
        assert_eq!(timers.pop_due(Time(8)), None);
        assert_eq!(timers.pop_due(Time(9)), Some(Reason::Heartbeat));
        assert_eq!(timers.pop_due(Time(99)), None);
        assert_eq!(timers.len(), 0);
    }
}
