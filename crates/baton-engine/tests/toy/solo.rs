//! One engine with the toy model, alone: what was said to each client, and every step that was asked for.

use std::collections::BTreeMap;

use baton_engine::{
    Batch, Config, EngineCore, FinishReason, Handle, Input, ModelRunner, Output, Refusal, Request, Usage,
};
use baton_proto::Compat;
use baton_types::{EngineId, EngineName, KvDtype, PoolShape, SeqId, Time, TokenId};

use crate::toy::ToyRunner;

#[derive(Debug, Default, Clone, PartialEq)]
pub struct Answer {
    pub tokens: Vec<TokenId>,
    pub end: Option<End>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum End {
    Finished(FinishReason, Usage, Option<Handle>),
    Refused(Refusal),
}

#[derive(Debug)]
pub struct Solo {
    pub core: EngineCore,
    pub runner: ToyRunner,
    pub answers: BTreeMap<SeqId, Answer>,
    /// Asked for and not yet computed.
    pub step: Option<Batch>,
    pub proto: Vec<baton_proto::Output>,
}

pub fn engine_id(name: &str) -> EngineId {
    EngineId::new(EngineName::new(name).unwrap(), 1)
}

pub fn config(num_blocks: u32, block_tokens: u32) -> Config {
    let shape = PoolShape::whole_blocks(num_blocks, KvDtype::F32);
    let proto = baton_proto::Config::new(engine_id("solo"), Compat([0; 16]), Vec::new(), shape);
    let mut config = Config::new(num_blocks, block_tokens, 1 << 20, proto);
    config.max_running = 4;
    config.step_tokens = 16;
    config
}

impl Solo {
    pub fn new(config: Config) -> Self {
        let runner = ToyRunner::new(config.num_blocks, config.block_tokens as usize);
        let core = EngineCore::new(config);
        Self { core, runner, answers: BTreeMap::new(), step: None, proto: Vec::new() }
    }

    pub fn input(&mut self, input: Input) {
        self.core.handle_input(Time::ZERO, input);
        while let Some(output) = self.core.poll_output() {
            self.take(output);
        }
        self.core.check();
    }

    fn take(&mut self, output: Output) {
        match output {
            Output::Step(batch) => {
                assert!(self.step.is_none(), "one step at a time");
                self.step = Some(batch);
            }
            Output::Token { seq, token } => self.open(seq).tokens.push(token),
            Output::Finished { seq, reason, usage, handle, .. } => {
                let answer = self.open(seq);
                assert_eq!(usage.completion_tokens as usize, answer.tokens.len());
                answer.end = Some(End::Finished(reason, usage, handle));
            }
            Output::Refused { seq, why } => self.open(seq).end = Some(End::Refused(why)),
            Output::Proto(output) => self.proto.push(output),
        }
    }

    /// Nothing about a sequence follows its end.
    fn open(&mut self, seq: SeqId) -> &mut Answer {
        let answer = self.answers.entry(seq).or_default();
        assert_eq!(answer.end, None, "{seq:?} is over");
        answer
    }

    pub fn submit(&mut self, request: Request) {
        self.input(Input::Submit(request));
    }

    /// Computes the step that was asked for; what it was.
    pub fn finish_step(&mut self) -> Option<Batch> {
        let batch = self.step.take()?;
        let result = self.runner.run(&batch).unwrap();
        self.input(Input::Stepped(result));
        Some(batch)
    }

    pub fn run_to_end(&mut self) {
        for _ in 0..100_000 {
            if self.finish_step().is_none() {
                return;
            }
        }
        panic!("I8: never comes to an end");
    }

    pub fn tokens(&self, seq: u64) -> &[TokenId] {
        &self.answers[&SeqId(seq)].tokens
    }

    pub fn reason(&self, seq: u64) -> FinishReason {
        match self.answers[&SeqId(seq)].end {
            Some(End::Finished(reason, ..)) => reason,
            ref other => panic!("s{seq} ended with {other:?}"),
        }
    }

    pub fn usage(&self, seq: u64) -> Usage {
        match self.answers[&SeqId(seq)].end {
            Some(End::Finished(_, usage, _)) => usage,
            ref other => panic!("s{seq} ended with {other:?}"),
        }
    }

    pub fn refusal(&self, seq: u64) -> Refusal {
        match self.answers[&SeqId(seq)].end {
            Some(End::Refused(why)) => why,
            ref other => panic!("s{seq} ended with {other:?}"),
        }
    }
}
