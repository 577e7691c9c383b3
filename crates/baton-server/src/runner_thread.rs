//! The thread that computes: a step in, its result or its failure out.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use baton_engine::{Batch, Input, ModelRunner};

use crate::fault::FaultReporter;
use crate::inbox::Inbox;

/// The way to the runner. Dropping it ends the thread once the step in hand is done.
#[derive(Debug)]
pub(crate) struct RunnerThread {
    steps: SyncSender<Batch>,
}

impl RunnerThread {
    /// # Errors
    /// If the operating system gives no thread.
    pub fn spawn(runner: Box<dyn ModelRunner>, inbox: Inbox, faults: &FaultReporter) -> io::Result<Self> {
        // At most one step is outstanding.
        let (steps, receiver) = sync_channel(1);
        faults.spawn("baton-runner", move || run(runner, &receiver, &inbox))?;
        Ok(Self { steps })
    }

    /// Never waits.
    ///
    /// # Panics
    /// If a step is asked for while two are outstanding: the core's mistake.
    pub fn compute(&self, batch: Batch) {
        if let Err(std::sync::mpsc::TrySendError::Full(batch)) = self.steps.try_send(batch) {
            panic!("step {} was asked for before the one before it was done", batch.step);
        }
        // Disconnected: the runner panicked, which its thread has reported; the server is ending.
    }
}

fn run(mut runner: Box<dyn ModelRunner>, steps: &Receiver<Batch>, inbox: &Inbox) {
    while let Ok(batch) = steps.recv() {
        inbox.send_blocking(match runner.run(&batch) {
            Ok(result) => Input::Stepped(result),
            Err(error) => {
                tracing::error!(step = batch.step, entries = batch.entries.len(), %error, "a step failed");
                Input::StepFailed { step: batch.step }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use baton_engine::{RunnerError, StepResult};

    use super::*;
    use crate::fault::faults;
    use crate::inbox::{Item, inbox};

    /// Fails step 1, panics at step 2.
    struct Frail;

    impl ModelRunner for Frail {
        fn run(&mut self, batch: &Batch) -> Result<StepResult, RunnerError> {
            match batch.step {
                0 => Ok(StepResult { step: 0, sampled: Vec::new() }),
                1 => Err(RunnerError("no weights".to_owned())),
                _ => panic!("a kernel met a NaN"),
            }
        }
    }

    #[tokio::test]
    async fn results_failures_and_panics_are_told_apart() {
        let (inbox, mut items) = inbox(tokio::runtime::Handle::current());
        let (reporter, mut faults) = faults();
        let runner = RunnerThread::spawn(Box::new(Frail), inbox, &reporter).unwrap();
        let step = |step| Batch { step, entries: Vec::new() };
        runner.compute(step(0));
        assert!(matches!(items.recv().await, Some(Item::Input(Input::Stepped(StepResult { step: 0, .. })))));
        runner.compute(step(1));
        assert!(matches!(items.recv().await, Some(Item::Input(Input::StepFailed { step: 1 }))));
        runner.compute(step(2));
        assert_eq!(faults.next().await, "the thread baton-runner panicked: a kernel met a NaN");
        // The engine may not know yet; the server is ending.
        runner.compute(step(3));
    }
}
