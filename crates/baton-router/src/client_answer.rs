//! The body of an answer to a client: the leg's bytes as they come, and the end that the core decides.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use baton_openai::SseEncoder;
use baton_routing::{Failure, RequestEnd, RequestId};
use bytes::Bytes;
use hyper::body::{Body, Frame};
use tokio::sync::{mpsc, oneshot};

use crate::conductor::Conductor;
use crate::failure::api_error;

/// What a leg has for the client.
#[derive(Debug)]
pub(crate) enum AnswerBytes {
    /// Not streamed: all of it.
    Whole(Bytes),
    /// Events, ready to be sent.
    Stream(mpsc::Receiver<Bytes>),
}

/// Tells the core that the client is gone when it is dropped: by axum, when the connection closes or the answer has been
/// sent. A request that is over by then is none of the core's business any more.
#[derive(Debug)]
pub(crate) struct ClientGuard {
    pub conductor: Arc<Conductor>,
    pub request: RequestId,
}

impl Drop for ClientGuard {
    fn drop(&mut self) {
        self.conductor.client_gone(self.request);
    }
}

/// A stream of events, closed by `[DONE]` whatever happens.
#[derive(Debug)]
pub(crate) struct StreamBody {
    events: mpsc::Receiver<Bytes>,
    end: Option<oneshot::Receiver<RequestEnd>>,
    _guard: ClientGuard,
}

impl StreamBody {
    pub fn new(
        events: mpsc::Receiver<Bytes>,
        end: oneshot::Receiver<RequestEnd>,
        guard: ClientGuard,
    ) -> Self {
        Self { events, end: Some(end), _guard: guard }
    }
}

impl Body for StreamBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Some(bytes) = std::task::ready!(self.events.poll_recv(context)) {
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        // The leg is over; how, the core says.
        let Some(end) = &mut self.end else { return Poll::Ready(None) };
        let end = std::task::ready!(Pin::new(end).poll(context));
        self.end = None;
        let failure = match end {
            Ok(RequestEnd::Answered | RequestEnd::ClientGone) => return Poll::Ready(None),
            Ok(RequestEnd::Failed(failure)) => failure,
            // The router shuts down.
            Err(_) => Failure::EngineFailed,
        };
        // The status is out already: this is the only way to tell.
        let last = SseEncoder::new().fail(&api_error(failure, None));
        Poll::Ready(Some(Ok(Frame::data(last))))
    }
}
