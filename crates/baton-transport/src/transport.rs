//! The seam to whatever moves bytes between registered memories. Shaped after NIXL: register, exchange opaque
//! metadata, prepare descriptor lists, post, poll.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use baton_types::{EngineId, KvDtype, MemoryRegion};

use crate::convert::Conversion;
use crate::permits::Permits;

/// A run of bytes inside a registered region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    pub offset: u64,
    pub len: u32,
}

/// Which way bytes move, seen from whoever posts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the peer's memory into ours.
    Read,
    /// From our memory into the peer's.
    Write,
}

/// A prepared list of descriptors, ours or a peer's. Posts name entries by their index, so that nothing is
/// set up per post.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListId(pub u32);

/// Chosen by whoever posts; comes back in the event that ends the post.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PostId(pub u64);

/// Moves `remote[pairs[i].1]` to or from `local[pairs[i].0]`, for each pair; lengths of a pair must be equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Post {
    pub id: PostId,
    pub direction: Direction,
    pub peer: EngineId,
    pub local: ListId,
    pub remote: ListId,
    /// `(index in local, index in remote)`.
    pub pairs: Vec<(u32, u32)>,
    /// Delivered to the peer after every byte of a write (or read) is in place; at most [`MAX_NOTIFICATION`]
    /// bytes.
    pub notify: Option<Vec<u8>>,
}

/// Bytes of a notification, at most.
pub const MAX_NOTIFICATION: usize = 256;

/// Pairs of a post, at most.
pub const MAX_PAIRS: usize = 16_384;

/// What a transport holds at most (I11); reaching a limit is [`TransportError::Limit`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportLimits {
    /// Peers, those that are being torn down included.
    pub peers: usize,
    /// Prepared lists over our region, and as many over each peer's.
    pub lists: usize,
    /// Descriptors of one list.
    pub descriptors: usize,
    /// Posts in flight to one peer.
    pub posts: usize,
    /// How long a peer may take until it has added us as well; then it is [`Event::PeerLost`].
    pub handshake: Duration,
    /// [`Permits`] in force, of all peers together.
    pub permits: usize,
    /// Whether a peer's posts need [`Permits`]. Otherwise a peer may touch all of the region, and what it does
    /// touch is between the engines' protocol and its good will.
    pub enforce_permits: bool,
}

impl Default for TransportLimits {
    fn default() -> Self {
        Self {
            peers: 64,
            lists: 16,
            descriptors: 1 << 24,
            posts: 1024,
            handshake: Duration::from_secs(10),
            permits: 16_384,
            enforce_permits: false,
        }
    }
}

/// What [`Transport::poll`] saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Every byte of the post is in place, and its notification is on its way.
    Done(PostId),
    /// The post is over and moved all, some or none of its bytes. Nothing of it is in flight any more.
    Failed(PostId, TransportError),
    /// A peer's post into or out of our memory is complete. The bytes are the peer's: whoever reads them must
    /// check them.
    Notified { peer: EngineId, bytes: Vec<u8> },
    /// The path to the peer is torn down: nothing it posted can touch our memory any more, nor ours its.
    /// It may be added again from now on.
    PeerLost(EngineId),
    /// The peer could not be added. Only from a [`TransferThread`](crate::TransferThread), which adds peers
    /// for somebody else.
    PeerRefused(EngineId, TransportError),
}

