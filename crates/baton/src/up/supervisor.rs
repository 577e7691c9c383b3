//! Starts the processes in order, watches them, and stops them in the opposite order.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use futures_util::future::{join_all, select_all};
use tokio::time::timeout;

use super::banner::{Banner, Place};
use super::child::{self, Child};
use super::health::all_healthy;
use super::log_lines::Sink;
use super::plan::{Plan, Process};
use super::ports::Ports;
use super::screen::Screen;
use crate::args::UpArgs;
use crate::signals::Signals;

/// The running system. Children that are still there when it is dropped are killed.
#[derive(Debug)]
pub struct Supervisor {
    program: OsString,
    engines: Vec<Child>,
    router: Option<Child>,
    screen: Arc<Screen>,
    log_dir: Option<PathBuf>,
    start_timeout: Duration,
    stop_timeout: Duration,
}

/// Why a system ended before it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    #[error("{name} (pid {pid}) {}", child::describe(*status))]
    Died { name: String, pid: u32, status: ExitStatus, last_lines: Vec<String> },
    #[error("{0:#}")]
    Start(#[from] anyhow::Error),
}

/// The way to stop that everybody expects.
#[derive(Debug, PartialEq, Eq)]
pub struct Asked;

impl Supervisor {
    /// # Errors
    /// If this program cannot find itself, or the directory for the logs cannot be made.
    pub fn new(args: &UpArgs, screen: Screen) -> Result<Self> {
        if let Some(dir) = &args.log_dir {
            std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        }
        Ok(Self {
            program: std::env::current_exe().context("cannot find this program")?.into_os_string(),
            engines: Vec::new(),
            router: None,
            screen: Arc::new(screen),
            log_dir: args.log_dir.clone(),
            start_timeout: args.start_timeout.0,
            stop_timeout: args.stop_timeout.0,
        })
    }

    /// Starts what is planned and waits until somebody asks for the end.
    ///
    /// # Errors
    /// If a process cannot be started, does not become healthy in time, or ends by itself.
    pub async fn run(
        &mut self,
        plan: &Plan,
        mut ports: Ports,
        signals: &mut Signals,
    ) -> Result<Asked, Fault> {
        // The engines first: a router that starts before them would count its first probes as failures.
        for engine in &plan.engines {
            let child = self.spawn(engine, &mut ports)?;
            self.engines.push(child);
        }
        if let Some(asked) = self.started(&plan.engines, signals).await? {
            return Ok(asked);
        }
        self.router = Some(self.spawn(&plan.router, &mut ports)?);
        if let Some(asked) = self.started(std::slice::from_ref(&plan.router), signals).await? {
            return Ok(asked);
        }
        self.screen.settled();
        self.announce(plan).await?;
        tokio::select! {
            fault = first_death(&mut self.engines, &mut self.router) => Err(fault),
            () = signals.next() => Ok(Asked),
        }
    }

    /// Says why it ends; the stop is yet to come.
    pub fn report(&self, ending: &Result<Asked, Fault>) {
        self.screen.settled();
        let fault = match ending {
            Ok(Asked) => return self.screen.line("Stopping; Ctrl-C once more kills what is left."),
            Err(fault) => fault,
        };
        self.screen.line(&format!("baton: {fault}"));
        if let Fault::Died { name, last_lines, .. } = fault {
            // In the terminal its lines are there already, but in between those of the others.
            self.screen.line(if last_lines.is_empty() {
                "It wrote nothing."
            } else {
                "The last lines that it wrote:"
            });
            last_lines.iter().for_each(|line| self.screen.line(&format!("    {name} | {line}")));
        }
        if !self.engines.is_empty() {
            self.screen.line("Stopping the rest.");
        }
    }

    /// Stops the router, so that no new request comes in, then the engines. Returns when no child is left.
    pub async fn stop(&mut self, signals: &mut Signals) {
        self.screen.settled();
        let mut limit = self.stop_timeout;
        if let Some(router) = &mut self.router
            && let Stopped::Impatiently =
                stop_all(std::slice::from_mut(router), limit, signals, &self.screen).await
        {
            limit = Duration::ZERO;
        }
        stop_all(&mut self.engines, limit, signals, &self.screen).await;
        self.screen.line("Stopped.");
    }

    fn spawn(&self, process: &Process, ports: &mut Ports) -> Result<Child> {
        let sink = match &self.log_dir {
            None => Sink::Screen { screen: self.screen.clone(), prefix: format!("{:<10}| ", process.name) },
            Some(dir) => {
                let path = dir.join(log_name(process));
                Sink::File(File::create(&path).with_context(|| format!("cannot write {}", path.display()))?)
            }
        };
        let listener = ports.hand_over(process.address.port());
        Child::spawn(&process.name, &self.program, &process.argv, listener, sink)
    }

