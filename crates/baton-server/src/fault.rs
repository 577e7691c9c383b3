//! Threads whose panic ends the server: a core that broke an invariant, or a runner that died, must never
//! leave a process behind that takes requests and answers none.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::{self, JoinHandle};

use tokio::sync::mpsc;

/// One report is enough to end the server; the channel holds one for each thread.
const MAX_REPORTS: usize = 4;

/// Where threads report that they died.
#[derive(Clone, Debug)]
pub(crate) struct FaultReporter(mpsc::Sender<String>);

/// Where the server hears of it.
#[derive(Debug)]
pub(crate) struct Faults(mpsc::Receiver<String>);

pub(crate) fn faults() -> (FaultReporter, Faults) {
    let (sender, receiver) = mpsc::channel(MAX_REPORTS);
    (FaultReporter(sender), Faults(receiver))
}

impl Faults {
    /// The first death. Never returns while nobody dies.
    pub async fn next(&mut self) -> String {
        match self.0.recv().await {
            Some(report) => report,
            // Every thread ended in good order, and nobody is left to report.
            None => std::future::pending().await,
        }
    }
}

impl FaultReporter {
    /// Starts the thread `name`, whose panic is reported.
    ///
    /// # Errors
    /// If the operating system gives no thread.
    pub fn spawn(&self, name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
        let reporter = self.0.clone();
        let thread = name.to_owned();
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            // AssertUnwindSafe: what the body owned is gone with it, and the server ends.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(body)) {
                let report = format!("the thread {thread} panicked: {}", text_of(&*panic));
                tracing::error!("{report}");
                // Full: others died before and the server is ending already.
                let _ = reporter.try_send(report);
            }
        })
    }
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_reported_with_its_message() {
        let (reporter, mut faults) = faults();
        let number = 7;
        reporter.spawn("doomed", move || panic!("block {number} is free and leased")).unwrap();
        assert_eq!(faults.next().await, "the thread doomed panicked: block 7 is free and leased");
    }
}
