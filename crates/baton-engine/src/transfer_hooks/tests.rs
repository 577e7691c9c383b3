//! The hooks against a scripted protocol: every event that may come, with nobody at the other end.

use std::time::Duration;

use baton_proto::{Compat, PeerAddress};
use baton_types::{CacheSalt, EngineId, EngineName, KvDtype, PoolShape, SamplingParams};

use super::*;
use crate::action::{Input, KvLimit, Output, Request};
use crate::batch::{Batch, StepResult};
use crate::config::Config;

const X: TransferId = TransferId(7);
const FIRST: TokenId = TokenId(100);
const PREFILLED: Prefilled = Prefilled { first_token: FIRST, cached_tokens: 8 };

struct Script {
    engine: Engine,
    outputs: Vec<Output>,
}

fn name(text: &str) -> EngineId {
    EngineId::new(EngineName::new(text).unwrap(), 1)
}

/// Blocks of 4 tokens, steps of 8.
fn script(num_blocks: u32, change: impl FnOnce(&mut Config)) -> Script {
    let shape = PoolShape::whole_blocks(num_blocks, KvDtype::F32);
    let proto = baton_proto::Config::new(name("here"), Compat([0; 16]), Vec::new(), shape);
    let mut config = Config { max_running: 4, step_tokens: 8, ..Config::new(num_blocks, 4, 1000, proto) };
    change(&mut config);
    Script { engine: Engine::new(config), outputs: Vec::new() }
}

fn ask(seq: u64, len: u32, hand_off: HandOff) -> Request {
    Request {
        seq: SeqId(seq),
        prompt: (0..len).map(|i| TokenId(seq as u32 * 1000 + i)).collect(),
        salt: CacheSalt::default(),
        max_tokens: 50,
        min_tokens: 0,
        stop_tokens: Vec::new(),
        sampling: SamplingParams::GREEDY,
        hand_off,
        reuse: None,
        retention: None,
    }
}

fn to_peer(mode: TransferMode) -> HandOff {
    HandOff::ToPeer { transfer: X, mode }
}

fn from_peer(mode: TransferMode) -> HandOff {
    let peer = PeerAddress { engine: name("there"), host: "there".into(), port: 1 };
    HandOff::FromPeer { transfer: X, mode, peer }
}

impl Script {
    fn input(&mut self, input: Input) -> Vec<Command> {
        self.engine.handle(Time::ZERO, input);
        self.settle()
    }

    fn event(&mut self, event: Event) -> Vec<Command> {
        self.engine.handle_event(Time::ZERO, event);
        self.settle()
    }

    fn settle(&mut self) -> Vec<Command> {
        self.engine.schedule(Time::ZERO);
        self.engine.check();
        self.outputs.extend(self.engine.outputs.drain(..));
        self.outputs.extend(self.engine.answers.drain(..));
        self.engine.commands.drain(..).collect()
    }

    fn submit(&mut self, request: Request) -> Vec<Command> {
        self.input(Input::Submit(request))
    }

    /// The step that was asked for last.
    fn batch(&self) -> &Batch {
        let step = |output: &Output| matches!(output, Output::Step(_));
        match self.outputs.iter().rev().find(|output| step(output)) {
            Some(Output::Step(batch)) => batch,
            _ => panic!("no step was asked for"),
        }
    }

    fn step(&mut self) -> Vec<Command> {
        let batch = self.batch();
        let sampling = batch.entries.iter().filter(|entry| entry.sample.is_some());
        let sampled = sampling.map(|entry| (entry.seq, TokenId(entry.end() as u32))).collect();
        let result = StepResult { step: batch.step, sampled };
        self.input(Input::Stepped(result))
    }

    /// `(sequence, start, tokens)` of the step that was asked for last.
    fn shape(&self) -> Vec<(u64, u32, usize)> {
        self.batch().entries.iter().map(|entry| (entry.seq.0, entry.start, entry.tokens.len())).collect()
    }

    fn ended(&self, seq: u64) -> Option<FinishReason> {
        self.outputs.iter().find_map(|output| match output {
            Output::Finished { seq: id, reason, .. } if id.0 == seq => Some(*reason),
            _ => None,
        })
    }

