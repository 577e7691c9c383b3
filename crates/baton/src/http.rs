//! The few things this binary asks of an HTTP server.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::{Method, Request, Response, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::de::DeserializeOwned;

/// Longest answer that is read whole, in bytes.
const MAX_ANSWER_BYTES: usize = 1 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A server, by its base address.
#[derive(Clone, Debug)]
pub struct Server {
    /// `http://host:port`, perhaps with a path, without a slash at the end.
    base: String,
    client: Client<HttpConnector, Full<Bytes>>,
}

impl Server {
    /// Takes `http://host:port`; a `/v1` at the end, as OpenAI's clients want it, is left out.
    ///
    /// # Errors
    /// If this is no address, or one with `https`.
    pub fn at(url: &str) -> Result<Self> {
        let base = url.trim_end_matches('/').trim_end_matches("/v1");
        let uri: Uri =
            base.parse().with_context(|| format!("{url:?} is no address such as http://127.0.0.1:8000"))?;
        match uri.scheme_str() {
            Some("http") if uri.host().is_some_and(|host| !host.is_empty()) => {}
            Some("https") => bail!("https is not supported: {url}; use http, or a proxy that ends TLS"),
            _ => bail!("{url:?} is no address such as http://127.0.0.1:8000"),
        }
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        connector.set_nodelay(true);
        Ok(Self { base: base.to_owned(), client: Client::builder(TokioExecutor::new()).build(connector) })
    }

    /// # Errors
    /// If no answer came, whatever its status.
    pub async fn get(&self, path: &str) -> Result<Response<Incoming>> {
        self.send(Method::GET, path, Bytes::new()).await
    }

    /// # Errors
    /// If no answer came, whatever its status.
    pub async fn post_json(&self, path: &str, body: Bytes) -> Result<Response<Incoming>> {
        self.send(Method::POST, path, body).await
    }

    async fn send(&self, method: Method, path: &str, body: Bytes) -> Result<Response<Incoming>> {
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header("content-type", "application/json")
            .body(Full::new(body))?;
        self.client.request(request).await.map_err(|error| {
            let what = if error.is_connect() { "nothing answers at" } else { "no answer from" };
            let error = anyhow::Error::new(error);
            anyhow!("{what} {}: {}", self.base, error.root_cause())
        })
    }
}

/// The whole body, if it is not too long.
///
/// # Errors
/// If it is, or the connection ends first.
pub async fn read_whole(response: Response<Incoming>) -> Result<Bytes> {
    match Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) => bail!("the answer cannot be read: {error}"),
    }
}

/// # Errors
/// If the status is not 200, or the body not such a `T`.
pub async fn read_json<T: DeserializeOwned>(response: Response<Incoming>) -> Result<T> {
    let status = response.status();
    let body = read_whole(response).await?;
    if !status.is_success() {
        bail!("status {status}: {}", String::from_utf8_lossy(&body).trim());
    }
    serde_json::from_slice(&body).context("the answer is not what was asked for")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_checked() {
        for (url, base) in [
            ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
            ("http://host/", "http://host"),
            ("http://[::1]:8000/v1/", "http://[::1]:8000"),
            ("http://host/models/a/v1", "http://host/models/a"),
        ] {
            assert_eq!(Server::at(url).unwrap().base, base);
        }
        for bad in ["", "127.0.0.1:8000", "localhost", "ftp://host", "http://", "http://a b"] {
            assert!(Server::at(bad).is_err(), "{bad}");
        }
        let error = Server::at("https://host").unwrap_err().to_string();
        assert!(error.contains("https is not supported"), "{error}");
    }
}
