//! NIXL, looked at by a process of its own: libraries below it end their process when they cannot go on.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use super::finding::Finding;
use super::transport_finding;
use crate::args::{DoctorArgs, TransportKind, value_name};
use crate::nixl::Checked;
use crate::up::PARENT;

const ABOUT: &str = "nixl";
/// NIXL looks for networks for half a second or, with many devices, for some.
const PATIENCE: Duration = Duration::from_secs(60);

/// What `baton nixl check` says; an error is what became of its process.
pub fn check(args: &DoctorArgs) -> Result<Checked, String> {
    let mut argv = vec![
        "nixl".to_owned(),
        "check".to_owned(),
        "--json".to_owned(),
        format!("--nixl-backend={}", value_name(args.nixl.nixl_backend)),
    ];
    argv.extend(args.nixl.nixl_param.iter().map(|(key, value)| format!("--nixl-param={key}={value}")));
    let child = std::env::current_exe().and_then(|program| {
        let mut command = Command::new(program);
        command.args(argv).env(PARENT, std::process::id().to_string());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
    });
    let ended = child.map_err(|error| error.to_string()).and_then(|child| wait(child, PATIENCE))?;
    let last = ended.stderr.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("nothing");
    serde_json::from_str(&ended.stdout)
        .map_err(|_| format!("the process that tried NIXL {}; the last that it said: {last}", ended.how))
}

struct Ended {
    stdout: String,
    stderr: String,
    how: String,
}

fn wait(mut child: Child, patience: Duration) -> Result<Ended, String> {
    let read = |stream: Option<Box<dyn Read + Send>>| {
        thread::spawn(move || {
            let mut text = Vec::new();
            // What could be read by then must do.
            let _ = stream.map(|mut stream| stream.read_to_end(&mut text));
            String::from_utf8_lossy(&text).into_owned()
        })
    };
    let stdout = read(child.stdout.take().map(|stream| Box::new(stream) as _));
    let stderr = read(child.stderr.take().map(|stream| Box::new(stream) as _));
    let end = Instant::now() + patience;
    let how = loop {
        match child.try_wait().map_err(|error| error.to_string())? {
            Some(status) => break format!("ended ({status})"),
            None if Instant::now() >= end => {
                // An error means that it has just ended.
                let _ = child.kill();
                let _ = child.wait();
                break format!("did not end within {} s", patience.as_secs());
            }
            None => sleep(Duration::from_millis(10)),
        }
    };
    let text = |reader: thread::JoinHandle<String>| reader.join().unwrap_or_default();
    Ok(Ended { stdout: text(stdout), stderr: text(stderr), how })
}

/// The library and what it has.
pub fn look(checked: &Result<Checked, String>, args: &DoctorArgs) -> Vec<Finding> {
    let Ok(checked) = checked else { return Vec::new() };
    let Some(library) = &checked.library else {
        let fault = checked.fault.clone().unwrap_or_default();
        return vec![Finding::missing(ABOUT, "library", fault, INSTALL)];
    };
    let version = checked.version.as_deref().unwrap_or("of an unknown version");
    let mut findings = vec![Finding::ok(ABOUT, "library", format!("{version}, {}", library.display()))];
    for (backend, fault) in &checked.backends {
        let chosen = *backend == value_name(args.nixl.nixl_backend);
        findings.push(match fault {
            None => Finding::ok(ABOUT, backend, if chosen { "there; tried below" } else { "there" }),
            Some(fault) => Finding::missing(
                ABOUT,
                backend,
                fault,
                format!("only for --nixl-backend={backend}: install what it lacks, see docs/deploying.md"),
            ),
        });
    }
    match (&checked.ucx_fault, checked.ucx_devices.is_empty()) {
        (Some(fault), _) => findings.push(Finding::missing(ABOUT, "devices", fault, UCX_VARIABLES)),
        (None, true) => {
            findings.push(Finding::missing(ABOUT, "devices", "UCX would use none", UCX_VARIABLES))
        }
        (None, false) => {
            let what = format!("UCX would use {}", checked.ucx_devices.join(", "));
            findings.push(Finding::ok(ABOUT, "devices", what));
        }
    }
    findings
}

const INSTALL: &str = "only for --transport=nixl: `baton nixl install`, or set NIXL_PREFIX to where NIXL is";
const UCX_VARIABLES: &str = "look at UCX_TLS and UCX_NET_DEVICES; unset, UCX takes what there is";

/// Whether the transport works.
pub fn transport(checked: &Result<Checked, String>, args: &DoctorArgs) -> Finding {
    let backend = value_name(args.nixl.nixl_backend);
    let moved = match checked {
        Err(why) => Err((why.clone(), UCX_VARIABLES.to_owned())),
        Ok(Checked { library: None, .. }) => {
            return Finding::missing(
                super::TRANSPORT,
                value_name(TransportKind::Nixl),
                "there is no NIXL",
                INSTALL,
            );
        }
        Ok(Checked { trial: Some(trial), .. }) => Ok(format!("{backend}: {trial}")),
        Ok(Checked { fault, .. }) => {
            let advice =
                "see what is said about NIXL and its environment above; NIXL_LOG_LEVEL=INFO says more";
            Err((
                format!("{backend}: {}", fault.as_deref().unwrap_or("nothing was moved")),
                advice.to_owned(),
            ))
        }
    };
    transport_finding(TransportKind::Nixl, moved)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, patience: Duration) -> Ended {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        wait(command.spawn().unwrap(), patience).unwrap()
    }

    #[test]
    fn a_process_that_aborts_or_hangs_is_told_of() {
        let ended = shell("echo out; echo why >&2; kill -ABRT $$", PATIENCE);
        assert_eq!((ended.stdout.as_str(), ended.stderr.as_str()), ("out\n", "why\n"));
        assert!(ended.how.contains("signal: 6"), "{}", ended.how);
        let ended = shell("exec sleep 100", Duration::from_millis(100));
        assert!(ended.how.contains("did not end"), "{}", ended.how);
    }
}