    /// A destination that was admitted: the units that it wants written.
    fn receiving(&mut self, len: u32, mode: TransferMode) -> Vec<UnitId> {
        match &self.submit(ask(1, len, from_peer(mode)))[..] {
            [Command::Expect { .. }, Command::Fetch { units, .. } | Command::Receive { units, .. }] => {
                units.clone()
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_destination_expects_at_once_and_asks_when_it_has_blocks() {
    for mode in [TransferMode::Pull, TransferMode::EarlyPull, TransferMode::Push] {
        let mut script = script(8, |_| ());
        let commands = script.submit(ask(1, 10, from_peer(mode)));
        assert!(matches!(&commands[0], Command::Expect { transfer: X, .. }));
        match &commands[1] {
            Command::Fetch { chain, first_unit: 0, units, held, .. } if mode != TransferMode::Push => {
                assert_eq!((chain.len(), units.len()), (3, 3));
                assert_eq!(*held == Held::Early, mode == TransferMode::EarlyPull);
            }
            Command::Receive { chain, first_unit: 0, units, .. } if mode == TransferMode::Push => {
                assert_eq!((chain.len(), units.len()), (3, 3));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(script.engine.stats().blocks.receiving, 3);
    }
}

#[test]
fn receiving_sequences_count_against_their_own_limit_and_the_pool() {
    let mut script = script(8, |config| config.max_receiving = 1);
    script.receiving(10, TransferMode::Pull);
    let second = HandOff::FromPeer {
        transfer: TransferId(8),
        mode: TransferMode::Pull,
        peer: PeerAddress { engine: name("there"), host: "there".into(), port: 1 },
    };
    assert!(matches!(&script.submit(ask(2, 4, second))[..], [Command::Expect { .. }]));
    // One that computes here does not wait for those that wait for a peer, but finds only five blocks.
    script.submit(ask(3, 20, HandOff::None));
    script.submit(ask(4, 4, HandOff::None));
    assert_eq!(script.shape(), [(3, 0, 8)]);
    let commands = script.event(Event::Failed { transfer: X, why: Ending::Declined, quarantined: false });
    // The oldest of all is the one that lost its KV: what is free is its own.
    assert_eq!(commands, []);
    assert!(script.engine.queues.running.contains(&SeqId(1)));
    assert!(script.engine.queues.expecting.contains(&SeqId(2)));
    assert!(script.engine.queues.waiting.contains(&SeqId(4)));
}

#[test]
fn kv_that_is_ready_is_not_computed_again() {
    let mut script = script(8, |_| ());
    script.receiving(10, TransferMode::Push);
    script.event(Event::Ready { transfer: X, covered: 3, prefilled: Some(PREFILLED) });
    assert_eq!(script.shape(), [(1, 10, 1)]);
    // The step first: it does not wait for whoever listens.
    assert!(matches!(script.outputs[..], [Output::Step(_), Output::Token { seq: SeqId(1), token: FIRST }]));
    assert_eq!(script.batch().entries[0].tokens, [FIRST]);
}

#[test]
fn what_a_pull_does_not_cover_is_computed_here() {
    let mut script = script(8, |_| ());
    script.receiving(10, TransferMode::Pull);
    script.event(Event::Ready { transfer: X, covered: 1, prefilled: None });
    assert_eq!(script.shape(), [(1, 4, 6)]);
    assert_eq!(script.engine.counters.received_tokens, 4);
}

#[test]
fn without_the_first_token_the_last_token_of_the_prompt_is_computed() {
    for len in [8, 10] {
        let mut script = script(8, |_| ());
        script.receiving(len, TransferMode::Push);
        script.event(Event::Ready { transfer: X, covered: len.div_ceil(4) as usize, prefilled: None });
        assert_eq!(script.shape(), [(1, len - 1, 1)]);
    }
}

#[test]
fn quarantined_blocks_are_nobodys_until_they_are_released() {
    let mut script = script(6, |_| ());
    script.receiving(10, TransferMode::Push);
    script.event(Event::Failed { transfer: X, why: Ending::PeerLost, quarantined: true });
    // It is computed here, in other blocks.
    assert_eq!(script.shape(), [(1, 0, 8)]);
    assert_eq!((script.engine.stats().blocks.quarantined, script.engine.stats().blocks.free), (3, 0));
    script.event(Event::Released { transfer: X, why: Ending::PeerLost });
    assert_eq!((script.engine.stats().blocks.quarantined, script.engine.stats().blocks.free), (0, 3));
    assert!(script.engine.transfers.is_empty());
}

#[test]
fn an_aborted_destination_leaves_its_blocks_to_the_protocol() {
    for quarantined in [false, true] {
        let mut script = script(6, |_| ());
        script.receiving(10, TransferMode::Push);
        let commands = script.input(Input::Abort { seq: SeqId(1) });
        assert_eq!(commands, [Command::Cancel { transfer: X }]);
        assert_eq!(script.ended(1), Some(FinishReason::Aborted));
        assert_eq!(script.engine.stats().blocks.quarantined, 3);
        script.event(Event::Failed { transfer: X, why: Ending::Cancelled, quarantined });
        assert_eq!(script.engine.stats().blocks.free, if quarantined { 3 } else { 6 });
        if quarantined {
            script.event(Event::Released { transfer: X, why: Ending::Cancelled });
        }
        assert_eq!(script.engine.stats().blocks.free, 6);
        assert!(script.engine.is_idle());
    }
}

#[test]
fn overdue_kv_is_given_up() {
    let mut script = script(8, |config| config.on_lost_kv = OnLostKv::Fail);
    script.receiving(10, TransferMode::Push);
    let (at, seq) = script.engine.next_overdue().unwrap();
    assert_eq!((at, seq), (Time::ZERO + Duration::from_secs(120), SeqId(1)));
    script.engine.give_up_kv(seq);
    assert_eq!(script.settle(), [Command::Cancel { transfer: X }]);
    script.event(Event::Failed { transfer: X, why: Ending::Cancelled, quarantined: false });
    assert_eq!(script.ended(1), Some(FinishReason::Failed(SeqFailure::Kv(Ending::Expired))));
    assert_eq!(script.engine.next_overdue(), None);
}

fn progress(commands: &[Command]) -> Vec<usize> {
    let units = commands.iter().filter_map(|command| match command {
        Command::Progress { units, .. } => Some(units.len()),
        _ => None,
    });
    units.collect()
}

#[test]
fn a_pull_is_offered_at_once_and_complete_when_its_token_is_there() {
    let mut script = script(8, |_| ());
    let commands = script.submit(ask(1, 10, to_peer(TransferMode::Pull)));
    assert!(matches!(&commands[..], [Command::Offer { transfer: X, chain }] if chain.len() == 3));
    assert_eq!(progress(&script.step()), [2]);
    let last = script.step();
    assert_eq!(progress(&last), [1]);
    let prefilled = Prefilled { first_token: TokenId(10), cached_tokens: 0 };
    assert_eq!(last.last(), Some(&Command::Complete { transfer: X, prefilled }));
    assert_eq!(script.ended(1), Some(FinishReason::Length));
    assert_eq!(script.engine.stats().blocks.leased, 3);
    script.event(Event::Released { transfer: X, why: Ending::Done });
    assert_eq!(script.engine.stats().blocks.free, 8);
}

/// Blocks of 4 tokens, two units each: the last block is named only as far as the chain reaches.
#[test]
fn units_are_parts_of_blocks() {
    let small_units = |config: &mut Config| {
        config.proto.shape = PoolShape { units: 16, block_units: 2, ranks: 1, dtype: KvDtype::F32 };
    };
    let mut source = script(8, small_units);
    source.submit(ask(1, 10, to_peer(TransferMode::Push)));
    assert_eq!(progress(&source.step()), [4], "two blocks of two units");
    assert_eq!(progress(&source.step()), [1], "two of four tokens");
    let mut destination = script(8, small_units);
    let units = destination.receiving(10, TransferMode::Push);
    assert_eq!(units.len(), 5);
    assert_eq!(units.iter().map(|unit| unit.0 % 2).collect::<Vec<_>>(), [0, 1, 0, 1, 0]);
    destination.event(Event::Ready { transfer: X, covered: 3, prefilled: None });
    assert_eq!(destination.shape(), [(1, 6, 4)]);
}

/// A destination of three blocks is being received, and a request of three more comes.
fn refused_beside(hand_off: HandOff, change: impl FnOnce(&mut Config)) -> KvLimit {
    let mut script = script(8, change);
    script.receiving(12, TransferMode::Push);
    let commands = script.submit(ask(2, 12, hand_off));
    assert!(matches!(&commands[..], [_, Command::Cancel { .. }]), "the peer is told: {commands:?}");
    let refusal = script.outputs.iter().find_map(|output| match output {
        Output::Refused { seq: SeqId(2), why: Refusal::KvInFlight(limit) } => Some(*limit),
        _ => None,
    });
    let counters = script.engine.counters;
    let counted = [counters.refused_receiving, counters.refused_inbound, counters.refused_pool];
    assert_eq!((counters.refused, counted.iter().sum::<u64>()), (1, 1));
    script.submit(ask(3, 12, HandOff::None));
    assert_eq!(script.ended(3), None, "what computes here is not concerned");
    refusal.expect("refused")
}

#[test]
fn kv_in_flight_is_refused_by_the_limit_that_it_would_break() {
    let transfer = TransferId(8);
    let push = || {
        let peer = PeerAddress { engine: name("there"), host: "there".into(), port: 1 };
        HandOff::FromPeer { transfer, mode: TransferMode::Push, peer }
    };
    let limit = refused_beside(push(), |config| config.max_inbound_blocks = 5);
    assert_eq!(limit, KvLimit::Inbound { blocks: 6, limit: 5 });
    let limit = refused_beside(push(), |config| config.max_receiving = 1);
    assert_eq!(limit, KvLimit::Receiving { sequences: 2, limit: 1 });
    let limit = refused_beside(push(), |config| config.watermark_blocks = 3);
    assert_eq!(limit, KvLimit::Pool { blocks: 6, limit: 5 });
    let source = HandOff::ToPeer { transfer, mode: TransferMode::Pull };
    let limit = refused_beside(source, |config| config.watermark_blocks = 3);
    assert_eq!(limit, KvLimit::Pool { blocks: 6, limit: 5 });
}

#[test]
fn a_push_names_each_block_once_as_soon_as_it_is_complete() {
    let mut script = script(16, |_| ());
    // Two blocks are in the cache already.
    script.submit(Request { max_tokens: 1, ..ask(1, 8, HandOff::None) });
    script.step();
    let mut request = ask(2, 22, to_peer(TransferMode::Push));
    request.prompt[..8].copy_from_slice(&ask(1, 8, HandOff::None).prompt);
    let commands = script.submit(request);
    assert!(matches!(&commands[0], Command::Send { chain, .. } if chain.len() == 6));
    assert_eq!(progress(&commands), [2]);
    assert_eq!(progress(&script.step()), [2], "8..16");
    let last = script.step();
    // Block 4 when its tokens are computed, block 5, which is partial, because there is no more to come.
    assert_eq!(progress(&last), [1, 1]);
    assert_eq!(
        last.last(),
        Some(&Command::Complete {
            transfer: X,
            prefilled: Prefilled { first_token: TokenId(22), cached_tokens: 8 }
        })
    );
    assert_eq!(script.engine.stats().blocks.leased, 6);
}

#[test]
fn a_source_is_not_preempted() {
    for mode in [TransferMode::Pull, TransferMode::Push] {
        let mut script = script(8, |_| ());
        // One that decodes and soon lacks a block, and a source that has all the others.
        script.submit(ask(1, 5, HandOff::None));
        script.step();
        script.submit(ask(2, 24, to_peer(mode)));
        let mut commands = Vec::new();
        while script.ended(2).is_none() {
            commands.extend(script.step());
        }
        assert_eq!(script.engine.counters.preemptions, 1);
        assert!(script.engine.queues.waiting.contains(&SeqId(1)));
        assert_eq!(script.engine.stats().blocks.leased, 6);
        script.event(Event::Released { transfer: X, why: Ending::Done });
        // The first goes on where it was: its blocks were free, but not handed out.
        assert_eq!(script.shape(), [(1, 8, 1)]);
    }
}

#[test]
fn a_push_whose_receiver_is_gone_ends_and_frees_its_blocks() {
    let mut script = script(8, |_| ());
    script.submit(ask(1, 22, to_peer(TransferMode::Push)));
    script.step();
    assert_eq!(script.event(Event::Released { transfer: X, why: Ending::PeerAborted }), []);
    let gone = FinishReason::Failed(SeqFailure::Receiver(Ending::PeerAborted));
    assert_eq!(script.ended(1), Some(gone));
    assert_eq!(script.engine.stats().blocks.active, 6, "I3: the runner is still at it");
    script.step();
    assert_eq!(script.engine.stats().blocks.free, 8);
    assert!(script.engine.is_idle());
}

#[test]
fn who_is_refused_tells_the_other_side() {
    let mut script = script(8, |_| ());
    script.input(Input::Drain);
    let commands = script.submit(ask(1, 10, from_peer(TransferMode::Pull)));
    assert!(matches!(&commands[..], [Command::Expect { .. }, Command::Cancel { transfer: X }]));
    script.event(Event::Failed { transfer: X, why: Ending::Cancelled, quarantined: false });
    let commands = script.submit(ask(2, 10, to_peer(TransferMode::Push)));
    assert!(matches!(&commands[..], [Command::Send { .. }, Command::Cancel { transfer: X }]));
    script.event(Event::Released { transfer: X, why: Ending::Cancelled });
    assert!(script.engine.is_idle());
}

#[test]
#[should_panic(expected = "I4")]
fn a_second_ending_is_a_bug() {
    let mut script = script(8, |_| ());
    script.receiving(10, TransferMode::Pull);
    script.event(Event::Failed { transfer: X, why: Ending::Declined, quarantined: false });
    script.event(Event::Failed { transfer: X, why: Ending::Declined, quarantined: false });
}

/// One such token in a step would fail the step, and with it everybody in it.
#[test]
fn a_first_token_outside_the_vocabulary_is_computed_again() {
    let mut script = script(8, |config| config.vocab = FIRST.0);
    script.receiving(10, TransferMode::Push);
    script.event(Event::Ready { transfer: X, covered: 3, prefilled: Some(PREFILLED) });
    assert_eq!(script.shape(), [(1, 9, 1)], "the last token of the prompt");
    assert!(!script.outputs.iter().any(|output| matches!(output, Output::Token { .. })));
}
