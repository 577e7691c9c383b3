//! Where an operator wants spans.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Nowhere, by default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TraceConfig {
    /// A Chrome trace. Several processes may write the same file.
    pub file: Option<PathBuf>,
    /// A collector's URL for traces, `http://HOST:4318/v1/traces`, that takes OTLP over HTTP.
    pub collector: Option<String>,
}

impl TraceConfig {
    /// The file, and the collector that OpenTelemetry's variables name.
    pub fn from_env(file: Option<PathBuf>) -> Self {
        Self { file, collector: collector(|name| std::env::var(name).ok().filter(|value| !value.is_empty())) }
    }
}

fn collector(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let is = |name, value: &str| variable(name).is_some_and(|text| text.eq_ignore_ascii_case(value));
    if is("OTEL_SDK_DISABLED", "true") || is("OTEL_TRACES_EXPORTER", "none") {
        return None;
    }
    let whole = variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
    // Only the variable for all signals is the beginning of a URL.
    let base = || variable("OTEL_EXPORTER_OTLP_ENDPOINT");
    whole.or_else(|| Some(format!("{}/v1/traces", base()?.trim_end_matches('/'))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Option<String> {
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
        collector(|name| find(name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn the_usual_variables_name_the_collector() {
        assert_eq!(of(&[]), None);
        let all = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318/");
        let traces = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://t/in");
        assert_eq!(of(&[all]).as_deref(), Some("http://c:4318/v1/traces"));
        assert_eq!(of(&[all, traces]).as_deref(), Some("http://t/in"));
        assert_eq!(of(&[all, ("OTEL_TRACES_EXPORTER", "none")]), None);
        assert_eq!(of(&[all, ("OTEL_TRACES_EXPORTER", "otlp")]).as_deref(), Some("http://c:4318/v1/traces"));
        assert_eq!(of(&[traces, ("OTEL_SDK_DISABLED", "TRUE")]), None);
    }
}
