//! `memory`: engines of one process. Each copies directly between its own region and the peer's.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use baton_types::{EngineId, MemoryRegion};

use crate::convert::Conversion;
use crate::lists::{ListIds, Lists};
use crate::permits::{Access, Permits};
use crate::posts::{PostQueue, Sent};
use crate::transport::{
    Descriptor, Direction, Event, ListId, Post, Transport, TransportError, TransportLimits, Waker,
};

/// Where the agents of a process find each other.
#[derive(Debug, Default)]
pub struct MemoryHub {
    seats: Mutex<BTreeMap<u64, Arc<Seat>>>,
    next_number: AtomicU64,
}

impl MemoryHub {
    /// At most this many notifications wait in front of an agent; its peers' posts are done when theirs are
    /// accepted.
    const MAX_MAIL: usize = 1024;

    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Never the same twice: keys of seats, and admissions.
    fn number(&self) -> u64 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    fn sit_down(
        &self,
        id: EngineId,
        region: Arc<dyn MemoryRegion>,
        permits: Permits,
        bell: Arc<Bell>,
    ) -> Result<Arc<Seat>, TransportError> {
        let mut seats = locked(&self.seats);
        let begin = |r: &Arc<dyn MemoryRegion>| r.base().as_ptr() as usize;
        let overlaps = |seat: &Arc<Seat>| {
            begin(&seat.region) < begin(&region) + region.len()
                && begin(&region) < begin(&seat.region) + seat.region.len()
        };
        if seats.values().any(overlaps) {
            return Err(TransportError::BadRegion("it belongs to another agent"));
        }
        let key = self.number();
        let (guests, mail, gone) = Default::default();
        let seat = Arc::new(Seat { key, id, region, permits, guests, mail, gone, bell });
        seats.insert(key, seat.clone());
        Ok(seat)
    }
}

/// An agent as its peers see it.
#[derive(Debug)]
struct Seat {
    key: u64,
    id: EngineId,
    region: Arc<dyn MemoryRegion>,
    permits: Permits,
    /// Who may touch the region, and since which admission. A peer copies a slice under the read lock:
    /// whoever holds the write lock and takes a guest off knows that nothing of the guest is in flight any
    /// more. That is this transport's fence.
    guests: RwLock<BTreeMap<EngineId, u64>>,
    mail: Mutex<VecDeque<(EngineId, Vec<u8>)>>,
    gone: AtomicBool,
    bell: Arc<Bell>,
}

/// A panic elsewhere leaves tables that are whole (each is changed in one step), so a poisoned lock is as
/// good as another.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Seat {
    fn guests(&self) -> RwLockReadGuard<'_, BTreeMap<EngineId, u64>> {
        self.guests.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn guests_mut(&self) -> RwLockWriteGuard<'_, BTreeMap<EngineId, u64>> {
        self.guests.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Rings once for any number of pulls.
#[derive(Debug, Default)]
struct Bell {
    rung: Mutex<bool>,
    ringing: Condvar,
}

impl Bell {
    fn ring(&self) {
        *locked(&self.rung) = true;
        self.ringing.notify_one();
    }

    fn wait(&self, timeout: Duration) {
        let rung = locked(&self.rung);
        let waited = self.ringing.wait_timeout_while(rung, timeout, |rung| !*rung);
        *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
    }
}

#[derive(Debug)]
struct Peer {
    seat: Arc<Seat>,
    added: Instant,
    /// The number under which the peer has admitted us, once it has.
    admission: Option<u64>,
    /// Why the path ends; the peer is off our guest list already.
    leaving: Option<TransportError>,
    lists: Lists,
    posts: PostQueue,
}

/// An agent of the transport `memory`.
pub struct MemoryTransport {
    id: EngineId,
    hub: Arc<MemoryHub>,
    limits: TransportLimits,
    permits: Permits,
    bell: Arc<Bell>,
    seat: Option<Arc<Seat>>,
    lists: Lists,
    list_ids: ListIds,
    peers: BTreeMap<EngineId, Peer>,
}

const MAGIC: [u8; 6] = *b"baton\x01";

impl MemoryTransport {
    pub fn new(id: EngineId, hub: Arc<MemoryHub>, limits: TransportLimits) -> Self {
        let lists = Lists::new(0, &limits);
        let (permits, bell, peers) = (Permits::new(&limits), Arc::default(), BTreeMap::new());
        Self { id, hub, limits, permits, bell, seat: None, lists, list_ids: ListIds::default(), peers }
    }

