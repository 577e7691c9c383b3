//! Connections to one engine, kept for a while and used again.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{HOST, HeaderValue};
use hyper::{HeaderMap, Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::config::EngineAddress;

/// Servers close idle connections after 5 s (uvicorn's default); one that is about to be closed must not be used.
const MAX_IDLE: Duration = Duration::from_secs(4);
/// Idle connections per engine; more are closed.
const MAX_IDLE_CONNECTIONS: usize = 64;

type Sender = SendRequest<Full<Bytes>>;

/// Why an exchange failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExchangeError {
    #[error("no connection: {0}")]
    Connect(#[source] io::Error),
    #[error("the connection broke: {0}")]
    Broken(#[from] hyper::Error),
    #[error("the answer is longer than {0} bytes")]
    TooLong(usize),
}

#[derive(Debug)]
pub(crate) struct EngineClient {
    address: EngineAddress,
    idle: Mutex<VecDeque<(Sender, Instant)>>,
}

impl EngineClient {
    pub fn new(address: EngineAddress) -> Arc<Self> {
        Arc::new(Self { address, idle: Mutex::default() })
    }

    pub fn address(&self) -> &EngineAddress {
        &self.address
    }

    /// Sends a request and waits for the head of the answer. Dropping the future, or the answer before its end, closes the
    /// connection: engines take that as an abort.
    ///
    /// `connected` is called when the request has a connection. A connection out of the pool may have been closed by the
    /// engine at this very moment; no byte has come then, and the request is sent once more on a new one.
    pub async fn send(
        self: &Arc<Self>,
        mut request: Request<Full<Bytes>>,
        mut connected: impl FnMut(),
    ) -> Result<EngineAnswer, ExchangeError> {
        let host = HeaderValue::try_from(self.address.to_string()).expect("parsed from a URI");
        request.headers_mut().insert(HOST, host);
        if let Some(mut sender) = self.take_idle().await {
            connected();
            match sender.send_request(request.clone()).await {
                Ok(response) => return Ok(self.answer(response, sender)),
                Err(error) if error.is_parse() => return Err(error.into()),
                Err(error) => tracing::debug!(%error, "a kept connection was closed"),
            }
        }
        let mut sender = self.connect().await?;
        connected();
        let response = sender.send_request(request).await?;
        Ok(self.answer(response, sender))
    }

    fn answer(self: &Arc<Self>, response: hyper::Response<Incoming>, sender: Sender) -> EngineAnswer {
        let (head, body) = response.into_parts();
        let client = Arc::clone(self);
        EngineAnswer { status: head.status, headers: head.headers, body, lease: Some((client, sender)) }
    }

    async fn connect(&self) -> Result<Sender, ExchangeError> {
        let target = (self.address.host.as_str(), self.address.port);
        let stream = TcpStream::connect(target).await.map_err(ExchangeError::Connect)?;
        stream.set_nodelay(true).map_err(ExchangeError::Connect)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // Ends by itself once the sender and the answer are gone.
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection to an engine");
            }
        });
        Ok(sender)
    }

    /// The connection used last: it is the least likely to be closed by now.
    async fn take_idle(&self) -> Option<Sender> {
        loop {
            let (mut sender, since) = self.idle().pop_back()?;
            if since.elapsed() >= MAX_IDLE {
                self.idle().clear();
                return None;
            }
            if !sender.is_closed() && sender.ready().await.is_ok() {
                return Some(sender);
            }
        }
    }

    fn keep(&self, sender: Sender) {
        let mut idle = self.idle();
        if idle.len() >= MAX_IDLE_CONNECTIONS {
            idle.pop_front();
        }
        idle.push_back((sender, Instant::now()));
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, VecDeque<(Sender, Instant)>> {
        // Nothing is done under the lock that could leave it half done.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An answer whose head has come.
#[derive(Debug)]
pub(crate) struct EngineAnswer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    body: Incoming,
    lease: Option<(Arc<EngineClient>, Sender)>,
}

impl EngineAnswer {
    /// The next bytes of the body; `None` at its proper end, when the connection is free for others.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ExchangeError> {
        loop {
            match self.body.frame().await {
                None => {
                    if let Some((client, sender)) = self.lease.take() {
                        client.keep(sender);
                    }
                    return Ok(None);
                }
                Some(Err(error)) => return Err(error.into()),
                // Trailers are of no use here.
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        return Ok(Some(bytes));
                    }
                }
            }
        }
    }

    /// The whole body, if it has at most `limit` bytes.
    pub async fn collect(&mut self, limit: usize) -> Result<Bytes, ExchangeError> {
        let mut all = Vec::new();
        while let Some(bytes) = self.next().await? {
            if all.len() + bytes.len() > limit {
                return Err(ExchangeError::TooLong(limit));
            }
            all.extend_from_slice(&bytes);
        }
        Ok(all.into())
    }
}
