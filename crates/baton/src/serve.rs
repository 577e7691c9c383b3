//! `baton serve`: one engine.

use std::process::ExitCode;

use anyhow::{Result, bail};
use baton_server::{EmulatedChoice, ModelChoice, ServerConfig, SideChannelConfig};

use crate::args::{ByteSize, LostKv, ServeArgs, TransportKind};
use crate::model::Model;
use crate::signals;

/// # Errors
/// If the engine cannot start, or a fault ends it.
pub async fn serve(args: &ServeArgs) -> Result<ExitCode> {
    // Nothing else runs yet that a download could hold up, and until it is done Ctrl-C ends the process by itself.
    let model = Model::find_all(&args.engine)?;
    let config = config(args, model)?;
    baton_server::serve(config, signals::shutdown()?).await?;
    Ok(ExitCode::SUCCESS)
}

fn config(args: &ServeArgs, model: Model) -> Result<ServerConfig> {
    let engine = &args.engine;
    let Model::Emulated = model else { bail!("only the model `emulated` can be served") };
    let model = ModelChoice::Emulated(EmulatedChoice {
        profile: engine.emulated_profile.clone(),
        tokenizer: engine.emulated_tokenizer.clone(),
        ..EmulatedChoice::default()
    });
    Ok(ServerConfig {
        name: args.name(),
        role: args.role,
        host: args.host.to_string(),
        port: args.port,
        side_channel: SideChannelConfig {
            host: args.host.to_string(),
            port: args.side_channel_port,
            advertised_host: args.advertise_host.clone(),
        },
        model,
        served_model_name: engine.served_model_name.clone(),
        kv_memory_bytes: engine.kv_memory.map(|ByteSize(bytes)| bytes),
        block_tokens: engine.block_tokens,
        max_model_len: engine.max_model_len,
        max_num_seqs: engine.max_num_seqs,
        max_waiting: engine.max_waiting,
        max_receiving: engine.max_receiving,
        step_tokens: engine.step_tokens,
        threads: engine.threads,
        transport: match engine.transport {
            TransportKind::Shm => baton_server::TransportKind::Shm,
        },
        prefix_cache: !engine.no_prefix_cache,
        on_lost_kv: match engine.on_lost_kv {
            LostKv::Recompute => baton_server::LostKv::Recompute,
            LostKv::Fail => baton_server::LostKv::Fail,
        },
        lease_ms: engine.lease.ms(),
        heartbeat_ms: engine.heartbeat.ms(),
        register_timeout_ms: engine.register_timeout.ms(),
        drain_timeout_ms: args.drain_timeout.ms(),
        ..ServerConfig::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Command;
    use crate::settings;

    fn of(flags: &[&str]) -> ServerConfig {
        let argv =
            ["baton", "serve", "--model=emulated"].into_iter().chain(flags.iter().copied()).map(Into::into);
        let Command::Serve(args) = settings::parse(argv).unwrap().command else { unreachable!() };
        config(&args, Model::Emulated).unwrap()
    }

    #[test]
    fn the_defaults_are_the_library_s() {
        let library =
            ServerConfig { name: "both".to_owned(), drain_timeout_ms: 10_000, ..ServerConfig::default() };
        assert_eq!(of(&[]), library);
        of(&[]).validate().unwrap();
    }

    #[test]
    fn flags_reach_the_engine() {
        let config = of(&[
            "--role=decode",
            "--kv-memory=2MiB",
            "--no-prefix-cache",
            "--on-lost-kv=fail",
            "--lease=9s",
            "--heartbeat=3s",
            "--advertise-host=engine-7",
            "--emulated-profile=instant",
        ]);
        assert_eq!(config.name, "decode");
        assert_eq!(config.kv_memory_bytes, Some(2 << 20));
        assert!(!config.prefix_cache);
        assert_eq!(config.on_lost_kv, baton_server::LostKv::Fail);
        assert_eq!((config.lease_ms, config.heartbeat_ms), (9_000, 3_000));
        assert_eq!(config.side_channel.advertised_host.as_deref(), Some("engine-7"));
        assert!(matches!(config.model, ModelChoice::Emulated(choice) if choice.profile == "instant"));
    }
}
