//! Deliberate bugs, compiled in only with the feature `mutants`: they show that the tests can fail.

/// Declares the bugs once: each with what it breaks.
macro_rules! mutants {
    ($($(#[$doc:meta])* $name:ident: $attacks:literal,)*) => {
        /// One deliberate bug in a core.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Mutant {
            $($(#[$doc])* $name,)*
        }

        impl Mutant {
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The invariants that it breaks (ARCHITECTURE.md).
            pub const fn attacks(self) -> &'static str {
                match self {
                    $(Self::$name => $attacks,)*
                }
            }
        }
    };
}

mutants! {
    // Blocks.
    /// Forgets the blocks of a sequence that ends while the runner computes it.
    LeakRetiringTable: "I1",
    /// Claims one block more from the prefix cache than was hit.
    PrefixHitOffByOne: "I2, I7",
    /// Takes a sequence that was filled by a peer for one that still waits for it.
    RefetchAfterReady: "I4",
    /// Ends the lease of an offer's blocks twice.
    LeaseEndedTwice: "I4",

    // Leases.
    /// Frees a receiving block on abort while its writer may still write.
    FreeWithoutQuarantine: "I3",
    /// Frees quarantined blocks because time is up, not because the writer is fenced.
    QuarantineTimesOut: "I3",
    /// Answers an abort although a post of its own is still on its way.
    AbortedBeforePostsLand: "I3",
    /// Keeps what it read although the lease ran out meanwhile.
    KeepLateBytes: "I3, I7",
    /// Takes the KV for complete one notification before the last.
    ReadyOneNotificationEarly: "I3, I7",
    /// Heartbeats do not renew a push's lease.
    HeartbeatsRenewNothing: "I8",
    /// Says when a lease ends by its own clock.
    InstantOnTheWire: "I6",
    /// Forgets an abort that comes before the request.
    EarlyAbortForgotten: "I4",
    /// The fence frees nothing.
    FenceForgotten: "I8",

    // Retentions.
    /// A claim on what is retained for a fixed time starts that time anew.
    RetentionRenewedOnAccess: "I6",
    /// Grants all of what is retained to whoever knows how it begins.
    GrantBeyondCommonPrefix: "I13, I7",
    /// Does not hold for a reader what it was granted of a retention.
    FreedDuringRead: "I3, I7",
    /// Retains the place of the last token as well, whose KV was never computed.
    RetainUncomputed: "I2, I7",

    // Incarnations and peers.
    /// Takes a restarted engine for the one it was.
    StaleIncarnationAccepted: "I5, I7",
    /// Speaks to a peer that has not been welcomed yet.
    WordsBeforeWelcome: "I5",
    /// Takes block ids from anybody who knows the transfer.
    GrantFromAnybody: "I5",
    /// Lets a peer in again at once that came back before its old path was lost.
    ReturnedPeerLetIn: "I3",
    /// Tables of registrations grow without limit.
    UnboundedRegistrations: "I11",
    /// Goes through transfers in the order of a hash table.
    HashedOrder: "I10",

    // Tenants.
    /// Grants whatever the claimant's chain is.
    ChainNotCompared: "I13, I7",
    /// Leaves the tenant out of the salt.
    TenantNotSalted: "I13",

    // Legs.
    /// A retry goes by the transfer id of the attempt that failed.
    RetryKeepsTransfer: "I4",
    /// Tries again although the client has a part of the answer.
    RetryAfterFirstByte: "I9",
    /// Remembers what an engine retained before it was restarted, and offers it.
    ConversationSurvivesRestart: "I5",
}

/// The bug that a core is to have: none, unless the feature is on and a test chose one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
