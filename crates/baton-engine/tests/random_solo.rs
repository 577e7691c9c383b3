//! One engine under random clients and pressure: whatever happens, it says what the oracle says, and ends with all blocks Free.

mod toy;

use baton_engine::{Config, FinishReason, Input, Refusal, Request, SeqFailure};
use baton_types::SeqId;
use proptest::prelude::*;
use toy::solo::{End, Solo, config};
use toy::{STOP, oracle, prompt, request};

const MAX_MODEL_LEN: usize = 40;

#[derive(Clone, Debug)]
enum Op {
    Submit { family: u64, len: usize, max_tokens: u32, min_tokens: u32, stops: bool },
    Abort(u64),
    Stop(u64),
    Step,
    FailStep,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..3u64, 1..45usize, 1..20u32, 0..8u32, any::<bool>()).prop_map(
            |(family, len, max_tokens, min_tokens, stops)| Op::Submit { family, len, max_tokens, min_tokens, stops }
        ),
        1 => (0..40u64).prop_map(Op::Abort),
        1 => (0..40u64).prop_map(Op::Stop),
        12 => Just(Op::Step),
        1 => Just(Op::FailStep),
    ]
}

fn small_config() -> impl Strategy<Value = Config> {
    let sizes = (4..24u32, 1..6u32, 1..6usize, 0..12usize, 1..20usize);
    (sizes, any::<bool>(), 0..3usize).prop_map(|(sizes, prefix_cache, watermark_blocks)| {
        let (num_blocks, block_tokens, max_running, more_tokens, max_waiting) = sizes;
        Config {
            max_running,
            step_tokens: max_running + more_tokens,
            max_model_len: MAX_MODEL_LEN,
            max_waiting,
            prefix_cache,
            watermark_blocks,
            ..config(num_blocks, block_tokens)
        }
    })
}

/// Plays `ops` against an engine and judges every answer.
fn play(config: Config, ops: &[Op]) -> Solo {
    let longest = config.max_len();
    let num_blocks = config.num_blocks as usize;
    let mut solo = Solo::new(config);
    let mut asked: Vec<Request> = Vec::new();
    for op in ops {
        match *op {
            Op::Submit { family, len, max_tokens, min_tokens, stops } => {
                let stop_tokens = if stops { vec![STOP] } else { vec![] };
                let seq = asked.len() as u64;
                let request =
                    Request { min_tokens, stop_tokens, ..request(seq, prompt(family, len), max_tokens) };
                asked.push(request.clone());
                solo.submit(request);
            }
            Op::Abort(seq) => solo.input(Input::Abort { seq: SeqId(seq) }),
            Op::Stop(seq) => solo.input(Input::Stop { seq: SeqId(seq) }),
            Op::Step => drop(solo.finish_step()),
            Op::FailStep => {
                if let Some(batch) = solo.step.take() {
                    solo.input(Input::StepFailed { step: batch.step });
                }
            }
        }
    }
    solo.run_to_end();
    for request in &asked {
        judge(&solo, request, longest);
    }
    assert_eq!(solo.core.stats().blocks.free, num_blocks, "I8");
    assert!(solo.core.is_idle(), "I8");
    solo
}

fn judge(solo: &Solo, request: &Request, longest: usize) {
    let answer = &solo.answers[&request.seq];
    let wanted = oracle(request, longest);
    match answer.end.as_ref().expect("I8: every sequence ends") {
        End::Refused(Refusal::Empty | Refusal::Draining) => panic!("no reason to refuse {request:?}"),
        End::Refused(_) => assert!(answer.tokens.is_empty()),
        End::Finished(FinishReason::Length, ..) => assert_eq!(answer.tokens, wanted, "I7"),
        End::Finished(FinishReason::Stop, ..) => assert!(wanted.starts_with(&answer.tokens), "I7"),
        End::Finished(FinishReason::Aborted | FinishReason::Failed(SeqFailure::Step), ..) => {
            assert!(wanted.starts_with(&answer.tokens), "I7");
        }
        End::Finished(reason, ..) => panic!("no peer, yet {reason:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_the_words_are_the_same(
        config in small_config(),
        ops in proptest::collection::vec(op(), 1..150),
    ) {
        play(config, &ops);
    }
}

/// I10, and that the random games reach what they are for.
#[test]
fn a_game_is_the_same_when_played_again_and_is_a_hard_one() {
    let ops: Vec<Op> = (0..400u64)
        .map(|i| match i % 5 {
            0 => Op::Submit {
                family: i % 3,
                len: 5 + (i as usize * 7) % 30,
                max_tokens: 9,
                min_tokens: 0,
                stops: false,
            },
            _ => Op::Step,
        })
        .collect();
    let small = Config { max_model_len: MAX_MODEL_LEN, ..config(12, 4) };
    let (a, b) = (play(small.clone(), &ops), play(small, &ops));
    assert_eq!(a.answers, b.answers);
    let counters = a.core.stats().counters;
    assert_eq!(counters, b.core.stats().counters);
    assert!(counters.preemptions > 10 && counters.prefix_hit_tokens > 100, "{counters:?}");
}

#[cfg(feature = "mutants")]
#[test]
fn a_prefix_hit_that_is_off_by_one_is_caught() {
    use baton_types::{Mutant, Mutation};

    let mut solo = Solo::new(Config { mutation: Mutation::of(Mutant::PrefixHitOffByOne), ..config(64, 4) });
    solo.submit(request(1, prompt(1, 8), 1));
    solo.run_to_end();
    let mut longer = request(2, prompt(1, 8), 8);
    longer.prompt.extend(prompt(2, 8));
    solo.submit(longer.clone());
    solo.run_to_end();
    assert_ne!(solo.tokens(2), oracle(&longer, 100));
}
