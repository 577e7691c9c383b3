//! A second network, joined to this one by a cable: as if it were another host's. Needs the rights of root.

use std::process::Command;

use anyhow::{Context, ensure};

pub struct Namespaces {
    name: String,
}

const HERE: &str = "10.213.77.1";
const THERE: &str = "10.213.77.2";

impl Namespaces {
    /// # Errors
    /// If this machine does not let us, or has no `ip`.
    pub fn new() -> anyhow::Result<Self> {
        let number = std::process::id();
        // Gone with this value, also if the rest fails.
        let namespaces = Self { name: format!("baton-{number}") };
        let (name, here, there) = (&namespaces.name, format!("bt{number}a"), format!("bt{number}b"));
        ip(&format!("netns add {name}"))?;
        ip(&format!("link add {here} type veth peer name {there} netns {name}"))?;
        ip(&format!("address add {HERE}/30 dev {here}"))?;
        ip(&format!("link set {here} up"))?;
        ip(&format!("-n {name} address add {THERE}/30 dev {there}"))?;
        ip(&format!("-n {name} link set {there} up"))?;
        ip(&format!("-n {name} link set lo up"))?;
        // A cable of 1 Gbit/s, so that bytes are under way when the process that sent them is killed.
        ip(&format!(
            "netns exec {name} tc qdisc add dev {there} root tbf rate 1gbit burst 256kb latency 20ms"
        ))?;
        Ok(namespaces)
    }

    /// What tells the suite to start its other process there.
    pub fn variables(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let hosts = [("BATON_TEST_HOST", HERE), ("BATON_TEST_OTHER_HOST", THERE)];
        hosts.into_iter().chain([("BATON_TEST_OTHER_NETWORK", self.name.as_str())])
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        // The cable goes with it.
        let _ = ip(&format!("netns delete {}", self.name));
    }
}

fn ip(args: &str) -> anyhow::Result<()> {
    let output = Command::new("ip").args(args.split(' ')).output().context("ip, of iproute2")?;
    ensure!(output.status.success(), "ip {args}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}
