//! `baton chat`, and where its settings come from.

use std::io::{Read, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::program::{System, baton, send, stderr, stdout, wait};

#[test]
fn one_question_and_a_conversation() {
    let system = System::start(&[]);
    let url = system.url();
    let once = baton(&["chat", "--url", &url, "--once", "Who runs?", "--max-tokens=8"]).output().unwrap();
    assert!(once.status.success(), "{}", stderr(&once));
    let figures = stderr(&once);
    assert!(!stdout(&once).is_empty());
    for part in ["TTFT ", "TPOT ", "8 tokens", "prompt tokens cached", "push: prefill-0 -> decode-0"] {
        assert!(figures.contains(part), "{part}: {figures}");
    }

    let mut piped = baton(&["chat", "--url", &url, "--max-tokens=8", "--temperature=0"]);
    let mut piped =
        piped.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    piped.stdin.take().unwrap().write_all(b"one\n\ntwo\n/reset\none\n/quit\nnever\n").unwrap();
    let output = piped.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let said = stderr(&output);
    let prompts: Vec<u32> = said
        .lines()
        .filter_map(|line| line.split(" prompt tokens").next()?.rsplit(' ').next()?.parse().ok())
        .collect();
    assert_eq!(prompts.len(), 3, "{said}");
    assert!(prompts[1] > prompts[0], "the history goes along: {prompts:?}");
    assert_eq!(prompts[2], prompts[0], "until it is reset: {prompts:?}");
    system.signal(Signal::INT);
    system.wait();
}

#[test]
fn ctrl_c_ends_an_answer_and_the_work_on_it() {
    let system = System::start(&["--emulated-profile=tiny"]);
    let mut chat = baton(&["chat", "--url", &system.url(), "--once", "Count.", "--max-tokens=20000"]);
    let mut chat = chat.stdout(Stdio::piped()).spawn().unwrap();
    // The first words are there, the last ones would take half a minute.
    chat.stdout.as_mut().unwrap().read_exact(&mut [0; 16]).unwrap();
    send(chat.id(), Signal::INT);
    assert_eq!(wait(&mut chat).code(), Some(130));
    let start = Instant::now();
    system.signal(Signal::INT);
    let (status, said) = system.wait();
    assert_eq!(status.code(), Some(0), "{said}");
    assert!(start.elapsed() < Duration::from_secs(5), "nobody generates on: {said}");
}

#[test]
fn without_a_system_it_says_how_to_start_one() {
    let output = baton(&["chat", "--url=http://127.0.0.1:1", "--once=hi"]).output().unwrap();
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("nothing answers at http://127.0.0.1:1:") && said.contains("baton up"), "{said}");
    let output = baton(&["chat", "--url=https://127.0.0.1:1", "--once=hi"]).output().unwrap();
    assert!(stderr(&output).contains("https is not supported"), "{}", stderr(&output));
}

/// Flag, environment, file, default: each is taken away in turn, and the error tells which address was tried.
#[test]
fn settings_come_from_the_nearest_place() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"[chat]\nurl = \"http://127.0.0.1:3\"\n").unwrap();
    let tried = |flags: &[&str], environment: &[(&str, &str)]| {
        let argv = [&["chat", "--once=hi"], flags].concat();
        stderr(&baton(&argv).envs(environment.iter().copied()).output().unwrap())
    };
    let path = file.path().to_str().unwrap();
    let (config, url) = (("BATON_CONFIG", path), ("BATON_CHAT_URL", "http://127.0.0.1:2"));
    assert!(tried(&["--url=http://127.0.0.1:1"], &[config, url]).contains("127.0.0.1:1:"), "flag");
    assert!(tried(&[], &[config, url]).contains("127.0.0.1:2:"), "environment");
    assert!(tried(&[], &[config]).contains("127.0.0.1:3:"), "file");
    let wrong = tried(&[], &[("BATON_LOG", "=,=")]);
    assert!(wrong.contains("BATON_LOG"), "{wrong}");
}

#[test]
fn the_version_is_told() {
    let output = baton(&["--version"]).output().unwrap();
    assert_eq!(stdout(&output), format!("baton {}\n", env!("CARGO_PKG_VERSION")));
}
