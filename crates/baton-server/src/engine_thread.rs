//! The thread that owns the engine core: one input at a time, then all that follows from it. The only place
//! with a clock, and nothing in it waits but for the next input.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use baton_engine::{EngineCore, Input, Output};
use baton_types::{EngineName, SeqId, Time};
use tokio::runtime;
use tokio::sync::mpsc::{Receiver, UnboundedSender};

use crate::fault::FaultReporter;
use crate::inbox::{Inbox, Item, SeqEvent, Snapshot};
use crate::loop_trace;
use crate::runner_thread::RunnerThread;
use crate::short_slices::ask_for_short_slices;
use crate::side_channel::SideChannel;
use crate::timeline::Timeline;
use crate::transfer_link::TransferLink;

/// How soon a path's removal that found no place among the transfer thread's commands is tried again.
const REMOVAL_RETRY: Duration = Duration::from_millis(5);

/// What the engine thread speaks to. None of it makes it wait, unless reads are to be posted by the loop.
#[derive(Debug)]
pub(crate) struct Links {
    pub runner: RunnerThread,
    pub side_channel: SideChannel,
    pub transfer: TransferLink,
    /// Where nobody wants one, nothing is done for it.
    pub timeline: Option<Timeline>,
}

/// The running thread; dropping it ends it, the transfer thread and the side channel's connections.
#[derive(Debug)]
pub(crate) struct EngineThread {
    inbox: Inbox,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl EngineThread {
    /// # Errors
    /// If the operating system gives no thread.
    pub fn spawn(
        name: EngineName,
        core: EngineCore,
        mut links: Links,
        inbox: Inbox,
        items: Receiver<Item>,
        faults: &FaultReporter,
    ) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let epoch = Instant::now();
        if let Some(timeline) = &mut links.timeline {
            timeline.begin(epoch);
        }
        let engine = Engine {
            items,
            name,
            core,
            links,
            epoch,
            sequences: HashMap::new(),
            answers: VecDeque::new(),
            is_computing: false,
            runtime: runtime::Handle::current(),
        };
        let seen = stop.clone();
        let thread = faults.spawn("baton-engine", move || engine.run(&seen))?;
        Ok(Self { inbox, stop, thread: Some(thread) })
    }
}

impl Drop for EngineThread {
    fn drop(&mut self) {
        // The flag first: a full inbox takes no more, but then the thread is awake and looks at the flag.
        self.stop.store(true, Ordering::Release);
        self.inbox.stop();
        if let Some(thread) = self.thread.take() {
            // A panic has been reported where it happened.
            let _ = thread.join();
        }
    }
}

struct Engine {
    /// Dropped first: nobody may wait for a place while the transfer thread is being joined.
    items: Receiver<Item>,
    name: EngineName,
    core: EngineCore,
    links: Links,
    epoch: Instant,
    /// Where each live sequence's events go. Bounded by the core, which refuses what it has no place for.
    sequences: HashMap<SeqId, UnboundedSender<SeqEvent>>,
    /// Answers of links that were known at once: the next inputs.
    answers: VecDeque<Input>,
    /// Whether a step is in the runner's hands.
    is_computing: bool,
    runtime: runtime::Handle,
}

impl Engine {
    fn run(mut self, stop: &AtomicBool) {
        ask_for_short_slices();
        while !stop.load(Ordering::Acquire) {
            match self.next_item() {
                Some(Item::Submit { request, origin, events }) => {
                    self.sequences.insert(request.seq, events);
                    let now = self.now();
                    if let Some(timeline) = &mut self.links.timeline {
                        timeline.submitted(now, &request, origin);
                    }
                    self.handle(Input::Submit(request));
                }
                Some(Item::Input(input)) => self.handle(input),
                Some(Item::Budgeted(input, share)) => {
                    self.handle(input);
                    drop(share);
                }
                Some(Item::Snapshot(answer)) => {
                    // Whoever asked may be gone.
                    let _ = answer.send(Snapshot { stats: self.core.stats(), idle: self.core.is_idle() });
                }
                Some(Item::Stop) => break,
                None => self.handle(Input::Tick),
            }
        }
        let now = self.now();
        if let Some(timeline) = self.links.timeline.take() {
            timeline.close(now);
        }
    }

