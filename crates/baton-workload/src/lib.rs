//! Requests to send, traces, and what to measure about the answers. No sockets, no clock and no threads: whoever sends the
//! requests, over HTTP or in a simulation, is a program.
//!
//! A workload is a row of [`Conversation`]s, drawn ([`Synthetic`]) or read ([`trace`]). A [`Schedule`] says when each begins.
//! What came of them is a row of [`result::RequestRecord`]s, which [`measure`] turns into the figures of a point, and
//! [`compare`] into ratios. Everything random follows from a seed.

pub mod arrivals;
pub mod compare;
pub mod conversation;
pub mod judge;
pub mod lengths;
pub mod measure;
pub mod prompt;
pub mod quantile;
pub mod resample;
pub mod result;
pub mod schedule;
pub mod synthetic;
pub mod trace;
pub mod words;

pub use arrivals::Arrivals;
pub use conversation::{Ask, Conversation, Message, Turn};
pub use lengths::Lengths;
pub use prompt::{Prompt, Run, Vocabulary};
pub use schedule::{Schedule, Start};
pub use synthetic::Synthetic;
