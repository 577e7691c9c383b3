//! What computes tokens: model runners over the paged KV pool, the weights they read, and how the next token is chosen.

pub mod weights;
