//! One conversation, turn by turn.

use std::sync::Arc;
use std::time::Duration;

use baton_workload::conversation::Message as Said;
use baton_workload::result::RequestRecord;
use baton_workload::{Ask, Start, Turn, Vocabulary, words};
use bytes::Bytes;
use tokio::sync::{Semaphore, mpsc};

use crate::answer::note_error;
use crate::clock::ms;
use crate::exchange::Exchange;
use crate::options::{Api, Stop, said};
use crate::request_body::{Manner, Message, Words};

/// What the conversations of a point share.
#[derive(Debug)]
pub(crate) struct Table {
    pub exchange: Exchange,
    pub writer: Writer,
    /// Index of the point, for the records.
    pub point: u32,
    /// Distinguishes the ids of this run from another's.
    pub run_id: String,
    pub streams: Semaphore,
    pub stop: Stop,
}

/// Writes requests out.
#[derive(Clone, Debug)]
pub(crate) struct Writer {
    pub manner: Manner,
    pub vocabulary: Vocabulary,
    pub api: Api,
    /// Length of answers that the model is to end.
    pub max_tokens: u32,
    pub seed: u64,
}

/// A request that is ready to be sent.
#[derive(Debug)]
pub(crate) struct Ready {
    api: Api,
    body: Bytes,
}

impl Writer {
    /// What was said so far is in `history`, and what is said now joins it.
    pub fn write(&self, turn: &Turn, history: &mut Vec<Message>) -> Ready {
        let max_tokens = turn.output_tokens.unwrap_or(self.max_tokens);
        let say = |history: &mut Vec<Message>, content| {
            history.push(Message { role: "user", content });
            let words = Words::Messages(history);
            Ready { api: words.api(), body: words.write(&self.manner, max_tokens) }
        };
        match &turn.ask {
            Ask::Whole(prompt) if self.api == Api::Chat => {
                // All that is to be read is in it: nothing goes before.
                history.clear();
                say(history, words::write_out(prompt, self.seed))
            }
            Ask::Whole(prompt) => {
                let tokens = prompt.write_out(&self.vocabulary, self.seed);
                let words = Words::Tokens(&tokens);
                Ready { api: words.api(), body: words.write(&self.manner, max_tokens) }
            }
            Ask::Next(Said::Words(prompt)) => say(history, words::write_out(prompt, self.seed)),
            Ask::Next(Said::Text(text)) => say(history, text.clone()),
        }
    }
}

impl Table {
    /// Holds the conversation. `first` is its first turn, written out before it was due, and `history` what that said.
    pub async fn talk(
        self: Arc<Self>,
        start: Start,
        first: Ready,
        mut history: Vec<Message>,
        scheduled_ms: f64,
        records: mpsc::UnboundedSender<RequestRecord>,
    ) {
        let turns = &start.conversation.turns;
        let (mut scheduled_ms, mut ready) = (scheduled_ms, Some(first));
        let mut failure: Option<String> = None;
        for (number, turn) in turns.iter().enumerate() {
            let mut record = self.record(&start, number, turn, scheduled_ms);
            if let Some(why) = &failure {
                note_error(why, &mut record);
                // Nobody listens any more if the point is over.
                let _ = records.send(record);
                continue;
            }
            let request = match ready.take() {
                Some(ready) => ready,
                None => self.writer.write(turn, &mut history),
            };
            let next = turns.get(number + 1);
            let is_continued = next.is_some_and(|next| matches!(next.ask, Ask::Next(_)));
            if number > 0 {
                self.wait_until(scheduled_ms).await;
            }
            let text = self.exchange(request, is_continued, &mut record).await;
            if *self.stop.borrow() {
                failure = Some("the measurement ended".to_owned());
            } else if is_continued && !record.ending.is_answer() {
                failure = Some("the turn before it failed".to_owned());
            }
            if let Some(content) = text {
                history.push(Message { role: "assistant", content });
            }
            let think_ms = next.map_or(0.0, |next| ms(next.think));
            scheduled_ms = record.done_ms.unwrap_or_else(|| self.exchange.clock.now_ms()) + think_ms;
            let _ = records.send(record);
        }
    }

    /// A request that is not sent is unfinished.
    pub fn unsent(&self, start: &Start, scheduled_ms: f64) -> Vec<RequestRecord> {
        let turns = start.conversation.turns.iter().enumerate();
        turns
            .map(|(number, turn)| {
                let mut record = self.record(start, number, turn, scheduled_ms);
                note_error("the measurement ended before it was sent", &mut record);
                record
            })
            .collect()
    }

    fn record(&self, start: &Start, number: usize, turn: &Turn, scheduled_ms: f64) -> RequestRecord {
        let index = start.first_index + number as u64;
        // What the words of a history come to, nobody knows before.
        let is_alone = number == 0 || matches!(turn.ask, Ask::Whole(_));
        let tokens = turn.new_tokens().filter(|_| is_alone);
        RequestRecord {
            point: self.point,
            index,
            id: format!("{}-{}-{index}", self.run_id, self.point),
            conversation: start.conversation.name.clone(),
            turn: number as u32,
            scheduled_ms,
            prompt_tokens: tokens,
            wanted_prompt_tokens: tokens,
            wanted_output_tokens: turn.output_tokens,
            ..RequestRecord::default()
        }
    }

    async fn wait_until(&self, scheduled_ms: f64) {
        let due = self.exchange.clock.at(Duration::from_secs_f64(scheduled_ms / 1000.0));
        let mut stop = self.stop.clone();
        tokio::select! {
            () = tokio::time::sleep_until(due.into()) => {}
            () = said(&mut stop) => {}
        }
    }

    /// Sends the request, unless or until the measurement ends.
    async fn exchange(&self, ready: Ready, keep_text: bool, record: &mut RequestRecord) -> Option<String> {
        let mut stop = self.stop.clone();
        let Ready { api, body } = ready;
        tokio::select! {
            biased;
            () = said(&mut stop) => {
                note_error("the measurement ended", record);
                None
            }
            text = async {
                // It is never closed.
                let _stream = self.streams.acquire().await;
                self.exchange.progress.sent();
                let text = self.exchange.run(api, body, keep_text, record).await;
                self.exchange.progress.over(record);
                text
            } => text,
        }
    }
}
