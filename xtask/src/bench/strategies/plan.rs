//! What is started, and what is sent: the groups of the published measurements, on this machine.

use std::fmt;

use super::{Args, LayoutName, TransportName};

/// Sequences in one step of decode.
pub const SLOTS: f64 = 8.0;
pub const OUTPUT_TOKENS: u32 = 128;
/// 118 blocks.
pub const PROMPT_TOKENS: u32 = 1_888;
/// 8 blocks.
pub const SHORT_PROMPT_TOKENS: u32 = 128;
pub const BLOCK_TOKENS: u32 = 16;
pub const LAYERS: u32 = 80;

/// Share of the time for which push's slots are busy, in the published measurements.
const RHO: f64 = 0.90;
/// Requests per second where hardly any two meet.
const LIGHT_RATE: f64 = 2.0;
/// Bytes of an element, F32.
const ELEMENT_BYTES: u32 = 4;

/// Of prompts of 16k tokens, as published, with prompts of [`PROMPT_TOKENS`].
const PROFILE: &str = "qwen3-32b-tp8-long";
const STEP_MS: f64 = 5.117;
const STEP_MS_PER_CONTEXT_TOKEN: f64 = 86.78e-6;

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    Heavy,
    /// Light, and short prompts.
    Light,
}

impl Load {
    pub const ALL: [Self; 2] = [Self::Heavy, Self::Light];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Heavy => "heavy",
            Self::Light => "light",
        }
    }

    pub const fn prompt_tokens(self) -> u32 {
        match self {
            Self::Heavy => PROMPT_TOKENS,
            Self::Light => SHORT_PROMPT_TOKENS,
        }
    }
}

/// A system, and where it differs.
pub struct System {
    pub name: &'static str,
    pub strategy: &'static str,
    pub flag: &'static str,
}

pub const SYSTEMS: [System; 4] = [
    System { name: "pull-inline", strategy: "pull", flag: "--inline-post" },
    System { name: "pull", strategy: "pull", flag: "" },
    System { name: "push-end", strategy: "push", flag: "--push-at-end" },
    System { name: "push", strategy: "push", flag: "" },
];

pub struct Plan {
    transport: TransportName,
    layout: LayoutName,
    rounds: u32,
    /// In a round, under load.
    requests: u32,
    pub rate: f64,
    head_dim: u32,
    quick: bool,
}

impl Plan {
    pub fn new(args: &Args) -> Self {
        let bytes = args.descriptor_bytes;
        // One head; a multiple of four elements.
        let head_dim = (bytes / (BLOCK_TOKENS * ELEMENT_BYTES)).next_multiple_of(4).max(4);
        Self {
            transport: args.transport,
            layout: args.kv_layout,
            rounds: if args.quick { 1 } else { args.rounds },
            requests: if args.quick { 30 } else { 100 },
            rate: args.rate.unwrap_or(RHO * SLOTS / (f64::from(OUTPUT_TOKENS) * step_ms() / 1e3)),
            head_dim,
            quick: args.quick,
        }
    }

    /// In a round.
    fn requests(&self, load: Load) -> u32 {
        match load {
            Load::Heavy => self.requests,
            // They hardly differ.
            Load::Light => self.requests / 2,
        }
    }

    pub fn rate(&self, load: Load) -> f64 {
        match load {
            Load::Heavy => self.rate,
            Load::Light => LIGHT_RATE,
        }
    }

    fn descriptor_bytes(&self) -> u32 {
        let of_layer = BLOCK_TOKENS * self.head_dim * ELEMENT_BYTES;
        match self.layout {
            LayoutName::LayerMajor => of_layer,
            LayoutName::BlockMajor => 2 * LAYERS * of_layer,
        }
    }

    pub fn descriptors(&self, load: Load) -> u32 {
        let blocks = load.prompt_tokens() / BLOCK_TOKENS;
        match self.layout {
            LayoutName::LayerMajor => 2 * LAYERS * blocks,
            LayoutName::BlockMajor => blocks,
        }
    }

    fn request_bytes(&self, load: Load) -> u64 {
        u64::from(self.descriptors(load)) * u64::from(self.descriptor_bytes())
    }

    /// Room for what runs and for as much that waits.
    fn kv_memory(&self) -> u64 {
        let answer = self.request_bytes(Load::Heavy) * u64::from(OUTPUT_TOKENS) / u64::from(PROMPT_TOKENS);
        (self.request_bytes(Load::Heavy) + answer) * 2 * SLOTS as u64
    }

