//! One process of the system, from the parent's side and, for its first moment, from its own.

use std::ffi::OsStr;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, getppid, kill_process, set_parent_process_death_signal};
use tokio::process::Command;
use tokio::task::JoinHandle;

use super::log_lines::{LogLines, Sink};
use crate::settings;

/// Set for children of this program: the process without which they must not live.
pub const PARENT: &str = "BATON_PARENT_PID";

/// Makes the kernel kill this process when the one that started it ends, however it ends. First of all in `main`.
///
/// The KV memory has no name in the file system, so a kill leaves nothing behind.
pub fn die_with_parent() {
    let Ok(parent) = std::env::var(PARENT) else { return };
    let armed = set_parent_process_death_signal(Some(Signal::KILL));
    // The parent may have ended before the kernel was told: then nothing would ever come.
    let alive = getppid().is_some_and(|pid| pid.as_raw_nonzero().to_string() == parent);
    if armed.is_err() || !alive {
        std::process::exit(1);
    }
}

/// A child that runs, or has ended and not been forgotten.
#[derive(Debug)]
pub struct Child {
    pub name: String,
    pub pid: u32,
    process: tokio::process::Child,
    log: LogLines,
    pumps: Vec<JoinHandle<()>>,
}

impl Child {
    /// Starts `program` in a process group of its own, so that a Ctrl-C in the terminal reaches the parent alone. What it is to
    /// listen on is its standard input, see [`inherited_listener`](super::inherited_listener).
    ///
    /// # Errors
    /// If the system refuses.
    pub fn spawn(
        name: &str,
        program: &OsStr,
        argv: &[String],
        listener: Option<TcpListener>,
        sink: Sink,
    ) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(argv).process_group(0).kill_on_drop(true);
        let stdin = listener.map_or_else(Stdio::null, |listener| OwnedFd::from(listener).into());
        command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
        // What the child is told is in its arguments alone.
        for variable in settings::variables() {
            command.env_remove(variable);
        }
        command.env(PARENT, std::process::id().to_string());
        let mut process = command.spawn().with_context(|| format!("cannot start {name}"))?;
        let pid = process.id().context("a child has a pid until it is waited for")?;
        let log = LogLines::new(sink);
        let pumps = [
            process.stdout.take().map(|stream| tokio::spawn(log.clone().pump(stream))),
            process.stderr.take().map(|stream| tokio::spawn(log.clone().pump(stream))),
        ];
        Ok(Self { name: name.to_owned(), pid, process, log, pumps: pumps.into_iter().flatten().collect() })
    }

    /// Waits for its end; the future may be dropped and asked for again.
    pub async fn ended(&mut self) -> ExitStatus {
        // An error means that somebody else waited for it: that it ended is all that is known.
        self.process.wait().await.unwrap_or_default()
    }

    /// Asks it to end.
    pub fn terminate(&self) {
        // `id` is none once it was waited for, so the signal reaches no other process.
        let pid = self.process.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        if let Some(pid) = pid {
            // It may have ended this moment.
            let _ = kill_process(pid, Signal::TERM);
        }
    }

    pub fn kill(&mut self) {
        // An error means that it has ended.
        let _ = self.process.start_kill();
    }

    /// The last lines that it has written so far.
    #[cfg(test)]
    pub fn lines(&self) -> Vec<String> {
        self.log.last()
    }

    /// The last lines that it wrote, after its end.
    pub async fn last_lines(&mut self) -> Vec<String> {
        for pump in self.pumps.drain(..) {
            // A grandchild may hold the stream open: what is there by then must do.
            let _ = tokio::time::timeout(std::time::Duration::from_millis(500), pump).await;
        }
        self.log.last()
    }
}

/// How a process ended, in words.
pub fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with status {code}"),
        (None, Some(signal)) => match signal_name(signal) {
            Some(name) => format!("was killed by signal {signal} ({name})"),
            None => format!("was killed by signal {signal}"),
        },
        (None, None) => "ended".to_owned(),
    }
}

fn signal_name(signal: i32) -> Option<&'static str> {
    let names = [
        (Signal::KILL, "SIGKILL; if nobody sent it, memory ran out"),
        (Signal::SEGV, "SIGSEGV"),
        (Signal::ABORT, "SIGABRT"),
        (Signal::BUS, "SIGBUS"),
        (Signal::ILL, "SIGILL"),
        (Signal::TERM, "SIGTERM"),
        (Signal::INT, "SIGINT"),
    ];
    names.into_iter().find(|(known, _)| known.as_raw() == signal).map(|(_, name)| name)
}
