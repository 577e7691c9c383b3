//! Somebody who is no engine, and talks to one all the same. A stranger may have overheard which transfers there are.

use baton_proto::message::{Decline, VERSION};
use baton_proto::{Compat, ConnId, Held, Input, Message, Prefilled, codec};
use baton_types::{BlockHash, EngineId, EngineName, KvDtype, Millis, PoolShape, TokenId, TransferId, UnitId};

use crate::fault::Fault;
use crate::node::{Life, metadata};
use crate::wires::WireNews;
use crate::world::World;

/// What the engines of a run call the one kind of KV that most of them have.
pub(crate) const COMPAT: Compat = Compat([1; 16]);

/// Whoever it is, it has no memory that any path leads to.
const STRANGER: Life = Life { node: usize::MAX, number: 0 };

pub(crate) fn is_stranger(life: Life) -> bool {
    life == STRANGER
}

impl World {
    /// One connection to one engine, and what is said on it.
    pub fn stranger(&mut self) -> bool {
        let alive: Vec<_> = self.nodes.iter().filter_map(|node| node.life()).collect();
        if alive.is_empty() {
            return false;
        }
        let random = self.luck.of(Fault::Stranger);
        let (target, script) = (random.pick(&alive), random.below(4));
        let (_, ours) = self.wires.connect(None, target, self.now, self.now);
        let name = &self.nodes[target.node].name;
        self.log.line(self.now, name, format_args!("is called by a stranger, script {script}"));
        self.tell_proto(target.node, Input::Accepted { conn: ours });
        let introduces = script >= 2;
        if introduces {
            // Script 2 is not even of this version.
            let version = if script == 2 { VERSION + 1 } else { VERSION };
            let name = EngineName::new("stranger").expect("a name");
            let engine = EngineId::new(name, self.luck.of(Fault::Stranger).next());
            self.says(ours, &Message::Hello { version, engine, compat: COMPAT });
            let metadata = metadata(STRANGER);
            self.says(
                ours,
                &Message::Welcome { metadata, shape: PoolShape::whole_blocks(1_000_000, KvDtype::F32) },
            );
        }
        let known = self.ledger.transfers_with(target);
        let retained: Vec<TransferId> = self.retention_book.known(target).collect();
        for _ in 0..self.luck.of(Fault::Stranger).within(1..5) {
            let random = self.luck.of(Fault::Stranger);
            if script == 0 {
                let noise = (0..random.skewed(0..64)).map(|_| random.next() as u8).collect();
                self.reaches(ours, WireNews::Frame(noise));
            } else {
                let overheard = !known.is_empty() && random.chance(800);
                let transfer =
                    if overheard { random.pick(&known) } else { TransferId(u128::from(random.next())) };
                let words = match random.below(10) {
                    // A claim that knows the id, and not the words.
                    9 if !retained.is_empty() => claim(transfer, Held::Retained(random.pick(&retained))),
                    which => words(which, transfer),
                };
                self.says(ours, &words);
            }
        }
        if self.luck.of(Fault::Stranger).chance(500) {
            self.reaches(ours, WireNews::Closed);
        }
        true
    }

    /// A stranger that is connected to the claimant hears a claim, and answers first.
    pub fn overhear(&mut self, claimant: Life, transfer: TransferId) {
        if let Some(conn) = self.wires.of_stranger(claimant)
            && self.quiet_since.is_none()
            && self.luck.of(Fault::Stranger).chance(300)
        {
            self.says(conn, &words(0, transfer));
        }
    }

    fn says(&mut self, to: ConnId, message: &Message) {
        self.reaches(to, WireNews::Frame(codec::encode(message)));
    }
}

fn claim(transfer: TransferId, held: Held) -> Message {
    Message::Claim { transfer, attempt: 0, first_unit: 0, chain: vec![BlockHash([7; 16])], held }
}

/// What would be harmful if it came from the right peer.
fn words(which: u64, transfer: TransferId) -> Message {
    let prefilled = Some(Prefilled { first_token: TokenId(5), cached_tokens: 0 });
    match which {
        0 => Message::Granted {
            transfer,
            attempt: 0,
            remaining: Millis(60_000),
            first_unit: 0,
            units: vec![UnitId(0)],
            complete: true,
            prefilled,
        },
        1 => Message::Done { transfer, notifications: 0, prefilled },
        2 => Message::DoneAck { transfer },
        3 => Message::Abort { transfer },
        4 => Message::Aborted { transfer },
        5 => Message::Declined { transfer, why: Decline::Unknown },
        6 => claim(transfer, Held::Early),
        7 => Message::Heartbeat { transfers: vec![transfer] },
        _ => Message::Register { transfer, first_unit: 0 },
    }
}
