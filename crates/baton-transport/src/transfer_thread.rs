//! The one thread that owns a transport and moves KV over it.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use baton_types::{EngineId, PoolShape, UnitId};

use crate::kv_pool::{Grain, KvPool, KvPost, Lists, Moves, Route};
use crate::permits::{Access, PermitId, Permits};
use crate::transport::{Direction, Event, ListId, Post, PostId, Transport, TransportError, Waker};

#[derive(Debug)]
enum Command {
    AddPeer {
        peer: EngineId,
        metadata: Vec<u8>,
        shape: PoolShape,
    },
    RemovePeer(EngineId),
    /// Whoever waits until it is posted hears of it by the end of the channel.
    Post(KvPost, Option<Sender<Posted>>),
}

/// Is never said: the end of the channel is the word.
#[derive(Debug)]
enum Posted {}

/// Commands that may wait for the thread.
const MAX_COMMANDS: usize = 4096;
/// Commands taken between two polls.
const MAX_COMMANDS_AT_ONCE: usize = 64;
/// Nothing depends on it: whatever happens wakes the thread.
const IDLE: Duration = Duration::from_secs(60);

/// Gives the thread its commands. No call but one waits: what comes of a command is an [`Event`] in the sink. The
/// error of such a call means that the command was not taken, because too many wait or the thread has ended.
/// Dropping it stops the thread.
#[derive(Debug)]
pub struct TransferHandle {
    commands: SyncSender<Command>,
    waker: Waker,
    stop: Arc<AtomicBool>,
    pool: KvPool,
    permits: Permits,
    thread: Option<JoinHandle<()>>,
}

impl TransferHandle {
    /// Adds a peer whose pool has this shape, and is as ours otherwise. [`Event::PeerRefused`] if that cannot be, or the
    /// transport cannot convert between the two.
    pub fn add_peer(
        &self,
        peer: EngineId,
        metadata: Vec<u8>,
        shape: PoolShape,
    ) -> Result<(), TransportError> {
        self.send(Command::AddPeer { peer, metadata, shape })
    }

    /// [`Event::Failed`] for each post in flight to the peer, and [`Event::PeerLost`] once its blocks are
    /// safe from it.
    pub fn remove_peer(&self, peer: EngineId) -> Result<(), TransportError> {
        self.send(Command::RemovePeer(peer))
    }

    /// [`Event::Done`] or [`Event::Failed`], exactly once.
    pub fn post(&self, post: KvPost) -> Result<(), TransportError> {
        self.send(Command::Post(post, None))
    }

    /// The same, and waits until it is posted, for `limit` at most: all that the transport can do for it without waiting for
    /// anybody is done, and so it is for what was posted before. Where the initiator copies (`memory`, `shm`, and NIXL
    /// within a host) the bytes are in place then; elsewhere they are asked for, or on their way.
    pub fn post_and_wait(&self, post: KvPost, limit: Duration) -> Result<(), TransportError> {
        let (posted, wait) = channel();
        self.send(Command::Post(post, Some(posted)))?;
        // Posted, or not in time; what is wrong with it comes as an event.
        let _ = wait.recv_timeout(limit);
        Ok(())
    }

    /// Lets the peer read, or write, these units of our pool. Unlike the other calls it has effect when it
    /// returns, and gives no event; see [`Permits`].
    pub fn permit(
        &self,
        peer: &EngineId,
        id: PermitId,
        access: Access,
        units: &[UnitId],
    ) -> Result<(), TransportError> {
        if !self.permits.is_enforced() {
            // Nobody would ask. The caller is an engine's loop, and a pool in many parts has many ranges.
            return Ok(());
        }
        self.permits.permit(peer, id, access, self.pool.ranges(units)?)
    }

    /// Takes a permit back. When it returns, nothing of the peer's touches those units any more under that
    /// permit; it waits for no longer than a slice of a copy takes.
    pub fn forbid(&self, peer: &EngineId, id: PermitId) {
        self.permits.forbid(peer, id);
    }

