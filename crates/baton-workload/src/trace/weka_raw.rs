//! A WEKA session as it was recorded: one JSON object with all its requests and the ids of their blocks.

use std::io::BufRead;
use std::time::Duration;

use serde::Deserialize;

use super::TraceError;
use crate::conversation::{Ask, Conversation, Turn};
use crate::prompt::Prompt;

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct WekaSession {
    pub id: String,
    pub block_size: u32,
    pub requests: Vec<WekaRequest>,
}

/// Times are in seconds.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct WekaRequest {
    pub t: f64,
    #[serde(rename = "in")]
    pub input: u32,
    #[serde(rename = "out")]
    pub output: u32,
    /// They mean something within the session only.
    pub hash_ids: Vec<u64>,
    #[serde(default)]
    pub think_time: Option<f64>,
}

/// One session after another: usually one file has one.
pub fn sessions(text: impl BufRead) -> impl Iterator<Item = Result<WekaSession, TraceError>> {
    let sessions = serde_json::Deserializer::from_reader(text).into_iter();
    sessions.zip(1..).map(|(session, number)| session.map_err(|error| TraceError::record(number, error)))
}

pub(super) fn conversations(text: impl BufRead) -> Result<Vec<Conversation>, TraceError> {
    sessions(text)
        .zip(0..)
        .map(|(session, number)| {
            conversation(session?, number).map_err(|what| TraceError::record(u64::from(number) + 1, what))
        })
        .collect()
}

fn conversation(session: WekaSession, number: u32) -> Result<Conversation, String> {
    let WekaSession { id, block_size, requests } = session;
    if block_size == 0 {
        return Err("blocks of no tokens".to_owned());
    }
    let local = u64::from(number) << 40;
    let turn = |(index, request): (u64, WekaRequest)| {
        let keys = request.hash_ids.into_iter().map(|id| local.wrapping_add(id));
        let think_s = if index == 0 { 0.0 } else { request.think_time.unwrap_or(0.0) };
        let think = Duration::try_from_secs_f64(think_s).map_err(|error| format!("{think_s} s: {error}"))?;
        let prompt = Prompt::from_keys(request.input, block_size, keys, local + index);
        Ok(Turn { think, ask: Ask::Whole(prompt), output_tokens: Some(request.output.max(1)) })
    };
    let turns: Result<Vec<Turn>, String> = (0..).zip(requests).map(turn).collect();
    Ok(Conversation { name: Some(id), session: number, offset: Duration::ZERO, turns: turns? })
}
