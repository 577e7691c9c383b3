//! Hosts in one machine: a network namespace for each process of a cluster, with a wire between them that is late, loses packets and
//! delivers them out of order, and that can be cut for one host.
//!
//! The wire is a thread of this process and not the kernel's netem, which many kernels lack: it works wherever root may make
//! namespaces and TUN devices, and its loss and delays come from the run's seed.

mod tun;
mod wire;

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::cluster::{ENGINES, Member};
use wire::Wire;

const MEMBERS: [Member; 5] = [ENGINES[0], ENGINES[1], ENGINES[2], ENGINES[3], Member::Router];
/// The host part of the address of this process, where the clients are; those of the members follow.
const OUR_HOST: u8 = 1;

/// Namespaces and wire; both go when it is dropped.
#[derive(Debug)]
pub struct Network {
    /// Third byte of all addresses, so that two runs can be on one machine.
    subnet: u8,
    wire: Wire,
}

impl Network {
    /// # Errors
    /// If this user or this machine has no namespaces, or no TUN devices.
    pub fn create(seed: u64) -> Result<Self> {
        let allowed = rustix::process::geteuid().is_root() && Path::new("/dev/net/tun").exists();
        ensure!(
            allowed,
            "--netem needs root, /dev/net/tun and the program `ip`: it makes a network namespace for each process"
        );
        let subnet = (std::process::id() % 251) as u8;
        let mut tuns = Vec::new();
        for host in 0..=MEMBERS.len() as u8 {
            let device = format!("baton{subnet}n{host}");
            let tun = tun::open(&device).with_context(|| format!("cannot make the device {device}"))?;
            tuns.push((OUR_HOST + host, tun));
        }
        // From here on, what was made is taken down again by `drop`.
        let network = Self { subnet, wire: Wire::start(tuns, seed)? };
        network.connect(0, None)?;
        for (i, member) in MEMBERS.into_iter().enumerate() {
            let namespace = network.namespace(member);
            ip(&["netns", "add", &namespace])?;
            network.connect(1 + i as u8, Some(&namespace))?;
        }
        Ok(network)
    }

    /// Gives a device its address, in the namespace of its host.
    fn connect(&self, host: u8, namespace: Option<&str>) -> Result<()> {
        let device = format!("baton{}n{host}", self.subnet);
        let address = format!("{}/24", self.host(OUR_HOST + host));
        let inside: Vec<&str> = namespace.map_or_else(Vec::new, |namespace| vec!["-n", namespace]);
        if let Some(namespace) = namespace {
            ip(&["link", "set", &device, "netns", namespace])?;
            ip(&["-n", namespace, "link", "set", "lo", "up"])?;
        }
        ip(&[&inside[..], &["addr", "add", &address, "dev", &device]].concat())?;
        ip(&[&inside[..], &["link", "set", &device, "up"]].concat())
    }

    fn host(&self, host: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, self.subnet, host)
    }

    fn host_of(member: Member) -> u8 {
        let index = MEMBERS.iter().position(|known| *known == member);
        OUR_HOST + 1 + index.expect("a member of the cluster") as u8
    }

    pub fn address(&self, member: Member) -> IpAddr {
        self.host(Self::host_of(member)).into()
    }

    fn namespace(&self, member: Member) -> String {
        format!("baton{}-{}", self.subnet, member.name())
    }

    /// A command that runs `program` on the member's host.
    pub fn command(&self, member: Member, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace(member)]).arg(program);
        command
    }

    /// From here on nothing reaches the member, nor leaves it; or again everything.
    pub fn cut(&self, member: Member, cut: bool) {
        self.wire.cut(Self::host_of(member), cut);
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for member in MEMBERS {
            // One that was never made cannot be deleted.
            let _ = Command::new("ip").args(["netns", "del", &self.namespace(member)]).output();
        }
    }
}

fn ip(args: &[&str]) -> Result<()> {
    let output = Command::new("ip").args(args).output().context("cannot run the program `ip`")?;
    if !output.status.success() {
        bail!("ip {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
