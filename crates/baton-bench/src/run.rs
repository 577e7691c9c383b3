//! A whole run: loads one after the other, and everything that is known of them at the end.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use baton_workload::judge::{Facts, judge};
use baton_workload::resample::round_figure;
use baton_workload::result::{
    Client, Comparison, Conditions, Load, Point, RequestRecord, RunResult, SCHEMA_VERSION,
};
use baton_workload::result::{Warning, WarningKind, Workload};
use baton_workload::schedule::{Limits, Schedule, queue};
use baton_workload::trace::{Figures, Trace};
use baton_workload::{Arrivals, Ask, Conversation};
use jiff::Timestamp;

use crate::host;
use crate::options::{LoadPlan, Options, Source, Stop};
use crate::outcome::{Outcome, ResultDir, point_table};
use crate::point::{PointPlan, Starts, measure_point};
use crate::progress::Screen;
use crate::request_body::Manner;
use crate::survey::{Known, Survey};
use crate::talk::Writer;

/// Measures an endpoint that runs already.
///
/// # Errors
/// If it cannot be measured at all; what fails later is in the result.
pub async fn bench(url: &str, options: Options, stop: Stop) -> Result<Outcome> {
    let mut run = Run::new(options)?;
    let known = Known {
        name: run.options.label.clone().unwrap_or_else(|| "endpoint".to_owned()),
        url: url.to_owned(),
        engines: run.options.engines.clone(),
        ..Known::default()
    };
    let survey = Survey::of(known, &run.options).await?;
    run.screen.line(&format!("seed {}; {}", run.options.seed, run.workload.description));
    for round in 0..run.options.rounds {
        for level in 0..run.levels.len() {
            if *stop.borrow() {
                break;
            }
            let measured = run.measure(&survey, level, round, &stop).await;
            run.go_on_without(measured)?;
        }
    }
    run.systems.push(survey.system);
    run.finish(Vec::new())
}

/// Conversations that loads take theirs from.
#[derive(Debug)]
enum Material {
    Drawn(baton_workload::Synthetic),
    Read(Arc<[Conversation]>),
}

fn shared(conversations: Arc<[Conversation]>) -> impl Iterator<Item = Conversation> {
    (0..conversations.len()).map(move |index| conversations[index].clone())
}

/// Conversations that an endless workload is described by.
const FIGURES_OF: usize = 10_000;

/// One load of the plan.
#[derive(Clone, Debug)]
pub(crate) struct Level {
    pub load: Load,
    /// None: clients take the next when they have done one.
    schedule: Option<Schedule>,
}

pub(crate) struct Run {
    pub options: Options,
    pub screen: Screen,
    pub levels: Vec<Level>,
    pub systems: Vec<baton_workload::result::System>,
    pub points: Vec<Point>,
    pub warnings: Vec<Warning>,
    pub workload: Workload,
    material: Material,
    dir: ResultDir,
    client: Client,
    began: Timestamp,
    clock: Instant,
    run_id: String,
}

/// Warm-up words are other words.
const WARMUP_SEED: u64 = 0x5eed_0fff_ffff_ffff;
const WARMUP_CLIENTS: u32 = 4;

impl Run {
    /// # Errors
    /// If the trace cannot be read, or the directory for the results cannot be used.
    pub fn new(options: Options) -> Result<Self> {
        let (material, mut workload) = read_source(&options)?;
        let levels = levels(&options, &material)?;
        workload.seed = options.seed;
        workload.ignore_eos = options.ignore_eos;
        workload.warmup_requests = options.warmup;
        let dir = ResultDir::create(&options.out)?;
        let began = Timestamp::now();
        Ok(Self {
            screen: Screen::new(),
            levels,
            systems: Vec::new(),
            points: Vec::new(),
            warnings: Vec::new(),
            workload,
            material,
            dir,
            client: host::client(),
            run_id: format!("b{:x}", began.as_millisecond()),
            began,
            clock: Instant::now(),
            options,
        })
    }

    /// Measures one level, and writes its requests down.
    ///
    /// # Errors
    /// If no warm-up request is answered, or the results cannot be written.
    pub async fn measure(
        &mut self,
        survey: &Survey,
        level: usize,
        round: u32,
        stop: &Stop,
    ) -> Result<Vec<RequestRecord>> {
        let seed = mix(self.options.seed, round, level);
        self.warm_up(survey, seed ^ WARMUP_SEED, stop).await?;
        let Level { load, schedule } = self.levels[level].clone();
        let (starts, figures) = match schedule {
            Some(schedule) => self.paced(schedule, seed),
            None => self.queued(seed),
        };
        self.workload.mean_prompt_tokens = figures.mean_input;
        self.workload.mean_output_tokens = figures.mean_output;
        self.workload.shareable_share = figures.shareable;
        let plan = self.plan(survey, load, starts, round, seed);
        let (point, records) = measure_point(survey, plan, &self.screen, stop).await?;
        let facts = Facts {
            ignore_eos: self.options.ignore_eos,
            shareable: figures.shareable,
            prefix_cache: survey.prefix_cache(),
            cores: self.client.host.cores,
        };
        let warnings = judge(&point, self.points.len() as u32, &records, facts);
        self.screen.line(&point_table(&point, &warnings));
        self.warnings.extend(warnings);
        self.points.push(point);
        self.dir.append(&records)?;
        Ok(records)
    }

