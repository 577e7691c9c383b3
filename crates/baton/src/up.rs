//! `baton up`: a whole system on this machine, each engine and the router a process of its own.

mod banner;
mod child;
mod health;
mod log_lines;
mod plan;
mod ports;
mod screen;
mod signals;
mod supervisor;

pub use child::die_with_parent;

use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::args::{CommonArgs, UpArgs};
use plan::Plan;
use ports::Ports;
use screen::Screen;
use signals::Signals;
use supervisor::Supervisor;

/// # Errors
/// If the system cannot be planned; what goes wrong later is told here, and the status says so.
///
/// Must run on the main thread: the kernel kills the children when the thread that started them ends.
pub async fn up(args: &UpArgs, common: &CommonArgs) -> Result<ExitCode> {
    let mut signals = Signals::new().context("cannot listen for signals")?;
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    let mut ports = Ports::new(args.base_port);
    let plan = Plan::new(args, common, cores, &mut ports)?;
    let screen = Screen::new();
    let mut supervisor = Supervisor::new(args, screen)?;
    // Held until here, so that no two processes were given the same port.
    drop(ports);
    let ending = supervisor.run(&plan, &mut signals).await;
    if let Err(error) = &ending {
        supervisor.report(error);
    }
    supervisor.stop(&mut signals).await;
    Ok(if ending.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
