//! Whether engines can listen, and be reached by themselves.

use std::io;
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use super::finding::Finding;

const ABOUT: &str = "network";
const PATIENCE: Duration = Duration::from_secs(3);

pub fn look(host: IpAddr) -> Vec<Finding> {
    let loopback = IpAddr::from(Ipv4Addr::LOCALHOST);
    let mut findings = vec![listening("loopback", loopback)];
    if host != loopback {
        findings.push(listening("listening", host));
    }
    findings
}

fn listening(name: &str, host: IpAddr) -> Finding {
    match listen_and_connect(host) {
        Ok(()) => Finding::ok(ABOUT, name, format!("a connection to {host} was taken")),
        Err(error) => Finding::failed(
            ABOUT,
            name,
            format!("{host}: {error}"),
            "name an address of this machine (--host), and let its firewall pass what comes from itself",
        ),
    }
}

fn listen_and_connect(host: IpAddr) -> io::Result<()> {
    let listener = TcpListener::bind((host, 0))?;
    let mut address = listener.local_addr()?;
    if host.is_unspecified() {
        address.set_ip(Ipv4Addr::LOCALHOST.into());
    }
    let _here = TcpStream::connect_timeout(&address, PATIENCE)?;
    listener.accept().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::State;

    #[test]
    fn an_address_of_another_machine_is_no_place_to_listen() {
        let found = look("192.0.2.1".parse().unwrap());
        assert_eq!((found[0].state, found[1].state), (State::Ok, State::Failed));
        assert_eq!(look("0.0.0.0".parse().unwrap())[1].state, State::Ok);
    }
}
