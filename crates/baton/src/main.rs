//! The binary `baton`: arguments and wiring. What happens to a request is decided elsewhere.

mod args;
mod bench;
mod chat;
mod descriptors;
mod doctor;
mod http;
mod log;
#[cfg(test)]
mod manifests;
mod model;
mod nixl;
mod report;
mod route;
mod serve;
mod settings;
mod signals;
mod up;

use std::future::Future;
use std::process::ExitCode;

use anyhow::{Context, Result};
use tokio::runtime::Builder;

use args::{Cli, Command};

fn main() -> ExitCode {
    up::die_with_parent();
    let cli = settings::parse(std::env::args_os()).unwrap_or_else(|error| error.exit());
    match run(cli) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("baton: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<ExitCode> {
    log::start(&cli.common)?;
    match &cli.command {
        Command::Up(args) => on_this_thread(up::up(args, &cli.common)),
        Command::Chat(args) => on_this_thread(chat::chat(args)),
        Command::Report(args) => report::report(args),
        Command::Serve(args) => on_all_cores(serve::serve(args)),
        Command::Nixl(args) => nixl::nixl(&args.what),
        Command::Doctor(args) => doctor::doctor(args),
        Command::Bench(args) => on_all_cores(bench::bench(args)),
        Command::Route(args) => on_all_cores(route::route(args)),
    }
}

fn on_this_thread<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
    let result = runtime.block_on(work);
    // Threads that read standard input or resolve a name may never come back.
    runtime.shutdown_background();
    result
}

fn on_all_cores(work: impl Future<Output = Result<ExitCode>>) -> Result<ExitCode> {
    Builder::new_multi_thread().enable_all().build().context("cannot start a runtime")?.block_on(work)
}
