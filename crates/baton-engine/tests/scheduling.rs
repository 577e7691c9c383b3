//! What one engine computes, in which order, and how its sequences end.

mod toy;

use baton_engine::{Config, FinishReason, Input, Refusal, SeqFailure};
use baton_types::{CacheSalt, SeqId, TokenId};
use toy::solo::{Solo, config};
use toy::{STOP, oracle, prompt, request};

/// `(sequence, first position, tokens)` of each entry.
fn shape(solo: &mut Solo) -> Vec<(u64, u32, usize)> {
    let batch = solo.finish_step().expect("a step is asked for");
    batch.entries.iter().map(|entry| (entry.seq.0, entry.start, entry.tokens.len())).collect()
}

#[test]
fn decodes_go_first_and_prompts_fill_the_rest_of_the_step() {
    let mut solo = Solo::new(config(64, 4));
    solo.submit(request(1, prompt(1, 6), 3));
    assert_eq!(shape(&mut solo), [(1, 0, 6)]);
    solo.submit(request(2, prompt(2, 20), 2));
    // The second step had begun when the second request came.
    assert_eq!(shape(&mut solo), [(1, 6, 1)]);
    assert_eq!(shape(&mut solo), [(1, 7, 1), (2, 0, 15)]);
    assert_eq!(shape(&mut solo), [(2, 15, 5)]);
    assert_eq!(shape(&mut solo), [(2, 20, 1)]);
    assert!(solo.step.is_none());
    assert_eq!(solo.tokens(1), oracle(&request(1, prompt(1, 6), 3), 100));
    assert_eq!(solo.tokens(2), oracle(&request(2, prompt(2, 20), 2), 100));
}

#[test]
fn prompts_are_taken_in_the_order_of_arrival() {
    let mut solo = Solo::new(config(64, 4));
    for seq in 1..=6 {
        solo.submit(request(seq, prompt(seq, 10), 1));
    }
    assert_eq!(shape(&mut solo), [(1, 0, 10)]);
    assert_eq!(shape(&mut solo), [(2, 0, 10), (3, 0, 6)]);
    // Four run at a time: 5 came in when 1 was over, 6 when 2 was.
    assert_eq!(shape(&mut solo), [(3, 6, 4), (4, 0, 10), (5, 0, 2)]);
    solo.run_to_end();
    for seq in 1..=6 {
        assert_eq!(solo.tokens(seq), oracle(&request(seq, prompt(seq, 10), 1), 100));
    }
}

#[test]
fn the_youngest_gives_up_its_blocks_and_says_the_same_later() {
    // Room for 8 blocks of 4; two sequences of 12 tokens that grow to 24 each.
    let mut solo = Solo::new(config(8, 4));
    let (a, b) = (request(1, prompt(1, 12), 12), request(2, prompt(2, 12), 12));
    solo.submit(a.clone());
    solo.submit(b.clone());
    solo.run_to_end();
    assert_eq!((solo.tokens(1), solo.tokens(2)), (&oracle(&a, 100)[..], &oracle(&b, 100)[..]));
    assert_eq!(solo.usage(1).preemptions, 0);
    assert!(solo.usage(2).preemptions > 0);
    assert_eq!(solo.core.stats().blocks.free, 8);
}

#[test]
fn a_prefix_is_computed_once() {
    let mut solo = Solo::new(config(64, 4));
    let first = request(1, prompt(1, 12), 1);
    solo.submit(first.clone());
    solo.run_to_end();
    let mut second = request(2, prompt(1, 12), 4);
    second.prompt.extend(prompt(9, 3));
    solo.submit(second.clone());
    assert_eq!(shape(&mut solo), [(2, 12, 3)]);
    // The whole prompt is known, but its last token must be computed.
    solo.submit(request(3, first.prompt.clone(), 1));
    solo.run_to_end();
    assert_eq!(solo.usage(2).cached_tokens, 12);
    assert_eq!(solo.usage(3).cached_tokens, 8);
    assert_eq!(solo.tokens(2), oracle(&second, 100));
    assert_eq!(solo.tokens(3), oracle(&first, 100));
    assert_eq!(solo.core.stats().counters.prefix_hit_tokens, 20);
}

