//! Which processes there will be, and what each is told.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use baton_types::EngineRole;

use super::ports::Ports;
use crate::args::{Command, CommonArgs, EngineArgs, Span, Strategy, UpArgs, value_name};
use crate::{route, serve, settings};

/// How long decode engines keep a conversation where its KV is to be reused and nobody said for how long.
const RETAIN_TTL: Span = Span(Duration::from_secs(480));

/// A system: every engine, and the router in front of them.
#[derive(Debug, PartialEq)]
pub struct Plan {
    pub engines: Vec<Process>,
    pub router: Process,
}

/// One process of the system.
#[derive(Clone, Debug, PartialEq)]
pub struct Process {
    pub name: String,
    /// An engine's role, or `router`.
    pub role: &'static str,
    /// Where this machine reaches it.
    pub address: SocketAddr,
    /// Threads that compute; none for the router.
    pub threads: Option<u32>,
    /// What it is told, after the program's name.
    pub argv: Vec<String>,
}

impl Process {
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Plan {
    /// # Errors
    /// If a port is in use, or engines are asked for that the strategy has none of.
    pub fn new(args: &UpArgs, common: &CommonArgs, cores: u32, ports: &mut Ports) -> Result<Self> {
        let split = args.prefill != 1 || args.decode != 1;
        ensure!(
            args.routing.strategy != Strategy::None || !split,
            "--strategy none starts one engine that does both; leave --prefill and --decode out"
        );
        // The router would say so too, but only once everything runs.
        route::strategy(&args.routing)?;
        let port = ports.hold(SocketAddr::new(args.host, args.port), "--port")?;
        let roles = roles(args);
        let threads = args.engine.threads.unwrap_or_else(|| (cores / roles.len() as u32).max(1));
        let mut engines = Vec::with_capacity(roles.len());
        for (role, index) in roles {
            engines.push(engine(args, common, role, index, threads, ports)?);
        }
        let router = router(args, common, SocketAddr::new(args.host, port), &engines);
        Ok(Self { engines, router })
    }

    /// Whether the engines can be what they are told to be: what each of them would say, but before a model is fetched or anything
    /// is started.
    ///
    /// # Errors
    /// What the first engine would say that cannot.
    pub fn check(&self) -> Result<()> {
        self.engines.iter().try_for_each(|engine| {
            let argv = std::iter::once("baton").chain(engine.argv.iter().map(String::as_str));
            let Command::Serve(args) = settings::parse(argv.map(Into::into))?.command else {
                bail!("{} is no engine", engine.name)
            };
            serve::checked(&args).map(drop).with_context(|| engine.name.clone())
        })
    }
}

/// The role of each engine, and its number among those of the role.
fn roles(args: &UpArgs) -> Vec<(EngineRole, u32)> {
    let numbered = |role, count| (0..count).map(move |index| (role, index));
    match args.routing.strategy {
        Strategy::None => vec![(EngineRole::Both, 0)],
        Strategy::Push | Strategy::Pull | Strategy::EarlyPull | Strategy::Bidirectional => {
            let prefill = numbered(EngineRole::Prefill, args.prefill);
            prefill.chain(numbered(EngineRole::Decode, args.decode)).collect()
        }
    }
}

fn engine(
    args: &UpArgs,
    common: &CommonArgs,
    role: EngineRole,
    index: u32,
    threads: u32,
    ports: &mut Ports,
) -> Result<Process> {
    let host = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let port = ports.take()?;
    // The engine tells its peers where it is, so it may as well choose; but not where the user has fixed the ports.
    let side_channel_port = if args.base_port.is_some() { ports.take_unheld()? } else { 0 };
    let name = format!("{role}-{index}");
    let mut argv = vec![
        "serve".to_owned(),
        format!("--role={role}"),
        format!("--name={name}"),
        format!("--host={host}"),
        format!("--port={port}"),
        format!("--side-channel-port={side_channel_port}"),
        format!("--advertise-host={host}"),
    ];
    let (threads, engine) = engine_args(args, role, threads)?;
    argv.extend(engine.to_argv());
    argv.extend(ending_and_log(args, common));
    argv.extend(trace(args));
    Ok(Process {
        name,
        role: role.as_str(),
        address: SocketAddr::new(host, port),
        threads: Some(threads),
        argv,
    })
}

/// What an engine of a role is told, and its threads: by default, `threads`.
fn engine_args(args: &UpArgs, role: EngineRole, threads: u32) -> Result<(u32, EngineArgs)> {
    let mut of_all = EngineArgs { threads: Some(threads), ..args.engine.clone() };
    let retains = args.routing.strategy == Strategy::Bidirectional && role == EngineRole::Decode;
    if retains && of_all.retain_ttl.0.is_zero() {
        of_all.retain_ttl = RETAIN_TTL;
    }
    let (flag, amendment) = match role {
        EngineRole::Prefill => ("--prefill-args", &args.prefill_args),
        EngineRole::Decode => ("--decode-args", &args.decode_args),
        EngineRole::Both => return Ok((threads, of_all)),
    };
    let engine = match amendment {
        Some(flags) => of_all.amended(flags).with_context(|| format!("in {flag}"))?,
        None => of_all,
    };
    Ok((engine.threads.unwrap_or(threads), engine))
}

fn router(args: &UpArgs, common: &CommonArgs, listen: SocketAddr, engines: &[Process]) -> Process {
    // The chat shows which engines answered. Whoever reaches this router has the banner's table anyway.
    let mut argv = vec!["route".to_owned(), format!("--listen={listen}"), "--expose-served-by".to_owned()];
    argv.extend(engines.iter().map(|engine| format!("--{}={}", engine.role, engine.url())));
    argv.extend(args.routing.to_argv());
    argv.extend(ending_and_log(args, common));
    argv.extend(trace(args));
    Process { name: "router".to_owned(), role: "router", address: reachable(listen), threads: None, argv }
}

/// A process ends its requests well before it would be killed.
fn ending_and_log(args: &UpArgs, common: &CommonArgs) -> [String; 3] {
    let drain = args.stop_timeout.0 * 2 / 3;
    [
        format!("--drain-timeout={}", Span(drain)),
        format!("--log-level={}", value_name(common.log_level)),
        format!("--log-format={}", value_name(common.log_format)),
    ]
}

/// All processes write the same file.
fn trace(args: &UpArgs) -> Option<String> {
    args.trace.trace.as_ref().map(|path| format!("--trace={}", path.display()))
}

/// Where this machine reaches what listens on `address`: on every address means on loopback too.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{RouteArgs, ServeArgs};

