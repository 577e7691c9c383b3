//! Asks each engine, over and over, whether it is ready and what it is.

use std::sync::Arc;
use std::time::Duration;

use baton_routing::EngineKey;
use baton_types::EngineInfo;
use bytes::Bytes;
use http_body_util::Full;
use hyper::{Request, StatusCode, Uri};

use crate::conductor::Conductor;
use crate::engine_client::{EngineClient, ExchangeError};

/// Largest answer to a probe.
const MAX_PROBE_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct Prober {
    pub engine: EngineKey,
    pub client: Arc<EngineClient>,
    pub conductor: Arc<Conductor>,
    pub interval: Duration,
    pub timeout: Duration,
}

enum Finding {
    Ready(Box<EngineInfo>),
    NotReady,
}

impl Prober {
    /// For ever. Engines are probed by tasks of their own: one that hangs delays no other.
    pub async fn run(self) {
        loop {
            self.probe_once().await;
            tokio::time::sleep(self.interval).await;
        }
    }

    pub async fn probe_once(&self) {
        match tokio::time::timeout(self.timeout, self.ask()).await {
            Ok(Ok(Finding::Ready(info))) => self.conductor.probed(self.engine, *info),
            Ok(Ok(Finding::NotReady)) => self.conductor.probe_refused(self.engine),
            Ok(Err(error)) => {
                tracing::debug!(engine = ?self.engine, %error, "probe");
                self.conductor.probe_failed(self.engine);
            }
            Err(_) => self.conductor.probe_failed(self.engine),
        }
    }

    /// Both paths are asked: an engine that drains still says what it is, but takes no requests.
    async fn ask(&self) -> Result<Finding, ExchangeError> {
        let (status, _) = self.get("/health").await?;
        if status != StatusCode::OK {
            return Ok(Finding::NotReady);
        }
        let (status, body) = self.get("/baton/info").await?;
        match serde_json::from_slice::<EngineInfo>(&body) {
            Ok(info) if status == StatusCode::OK => Ok(Finding::Ready(Box::new(self.reachable(info)))),
            Ok(_) => Ok(Finding::NotReady),
            Err(error) => {
                tracing::warn!(engine = %self.client.address(), %status, %error, "this is no Baton engine");
                Ok(Finding::NotReady)
            }
        }
    }

    /// A side-channel host that means something only on the engine's machine becomes the one that was dialled.
    fn reachable(&self, mut info: EngineInfo) -> EngineInfo {
        if info.side_channel.is_unspecified() {
            info.side_channel.host.clone_from(&self.client.address().host);
        }
        info
    }

    async fn get(&self, path: &'static str) -> Result<(StatusCode, Bytes), ExchangeError> {
        let mut request = Request::new(Full::new(Bytes::new()));
        *request.uri_mut() = Uri::from_static(path);
        let mut answer = self.client.send(request, || {}).await?;
        let body = answer.collect(MAX_PROBE_BYTES).await?;
        Ok((answer.status, body))
    }
}