#[test]
fn another_tenant_hits_nothing() {
    let mut solo = Solo::new(config(64, 4));
    solo.submit(request(1, prompt(1, 12), 1));
    solo.run_to_end();
    let salt = CacheSalt { tenant: "other".into(), ..CacheSalt::default() };
    solo.submit(baton_engine::Request { salt, ..request(2, prompt(1, 12), 1) });
    // Which model it is, no request decides.
    let salt = CacheSalt { model: "other".into(), ..CacheSalt::default() };
    solo.submit(baton_engine::Request { salt, ..request(3, prompt(1, 12), 1) });
    solo.run_to_end();
    assert_eq!((solo.usage(2).cached_tokens, solo.usage(3).cached_tokens), (0, 8));
}

#[test]
fn what_can_never_be_served_is_refused_at_once() {
    let mut solo = Solo::new(Config { max_model_len: 40, ..config(8, 4) });
    solo.submit(request(1, vec![], 1));
    solo.submit(request(2, prompt(1, 4), 0));
    solo.submit(request(3, prompt(1, 40), 1));
    solo.submit(request(4, prompt(1, 33), 1));
    solo.submit(request(5, prompt(1, 32), 9));
    assert_eq!(solo.refusal(1), Refusal::Empty);
    assert_eq!(solo.refusal(2), Refusal::Empty);
    assert_eq!(solo.refusal(3), Refusal::ContextTooLong { tokens: 40, limit: 40 });
    assert_eq!(solo.refusal(4), Refusal::PoolTooSmall { blocks: 9, limit: 8 });
    solo.run_to_end();
    // It fills the pool; the token after it needs no place there.
    assert_eq!((solo.reason(5), solo.tokens(5).len()), (FinishReason::Length, 1));
    assert_eq!(solo.core.stats().counters.refused, 4);
}

#[test]
fn a_full_queue_and_a_draining_engine_refuse() {
    let mut solo = Solo::new(Config { max_waiting: 2, max_running: 1, ..config(64, 4) });
    for seq in 1..=4 {
        solo.submit(request(seq, prompt(seq, 4), 2));
    }
    assert_eq!(solo.refusal(4), Refusal::Overloaded);
    solo.input(Input::Drain);
    solo.submit(request(5, prompt(5, 4), 2));
    assert_eq!(solo.refusal(5), Refusal::Draining);
    assert!(!solo.core.is_idle());
    solo.run_to_end();
    for seq in 1..=3 {
        assert_eq!(solo.tokens(seq), oracle(&request(seq, prompt(seq, 4), 2), 100));
    }
    assert!(solo.core.is_idle());
}

/// The first request of its kind whose answer has the stop token at `index`.
fn that_stops_at(index: usize) -> baton_engine::Request {
    (0..)
        .map(|family| request(1, prompt(family, 5), 8))
        .find(|request| oracle(request, 100).iter().position(|token| *token == STOP) == Some(index))
        .unwrap()
}

#[test]
fn a_stop_token_is_said_and_counted() {
    for index in [0, 3] {
        let mut solo = Solo::new(config(64, 4));
        solo.submit(baton_engine::Request { stop_tokens: vec![STOP], ..that_stops_at(index) });
        solo.run_to_end();
        assert_eq!(solo.reason(1), FinishReason::Stop);
        assert_eq!(solo.tokens(1).last(), Some(&STOP));
        assert_eq!(solo.usage(1).completion_tokens as usize, index + 1);
    }
}

#[test]
fn before_min_tokens_nothing_stops() {
    let mut solo = Solo::new(config(64, 4));
    solo.submit(baton_engine::Request { stop_tokens: vec![STOP], min_tokens: 8, ..that_stops_at(2) });
    solo.run_to_end();
    assert_eq!((solo.reason(1), solo.tokens(1).len()), (FinishReason::Length, 8));
}