    fn up(flags: &[&str]) -> (UpArgs, CommonArgs) {
        let argv = ["baton", "up", "--port=0"].into_iter().chain(flags.iter().copied()).map(Into::into);
        let cli = settings::parse(argv).unwrap();
        let Command::Up(args) = cli.command else { unreachable!() };
        (*args, cli.common)
    }

    fn plan(flags: &[&str], cores: u32) -> Plan {
        let (args, common) = up(flags);
        Plan::new(&args, &common, cores, &mut Ports::new(args.base_port)).unwrap()
    }

    fn command(process: &Process) -> Command {
        let argv = std::iter::once("baton").chain(process.argv.iter().map(String::as_str)).map(Into::into);
        settings::parse(argv).unwrap().command
    }

    fn serve(process: &Process) -> ServeArgs {
        let Command::Serve(args) = command(process) else { panic!("{process:?}") };
        *args
    }

    fn route(plan: &Plan) -> RouteArgs {
        let Command::Route(args) = command(&plan.router) else { panic!("{plan:?}") };
        *args
    }

    #[test]
    fn engines_share_the_cores_and_the_router_knows_them_all() {
        let plan = plan(&["--model=emulated", "--prefill=2", "--decode=1"], 8);
        let names: Vec<&str> = plan.engines.iter().map(|engine| engine.name.as_str()).collect();
        assert_eq!(names, ["prefill-0", "prefill-1", "decode-0"]);
        assert!(plan.engines.iter().all(|engine| serve(engine).engine.threads == Some(2)));
        let router = route(&plan);
        assert_eq!(router.prefill, [plan.engines[0].url(), plan.engines[1].url()]);
        assert_eq!(router.decode, [plan.engines[2].url()]);
        assert!(router.both.is_empty() && router.expose_served_by);
    }

    #[test]
    fn without_a_hand_off_one_engine_does_both_with_all_cores() {
        let plan = plan(&["--model=emulated", "--strategy=none"], 8);
        assert_eq!(plan.engines.len(), 1);
        assert_eq!(serve(&plan.engines[0]).role, EngineRole::Both);
        assert_eq!(plan.engines[0].threads, Some(8));
        assert_eq!(route(&plan).both, [plan.engines[0].url()]);
    }

