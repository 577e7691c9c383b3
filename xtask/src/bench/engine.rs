//! `cargo x bench engine`: the CPU runner and llama.cpp on the same model, threads and minutes.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::Context;
use xshell::Shell;

use super::conditions::{Conditions, Load, Meanwhile};
use super::cpu_runner;
use super::llama_cpp::LlamaCpp;
use super::speed::Speed;
use super::table::{Row, Side, table};

#[derive(clap::Args)]
pub struct Args {
    /// Threads of both sides [default: all cores]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Every contestant is measured once in each round
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(5..))]
    rounds: u32,
    /// A llama.cpp that is built already: the directory that holds llama-bench and llama-quantize
    #[arg(long, value_name = "DIR")]
    llama_dir: Option<PathBuf>,
}

pub fn run(sh: &Shell, args: &Args) -> anyhow::Result<()> {
    let threads = args.threads.map_or_else(|| thread::available_parallelism().map(usize::from), Ok)?;
    let cache = cache_directory()?;
    let conditions = Conditions::read(sh)?;
    let llama_cpp = match &args.llama_dir {
        Some(directory) => LlamaCpp::at(sh, directory)?,
        None => LlamaCpp::build(sh, &cache)?,
    };
    let executable = cpu_runner::build(sh)?;
    // Not counted: it says where the model is, after fetching it if need be.
    let first = cpu_runner::measure(sh, &executable, Path::new("smollm2"), threads, "exact")?;
    let model = &first.model;
    let formats = llama_cpp.formats(sh, model, &cache.join("models"))?;

    let baton = |precision| {
        let executable = &executable;
        let measure = move || Ok(cpu_runner::measure(sh, executable, model, threads, precision)?.speed());
        Contestant::new(Side::Baton, precision, measure)
    };
    let llama_cpp_as = |(format, file): &(String, PathBuf)| {
        let (llama_cpp, file) = (&llama_cpp, file.clone());
        Contestant::new(Side::LlamaCpp, format, move || llama_cpp.measure(sh, &file, threads))
    };
    let contestants = ["exact", "int8"].map(baton).into_iter();
    let mut contestants: Vec<_> = contestants.chain(formats.iter().map(llama_cpp_as)).collect();
    let meanwhile = alternate(&mut contestants, args.rounds)?;

    println!("model       {}", model.display());
    print!("{conditions}");
    println!("            kernels {}", first.isa);
    println!("llama.cpp   {}", llama_cpp.version);
    println!("threads     {threads}; {} rounds, one measurement of each in every round", args.rounds);
    println!("{meanwhile}");
    let rows: Vec<Row> = contestants.into_iter().map(|contestant| contestant.row).collect();
    print!("{}", table(&rows));
    Ok(())
}

struct Contestant<'a> {
    row: Row,
    measure: Box<dyn Fn() -> anyhow::Result<Speed> + 'a>,
}

impl<'a> Contestant<'a> {
    fn new(side: Side, format: &str, measure: impl Fn() -> anyhow::Result<Speed> + 'a) -> Self {
        Self { row: Row { side, format: format.into(), speeds: Vec::new() }, measure: Box::new(measure) }
    }
}

/// One after the other, again and again: what disturbs the machine for a while disturbs all of them.
fn alternate(contestants: &mut [Contestant<'_>], rounds: u32) -> anyhow::Result<Meanwhile> {
    let before = Load::read()?;
    for round in 1..=rounds {
        eprint!("round {round} of {rounds} ");
        for contestant in contestants.iter_mut() {
            contestant.row.speeds.push((contestant.measure)()?);
            eprint!(".");
            std::io::stderr().flush()?;
        }
        eprintln!();
    }
    Ok(Meanwhile { before, after: Load::read()? })
}

/// `$XDG_CACHE_HOME/baton/bench`, or the same under `$HOME/.cache`.
fn cache_directory() -> anyhow::Result<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")));
    Ok(base.context("set HOME, or XDG_CACHE_HOME to an absolute path")?.join("baton").join("bench"))
}
