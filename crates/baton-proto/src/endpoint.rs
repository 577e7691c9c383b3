//! One engine's end of all its transfers: takes inputs, gives outputs, knows no clock and no socket.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use baton_types::{EngineId, Mutant, Time, TransferId};

use crate::action::{ConnId, Ending, Input, Output, PostId};
use crate::codec;
use crate::config::Config;
use crate::ended::Ended;
use crate::farewell::Farewell;
use crate::grant::Claim;
use crate::lease::Lease;
use crate::message::Message;
use crate::peer::Peers;
use crate::reader::Wanted;
use crate::registration::{Registration, Registrations};
use crate::retention::Retentions;
use crate::timer::{Reason, Timers};
use crate::transfer::{Answer, Grant, Transfer};

/// The protocol core of one incarnation of one engine.
#[derive(Clone, Debug)]
pub struct Endpoint {
    pub(crate) config: Config,
    pub(crate) peers: Peers,
    /// Transfers in which this side is passive.
    pub(crate) leases: BTreeMap<TransferId, Lease>,
    /// Transfers in which this side is active.
    pub(crate) transfers: BTreeMap<TransferId, Transfer>,
    pub(crate) registrations: Registrations,
    pub(crate) retentions: Retentions,
    pub(crate) farewells: BTreeMap<TransferId, Farewell>,
    pub(crate) ended: Ended,
    pub(crate) posts: BTreeMap<PostId, TransferId>,
    pub(crate) next_post: u64,
    pub(crate) timers: Timers,
    pub(crate) out: VecDeque<Output>,
}

/// How much an endpoint has to do with its peers at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    pub peers: usize,
    pub connections: usize,
    pub leases: usize,
    pub transfers: usize,
    pub registrations: usize,
    pub retentions: usize,
    pub posts: usize,
    pub farewells: usize,
}

impl Endpoint {
    pub fn new(config: Config) -> Self {
        assert!(config.heartbeat * 3 <= config.lease, "a lease outlives two lost heartbeats");
        Self {
            peers: Peers::default(),
            leases: BTreeMap::new(),
            transfers: BTreeMap::new(),
            registrations: Registrations::new(if config.mutation.is(Mutant::UnboundedRegistrations) {
                usize::MAX
            } else {
                config.limits.registrations
            }),
            retentions: Retentions::new(),
            farewells: BTreeMap::new(),
            ended: Ended::new(config.limits.memories),
            posts: BTreeMap::new(),
            next_post: 0,
            timers: Timers::default(),
            out: VecDeque::new(),
            config,
        }
    }

    /// True if this transfer is going on here, so that no other request may name it. One that is over is not known in this sense:
    /// a command that names it is answered by its ending.
    pub fn knows(&self, transfer: TransferId) -> bool {
        self.leases.contains_key(&transfer) || self.transfers.contains_key(&transfer)
    }

    pub fn census(&self) -> Census {
        Census {
            peers: self.peers.known.len(),
            connections: self.peers.conns.len(),
            leases: self.leases.len(),
            transfers: self.transfers.len(),
            registrations: self.registrations.len(),
            retentions: self.retentions.len(),
            posts: self.posts.len(),
            farewells: self.farewells.len(),
        }
    }

    /// Deadlines are acted on by [`Input::Tick`] alone, so that whoever gives a command has heard of every ending before it.
    pub fn handle_input(&mut self, now: Time, input: Input) {
        match input {
            Input::Expect { transfer, peer, early } => self.on_expect(now, transfer, peer, early),
            Input::Fetch { transfer, peer, chain, first_unit, units, held } => {
                self.on_fetch(now, transfer, peer, Wanted { chain, first_unit, units, held });
            }
            Input::Receive { transfer, peer, chain, first_unit, units } => {
                self.on_receive(now, transfer, peer, chain, first_unit, units);
            }
            Input::Offer { transfer, chain } => self.on_offer(transfer, chain),
            Input::Send { transfer, chain } => self.on_send(now, transfer, chain),
            Input::Progress { transfer, units } if self.leases.contains_key(&transfer) => {
                self.on_offer_progress(transfer, units);
            }
            Input::Progress { transfer, units } => self.on_progress(now, transfer, units),
            Input::Complete { transfer, prefilled } if self.leases.contains_key(&transfer) => {
                self.on_offer_complete(now, transfer, prefilled);
            }
            Input::Complete { transfer, prefilled } => self.on_complete(now, transfer, prefilled),
            Input::Retain { retention, chain, units } => self.on_retain(now, retention, chain, units),
            Input::Revoke { retention } => self.on_revoke(retention),
            Input::Cancel { transfer } => {
                self.end_lease(now, transfer, Ending::Cancelled);
                self.end_transfer(now, transfer, Ending::Cancelled, Answer::Abort);
            }
            Input::Connected { address, conn } => self.on_connected(now, address, conn),
            Input::DialFailed { address } => self.on_dial_failed(now, &address),
            Input::Accepted { conn } => self.on_accepted(now, conn),
            Input::Received { conn, frame } => self.on_frame(now, conn, &frame),
            Input::Closed { conn } => self.on_closed(now, conn),
            Input::Moved { post, ok } => self.on_moved(now, post, ok),
            Input::Notified { engine, bytes } => self.on_notified(now, &engine, &bytes),
            Input::PathLost { engine } => self.on_path_lost(now, &engine),
            Input::PathRefused { engine } => self.on_path_refused(now, &engine),
            Input::Tick => {
                while let Some(reason) = self.timers.pop_due(now) {
                    self.on_due(now, reason);
                }
            }
        }
    }