    #[test]
    fn engines_that_the_strategy_has_none_of_are_refused() {
        for flag in ["--prefill=3", "--decode=2"] {
            let (args, common) = up(&["--model=emulated", "--strategy=none", flag]);
            let refused = Plan::new(&args, &common, 8, &mut Ports::new(args.base_port)).unwrap_err();
            assert!(refused.to_string().contains("--strategy none"), "{refused}");
        }
    }

    #[test]
    fn what_an_engine_would_refuse_is_refused_at_once() {
        let check = |flags: &[&str]| plan(flags, 2).check().map_err(|error| format!("{error:#}"));
        for flag in ["--inline-post", "--push-at-end", "--kv-layout=layer-major", "--emulated-layers=80"] {
            check(&["--model=emulated", flag]).unwrap();
            let refused = check(&["--model=smollm2", flag]).unwrap_err();
            assert!(refused.starts_with("prefill-0: "), "{refused}");
            let refused = check(&["--model=smollm2", "--decode-args", flag]).unwrap_err();
            assert!(refused.starts_with("decode-0: ") && refused.contains("emulated"), "{refused}");
        }
        check(&["--model=smollm2"]).unwrap();
        assert!(check(&["--model=emulated", "--heartbeat=29s"]).unwrap_err().contains("heartbeat"));
    }

    #[test]
    fn decode_engines_keep_conversations_where_they_are_reused() {
        let kept = |flags: &[&str]| {
            let plan = plan(&[&["--model=emulated"], flags].concat(), 2);
            [0, 1].map(|i| serve(&plan.engines[i]).engine.retain_ttl.0.as_secs())
        };
        assert_eq!(kept(&[]), [0, 0]);
        let strategy = "--strategy=bidirectional";
        assert_eq!(kept(&[strategy]), [0, 480]);
        assert_eq!(kept(&[strategy, "--retain-ttl=60s"]), [60, 60]);
        assert_eq!(kept(&[strategy, "--decode-args=--retain-ttl=0s"]), [0, 0]);
        assert_eq!(kept(&[strategy, "--decode-args=--retain-ttl=1h --kv-ranks=2"]), [0, 3600]);
    }

    #[test]
    fn a_hand_off_without_conversations_is_refused_before_anything_is_started() {
        let (args, common) = up(&["--model=emulated", "--hand-off=pull"]);
        let refused = Plan::new(&args, &common, 8, &mut Ports::new(args.base_port)).unwrap_err();
        assert!(refused.to_string().contains("--strategy bidirectional only"), "{refused}");
    }

    #[test]
    fn more_engines_than_cores_have_a_thread_each() {
        assert_eq!(plan(&["--model=emulated", "--decode=4"], 2).engines[0].threads, Some(1));
        assert_eq!(plan(&["--model=emulated", "--threads=7"], 2).engines[1].threads, Some(7));
    }

    /// Every setting that `up` shares with the commands it runs is said to them, each with a value that is not the default.
    #[test]
    fn children_are_told_everything() {
        let engine = [
            "--model=m",
            "--precision=int8",
            "--served-model-name=s",
            "--emulated-profile=instant",
            "--emulated-tokenizer=t",
            "--max-model-len=1000",
            "--kv-memory=3MiB",
            "--block-tokens=8",
            "--unit-tokens=4",
            "--kv-ranks=2",
            "--kv-dtype=bf16",
            "--kv-convert",
            "--kv-layout=layer-major",
            "--inline-post",
            "--push-at-end",
            "--hold-first-token",
            "--emulated-layers=3",
            "--emulated-heads=5",
            "--emulated-head-dim=16",
            "--emulated-reads-every=7",
            "--no-prefix-cache",
            "--retain-ttl=9m",
            "--retain-max=0.25",
            "--retain-renewable",
            "--reuse-threshold=65",
            "--max-num-seqs=3",
            "--step-tokens=99",
            "--max-waiting=98",
            "--threads=5",
            "--transport=tcp",
            "--tcp-lanes=3",
            "--tcp-crc",
            "--nixl-backend=libfabric",
            "--nixl-reads=native",
            "--nixl-param=k=v",
            "--nixl-param=l=w",
            "--on-lost-kv=fail",
            "--lease=31s",
            "--heartbeat=6s",
            "--register-timeout=7s",
            "--max-receiving=65",
            "--peer-secret-file=/secret",
            "--peer-tls-cert=/cert",
            "--peer-tls-key=/key",
            "--peer-tls-ca=/ca",
            "--peer-tls-name=engine",
        ];
        let routing = [
            "--strategy=bidirectional",
            "--hand-off=pull",
            "--policy=round-robin",
            "--attempts=4",
            "--max-requests=5",
            "--max-queued=6",
            "--max-legs-per-engine=7",
            "--queue-timeout=8s",
            "--prefill-timeout=9s",
            "--first-byte-timeout=10s",
            "--answer-timeout=11s",
            "--idle-timeout=12s",
            "--max-conversations=13",
            "--conversation-slack=14",
        ];
        let flags = [&engine[..], &routing[..]].concat();
        let (args, _) = up(&flags);
        let plan = plan(&flags, 2);
        assert_eq!(serve(&plan.engines[1]).engine, args.engine);
        assert_eq!(route(&plan).routing, args.routing);
        assert_all_differ(&args.engine, &engine);
        assert_all_differ(&args.routing, &routing);
    }

