//! `baton route`: the router.

use std::process::ExitCode;

use anyhow::{Result, ensure};
use baton_router::{
    BoundRouter, ConversationLimits, EngineConfig, Limits, PolicyKind, RouterConfig, TraceConfig,
};
use baton_types::{EngineRole, TransferMode};

use crate::args::{HandOff, Policy, RouteArgs, RoutingArgs, Strategy, value_name};
use crate::{descriptors, signals, up};

/// # Errors
/// If the settings contradict each other, the router cannot start, or its socket fails.
pub async fn route(args: &RouteArgs) -> Result<ExitCode> {
    let mut config = config(args)?;
    config.max_connections = config.max_connections.min(descriptors::for_clients() as usize);
    let router = match up::inherited_listener()? {
        Some(listener) => BoundRouter::on(listener, config)?,
        None => BoundRouter::bind(config).await?,
    };
    router.run(signals::shutdown()?).await?;
    Ok(ExitCode::SUCCESS)
}

/// # Errors
/// If a hand-off is chosen that the strategy does not leave open.
pub fn strategy(routing: &RoutingArgs) -> Result<baton_router::Strategy> {
    let strategy = match routing.strategy {
        Strategy::None => baton_router::Strategy::None,
        Strategy::Pull => baton_router::Strategy::Pull,
        Strategy::EarlyPull => baton_router::Strategy::EarlyPull,
        Strategy::Push => baton_router::Strategy::Push,
        Strategy::Bidirectional => {
            return Ok(baton_router::Strategy::Bidirectional(match routing.hand_off {
                None | Some(HandOff::Push) => TransferMode::Push,
                Some(HandOff::Pull) => TransferMode::Pull,
                Some(HandOff::EarlyPull) => TransferMode::EarlyPull,
            }));
        }
    };
    ensure!(
        routing.hand_off.is_none(),
        "--hand-off goes with --strategy bidirectional only; --strategy {} says it all",
        value_name(routing.strategy)
    );
    Ok(strategy)
}

fn config(args: &RouteArgs) -> Result<RouterConfig> {
    let routing = &args.routing;
    let pools = [
        (EngineRole::Prefill, &args.prefill),
        (EngineRole::Decode, &args.decode),
        (EngineRole::Both, &args.both),
    ];
    let engines = pools
        .into_iter()
        .flat_map(|(role, urls)| urls.iter().map(move |url| EngineConfig { role, url: url.clone() }));
    Ok(RouterConfig {
        listen: args.listen,
        engines: engines.collect(),
        strategy: strategy(routing)?,
        policy: match routing.policy {
            Policy::RoundRobin => PolicyKind::RoundRobin,
            Policy::LeastLoaded => PolicyKind::LeastLoaded,
        },
        limits: Limits {
            max_requests: routing.max_requests,
            max_queued: routing.max_queued,
            max_legs_per_engine: routing.max_legs_per_engine,
            attempts: routing.attempts,
            queue_ms: routing.queue_timeout.ms(),
            prefill_ms: routing.prefill_timeout.ms(),
            first_byte_ms: routing.first_byte_timeout.ms(),
            answer_ms: routing.answer_timeout.ms(),
            idle_ms: routing.idle_timeout.ms(),
            probe_failures: args.probe_failures,
            conversations: ConversationLimits {
                entries: routing.max_conversations,
                slack: routing.conversation_slack,
                ..ConversationLimits::default()
            },
            ..Limits::default()
        },
        probe_interval_ms: args.probe_interval.ms(),
        drain_ms: args.drain_timeout.ms(),
        expose_served_by: args.expose_served_by,
        tenant_header: args.tenant_header.clone(),
        trace: TraceConfig::from_env(args.trace.trace.clone()),
        ..RouterConfig::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Command;
    use crate::settings;

    fn of(flags: &[&str]) -> RouterConfig {
        try_of(flags).unwrap()
    }

    fn try_of(flags: &[&str]) -> Result<RouterConfig> {
        let argv = ["baton", "route"].into_iter().chain(flags.iter().copied()).map(Into::into);
        let Command::Route(args) = settings::parse(argv).unwrap().command else { unreachable!() };
        config(&args)
    }

    #[test]
    fn the_defaults_are_the_library_s() {
        let listen = "127.0.0.1:8000".parse().unwrap();
        assert_eq!(of(&[]), RouterConfig { listen, drain_ms: 10_000, ..RouterConfig::default() });
    }

    #[test]
    fn engines_keep_their_roles() {
        let config =
            of(&["--decode=http://d0,http://d1", "--prefill=http://p", "--both=http://b", "--strategy=pull"]);
        let engines: Vec<(EngineRole, &str)> =
            config.engines.iter().map(|e| (e.role, e.url.as_str())).collect();
        assert_eq!(
            engines,
            [
                (EngineRole::Prefill, "http://p"),
                (EngineRole::Decode, "http://d0"),
                (EngineRole::Decode, "http://d1"),
                (EngineRole::Both, "http://b"),
            ]
        );
        assert_eq!(config.strategy, baton_router::Strategy::Pull);
        assert_eq!(of(&["--trace=trace.json"]).trace.file.as_deref(), Some("trace.json".as_ref()));
        assert_eq!(of(&["--tenant-header=x-team"]).tenant_header.as_deref(), Some("x-team"));
    }

    #[test]
    fn a_hand_off_goes_with_conversations_only() {
        let bidirectional = |flags: &[&str]| of(&[&["--strategy=bidirectional"], flags].concat()).strategy;
        for (flags, expected) in [
            (&[][..], TransferMode::Push),
            (&["--hand-off=push"], TransferMode::Push),
            (&["--hand-off=pull"], TransferMode::Pull),
            (&["--hand-off=early-pull"], TransferMode::EarlyPull),
        ] {
            assert_eq!(bidirectional(flags), baton_router::Strategy::Bidirectional(expected));
        }
        for strategy in ["push", "pull", "early-pull", "none"] {
            let wrong = try_of(&["--hand-off=pull", &format!("--strategy={strategy}")]).unwrap_err();
            assert!(wrong.to_string().contains("--strategy bidirectional only"), "{wrong}");
        }
    }
}
