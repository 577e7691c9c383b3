//! The binary as its users meet it: whole systems of real processes, with the emulated model.

mod bench;
mod chat;
mod conversations;
mod different_sides;
mod doctor;
mod fences;
mod kills;
mod program;
mod report;
mod same_words;
mod timeline;
mod tls_front;
mod trust;
mod up;
