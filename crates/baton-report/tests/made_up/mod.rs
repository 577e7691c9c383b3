//! Results that nobody measured: plausible, and the same each time.

use std::path::{Path, PathBuf};

use baton_workload::result::{
    CacheState, Client, ClientLoad, Comparison, Conditions, Counts, Ending, EngineConditions, Estimate,
    Gauge, Goodput, Histogram, Host, Load, Point, Ratio, RequestRecord, RunResult, SCHEMA_VERSION, Scrape,
    Slo, Summary, System, Throughput, Warning, WarningKind, Workload,
};

/// What a made-up run is like.
#[derive(Clone, Debug)]
pub struct Plan {
    pub label: Option<String>,
    pub model: String,
    pub strategies: Vec<&'static str>,
    pub loads: Vec<Load>,
    pub rounds: u32,
    /// In each round of each load.
    pub requests: u64,
    pub output_tokens: u32,
    pub compare: bool,
    pub scrape: bool,
    pub seed: u64,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            label: None,
            model: "smollm2-135m-instruct".to_owned(),
            strategies: vec!["none", "pull", "push"],
            loads: [0.5, 1.0, 2.0, 4.0, 6.0].map(open).into(),
            rounds: 1,
            requests: 240,
            output_tokens: 96,
            compare: false,
            scrape: true,
            seed: 1,
        }
    }
}

pub fn open(rate: f64) -> Load {
    Load::Open { rate, arrivals: "poisson".to_owned() }
}

/// A run as it lies on disk.
#[derive(Debug)]
pub struct MadeUp {
    pub result: RunResult,
    pub records: Vec<RequestRecord>,
}

impl MadeUp {
    pub fn new(plan: &Plan) -> Self {
        let mut random = Random(plan.seed);
        let (mut points, mut records) = (Vec::new(), Vec::new());
        for load in &plan.loads {
            for round in 0..plan.rounds {
                for strategy in &plan.strategies {
                    let index = points.len() as u32;
                    let sent = answers(plan, strategy, load, round, index, &mut random);
                    points.push(point(plan, strategy, load, round, &sent));
                    records.extend(sent);
                }
            }
        }
        let result = RunResult {
            schema_version: SCHEMA_VERSION,
            conditions: conditions(plan),
            workload: workload(plan),
            warnings: warnings(&points),
            comparisons: if plan.compare { comparisons(plan) } else { Vec::new() },
            points,
            requests_file: Some("requests.jsonl".to_owned()),
        };
        Self { result, records }
    }

    /// What servers would have written down, in the Chrome trace format.
    pub fn trace(&self) -> serde_json::Value {
        let mut events = Vec::new();
        for record in &self.records {
            let system = &self.result.points[record.point as usize].system;
            let (Some(sent), Some(ttft)) = (record.sent_ms, record.ttft_ms()) else { continue };
            let mut span = |name: &str, from: f64, to: f64| {
                // Some other clock.
                let ts = (5e6 + sent + ttft * from) * 1000.0;
                events.push(serde_json::json!({
                    "name": name, "ph": "X", "ts": ts, "dur": ttft * (to - from) * 1000.0, "pid": 1, "tid": 1,
                    "args": {"request": record.id},
                }));
            };
            span("queue", 0.0, 0.3);
            match system.as_str() {
                "none" => span("prefill chunk", 0.3, 0.97),
                "pull" => {
                    span("prefill chunk", 0.3, 0.8);
                    span("slice", 0.82, 0.93);
                }
                _ => {
                    for chunk in 0..4 {
                        let from = 0.3 + 0.15 * f64::from(chunk);
                        span("prefill chunk", from, from + 0.15);
                        span("slice", from + 0.15, from + 0.19);
                    }
                }
            }
            span("first step", 0.97, 1.0);
        }
        serde_json::json!({"traceEvents": events})
    }

