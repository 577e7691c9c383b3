//! One thing that was looked at, and all of them as text.

use std::fmt;

use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Ok,
    /// Not there; some transport or speed needs it.
    Missing,
    /// There, or asked for, and does not work.
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub about: &'static str,
    pub name: String,
    pub state: State,
    pub what: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

impl Finding {
    pub fn ok(about: &'static str, name: impl Into<String>, what: impl Into<String>) -> Self {
        Self { about, name: name.into(), state: State::Ok, what: what.into(), advice: None }
    }

    pub fn missing(
        about: &'static str,
        name: impl Into<String>,
        what: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self { state: State::Missing, advice: Some(advice.into()), ..Self::ok(about, name, what) }
    }

    pub fn failed(
        about: &'static str,
        name: impl Into<String>,
        what: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self { state: State::Failed, advice: Some(advice.into()), ..Self::ok(about, name, what) }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Findings {
    /// Whether all that was asked for works.
    pub ok: bool,
    pub version: &'static str,
    pub findings: Vec<Finding>,
}

impl Findings {
    /// `is_asked` says which of them must be good.
    pub fn new(findings: Vec<Finding>, is_asked: impl Fn(&Finding) -> bool) -> Self {
        let ok = findings.iter().all(|finding| finding.state == State::Ok || !is_asked(finding));
        Self { ok, version: env!("CARGO_PKG_VERSION"), findings }
    }
}

/// A line for each, in blocks of what they are about; what to do stands below.
impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.findings.iter().map(|finding| finding.name.chars().count()).max().unwrap_or(0);
        let mut about = "";
        for finding in &self.findings {
            if finding.about != about {
                let gap = if about.is_empty() { "" } else { "\n" };
                about = finding.about;
                writeln!(f, "{gap}{about}")?;
            }
            let state = match finding.state {
                State::Ok => "ok",
                State::Missing => "missing",
                State::Failed => "failed",
            };
            writeln!(f, "  {state:<8} {:<width$}  {}", finding.name, finding.what)?;
            if let Some(advice) = &finding.advice {
                writeln!(f, "  {:<8} {:<width$}  -> {advice}", "", "")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_asked_for_must_be_good() {
        let findings = || {
            vec![
                Finding::ok("host", "cpu", "fast"),
                Finding::failed("transport", "nixl", "broken", "mend it"),
                Finding::missing("transport", "shm", "none", "get one"),
            ]
        };
        assert!(Findings::new(findings(), |_| false).ok);
        assert!(!Findings::new(findings(), |finding| finding.name == "nixl").ok);
        assert!(!Findings::new(findings(), |finding| finding.name == "shm").ok);
        assert!(Findings::new(findings(), |finding| finding.name == "cpu").ok);
        let text = Findings::new(findings(), |_| false).to_string();
        let wanted = "host\n  ok       cpu   fast\n\ntransport\n  failed   nixl  broken\n                 -> mend it\n";
        assert!(text.starts_with(wanted), "{text}");
    }
}
