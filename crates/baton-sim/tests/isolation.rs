//! I13, by the clock: whether another tenant's KV exists cannot be told from how long an answer takes.
//!
//! Who brings a reference to what is retained of another tenant's conversation, and knows its words, waits exactly as long as who brings
//! an id that nobody has ever given out; and so does everybody else. In virtual time exactly is exactly.

use baton_sim::{Outcome, Reference, Scenario, SimConfig, try_scenario};

/// The scenario of a seed, and the same with each stolen reference replaced by a forged one; none if nobody steals.
fn pair(seed: u64, faults: bool) -> Option<(Scenario, Scenario)> {
    let stolen = Scenario::draw(seed, faults);
    let mut forged = stolen.clone();
    for i in 0..stolen.requests.len() {
        let Reference::Of(number) = stolen.requests[i].reference else { continue };
        let owner = stolen.requests.iter().find(|ask| ask.number == number).expect("drawn with it");
        let thief = &stolen.requests[i];
        if (&owner.tenant, &owner.salt) == (&thief.tenant, &thief.salt) {
            continue;
        }
        assert!(thief.prompt.starts_with(&owner.prompt), "seed {seed}: the thief knows the words");
        forged.requests[i].reference = Reference::ForgedFrom(number);
    }
    (stolen != forged).then_some((stolen, forged))
}

fn run(config: &SimConfig, scenario: &Scenario) -> Outcome {
    try_scenario(config, scenario).unwrap_or_else(|failed| panic!("{failed}"))
}

/// Seeds in which the times differ, of how many in which anybody was declined.
fn compare(config: &SimConfig, seeds: std::ops::Range<u64>) -> (Vec<u64>, usize) {
    let (mut differ, mut declined) = (Vec::new(), 0);
    for seed in seeds {
        let Some((stolen, forged)) = pair(seed, config.faults) else { continue };
        let (stolen, forged) = (run(config, &stolen), run(config, &forged));
        declined += usize::from(stolen.tally.declined > 0);
        if (&stolen.first_tokens, &stolen.tally) != (&forged.first_tokens, &forged.tally) {
            differ.push(seed);
        }
    }
    (differ, declined)
}

#[test]
fn a_stolen_reference_takes_as_long_as_one_that_never_was() {
    for faults in [false, true] {
        let config = SimConfig { faults, ..SimConfig::default() };
        let (differ, declined) = compare(&config, 0..300);
        assert!(declined > 10, "{declined} seeds are too few to show anything");
        assert_eq!(differ, Vec::<u64>::new(), "of {declined} seeds, with faults: {faults}");
    }
}

/// The same with tenants that are not kept apart: the test can tell.
#[cfg(feature = "mutants")]
#[test]
fn a_tenant_that_is_not_in_the_salt_shows_in_the_time() {
    let mutation = baton_types::Mutation::of(baton_types::Mutant::TenantNotSalted);
    let config = SimConfig { faults: false, mutation, ..SimConfig::default() };
    let shows = (0..300).filter_map(|seed| pair(seed, false)).any(|(stolen, forged)| {
        match (try_scenario(&config, &stolen), try_scenario(&config, &forged)) {
            (Ok(stolen), Ok(forged)) => stolen.first_tokens != forged.first_tokens,
            // Seen by what it did before it shows in the time.
            (stolen, forged) => stolen.is_err() != forged.is_err(),
        }
    });
    assert!(shows);
}