    /// Writes the run's directory and returns it.
    pub fn write(&self, into: &Path, name: &str) -> std::io::Result<PathBuf> {
        let directory = into.join(name);
        std::fs::create_dir_all(&directory)?;
        self.result.write(std::fs::File::create(directory.join("result.json"))?)?;
        let mut lines = std::io::BufWriter::new(std::fs::File::create(directory.join("requests.jsonl"))?);
        for record in &self.records {
            serde_json::to_writer(&mut lines, record)?;
            std::io::Write::write_all(&mut lines, b"\n")?;
        }
        std::io::Write::flush(&mut lines)?;
        Ok(directory)
    }
}

/// What a hostile server or user may have called things.
pub const HOSTILE: &str =
    "</script><script>alert('x')</script>\"><img src=http://example.invalid/x onerror=alert(1)> & '";

/// A run whose every text is hostile.
pub fn hostile() -> MadeUp {
    let mut run = MadeUp::new(&Plan { requests: 30, loads: vec![open(1.0), open(2.0)], ..Plan::default() });
    let text = HOSTILE.to_owned();
    let conditions = &mut run.result.conditions;
    conditions.label = Some(text.clone());
    conditions.command.push(text.clone());
    conditions.client.host.cpu = text.clone();
    for system in &mut conditions.systems {
        system.name = format!("{}{HOSTILE}", system.name);
        system.model = text.clone();
        system.flags.push(text.clone());
    }
    run.result.workload.description = text.clone();
    run.result.warnings.push(Warning { kind: WarningKind::Other, text: text.clone(), point: Some(0) });
    for point in &mut run.result.points {
        point.system = format!("{}{HOSTILE}", point.system);
        for scrape in &mut point.scrapes {
            scrape.target = text.clone();
            scrape.counters.insert(text.clone(), 1.0);
        }
    }
    for record in &mut run.records {
        record.id = text.clone();
        record.error = Some(text.clone());
    }
    run
}

/// Spreads numbers evenly (SplitMix64).
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }
}

/// Milliseconds a prompt token takes, milliseconds an output token takes, and how much prefill slows decode down.
fn speeds(strategy: &str) -> (f64, f64, f64) {
    match strategy {
        "none" => (0.42, 14.0, 0.55),
        "pull" => (0.47, 14.6, 0.05),
        "push" => (0.43, 14.4, 0.06),
        _ => (0.36, 14.7, 0.06),
    }
}

fn answers(
    plan: &Plan,
    strategy: &str,
    load: &Load,
    round: u32,
    point: u32,
    random: &mut Random,
) -> Vec<RequestRecord> {
    let (prefill, step, disturbance) = speeds(strategy);
    let rate = match load {
        Load::Closed { concurrency } => f64::from(*concurrency) * 0.5,
        other => other.level().unwrap_or(1.0),
    };
    // The same requests for every strategy of a round.
    let mut same = Random(plan.seed ^ (u64::from(round) << 32) ^ rate.to_bits());
    let (mut now, mut free) = (0.0, 0.0_f64);
    (0..plan.requests)
        .map(|index| {
            now += same.exponential(1000.0 / rate);
            let prompt = (64.0 * 2.0_f64.powf(same.unit() * 5.0)) as u32;
            let wanted = 2 + (same.unit() * 2.0 * f64::from(plan.output_tokens)) as u32;
            let begin = free.max(now);
            free = begin + f64::from(prompt) * prefill * (0.9 + 0.2 * random.unit());
            let busy = (rate * 0.2).min(1.6);
            let mut token = free + 3.0 + 4.0 * random.unit();
            let tokens: Vec<f64> = (0..wanted)
                .map(|_| {
                    let stall = if random.unit() < 0.04 { disturbance * 300.0 * random.unit() } else { 0.0 };
                    let here = token;
                    token += step * (0.9 + 0.2 * random.unit()) * (1.0 + disturbance * busy) + stall;
                    (here * 1000.0).round() / 1000.0
                })
                .collect();
            record(plan, point, index, now, prompt, wanted, tokens)
        })
        .collect()
}

