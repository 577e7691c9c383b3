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
    pub label: String,
    pub client: Arc<EngineClient>,
    pub conductor: Arc<Conductor>,
    pub interval: Duration,
    pub timeout: Duration,
}

enum Finding {
    Ready(Box<EngineInfo>),
    /// It answers, but takes no requests now.
    NotReady(StatusCode),
    /// It answers, but not as a Baton engine.
    Foreign(StatusCode),
    Unreachable(String),
}

impl Prober {
    /// For ever. Engines are probed by tasks of their own: one that hangs delays no other.
    pub async fn run(self) {
        // An operator wants to know of changes, not of every probe.
        let mut last = String::new();
        loop {
            let finding = self.probe().await;
            let news = match &finding {
                Finding::Ready(info) => format!("ready as {}, role {}", info.engine_id, info.role),
                Finding::NotReady(status) => format!("not ready: {status}"),
                Finding::Foreign(status) => format!("no Baton engine: {status}"),
                Finding::Unreachable(why) => format!("out of reach: {why}"),
            };
            if news != last {
                tracing::info!(engine = self.label, address = %self.client.address(), "{news}");
                last = news;
            }
            self.tell(finding);
            tokio::time::sleep(self.interval).await;
        }
    }

    fn tell(&self, finding: Finding) {
        match finding {
            Finding::Ready(info) => self.conductor.probed(self.engine, *info),
            Finding::NotReady(_) | Finding::Foreign(_) => self.conductor.probe_refused(self.engine),
            Finding::Unreachable(_) => self.conductor.probe_failed(self.engine),
        }
    }

    async fn probe(&self) -> Finding {
        match tokio::time::timeout(self.timeout, self.ask()).await {
            Ok(Ok(finding)) => finding,
            Ok(Err(error)) => Finding::Unreachable(error.to_string()),
            Err(_) => Finding::Unreachable("no answer in time".to_owned()),
        }
    }

    /// Both paths are asked: an engine that drains may still say what it is, but takes no requests.
    async fn ask(&self) -> Result<Finding, ExchangeError> {
        let (status, _) = self.get("/health").await?;
        if status != StatusCode::OK {
            return Ok(Finding::NotReady(status));
        }
        let (status, body) = self.get("/baton/info").await?;
        if status == StatusCode::SERVICE_UNAVAILABLE {
            return Ok(Finding::NotReady(status));
        }
        let info = serde_json::from_slice::<EngineInfo>(&body).ok().filter(|_| status == StatusCode::OK);
        Ok(info.map_or(Finding::Foreign(status), |info| Finding::Ready(Box::new(self.reachable(info)))))
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
