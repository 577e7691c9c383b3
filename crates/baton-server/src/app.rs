//! What every HTTP handler sees of the server.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use baton_engine::Request;
use baton_openai::{ApiError, ErrorKind};
use baton_types::{EngineInfo, TokenId};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::hand_off::Identity;
use crate::inbox::{Inbox, NotTaken};
use crate::metrics::{HttpMetrics, KvSizes, StepMetrics};
use crate::text::Text;
use crate::ticket::Ticket;
use crate::timeline::Origin;

/// From the first moment on, so that probes are answered while the model loads.
#[derive(Debug)]
pub(crate) struct App {
    /// There once the model is loaded.
    serving: OnceLock<Serving>,
    draining: AtomicBool,
    pub metrics: HttpMetrics,
    /// Requests between their first byte and the end of their answer.
    places: Arc<Semaphore>,
    pub max_body_bytes: usize,
    /// Unix seconds.
    pub started: u64,
}

/// A loaded engine.
#[derive(Debug)]
pub(crate) struct Serving {
    pub inbox: Inbox,
    pub steps: Arc<StepMetrics>,
    pub text: Arc<Text>,
    pub identity: Identity,
    /// All but the load, which is asked for.
    pub info: EngineInfo,
    /// Ids below it are tokens of the model.
    pub vocab: usize,
    /// The longest sequence, prompt and answer together.
    pub max_len: usize,
    /// How long the KV of prompt and answer is kept for the next turn; none if it is not.
    pub retain_ttl: Option<Duration>,
    /// KV of one token.
    pub token_bytes: usize,
    /// What ends an answer unless the client wants it ignored.
    pub eos: Vec<TokenId>,
}

impl Serving {
    pub fn kv_sizes(&self) -> KvSizes {
        let token_bytes = self.token_bytes;
        KvSizes { block_bytes: token_bytes * self.info.block_tokens as usize, token_bytes }
    }
}

impl App {
    /// `max_requests` bounds the requests that are read, tokenised or answered at a time.
    pub fn new(max_requests: usize, max_body_bytes: usize, started: u64) -> Self {
        Self {
            serving: OnceLock::new(),
            draining: AtomicBool::new(false),
            metrics: HttpMetrics::default(),
            places: Arc::new(Semaphore::new(max_requests)),
            max_body_bytes,
            started,
        }
    }

    /// The model is loaded. To be called once.
    pub fn begin_serving(&self, serving: Serving) {
        let first = self.serving.set(serving).is_ok();
        assert!(first, "a server loads one model");
    }

    pub fn begin_draining(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// The engine, draining or not.
    ///
    /// # Errors
    /// A 503 while the model loads.
    pub fn serving(&self) -> Result<&Serving, ApiError> {
        self.serving.get().ok_or_else(|| unavailable("The model is still being loaded."))
    }

    /// The engine, if it takes new requests.
    ///
    /// # Errors
    /// A 503 while the model loads or the server drains.
    pub fn open(&self) -> Result<&Serving, ApiError> {
        if self.draining.load(Ordering::Acquire) {
            return Err(draining());
        }
        self.serving()
    }

    /// A place for one request; given back when it is dropped.
    ///
    /// # Errors
    /// A 429 if there is none.
    pub fn place(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        self.places.clone().try_acquire_owned().map_err(|_| overloaded())
    }
}

impl Serving {
    /// # Errors
    /// A 429 if the engine has too much to do, a 503 if it has ended.
    pub fn submit(&self, request: Request, origin: Origin) -> Result<Ticket, ApiError> {
        match self.inbox.submit(request, origin) {
            Ok((seq, events)) => Ok(Ticket::new(seq, events, self.inbox.clone())),
            Err(NotTaken::Full) => Err(overloaded()),
            Err(NotTaken::Ended) => Err(draining()),
        }
    }

    /// # Errors
    /// A 404 if a client names another model than this one.
    pub fn check_model(&self, model: Option<&str>) -> Result<(), ApiError> {
        match model {
            Some(model) if model != self.info.model => Err(ApiError::model_not_found(model)),
            _ => Ok(()),
        }
    }
}

pub(crate) fn unavailable(message: &str) -> ApiError {
    ApiError::new(ErrorKind::Unavailable, message)
}

pub(crate) fn draining() -> ApiError {
    unavailable("The server is shutting down.")
}

pub(crate) fn overloaded() -> ApiError {
    ApiError::new(ErrorKind::Overloaded, "The server has too many requests; try again later.")
}
