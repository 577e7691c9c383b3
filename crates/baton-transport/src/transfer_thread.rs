//! The one thread that owns a transport and moves whole KV blocks over it.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use baton_types::EngineId;

use crate::permits::{Access, PermitId, Permits};
use crate::transport::{
    Descriptor, Direction, Event, ListId, Post, PostId, Transport, TransportError, Waker,
};

/// A block-major pool: block `i` is the `block_bytes` bytes from `i * block_bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockPool {
    pub block_bytes: u32,
    pub blocks: u32,
}

impl BlockPool {
    fn descriptor(self, block: u32) -> Descriptor {
        Descriptor { offset: u64::from(block) * u64::from(self.block_bytes), len: self.block_bytes }
    }

    fn descriptors(self) -> Vec<Descriptor> {
        (0..self.blocks).map(|block| self.descriptor(block)).collect()
    }
}

/// A [`Post`] of whole blocks: moves `(our block, the peer's block)` for each pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockPost {
    pub id: PostId,
    pub direction: Direction,
    pub peer: EngineId,
    pub pairs: Vec<(u32, u32)>,
    pub notify: Option<Vec<u8>>,
}

#[derive(Debug)]
enum Command {
    AddPeer { peer: EngineId, metadata: Vec<u8>, blocks: u32 },
    RemovePeer(EngineId),
    Post(BlockPost),
}

/// Blocks of a pool, ours or a peer's.
const MAX_BLOCKS: u32 = 1 << 22;
/// Commands that may wait for the thread.
const MAX_COMMANDS: usize = 4096;
/// Commands taken between two polls.
const MAX_COMMANDS_AT_ONCE: usize = 64;
/// Nothing depends on it: whatever happens wakes the thread.
const IDLE: Duration = Duration::from_secs(60);

/// Gives the thread its commands. No call waits: what comes of a command is an [`Event`] in the sink. The
/// error of such a call means that the command was not taken, because too many wait or the thread has ended.
/// Dropping it stops the thread.
#[derive(Debug)]
pub struct TransferHandle {
    commands: SyncSender<Command>,
    waker: Waker,
    stop: Arc<AtomicBool>,
    pool: BlockPool,
    permits: Permits,
    thread: Option<JoinHandle<()>>,
}

impl TransferHandle {
    /// Adds a peer whose pool has `blocks` blocks of the same size as ours. [`Event::PeerRefused`] if that
    /// cannot be.
    pub fn add_peer(&self, peer: EngineId, metadata: Vec<u8>, blocks: u32) -> Result<(), TransportError> {
        self.send(Command::AddPeer { peer, metadata, blocks })
    }

    /// [`Event::Failed`] for each post in flight to the peer, and [`Event::PeerLost`] once its blocks are
    /// safe from it.
    pub fn remove_peer(&self, peer: EngineId) -> Result<(), TransportError> {
        self.send(Command::RemovePeer(peer))
    }

    /// [`Event::Done`] or [`Event::Failed`], exactly once.
    pub fn post(&self, post: BlockPost) -> Result<(), TransportError> {
        self.send(Command::Post(post))
    }

    /// Lets the peer read, or write, these blocks of our pool. Unlike the other calls it has effect when it
    /// returns, and gives no event; see [`Permits`].
    pub fn permit(
        &self,
        peer: &EngineId,
        id: PermitId,
        access: Access,
        blocks: &[u32],
    ) -> Result<(), TransportError> {
        if blocks.iter().any(|&block| block >= self.pool.blocks) {
            return Err(TransportError::OutOfBounds);
        }
        self.permits.permit(peer, id, access, blocks.iter().map(|&block| self.pool.descriptor(block)))
    }

    /// Takes a permit back. When it returns, nothing of the peer's touches those blocks any more under that
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

/// Moves blocks, and sleeps when there are none to move.
#[derive(Debug)]
pub struct TransferThread<F> {
    transport: Box<dyn Transport>,
    sink: F,
    commands: Receiver<Command>,
    stop: Arc<AtomicBool>,
    block_bytes: u32,
    local: ListId,
    /// The list of every block of a peer.
    remotes: BTreeMap<EngineId, ListId>,
}

impl<F: Fn(Event) + Send + 'static> TransferThread<F> {
    /// Starts the thread `baton-transfer` on a transport whose region, registered before, holds `pool`.
    /// `sink` gets every event; it runs on the thread, so it must only pass them on.
    pub fn spawn(
        mut transport: Box<dyn Transport>,
        pool: BlockPool,
        sink: F,
    ) -> Result<TransferHandle, TransportError> {
        let local = transport.prepare_local(&pool.descriptors())?;
        let (sender, commands) = sync_channel(MAX_COMMANDS);
        let (waker, stop) = (transport.waker(), Arc::new(AtomicBool::new(false)));
        let (block_bytes, permits) = (pool.block_bytes, transport.permits().clone());
        let state = Self {
            transport,
            sink,
            commands,
            stop: stop.clone(),
            block_bytes,
            local,
            remotes: BTreeMap::new(),
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
            let more = self.transport.poll(&mut events);
            events.drain(..).for_each(|event| self.report(event));
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
                Ok(Command::AddPeer { peer, metadata, blocks }) => {
                    if let Err(error) = self.add_peer(&peer, &metadata, blocks) {
                        (self.sink)(Event::PeerRefused(peer, error));
                    }
                }
                Ok(Command::RemovePeer(peer)) => self.transport.remove_peer(&peer),
                Ok(Command::Post(post)) => {
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

    fn add_peer(&mut self, peer: &EngineId, metadata: &[u8], blocks: u32) -> Result<(), TransportError> {
        self.transport.add_peer(peer, metadata)?;
        if self.remotes.contains_key(peer) {
            return Ok(());
        }
        let pool = BlockPool { block_bytes: self.block_bytes, blocks };
        // The number is the peer's word: the list is built only if it is a possible one.
        let list = match blocks {
            0..=MAX_BLOCKS => self.transport.prepare_remote(peer, &pool.descriptors()),
            _ => Err(TransportError::Limit("blocks of a peer")),
        };
        match list {
            Ok(list) => {
                self.remotes.insert(peer.clone(), list);
                Ok(())
            }
            Err(error) => {
                self.transport.remove_peer(peer);
                Err(error)
            }
        }
    }

    fn post(&mut self, post: BlockPost) -> Result<(), TransportError> {
        let BlockPost { id, direction, peer, pairs, notify } = post;
        let remote = *self.remotes.get(&peer).ok_or_else(|| TransportError::UnknownPeer(peer.clone()))?;
        self.transport.post(Post { id, direction, peer, local: self.local, remote, pairs, notify })
    }

    fn report(&mut self, event: Event) {
        if let Event::PeerLost(peer) = &event
            && self.remotes.remove(peer).is_none()
        {
            // It was refused, and that is what was reported.
            return;
        }
        (self.sink)(event);
    }

    fn end(mut self) {
        for peer in self.remotes.keys() {
            self.transport.remove_peer(peer);
        }
        let mut events = Vec::new();
        self.transport.poll(&mut events);
        events.into_iter().for_each(|event| self.report(event));
        for command in self.commands.try_iter() {
            if let Command::Post(post) = command {
                (self.sink)(Event::Failed(post.id, TransportError::PeerGone(post.peer)));
            }
        }
    }
}
