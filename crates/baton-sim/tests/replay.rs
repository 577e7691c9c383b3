//! Traces on the production cores: what comes out of one whose answer can be counted on fingers.

use std::time::Duration;

use baton_model::CostProfile;
use baton_sim::{Replay, Replayed, replay};
use baton_workload::{Ask, Conversation, Prompt, Turn};

/// Turns of one session: how long the client thinks before each, and which blocks it asks with.
fn session(session: u32, turns: &[(u64, &[u64])]) -> Conversation {
    let turn = |(i, (think_s, keys)): (usize, &(u64, &[u64]))| Turn {
        think: Duration::from_secs(*think_s),
        ask: Ask::Whole(Prompt::from_keys(
            keys.len() as u32 * 64 + 5,
            64,
            keys.iter().map(|key| u64::from(session) << 32 | key),
            u64::from(session) << 32 | i as u64,
        )),
        output_tokens: Some(100),
    };
    let turns = turns.iter().enumerate().map(turn).collect();
    Conversation { name: None, session, offset: Duration::ZERO, turns }
}

fn how(ttl_s: u64, retain_blocks: usize) -> Replay {
    Replay {
        retain_ttl: Duration::from_secs(ttl_s),
        grain: 1,
        at_once: 2,
        prefill_engines: 1,
        kv_blocks: 1_000,
        retain_blocks,
        profile: CostProfile::named("qwen3-32b-tp8").expect("a profile"),
        grain_us: 10,
    }
}

fn both(ttl_s: u64, retain_blocks: usize) -> Replayed {
    let long: Vec<u64> = (0..50).collect();
    let longer: Vec<u64> = (0..70).collect();
    // Of 70 blocks, 40 are the same again.
    let edited: Vec<u64> = (0..40).chain(100..130).collect();
    let one = session(0, &[(0, &long), (10, &longer), (1_000, &edited)]);
    let other = session(1, &[(0, &long), (100, &longer)]);
    replay(&[one, other], &how(ttl_s, retain_blocks)).expect("it is answered")
}

#[test]
fn turns_find_what_they_have_in_common_with_the_one_before_if_they_come_in_time() {
    let counts = |replayed: &Replayed| (replayed.later_turns, replayed.found, replayed.saved);
    assert_eq!(counts(&both(60, 1_000)), (3, 1, 50));
    assert_eq!(counts(&both(480, 1_000)), (3, 2, 100));
    assert_eq!(counts(&both(3_600, 1_000)), (3, 3, 140));
    assert_eq!(both(480, 1_000), both(480, 1_000), "I10");
}

#[test]
fn where_little_may_be_retained_others_give_way() {
    let capped = both(3_600, 75);
    assert!(capped.revoked > 0 && capped.found < 3, "{capped:?}");
    assert!(capped.retained_most <= 75, "{capped:?}");
    let ample = both(3_600, 1_000);
    assert_eq!((ample.revoked, ample.expired), (0, 5));
    // Each turn's blocks, those that two of them share once; an answer of two blocks is retained but for its last token.
    assert!((110..=140 + 120).contains(&ample.retained_most), "{ample:?}");
}

#[test]
fn what_cannot_be_replayed_is_an_error() {
    assert!(replay(&[], &how(60, 10)).is_err());
    let mut odd = session(0, &[(0, &[1, 2]), (1, &[1, 2, 3])]);
    if let Ask::Whole(prompt) = &mut odd.turns[1].ask {
        prompt.block_tokens = 32;
    }
    assert!(replay(&[odd], &how(60, 10)).is_err());
}
