//! The binary as its users meet it: whole systems of real processes, with the emulated model.

mod chat;
mod program;
mod up;
