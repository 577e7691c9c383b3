//! Whole servers in one process, over real sockets: what a client and another engine see.

mod alone;
mod api;
mod checkpoint;
mod conversations;
mod crowd;
mod faults;
mod hand_off;
mod harness;
mod lifecycle;
mod same_words;
mod text;
mod timelines;
mod trust;
