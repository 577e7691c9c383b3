//! The binary as its users meet it: whole systems of real processes, with the emulated model.

mod bench;
mod chat;
mod different_sides;
mod kills;
mod program;
mod report;
mod same_words;
mod trust;
mod up;
