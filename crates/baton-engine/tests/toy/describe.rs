//! Inputs and outputs of an engine core in one line each, for transcripts.

use baton_engine::{HandOff, Input, Output};
use baton_proto::{Input as ProtoInput, Message, Output as ProtoOutput};

/// None for what another line says already.
pub fn input(input: &Input) -> Option<String> {
    Some(match input {
        Input::Submit(request) => {
            let part = match &request.hand_off {
                HandOff::None => String::new(),
                HandOff::ToPeer { transfer, mode } => format!(", {mode:?} {transfer:?} to a peer"),
                HandOff::FromPeer { transfer, mode, peer } => {
                    format!(", {mode:?} {transfer:?} from {}", peer.engine.name)
                }
            };
            format!("submit {:?}: {} tokens{part}", request.seq, request.prompt.len())
        }
        Input::Stepped(result) => format!("stepped {}", result.step),
        Input::Proto(ProtoInput::Moved { post, ok }) => {
            format!("moved {}{}", post.0, if *ok { "" } else { " not" })
        }
        Input::Proto(ProtoInput::Notified { .. }) => "notified".into(),
        Input::Proto(_) | Input::Tick => return None,
        other => format!("{other:?}"),
    })
}

/// None for the handshake.
pub fn output(output: &Output) -> Option<String> {
    Some(match output {
        Output::Step(batch) => {
            let entries = batch.entries.iter().map(|entry| {
                let samples = if entry.sample.is_some() { "!" } else { "" };
                format!("{:?} {}..{}{samples} in {:?}", entry.seq, entry.start, entry.end(), entry.table)
            });
            format!("step {}: {}", batch.step, entries.collect::<Vec<_>>().join("; "))
        }
        Output::Token { seq, token } => format!("token {token:?} for {seq:?}"),
        Output::Finished { seq, reason, usage, handle, .. } => {
            let handle = handle.map_or(String::new(), |handle| format!(", handle {:?}", handle.transfer));
            format!(
                "finished {seq:?}: {reason:?}, {} prompt ({} cached, {} received) + {}{handle}",
                usage.prompt_tokens, usage.hit_tokens, usage.received_tokens, usage.completion_tokens
            )
        }
        Output::Refused { seq, why } => format!("refused {seq:?}: {why:?}"),
        Output::Proto(ProtoOutput::Send { message, .. }) => message_line(message)?,
        Output::Proto(ProtoOutput::Post { post, direction, pairs, .. }) => {
            let pairs = pairs.iter().map(|(ours, theirs)| format!("{ours:?}:{theirs:?}"));
            format!("post {} {direction:?} {}", post.0, pairs.collect::<Vec<_>>().join(" "))
        }
        Output::Proto(_) => return None,
    })
}

fn message_line(message: &Message) -> Option<String> {
    Some(match message {
        Message::Hello { .. } | Message::Welcome { .. } | Message::Incompatible { .. } => return None,
        Message::Register { transfer, first_unit } => {
            format!("say Register {transfer:?} from unit {first_unit}")
        }
        Message::Claim { transfer, first_unit, chain, .. } => {
            format!("say Claim {transfer:?} from unit {first_unit} of {}", chain.len())
        }
        Message::Granted { transfer, units, remaining, .. } => {
            format!("say Granted {transfer:?} {units:?} for {remaining:?}")
        }
        other => format!("say {other:?}"),
    })
}
