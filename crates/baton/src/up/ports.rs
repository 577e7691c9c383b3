//! Which ports are free. What listens on a port that is handed out stays here until the process that is to serve it takes it over:
//! a port that were let go in between could be anybody's, for the system gives free ones to every connection that it makes.

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

    /// As [`Self::take`], for what the process binds by itself.
    ///
    /// # Errors
    /// As there.
    pub fn take_unheld(&mut self) -> Result<u16> {
        let port = self.take()?;
        drop(self.hand_over(port));
        Ok(port)
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

    /// What listens on a port that was handed out; once.
    pub fn hand_over(&mut self, port: u16) -> Option<TcpListener> {
        let is_of =
            |listener: &TcpListener| listener.local_addr().is_ok_and(|address| address.port() == port);
        let index = self.held.iter().position(is_of)?;
        Some(self.held.swap_remove(index))
    }
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_handed_out_is_nobody_else_s_until_it_is_handed_over() {
        let mut ports = Ports::new(None);
        let (port, other) = (ports.take().unwrap(), ports.take().unwrap());
        assert!(TcpListener::bind(loopback(port)).is_err());
        let listener = ports.hand_over(port).unwrap();
        assert_eq!(listener.local_addr().unwrap(), loopback(port));
        assert!(ports.hand_over(port).is_none(), "only once");
        assert!(ports.hand_over(other).is_some());
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
