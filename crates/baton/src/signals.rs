//! The signals that ask for an end.

use std::future::Future;

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Ctrl-C, SIGTERM, and the terminal that goes away.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    /// From here on these signals no longer end the process by themselves.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn new() -> Result<Self> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    /// Waits for the next of them. None is lost when the future is dropped.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}

/// Is ready when the first signal comes; a second one ends the process at once, whatever still runs.
///
/// # Errors
/// If the system refuses.
pub fn shutdown() -> Result<impl Future<Output = ()> + Send> {
    let mut signals = Signals::new()?;
    Ok(async move {
        signals.next().await;
        tokio::spawn(async move {
            signals.next().await;
            std::process::exit(IMPATIENT);
        });
    })
}

/// The status of a process that did not end its work.
const IMPATIENT: i32 = 130;
