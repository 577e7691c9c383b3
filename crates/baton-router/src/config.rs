//! What an operator sets.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use baton_routing::{Limits, PolicyKind, RoutingConfig, Strategy};
use baton_trace::TraceConfig;
use baton_types::{EngineRole, Mutation};
use hyper::Uri;
use hyper::header::HeaderName;
use serde::{Deserialize, Serialize};

/// The configuration of a router. Sizes in bytes, times in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RouterConfig {
    pub listen: SocketAddr,
    pub engines: Vec<EngineConfig>,
    pub strategy: Strategy,
    pub policy: PolicyKind,
    pub limits: Limits,
    /// From the end of one probe of an engine to the next.
    pub probe_interval_ms: u64,
    pub probe_timeout_ms: u64,
    /// Connections of clients; more wait until one is closed.
    pub max_connections: usize,
    /// How long a client may take to send the head of a request, from the connection's beginning or the answer before: an idle
    /// connection is closed after it.
    pub head_timeout_ms: u64,
    /// Largest request of a client.
    pub max_body_bytes: usize,
    /// How long a client may take to send it.
    pub body_timeout_ms: u64,
    /// Largest answer of an engine that is not streamed.
    pub max_answer_bytes: usize,
    /// Largest event in a stream.
    pub max_event_bytes: usize,
    /// How long requests in flight may go on after the shutdown signal.
    pub drain_ms: u64,
    /// Answers carry `x-baton-served-by`: engines' names and the strategy. For demonstrations, not for strangers.
    pub expose_served_by: bool,
    /// A header of the client's request whose value becomes the tenant. Only for routers behind a gateway that sets it.
    pub tenant_header: Option<String>,
    /// Where spans of what the router does go.
    pub trace: TraceConfig,
}

/// One engine to use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineConfig {
    pub role: EngineRole,
    /// `http://HOST:PORT`; IPv6 hosts in brackets.
    pub url: String,
}

/// Why a router cannot start with this configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("a router needs engines: --prefill and --decode, or --both")]
    NoEngines,
    #[error("an engine's URL reads http://HOST:PORT, not {0:?}")]
    Url(String),
    #[error("not the name of a header: {0:?}")]
    TenantHeader(String),
}

impl Default for RouterConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
            engines: Vec::new(),
            strategy: Strategy::default(),
            policy: PolicyKind::default(),
            limits: Limits::default(),
            probe_interval_ms: 1000,
            probe_timeout_ms: 1000,
            max_connections: 8192,
            head_timeout_ms: 75_000,
            max_body_bytes: 32 << 20,
            body_timeout_ms: 30_000,
            max_answer_bytes: 64 << 20,
            max_event_bytes: 4 << 20,
            drain_ms: 30_000,
            expose_served_by: false,
            tenant_header: None,
            trace: TraceConfig::default(),
        }
    }
}

impl RouterConfig {
    pub(crate) fn routing(&self) -> RoutingConfig {
        RoutingConfig {
            engines: self.engines.iter().map(|engine| engine.role).collect(),
            strategy: self.strategy,
            policy: self.policy,
            limits: self.limits.clone(),
            mutation: Mutation::NONE,
        }
    }

    pub(crate) fn http(&self) -> baton_http::Limits {
        baton_http::Limits {
            connections: self.max_connections,
            head: Duration::from_millis(self.head_timeout_ms),
            // The core's limit ends a stream whose engine waits for the client; this one, what the engine has nothing more to do with.
            stall: Duration::from_millis(self.limits.client_stall_ms),
        }
    }

    /// Where the engines are, in the order of [`RouterConfig::engines`].
    pub(crate) fn addresses(&self) -> Result<Vec<EngineAddress>, ConfigError> {
        if self.engines.is_empty() {
            return Err(ConfigError::NoEngines);
        }
        self.engines.iter().map(|engine| EngineAddress::parse(&engine.url)).collect()
    }

    /// What metrics and logs call each engine: its role and its place among engines of that role.
    pub(crate) fn labels(&self) -> Vec<String> {
        let label = |i: usize, role: EngineRole| {
            let before = self.engines[..i].iter().filter(|other| other.role == role).count();
            format!("{role}-{before}")
        };
        self.engines.iter().enumerate().map(|(i, engine)| label(i, engine.role)).collect()
    }

    pub(crate) fn tenant_header(&self) -> Result<Option<HeaderName>, ConfigError> {
        let parse = |name: &String| name.parse().map_err(|_| ConfigError::TenantHeader(name.clone()));
        self.tenant_header.as_ref().map(parse).transpose()
    }

    pub(crate) fn probe_interval(&self) -> Duration {
        Duration::from_millis(self.probe_interval_ms)
    }

    pub(crate) fn probe_timeout(&self) -> Duration {
        Duration::from_millis(self.probe_timeout_ms)
    }
}

/// Where an engine's HTTP server is.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct EngineAddress {
    /// A name or an address; IPv6 without brackets.
    pub host: String,
    pub port: u16,
}

impl EngineAddress {
    pub fn parse(url: &str) -> Result<Self, ConfigError> {
        let wrong = || ConfigError::Url(url.to_owned());
        let uri: Uri = url.parse().map_err(|_| wrong())?;
        let is_bare = matches!(uri.path_and_query().map(|p| p.as_str()), None | Some("/" | ""));
        let (Some("http"), Some(host), true) = (uri.scheme_str(), uri.host(), is_bare) else {
            return Err(wrong());
        };
        if host.is_empty() || uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err(wrong());
        }
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Self { host, port: uri.port_u16().unwrap_or(80) })
    }
}

impl fmt::Display for EngineAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            return write!(f, "[{}]:{}", self.host, self.port);
        }
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl fmt::Debug for EngineAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_engines() {
        let parse = |url: &str| EngineAddress::parse(url).map(|a| (a.host.clone(), a.port, a.to_string()));
        let parsed = |host: &str, port, text: &str| (host.to_owned(), port, text.to_owned());
        assert_eq!(parse("http://[::1]:8000").unwrap(), parsed("::1", 8000, "[::1]:8000"));
        assert_eq!(parse("http://10.0.0.1:8000/").unwrap(), parsed("10.0.0.1", 8000, "10.0.0.1:8000"));
        assert_eq!(parse("http://engine.local").unwrap(), parsed("engine.local", 80, "engine.local:80"));
        for bad in
            ["", "engine:80", "https://e:1", "http://e:1/v1", "http://e:1/?a", "http://u@e:1", "http://:1"]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn labels_count_within_a_role() {
        let engine = |role| EngineConfig { role, url: "http://e:1".into() };
        let engines = [EngineRole::Prefill, EngineRole::Decode, EngineRole::Prefill].map(engine).to_vec();
        let config = RouterConfig { engines, ..RouterConfig::default() };
        assert_eq!(config.labels(), ["prefill-0", "decode-0", "prefill-1"]);
    }

    #[test]
    fn a_configuration_may_leave_out_everything_but_not_invent() {
        let read = |text: &str| serde_json::from_str::<RouterConfig>(text);
        assert_eq!(read("{}").unwrap(), RouterConfig::default());
        let config =
            read(r#"{"engines":[{"role":"both","url":"http://e:1"}],"limits":{"attempts":1}}"#).unwrap();
        assert_eq!(config.limits, Limits { attempts: 1, ..Limits::default() });
        assert!(read(r#"{"atempts":1}"#).is_err());
    }
}
