//! The one way to the engine thread: a bounded queue that HTTP handlers, side channel, transfer thread and
//! runner put into.

use std::sync::{Arc, Mutex, PoisonError};

use baton_engine::{FinishReason, Handle, Input, Refusal, Request, Retained, Stats, Usage};
use baton_types::{SeqId, TokenId};
use tokio::runtime;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use crate::timeline::Origin;

/// Inputs that may wait for the engine thread. Whoever finds it full waits (threads and connections) or is
/// refused (requests).
const MAX_INPUTS: usize = 4096;

/// What the engine thread takes in.
#[derive(Debug)]
pub(crate) enum Item {
    Submit {
        request: Request,
        origin: Origin,
        events: mpsc::UnboundedSender<SeqEvent>,
    },
    Input(Input),
    /// An input that holds a share of some budget until it has been handled.
    Budgeted(Input, OwnedSemaphorePermit),
    Snapshot(oneshot::Sender<Snapshot>),
    Stop,
}

/// A moment of the engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Snapshot {
    pub stats: Stats,
    /// Nothing is left to do for any client or peer.
    pub idle: bool,
}

/// What becomes of a sequence: tokens, then one of the others, and nothing after it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum SeqEvent {
    Token(TokenId),
    Finished { reason: FinishReason, usage: Usage, handle: Option<Handle>, retained: Option<Retained> },
    Refused(Refusal),
}

/// A sequence's events. Not bounded by a capacity but by the request: at most `max_tokens` tokens and one
/// ending, so that a slow client holds a few bytes a token and never the engine (I11).
pub(crate) type SeqEvents = mpsc::UnboundedReceiver<SeqEvent>;

/// Why a request did not get into the inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotTaken {
    Full,
    /// The engine thread has ended.
    Ended,
}

#[derive(Clone, Debug)]
pub(crate) struct Inbox {
    items: mpsc::Sender<Item>,
    /// The next sequence's number. Held while a request is put in, so that numbers are the order of arrival.
    next_seq: Arc<Mutex<u64>>,
    runtime: runtime::Handle,
}

/// The inbox and the end that the engine thread reads.
pub(crate) fn inbox(runtime: runtime::Handle) -> (Inbox, mpsc::Receiver<Item>) {
    let (items, receiver) = mpsc::channel(MAX_INPUTS);
    (Inbox { items, next_seq: Arc::default(), runtime }, receiver)
}

impl Inbox {
    /// Puts a request in; its `seq` is given here.
    ///
    /// # Errors
    /// If there is no place in the inbox, or nobody reads it any more.
    pub fn submit(&self, mut request: Request, origin: Origin) -> Result<(SeqId, SeqEvents), NotTaken> {
        let (events, receiver) = mpsc::unbounded_channel();
        let mut next = self.next_seq.lock().unwrap_or_else(PoisonError::into_inner);
        let seq = SeqId(*next);
        request.seq = seq;
        self.items.try_send(Item::Submit { request, origin, events }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => NotTaken::Full,
            mpsc::error::TrySendError::Closed(_) => NotTaken::Ended,
        })?;
        *next += 1;
        Ok((seq, receiver))
    }

    /// Puts an input in from wherever waiting is not possible, such as a `drop`. One that finds the inbox
    /// full waits in a task: there are at most two for each sequence, and sequences are bounded.
    pub fn put(&self, input: Input) {
        if let Err(mpsc::error::TrySendError::Full(item)) = self.items.try_send(Item::Input(input)) {
            let items = self.items.clone();
            self.runtime.spawn(async move { items.send(item).await });
        }
    }

    /// Waits for a place. An engine that has ended needs no input.
    pub async fn send(&self, input: Input) {
        let _ = self.items.send(Item::Input(input)).await;
    }

    /// Waits for a place; `share` is given back once the input has been handled.
    pub async fn send_budgeted(&self, input: Input, share: OwnedSemaphorePermit) {
        let _ = self.items.send(Item::Budgeted(input, share)).await;
    }

    /// As [`Inbox::send`], from a thread.
    pub fn send_blocking(&self, input: Input) {
        let _ = self.items.blocking_send(Item::Input(input));
    }

    /// A moment of the engine; `None` if it has ended.
    pub async fn snapshot(&self) -> Option<Snapshot> {
        let (answer, snapshot) = oneshot::channel();
        self.items.send(Item::Snapshot(answer)).await.ok()?;
        snapshot.await.ok()
    }

    /// Ends the engine thread. A full inbox wakes it as well: see `EngineThread`, which sets its flag before.
    pub fn stop(&self) {
        let _ = self.items.try_send(Item::Stop);
    }
}