    /// What cannot be measured any more is told, and what was measured before is kept.
    ///
    /// # Errors
    /// The same error, if nothing was.
    pub fn go_on_without<T>(&mut self, measured: Result<T>) -> Result<Option<T>> {
        match measured {
            Ok(measured) => Ok(Some(measured)),
            Err(error) if self.points.is_empty() => Err(error),
            Err(error) => {
                let text = format!("Not measured: {error:#}");
                self.screen.line(&text);
                self.warnings.push(Warning { kind: WarningKind::MissingFigures, text, point: None });
                Ok(None)
            }
        }
    }

    fn plan(&self, survey: &Survey, load: Load, starts: Starts, round: u32, seed: u64) -> PointPlan {
        let options = &self.options;
        PointPlan {
            load,
            starts,
            round,
            number: self.points.len() as u32,
            started_s: round_figure(self.clock.elapsed().as_secs_f64()),
            writer: Writer {
                manner: Manner {
                    model: survey.system.model.clone(),
                    ignore_eos: options.ignore_eos,
                    temperature: options.temperature,
                },
                vocabulary: survey.vocabulary.clone(),
                api: options.api,
                max_tokens: match &options.source {
                    Source::Trace { output_tokens, .. } => *output_tokens,
                    Source::Synthetic(_) => 1,
                },
                seed,
            },
            run_id: self.run_id.clone(),
            slo: options.slo,
            request_timeout: options.request_timeout,
            cut_off: options.limits.duration.map(|duration| duration + options.drain),
            max_streams: options.max_streams,
            seed,
        }
    }

    /// Sends some requests and forgets them: connections, pages and caches of code are there then.
    async fn warm_up(&self, survey: &Survey, seed: u64, stop: &Stop) -> Result<()> {
        if self.options.warmup == 0 {
            return Ok(());
        }
        self.screen.working("warming up");
        let few = queue(self.conversations(seed), Some(self.options.warmup), self.options.time_scale);
        let starts = Starts::Queue { next: Box::new(few), until: None };
        let clients = WARMUP_CLIENTS.min(u32::try_from(self.options.warmup).unwrap_or(u32::MAX));
        let load = Load::Closed { concurrency: clients };
        let mut plan = self.plan(survey, load, starts, 0, seed);
        plan.run_id += "-warm";
        plan.cut_off = None;
        // Nobody looks at its metrics.
        let unwatched = Survey { targets: Vec::new(), ..survey.clone() };
        let (_, records) = measure_point(&unwatched, plan, &self.screen, stop).await?;
        if *stop.borrow() || records.iter().any(|record| record.ending.is_answer()) {
            return Ok(());
        }
        let first = records.first().context("the workload has no request")?;
        let why = first.error.as_deref().unwrap_or("without a word");
        let status = first.status.map_or_else(String::new, |status| format!(", status {status}"));
        bail!("no warm-up request was answered ({:?}{status}): {why}", first.ending)
    }

    fn conversations(&self, seed: u64) -> Box<dyn Iterator<Item = Conversation> + Send> {
        match &self.material {
            Material::Drawn(synthetic) => Box::new(synthetic.conversations(seed)),
            Material::Read(conversations) => Box::new(shared(conversations.clone())),
        }
    }

    fn paced(&self, schedule: Schedule, seed: u64) -> (Starts, Figures) {
        let starts = schedule.starts(self.conversations(seed), self.options.limits, seed);
        let figures = Figures::of(starts.iter().map(|start| &start.conversation));
        (Starts::Paced(starts), figures)
    }

    fn queued(&self, seed: u64) -> (Starts, Figures) {
        let Limits { requests, duration } = self.options.limits;
        let all = || queue(self.conversations(seed), requests, self.options.time_scale);
        // Where there is no end, some tell of all.
        let some: Vec<Conversation> = all().take(FIGURES_OF).map(|start| start.conversation).collect();
        (Starts::Queue { next: Box::new(all()), until: duration }, Figures::of(&some))
    }

