//! The strategies as data: for each hand-off, who offers, who moves the bytes, and who speaks first.

use crate::action::Direction;

/// One way to hand KV from a source to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// What the active side does with the passive side's units.
    pub direction: Direction,
    /// The passive side must announce its offer, since the active one cannot know of it otherwise.
    pub registers: bool,
    /// The right of the active side ends with time. A reader that comes too late reads what it must throw away, and can tell; a
    /// writer that comes too late corrupts, and nobody can tell: its right ends only with its word or a fence.
    pub lapses: bool,
}

/// The source is passive: the destination learns of it from the router and reads.
pub const PULL: Order = Order { direction: Direction::Read, registers: false, lapses: true };

/// The destination is passive: it registers with the source, which writes.
pub const PUSH: Order = Order { direction: Direction::Write, registers: true, lapses: false };