    /// The list above would not notice a flag that is new.
    fn assert_all_differ<A: clap::Args>(_: &A, said: &[&str]) {
        let command = A::augment_args(clap::Command::new("x"));
        let flags = command.get_arguments().filter_map(clap::Arg::get_long);
        for flag in flags {
            let name = format!("--{flag}");
            assert!(
                said.iter().any(|text| text.split('=').next() == Some(&name)),
                "{name} is not in the test"
            );
        }
    }

    #[test]
    fn all_processes_write_one_trace() {
        let plan = plan(&["--model=emulated", "--trace=dir/trace.json"], 2);
        let traces = [serve(&plan.engines[0]).trace, serve(&plan.engines[1]).trace, route(&plan).trace];
        assert!(traces.iter().all(|args| args.trace.as_deref() == Some("dir/trace.json".as_ref())));
        assert!(!plan_argv(&["--model=emulated"]).any(|arg| arg.starts_with("--trace")));
    }

    fn plan_argv(flags: &[&str]) -> impl Iterator<Item = String> {
        let Plan { engines, router } = plan(flags, 2);
        engines.into_iter().chain([router]).flat_map(|process| process.argv)
    }

    #[test]
    fn the_engines_of_a_role_may_be_told_something_else() {
        let flags =
            ["--model=emulated", "--block-tokens=32", "--prefill-args=--block-tokens=64 --kv-ranks=4"];
        let plan = plan(&[&flags[..], &["--decode-args", "--threads=7"]].concat(), 2);
        let [prefill, decode] = [0, 1].map(|i| serve(&plan.engines[i]).engine);
        assert_eq!((prefill.block_tokens, prefill.kv_ranks, prefill.threads), (64, 4, Some(1)));
        assert_eq!((decode.block_tokens, decode.kv_ranks, decode.threads), (32, 1, Some(7)));
        assert_eq!(plan.engines[1].threads, Some(7));
        let wrong = |flags: &str| {
            let (args, common) = up(&["--model=emulated", &format!("--decode-args={flags}")]);
            format!("{:#}", Plan::new(&args, &common, 2, &mut Ports::new(None)).unwrap_err())
        };
        for flags in ["--port=3", "--kv-ranks=many", "stray"] {
            assert!(wrong(flags).contains("in --decode-args"), "{}", wrong(flags));
        }
    }

    #[test]
    fn ports_follow_the_base() {
        // Two neighbours that are free just now.
        let base = (20_000..30_000)
            .step_by(7)
            .find(|port| (0..4).all(|i| std::net::TcpListener::bind(("127.0.0.1", port + i)).is_ok()));
        let base = base.unwrap();
        let plan = plan(&["--model=emulated", &format!("--base-port={base}")], 2);
        assert_eq!(plan.engines[1].address.port(), base + 2);
        assert_eq!(serve(&plan.engines[1]).side_channel_port, base + 3);
    }

    #[test]
    fn a_router_on_every_address_is_reached_on_loopback() {
        assert_eq!(reachable("0.0.0.0:80".parse().unwrap()), "127.0.0.1:80".parse().unwrap());
        assert_eq!(reachable("[::]:80".parse().unwrap()), "[::1]:80".parse().unwrap());
        assert_eq!(reachable("10.0.0.1:80".parse().unwrap()), "10.0.0.1:80".parse().unwrap());
    }
}
