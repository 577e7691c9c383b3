//! Endpoints under a virtual clock: what they say, and what happens when things go wrong.

mod random;
mod transcripts;
mod world;