#[test]
fn a_sequence_ends_once_whenever_it_is_interrupted() {
    for steps in 0..6 {
        for stop in [false, true] {
            let mut solo = Solo::new(Config { step_tokens: 4, ..config(64, 4) });
            // Another sequence is there before and after.
            let other = request(1, prompt(7, 4), 9);
            solo.submit(other.clone());
            solo.submit(request(2, prompt(1, 8), 4));
            for _ in 0..steps {
                solo.finish_step();
            }
            let seq = SeqId(2);
            let input = || if stop { Input::Stop { seq } } else { Input::Abort { seq } };
            solo.input(input());
            solo.input(input());
            let reason = if stop { FinishReason::Stop } else { FinishReason::Aborted };
            assert_eq!(solo.reason(2), reason);
            solo.run_to_end();
            solo.input(input());
            assert_eq!(solo.tokens(1), oracle(&other, 100));
            assert_eq!(solo.core.stats().blocks.free, 64);
        }
    }
}

#[test]
fn the_blocks_of_an_aborted_sequence_wait_for_its_step() {
    let mut solo = Solo::new(Config { prefix_cache: false, ..config(4, 4) });
    solo.submit(request(1, prompt(1, 16), 1));
    solo.input(Input::Abort { seq: SeqId(1) });
    // I3: the runner is still writing into them, and a peer could be let write there next.
    assert_eq!(solo.core.stats().blocks.active, 4);
    let next = request(2, prompt(2, 16), 1);
    solo.submit(next.clone());
    assert_eq!(solo.core.stats().waiting, 1);
    solo.run_to_end();
    assert_eq!(solo.tokens(2), oracle(&next, 100));
}

#[test]
fn a_failed_step_ends_its_sequences_and_no_others() {
    let mut solo = Solo::new(Config { max_running: 1, ..config(64, 4) });
    let (a, b) = (request(1, prompt(1, 8), 2), request(2, prompt(2, 8), 2));
    solo.submit(a);
    solo.submit(b.clone());
    let step = solo.step.take().unwrap().step;
    solo.input(Input::StepFailed { step });
    assert_eq!(solo.reason(1), FinishReason::Failed(SeqFailure::Step));
    solo.run_to_end();
    assert_eq!(solo.tokens(2), oracle(&b, 100));
    assert_eq!(solo.core.stats().blocks.free, 64);
}

#[test]
fn a_long_prompt_at_the_front_is_not_overtaken_for_ever() {
    let mut solo = Solo::new(Config { prefix_cache: false, ..config(8, 4) });
    solo.submit(request(1, prompt(1, 8), 6));
    solo.submit(request(2, prompt(2, 30), 2));
    for seq in 3..20 {
        solo.submit(request(seq, prompt(seq, 4), 2));
    }
    let mut order = Vec::new();
    while let Some(batch) = solo.finish_step() {
        for entry in batch.entries.iter().filter(|entry| entry.start == 0) {
            order.push(entry.seq.0);
        }
    }
    assert_eq!(order, (1..20).collect::<Vec<_>>());
}

#[test]
fn a_bad_configuration_is_named() {
    let bad = Config { step_tokens: 3, ..config(8, 4) };
    assert_eq!(bad.validate().unwrap_err().to_string(), "step_tokens (3) must be at least max_running (4)");
    assert!(Config { max_receiving: 0, ..config(8, 4) }.validate().is_err());
    assert!(Config { num_blocks: 9, ..config(8, 4) }.validate().is_err());
    assert!(Config { watermark_blocks: 8, ..config(8, 4) }.validate().is_err());
    assert!(config(8, 4).validate().is_ok());
}

#[test]
fn tokens_are_reused_after_a_preemption_not_said_twice() {
    let mut solo = Solo::new(Config { prefix_cache: false, ..config(6, 4) });
    let requests: Vec<_> = (1..=3).map(|seq| request(seq, prompt(seq, 5), 10)).collect();
    for request in &requests {
        solo.submit(request.clone());
    }
    solo.run_to_end();
    for request in &requests {
        let said: Vec<TokenId> = solo.tokens(request.seq.0).to_vec();
        assert_eq!(said, oracle(request, 100));
    }
    assert!(solo.core.stats().counters.preemptions > 0);
}
