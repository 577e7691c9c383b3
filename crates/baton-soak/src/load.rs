//! Clients that ask without pause and look at every answer.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{Scope, sleep};
use std::time::Duration;

use crate::client::{Client, Got};
use crate::prompts::{self, PROMPTS};

/// So many wrong answers are kept to be shown.
const MAX_SHOWN: usize = 20;
/// A client that was refused does not ask again at once.
const PAUSE: Duration = Duration::from_millis(20);

/// What the clients saw.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub requests: u64,
    pub right: u64,
    /// Errors in OpenAI's shape, by kind.
    pub clean_errors: BTreeMap<String, u64>,
    /// Connections that broke because the router died.
    pub router_died: u64,
    pub wrong: u64,
    pub shown: Vec<String>,
}

impl Tally {
    pub fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.right += other.right;
        for (kind, count) in other.clean_errors {
            *self.clean_errors.entry(kind).or_default() += count;
        }
        self.router_died += other.router_died;
        self.wrong += other.wrong;
        self.shown.extend(other.shown);
        self.shown.truncate(MAX_SHOWN);
    }
}

/// Counts the router's deaths and its returns, so that a broken connection can be laid at its door, or not.
#[derive(Debug, Default)]
pub struct RouterLives(AtomicU64);

impl RouterLives {
    /// Before it is killed, and once it is healthy again.
    pub fn change(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn mark(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    /// Whether it was dead, or died, since the mark.
    fn died_since(&self, mark: u64) -> bool {
        mark % 2 == 1 || self.mark() != mark
    }
}

/// Load on one router.
#[derive(Debug)]
pub struct Load<'a> {
    router: SocketAddr,
    /// The right answer to each prompt.
    right: &'a [String],
    pub lives: RouterLives,
    stop: AtomicBool,
    tally: Mutex<Tally>,
}

impl<'a> Load<'a> {
    pub fn new(router: SocketAddr, right: &'a [String]) -> Self {
        assert_eq!(right.len(), PROMPTS, "one answer for each prompt");
        Self {
            router,
            right,
            lives: RouterLives::default(),
            stop: AtomicBool::new(false),
            tally: Mutex::default(),
        }
    }

    /// Starts so many clients; they end when the guard is dropped.
    pub fn start<'s>(&'s self, scope: &'s Scope<'s, '_>, clients: usize) -> Running<'s> {
        for client in 0..clients {
            scope.spawn(move || self.ask_on(client));
        }
        Running(&self.stop)
    }

    fn ask_on(&self, client: usize) {
        let http = Client::default();
        // Each client walks through all prompts with a step of its own.
        for n in (0..).map(|i: usize| (i * 7 + client * 11) % PROMPTS) {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            let mark = self.lives.mark();
            let got = http.complete(self.router, &prompts::ask(n));
            let pause = !matches!(got, Got::Text(_));
            self.judge(n, got, mark);
            if pause {
                sleep(PAUSE);
            }
        }
    }

    fn judge(&self, n: usize, got: Got, mark: u64) {
        let right = &self.right[n];
        let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        tally.requests += 1;
        match got {
            Got::Text(text) if text == *right => tally.right += 1,
            // What was said before an error was right as well.
            Got::CleanError { kind, text } if right.starts_with(&text) => {
                *tally.clean_errors.entry(kind).or_default() += 1;
            }
            Got::Broken(_) if self.lives.died_since(mark) => tally.router_died += 1,
            wrong => {
                tally.wrong += 1;
                if tally.shown.len() < MAX_SHOWN {
                    tally.shown.push(format!("prompt {n}: {wrong:?}, and right is {right:?}"));
                }
            }
        }
    }

    pub fn into_tally(self) -> Tally {
        self.tally.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends the clients when it is dropped, also by a panic.
#[derive(Debug)]
pub struct Running<'s>(&'s AtomicBool);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(got: Got, router_dies: bool) -> Tally {
        let right: Vec<String> = (0..PROMPTS).map(|n| format!("answer {n}")).collect();
        let load = Load::new("127.0.0.1:1".parse().unwrap(), &right);
        let mark = load.lives.mark();
        if router_dies {
            load.lives.change();
        }
        load.judge(3, got, mark);
        load.into_tally()
    }

    #[test]
    fn only_the_right_words_are_right() {
        assert_eq!(judged(Got::Text("answer 3".into()), false).right, 1);
        assert_eq!(judged(Got::Text("answer 4".into()), true).wrong, 1, "somebody else's");
        assert_eq!(judged(Got::Text("answer".into()), true).wrong, 1, "cut off");
        let error = |text: &str| Got::CleanError { kind: "502 x".into(), text: text.into() };
        assert_eq!(judged(error("ans"), false).clean_errors["502 x"], 1);
        assert_eq!(judged(error("wrong"), false).wrong, 1);
        assert_eq!(judged(Got::Wrong("no end".into()), true).wrong, 1);
    }

    #[test]
    fn a_broken_connection_is_the_router_s_death_or_wrong() {
        assert_eq!(judged(Got::Broken("reset".into()), false).wrong, 1);
        assert_eq!(judged(Got::Broken("reset".into()), true).router_died, 1);
    }
}
