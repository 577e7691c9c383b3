//! Requests to send, traces, and what to measure about the answers. No sockets, no clock and no threads: whoever sends the
//! requests, over HTTP or in a simulation, is a program.

pub mod result;
