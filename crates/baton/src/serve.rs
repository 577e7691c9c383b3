//! `baton serve`: one engine.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use baton_model::EmulatedModel;
use baton_server::{
    CheckpointChoice, EmulatedChoice, ModelChoice, NixlChoice, PeerSecret, PeerTlsConfig, Server,
    ServerConfig, SideChannelConfig, TcpChoice, TraceConfig,
};
use baton_types::{KvDtype, KvOrder};

use crate::args::{
    ByteSize, EngineArgs, KvOrderName, KvType, LostKv, Precision, ServeArgs, TransportKind, value_name,
};
use crate::{descriptors, model, nixl, signals, up};

/// Holds the secret itself. No flag does: arguments are for every user of the machine to read.
pub const PEER_SECRET: &str = "BATON_PEER_SECRET";

/// # Errors
/// If the engine cannot start, or a fault ends it.
pub async fn serve(args: &ServeArgs) -> Result<ExitCode> {
    // Before a model is fetched in vain.
    let mut config = checked(args)?;
    // Nothing else runs yet that a download could hold up, and until it is done Ctrl-C ends the process by itself.
    model::fetch_all(&args.engine)?;
    config.side_channel.secret = peer_secret(&args.engine)?;
    let most = descriptors::for_clients();
    for max in [&mut config.max_connections, &mut config.side_channel.max_connections] {
        *max = (*max).min(most);
    }
    let server = match up::inherited_listener()? {
        Some(listener) => Server::on(listener, config).await?,
        None => Server::bind(config).await?,
    };
    server.run(signals::shutdown()?).await?;
    Ok(ExitCode::SUCCESS)
}

/// What the engine will be, if it can be: what `up` asks before it starts any.
///
/// # Errors
/// If a setting is wrong, or is for another kind of model.
pub fn checked(args: &ServeArgs) -> Result<ServerConfig> {
    if args.engine.model != model::EMULATED
        && let Some(flag) = args.engine.emulated_only()
    {
        bail!("{flag} is for --model={} only, not for {}", model::EMULATED, args.engine.model);
    }
    let config = config(args);
    config.validate()?;
    Ok(config)
}

/// The file's, else the environment's.
fn peer_secret(engine: &EngineArgs) -> Result<Option<PeerSecret>> {
    if let Some(path) = &engine.peer_secret_file {
        return Ok(Some(PeerSecret::read(path)?));
    }
    let Some(text) = std::env::var_os(PEER_SECRET) else { return Ok(None) };
    Ok(Some(PeerSecret::new(text.as_encoded_bytes()).context(PEER_SECRET)?))
}

fn peer_tls(engine: &EngineArgs) -> Option<PeerTlsConfig> {
    // Clap takes them only together.
    Some(PeerTlsConfig {
        certificate: engine.peer_tls_cert.clone()?,
        key: engine.peer_tls_key.clone()?,
        authorities: engine.peer_tls_ca.clone()?,
        name: engine.peer_tls_name.clone(),
    })
}

fn model_choice(engine: &EngineArgs) -> ModelChoice {
    if engine.model == model::EMULATED {
        return ModelChoice::Emulated(EmulatedChoice {
            profile: engine.emulated_profile.clone(),
            tokenizer: engine.emulated_tokenizer.clone(),
            model: EmulatedModel { reads_every: engine.emulated_reads_every, ..EmulatedModel::default() },
            layers: engine.emulated_layers,
            kv_heads: engine.emulated_heads,
            head_dim: engine.emulated_head_dim,
        });
    }
    ModelChoice::Checkpoint(CheckpointChoice {
        source: engine.model.clone(),
        precision: match engine.precision {
            Precision::Exact => baton_server::Precision::Exact,
            Precision::Int8 => baton_server::Precision::Int8,
        },
    })
}

