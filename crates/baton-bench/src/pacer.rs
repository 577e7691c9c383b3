//! Begins conversations when they are due, whatever becomes of those before.

use std::sync::Arc;
use std::time::{Duration, Instant};

use baton_workload::Start;
use baton_workload::result::RequestRecord;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, mpsc};

use crate::clock::ms;
use crate::talk::Table;

/// Longest sleep without a look at whether the measurement is over.
const NAP: Duration = Duration::from_millis(50);

/// Begins each conversation at its moment. A thread of its own: it sleeps more exactly than the event loop's timers, which count
/// milliseconds, and writes the next request out while it waits.
pub(crate) fn pace(
    table: Arc<Table>,
    starts: Vec<Start>,
    records: mpsc::UnboundedSender<RequestRecord>,
) -> std::io::Result<()> {
    let runtime = Handle::current();
    let work = move || {
        for start in starts {
            let mut history = Vec::new();
            let first = start.conversation.turns.first().map(|turn| table.writer.write(turn, &mut history));
            let Some(first) = first else { continue };
            let scheduled_ms = ms(start.at);
            if !sleep_until(table.exchange.clock.at(start.at), &table) {
                // Nobody listens any more if the point is over.
                table.unsent(&start, scheduled_ms).into_iter().for_each(|record| drop(records.send(record)));
                continue;
            }
            runtime.spawn(table.clone().talk(start, first, history, scheduled_ms, records.clone()));
        }
    };
    std::thread::Builder::new().name("pacer".to_owned()).spawn(work).map(drop)
}

/// False if the measurement ended before.
fn sleep_until(due: Instant, table: &Table) -> bool {
    loop {
        if *table.stop.borrow() {
            return false;
        }
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        std::thread::sleep(left.min(NAP));
    }
}

/// So many clients, each of which takes the next conversation when it has done one, until so long after the beginning.
pub(crate) fn serve_clients(
    table: &Arc<Table>,
    clients: u32,
    starts: impl Iterator<Item = Start> + Send + 'static,
    until: Option<Duration>,
    records: &mpsc::UnboundedSender<RequestRecord>,
) {
    let queue = Arc::new(Mutex::new(starts));
    for _ in 0..clients {
        let (table, queue, records) = (table.clone(), queue.clone(), records.clone());
        tokio::spawn(async move {
            let next = || async { queue.lock().await.next() };
            loop {
                // What is taken is due now: writing it out is the client's own time.
                let scheduled_ms = table.exchange.clock.now_ms();
                if *table.stop.borrow() || until.is_some_and(|until| scheduled_ms > ms(until)) {
                    return;
                }
                let Some(start) = next().await else { return };
                let mut history = Vec::new();
                let first =
                    start.conversation.turns.first().map(|turn| table.writer.write(turn, &mut history));
                if let Some(first) = first {
                    table.clone().talk(start, first, history, scheduled_ms, records.clone()).await;
                }
            }
        });
    }
}
