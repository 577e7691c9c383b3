//! A client's hold on its sequence: dropping it gives the sequence up at once.

use baton_engine::Input;
use baton_types::SeqId;

use crate::inbox::{Inbox, SeqEvent, SeqEvents};

/// Lives where the answer is written, so that a client that disconnects drops it.
#[derive(Debug)]
pub(crate) struct Ticket {
    seq: SeqId,
    events: SeqEvents,
    inbox: Inbox,
    over: bool,
}

impl Ticket {
    pub fn new(seq: SeqId, events: SeqEvents, inbox: Inbox) -> Self {
        Self { seq, events, inbox, over: false }
    }

    /// The next thing that happens to the sequence; nothing if the engine has ended. Not to be called again
    /// after the ending.
    pub async fn next(&mut self) -> Option<SeqEvent> {
        let event = self.events.recv().await;
        self.over = !matches!(event, Some(SeqEvent::Token(_)));
        event
    }

    /// The text is complete; the ending still follows.
    pub fn stop(&self) {
        self.inbox.put(Input::Stop { seq: self.seq });
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.over {
            self.inbox.put(Input::Abort { seq: self.seq });
        }
    }
}