    /// Ends the thread: posts that are in flight or waiting fail, paths are torn down. When it returns, no
    /// event follows.
    pub fn stop(self) {}

    fn send(&self, command: Command) -> Result<(), TransportError> {
        self.commands.try_send(command).map_err(|error| match error {
            TrySendError::Full(_) => TransportError::Limit("commands for the transfer thread"),
            TrySendError::Disconnected(_) => TransportError::Io("the transfer thread has ended".to_owned()),
        })?;
        self.waker.wake();
        Ok(())
    }
}

impl Drop for TransferHandle {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // An error is the sink's panic, which has been reported where it happened.
            let _ = thread.join();
        }
    }
}

/// Moves KV, and sleeps when there is none to move.
#[derive(Debug)]
pub struct TransferThread<F> {
    transport: Box<dyn Transport>,
    sink: F,
    commands: Receiver<Command>,
    stop: Arc<AtomicBool>,
    pool: KvPool,
    /// Of our pool, prepared once for all peers.
    locals: BTreeMap<Grain, ListId>,
    peers: BTreeMap<EngineId, Route>,
    /// Posts in flight, by the number that the transport knows the part by that it moves.
    moving: BTreeMap<PostId, Moving>,
    next_part: u64,
    /// Those who wait until their posts are posted.
    waiting: Vec<Sender<Posted>>,
}

/// A post that takes several of the transport, one after another, if it has more pairs than one of those may have.
#[derive(Debug)]
struct Moving {
    id: PostId,
    direction: Direction,
    peer: EngineId,
    left: Moves,
    /// Goes with the last part, so that it arrives after all bytes.
    notify: Option<Vec<u8>>,
}

