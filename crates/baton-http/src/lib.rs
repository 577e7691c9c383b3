//! The HTTP listener of engines and routers: connections, limited in number and in how long each may keep its place without a
//! request, or without taking its answer (I11). What is asked on them is the business of the routes.

mod front;
mod patience;

pub use front::{Limits, serve};
