//! What can go wrong in a run. Each kind has a rate of its own, drawn from the seed; none: it does not happen.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::random::Random;

/// One kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Fault {
    // At each opportunity, so often in a thousand.
    /// A message, a notification or a completion takes far longer than usual.
    Spike,
    /// A side channel's dial gets no connection.
    DialRefused,
    /// A message of the side channel never arrives, though its connection lives.
    FrameLost,
    /// A message arrives twice.
    FrameDoubled,
    /// A message is overtaken by later ones, as on a peer's second connection.
    FrameLate,
    /// A bit of a message flips: the codec refuses it, or a checksum below sees it and the connection breaks.
    FrameGarbled,
    /// A leg's connection is refused.
    LegRefused,
    /// A leg's connection request vanishes.
    LegLost,
    /// Somebody between router and engine sends a leg's request twice.
    LegDoubled,
    /// A post ends in the middle.
    PostFails,
    /// A post reports a failure although every byte and its notification arrived.
    PostLies,
    /// A post's bytes take far longer than usual.
    PostSlow,
    /// A post's bytes arrive, its notification does not.
    NotifyLost,
    /// A notification arrives twice.
    NotifyDoubled,
    /// A path cannot be set up.
    PathFails,
    /// The runner cannot compute a step.
    StepFails,
    /// A decode leg brings another request's handle: one that is used, over, or another tenant's.
    WrongHandle,

    // At each turn of the saboteur, so often in a thousand.
    /// A process dies and comes back, after a pause, with nothing.
    Crash,
    /// An engine drains, ends when it is idle, and comes back with nothing.
    Drain,
    /// An engine does and hears nothing for a while; then all that it missed comes at once.
    Pause,
    /// A connection of the side channel breaks.
    Disconnect,
    /// The network falls into two parts for a while.
    Split,
    /// Somebody who is no engine talks to a side channel: noise, words without a handshake, words about others' transfers.
    Stranger,
    /// A leg's connection breaks.
    Reset,
    /// The router dies and comes back, after a pause, with nothing.
    RouterCrash,
    /// A client leaves.
    ClientGone,
    /// A client takes nothing of its answer for a while.
    ClientStalls,
}

impl Fault {
    pub const ALL: [Self; 27] = [
        Self::Spike,
        Self::DialRefused,
        Self::FrameLost,
        Self::FrameDoubled,
        Self::FrameLate,
        Self::FrameGarbled,
        Self::LegRefused,
        Self::LegLost,
        Self::LegDoubled,
        Self::PostFails,
        Self::PostLies,
        Self::PostSlow,
        Self::NotifyLost,
        Self::NotifyDoubled,
        Self::PathFails,
        Self::StepFails,
        Self::WrongHandle,
        Self::Crash,
        Self::Drain,
        Self::Pause,
        Self::Disconnect,
        Self::Split,
        Self::Stranger,
        Self::Reset,
        Self::RouterCrash,
        Self::ClientGone,
        Self::ClientStalls,
    ];

    /// Those that a saboteur does.
    pub fn deeds() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|fault| *fault >= Self::Crash)
    }

    /// Those that only keep KV from getting from one engine to another.
    pub fn is_about_kv(self) -> bool {
        matches!(
            self,
            Self::DialRefused
                | Self::FrameLost
                | Self::FrameDoubled
                | Self::FrameLate
                | Self::FrameGarbled
                | Self::PostFails
                | Self::PostLies
                | Self::PostSlow
                | Self::NotifyLost
                | Self::NotifyDoubled
                | Self::PathFails
                | Self::Disconnect
                | Self::Stranger
        )
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// How often each kind strikes; kinds that are not there never do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FaultRates(BTreeMap<Fault, FaultRate>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultRate {
    /// Of a thousand opportunities, or turns.
    pub per_mille: u32,
    /// In one run; none: as often as there are opportunities.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most: Option<u64>,
}

impl FaultRates {
    pub fn of(&self, fault: Fault) -> u32 {
        self.0.get(&fault).map_or(0, |rate| rate.per_mille)
    }

    pub fn set(&mut self, fault: Fault, per_mille: u32) {
        self.0.insert(fault, FaultRate { per_mille, most: None });
        self.0.retain(|_, rate| rate.per_mille > 0);
    }

    /// No more than so many of this kind.
    pub fn limit(&mut self, fault: Fault, most: u64) {
        if let Some(rate) = self.0.get_mut(&fault) {
            rate.most = Some(most);
        }
    }

    /// The most of this kind in one run, if that is limited; 0 for a kind that never strikes.
    pub fn most(&self, fault: Fault) -> Option<u64> {
        self.0.get(&fault).map_or(Some(0), |rate| rate.most)
    }

    /// Whether nothing at all goes wrong.
    pub fn is_calm(&self) -> bool {
        self.0.is_empty()
    }
}

/// Which opportunities the faults of a run take. Each kind has its own chance: without one of them the others do what they did.
#[derive(Debug)]
pub(crate) struct Luck {
    rates: FaultRates,
    kinds: Vec<(Random, u64)>,
}

impl Luck {
    pub fn new(rates: &FaultRates, seed: u64) -> Self {
        let kind = |fault: Fault| (Random::new(seed ^ (fault as u64 + 1) << 56), 0);
        Self { rates: rates.clone(), kinds: Fault::ALL.map(kind).to_vec() }
    }

    /// Whether the next opportunity is taken.
    pub fn strikes(&mut self, fault: Fault) -> bool {
        let Some(rate) = self.rates.0.get(&fault) else { return false };
        let (random, so_far) = &mut self.kinds[fault as usize];
        let strikes = random.chance(rate.per_mille) && rate.most.is_none_or(|most| *so_far < most);
        *so_far += u64::from(strikes);
        strikes
    }

    /// The details of a kind's faults.
    pub fn of(&mut self, fault: Fault) -> &mut Random {
        &mut self.kinds[fault as usize].0
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

    #[test]
    fn a_kind_that_is_taken_out_leaves_the_others_as_they_were() {
        let mut rates = FaultRates::default();
        rates.set(Fault::Spike, 300);
        rates.set(Fault::PostFails, 300);
        let strikes = |rates: &FaultRates| {
            let mut luck = Luck::new(rates, 7);
            let both = |_| (luck.strikes(Fault::Spike), luck.strikes(Fault::PostFails));
            (0..100).map(both).collect::<Vec<_>>()
        };
        let before = strikes(&rates);
        rates.set(Fault::Spike, 0);
        rates.limit(Fault::PostFails, 2);
        let after = strikes(&rates);
        assert!(before.iter().any(|(spike, _)| *spike) && !after.iter().any(|(spike, _)| *spike));
        let first_two = |all: &[(bool, bool)]| {
            all.iter().enumerate().filter(|(_, both)| both.1).map(|(i, _)| i).take(2).collect::<Vec<_>>()
        };
        assert_eq!(first_two(&before), first_two(&after));
        assert_eq!(after.iter().filter(|both| both.1).count(), 2);
    }
}
