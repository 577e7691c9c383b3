//! What was measured, as a table in Markdown.

use std::fmt::Write;

use super::measured::{Measured, Samples};
use super::plan::{Load, Plan, rho};

pub fn table(plan: &Plan, load: Load, systems: &[Measured]) -> String {
    let mut text = format!(
        "{}: {:.2} requests per second, {} tokens in, {} descriptors\n\n",
        load.as_str(),
        plan.rate(load),
        load.prompt_tokens(),
        plan.descriptors(load)
    );
    text.push_str(
        "| system | TTFT ms: mean, p50, p99 | TPOT ms: mean, p50, p99 | tokens/s | stall ms: mean, p50, p99 | a request | step ms | rho | rate x S |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
    let quiet_ms = systems.iter().map(stall_of_request_ms).fold(f64::INFINITY, f64::min);
    for system in systems {
        let Measured { name, ttft_ms, tpot_ms, tokens_per_s, stall, step_ms, .. } = system;
        // Of what every system has, the least: what is above it is the set-up.
        let set_up_ms = stall_of_request_ms(system) - quiet_ms;
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "| {name} | {} | {} | {tokens_per_s:.0} | {:.3}, {:.3}, {:.2} | {:.1} | {step_ms:.2} | {:.2} | {:.2} |",
            three(ttft_ms, 0),
            three(tpot_ms, 2),
            stall.mean_ms,
            stall.p50_ms,
            stall.p99_ms,
            stall_of_request_ms(system),
            rho(plan.rate(load), tpot_ms.mean()),
            plan.rate(load) * set_up_ms / 1e3,
        );
    }
    if let Some(first) = systems.first() {
        let _ = writeln!(
            text,
            "\n| by {} | TTFT: mean, p50, p99 | TPOT: mean, p50, p99 | tokens/s |\n|---|---|---|---|",
            first.name
        );
        for system in &systems[1..] {
            let _ = writeln!(
                text,
                "| {} | {} | {} | {:.2} |",
                system.name,
                ratios(&system.ttft_ms, &first.ttft_ms),
                ratios(&system.tpot_ms, &first.tpot_ms),
                system.tokens_per_s / first.tokens_per_s
            );
        }
    }
    for system in systems.iter().filter(|system| system.failed > 0) {
        let _ = writeln!(
            text,
            "\n{} of {}'s {} requests were not answered",
            system.failed, system.name, system.requests
        );
    }
    text
}

/// What decode's loop took between steps, for each request.
pub fn stall_of_request_ms(system: &Measured) -> f64 {
    system.stall.sum_ms / (system.requests - system.failed).max(1) as f64
}

fn figures(samples: &Samples) -> [f64; 3] {
    [samples.mean(), samples.percentile(0.5), samples.percentile(0.99)]
}

fn three(samples: &Samples, digits: usize) -> String {
    figures(samples).map(|figure| format!("{figure:.digits$}")).join(", ")
}

fn ratios(samples: &Samples, baseline: &Samples) -> String {
    let pairs = figures(samples).into_iter().zip(figures(baseline));
    pairs.map(|(figure, baseline)| format!("{:.2}", figure / baseline)).collect::<Vec<_>>().join(", ")
}