fn config(args: &ServeArgs) -> ServerConfig {
    let engine = &args.engine;
    ServerConfig {
        name: args.name(),
        role: args.role,
        host: args.host.to_string(),
        port: args.port,
        side_channel: SideChannelConfig {
            host: args.host.to_string(),
            port: args.side_channel_port,
            advertised_host: args.advertise_host.clone(),
            tls: peer_tls(engine),
            ..SideChannelConfig::default()
        },
        model: model_choice(engine),
        served_model_name: engine.served_model_name.clone(),
        kv_memory_bytes: engine.kv_memory.map(|ByteSize(bytes)| bytes),
        block_tokens: engine.block_tokens,
        unit_tokens: engine.unit_tokens,
        kv_ranks: engine.kv_ranks,
        kv_dtype: match engine.kv_dtype {
            KvType::F32 => KvDtype::F32,
            KvType::F16 => KvDtype::F16,
            KvType::Bf16 => KvDtype::Bf16,
        },
        kv_convert: engine.kv_convert,
        kv_layout: match engine.kv_layout {
            KvOrderName::BlockMajor => KvOrder::BlockMajor,
            KvOrderName::LayerMajor => KvOrder::LayerMajor,
        },
        max_model_len: engine.max_model_len,
        max_num_seqs: engine.max_num_seqs,
        max_waiting: engine.max_waiting,
        max_receiving: engine.max_receiving,
        step_tokens: engine.step_tokens,
        threads: engine.threads,
        transport: match engine.transport {
            TransportKind::Shm => baton_server::TransportKind::Shm,
            TransportKind::Tcp => baton_server::TransportKind::Tcp,
            TransportKind::Nixl => baton_server::TransportKind::Nixl,
        },
        tcp: TcpChoice { port: args.tcp_port, lanes: engine.tcp_lanes, crc: engine.tcp_crc },
        nixl: NixlChoice {
            port: args.nixl_port,
            backend: value_name(engine.nixl_backend),
            reads: value_name(engine.nixl_reads),
            params: engine.nixl_param.clone(),
            directory: match engine.transport {
                TransportKind::Nixl => nixl::directory(),
                TransportKind::Shm | TransportKind::Tcp => None,
            },
        },
        inline_post: engine.inline_post,
        push_at_end: engine.push_at_end,
        hold_first_token: engine.hold_first_token,
        prefix_cache: !engine.no_prefix_cache,
        retain_ttl_ms: engine.retain_ttl.ms(),
        retain_max: engine.retain_max,
        retain_renewable: engine.retain_renewable,
        reuse_threshold: engine.reuse_threshold,
        on_lost_kv: match engine.on_lost_kv {
            LostKv::Recompute => baton_server::LostKv::Recompute,
            LostKv::Fail => baton_server::LostKv::Fail,
        },
        lease_ms: engine.lease.ms(),
        heartbeat_ms: engine.heartbeat.ms(),
        register_timeout_ms: engine.register_timeout.ms(),
        drain_timeout_ms: args.drain_timeout.ms(),
        trace: TraceConfig::from_env(args.trace.trace.clone()),
        ..ServerConfig::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Command;
    use crate::settings;

    fn of(flags: &[&str]) -> ServerConfig {
        let argv = ["baton", "serve"].iter().chain(flags).map(Into::into);
        let Command::Serve(args) = settings::parse(argv).unwrap().command else { unreachable!() };
        config(&args)
    }

    #[test]
    fn the_defaults_are_the_library_s() {
        let library =
            ServerConfig { name: "both".to_owned(), drain_timeout_ms: 10_000, ..ServerConfig::default() };
        assert_eq!(of(&["--model=emulated"]), library);
        of(&["--model=emulated"]).validate().unwrap();
    }

    #[test]
    fn flags_reach_the_engine() {
        let config = of(&[
            "--model=emulated",
            "--role=decode",
            "--kv-memory=2MiB",
            "--no-prefix-cache",
            "--on-lost-kv=fail",
            "--lease=9s",
            "--heartbeat=3s",
            "--advertise-host=engine-7",
            "--emulated-profile=instant",
            "--transport=tcp",
            "--tcp-port=7",
            "--tcp-lanes=3",
            "--tcp-crc",
            "--block-tokens=64",
            "--unit-tokens=8",
            "--kv-ranks=4",
            "--kv-dtype=bf16",
            "--kv-convert",
            "--kv-layout=layer-major",
            "--inline-post",
            "--push-at-end",
            "--hold-first-token",
            "--emulated-layers=80",
            "--emulated-heads=1",
            "--emulated-head-dim=32",
            "--emulated-reads-every=64",
            "--retain-ttl=8m",
            "--retain-max=0.25",
            "--retain-renewable",
            "--reuse-threshold=128",
            "--trace=trace.json",
        ]);
        assert_eq!(config.trace.file.as_deref(), Some("trace.json".as_ref()));
        assert_eq!((config.retain_ttl_ms, config.retain_max), (480_000, 0.25));
        assert_eq!((config.retain_renewable, config.reuse_threshold), (true, 128));
        assert_eq!((config.block_tokens, config.unit_tokens, config.kv_ranks), (64, Some(8), 4));
        assert_eq!((config.kv_dtype, config.kv_convert), (KvDtype::Bf16, true));
        assert_eq!(config.transport, baton_server::TransportKind::Tcp);
        assert_eq!(config.tcp, TcpChoice { port: 7, lanes: 3, crc: true });
        assert_eq!(config.name, "decode");
        assert_eq!(config.kv_memory_bytes, Some(2 << 20));
        assert!(!config.prefix_cache);
        assert_eq!(config.on_lost_kv, baton_server::LostKv::Fail);
        assert_eq!((config.lease_ms, config.heartbeat_ms), (9_000, 3_000));
        assert_eq!(config.side_channel.advertised_host.as_deref(), Some("engine-7"));
        assert_eq!(config.kv_layout, KvOrder::LayerMajor);
        assert!(config.inline_post && config.push_at_end && config.hold_first_token);
        let ModelChoice::Emulated(choice) = config.model else { panic!("{:?}", config.model) };
        assert_eq!((choice.profile.as_str(), choice.model.reads_every), ("instant", 64));
        assert_eq!((choice.layers, choice.kv_heads, choice.head_dim), (80, 1, 32));
    }

    #[test]
    fn a_baseline_is_refused_for_a_real_model() {
        for flag in ["--kv-layout=layer-major", "--inline-post", "--push-at-end"] {
            of(&["--model=emulated", flag]).validate().unwrap();
            let refused = of(&["--model=smollm2", flag]).validate().unwrap_err().to_string();
            assert!(refused.contains("a baseline to measure with the emulated model"), "{refused}");
        }
    }

    #[test]
    fn what_only_the_emulated_model_has_is_refused_for_a_real_one() {
        let check = |flags: &[&str]| {
            let argv = ["baton", "serve"].iter().chain(flags).map(Into::into);
            let Command::Serve(args) = settings::parse(argv).unwrap().command else { unreachable!() };
            checked(&args).map(drop)
        };
        check(&["--model=smollm2", "--emulated-layers=2"]).unwrap();
        for flag in [
            "--emulated-profile=instant",
            "--emulated-tokenizer=smollm2",
            "--emulated-layers=3",
            "--emulated-heads=3",
            "--emulated-head-dim=4",
            "--emulated-reads-every=2",
        ] {
            check(&["--model=emulated", flag]).unwrap();
            let refused = check(&["--model=smollm2", flag]).unwrap_err().to_string();
            let name = flag.split('=').next().unwrap();
            assert_eq!(refused, format!("{name} is for --model=emulated only, not for smollm2"));
        }
    }

    #[test]
    fn what_is_said_about_nixl_reaches_the_transport() {
        let config = of(&[
            "--model=emulated",
            "--transport=nixl",
            "--nixl-port=7",
            "--nixl-backend=libfabric",
            "--nixl-reads=asked",
            "--nixl-param=a=b,c=d=e",
            "--nixl-param=f=",
        ]);
        let NixlChoice { port, backend, reads, params, .. } = config.nixl;
        assert_eq!((port, backend.as_str(), reads.as_str()), (7, "libfabric", "asked"));
        let params: Vec<_> = params.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(params, [("a", "b"), ("c", "d=e"), ("f", "")]);
        assert_eq!(config.transport, baton_server::TransportKind::Nixl);
    }

    #[test]
    fn any_other_model_is_a_checkpoint() {
        let checkpoint = |source: &str, precision| {
            ModelChoice::Checkpoint(CheckpointChoice { source: source.to_owned(), precision })
        };
        assert_eq!(of(&["--model=smollm2"]).model, checkpoint("smollm2", baton_server::Precision::Exact));
        let flags = ["--model=org/name", "--precision=int8"];
        assert_eq!(of(&flags).model, checkpoint("org/name", baton_server::Precision::Int8));
    }
}
