//! I13, by the clock: whether another tenant's KV exists cannot be told from how long an answer takes.
//!
//! Who brings a reference to what is retained of another tenant's conversation, and knows its words, waits exactly as long as who brings
//! an id that nobody has ever given out; and so does everybody else. In virtual time exactly is exactly.

use std::ops::Range;

use baton_sim::{After, Ask, Conversation, Failed, Outcome, Reference, Scenario, SimConfig, try_scenario};
use baton_types::TokenId;

/// Of each scenario so many requests are followed by a thief.
const THIEVES: usize = 10;

/// A scenario in which somebody follows each of the first requests with its words, its reference and another tenant, and the same with
/// references that nobody has ever given out. None where nothing is retained.
fn pair(seed: u64, faults: bool) -> Option<(Scenario, Scenario)> {
    let mut stolen = Scenario::draw(seed, faults);
    if stolen.engines.iter().all(|engine| engine.retain.is_none()) {
        return None;
    }
    for engine in &mut stolen.engines {
        // So that nobody's own cache hides what would be read.
        engine.prefix_cache = false;
    }
    let owners: Vec<Ask> = stolen.requests.iter().take(THIEVES).cloned().collect();
    stolen.requests.extend((0..).zip(&owners).map(|(i, owner)| thief(i, owner)));
    let mut forged = stolen.clone();
    for ask in &mut forged.requests[stolen.requests.len() - owners.len()..] {
        let Reference::Of(number) = ask.reference else { unreachable!("a thief's") };
        ask.reference = Reference::ForgedFrom(number);
    }
    Some((stolen, forged))
}

fn thief(i: u64, owner: &Ask) -> Ask {
    Ask {
        number: 1_000 + i,
        after: Some(After { number: owner.number, think_us: 1_000 * i }),
        prompt: owner.prompt.iter().copied().chain([TokenId(3)]).collect(),
        tenant: format!("{}, or so he says", owner.tenant),
        conversation: Conversation::Untold,
        reference: Reference::Of(owner.number),
        ..owner.clone()
    }
}

/// Whether two runs are the same to every client, in all that is counted too.
fn alike(stolen: &Outcome, forged: &Outcome) -> bool {
    (&stolen.first_tokens, &stolen.tally) == (&forged.first_tokens, &forged.tally)
}

fn run(config: &SimConfig, scenario: &Scenario) -> Result<Outcome, Box<Failed>> {
    try_scenario(config, scenario)
}

/// Claims that were declined, in seeds that are alike.
fn declined(config: &SimConfig, seeds: Range<u64>) -> u64 {
    let mut declined = 0;
    for seed in seeds {
        let Some((stolen, forged)) = pair(seed, config.faults) else { continue };
        let (stolen, forged) = (run(config, &stolen).expect("holds"), run(config, &forged).expect("holds"));
        assert!(alike(&stolen, &forged), "seed {seed}: {}\n{}", stolen.tally, forged.tally);
        declined += stolen.tally.declined;
    }
    declined
}

#[test]
fn a_stolen_reference_takes_as_long_as_one_that_never_was() {
    for faults in [false, true] {
        let declined = declined(&SimConfig { faults, ..SimConfig::default() }, 0..150);
        assert!(declined > 50, "{declined} claims are too few to show anything");
    }
}

/// The same with tenants that are not kept apart: the thief's readings are seen for what they are, and only a thief's.
#[cfg(feature = "mutants")]
#[test]
fn a_tenant_that_is_not_in_the_salt_is_told_apart() {
    let mutation = baton_types::Mutation::of(baton_types::Mutant::TenantNotSalted);
    let config = SimConfig { faults: false, mutation, ..SimConfig::default() };
    let told_apart = (0..150).filter_map(|seed| pair(seed, false)).any(|(stolen, forged)| {
        let caught = run(&config, &stolen).is_err_and(|failed| failed.why.contains("I13: xfer"));
        caught && run(&config, &forged).is_ok()
    });
    assert!(told_apart);
}
