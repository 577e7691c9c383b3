//! `baton route`: the router.

use std::process::ExitCode;

use anyhow::Result;
use baton_router::{EngineConfig, Limits, PolicyKind, RouterConfig};
use baton_types::EngineRole;

use crate::args::{Policy, RouteArgs, Strategy};
use crate::signals;

/// # Errors
/// If the router cannot start, or its socket fails.
pub async fn route(args: &RouteArgs) -> Result<ExitCode> {
    baton_router::serve(config(args), signals::shutdown()?).await?;
    Ok(ExitCode::SUCCESS)
}

fn config(args: &RouteArgs) -> RouterConfig {
    let routing = &args.routing;
    let pools = [
        (EngineRole::Prefill, &args.prefill),
        (EngineRole::Decode, &args.decode),
        (EngineRole::Both, &args.both),
    ];
    let engines = pools
        .into_iter()
        .flat_map(|(role, urls)| urls.iter().map(move |url| EngineConfig { role, url: url.clone() }));
    RouterConfig {
        listen: args.listen,
        engines: engines.collect(),
        strategy: match routing.strategy {
            Strategy::None => baton_router::Strategy::None,
            Strategy::Pull => baton_router::Strategy::Pull,
            Strategy::EarlyPull => baton_router::Strategy::EarlyPull,
            Strategy::Push => baton_router::Strategy::Push,
        },
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
            ..Limits::default()
        },
        probe_interval_ms: args.probe_interval.ms(),
        drain_ms: args.drain_timeout.ms(),
        expose_served_by: args.expose_served_by,
        ..RouterConfig::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Command;
    use crate::settings;

    fn of(flags: &[&str]) -> RouterConfig {
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
    }
}
