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
