//! A server, by its base address.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, Error};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::{ClientConfig, RootCertStore};
use serde::de::DeserializeOwned;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections wait so long for another request; servers close theirs after 5 s or more.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);
/// For everything that is asked beside the workload.
const ASIDE_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest answer to that, in bytes.
const MAX_ASIDE_BYTES: usize = 16 << 20;
const REQUEST_ID: &str = "x-request-id";

#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    /// `http://host:port` or `https://host`, perhaps with a path, without a slash at the end.
    base: String,
    authorization: Option<HeaderValue>,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

impl Endpoint {
    /// Takes `http://host:port` or `https://host`; a `/v1` at the end is left out. Certificates are those that the system trusts,
    /// or that `SSL_CERT_FILE` holds.
    ///
    /// # Errors
    /// If this is no address, the key cannot be in a header, or the system trusts no certificate.
    pub fn at(url: &str, api_key: Option<&str>) -> Result<Self> {
        let base = url.trim_end_matches('/').trim_end_matches("/v1");
        let uri: Uri =
            base.parse().with_context(|| format!("{url:?} is no address such as http://127.0.0.1:8000"))?;
        let is_tls = match uri.scheme_str() {
            _ if uri.host().is_none_or(str::is_empty) => None,
            Some("http") => Some(false),
            Some("https") => Some(true),
            _ => None,
        };
        let is_tls =
            is_tls.with_context(|| format!("{url:?} is no address such as http://127.0.0.1:8000"))?;
        let authorization = api_key.map(|key| HeaderValue::try_from(format!("Bearer {key}"))).transpose();
        let mut authorization = authorization.context("the API key cannot be sent in a header")?;
        if let Some(value) = &mut authorization {
            value.set_sensitive(true);
        }
        let connector = connector(is_tls).context("no certificates that this system trusts")?;
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .build(connector);
        Ok(Self { base: base.to_owned(), authorization, client })
    }

    pub fn base(&self) -> &str {
        &self.base
    }

    /// Whether it is on this machine.
    pub fn is_local(&self) -> bool {
        let uri: Option<Uri> = self.base.parse().ok();
        let host = uri.as_ref().and_then(Uri::host).unwrap_or_default();
        host == "localhost" || host.starts_with("127.") || host == "[::1]"
    }

    /// A request of the workload.
    ///
    /// # Errors
    /// hyper's, if no answer came.
    pub async fn ask(&self, path: &str, id: &str, body: Bytes) -> Result<Response<Incoming>, Error> {
        let request = self.request(Method::POST, path, body, Some(id));
        self.client.request(request).await
    }

    /// # Errors
    /// If nothing answers in time, the status is not 2xx, or the body is no such `T`.
    pub async fn get_json<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        let body = self.aside(Method::GET, path, Bytes::new()).await?;
        serde_json::from_slice(&body)
            .with_context(|| format!("{path} of {} is not what was asked for", self.base))
    }

    /// # Errors
    /// As [`Endpoint::get_json`].
    pub async fn post_json<T: DeserializeOwned>(&self, path: &str, body: &serde_json::Value) -> Result<T> {
        let body = self.aside(Method::POST, path, body.to_string().into()).await?;
        serde_json::from_slice(&body)
            .with_context(|| format!("{path} of {} is not what was asked for", self.base))
    }

    /// # Errors
    /// As [`Endpoint::get_json`].
    pub async fn get_text(&self, path: &str) -> Result<String> {
        let body = self.aside(Method::GET, path, Bytes::new()).await?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    async fn aside(&self, method: Method, path: &str, body: Bytes) -> Result<Bytes> {
        let exchange = async {
            let response =
                self.client.request(self.request(method, path, body, None)).await.map_err(|error| {
                    let what = if error.is_connect() { "nothing answers at" } else { "no answer from" };
                    anyhow!("{what} {}: {}", self.base, root_cause(&error))
                })?;
            let status = response.status();
            let body = Limited::new(response.into_body(), MAX_ASIDE_BYTES).collect().await;
            let body = body.map_err(|error| anyhow!("{path} of {}: {error}", self.base))?.to_bytes();
            if !status.is_success() {
                bail!("{path} of {}: status {status}", self.base);
            }
            Ok(body)
        };
        tokio::time::timeout(ASIDE_TIMEOUT, exchange)
            .await
            .with_context(|| format!("{path} of {}: no answer within {ASIDE_TIMEOUT:?}", self.base))?
    }

    fn request(&self, method: Method, path: &str, body: Bytes, id: Option<&str>) -> Request<Full<Bytes>> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        request = request.header(CONTENT_TYPE, "application/json");
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        if let Some(id) = id {
            request = request.header(REQUEST_ID, id);
        }
        request.body(Full::new(body)).expect("the address was checked, and paths and ids are this program's")
    }
}

/// The system's certificates are read only where they are needed.
fn connector(is_tls: bool) -> std::io::Result<HttpsConnector<HttpConnector>> {
    let mut http = HttpConnector::new();
    http.set_connect_timeout(Some(CONNECT_TIMEOUT));
    // A token must not wait for the next.
    http.set_nodelay(true);
    http.enforce_http(false);
    let builder = HttpsConnectorBuilder::new();
    let builder = if is_tls {
        builder.with_native_roots()?
    } else {
        let nobody = ClientConfig::builder().with_root_certificates(RootCertStore::empty());
        builder.with_tls_config(nobody.with_no_client_auth())
    };
    Ok(builder.https_or_http().enable_http1().wrap_connector(http))
}

/// What was first in a chain of errors: the others only say where it passed.
pub(crate) fn root_cause(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_checked() {
        let endpoint = Endpoint::at("http://127.0.0.1:8000/v1/", None).unwrap();
        assert_eq!(endpoint.base(), "http://127.0.0.1:8000");
        assert!(endpoint.is_local());
        assert!(!Endpoint::at("http://10.0.0.1:80", Some("key")).unwrap().is_local());
        for bad in ["", "localhost", "ftp://host", "http://", "https://"] {
            assert!(Endpoint::at(bad, None).is_err(), "{bad}");
        }
        assert!(Endpoint::at("http://host", Some("a\nb")).is_err());
    }
}
