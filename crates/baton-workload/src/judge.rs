//! The known traps of a measurement, looked for in its own figures.

use crate::result::{Ending, Point, RequestRecord, Warning, WarningKind};

/// What the figures do not tell by themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Facts {
    /// Whether every answer was to have its whole length.
    pub ignore_eos: bool,
    /// Share of the prompts' blocks that were sent before, as far as the workload knows.
    pub shareable: Option<f64>,
    /// Whether some engine is known to keep prefixes. None: nobody knows.
    pub prefix_cache: Option<bool>,
    /// Cores that the client may use.
    pub cores: u32,
}

/// Later than this is a client's fault, unless answers take long anyway.
const LATE_MS: f64 = 5.0;
/// Lateness that does not matter, as a share of the median TTFT.
const LATE_SHARE: f64 = 0.05;
/// So few answers, and a p99 is one of the slowest three.
const FEW_ANSWERS: u64 = 300;

/// The warnings about one point, the gravest first.
pub fn judge(point: &Point, index: u32, records: &[RequestRecord], facts: Facts) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let mut warn = |kind, text: Option<String>| {
        warnings.extend(text.map(|text| Warning { kind, text, point: Some(index) }));
    };
    warn(WarningKind::ClientLimit, client_limit(point, facts));
    warn(WarningKind::Failures, failures(point));
    warn(WarningKind::Unfinished, unfinished(point));
    warn(WarningKind::Saturated, saturated(point, records));
    warn(WarningKind::RepeatedPrompts, repeated(point, facts));
    warn(WarningKind::EarlyEos, early(point, records, facts));
    warn(WarningKind::OtherLengths, other_lengths(records));
    warn(WarningKind::FewSamples, few_samples(point));
    warn(WarningKind::CoarseChunks, coarse_chunks(records));
    warn(WarningKind::MissingFigures, missing(point, records));
    warnings.sort_by_key(|warning| warning.kind);
    warnings
}

fn client_limit(point: &Point, facts: Facts) -> Option<String> {
    let median = point.ttft_ms.map_or(0.0, |ttft| ttft.p50.value);
    let allowed = LATE_MS.max(median * LATE_SHARE);
    let late = |what: &str, p99: f64| (p99 > allowed).then(|| format!("{what} {p99:.1} ms late at p99"));
    let lag = point.client.lag_ms.and_then(|lag| late("requests were sent", lag.p99.value));
    let event_loop = point.client.loop_lag_ms.and_then(|lag| late("its event loop ran", lag.p99.value));
    let most = f64::from(facts.cores) * 0.9;
    let cpu = point.client.cpu_cores.filter(|used| facts.cores > 0 && *used > most);
    let cpu = cpu.map(|used| format!("it used {used:.2} of {} cores", facts.cores));
    let signs: Vec<String> = [lag, event_loop, cpu].into_iter().flatten().collect();
    (!signs.is_empty()).then(|| {
        format!(
            "The client was at its limit ({}): these latencies are not only the server's.",
            signs.join(", ")
        )
    })
}

const FAILURES: [(Ending, &str); 6] = [
    (Ending::Refused, "refused"),
    (Ending::ErrorInStream, "failed in the stream"),
    (Ending::Cut, "cut"),
    (Ending::Malformed, "malformed"),
    (Ending::Unreachable, "without a connection"),
    (Ending::TimedOut, "timed out"),
];

fn failures(point: &Point) -> Option<String> {
    let counted = FAILURES.map(|(ending, word)| (point.counts.of(ending), word));
    let total: u64 = counted.iter().map(|(count, _)| count).sum();
    let parts: Vec<String> = counted
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, word)| format!("{count} {word}"))
        .collect();
    (total > 0).then(|| {
        let scheduled = point.counts.scheduled;
        format!("{total} of {scheduled} requests failed: {}. They are in no latency.", parts.join(", "))
    })
}

fn unfinished(point: &Point) -> Option<String> {
    let count = point.counts.of(Ending::Unfinished);
    (count > 0).then(|| {
        let scheduled = point.counts.scheduled;
        format!(
            "{count} of {scheduled} requests were not over when the measurement ended: the slowest are missing from every latency."
        )
    })
}

/// With fewer arrivals a trend is noise.
const ARRIVALS_FOR_A_TREND: usize = 24;

fn saturated(point: &Point, records: &[RequestRecord]) -> Option<String> {
    let waiting = waiting_on_average(point).filter(|waiting| *waiting >= 1.0).map(|waiting| {
        format!("On average {waiting:.1} requests waited for a slot of an engine: latency is mostly queue.")
    });
    let open = !matches!(point.load, crate::result::Load::Closed { .. });
    let growth = open.then(|| queue_growth(records)).flatten().map(|(early, late)| {
        format!(
            "More and more requests were at work at once: {early:.1} on average in the second quarter of the arrivals, {late:.1} in the last. Either the rate is more than the system serves, or the measurement was too short to settle."
        )
    });
    match (growth, waiting) {
        (Some(growth), Some(waiting)) => Some(format!("{growth} {waiting}")),
        (growth, waiting) => growth.or(waiting),
    }
}

/// Of the engine where most waited.
fn waiting_on_average(point: &Point) -> Option<f64> {
    let is_waiting = |name: &str| {
        name.starts_with("vllm:num_requests_waiting{")
            || name == "vllm:num_requests_waiting"
            || name == "baton_sequences_waiting"
    };
    let gauges = point.scrapes.iter().flat_map(|scrape| &scrape.gauges);
    gauges.filter(|(name, _)| is_waiting(name)).map(|(_, gauge)| gauge.mean).max_by(f64::total_cmp)
}

