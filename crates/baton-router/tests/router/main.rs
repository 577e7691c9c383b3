//! A router between stub engines and a client, over real sockets.

mod answers;
mod conversations;
mod crowd;
mod faults;
mod strangers;
mod stub;
mod timelines;
mod world;