    fn find(&self, peer: &EngineId, metadata: &[u8]) -> Result<Arc<Seat>, TransportError> {
        let bad = |why: &str| TransportError::BadMetadata(why.to_owned());
        let key = metadata.strip_prefix(&MAGIC).ok_or_else(|| bad("not of this version of `memory`"))?;
        let key = key.try_into().map_err(|_| bad("wrong length"))?;
        let seats = locked(&self.hub.seats);
        let seat =
            seats.get(&u64::from_le_bytes(key)).ok_or_else(|| TransportError::PeerGone(peer.clone()))?;
        if seat.id != *peer {
            return Err(bad("it is another engine's"));
        }
        Ok(seat.clone())
    }
}

impl Peer {
    /// Looks whether the peer has let us in, or no longer does.
    fn check(&mut self, us: &EngineId, peer: &EngineId, now: Instant, handshake: Duration) {
        let admission = self.seat.guests().get(us).copied();
        let lost = match self.admission {
            None => self.seat.gone.load(Ordering::Acquire) || now >= self.added + handshake,
            Some(_) => admission != self.admission,
        };
        self.admission = admission;
        if lost && self.leaving.is_none() {
            self.leaving = Some(TransportError::PeerGone(peer.clone()));
        }
    }

    fn is_open(&self) -> bool {
        self.leaving.is_none() && self.admission.is_some()
    }

    #[allow(unsafe_code)]
    fn copy_slice(&mut self, us: &EngineId, own: &Arc<dyn MemoryRegion>) {
        let guests = self.seat.guests();
        if guests.get(us).copied() != self.admission {
            return;
        }
        let (local, remote) = (own.base(), self.seat.region.base());
        let permits = self.seat.permits.hold();
        self.posts.copy_slice(|run| {
            let access = match run.direction {
                Direction::Read => Access::Read,
                Direction::Write => Access::Write,
            };
            let is_permitted = permits.cover(us, access, [run.remote_range()]);
            if is_permitted {
                // SAFETY: prepared lists lie inside the two regions; both are kept by an `Arc` and do not overlap
                // (`sit_down`); the peer admits us for as long as `guests` is locked, and permits this for as long
                // as `permits` are held.
                unsafe { run.copy(local, remote) };
            }
            is_permitted
        });
    }

    fn send_notifications(&mut self, us: &EngineId, events: &mut Vec<Event>) {
        let (seat, admission) = (&self.seat, self.admission);
        let mut sent_any = false;
        self.posts.notify(events, |bytes| {
            // The mutex orders the bytes of the post before the notification.
            let guests = seat.guests();
            let mut mail = locked(&seat.mail);
            if guests.get(us).copied() != admission {
                Sent::Gone
            } else if mail.len() >= MemoryHub::MAX_MAIL {
                Sent::Later
            } else {
                mail.push_back((us.clone(), bytes.to_vec()));
                sent_any = true;
                Sent::Yes
            }
        });
        if sent_any {
            seat.bell.ring();
        }
    }
}

impl Transport for MemoryTransport {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn register(&mut self, region: Arc<dyn MemoryRegion>) -> Result<(), TransportError> {
        if self.seat.is_some() {
            return Err(TransportError::BadRegion("there is one already"));
        }
        self.lists = Lists::new(region.len() as u64, &self.limits);
        self.seat =
            Some(self.hub.sit_down(self.id.clone(), region, self.permits.clone(), self.bell.clone())?);
        Ok(())
    }

    fn metadata(&self) -> Vec<u8> {
        let key = self.seat.as_ref().map(|seat| seat.key.to_le_bytes());
        MAGIC.into_iter().chain(key.into_iter().flatten()).collect()
    }