fn record(
    plan: &Plan,
    point: u32,
    index: u64,
    scheduled_ms: f64,
    prompt: u32,
    wanted: u32,
    tokens: Vec<f64>,
) -> RequestRecord {
    let done = tokens.last().copied();
    let mut record = RequestRecord {
        point,
        index,
        id: format!("b{}-{point}-{index}", plan.seed),
        scheduled_ms,
        sent_ms: Some(scheduled_ms + 0.08),
        first_byte_ms: tokens.first().copied(),
        token_ms: tokens,
        done_ms: done.map(|last| last + 0.2),
        prompt_tokens: Some(prompt),
        output_tokens: Some(wanted),
        cached_tokens: Some(0),
        wanted_prompt_tokens: Some(prompt),
        wanted_output_tokens: Some(wanted),
        ending: Ending::Complete,
        finish_reason: Some("length".to_owned()),
        status: Some(200),
        ..RequestRecord::default()
    };
    // A few go wrong, each in its own way.
    if index % 83 == 41 {
        record.ending = Ending::Refused;
        record.status = Some(503);
        record.error = Some("The queue is full.".to_owned());
        record.token_ms.clear();
        record.done_ms = Some(scheduled_ms + 2.0);
        record.output_tokens = Some(0);
    } else if index % 97 == 30 {
        record.ending = Ending::Cut;
        record.token_ms.truncate(wanted as usize / 2);
        record.done_ms = record.token_ms.last().copied();
    }
    record
}

fn estimate(value: f64, half_width: f64) -> Estimate {
    Estimate { value, low: Some((value - half_width).max(0.0)), high: Some(value + half_width) }
}

fn summary(samples: impl Iterator<Item = f64>) -> Option<Summary> {
    let mut sorted: Vec<f64> = samples.collect();
    sorted.sort_unstable_by(f64::total_cmp);
    let (first, last) = (*sorted.first()?, *sorted.last()?);
    let n = sorted.len() as f64;
    let mean = sorted.iter().sum::<f64>() / n;
    let deviation = (sorted.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n).sqrt();
    let quantile = |share: f64| {
        let at = |rank: f64| sorted[(rank.ceil() as usize).clamp(1, sorted.len()) - 1];
        let spread = 1.96 * (n * share * (1.0 - share)).sqrt();
        let (low, high) = (at(share * n - spread), at(share * n + spread));
        Estimate { value: at(share * n), low: Some(low), high: Some(high) }
    };
    Some(Summary {
        samples: sorted.len() as u64,
        min: first,
        max: last,
        mean: estimate(mean, 1.96 * deviation / n.sqrt()),
        p50: quantile(0.5),
        p90: quantile(0.9),
        p99: quantile(0.99),
    })
}

fn point(plan: &Plan, strategy: &str, load: &Load, round: u32, sent: &[RequestRecord]) -> Point {
    let answered = || sent.iter().filter(|record| record.ending.is_answer());
    let over = sent.iter().filter_map(|record| record.done_ms).fold(1.0, f64::max);
    let duration_s = over / 1000.0;
    let mut counts = Counts { scheduled: sent.len() as u64, cached_tokens: Some(0), ..Counts::default() };
    for record in sent {
        *counts.endings.entry(record.ending).or_default() += 1;
    }
    counts.prompt_tokens = answered().filter_map(|record| record.prompt_tokens).map(u64::from).sum();
    counts.output_tokens = answered().filter_map(|record| record.output_tokens).map(u64::from).sum();
    let per_second = |count: u64| estimate(count as f64 / duration_s, 0.04 * count as f64 / duration_s);
    let good = answered().filter(|record| record.ttft_ms().is_some_and(|ttft| ttft < 600.0)).count();
    let share = good as f64 / (sent.len() as f64).max(1.0);
    let lag_ms = summary(sent.iter().filter_map(RequestRecord::lag_ms));
    Point {
        system: strategy.to_owned(),
        strategy: Some(strategy.to_owned()),
        load: load.clone(),
        round,
        started_s: 0.0,
        duration_s,
        throughput: Throughput {
            requests: per_second(answered().count() as u64),
            prompt_tokens: per_second(counts.prompt_tokens),
            output_tokens: per_second(counts.output_tokens),
        },
        counts,
        ttft_ms: summary(answered().filter_map(RequestRecord::ttft_ms)),
        tpot_ms: summary(answered().filter_map(RequestRecord::tpot_ms)),
        itl_ms: summary(answered().flat_map(RequestRecord::itl_ms)),
        e2e_ms: summary(answered().filter_map(RequestRecord::e2e_ms)),
        goodput: Some(Goodput {
            slo: Slo { ttft_ms: Some(600.0), ..Slo::default() },
            share: estimate(share, 0.03),
            requests: per_second(good as u64),
        }),
        client: ClientLoad { lag_ms, loop_lag_ms: None, cpu_cores: Some(0.06), peak_concurrency: 31 },
        scrapes: if plan.scrape { scrapes(strategy, sent, duration_s) } else { Vec::new() },
    }
}

