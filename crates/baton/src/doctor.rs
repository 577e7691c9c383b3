//! `baton doctor`: whether this machine can hand KV over, and what to do if not.
//!
//! It looks at what engines will meet, and then does what they do: a WRITE and a READ over each transport.

mod environment;
mod finding;
mod host;
mod limits;
mod network;
mod nixl;
mod rdma;
mod shared_memory;
mod transports;

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::args::{DoctorArgs, TransportKind, value_name};
use finding::{Finding, Findings};

/// The status is 1 if a transport that was asked for does not work.
///
/// # Errors
/// If it cannot be told.
pub fn doctor(args: &DoctorArgs) -> Result<ExitCode> {
    let checked = nixl::check(args);
    let findings = Findings::new(
        [
            host::look(),
            shared_memory::look(),
            limits::look(),
            network::look(args.host),
            rdma::look(),
            environment::look(std::env::vars_os()),
            nixl::look(&checked, args),
            transports::look(args),
            vec![nixl::transport(&checked, args)],
        ]
        .concat(),
        |finding| finding.about == TRANSPORT && asked(args).any(|name| name == finding.name),
    );
    let text = match args.nixl.json {
        true => serde_json::to_string_pretty(&findings)? + "\n",
        false => findings.to_string(),
    };
    std::io::stdout().write_all(text.as_bytes()).context("cannot write to standard output")?;
    Ok(if findings.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What a finding is about that says whether a transport works.
const TRANSPORT: &str = "transport";

fn asked(args: &DoctorArgs) -> impl Iterator<Item = String> {
    args.transport.iter().map(|kind| value_name(*kind))
}

fn transport_finding(kind: TransportKind, moved: Result<String, (String, String)>) -> Finding {
    match moved {
        Ok(what) => Finding::ok(TRANSPORT, value_name(kind), what),
        Err((why, advice)) => Finding::failed(TRANSPORT, value_name(kind), why, advice),
    }
}
