//! Two prefill engines, two decode engines and a router, started one by one as an operator would.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::client::Client;
use crate::network::Network;
use crate::vitals::Vitals;

/// On a host of its own every port is free.
const PORT_ON_HOST: u16 = 8000;
/// How long a process may take to become healthy.
const PATIENCE: Duration = Duration::from_secs(60);
/// Below the ports that the system gives to connections: while a process is dead nobody else may get its port.
const FIRST_PORT: u16 = 20_000;
const PORTS: u16 = 10_000;
/// Ports that the clusters of this process have asked for so far: what is free now may be what another has just chosen.
static ASKED: AtomicU16 = AtomicU16::new(0);

pub const ENGINES: [Member; 4] =
    [Member::Prefill(0), Member::Prefill(1), Member::Decode(0), Member::Decode(1)];

/// A process of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Member {
    Prefill(u8),
    Decode(u8),
    Router,
    /// An engine that does everything alone: what the others' answers are compared with.
    Alone,
}

impl Member {
    pub fn role(self) -> &'static str {
        match self {
            Self::Prefill(_) => "prefill",
            Self::Decode(_) => "decode",
            Self::Router => "router",
            Self::Alone => "both",
        }
    }

    pub fn name(self) -> String {
        match self {
            Self::Prefill(n) | Self::Decode(n) => format!("{}-{n}", self.role()),
            Self::Router | Self::Alone => self.role().to_owned(),
        }
    }
}

/// How a cluster's processes are started.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// The program `baton`.
    pub binary: PathBuf,
    pub strategy: &'static str,
    pub transport: &'static str,
    /// Further arguments of every engine.
    pub engine_args: Vec<String>,
    /// Where each process writes its log; nowhere by default.
    pub logs: Option<PathBuf>,
}

#[derive(Debug)]
struct Process {
    member: Member,
    address: SocketAddr,
    child: Child,
}

/// The running processes; those that are left are killed when it is dropped.
#[derive(Debug)]
pub struct Cluster {
    recipe: Recipe,
    /// Before the network that they are in.
    processes: Vec<Process>,
    network: Option<Network>,
    client: Client,
}

impl Cluster {
    /// With a network, each process is on a host of its own.
    ///
    /// # Errors
    /// If a process does not become healthy.
    pub fn start(recipe: Recipe, network: Option<Network>) -> Result<Self> {
        let mut cluster = Self::of(recipe, network);
        for member in ENGINES.into_iter().chain([Member::Router]) {
            let address = cluster.place(member)?;
            cluster.spawn(member, address)?;
        }
        for member in ENGINES.into_iter().chain([Member::Router]) {
            cluster.await_healthy(member)?;
        }
        Ok(cluster)
    }

    /// One engine that does everything.
    ///
    /// # Errors
    /// If it does not become healthy.
    pub fn alone(recipe: Recipe) -> Result<Self> {
        let mut cluster = Self::of(recipe, None);
        let address = cluster.place(Member::Alone)?;
        cluster.spawn(Member::Alone, address)?;
        cluster.await_healthy(Member::Alone)?;
        Ok(cluster)
    }

    fn of(recipe: Recipe, network: Option<Network>) -> Self {
        Self { recipe, processes: Vec::new(), network, client: Client::default() }
    }

    fn place(&self, member: Member) -> Result<SocketAddr> {
        if let Some(network) = &self.network {
            return Ok(SocketAddr::new(network.address(member), PORT_ON_HOST));
        }
        // Processes beside each other begin at different places.
        let first = (std::process::id() % 97) as u16 * 100;
        for _ in 0..PORTS {
            let asked = ASKED.fetch_add(1, Ordering::Relaxed);
            let port = FIRST_PORT + first.wrapping_add(asked) % PORTS;
            let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
            if TcpListener::bind(address).is_ok() {
                return Ok(address);
            }
        }
        bail!("no free port from {FIRST_PORT} on")
    }

