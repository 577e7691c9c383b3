//! Which processes there will be, and what each is told.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::Result;
use baton_types::EngineRole;

use super::ports::Ports;
use crate::args::{CommonArgs, EngineArgs, Span, Strategy, UpArgs, value_name};

/// A system: every engine, and the router in front of them.
#[derive(Debug, PartialEq)]
pub struct Plan {
    pub engines: Vec<Process>,
    pub router: Process,
}

/// One process of the system.
#[derive(Clone, Debug, PartialEq)]
pub struct Process {
    pub name: String,
    /// An engine's role, or `router`.
    pub role: &'static str,
    /// Where this machine reaches it.
    pub address: SocketAddr,
    /// Threads that compute; none for the router.
    pub threads: Option<u32>,
    /// What it is told, after the program's name.
    pub argv: Vec<String>,
}

impl Process {
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Plan {
    /// # Errors
    /// If a port is in use.
    pub fn new(args: &UpArgs, common: &CommonArgs, cores: u32, ports: &mut Ports) -> Result<Self> {
        ports.hold(SocketAddr::new(args.host, args.port), "--port")?;
        let roles = roles(args);
        let threads = args.engine.threads.unwrap_or_else(|| (cores / roles.len() as u32).max(1));
        let mut engines = Vec::with_capacity(roles.len());
        for (role, index) in roles {
            engines.push(engine(args, common, role, index, threads, ports)?);
        }
        let router = router(args, common, &engines);
        Ok(Self { engines, router })
    }
}

/// The role of each engine, and its number among those of the role.
fn roles(args: &UpArgs) -> Vec<(EngineRole, u32)> {
    let numbered = |role, count| (0..count).map(move |index| (role, index));
    match args.routing.strategy {
        Strategy::None => vec![(EngineRole::Both, 0)],
        Strategy::Push | Strategy::Pull => numbered(EngineRole::Prefill, args.prefill)
            .chain(numbered(EngineRole::Decode, args.decode))
            .collect(),
    }
}

fn engine(
    args: &UpArgs,
    common: &CommonArgs,
    role: EngineRole,
    index: u32,
    threads: u32,
    ports: &mut Ports,
) -> Result<Process> {
    let host = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let port = ports.take()?;
    // The engine tells its peers where it is, so it may as well choose; but not where the user has fixed the ports.
    let side_channel_port = if args.base_port.is_some() { ports.take()? } else { 0 };
    let name = format!("{role}-{index}");
    let mut argv = vec![
        "serve".to_owned(),
        format!("--role={role}"),
        format!("--name={name}"),
        format!("--host={host}"),
        format!("--port={port}"),
        format!("--side-channel-port={side_channel_port}"),
        format!("--advertise-host={host}"),
    ];
    argv.extend(EngineArgs { threads: Some(threads), ..args.engine.clone() }.to_argv());
    argv.extend(ending_and_log(args, common));
    Ok(Process {
        name,
        role: role.as_str(),
        address: SocketAddr::new(host, port),
        threads: Some(threads),
        argv,
    })
}

fn router(args: &UpArgs, common: &CommonArgs, engines: &[Process]) -> Process {
    let listen = SocketAddr::new(args.host, args.port);
    let mut argv = vec!["route".to_owned(), format!("--listen={listen}")];
    argv.extend(engines.iter().map(|engine| format!("--{}={}", engine.role, engine.url())));
    argv.extend(args.routing.to_argv());
    argv.extend(ending_and_log(args, common));
    Process { name: "router".to_owned(), role: "router", address: reachable(listen), threads: None, argv }
}

/// A process ends its requests well before it would be killed.
fn ending_and_log(args: &UpArgs, common: &CommonArgs) -> [String; 3] {
    let drain = Duration::from_millis(args.stop_timeout.0.as_millis() as u64 * 2 / 3);
    [
        format!("--drain-timeout={}", Span(drain)),
        format!("--log-level={}", value_name(common.log_level)),
        format!("--log-format={}", value_name(common.log_format)),
    ]
}

/// Where this machine reaches what listens on `address`: on every address means on loopback too.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}
