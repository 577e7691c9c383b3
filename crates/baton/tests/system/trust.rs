//! The secret between engines: told where it must be, and nowhere else.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::program::{baton, free_port, send, stdout, wait};

const SECRET: &str = "a secret that nobody is to see";

/// Runs an engine, lets a stranger say `said` on its side channel, and gives what it logged; its arguments are looked at meanwhile.
fn log_of(flags: &[&str], environment: &[(&str, &str)], said: &[u8]) -> String {
    let (port, side) = (free_port(), free_port());
    let ports = [format!("--port={port}"), format!("--side-channel-port={side}")];
    let argv = [&["serve", "--model=emulated", "--kv-memory=16MiB"], flags].concat();
    let mut command = baton(&argv);
    command.args(ports).envs(environment.iter().copied());
    let mut engine = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut stranger = loop {
        match TcpStream::connect(("127.0.0.1", side)) {
            Ok(stream) => break stream,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let arguments = std::fs::read(format!("/proc/{}/cmdline", engine.id())).unwrap();
    assert!(!String::from_utf8_lossy(&arguments).contains(SECRET));
    stranger.write_all(said).unwrap();
    stranger.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    // Until it is cut off; how is the engine's affair.
    let _ = stranger.read_to_end(&mut Vec::new());
    send(engine.id(), Signal::TERM);
    let mut log = String::new();
    engine.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    wait(&mut engine);
    assert!(!log.contains(SECRET), "{log}");
    log
}

#[test]
fn a_mismatch_is_told_and_the_secret_is_not() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "{SECRET}").unwrap();
    let flag = format!("--peer-secret-file={}", file.path().display());
    // A frame, as an engine without a secret begins.
    let hello = [&[30, 0, 0, 0, 0, 1, 0][..], &[7; 80]].concat();
    let without = "it speaks without the peer secret that this engine has";
    assert!(log_of(&[&flag], &[], &hello).contains(without));
    assert!(log_of(&[], &[("BATON_PEER_SECRET", SECRET)], &hello).contains(without));
    let wrong = [&b"\xffBATON-1"[..], &[7; 64]].concat();
    let log = log_of(&[&flag], &[], &wrong);
    assert!(log.contains("its peer secret is not the one that this engine has"), "{log}");
    let log = log_of(&[], &[], &wrong);
    assert!(log.contains("it asks for a peer secret, and this engine has none"), "{log}");
    let log = log_of(&[], &[], &[0x16, 3, 1, 2, 0, 1, 0]);
    assert!(log.contains("it speaks TLS, and this engine does not"), "{log}");
}

#[test]
fn a_secret_that_is_none_ends_the_start_and_help_shows_nothing() {
    let short = baton(&["serve", "--model=emulated"]).env("BATON_PEER_SECRET", "too short").output().unwrap();
    let said = String::from_utf8_lossy(&short.stderr).into_owned();
    assert_eq!(short.status.code(), Some(1));
    assert!(said.contains("BATON_PEER_SECRET") && !said.contains("too short"), "{said}");
    let help = baton(&["serve", "--help"]).env("BATON_PEER_SECRET", SECRET).output().unwrap();
    assert!(stdout(&help).contains("--peer-secret-file") && !stdout(&help).contains(SECRET));
}
