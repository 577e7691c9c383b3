//! The Kubernetes manifests say only what this program understands, and their times fit together.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::args::{Command, RouteArgs, ServeArgs};
use crate::settings;

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/kubernetes")
}

/// Every object of every manifest.
fn objects() -> Vec<Value> {
    let files = std::fs::read_dir(directory()).unwrap().map(|entry| entry.unwrap().path());
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        let objects: Vec<Value> =
            serde_saphyr::from_multiple(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(!objects.is_empty(), "{}", path.display());
        objects
    };
    let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|end| end == "yaml")).collect();
    files.sort();
    assert_eq!(files.len(), 4);
    files.into_iter().flat_map(read).collect()
}

fn of_kind(kind: &str) -> Vec<Value> {
    objects().into_iter().filter(|object| object["kind"] == kind).collect()
}

fn named(kind: &str, name: &str) -> Value {
    let found = of_kind(kind).into_iter().find(|object| object["metadata"]["name"] == name);
    found.unwrap_or_else(|| panic!("no {kind} {name}"))
}

/// A Deployment's pod, and its only container.
fn pod(name: &str) -> (Value, Value) {
    let deployment = named("Deployment", name);
    let labels = &deployment["spec"]["template"]["metadata"]["labels"];
    for (label, value) in deployment["spec"]["selector"]["matchLabels"].as_object().unwrap() {
        assert_eq!(&labels[label], value, "{name} selects its own pods");
    }
    let pod = deployment["spec"]["template"]["spec"].clone();
    assert_eq!(pod["containers"].as_array().unwrap().len(), 1);
    let container = pod["containers"][0].clone();
    (pod, container)
}

/// What the program makes of a container's arguments, with addresses in the place of what Kubernetes fills in.
fn command(container: &Value) -> Command {
    let texts = container["args"].as_array().unwrap().iter().map(|arg| arg.as_str().unwrap());
    let argv = texts.map(|text| text.replace("$(POD_IP)", "10.0.0.7"));
    let argv: Vec<String> = argv.collect();
    assert!(argv.iter().all(|arg| !arg.contains("$(")), "{argv:?}: a variable that no test knows");
    let argv = ["baton".to_owned()].into_iter().chain(argv).map(Into::into);
    settings::parse(argv).unwrap_or_else(|error| panic!("{error}")).command
}

fn engine(container: &Value) -> ServeArgs {
    let Command::Serve(args) = command(container) else { panic!("{container}") };
    *args
}

fn router(container: &Value) -> RouteArgs {
    let Command::Route(args) = command(container) else { panic!("{container}") };
    *args
}

fn ports(container: &Value) -> Vec<(String, u16)> {
    let port = |port: &Value| {
        let number = port["containerPort"].as_u64().unwrap();
        (port["name"].as_str().unwrap().to_owned(), number.try_into().unwrap())
    };
    container["ports"].as_array().unwrap().iter().map(port).collect()
}

fn bytes(text: &str) -> u64 {
    text.strip_suffix("Gi").unwrap().parse::<u64>().unwrap() << 30
}

#[test]
fn engines_are_started_as_they_should() {
    for role in ["prefill", "decode"] {
        let (pod, container) = pod(&format!("baton-{role}"));
        let args = engine(&container);
        assert_eq!(args.role.to_string(), role);
        assert_eq!(args.name(), format!("baton-{role}"));
        assert!(args.host.is_unspecified(), "others must reach it");
        assert_eq!(
            args.advertise_host.as_deref(),
            Some("10.0.0.7"),
            "what it listens on is no address to dial"
        );
        let named = [("http", args.port), ("side-channel", args.side_channel_port), ("kv", args.tcp_port)];
        assert_eq!(ports(&container), named.map(|(name, port)| (name.to_owned(), port)));

        let memory = bytes(container["resources"]["limits"]["memory"].as_str().unwrap());
        assert!(args.engine.kv_memory.unwrap().0 + (1 << 30) <= memory, "the pool is the container's memory");
        assert_eq!(container["resources"]["limits"]["memory"], container["resources"]["requests"]["memory"]);

        let secret = args.engine.peer_secret_file.unwrap();
        let mounts = container["volumeMounts"].as_array().unwrap();
        let mounted =
            |path: &Path| mounts.iter().find(|mount| Path::new(mount["mountPath"].as_str().unwrap()) == path);
        let volume = &mounted(secret.parent().unwrap()).unwrap()["name"];
        let volumes = pod["volumes"].as_array().unwrap();
        let volume = volumes.iter().find(|known| &known["name"] == volume).unwrap();
        assert_eq!(volume["secret"]["secretName"], "baton-peers");
        assert!(
            Path::new(&args.engine.model).starts_with("/models") && mounted(Path::new("/models")).is_some()
        );
        let names = mounts.iter().map(|mount| &mount["name"]);
        assert!(names.into_iter().all(|name| volumes.iter().any(|volume| &volume["name"] == name)));
    }
}