    fn add_peer(&mut self, peer: &EngineId, metadata: &[u8]) -> Result<(), TransportError> {
        let own = self.seat.clone().ok_or(TransportError::BadRegion("none is registered"))?;
        let seat = self.find(peer, metadata)?;
        if seat.key == own.key {
            return Err(TransportError::BadMetadata("it is our own".to_owned()));
        }
        if let Some(known) = self.peers.get(peer) {
            return match () {
                () if known.leaving.is_some() => Err(TransportError::PeerGone(peer.clone())),
                () if known.seat.key == seat.key => Ok(()),
                () => Err(TransportError::BadMetadata("the peer is known by another".to_owned())),
            };
        }
        if self.peers.len() >= self.limits.peers {
            return Err(TransportError::Limit("peers"));
        }
        own.guests_mut().insert(peer.clone(), self.hub.number());
        seat.bell.ring();
        let lists = Lists::new(seat.region.len() as u64, &self.limits);
        let (added, posts) = (Instant::now(), PostQueue::new(self.limits.posts));
        self.peers.insert(peer.clone(), Peer { seat, added, admission: None, leaving: None, lists, posts });
        Ok(())
    }

    fn remove_peer(&mut self, peer: &EngineId) {
        if let Some(known) = self.peers.get_mut(peer) {
            known.leaving.get_or_insert(TransportError::PeerGone(peer.clone()));
            self.bell.ring();
        }
    }

    fn prepare_local(&mut self, descriptors: &[Descriptor]) -> Result<ListId, TransportError> {
        self.lists.prepare(self.list_ids.next()?, descriptors)
    }

    fn prepare_remote(
        &mut self,
        peer: &EngineId,
        descriptors: &[Descriptor],
    ) -> Result<ListId, TransportError> {
        let known = self.peers.get_mut(peer).ok_or_else(|| TransportError::UnknownPeer(peer.clone()))?;
        known.lists.prepare(self.list_ids.next()?, descriptors)
    }

    fn convert(&mut self, peer: &EngineId, conversion: Conversion) -> Result<(), TransportError> {
        let known = self.peers.get_mut(peer).ok_or_else(|| TransportError::UnknownPeer(peer.clone()))?;
        known.posts.conversion = Some(conversion);
        Ok(())
    }

    fn post(&mut self, post: Post) -> Result<(), TransportError> {
        match self.peers.get_mut(&post.peer) {
            None => Err(TransportError::UnknownPeer(post.peer)),
            Some(peer) if peer.leaving.is_some() => Err(TransportError::PeerGone(post.peer)),
            Some(peer) => peer.posts.push(post, &self.lists, &peer.lists),
        }
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> bool {
        let Some(own) = &self.seat else { return false };
        let now = Instant::now();
        for (id, peer) in &mut self.peers {
            peer.check(&self.id, id, now, self.limits.handshake);
            if peer.is_open() {
                peer.copy_slice(&self.id, &own.region);
                peer.send_notifications(&self.id, events);
            }
            if peer.leaving.is_some() {
                own.guests_mut().remove(id);
            }
        }
        // After the guests that leave are off the list, so that nothing of them arrives after `PeerLost`.
        let mail = std::mem::take(&mut *locked(&own.mail));
        let was_full = mail.len() >= MemoryHub::MAX_MAIL;
        events.extend(mail.into_iter().map(|(peer, bytes)| Event::Notified { peer, bytes }));
        self.peers.retain(|id, peer| {
            if was_full || peer.leaving.is_some() {
                peer.seat.bell.ring();
            }
            let Some(why) = &peer.leaving else { return true };
            peer.posts.fail_all(why, events);
            events.push(Event::PeerLost(id.clone()));
            false
        });
        self.peers.values().any(|peer| peer.is_open() && peer.posts.is_copying())
    }

    fn wait(&mut self, timeout: Duration) {
        let unanswered = self.peers.values().filter(|peer| peer.admission.is_none());
        let deadline = unanswered.map(|peer| peer.added + self.limits.handshake).min();
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        self.bell.wait(left.map_or(timeout, |left| left.min(timeout)));
    }

    fn waker(&self) -> Waker {
        let bell = self.bell.clone();
        Waker::new(move || bell.ring())
    }

    fn permits(&self) -> &Permits {
        &self.permits
    }
}

impl Drop for MemoryTransport {
    fn drop(&mut self) {
        let Some(own) = &self.seat else { return };
        locked(&self.hub.seats).remove(&own.key);
        own.guests_mut().clear();
        own.gone.store(true, Ordering::Release);
        for peer in self.peers.values() {
            peer.seat.bell.ring();
        }
    }
}

impl fmt::Debug for MemoryTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryTransport({}, {} peers)", self.id, self.peers.len())
    }
}
