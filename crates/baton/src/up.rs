//! `baton up`: a whole system on this machine, each engine and the router a process of its own.

mod banner;
mod child;
mod health;
mod inherited;
mod log_lines;
mod plan;
mod ports;
mod screen;
mod supervisor;

pub use child::{PARENT, die_with_parent};
pub use inherited::inherited_listener;

use std::process::ExitCode;

use anyhow::{Context, Result};
use baton_trace::TraceFile;

use crate::args::{CommonArgs, UpArgs};
use crate::model;
use crate::signals::Signals;
use plan::Plan;
use ports::Ports;
use screen::Screen;
use supervisor::Supervisor;

/// # Errors
/// If the system cannot be planned; what goes wrong later is told here, and the status says so.
///
/// Must run on the main thread: the kernel kills the children when the thread that started them ends.
pub async fn up(args: &UpArgs, common: &CommonArgs) -> Result<ExitCode> {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    let mut ports = Ports::new(args.base_port);
    let plan = Plan::new(args, common, cores, &mut ports)?;
    // Before a model is fetched in vain, or any engine has to say so.
    plan.check()?;
    let mut supervisor = Supervisor::new(args, Screen::new())?;
    let trace = args.trace.trace.as_deref().map(TraceFile::create).transpose()?;
    // Once, here, so that the engines find it; nothing else runs yet, and Ctrl-C still ends the process by itself.
    model::fetch_all(&args.engine)?;
    let mut signals = Signals::new()?;
    let ending = supervisor.run(&plan, ports, &mut signals).await;
    supervisor.report(&ending);
    supervisor.stop(&mut signals).await;
    if let Some(trace) = trace {
        trace.close().context("the trace's end")?;
    }
    Ok(if ending.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