#[test]
fn engines_may_end_what_they_owe() {
    for role in ["prefill", "decode"] {
        let (pod, container) = pod(&format!("baton-{role}"));
        let args = engine(&container);
        let grace_s = pod["terminationGracePeriodSeconds"].as_u64().unwrap();
        assert!(args.engine.lease.ms() <= args.drain_timeout.ms(), "a drain waits for leases");
        assert!(args.drain_timeout.ms() + 10_000 <= grace_s * 1000, "{role} is killed while it drains");
    }
    let (pod, container) = pod("baton-router");
    let args = router(&container);
    let sleep = container["lifecycle"]["preStop"]["exec"]["command"].as_array().unwrap();
    assert_eq!(sleep[0], "sleep");
    let sleep_s: u64 = sleep[1].as_str().unwrap().parse().unwrap();
    let grace_s = pod["terminationGracePeriodSeconds"].as_u64().unwrap();
    assert!(sleep_s * 1000 + args.drain_timeout.ms() + 10_000 <= grace_s * 1000);
}

#[test]
fn probes_ask_what_is_answered() {
    for name in ["baton-prefill", "baton-decode", "baton-router"] {
        let (_, container) = pod(name);
        let path = |probe: &str| container[probe]["httpGet"]["path"].as_str().map(str::to_owned);
        let is_engine = name != "baton-router";
        assert_eq!(path("readinessProbe").as_deref(), Some("/health"));
        // A model takes a while, and a router waits for nothing of its own.
        assert_eq!(path("startupProbe").as_deref(), is_engine.then_some("/health"));
        // Neither a drain nor missing engines are cured by a kill.
        assert_eq!(path("livenessProbe").as_deref(), Some(if is_engine { "/version" } else { "/metrics" }));
        for probe in ["readinessProbe", "startupProbe", "livenessProbe"] {
            let port = &container[probe]["httpGet"]["port"];
            assert!(
                port.is_null() || ports(&container).iter().any(|(name, _)| port == name),
                "{name} {probe}"
            );
        }
    }
}

#[test]
fn the_router_finds_the_engines_and_clients_find_the_router() {
    let (_, container) = pod("baton-router");
    let args = router(&container);
    assert!(args.listen.ip().is_unspecified());
    assert_eq!(ports(&container), [("http".to_owned(), args.listen.port())]);
    for (role, urls) in [("prefill", &args.prefill), ("decode", &args.decode)] {
        let name = format!("baton-{role}");
        let service = named("Service", &name);
        let port = service["spec"]["ports"][0]["port"].as_u64().unwrap();
        assert_eq!(urls[..], [format!("http://{name}:{port}")]);
        assert_eq!(named("Deployment", &name)["spec"]["replicas"], 1, "behind one URL there is one engine");
    }
    for service in of_kind("Service") {
        let selects = |deployment: &&Value| {
            let labels = &deployment["spec"]["template"]["metadata"]["labels"];
            service["spec"]["selector"]
                .as_object()
                .unwrap()
                .iter()
                .all(|(label, value)| &labels[label] == value)
        };
        let deployments = of_kind("Deployment");
        let selected: Vec<_> = deployments.iter().filter(selects).collect();
        let is_headless = service["spec"]["clusterIP"] == "None";
        assert_eq!(selected.len(), if is_headless { 2 } else { 1 }, "{}", service["metadata"]["name"]);
        for port in service["spec"]["ports"].as_array().unwrap() {
            let target = port["targetPort"].as_str().unwrap();
            for deployment in &selected {
                let ports = ports(&deployment["spec"]["template"]["spec"]["containers"][0]);
                let found = ports.iter().find(|(name, _)| name == target).unwrap();
                assert!(!is_headless || Some(u64::from(found.1)) == port["port"].as_u64());
            }
        }
    }
}

#[test]
fn the_image_starts_this_program() {
    let dockerfile = std::fs::read_to_string(directory().join("../Dockerfile")).unwrap();
    assert!(dockerfile.contains("ENTRYPOINT [\"baton\"]"));
    assert!(dockerfile.contains("--package baton\n") && env!("CARGO_PKG_NAME") == "baton");
    let rust = format!("FROM rust:{}-", env!("CARGO_PKG_RUST_VERSION"));
    assert!(dockerfile.contains(&rust), "no {rust}");
}
