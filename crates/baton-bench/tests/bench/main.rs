//! `baton bench` against a server whose schedule is known.

mod endings;
mod figures;
mod files;
mod stub;
mod talks;
mod world;