    /// Waits until the processes are healthy: none, or that somebody asked for the end before.
    async fn started(
        &mut self,
        processes: &[Process],
        signals: &mut Signals,
    ) -> Result<Option<Asked>, Fault> {
        tokio::select! {
            healthy = all_healthy(processes, self.start_timeout, &self.screen) => Ok(healthy.map(|()| None)?),
            fault = first_death(&mut self.engines, &mut self.router) => Err(fault),
            () = signals.next() => Ok(Some(Asked)),
        }
    }

    async fn announce(&self, plan: &Plan) -> Result<()> {
        let children = self.engines.iter().chain(&self.router);
        let processes = plan.engines.iter().chain([&plan.router]);
        let places = children.zip(processes).map(|(child, process)| Place {
            process,
            pid: child.pid,
            log: self.log_dir.as_ref().map(|dir| dir.join(log_name(process))),
        });
        let banner = Banner::of(places.collect(), &plan.router.url()).await?;
        // Whoever closed standard output has no use for it.
        let _ = write!(std::io::stdout(), "{banner}").and_then(|()| std::io::stdout().flush());
        Ok(())
    }
}

fn log_name(process: &Process) -> String {
    format!("{}.log", process.name)
}

/// Waits for the first child that ends by itself.
async fn first_death(engines: &mut [Child], router: &mut Option<Child>) -> Fault {
    let mut children: Vec<&mut Child> = engines.iter_mut().chain(router).collect();
    let (status, index, _) = select_all(children.iter_mut().map(|child| Box::pin(child.ended()))).await;
    let child = &mut children[index];
    Fault::Died { name: child.name.clone(), pid: child.pid, status, last_lines: child.last_lines().await }
}

#[derive(Debug, PartialEq, Eq)]
enum Stopped {
    InTime,
    /// The limit passed.
    Late,
    /// The user asked once more.
    Impatiently,
}

/// Asks the children to end and kills those that have not within the limit, or when the user asks once more.
async fn stop_all(
    children: &mut [Child],
    limit: Duration,
    signals: &mut Signals,
    screen: &Screen,
) -> Stopped {
    children.iter().for_each(Child::terminate);
    let stopped = tokio::select! {
        ended = timeout(limit, join_all(children.iter_mut().map(Child::ended))) => match ended {
            Ok(_) => return Stopped::InTime,
            Err(_) => Stopped::Late,
        },
        () = signals.next() => Stopped::Impatiently,
    };
    for child in children.iter_mut() {
        if timeout(Duration::ZERO, child.ended()).await.is_err() {
            screen.line(&format!("baton: {} (pid {}) is killed", child.name, child.pid));
            child.kill();
            child.ended().await;
        }
    }
    stopped
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn shell(script: &str) -> Child {
        let sink = Sink::Screen { screen: Arc::new(Screen::new()), prefix: String::new() };
        Child::spawn("child-0", "/bin/sh".as_ref(), &["-c".to_owned(), script.to_owned()], None, sink)
            .unwrap()
    }

    async fn wait_for_line(child: &Child, line: &str) {
        while !child.lines().iter().any(|l| l == line) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn the_first_death_is_told_with_its_last_words() {
        let mut engines = [shell("sleep 60"), shell("echo one; echo two >&2; exit 3")];
        let fault = first_death(&mut engines, &mut None).await;
        let pid = engines[1].pid;
        assert_eq!(fault.to_string(), format!("child-0 (pid {pid}) exited with status 3"));
        let Fault::Died { mut last_lines, .. } = fault else { unreachable!() };
        last_lines.sort();
        assert_eq!(last_lines, ["one", "two"]);
    }

    #[tokio::test]
    async fn a_kill_is_told_by_name() {
        let mut engines = [shell("kill -9 $$")];
        let fault = first_death(&mut engines, &mut None).await.to_string();
        assert!(fault.contains("was killed by signal 9 (SIGKILL"), "{fault}");
    }

    #[tokio::test]
    async fn children_are_asked_first_and_killed_when_they_do_not_listen() {
        let mut signals = Signals::new().unwrap();
        let screen = Screen::new();
        let mut polite = [shell("trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.01; done")];
        wait_for_line(&polite[0], "up").await;
        let stopped = stop_all(&mut polite, Duration::from_secs(20), &mut signals, &screen).await;
        assert_eq!(stopped, Stopped::InTime);
        assert_eq!(polite[0].last_lines().await, ["up", "bye"]);

        let mut deaf = [shell("trap '' TERM; echo up; while :; do sleep 0.01; done")];
        wait_for_line(&deaf[0], "up").await;
        let start = Instant::now();
        let stopped = stop_all(&mut deaf, Duration::from_millis(100), &mut signals, &screen).await;
        assert_eq!(stopped, Stopped::Late);
        assert!(start.elapsed() < Duration::from_secs(5));
        assert!(child::describe(deaf[0].ended().await).contains("SIGKILL"));
    }
}
