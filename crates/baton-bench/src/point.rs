//! Measures one load on one endpoint.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use baton_workload::Start;
use baton_workload::measure::measure;
use baton_workload::resample::round_figure;
use baton_workload::result::{ClientLoad, Load, Point, RequestRecord, Slo};
use tokio::sync::{Semaphore, mpsc, watch};

use crate::clock::Clock;
use crate::exchange::Exchange;
use crate::meter::Meter;
use crate::options::{Stop, said};
use crate::pacer::{pace, serve_clients};
use crate::progress::{Progress, Screen};
use crate::scrape::Scraper;
use crate::survey::Survey;
use crate::talk::{Table, Writer};

/// The conversations of a point.
pub(crate) enum Starts {
    /// Each at its moment.
    Paced(Vec<Start>),
    /// For clients that take the next when they have done one, until so long after the beginning.
    Queue { next: Box<dyn Iterator<Item = Start> + Send>, until: Option<Duration> },
}

/// Everything that one point is told.
pub(crate) struct PointPlan {
    pub load: Load,
    pub starts: Starts,
    pub round: u32,
    /// Index of the point in the result.
    pub number: u32,
    /// Of the point's beginning, since the run's.
    pub started_s: f64,
    pub writer: Writer,
    pub run_id: String,
    pub slo: Option<Slo>,
    pub request_timeout: Duration,
    /// When all is cut off, since the point's beginning; none: when the last answer has ended.
    pub cut_off: Option<Duration>,
    pub max_streams: usize,
    pub seed: u64,
}

impl PointPlan {
    fn name(&self, system: &str) -> String {
        let load = match &self.load {
            Load::Open { rate, arrivals } => format!("{rate}/s {arrivals}"),
            Load::Trace { time_scale, .. } => format!("trace x{time_scale}"),
            Load::Closed { concurrency } => format!("{concurrency} clients"),
        };
        format!("{system} {load}")
    }

    /// As far as it is known before.
    fn requests(&self) -> Option<u64> {
        match &self.starts {
            Starts::Paced(starts) => {
                Some(starts.iter().map(|start| start.conversation.turns.len() as u64).sum())
            }
            Starts::Queue { .. } => None,
        }
    }
}

/// Sends everything and waits for all endings.
///
/// # Errors
/// If the system has no thread left.
pub(crate) async fn measure_point(
    survey: &Survey,
    plan: PointPlan,
    screen: &Screen,
    stop: &Stop,
) -> Result<(Point, Vec<RequestRecord>)> {
    let (name, requests) = (plan.name(&survey.system.name), plan.requests());
    let PointPlan { load, starts, writer, slo, seed, .. } = plan;
    let progress = Progress::default();
    let cut = CutOff::new(plan.cut_off, stop.clone());
    let scraper = Scraper::start(&survey.targets, Clock::start()).await;
    let meter = Meter::start();
    let table = Arc::new(Table {
        exchange: Exchange {
            endpoint: survey.endpoint.clone(),
            clock: Clock::start(),
            ignore_eos: writer.manner.ignore_eos,
            request_timeout: plan.request_timeout,
            progress: progress.clone(),
        },
        writer,
        point: plan.number,
        run_id: plan.run_id,
        streams: Semaphore::new(plan.max_streams),
        stop: cut.stop(),
    });
    let (sender, mut receiver) = mpsc::unbounded_channel();
    match (starts, &load) {
        (Starts::Paced(starts), _) => pace(table, starts, sender.clone()).context("cannot start a thread")?,
        (Starts::Queue { next, until }, Load::Closed { concurrency }) => {
            serve_clients(&table, *concurrency, next, until, &sender);
        }
        (Starts::Queue { .. }, _) => unreachable!("only clients have a queue"),
    }
    // Whoever still sends records holds the other ends.
    drop(sender);
    let mut records = Vec::new();
    let collect = async {
        while let Some(record) = receiver.recv().await {
            records.push(record);
        }
    };
    tokio::select! {
        () = collect => {}
        () = screen.clone().follow(name, requests, progress.clone()) => {}
    }
    drop(cut);
    let (loop_lag_ms, cpu_cores) = meter.read(seed).await;
    let scrapes = scraper.read().await;
    screen.working("computing intervals");
    // It takes a second or so of CPU, and nothing is measured now.
    let measured = measure(&records, slo, seed);
    screen.settled();
    let point = Point {
        system: survey.system.name.clone(),
        strategy: survey.system.strategy.clone(),
        load,
        round: plan.round,
        started_s: plan.started_s,
        duration_s: measured.duration_s,
        counts: measured.counts,
        ttft_ms: measured.ttft_ms,
        tpot_ms: measured.tpot_ms,
        itl_ms: measured.itl_ms,
        e2e_ms: measured.e2e_ms,
        throughput: measured.throughput,
        goodput: measured.goodput,
        client: ClientLoad {
            lag_ms: measured.lag_ms,
            loop_lag_ms,
            cpu_cores: Some(round_figure(cpu_cores)),
            peak_concurrency: progress.peak(),
        },
        scrapes,
    };
    Ok((point, records))
}

/// Ends a point: when its time is over, or the user says so.
struct CutOff {
    cut: watch::Receiver<bool>,
    timer: tokio::task::JoinHandle<()>,
}

impl CutOff {
    fn new(after: Option<Duration>, mut stop: Stop) -> Self {
        let (sender, cut) = watch::channel(*stop.borrow());
        let timer = tokio::spawn(async move {
            let over = async {
                match after {
                    Some(after) => tokio::time::sleep(after).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = over => {}
                () = said(&mut stop) => {}
            }
            sender.send_replace(true);
        });
        Self { cut, timer }
    }

    fn stop(&self) -> Stop {
        self.cut.clone()
    }
}

impl Drop for CutOff {
    fn drop(&mut self) {
        self.timer.abort();
    }
}