    /// Behind `baton bench compare`.
    pub fn compare_args(&self, load: Load) -> Vec<String> {
        let systems = SYSTEMS.iter().map(|system| {
            format!("--system={}=--strategy={} {}", system.name, system.strategy, system.flag)
                .trim_end()
                .to_owned()
        });
        let mut args: Vec<String> = systems.collect();
        args.extend([
            format!("--input={}", load.prompt_tokens()),
            format!("--output={OUTPUT_TOKENS}"),
            format!("--rate={:.3}", self.rate(load)),
            "--arrivals=poisson".to_owned(),
            format!("--requests={}", self.requests(load)),
            format!("--rounds={}", self.rounds),
            format!(
                "--label=strategies over {}, {}, {}",
                self.transport.as_str(),
                self.layout.as_str(),
                load.as_str()
            ),
            "--".to_owned(),
        ]);
        args.extend(self.up_args());
        args
    }

    /// What all systems share.
    fn up_args(&self) -> Vec<String> {
        let mut args = vec![
            "--model=emulated".to_owned(),
            format!("--emulated-profile={PROFILE}"),
            format!("--emulated-layers={LAYERS}"),
            "--emulated-heads=1".to_owned(),
            format!("--emulated-head-dim={}", self.head_dim),
            // All of the KV is read about once within an answer; at each step it would take longer than the step.
            format!("--emulated-reads-every={OUTPUT_TOKENS}"),
            format!("--block-tokens={BLOCK_TOKENS}"),
            format!("--kv-layout={}", self.layout.as_str()),
            format!("--kv-memory={}", self.kv_memory()),
            format!("--max-num-seqs={SLOTS}"),
            "--hold-first-token".to_owned(),
            "--no-prefix-cache".to_owned(),
            format!("--transport={}", self.transport.as_str()),
        ];
        if self.transport == TransportName::Nixl {
            // Asked reads are set up by the other side: then there is nothing to post in decode's loop.
            args.push("--nixl-reads=native".to_owned());
        }
        args
    }
}

/// A step of decode with all slots full, half-way through their answers.
pub fn step_ms() -> f64 {
    let context = SLOTS * f64::from(PROMPT_TOKENS + OUTPUT_TOKENS / 2);
    STEP_MS + STEP_MS_PER_CONTEXT_TOKEN * context
}

/// Share of the time for which the slots are busy: above 1 the queue grows.
pub fn rho(rate: f64, tpot_ms: f64) -> f64 {
    rate * f64::from(OUTPUT_TOKENS) * tpot_ms / 1e3 / SLOTS
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |load| self.request_bytes(load) as f64 / f64::from(1 << 20);
        writeln!(
            f,
            "systems     one prefill and one decode engine, and a router; emulated, {PROFILE}: a step of {:.2} ms for {SLOTS} sequences",
            step_ms()
        )?;
        writeln!(
            f,
            "KV          {}, {LAYERS} layers, blocks of {BLOCK_TOKENS} tokens: descriptors of {} bytes; prefix caches off",
            self.layout.as_str(),
            self.descriptor_bytes()
        )?;
        for load in Load::ALL {
            writeln!(
                f,
                "{:<12}{:.2} requests per second (Poisson), {} tokens in ({} descriptors, {:.1} MiB), {OUTPUT_TOKENS} out, \
                 {} requests in each of {} rounds",
                load.as_str(),
                self.rate(load),
                load.prompt_tokens(),
                self.descriptors(load),
                mib(load),
                self.requests(load),
                self.rounds
            )?;
        }
        if self.quick {
            writeln!(f, "            --quick: too few to show more than that it works")?;
        }
        write!(f, "transport   {}", self.transport.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub fn plan(transport: TransportName, kv_layout: LayoutName) -> Plan {
        let args = Args {
            transport,
            kv_layout,
            rounds: 3,
            quick: false,
            rate: None,
            descriptor_bytes: 512,
            out: None,
        };
        Plan::new(&args)
    }

    #[test]
    fn the_groups_are_those_of_the_published_measurements() {
        let layers = plan(TransportName::Nixl, LayoutName::LayerMajor);
        assert_eq!(layers.descriptors(Load::Heavy), 18_880);
        assert!((rho(layers.rate, step_ms()) - 0.90).abs() < 1e-9);
        let blocks = plan(TransportName::Nixl, LayoutName::BlockMajor);
        assert_eq!(blocks.descriptors(Load::Heavy), 118);
        assert_eq!(layers.request_bytes(Load::Heavy), blocks.request_bytes(Load::Heavy));
        assert_eq!(layers.request_bytes(Load::Heavy), 18_880 * 512);
    }

    #[test]
    fn systems_differ_in_one_flag() {
        let args = plan(TransportName::Shm, LayoutName::LayerMajor).compare_args(Load::Heavy);
        let systems: Vec<&str> = args.iter().filter_map(|arg| arg.strip_prefix("--system=")).collect();
        assert_eq!(
            systems,
            [
                "pull-inline=--strategy=pull --inline-post",
                "pull=--strategy=pull",
                "push-end=--strategy=push --push-at-end",
                "push=--strategy=push"
            ]
        );
    }
}