/// Why a transport cannot do what it was asked to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    #[error("peer {0} is unknown to the transport")]
    UnknownPeer(EngineId),
    #[error("peer {0} is gone")]
    PeerGone(EngineId),
    #[error("the metadata of a peer cannot be used: {0}")]
    BadMetadata(String),
    #[error("the region cannot be used: {0}")]
    BadRegion(&'static str),
    #[error("the KV pool cannot be used: {0}")]
    BadPool(&'static str),
    #[error("a descriptor lies outside its region, or the lengths of a pair differ")]
    OutOfBounds,
    /// See [`Permits`].
    #[error("the peer does not permit it")]
    NotPermitted,
    #[error("no KV moves between {0:?} here and {1:?} there over this transport")]
    Unconvertible(KvDtype, KvDtype),
    #[error("bytes were damaged on the way")]
    Damaged,
    #[error("limit reached: {0}")]
    Limit(&'static str),
    #[error("{0}")]
    Io(String),
}

/// Bytes between registered memories. Owned by one thread, which posts, polls and sleeps in
/// [`Transport::wait`].
///
/// A post never blocks for longer than a slice of its copy takes; progress is made in [`Transport::poll`].
/// What a peer sends is checked: it can never make this side allocate without bound or touch memory outside
/// its registered region, nor, where [`Permits`] are enforced, outside of what it was permitted.
///
/// Two agents reach each other's memory once *both* have added the other: until then posts wait, and a peer
/// that does not answer within [`TransportLimits::handshake`] is lost. So nobody can touch the memory of an
/// agent that did not ask for it, and a peer that has been removed stays out until it is added again.
///
/// The end of a path is seen by both sides: when one removes the other, dies, or breaks the transport's
/// rules, the other gets [`Event::Failed`] for each post in flight to it and then [`Event::PeerLost`].
pub trait Transport: Send + fmt::Debug {
    fn name(&self) -> &'static str;

    /// Makes the region readable and writable by peers. One region, once, before any peer is added.
    fn register(&mut self, region: Arc<dyn MemoryRegion>) -> Result<(), TransportError>;

    /// What a peer needs to reach our region: opaque to everybody but the same kind of transport.
    fn metadata(&self) -> Vec<u8>;

    /// Makes a peer known; idempotent for equal metadata. An error while the old path to the same peer is
    /// still being torn down: it can be added again after [`Event::PeerLost`].
    fn add_peer(&mut self, peer: &EngineId, metadata: &[u8]) -> Result<(), TransportError>;

    /// Tears the path to a peer down, with [`Event::Failed`] for each post in flight. [`Event::PeerLost`]
    /// follows once nothing the peer posted can touch our memory any more, which for some transports needs
    /// the peer to let go or die.
    fn remove_peer(&mut self, peer: &EngineId);

    /// Prepares a list over our own region.
    fn prepare_local(&mut self, descriptors: &[Descriptor]) -> Result<ListId, TransportError>;

    /// Prepares a list over a peer's region. Freed with the peer.
    fn prepare_remote(
        &mut self,
        peer: &EngineId,
        descriptors: &[Descriptor],
    ) -> Result<ListId, TransportError>;

    /// From here on, posts to this peer convert elements, and a pair has equally many of them instead of bytes. An error
    /// where the transport moves bytes only.
    fn convert(&mut self, _peer: &EngineId, conversion: Conversion) -> Result<(), TransportError> {
        Err(TransportError::Unconvertible(conversion.local(), conversion.remote()))
    }

    /// Starts a post. An error means that nothing was started and no event will follow.
    fn post(&mut self, post: Post) -> Result<(), TransportError>;

    /// Makes progress and appends what happened; true if there is more to do at once.
    fn poll(&mut self, events: &mut Vec<Event>) -> bool;

    /// Sleeps until a peer may have sent something, another thread calls the waker, or `timeout` has passed;
    /// not at all if the waker was called since the last sleep.
    fn wait(&mut self, timeout: Duration);

    /// Wakes the thread that sleeps in [`Transport::wait`].
    fn waker(&self) -> Waker;

    /// What peers may do with our region, if [`TransportLimits::enforce_permits`] is set. A transport whose
    /// peers copy by themselves from a mapping (`shm`) cannot enforce it.
    fn permits(&self) -> &Permits;
}

/// Ends a [`Transport::wait`] from another thread.
#[derive(Clone)]
pub struct Waker(Arc<dyn Fn() + Send + Sync>);

impl Waker {
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(wake))
    }

    pub fn wake(&self) {
        (self.0)();
    }
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waker")
    }
}