fn scrapes(strategy: &str, sent: &[RequestRecord], duration_s: f64) -> Vec<Scrape> {
    let targets: &[&str] = if strategy == "none" { &["both-0"] } else { &["prefill-0", "decode-0"] };
    let live = |second: f64| {
        let ms = second * 1000.0;
        let running = |r: &&RequestRecord| r.scheduled_ms <= ms && r.done_ms.is_some_and(|done| done > ms);
        sent.iter().filter(running).count() as f64
    };
    let gauge = |scale: f64| {
        let seconds = duration_s.min(600.0) as u32;
        let samples: Vec<(f64, f64)> = (0..seconds)
            .map(|second| (f64::from(second), (live(f64::from(second)) * scale).min(1.0)))
            .collect();
        let values = || samples.iter().map(|(_, value)| *value);
        Gauge {
            mean: values().sum::<f64>() / (samples.len() as f64).max(1.0),
            max: values().fold(0.0, f64::max),
            last: values().next_back().unwrap_or(0.0),
            samples: samples.clone(),
        }
    };
    targets
        .iter()
        .map(|target| {
            let mut scrape = Scrape { target: (*target).to_owned(), ..Scrape::default() };
            let scale = if target.starts_with("prefill") { 0.006 } else { 0.02 };
            scrape.gauges.insert("vllm:kv_cache_usage_perc{model_name=\"smollm2\"}".to_owned(), gauge(scale));
            let counted = sent.len() as f64;
            scrape.counters.insert("baton_requests_total".to_owned(), counted);
            scrape.counters.insert("baton_prefix_queried_tokens_total".to_owned(), counted * 300.0);
            if target.starts_with("decode") {
                scrape.counters.insert("baton_transfers_received_total".to_owned(), counted);
                scrape.counters.insert("baton_received_tokens_total".to_owned(), counted * 300.0);
                let between =
                    Histogram { count: 4_000, mean: 0.000_2, p50: 0.000_1, p90: 0.000_4, p99: 0.012_5 };
                scrape.histograms.insert("baton_between_steps_seconds".to_owned(), between);
            }
            scrape
        })
        .collect()
}

fn conditions(plan: &Plan) -> Conditions {
    Conditions {
        started_at: "2026-01-01T12:00:00Z".to_owned(),
        duration_s: 1310.5,
        label: plan.label.clone(),
        command: ["baton", "bench", "--rate=0.5,1,2,4,6", "--requests=240"].map(str::to_owned).into(),
        seed: plan.seed,
        client: Client {
            version: "0.1.0".to_owned(),
            commit: Some("0123456789ab".to_owned()),
            host: Host {
                cpu: "Example CPU @ 2.5 GHz".to_owned(),
                cores: 2,
                memory_bytes: 25_000_000_000,
                os: "Linux 6.1".to_owned(),
                gpus: Vec::new(),
            },
        },
        systems: plan.strategies.iter().enumerate().map(|(place, name)| system(plan, name, place)).collect(),
    }
}