    /// Writes the result down.
    ///
    /// # Errors
    /// If it cannot be written, or nothing was measured.
    pub fn finish(mut self, comparisons: Vec<Comparison>) -> Result<Outcome> {
        self.screen.settled();
        if self.points.is_empty() {
            bail!("nothing was measured");
        }
        if self.systems.iter().any(|system| system.same_host) {
            self.warnings.push(shared_host(&self.points, self.client.host.cores));
        }
        self.warnings.sort_by_key(|warning| warning.kind);
        let conditions = Conditions {
            started_at: self.began.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            duration_s: round_figure(self.clock.elapsed().as_secs_f64()),
            label: self.options.label,
            command: self.options.command,
            seed: self.options.seed,
            client: self.client,
            systems: self.systems,
        };
        let result = RunResult {
            schema_version: SCHEMA_VERSION,
            conditions,
            workload: self.workload,
            warnings: self.warnings,
            points: self.points,
            comparisons,
            requests_file: None,
        };
        self.dir.finish(result)
    }
}

fn shared_host(points: &[Point], cores: u32) -> Warning {
    let used = points.iter().filter_map(|point| point.client.cpu_cores).fold(0.0, f64::max);
    let text = format!(
        "Client and servers shared one machine of {cores} cores; the client used {used:.2} of them at most. On machines of their own, figures differ."
    );
    Warning { kind: WarningKind::SharedHost, text, point: None }
}

/// A seed of its own for each round and level, the same for every system.
fn mix(seed: u64, round: u32, level: usize) -> u64 {
    let step = (u64::from(round) << 32) + level as u64;
    seed.wrapping_add(step.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn read_source(options: &Options) -> Result<(Material, Workload)> {
    match &options.source {
        Source::Synthetic(synthetic) => {
            let workload = Workload {
                kind: "synthetic".to_owned(),
                description: describe_drawn(synthetic),
                ..Workload::default()
            };
            Ok((Material::Drawn(synthetic.clone()), workload))
        }
        Source::Trace { path, max_prompt_tokens, turns, .. } => {
            let Trace { kind, name, mut conversations } = Trace::read(path)?;
            let all: usize = conversations.iter().map(|conversation| conversation.turns.len()).sum();
            for conversation in &mut conversations {
                conversation.turns.truncate(turns.map_or(usize::MAX, |turns| turns as usize));
                conversation.turns.retain(|turn| is_short_enough(&turn.ask, *max_prompt_tokens));
            }
            conversations.retain(|conversation| !conversation.turns.is_empty());
            if conversations.is_empty() {
                bail!("no request of {name} is short enough");
            }
            let left: usize = conversations.iter().map(|conversation| conversation.turns.len()).sum();
            let description = format!("{left} of the {all} requests of {name} ({})", kind.name());
            let workload = Workload {
                kind: kind.name().to_owned(),
                description,
                trace: Some(name),
                ..Workload::default()
            };
            Ok((Material::Read(conversations.into()), workload))
        }
    }
}

fn is_short_enough(ask: &Ask, most: Option<u32>) -> bool {
    match (ask, most) {
        (Ask::Whole(prompt), Some(most)) => prompt.tokens <= most,
        _ => true,
    }
}

fn describe_drawn(drawn: &baton_workload::Synthetic) -> String {
    let mut text = format!("{} tokens in, {} out", drawn.input, drawn.output);
    if drawn.turns > 1 {
        text += &format!(", {} turns, {:?} between them", drawn.turns, drawn.think);
    }
    if drawn.shared_prefix_tokens > 0 {
        text += &format!(", the first {} the same in all", drawn.shared_prefix_tokens);
    }
    if let Some(distinct) = drawn.distinct {
        text += &format!(", {distinct} different ones again and again");
    }
    text
}

fn levels(options: &Options, material: &Material) -> Result<Vec<Level>> {
    let time_scale = options.time_scale;
    let open = |rate: &f64, arrivals: Arrivals| Level {
        load: Load::Open { rate: *rate, arrivals: arrivals.to_string() },
        schedule: Some(Schedule::Arrivals { arrivals, rate: *rate, time_scale }),
    };
    let levels: Vec<Level> = match &options.load {
        LoadPlan::Rates { rates, arrivals } => rates.iter().map(|rate| open(rate, *arrivals)).collect(),
        LoadPlan::Recorded => {
            let Material::Read(conversations) = material else {
                bail!("only a trace has arrivals of its own");
            };
            let figures = Figures::of(conversations.iter());
            let span_s = figures.span.as_secs_f64();
            let rate = (span_s > 0.0).then(|| figures.requests as f64 / span_s * time_scale);
            vec![Level {
                load: Load::Trace { time_scale, rate },
                schedule: Some(Schedule::Recorded { time_scale }),
            }]
        }
        LoadPlan::Clients(clients) => clients
            .iter()
            .map(|clients| Level { load: Load::Closed { concurrency: *clients }, schedule: None })
            .collect(),
    };
    if levels.is_empty() {
        bail!("no load is given");
    }
    let endless = matches!(material, Material::Drawn(_));
    if endless && options.limits == Limits::default() {
        bail!("drawn requests have no end: give --requests or --duration");
    }
    Ok(levels)
}
