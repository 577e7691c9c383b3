//! Inputs and outputs of an engine core as lines of the log: short, but whole.

use std::fmt;

use baton_engine::{Input, Output};
use baton_proto::codec;

/// One input; a frame as the message it holds.
pub(crate) struct EngineInput<'a>(pub &'a Input);

/// One output; a step as who computes what, and where.
pub(crate) struct EngineOutput<'a>(pub &'a Output);

impl fmt::Display for EngineInput<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Input::Proto(baton_proto::Input::Received { conn, frame }) => match codec::decode(frame) {
                Ok(message) => write!(f, "{conn:?} {message:?}"),
                Err(fault) => write!(f, "{conn:?} {fault:?}"),
            },
            Input::Proto(input) => write!(f, "{input:?}"),
            Input::Submit(request) => {
                let (seq, tokens, hand_off) = (request.seq, request.prompt.len(), &request.hand_off);
                write!(f, "Submit {seq:?} of {tokens} tokens, at most {}, {hand_off:?}", request.max_tokens)?;
                match (&request.reuse, request.retention) {
                    (None, None) => Ok(()),
                    (Some(reuse), _) => write!(f, ", {reuse:?}"),
                    (None, Some(retention)) => write!(f, ", to be retained as {retention}"),
                }
            }
            input => write!(f, "{input:?}"),
        }
    }
}

impl fmt::Display for EngineOutput<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Output::Step(batch) => {
                write!(f, "Step {}:", batch.step)?;
                for entry in &batch.entries {
                    let (start, end) = (entry.start, entry.end());
                    write!(f, " {:?} {start}..{end} {:?}", entry.seq, entry.table)?;
                }
                Ok(())
            }
            Output::Proto(output) => write!(f, "{output:?}"),
            output => write!(f, "{output:?}"),
        }
    }
}