/// Mean number of requests that were running when one came: in the second quarter of the arrivals and in the last, if it grew.
fn queue_growth(records: &[RequestRecord]) -> Option<(f64, f64)> {
    if records.len() < ARRIVALS_FOR_A_TREND {
        return None;
    }
    let sorted = |of: fn(&RequestRecord) -> f64| {
        let mut times: Vec<f64> = records.iter().map(of).collect();
        times.sort_by(f64::total_cmp);
        times
    };
    let arrivals = sorted(|record| record.scheduled_ms);
    let ends = sorted(|record| record.done_ms.unwrap_or(f64::MAX));
    let running: Vec<f64> = (arrivals.iter().zip(1..))
        .map(|(at, came)| f64::from(came) - ends.partition_point(|end| end <= at) as f64)
        .collect();
    let quarter = running.len() / 4;
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    let (early, late) = (mean(&running[quarter..2 * quarter]), mean(&running[running.len() - quarter..]));
    (late > 1.5 * early && late > early + 4.0).then_some((early, late))
}

/// A share of prompts that makes a difference.
const NOTABLE_SHARE: f64 = 0.02;

fn repeated(point: &Point, facts: Facts) -> Option<String> {
    let counts = &point.counts;
    let cached = counts.cached_tokens.filter(|_| counts.prompt_tokens > 0);
    let cached = cached.map(|cached| cached as f64 / counts.prompt_tokens as f64);
    if let (Some(cached), Some(shareable)) = (cached, facts.shareable)
        && cached > shareable + NOTABLE_SHARE
    {
        return Some(format!(
            "{:.0} % of the prompts' tokens came from a cache, though these prompts have {:.0} % in common: the server had read them before, perhaps in a run with the same seed.",
            cached * 100.0,
            shareable * 100.0
        ));
    }
    let shareable = facts.shareable.filter(|share| *share > NOTABLE_SHARE)?;
    let cache = match facts.prefix_cache {
        Some(false) => return None,
        Some(true) => "a prefix cache is on",
        None => "a prefix cache may be on",
    };
    Some(format!(
        "{:.0} % of the prompts' blocks were sent before, and {cache}: prefill computes less than prompts have.",
        shareable * 100.0
    ))
}

fn early(point: &Point, records: &[RequestRecord], facts: Facts) -> Option<String> {
    if facts.ignore_eos {
        let count = point.counts.of(Ending::Early);
        return (count > 0).then(|| {
            format!("{count} answers were shorter than asked for, although EOS was to be ignored: the server does not do so.")
        });
    }
    let answers = records.iter().filter(|record| record.ending.is_answer());
    let wanted: Vec<(u32, u32)> =
        answers.filter_map(|record| Some((record.output_tokens?, record.wanted_output_tokens?))).collect();
    let short = wanted.iter().filter(|(got, wanted)| got < wanted).count();
    (short > 0).then(|| {
        let mean = wanted.iter().map(|(got, _)| f64::from(*got)).sum::<f64>() / wanted.len() as f64;
        format!(
            "{short} of {} answers ended before the length that was asked for ({mean:.0} tokens on average): without --ignore-eos the model decides how much is measured.",
            wanted.len()
        )
    })
}

fn other_lengths(records: &[RequestRecord]) -> Option<String> {
    let lengths = records.iter().filter_map(|record| {
        Some((f64::from(record.prompt_tokens?), f64::from(record.wanted_prompt_tokens?)))
    });
    let (got, wanted) = lengths.fold((0.0, 0.0), |(got, wanted), (g, w)| (got + g, wanted + w));
    // A few tokens of a chat template are not worth a word.
    (wanted > 0.0 && (got / wanted - 1.0).abs() > 0.1).then(|| {
        format!("The server counted {:.0} % of the prompt tokens that were wanted.", got / wanted * 100.0)
    })
}

fn few_samples(point: &Point) -> Option<String> {
    let answers = point.counts.of(Ending::Complete) + point.counts.of(Ending::Early);
    (answers < FEW_ANSWERS).then(|| {
        let beyond = answers - (answers as f64 * 0.99).ceil() as u64;
        match answers {
            0 => "No request was answered.".to_owned(),
            _ => format!("{answers} answers: a p99 has {beyond} slower ones and no interval; ask for {FEW_ANSWERS} requests or more."),
        }
    })
}

fn coarse_chunks(records: &[RequestRecord]) -> Option<String> {
    let answers = records.iter().filter(|record| record.ending.is_answer());
    let (tokens, chunks) = answers.fold((0_u64, 0_u64), |(tokens, chunks), record| {
        (tokens + u64::from(record.output_tokens.unwrap_or(0)), chunks + record.token_ms.len() as u64)
    });
    (chunks > 0 && tokens as f64 > chunks as f64 * 1.05).then(|| {
        format!(
            "{:.1} tokens came in one chunk on average: ITL is the time between chunks.",
            tokens as f64 / chunks as f64
        )
    })
}

fn missing(point: &Point, records: &[RequestRecord]) -> Option<String> {
    let answers = records.iter().filter(|record| record.ending.is_answer());
    let uncounted = answers.filter(|record| record.output_tokens.is_none()).count();
    let failed: Vec<String> = (point.scrapes.iter())
        .filter(|scrape| scrape.failures > 0)
        .map(|scrape| format!("{} samples of the metrics of {} failed", scrape.failures, scrape.target))
        .collect();
    let uncounted =
        (uncounted > 0).then(|| format!("{uncounted} answers came without a count of their tokens"));
    let all: Vec<String> = failed.into_iter().chain(uncounted).collect();
    (!all.is_empty()).then(|| format!("{}.", all.join("; ")))
}

#[cfg(test)]
mod tests;
