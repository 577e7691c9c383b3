//! What an engine's loop does and when, for whoever measures it: the target [`TARGET`] at level TRACE. Costs a look at a flag
//! where nobody listens.

use baton_engine::{Input, Output};
use baton_types::EngineName;
use tracing::trace;

/// Target of the events: `step starts`, `step ends`, `posts`, `moved`.
pub const TARGET: &str = "baton::loop";

macro_rules! tell {
    ($($rest:tt)*) => { trace!(target: TARGET, $($rest)*) };
}

pub(crate) fn input(engine: &EngineName, input: &Input) {
    match input {
        Input::Stepped(result) => tell!(engine = engine.as_str(), step = result.step, "step ends"),
        Input::Proto(baton_proto::Input::Moved { post, .. }) => {
            tell!(engine = engine.as_str(), post = post.0, "moved");
        }
        _ => {}
    }
}

pub(crate) fn output(engine: &EngineName, output: &Output) {
    match output {
        Output::Step(batch) => {
            tell!(engine = engine.as_str(), step = batch.step, entries = batch.entries.len(), "step starts");
        }
        Output::Proto(baton_proto::Output::Post { post, pairs, .. }) => {
            tell!(engine = engine.as_str(), post = post.0, units = pairs.len(), "posts");
        }
        _ => {}
    }
}
