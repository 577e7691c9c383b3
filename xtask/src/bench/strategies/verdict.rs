//! What is required of the figures, and whether it is so.

use std::fmt::Write;
use std::ops::RangeInclusive;

use super::measured::Measured;
use super::plan::{Plan, step_ms};
use super::tables::stall_of_request_ms;

/// Posting in the loop adds at least so much to a step.
const INLINE_ADDS: f64 = 0.30;
/// The others add at most so much.
const OTHERS_ADD: f64 = 0.05;
/// TPOT and throughput differ by no more where nothing is to differ.
const NO_DIFFERENCE: f64 = 0.05;

/// Rate x S of the published measurements.
const PUBLISHED: RangeInclusive<f64> = 0.35..=0.45;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Met,
    NotMet,
    /// It is required of a load that this is not.
    NotAsked,
}

impl Outcome {
    const fn of(met: bool) -> Self {
        if met { Self::Met } else { Self::NotMet }
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::NotMet => "NOT MET",
            Self::NotAsked => "-",
        }
    }
}

/// A requirement, with the figures that it is about.
struct Verdict {
    outcome: Outcome,
    text: String,
}

/// For how long decode's loop is held up by each request that it sets up itself.
struct SetUp {
    ms: f64,
    /// Rate x S.
    group: f64,
}

impl SetUp {
    fn of(plan: &Plan, heavy: &[Measured]) -> Option<Self> {
        let (inline, pull) = (find(heavy, "pull-inline")?, find(heavy, "pull")?);
        let ms = stall_of_request_ms(inline) - stall_of_request_ms(pull);
        Some(Self { ms, group: plan.rate * ms / 1e3 })
    }

    /// Too quick for what was published of posting in the loop to be asked of it.
    fn is_too_quick(&self) -> bool {
        self.group < *PUBLISHED.start()
    }
}

pub fn verdicts(plan: &Plan, heavy: &[Measured], light: &[Measured]) -> String {
    let set_up = SetUp::of(plan, heavy);
    let is_too_quick = set_up.as_ref().is_some_and(SetUp::is_too_quick);
    let mut verdicts = under_load(heavy, is_too_quick);
    verdicts.extend(in_light(light));
    let mut text = "required:\n".to_owned();
    for Verdict { outcome, text: about } in &verdicts {
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(text, "{:<8}{about}", outcome.as_str());
    }
    if let Some(set_up) = set_up {
        let _ = writeln!(
            text,
            "decode's loop is held up {:.1} ms more for each request where it posts itself: rate x S = {:.2} (published: {} to {})",
            set_up.ms,
            set_up.group,
            PUBLISHED.start(),
            PUBLISHED.end()
        );
    }
    if is_too_quick {
        text.push_str(
            "so nothing is asked of pull-inline: here the set-up is too quick to matter as it does there\n",
        );
    }
    text
}

fn find<'a>(systems: &'a [Measured], name: &str) -> Option<&'a Measured> {
    systems.iter().find(|system| system.name == name)
}

/// `is_too_quick`: the set-up, for posting in the loop to be as bad as it must be under the published load.
fn under_load(systems: &[Measured], is_too_quick: bool) -> Vec<Verdict> {
    let added = |system: &Measured| system.tpot_ms.mean() / step_ms() - 1.0;
    let mut verdicts = Vec::new();
    for (name, word, limit) in [
        ("pull-inline", "at least", INLINE_ADDS),
        ("pull", "at most", OTHERS_ADD),
        ("push", "at most", OTHERS_ADD),
    ] {
        let Some(system) = find(systems, name) else { continue };
        let added = added(system);
        let outcome = match word {
            "at least" if is_too_quick => Outcome::NotAsked,
            "at least" => Outcome::of(added >= limit),
            _ => Outcome::of(added <= limit),
        };
        verdicts.push(Verdict {
            outcome,
            text: format!(
                "under load, {name} adds {word} {:.0} % to the step: {:+.1} % (TPOT {:.2} ms, step {:.2} ms)",
                limit * 100.0,
                added * 100.0,
                system.tpot_ms.mean(),
                step_ms()
            ),
        });
    }
    if let Some(push) = find(systems, "push") {
        let others = systems.iter().filter(|system| system.name != push.name);
        let least = others.map(|system| system.ttft_ms.mean()).fold(f64::INFINITY, f64::min);
        verdicts.push(Verdict {
            outcome: Outcome::of(push.ttft_ms.mean() < least),
            text: format!(
                "under load, push has the lowest mean TTFT: {:.1} ms, the next {least:.1} ms",
                push.ttft_ms.mean()
            ),
        });
    }
    verdicts
}

/// Every system beside push.
fn in_light(systems: &[Measured]) -> Vec<Verdict> {
    let Some(push) = find(systems, "push") else { return Vec::new() };
    let others = systems.iter().filter(|system| system.name != push.name);
    others
        .map(|system| {
            let ratio = system.tpot_ms.mean() / push.tpot_ms.mean();
            let tokens = system.tokens_per_s / push.tokens_per_s;
            let later_ms = system.ttft_ms.mean() - push.ttft_ms.mean();
            let is_near = |ratio: f64| (ratio - 1.0).abs() <= NO_DIFFERENCE;
            Verdict {
                outcome: Outcome::of(is_near(ratio) && is_near(tokens) && later_ms.abs() < step_ms()),
                text: format!(
                    "in light load, {} is no different from push: TPOT x {ratio:.3}, tokens/s x {tokens:.3} (within {:.0} %), \
                     TTFT {later_ms:+.1} ms (less than a step)",
                    system.name,
                    NO_DIFFERENCE * 100.0
                ),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn system(name: &str, ttft_ms: f64, tpot_ms: f64, tokens_per_s: f64) -> Measured {
        Measured {
            name: name.to_owned(),
            ttft_ms: [ttft_ms].into_iter().collect(),
            tpot_ms: [tpot_ms].into_iter().collect(),
            tokens_per_s,
            requests: 1,
            ..Measured::default()
        }
    }

    fn said(verdicts: &[Verdict]) -> Vec<Outcome> {
        verdicts.iter().map(|verdict| verdict.outcome).collect()
    }

    #[test]
    fn what_is_not_so_is_not_met() {
        let step = step_ms();
        let systems = |inline: f64, pull: f64, push: f64, ttft: f64| {
            [
                system("pull-inline", 900.0, step * inline, 1.0),
                system("pull", 200.0, step * pull, 1.0),
                system("push-end", 180.0, step, 1.0),
                system("push", ttft, step * push, 1.0),
            ]
        };
        assert_eq!(said(&under_load(&systems(1.31, 1.04, 1.04, 150.0), false)), [Outcome::Met; 4]);
        let worse = systems(1.29, 1.06, 1.06, 180.0);
        assert_eq!(said(&under_load(&worse, false)), [Outcome::NotMet; 4]);
        assert_eq!(
            said(&under_load(&worse, true)),
            [Outcome::NotAsked, Outcome::NotMet, Outcome::NotMet, Outcome::NotMet]
        );
        let light = |tpot: f64, tokens: f64, ttft: f64| {
            said(&in_light(&[system("pull", 10.0 + ttft, tpot, tokens), system("push", 10.0, 1.0, 1.0)]))
        };
        assert_eq!(light(1.04, 0.96, step - 0.1), [Outcome::Met]);
        let worse = [light(1.06, 1.0, 0.0), light(1.0, 0.94, 0.0), light(1.0, 1.0, step + 0.1)];
        assert_eq!(worse, [[Outcome::NotMet]; 3]);
    }
}
