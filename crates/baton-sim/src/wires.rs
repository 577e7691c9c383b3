//! The side channel: connections between engines. Each direction of a connection is a stream in order; connections, and the two
//! directions of one, know nothing of each other.

use std::collections::BTreeMap;

use baton_proto::{ConnId, Input, Message, PeerAddress, codec};
use baton_types::Time;

use crate::fault::Fault;
use crate::node::Life;
use crate::world::{Event, World};

/// Both ends of every connection, each under a number of its own.
#[derive(Debug, Default)]
pub(crate) struct Wires {
    ends: BTreeMap<ConnId, End>,
    next: u64,
}

#[derive(Debug)]
struct End {
    owner: Life,
    other: ConnId,
    /// Nothing more may arrive here before this.
    arrived: Time,
    /// The wire is cut: its owner will hear of it, and of nothing else.
    cut: bool,
}

/// What reaches one end.
#[derive(Clone, Debug)]
pub(crate) enum WireNews {
    Connected(PeerAddress),
    Frame(Vec<u8>),
    Closed,
}

impl World {
    pub fn dial(&mut self, node: usize, address: PeerAddress) {
        let from = self.nodes[node].life().expect("it has just spoken");
        let target = self.nodes.iter().position(|other| other.name == address.host);
        let target = target.filter(|_| !self.strikes(Fault::DialRefused));
        let at = self.after_delay();
        self.queue.push(
            at,
            match target {
                Some(node) => Event::DialArrives { node, from, address },
                None => Event::Proto { to: from, input: Input::DialFailed { address } },
            },
        );
    }

    /// Whoever lives here now takes the call, be it the one that was meant or not.
    pub fn dial_arrives(&mut self, node: usize, from: Life, address: PeerAddress) {
        if !self.is_alive(from) {
            return;
        }
        let at = self.after_delay();
        let Some(here) = self.nodes[node].life() else {
            return self.queue.push(at, Event::Proto { to: from, input: Input::DialFailed { address } });
        };
        self.wires.next += 2;
        let (theirs, ours) = (ConnId(self.wires.next), ConnId(self.wires.next + 1));
        let now = self.now;
        self.wires.ends.insert(theirs, End { owner: from, other: ours, arrived: at, cut: false });
        self.wires.ends.insert(ours, End { owner: here, other: theirs, arrived: now, cut: false });
        self.queue.push(at, Event::Wire { to: from, conn: theirs, what: WireNews::Connected(address) });
        self.tell_proto(node, Input::Accepted { conn: ours });
    }

    pub fn send(&mut self, conn: ConnId, message: &Message) {
        let Some(other) = self.wires.ends.get(&conn).filter(|end| !end.cut).map(|end| end.other) else {
            return;
        };
        self.reaches(other, WireNews::Frame(codec::encode(message)));
    }

    /// Its owner hears nothing more of it; the other end does, once.
    pub fn close(&mut self, conn: ConnId) {
        let Some(end) = self.wires.ends.remove(&conn) else { return };
        self.reaches(end.other, WireNews::Closed);
    }

    /// Puts something on its way to an end that is still there.
    fn reaches(&mut self, conn: ConnId, what: WireNews) {
        let at = self.after_delay();
        let Some(end) = self.wires.ends.get_mut(&conn).filter(|end| !end.cut) else { return };
        end.arrived = end.arrived.max(at);
        let to = end.owner;
        self.queue.push(end.arrived, Event::Wire { to, conn, what });
    }

    pub fn wire_news(&mut self, node: usize, conn: ConnId, what: WireNews) {
        let Some(end) = self.wires.ends.get(&conn) else { return };
        let input = match what {
            WireNews::Connected(address) => Input::Connected { address, conn },
            WireNews::Frame(_) if end.cut => return,
            WireNews::Frame(frame) => Input::Received { conn, frame },
            WireNews::Closed => {
                self.wires.ends.remove(&conn);
                Input::Closed { conn }
            }
        };
        self.tell_proto(node, input);
    }

    /// A connection breaks. What was on its way may arrive before the end does, or not at all.
    pub fn disconnect(&mut self) -> bool {
        let whole: Vec<ConnId> =
            self.wires.ends.iter().filter(|(_, end)| !end.cut).map(|(conn, _)| *conn).collect();
        if whole.is_empty() {
            return false;
        }
        let conn = self.random.pick(&whole);
        let other = self.wires.ends[&conn].other;
        self.note("chaos", format_args!("{conn:?} - {other:?} breaks"));
        let lossy = self.random.chance(500);
        for conn in [conn, other] {
            self.reaches(conn, WireNews::Closed);
            if let Some(end) = self.wires.ends.get_mut(&conn) {
                end.cut = lossy;
            }
        }
        true
    }

    /// The owner of these ends is dead.
    pub fn hang_up(&mut self, dead: Life) {
        let gone: Vec<ConnId> =
            self.wires.ends.iter().filter(|(_, end)| end.owner == dead).map(|(conn, _)| *conn).collect();
        for conn in gone {
            self.close(conn);
        }
    }
}