impl<F: Fn(Event) + Send + 'static> TransferThread<F> {
    /// Starts the thread `baton-transfer` on a transport whose region, registered before, holds `pool`.
    /// `sink` gets every event; it runs on the thread, so it must only pass them on.
    pub fn spawn(
        mut transport: Box<dyn Transport>,
        pool: KvPool,
        sink: F,
    ) -> Result<TransferHandle, TransportError> {
        // Most peers need it, and it shows that the pool is inside the region.
        let grain = pool.whole_grain();
        let blocks = transport.prepare_local(&pool.descriptors(grain)?)?;
        let (sender, commands) = sync_channel(MAX_COMMANDS);
        let (waker, stop) = (transport.waker(), Arc::new(AtomicBool::new(false)));
        let permits = transport.permits().clone();
        let state = Self {
            transport,
            sink,
            commands,
            stop: stop.clone(),
            pool: pool.clone(),
            locals: BTreeMap::from([(grain, blocks)]),
            peers: BTreeMap::new(),
            moving: BTreeMap::new(),
            next_part: 0,
            waiting: Vec::new(),
        };
        let thread = thread::Builder::new()
            .name("baton-transfer".to_owned())
            .spawn(|| state.run())
            .map_err(|error: io::Error| TransportError::Io(error.to_string()))?;
        Ok(TransferHandle { commands: sender, waker, stop, pool, permits, thread: Some(thread) })
    }

    fn run(mut self) {
        let mut events = Vec::new();
        while !self.stop.load(Ordering::Acquire) {
            let taken = self.obey_some();
            let parts = self.next_part;
            let more = self.transport.poll(&mut events);
            events.drain(..).for_each(|event| self.report(event));
            // The next part of a post begins with the next poll.
            let more = more || self.next_part != parts;
            if !more {
                self.waiting.clear();
            }
            // A command sent since the last sleep has rung the waker; only those left over from before it
            // have not.
            if !more && taken < MAX_COMMANDS_AT_ONCE {
                self.transport.wait(IDLE);
            }
        }
        self.end();
    }

    fn obey_some(&mut self) -> usize {
        for taken in 0..MAX_COMMANDS_AT_ONCE {
            match self.commands.try_recv() {
                Ok(Command::AddPeer { peer, metadata, shape }) => {
                    if let Err(error) = self.add_peer(&peer, &metadata, shape) {
                        (self.sink)(Event::PeerRefused(peer, error));
                    }
                }
                Ok(Command::RemovePeer(peer)) => self.transport.remove_peer(&peer),
                Ok(Command::Post(post, posted)) => {
                    self.waiting.extend(posted);
                    let id = post.id;
                    if let Err(error) = self.post(post) {
                        (self.sink)(Event::Failed(id, error));
                    }
                }
                Err(_) => return taken,
            }
        }
        MAX_COMMANDS_AT_ONCE
    }

    fn add_peer(&mut self, peer: &EngineId, metadata: &[u8], shape: PoolShape) -> Result<(), TransportError> {
        self.transport.add_peer(peer, metadata)?;
        if self.peers.contains_key(peer) {
            return Ok(());
        }
        match self.route(peer, shape) {
            Ok(route) => {
                self.peers.insert(peer.clone(), route);
                Ok(())
            }
            Err(error) => {
                self.transport.remove_peer(peer);
                Err(error)
            }
        }
    }

    /// Prepares the lists that posts to a peer need.
    fn route(&mut self, peer: &EngineId, shape: PoolShape) -> Result<Route, TransportError> {
        let mut route = Route::new(self.pool.of_peer(shape)?);
        if let Some(conversion) = route.conversion(&self.pool)? {
            self.transport.convert(peer, conversion)?;
        }
        for grain in route.grains(&self.pool) {
            let local = match self.locals.get(&grain) {
                Some(list) => *list,
                None => self.transport.prepare_local(&self.pool.descriptors(grain)?)?,
            };
            self.locals.insert(grain, local);
            let remote = self.transport.prepare_remote(peer, &route.descriptors(grain)?)?;
            route.add(grain, Lists { local, remote });
        }
        Ok(route)
    }

    fn post(&mut self, post: KvPost) -> Result<(), TransportError> {
        let KvPost { id, direction, peer, ranks, pairs, notify } = post;
        let route = self.peers.get(&peer).ok_or_else(|| TransportError::UnknownPeer(peer.clone()))?;
        let left = route.moves(&self.pool, ranks, &pairs)?;
        self.post_part(Moving { id, direction, peer, left, notify })
    }

    /// Gives the transport the next part of a post.
    fn post_part(&mut self, mut post: Moving) -> Result<(), TransportError> {
        let (lists, pairs) = match post.left.take() {
            Some(part) => part,
            // Nothing but a notification; any list will do.
            None => (self.peers[&post.peer].any_lists(), Vec::new()),
        };
        let id = PostId(self.next_part);
        self.next_part += 1;
        let notify = if post.left.is_empty() { post.notify.take() } else { None };
        self.transport.post(Post {
            id,
            direction: post.direction,
            peer: post.peer.clone(),
            local: lists.local,
            remote: lists.remote,
            pairs,
            notify,
        })?;
        self.moving.insert(id, post);
        Ok(())
    }

    fn report(&mut self, event: Event) {
        let event = match event {
            Event::PeerLost(ref peer) if self.peers.remove(peer).is_none() => {
                // It was refused, and that is what was reported.
                return;
            }
            Event::Done(part) => match self.moving.remove(&part) {
                Some(post) if !post.left.is_empty() => {
                    let id = post.id;
                    match self.post_part(post) {
                        Ok(()) => return,
                        Err(error) => Event::Failed(id, error),
                    }
                }
                Some(post) => Event::Done(post.id),
                None => return,
            },
            Event::Failed(part, error) => match self.moving.remove(&part) {
                Some(post) => Event::Failed(post.id, error),
                None => return,
            },
            event => event,
        };
        (self.sink)(event);
    }

    fn end(mut self) {
        for peer in self.peers.keys() {
            self.transport.remove_peer(peer);
        }
        let mut events = Vec::new();
        self.transport.poll(&mut events);
        events.into_iter().for_each(|event| self.report(event));
        for command in self.commands.try_iter() {
            if let Command::Post(post, _) = command {
                (self.sink)(Event::Failed(post.id, TransportError::PeerGone(post.peer)));
            }
        }
    }
}