fn system(plan: &Plan, strategy: &str, place: usize) -> System {
    let engine = |role: &str, blocks| EngineConditions {
        name: format!("{role}-0"),
        role: Some(role.to_owned()),
        url: format!("http://127.0.0.1:{}", 8100 + place),
        prefix_cache: CacheState::Off,
        block_tokens: Some(16),
        kv_blocks: Some(blocks),
        kv_dtype: Some("f32".to_owned()),
        transports: vec!["shm".to_owned()],
    };
    System {
        name: strategy.to_owned(),
        strategy: Some(strategy.to_owned()),
        endpoint: format!("http://127.0.0.1:{}", 8000 + place),
        api: "/v1/completions".to_owned(),
        model: plan.model.clone(),
        server: Some("baton 0.1.0".to_owned()),
        commit: Some("0123456789ab".to_owned()),
        max_model_len: Some(8192),
        flags: vec!["up".to_owned(), format!("--strategy={strategy}"), "--no-prefix-cache".to_owned()],
        same_host: true,
        engines: match strategy {
            "none" => vec![engine("both", 4096)],
            _ => vec![engine("prefill", 2048), engine("decode", 2048)],
        },
    }
}

fn workload(plan: &Plan) -> Workload {
    Workload {
        kind: "synthetic".to_owned(),
        description: "64 to 2,048 tokens in, 2 to 192 out, Poisson arrivals".to_owned(),
        seed: plan.seed,
        ignore_eos: true,
        warmup_requests: 8,
        mean_prompt_tokens: Some(573.2),
        mean_output_tokens: Some(97.0),
        shareable_share: Some(0.0),
        ..Workload::default()
    }
}

fn warnings(points: &[Point]) -> Vec<Warning> {
    let mut warnings = Vec::new();
    for (index, point) in points.iter().enumerate() {
        let point_index = Some(index as u32);
        let failed = point.counts.of(Ending::Refused) + point.counts.of(Ending::Cut);
        if failed > 0 {
            let text = format!("{failed} of {} requests failed.", point.counts.scheduled);
            warnings.push(Warning { kind: WarningKind::Failures, text, point: point_index });
        }
        if point.load.level().is_some_and(|level| level >= 6.0) {
            let text = "The queue grew until the last request came.".to_owned();
            warnings.push(Warning { kind: WarningKind::Saturated, text, point: point_index });
        }
    }
    let text = "Client and servers share 2 cores; what one takes, the other lacks.".to_owned();
    warnings.push(Warning { kind: WarningKind::SharedHost, text, point: None });
    warnings.sort_by_key(|warning| warning.kind);
    warnings
}

fn comparisons(plan: &Plan) -> Vec<Comparison> {
    let around = |value: f64, share: f64| estimate(value, value * share);
    let mut comparisons = Vec::new();
    for load in &plan.loads {
        for (place, candidate) in plan.strategies.iter().enumerate().skip(1) {
            let level = load.level().unwrap_or(1.0);
            let ttft = 1.12 - 0.05 * level * place as f64;
            let tpot = 1.03 - 0.06 * level;
            let latency = |figure: &str, value: f64| Ratio {
                figure: figure.to_owned(),
                mean: around(value, 0.05),
                p50: Some(around(value * 0.98, 0.06)),
                p90: Some(around(value * 1.05, 0.1)),
                p99: Some(around(value * 1.1, 0.3)),
                pairwise: Some(around(value, 0.03)),
            };
            let throughput = Ratio {
                figure: "output_tokens".to_owned(),
                mean: around(1.0 + 0.01 * level, 0.02),
                p50: None,
                p90: None,
                p99: None,
                pairwise: None,
            };
            comparisons.push(Comparison {
                baseline: plan.strategies[0].to_owned(),
                candidate: (*candidate).to_owned(),
                load: load.clone(),
                rounds: plan.rounds,
                pairs: plan.requests * u64::from(plan.rounds) - 5,
                unpaired: 5,
                ratios: vec![latency("ttft_ms", ttft), latency("tpot_ms", tpot), throughput],
            });
        }
    }
    comparisons
}