    /// The next item, or nothing once a deadline has come.
    fn next_item(&mut self) -> Option<Item> {
        if let Ok(item) = self.items.try_recv() {
            return Some(item);
        }
        let retry = self.links.transfer.retry_removals().then(|| Instant::now() + REMOVAL_RETRY);
        let due = self.core.poll_timeout().map(|(time, _)| self.epoch + Duration::from_nanos(time.0));
        let deadline = match (due, retry) {
            (Some(due), Some(retry)) => Some(due.min(retry)),
            (due, retry) => due.or(retry),
        };
        let items = &mut self.items;
        // The inbox's senders live in links that this thread owns, so it never closes before the thread ends.
        match deadline {
            None => self.runtime.block_on(items.recv()),
            // Inside the block, because a timer belongs to the runtime that it is made in.
            Some(at) => self
                .runtime
                .block_on(async { tokio::time::timeout_at(at.into(), items.recv()).await.ok().flatten() }),
        }
    }

    fn handle(&mut self, input: Input) {
        self.answers.push_back(input);
        while let Some(input) = self.answers.pop_front() {
            loop_trace::input(&self.name, &input);
            self.is_computing &= !matches!(input, Input::Stepped(_) | Input::StepFailed { .. });
            let now = self.now();
            if let Some(timeline) = &mut self.links.timeline {
                timeline.input(now, &input);
            }
            self.core.handle_input(now, input);
            while let Some(output) = self.core.poll_output() {
                loop_trace::output(&self.name, &output);
                self.draw(&output);
                self.pass_on(output);
            }
            if !self.is_computing {
                self.links.runner.rest();
                self.post_reads();
            }
        }
    }

    /// What the loop itself is to post, if it is to: before a step, or at once if there is none.
    fn post_reads(&mut self) {
        let refused = self.links.transfer.post_reads();
        self.answers.extend(refused.into_iter().map(Input::Proto));
    }

    /// Outputs take effect when the core has thought, not when it was asked.
    fn draw(&mut self, output: &Output) {
        if self.links.timeline.is_some() {
            let now = self.now();
            self.links.timeline.iter_mut().for_each(|timeline| timeline.output(now, output));
        }
    }

    fn now(&self) -> Time {
        Time::ZERO + self.epoch.elapsed()
    }

    fn pass_on(&mut self, output: Output) {
        match output {
            Output::Step(batch) => {
                self.post_reads();
                self.is_computing = true;
                self.links.runner.compute(batch);
            }
            Output::Token { seq, token } => {
                if let Some(events) = self.sequences.get(&seq) {
                    // A client that is gone has sent, or is about to send, an Abort.
                    let _ = events.send(SeqEvent::Token(token));
                }
            }
            Output::Finished { seq, reason, usage, handle, retained } => {
                self.end(seq, SeqEvent::Finished { reason, usage, handle, retained });
            }
            Output::Refused { seq, why } => self.end(seq, SeqEvent::Refused(why)),
            Output::Proto(output) => {
                if let Some(answer) = self.pass_on_proto(output) {
                    self.answers.push_back(Input::Proto(answer));
                }
            }
        }
    }

    fn end(&mut self, seq: SeqId, event: SeqEvent) {
        if let Some(events) = self.sequences.remove(&seq) {
            let _ = events.send(event);
        }
    }

    fn pass_on_proto(&mut self, output: baton_proto::Output) -> Option<baton_proto::Input> {
        match output {
            baton_proto::Output::Dial { address } => {
                self.links.side_channel.dial(address);
                None
            }
            baton_proto::Output::Send { conn, message } => self.links.side_channel.send(conn, &message),
            baton_proto::Output::Close { conn } => {
                self.links.side_channel.close(conn);
                None
            }
            output => self.links.transfer.obey(output),
        }
    }
}
