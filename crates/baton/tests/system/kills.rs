//! SIGKILL of each kind of process in the middle of requests: every client gets the right answer or one clean error, the others go on,
//! and no block stays in use.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::program::{baton, free_port, send, wait};

const PATIENCE: Duration = Duration::from_secs(60);

/// Two prefill engines, two decode engines and a router, started one by one as an operator would.
struct Cluster {
    children: Vec<(&'static str, u16, Child)>,
    strategy: &'static str,
}

const ENGINES: [&str; 4] = ["prefill-0", "prefill-1", "decode-0", "decode-1"];

impl Cluster {
    fn start(strategy: &'static str) -> Self {
        let mut cluster = Self { children: Vec::new(), strategy };
        for name in ENGINES {
            cluster.spawn(name, free_port());
        }
        cluster.spawn("router", free_port());
        for name in ENGINES {
            cluster.await_healthy(name);
        }
        cluster.await_healthy("router");
        cluster
    }

    fn spawn(&mut self, name: &'static str, port: u16) {
        let url = |name: &str| format!("http://127.0.0.1:{}", self.port(name));
        let argv: Vec<String> = match name.split_once('-') {
            Some((role, _)) => {
                let mut argv = vec!["serve".into(), format!("--role={role}"), format!("--name={name}")];
                argv.extend([
                    format!("--port={port}"),
                    "--side-channel-port=0".into(),
                    "--model=emulated".into(),
                ]);
                argv.extend(["--kv-memory=16MiB".into(), "--lease=2s".into(), "--heartbeat=500ms".into()]);
                argv
            }
            None => {
                let mut argv = vec!["route".into(), format!("--listen=127.0.0.1:{port}")];
                argv.push(format!("--strategy={}", self.strategy));
                argv.extend(
                    ENGINES.map(|name| format!("--{}={}", name.split('-').next().unwrap(), url(name))),
                );
                argv
            }
        };
        let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
        let child = baton(&argv).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        self.children.retain(|(known, ..)| *known != name);
        self.children.push((name, port, child));
    }

    fn port(&self, name: &str) -> u16 {
        self.children.iter().find(|(known, ..)| *known == name).unwrap().1
    }

    fn await_healthy(&self, name: &str) {
        let deadline = Instant::now() + PATIENCE;
        while !get(self.port(name), "/health").is_some_and(|answer| answer.starts_with("HTTP/1.1 200")) {
            assert!(Instant::now() < deadline, "{name} does not become healthy");
            sleep(Duration::from_millis(20));
        }
    }

    /// Dies in the middle of whatever it does, and is started again at the same address.
    fn kill_and_restart(&mut self, name: &'static str) {
        let (_, port, child) = self.children.iter_mut().find(|(known, ..)| *known == name).unwrap();
        let port = *port;
        send(child.id(), Signal::KILL);
        wait(child);
        sleep(Duration::from_millis(100));
        self.spawn(name, port);
        self.await_healthy(name);
    }

    fn blocks_in_use(&self, name: &str) -> u64 {
        let answer = get(self.port(name), "/baton/info").unwrap();
        let json: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
        let load = &json["load"];
        load["kv_blocks_total"].as_u64().unwrap() - load["kv_blocks_free"].as_u64().unwrap()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for (_, _, child) in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn get(port: u16, path: &str) -> Option<String> {
    exchange(port, &format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"))
}

/// None if the connection broke before the answer was whole.
fn exchange(port: u16, request: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    match stream.read_to_string(&mut answer) {
        Ok(_) if !answer.is_empty() => Some(answer),
        Ok(_) => None,
        Err(e) => {
            assert!(e.kind() != std::io::ErrorKind::WouldBlock, "an answer that never comes");
            None
        }
    }
}

#[derive(Debug, PartialEq)]
enum Got {
    Text(String),
    CleanError,
    /// Only the router's own death may look like this.
    Broken,
}

fn complete(port: u16, prompt: &str) -> Got {
    let body = json!({"prompt": prompt, "max_tokens": 40, "temperature": 0, "ignore_eos": true}).to_string();
    let head =
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json";
    let Some(answer) = exchange(port, &format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()))
    else {
        return Got::Broken;
    };
    let Some((head, body)) = answer.split_once("\r\n\r\n") else { return Got::Broken };
    let Ok(json) = serde_json::from_str::<Value>(body) else { return Got::Broken };
    if head.starts_with("HTTP/1.1 200") {
        return Got::Text(json["choices"][0]["text"].as_str().unwrap().to_owned());
    }
    assert!(head.starts_with("HTTP/1.1 5"), "{answer}");
    assert!(json["error"]["message"].is_string(), "{answer}");
    Got::CleanError
}

fn prompt(n: usize) -> String {
    format!("{} prompt number {n} {}", "shared beginning ".repeat(n % 7), "and more ".repeat(n % 50))
}

const PROMPTS: usize = 40;

fn kill_under_load(strategy: &'static str) {
    let mut cluster = Cluster::start(strategy);
    let router = cluster.port("router");
    let right: Vec<Got> = (0..PROMPTS).map(|n| complete(router, &prompt(n))).collect();
    assert!(
        right.iter().all(|got| matches!(got, Got::Text(_))),
        "without faults there are no errors: {right:?}"
    );
    let (stop, router_down) = (AtomicBool::new(false), AtomicBool::new(false));
    let (good, errors) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for client in 0..8 {
            let (stop, router_down, good, errors, right) = (&stop, &router_down, &good, &errors, &right);
            scope.spawn(move || {
                for n in (0..).map(|n| (n * 8 + client) % PROMPTS) {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let was_down = router_down.load(Ordering::SeqCst);
                    match complete(router, &prompt(n)) {
                        Got::Broken => {
                            let down = was_down || router_down.load(Ordering::SeqCst);
                            assert!(down, "a broken answer from a living router");
                            sleep(Duration::from_millis(20));
                        }
                        Got::CleanError => _ = errors.fetch_add(1, Ordering::Relaxed),
                        text => {
                            assert_eq!(text, right[n], "prompt {n}: somebody else's words");
                            good.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
        let _stop = StopOnDrop(&stop);
        for victim in ["prefill-0", "decode-0", "prefill-1", "decode-1", "decode-0", "prefill-0"] {
            sleep(Duration::from_millis(300));
            cluster.kill_and_restart(victim);
        }
        router_down.store(true, Ordering::SeqCst);
        cluster.kill_and_restart("router");
        sleep(Duration::from_millis(300));
        router_down.store(false, Ordering::SeqCst);
        sleep(Duration::from_millis(500));
    });
    println!("{strategy}: {} right answers, {} clean errors", good.into_inner(), errors.into_inner());
    for (n, right) in right.iter().enumerate() {
        assert_eq!(complete(router, &prompt(n)), *right, "the system is whole again");
    }
    let deadline = Instant::now() + PATIENCE;
    while let Some(name) = ENGINES.iter().find(|name| cluster.blocks_in_use(name) > 0) {
        assert!(Instant::now() < deadline, "I8: {name} keeps {} blocks", cluster.blocks_in_use(name));
        sleep(Duration::from_millis(50));
    }
}

/// So that the clients end when the killer panics.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn under_push() {
    kill_under_load("push");
}

#[test]
fn under_pull() {
    kill_under_load("pull");
}
