//! `baton doctor`.

use std::net::IpAddr;

use clap::Args;

use super::engine::TransportKind;
use super::nixl::NixlTrialArgs;

const EXAMPLES: &str = "\
Examples:
  Whether KV can be handed over on this machine, and how:
      baton doctor

  Whether an engine with these flags could, as a test before it is started; the status says so:
      baton doctor --transport nixl --nixl-backend libfabric --host 10.0.0.7";

#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct DoctorArgs {
    /// A transport that must work, else the status is 1; all are tried in any case
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAME")]
    pub transport: Vec<TransportKind>,
    /// Address that engines will listen on
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    pub host: IpAddr,
    #[command(flatten)]
    pub nixl: NixlTrialArgs,
}
