//! A router between stub engines and a client, over real sockets.

mod answers;
mod faults;
mod stub;
mod world;
