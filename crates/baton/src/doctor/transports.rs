//! The transports that need nothing but this program.

use baton_server::{ServerConfig, SideChannelConfig, try_transport};

use super::finding::Finding;
use super::transport_finding;
use crate::args::{DoctorArgs, TransportKind};
use crate::nixl::Trial;

pub fn look(args: &DoctorArgs) -> Vec<Finding> {
    let shm = baton_server::TransportKind::Shm;
    let tcp = baton_server::TransportKind::Tcp;
    vec![
        try_it(args, TransportKind::Shm, shm, "see what is said about shared memory above"),
        try_it(args, TransportKind::Tcp, tcp, "see what is said about the network above"),
    ]
}

fn try_it(
    args: &DoctorArgs,
    kind: TransportKind,
    transport: baton_server::TransportKind,
    advice: &str,
) -> Finding {
    // What is dialled is loopback where engines listen on every address.
    let host = args.host.to_string();
    let advertised_host = args.host.is_unspecified().then(|| "localhost".to_owned());
    let side_channel = SideChannelConfig { host, advertised_host, ..SideChannelConfig::default() };
    let config = ServerConfig { transport, side_channel, ..ServerConfig::default() };
    let moved = try_transport(&config).map(|moved| Trial::from(moved).to_string());
    transport_finding(kind, moved.map_err(|error| (error.to_string(), advice.to_owned())))
}
