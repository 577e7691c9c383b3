//! Runs the binary and looks at what it leaves.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::AtomicU16;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Longer than anything takes, even on a machine with something else to do.
const PATIENCE: Duration = Duration::from_secs(60);

/// The binary, without settings from the environment.
pub fn baton(argv: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_baton"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("BATON_")) {
        command.env_remove(name);
    }
    command.args(argv);
    command
}

/// A port that nobody listens on and that no connection is given: the system takes those from 32,768 on.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    // Another run of the tests begins elsewhere.
    let first = 12_000 + (std::process::id() % 1000) as u16 * 20;
    std::iter::repeat_with(|| first + NEXT.fetch_add(1, Relaxed)).find(is_free).unwrap()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A `baton up` that has said that everything runs.
#[derive(Debug)]
pub struct System {
    up: Child,
    out: BufReader<ChildStdout>,
    err: Option<JoinHandle<String>>,
    pub banner: String,
}

/// A row of the banner's table.
#[derive(Clone, Debug)]
pub struct Place {
    pub name: String,
    pub url: String,
    pub pid: u32,
}

impl System {
    pub fn start(flags: &[&str]) -> Self {
        let mut argv = [&["up", "--port=0"], flags].concat();
        let is_emulated =
            flags.iter().all(|flag| !flag.starts_with("--model=") || *flag == "--model=emulated");
        for default in ["--model=emulated", "--kv-memory=16MiB", "--emulated-profile=instant"] {
            let name = default.split('=').next().unwrap();
            let fits = is_emulated || !name.starts_with("--emulated");
            if fits && !flags.iter().any(|flag| flag.starts_with(name)) {
                argv.push(default);
            }
        }
        let mut up = baton(&argv).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(up.stdout.take().unwrap());
        let mut err = up.stderr.take().unwrap();
        let err = thread::spawn(move || {
            let mut text = Vec::new();
            err.read_to_end(&mut text).unwrap();
            String::from_utf8_lossy(&text).into_owned()
        });
        let mut banner = String::new();
        while !banner.contains("Ctrl-C stops everything") {
            if out.read_line(&mut banner).unwrap() == 0 {
                panic!("up ended: {}", err.join().unwrap());
            }
        }
        Self { up, out, err: Some(err), banner }
    }

    pub fn places(&self) -> Vec<Place> {
        let rows = self.banner.lines().filter(|line| line.contains("http://") && !line.contains("--url"));
        let rows = rows.filter(|line| !line.contains("curl"));
        let place = |line: &str| {
            let cells: Vec<&str> = line.split_whitespace().collect();
            Place { name: cells[0].to_owned(), url: cells[2].to_owned(), pid: cells[3].parse().unwrap() }
        };
        rows.map(place).collect()
    }

    pub fn place(&self, name: &str) -> Place {
        self.places().into_iter().find(|place| place.name == name).unwrap()
    }

    pub fn url(&self) -> String {
        self.place("router").url
    }

    /// A `baton up` that still waits for its engines, and what it has said.
    pub fn starting(flags: &[&str]) -> (Child, BufReader<ChildStderr>) {
        let argv = [&["up", "--model=emulated", "--kv-memory=16MiB", "--port=0"], flags].concat();
        let mut up = baton(&argv).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(up.stderr.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert!(line.starts_with("waiting for prefill-0"), "{line}");
        (up, said)
    }

    pub fn signal(&self, signal: Signal) {
        send(self.up.id(), signal);
    }

    /// Waits for the end; what it said on standard error.
    pub fn wait(mut self) -> (ExitStatus, String) {
        let status = wait(&mut self.up);
        let mut rest = String::new();
        self.out.read_to_string(&mut rest).unwrap();
        (status, self.err.take().unwrap().join().unwrap())
    }
}

impl Drop for System {
    fn drop(&mut self) {
        // A test that failed: the kernel takes the children along.
        let _ = self.up.kill();
        let _ = self.up.wait();
    }
}

pub fn send(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
}

pub fn wait(child: &mut Child) -> ExitStatus {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match child.try_wait().unwrap() {
            Some(status) => return status,
            None if Instant::now() > deadline => panic!("{child:?} does not end"),
            None => sleep(Duration::from_millis(10)),
        }
    }
}

/// Whether a process runs; one that has ended and that nobody has waited for does not.
pub fn runs(pid: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    !stat.rsplit(") ").next().unwrap().starts_with('Z')
}

/// Waits until none of them runs any more.
pub fn assert_gone(places: &[Place], limit: Duration) {
    let deadline = Instant::now() + limit;
    while let Some(place) = places.iter().find(|place| runs(place.pid)) {
        assert!(Instant::now() < deadline, "{} (pid {}) still runs", place.name, place.pid);
        sleep(Duration::from_millis(10));
    }
}

/// The whole answer to a POST, headers included.
pub fn post(url: &str, path: &str, body: &str) -> String {
    request(url, "POST", path, "", body)
}

/// The same with a header of the request's own.
pub fn post_with(url: &str, path: &str, (name, value): (&str, &str), body: &str) -> String {
    request(url, "POST", path, &format!("{name}: {value}\r\n"), body)
}

/// The same of a GET.
pub fn get(url: &str, path: &str) -> String {
    request(url, "GET", path, "", "")
}

/// `headers`: further lines of the head, each with its end.
fn request(url: &str, method: &str, path: &str, headers: &str, body: &str) -> String {
    let host = url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-type: application/json\r\n"
    );
    stream.write_all(format!("{head}{headers}content-length: {length}\r\n\r\n{body}").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}