    pub fn poll_output(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    pub fn poll_timeout(&self) -> Option<(Time, Reason)> {
        self.timers.next()
    }

    fn on_due(&mut self, now: Time, reason: Reason) {
        match reason {
            Reason::Expiry(transfer) => {
                self.end_lease(now, transfer, Ending::Expired);
                self.end_transfer(now, transfer, Ending::Expired, Answer::Abort);
            }
            Reason::Retry(transfer) => {
                self.ask_lease(now, transfer);
                self.ask_transfer(now, transfer);
            }
            Reason::Farewell(transfer) => self.repeat_farewell(now, transfer),
            Reason::Registration(transfer) => drop(self.registrations.take(transfer)),
            Reason::Retention(retention) => self.lapse(retention),
            Reason::Heartbeat => self.on_heartbeat_due(now),
            Reason::Redial(engine) => self.on_redial(&engine),
            Reason::Grace(engine) => self.on_grace_over(now, &engine),
            Reason::Handshake(conn) => {
                self.out.push_back(Output::Close { conn });
                self.on_closed(now, conn);
            }
        }
    }

    fn on_frame(&mut self, now: Time, conn: ConnId, frame: &[u8]) {
        let Some(state) = self.peers.conns.get(&conn) else {
            // Closed by us while the frame was on its way.
            return;
        };
        let ready = state.ready().cloned();
        let Ok(message) = codec::decode(frame) else {
            self.refuse(now, conn, Ending::PeerLost);
            return;
        };
        match (ready, message) {
            (None, Message::Hello { version, engine, compat }) => {
                self.on_hello(now, conn, version, engine, compat)
            }
            (None, Message::Welcome { metadata, shape }) => self.on_welcome(now, conn, metadata, shape),
            (None, Message::Incompatible { .. }) => self.refuse(now, conn, Ending::Incompatible),
            (Some(peer), message) => self.on_message(now, conn, &peer, message),
            // I5: nothing is said to strangers, and nothing is heard from them.
            (None, _) => self.refuse(now, conn, Ending::PeerLost),
        }
    }

    fn on_message(&mut self, now: Time, conn: ConnId, peer: &EngineId, message: Message) {
        match message {
            Message::Hello { .. } | Message::Welcome { .. } | Message::Incompatible { .. } => {
                self.refuse(now, conn, Ending::PeerLost);
            }
            Message::Register { transfer, first_unit } => {
                self.on_register(now, peer, transfer, first_unit as usize);
            }
            Message::Claim { transfer, attempt, first_unit, chain, held } => {
                let claim = Claim { attempt, first_unit: first_unit as usize, chain, held };
                self.on_claim(now, peer, transfer, claim);
            }
            Message::Granted { transfer, attempt, remaining, first_unit, units, complete, prefilled } => {
                let grant = Grant { first_unit: first_unit as usize, units, complete, prefilled };
                self.on_granted(now, peer, transfer, attempt, Duration::from(remaining), grant);
            }
            Message::Offered { transfer } => self.on_offered(now, peer, transfer),
            Message::Declined { transfer, .. } => self.on_declined(now, peer, transfer),
            Message::Heartbeat { transfers } => {
                for transfer in transfers {
                    self.renew(now, peer, transfer);
                }
            }
            Message::Done { transfer, notifications, prefilled } => {
                if self.leases.contains_key(&transfer) {
                    self.on_lease_done(peer, transfer, notifications, prefilled);
                } else {
                    self.say(peer, Message::DoneAck { transfer });
                }
            }
            Message::DoneAck { transfer } => self.on_done_ack(peer, transfer),
            Message::Abort { transfer } => self.on_abort(now, peer, transfer),
            Message::Aborted { transfer } => {
                self.end_farewell(transfer, peer);
                self.on_lease_aborted(peer, transfer);
            }
        }
    }

    /// At any moment, also before the request has come and after it is over; always answered.
    fn on_abort(&mut self, now: Time, peer: &EngineId, transfer: TransferId) {
        if self.transfers.contains_key(&transfer) {
            self.on_transfer_abort(now, peer, transfer);
            return;
        }
        self.on_lease_abort(peer, transfer);
        if self.registrations.withdraw(transfer, peer) {
            self.timers.clear(&Reason::Registration(transfer));
        }
        if !self.config.mutation.is(Mutant::EarlyAbortForgotten) {
            self.ended.insert(transfer);
        }
        self.say(peer, Message::Aborted { transfer });
    }

    /// Why a transfer cannot begin, if it cannot.
    pub(crate) fn refuse_new(&self, transfer: TransferId, units: usize) -> Option<Ending> {
        assert!(!self.knows(transfer), "I4: each transfer is named to an endpoint once");
        if self.ended.contains(transfer) {
            return Some(Ending::PeerAborted);
        }
        if self.leases.len() + self.transfers.len() >= self.config.limits.transfers {
            return Some(Ending::Limit);
        }
        self.too_long(units)
    }

    /// A peer may not make a lease under this id.
    pub(crate) fn refuse_lease(&self, transfer: TransferId) -> bool {
        self.knows(transfer)
            || self.ended.contains(transfer)
            || self.leases.len() + self.transfers.len() >= self.config.limits.transfers
    }

    /// The destination that came before its prefill leg, if one did.
    pub(crate) fn take_registration(&mut self, transfer: TransferId) -> Option<Registration> {
        let registration = self.registrations.take(transfer)?;
        self.timers.clear(&Reason::Registration(transfer));
        Some(registration)
    }

    pub(crate) fn too_long(&self, units: usize) -> Option<Ending> {
        (units > self.config.limits.units).then_some(Ending::Limit)
    }

    /// A handshake with a peer is done: what waited for it goes on.
    pub(crate) fn resume_with(&mut self, now: Time, engine: &EngineId) {
        for transfer in self.with_peer(engine) {
            self.ask_lease(now, transfer);
            self.ask_transfer(now, transfer);
            self.repeat_farewell(now, transfer);
        }
    }

    /// A peer is lost, though what it posted may still land.
    pub(crate) fn end_all_with(&mut self, now: Time, engine: &EngineId, why: Ending) {
        for transfer in self.with_peer(engine) {
            self.lose_lease(transfer, why);
            self.end_transfer(now, transfer, why, Answer::Nothing);
            self.end_farewell(transfer, engine);
        }
        for transfer in self.registrations.take_of(engine) {
            self.timers.clear(&Reason::Registration(transfer));
        }
    }

    /// Nothing that the peer posted can land any more.
    pub(crate) fn release_fenced(&mut self, engine: &EngineId) {
        if self.config.mutation.is(Mutant::FenceForgotten) {
            return;
        }
        for transfer in self.with_peer(engine) {
            if self.leases.get(&transfer).is_some_and(|lease| lease.granted) {
                self.let_go(transfer, Ending::PeerLost);
            }
        }
    }

    /// Something of ours still needs this peer, and we know where it is.
    pub(crate) fn needs(&self, engine: &EngineId) -> bool {
        !self.with_peer(engine).is_empty()
    }

    fn with_peer(&self, engine: &EngineId) -> Vec<TransferId> {
        let leases =
            self.leases.iter().filter(|(_, lease)| lease.peer.as_ref() == Some(engine)).map(|(id, _)| *id);
        let active =
            self.transfers.iter().filter(|(_, t)| t.peer.as_ref() == Some(engine)).map(|(id, _)| *id);
        let farewells = self.farewells.iter().filter(|(_, f)| f.peer == *engine).map(|(id, _)| *id);
        let all = leases.chain(active).chain(farewells);
        if self.config.mutation.is(Mutant::HashedOrder) {
            return all.collect::<std::collections::HashSet<_>>().into_iter().collect();
        }
        all.collect()
    }
}
