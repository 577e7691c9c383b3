//! Deliberate bugs, compiled in only with the feature `mutants`: they show that the tests can fail.

/// One deliberate bug in a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// Frees a receiving block on abort while its writer may still write (I3).
    FreeWithoutQuarantine,
    /// Takes the KV for complete one notification before the last (I3, I7).
    ReadyOneNotificationEarly,
    /// Claims one block more from the prefix cache than was hit (I2, I7).
    PrefixHitOffByOne,
    /// Takes a restarted engine for the one it was (I5, I7).
    StaleIncarnationAccepted,
}

impl Mutant {
    pub const ALL: [Self; 4] = [
        Self::FreeWithoutQuarantine,
        Self::ReadyOneNotificationEarly,
        Self::PrefixHitOffByOne,
        Self::StaleIncarnationAccepted,
    ];
}

/// The bug that a core is to have: none, unless the feature is on and a test chose one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mutation {
    #[cfg(feature = "mutants")]
    chosen: Option<Mutant>,
}

impl Mutation {
    pub const NONE: Self = Self {
        #[cfg(feature = "mutants")]
        chosen: None,
    };

    #[cfg(feature = "mutants")]
    pub const fn of(mutant: Mutant) -> Self {
        Self { chosen: Some(mutant) }
    }

    #[cfg(feature = "mutants")]
    pub fn is(self, mutant: Mutant) -> bool {
        self.chosen == Some(mutant)
    }

    /// Always false without the feature, so that nothing is left of the bugs in what users run.
    #[cfg(not(feature = "mutants"))]
    pub const fn is(self, _: Mutant) -> bool {
        false
    }
}