    fn spawn(&mut self, member: Member, address: SocketAddr) -> Result<()> {
        let mut command = match &self.network {
            Some(network) => network.command(member, &self.recipe.binary),
            None => Command::new(&self.recipe.binary),
        };
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("BATON_"))
        {
            command.env_remove(name);
        }
        command.args(self.argv(member, address)).stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(match &self.recipe.logs {
            Some(dir) => Stdio::from(log(dir, member)?),
            None => Stdio::null(),
        });
        let child =
            command.spawn().with_context(|| format!("cannot start {}", self.recipe.binary.display()))?;
        self.processes.retain(|known| known.member != member);
        self.processes.push(Process { member, address, child });
        Ok(())
    }

    fn argv(&self, member: Member, address: SocketAddr) -> Vec<String> {
        if member == Member::Router {
            let engines =
                ENGINES.map(|engine| format!("--{}=http://{}", engine.role(), self.address(engine)));
            let mut argv = vec!["route".to_owned(), format!("--listen={address}")];
            argv.push(format!("--strategy={}", self.recipe.strategy));
            // A stopped engine keeps its connections open and says nothing.
            argv.extend(
                [
                    "--prefill-timeout=15s",
                    "--first-byte-timeout=15s",
                    "--answer-timeout=30s",
                    "--idle-timeout=15s",
                ]
                .map(str::to_owned),
            );
            argv.extend(engines);
            return argv;
        }
        let mut argv = vec!["serve".to_owned(), format!("--role={}", member.role())];
        argv.push(format!("--name={}", member.name()));
        argv.push(format!("--host={}", address.ip()));
        argv.push(format!("--port={}", address.port()));
        argv.push(format!("--transport={}", self.recipe.transport));
        argv.extend(
            ["--model=emulated", "--kv-memory=16MiB", "--lease=2s", "--heartbeat=500ms"].map(str::to_owned),
        );
        argv.extend_from_slice(&self.recipe.engine_args);
        argv
    }

    fn process(&self, member: Member) -> &Process {
        let found = self.processes.iter().find(|known| known.member == member);
        found.expect("every member of the cluster was started")
    }

    fn process_mut(&mut self, member: Member) -> &mut Process {
        let found = self.processes.iter_mut().find(|known| known.member == member);
        found.expect("every member of the cluster was started")
    }

    pub fn address(&self, member: Member) -> SocketAddr {
        self.process(member).address
    }

    pub fn pid(&self, member: Member) -> u32 {
        self.process(member).child.id()
    }

    /// # Errors
    /// If it does not become healthy, or has ended.
    pub fn await_healthy(&mut self, member: Member) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let address = self.address(member);
        while self.client.get(address, "/health", Duration::from_secs(2)).is_none() {
            ensure!(Instant::now() < deadline, "{} does not become healthy", member.name());
            if let Some(status) = self.process_mut(member).child.try_wait()? {
                bail!("{} has ended by itself: {status}", member.name());
            }
            sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Dies in the middle of whatever it does.
    ///
    /// # Errors
    /// If it had ended before by itself.
    pub fn kill(&mut self, member: Member) -> Result<()> {
        let child = &mut self.process_mut(member).child;
        if let Some(status) = child.try_wait()? {
            bail!("{} has ended by itself: {status}", member.name());
        }
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    /// Starts a process that was killed again, at the same address.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn restart(&mut self, member: Member) -> Result<()> {
        self.spawn(member, self.address(member))
    }

    /// # Errors
    /// If the process has ended.
    pub fn signal(&self, member: Member, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.pid(member).cast_signed()).context("a process has a pid")?;
        kill_process(pid, signal).with_context(|| format!("{} cannot be signalled", member.name()))
    }

    /// Cuts the network of one process, or mends it.
    ///
    /// # Errors
    /// If the processes share this machine's network.
    pub fn cut(&self, member: Member, cut: bool) -> Result<()> {
        self.network.as_ref().context("there is no network to cut")?.cut(member, cut);
        Ok(())
    }

    /// KV blocks that are not free; none if the engine does not answer.
    pub fn blocks_in_use(&self, member: Member) -> Option<u64> {
        let text = self.client.get(self.address(member), "/baton/info", Duration::from_secs(5))?;
        let load = serde_json::from_str::<Value>(&text).ok()?["load"].take();
        load["kv_blocks_total"].as_u64()?.checked_sub(load["kv_blocks_free"].as_u64()?)
    }

    pub fn vitals(&self, member: Member) -> Result<Vitals> {
        Vitals::of(self.pid(member))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for process in &mut self.processes {
            // An error means that it has ended.
            let _ = process.child.kill();
            let _ = process.child.wait();
        }
    }
}

fn log(dir: &Path, member: Member) -> Result<File> {
    let path = dir.join(format!("{}.log", member.name()));
    let open = File::options().create(true).append(true).open(&path);
    open.with_context(|| format!("cannot write {}", path.display()))
}
