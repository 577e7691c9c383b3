//! Which ports are free. A port that is handed out stays bound here until all are, so that none is handed out twice.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};

use anyhow::{Context, Result, anyhow};

#[derive(Debug)]
pub struct Ports {
    /// The next port to hand out; none leaves the choice to the system.
    next: Option<u16>,
    held: Vec<TcpListener>,
}

impl Ports {
    pub fn new(base: Option<u16>) -> Self {
        Self { next: base, held: Vec::new() }
    }

    /// A free port of the loopback address, for an engine.
    ///
    /// # Errors
    /// If the port that is next after the base is in use, or there is none.
    pub fn take(&mut self) -> Result<u16> {
        let Some(port) = self.next else { return self.hold(loopback(0), "") };
        let held = self.hold(loopback(port), "--base-port")?;
        self.next = Some(port.checked_add(1).context("--base-port is too high for so many engines")?);
        Ok(held)
    }

    /// Holds a given address.
    ///
    /// # Errors
    /// If it is in use or not of this machine; `flag` is what the user would change.
    pub fn hold(&mut self, address: SocketAddr, flag: &str) -> Result<u16> {
        let listener = TcpListener::bind(address).map_err(|error| match error.kind() {
            ErrorKind::AddrInUse => {
                anyhow!("{address} is in use; choose another port with {flag}, or stop what listens there")
            }
            _ => anyhow!("cannot listen on {address}: {error}"),
        })?;
        let port = listener.local_addr()?.port();
        self.held.push(listener);
        Ok(port)
    }
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_handed_out_is_nobody_else_s_until_it_is_let_go() {
        let mut ports = Ports::new(None);
        let port = ports.take().unwrap();
        assert!(TcpListener::bind(loopback(port)).is_err());
        drop(ports);
        assert!(TcpListener::bind(loopback(port)).is_ok());
    }

    #[test]
    fn a_port_in_use_is_an_error_that_names_it() {
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = other.local_addr().unwrap();
        let error = Ports::new(None).hold(address, "--port").unwrap_err().to_string();
        assert!(error.contains(&address.to_string()) && error.contains("--port"), "{error}");
        let error = Ports::new(Some(address.port())).take().unwrap_err().to_string();
        assert!(error.contains("--base-port"), "{error}");
    }

    #[test]
    fn ports_run_out() {
        let mut ports = Ports::new(Some(u16::MAX));
        assert!(ports.take().is_err(), "the one after the last does not exist");
    }
}
