//! I3 with real processes, for each transport as docs/protocol.md states its fence: a decode engine whose writer falls silent in the
//! middle of a hand-off gives the writer up, but its blocks are free only when nothing can write into them any more.

use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use baton_soak::client::Client;
use baton_soak::{Ask, Cluster, Member, Recipe};
use rustix::process::Signal;

/// Of the cluster's engines; see `baton-soak`.
const LEASE: Duration = Duration::from_secs(2);
/// Longer than anything here takes, unless it never happens.
const SOON: Duration = Duration::from_secs(30);
const DECODE: [Member; 2] = [Member::Decode(0), Member::Decode(1)];
const PREFILL: [Member; 2] = [Member::Prefill(0), Member::Prefill(1)];
/// Two thousand tokens take 0.3 s, so that prefill engines have not computed and written all of them before they are stopped.
const SLOW: &str = "glm-5-tp8";
const REQUESTS: usize = 8;

/// Who may still write into a pool whose writer is stopped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fence {
    /// The writer itself, once it runs again.
    OfThePeer,
    /// Nobody: it is our own side that writes.
    OfOurOwn,
}

struct Place {
    cluster: Cluster,
    client: Client,
}

impl Place {
    fn new(transport: &'static str) -> Self {
        let recipe = Recipe {
            binary: env!("CARGO_BIN_EXE_baton").into(),
            strategy: "push",
            transport,
            engine_args: vec![format!("--emulated-profile={SLOW}")],
            logs: None,
        };
        Self { cluster: Cluster::start(recipe, None).unwrap(), client: Client::default() }
    }

    /// Blocks of both decode engines in that state.
    fn blocks(&self, state: &str) -> u64 {
        let of = |engine: Member| {
            let page = self.client.get(self.cluster.address(engine), "/metrics", SOON).unwrap();
            let name = format!("baton_kv_blocks{{state=\"{state}\"}} ");
            let value = page.lines().find_map(|line| line.strip_prefix(&name)).unwrap();
            value.parse::<f64>().unwrap() as u64
        };
        DECODE.into_iter().map(of).sum()
    }

    fn wait_until(&self, what: &str, goal: impl Fn(&Self) -> bool) {
        let begin = Instant::now();
        while !goal(self) {
            assert!(begin.elapsed() < SOON, "{what} never happened");
            sleep(Duration::from_millis(2));
        }
    }

    /// Requests at once, each on its own.
    fn ask(&self, words: usize) -> Vec<JoinHandle<()>> {
        let router = self.cluster.address(Member::Router);
        let ask = |n: usize| {
            let client = self.client.clone();
            let prompt = format!("{n} {}", "so that it takes a while ".repeat(words));
            spawn(move || {
                client.complete(router, &Ask { prompt, max_tokens: 4, stream: false });
            })
        };
        (0..REQUESTS).map(ask).collect()
    }

    /// Requests whose clients wait for no answer, until their KV is on its way.
    fn begin_hand_offs(&self) {
        // A writer that is stopped before it has a path to us has none that could be fenced.
        self.ask(1).into_iter().for_each(|client| client.join().unwrap());
        self.ask(80);
        self.wait_until("a hand-off", |place| place.blocks("receiving") > 0);
    }

    fn signal_writers(&self, signal: Signal) {
        PREFILL.into_iter().for_each(|engine| self.cluster.signal(engine, signal).unwrap());
    }
}

fn free_blocks_only_after(fence: Fence, transport: &'static str, end: Signal) {
    let place = Place::new(transport);
    place.begin_hand_offs();
    place.signal_writers(Signal::STOP);
    // They are given up after a lease.
    match fence {
        Fence::OfThePeer => {
            place.wait_until("quarantine", |place| place.blocks("quarantined") > 0);
            sleep(LEASE);
            // No lease can be left by now, and every path is being removed.
            let kept = place.blocks("quarantined");
            assert!(kept > 0, "{transport}: their next write may hit these blocks");
            let begin = Instant::now();
            while begin.elapsed() < 2 * LEASE {
                assert_eq!(place.blocks("quarantined"), kept, "{transport}: time alone frees nothing");
                sleep(Duration::from_millis(100));
            }
        }
        Fence::OfOurOwn => {
            place.wait_until("the fence", |place| {
                place.blocks("receiving") == 0 && place.blocks("quarantined") == 0
            });
        }
    }
    place.signal_writers(end);
    place.wait_until("the fence", |place| place.blocks("quarantined") == 0);
    place.wait_until("rest", |place| place.blocks("receiving") + place.blocks("active") == 0);
}

#[test]
fn of_shared_memory() {
    free_blocks_only_after(Fence::OfThePeer, "shm", Signal::CONT);
    free_blocks_only_after(Fence::OfThePeer, "shm", Signal::KILL);
}

#[test]
fn of_tcp() {
    free_blocks_only_after(Fence::OfOurOwn, "tcp", Signal::CONT);
}

#[test]
#[ignore = "needs NIXL: cargo x nixl"]
fn over_nixl_when_the_writer_goes_on() {
    free_blocks_only_after(Fence::OfThePeer, "nixl", Signal::CONT);
}

#[test]
#[ignore = "needs NIXL: cargo x nixl"]
fn over_nixl_when_the_writer_dies() {
    free_blocks_only_after(Fence::OfThePeer, "nixl", Signal::KILL);
}
