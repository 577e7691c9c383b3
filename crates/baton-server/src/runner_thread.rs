//! The thread that computes: a step in, its result or its failure out.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use baton_engine::{Batch, Input, ModelRunner};

use crate::fault::FaultReporter;
use crate::inbox::Inbox;
use crate::metrics::StepMetrics;
use crate::short_slices::ask_for_short_slices;

/// The way to the runner. Dropping it ends the thread once the step in hand is done.
#[derive(Debug)]
pub(crate) struct RunnerThread {
    steps: SyncSender<Batch>,
    clock: Arc<StepClock>,
}

/// When steps begin and end.
#[derive(Debug)]
struct StepClock {
    metrics: Arc<StepMetrics>,
    /// Of the last step, until the next one begins.
    ended: Mutex<Option<Instant>>,
}

impl StepClock {
    fn begin(&self) {
        if let Some(ended) = self.take_end() {
            self.metrics.between.record(ended.elapsed());
        }
    }

    fn end(&self, began: Instant) {
        let now = Instant::now();
        self.metrics.computing.record(now - began);
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }

    fn take_end(&self) -> Option<Instant> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl RunnerThread {
    /// # Errors
    /// If the operating system gives no thread.
    pub fn spawn(
        runner: Box<dyn ModelRunner>,
        inbox: Inbox,
        metrics: Arc<StepMetrics>,
        faults: &FaultReporter,
    ) -> io::Result<Self> {
        // At most one step is outstanding.
        let (steps, receiver) = sync_channel(1);
        let clock = Arc::new(StepClock { metrics, ended: Mutex::default() });
        let of_thread = clock.clone();
        faults.spawn("baton-runner", move || run(runner, &receiver, &inbox, &of_thread))?;
        Ok(Self { steps, clock })
    }

    /// Never waits.
    ///
    /// # Panics
    /// If a step is asked for while two are outstanding: the core's mistake.
    pub fn compute(&self, batch: Batch) {
        self.clock.begin();
        if let Err(std::sync::mpsc::TrySendError::Full(batch)) = self.steps.try_send(batch) {
            panic!("step {} was asked for before the one before it was done", batch.step);
        }
        // Disconnected: the runner panicked, which its thread has reported; the server is ending.
    }

    /// Nothing is left to compute: the time until the next step is nobody's wait.
    pub fn rest(&self) {
        self.clock.take_end();
    }
}

fn run(mut runner: Box<dyn ModelRunner>, steps: &Receiver<Batch>, inbox: &Inbox, clock: &StepClock) {
    ask_for_short_slices();
    while let Ok(batch) = steps.recv() {
        let began = Instant::now();
        let result = runner.run(&batch);
        clock.end(began);
        inbox.send_blocking(match result {
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
        let metrics = Arc::<StepMetrics>::default();
        let runner = RunnerThread::spawn(Box::new(Frail), inbox, metrics.clone(), &reporter).unwrap();
        let step = |step| Batch { step, entries: Vec::new() };
        runner.compute(step(0));
        assert!(matches!(items.recv().await, Some(Item::Input(Input::Stepped(StepResult { step: 0, .. })))));
        runner.compute(step(1));
        assert_eq!(metrics.between.count(), 1);
        assert!(matches!(items.recv().await, Some(Item::Input(Input::StepFailed { step: 1 }))));
        runner.rest();
        runner.compute(step(2));
        assert_eq!((metrics.computing.count(), metrics.between.count()), (2, 1), "a rest is no wait");
        assert_eq!(faults.next().await, "the thread baton-runner panicked: a kernel met a NaN");
        // The engine may not know yet; the server is ending.
        runner.compute(step(3));
    }
}
