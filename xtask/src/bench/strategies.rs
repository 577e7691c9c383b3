//! `cargo x bench strategies`: the central experiment. The same requests for four systems that differ in one thing: who sets up
//! the transfer of their KV, and when.

mod measured;
mod plan;
mod tables;
mod verdict;

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::ValueEnum;
use xshell::{Shell, cmd};

use self::measured::Measured;
use self::plan::{Load, Plan};
use super::conditions::{Conditions, Load as MachineLoad, Meanwhile};
use crate::built::{self, Profile};
use crate::nixl;

#[derive(clap::Args)]
pub struct Args {
    /// What moves the KV
    #[arg(long, value_enum)]
    transport: TransportName,
    /// How KV lies in memory. Block-major is Baton's own, with few descriptors: then it hardly matters who sets them up
    #[arg(long, value_enum, default_value_t = LayoutName::LayerMajor)]
    kv_layout: LayoutName,
    /// Every system is started and measured once in each round
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: u32,
    /// One round of fewer requests: shows that it works, not what is so
    #[arg(long)]
    quick: bool,
    /// Requests per second under load [default: so that push keeps its slots busy for nine tenths of the time]
    #[arg(long, value_name = "RATE")]
    rate: Option<f64>,
    /// Bytes of a descriptor, layer-major: a block of 16 tokens, K or V of one of 80 layers
    #[arg(long, value_name = "BYTES", default_value_t = 512)]
    descriptor_bytes: u32,
    /// Directory for the results, which must not have any yet [default: strategies-TRANSPORT in target]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TransportName {
    Shm,
    Tcp,
    Nixl,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LayoutName {
    LayerMajor,
    BlockMajor,
}

impl TransportName {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Nixl => "nixl",
        }
    }
}

impl LayoutName {
    const fn as_str(self) -> &'static str {
        match self {
            Self::LayerMajor => "layer-major",
            Self::BlockMajor => "block-major",
        }
    }
}

pub fn run(sh: &Shell, args: &Args) -> anyhow::Result<()> {
    let conditions = Conditions::read(sh)?;
    // Cargo is out of the way while it is measured.
    let baton = built::binary(sh, Profile::Release, "baton", &[])?;
    let mut environment = Vec::new();
    if args.transport == TransportName::Nixl {
        let prefix = nixl::find(sh)?.context("there is no NIXL here, and it could not be fetched")?;
        environment.push(("NIXL_PREFIX", prefix.into_os_string()));
        // Between processes of a host by shared memory, and its talk over loopback.
        environment.push(("UCX_TLS", "all".into()));
        environment.push(("UCX_NET_DEVICES", "lo".into()));
    }
    let plan = Plan::new(args);
    let out = out(sh, args)?;
    print!("{conditions}");
    println!("{plan}");
    let before = MachineLoad::read()?;
    let mut measured = Vec::new();
    for load in Load::ALL {
        let dir = out.join(load.as_str());
        let mut command = cmd!(sh, "{baton} bench compare --out {dir}").args(plan.compare_args(load));
        for (name, value) in &environment {
            command = command.env(name, value);
        }
        command.quiet().run()?;
        measured.push((load, Measured::read(&dir)?));
    }
    println!("\n{}", Meanwhile { before, after: MachineLoad::read()? });
    for (load, systems) in &measured {
        println!("{}", tables::table(&plan, *load, systems));
    }
    let [loaded, light] = Load::ALL.map(|load| {
        let found = measured.iter().find(|(measured, _)| *measured == load);
        found.map_or(&[][..], |(_, systems)| systems.as_slice())
    });
    print!("{}", verdict::verdicts(&plan, loaded, light));
    let page = out.join("report.html");
    let dirs: Vec<PathBuf> = Load::ALL.map(|load| out.join(load.as_str())).into();
    cmd!(sh, "{baton} report {dirs...} --output {page}").quiet().ignore_stdout().run()?;
    println!("\nresults in {}", out.display());
    Ok(())
}

/// In the target directory, unless it is said; results are never written over.
fn out(sh: &Shell, args: &Args) -> anyhow::Result<PathBuf> {
    if let Some(out) = &args.out {
        if out.exists() {
            bail!("{} is there already", out.display());
        }
        return Ok(out.clone());
    }
    let target = built::target_directory(sh)?;
    let name = |number: u32| target.join(format!("strategies-{}-{number}", args.transport.as_str()));
    (1..).map(name).find(|dir| !dir.exists()).context("no name is left")
}
