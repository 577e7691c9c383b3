//! What can go wrong in a run. Each kind has a rate of its own, drawn from the seed; none: it does not happen.

use std::fmt;

/// One kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    // At each opportunity, so often in a thousand.
    /// A message, a notification or a completion takes far longer than usual.
    Spike,
    /// A side channel's dial gets no connection.
    DialRefused,
    /// A leg's connection is refused.
    LegRefused,
    /// A leg's connection request vanishes.
    LegLost,
    /// A post ends in the middle.
    PostFails,
    /// A post reports a failure although every byte and its notification arrived.
    PostLies,
    /// A post's bytes take far longer than usual.
    PostSlow,
    /// A path cannot be set up.
    PathFails,
    /// The runner cannot compute a step.
    StepFails,
    /// A decode leg brings another request's handle: one that is used, over, or another tenant's.
    WrongHandle,

    // At each turn of the saboteur, with this weight among the others.
    /// A process dies and comes back, after a pause, with nothing.
    Crash,
    /// An engine drains, ends when it is idle, and comes back with nothing.
    Drain,
    /// An engine does and hears nothing for a while.
    Pause,
    /// A connection of the side channel breaks.
    Disconnect,
    /// A leg's connection breaks.
    Reset,
    /// A client leaves.
    ClientGone,
}

impl Fault {
    pub const ALL: [Self; 16] = [
        Self::Spike,
        Self::DialRefused,
        Self::LegRefused,
        Self::LegLost,
        Self::PostFails,
        Self::PostLies,
        Self::PostSlow,
        Self::PathFails,
        Self::StepFails,
        Self::WrongHandle,
        Self::Crash,
        Self::Drain,
        Self::Pause,
        Self::Disconnect,
        Self::Reset,
        Self::ClientGone,
    ];

    /// Those that a saboteur does.
    pub const DEEDS: [Self; 6] =
        [Self::Crash, Self::Drain, Self::Pause, Self::Disconnect, Self::Reset, Self::ClientGone];
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// How often each kind strikes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultRates([u32; Fault::ALL.len()]);

impl FaultRates {
    pub fn of(&self, fault: Fault) -> u32 {
        self.0[fault as usize]
    }

    pub fn set(&mut self, fault: Fault, rate: u32) {
        self.0[fault as usize] = rate;
    }

    /// Whether nothing at all goes wrong.
    pub fn is_calm(&self) -> bool {
        self.0.iter().all(|rate| *rate == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_lists_each_kind_at_its_own_place() {
        for (i, fault) in Fault::ALL.iter().enumerate() {
            assert_eq!(*fault as usize, i);
        }
    }
}
