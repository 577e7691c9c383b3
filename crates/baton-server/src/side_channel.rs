//! The side channel: protocol messages between engines over TCP. A frame is its length in bytes (u32,
//! little-endian) and its payload. Nothing here knows what a message means.

mod challenge;
mod connection;
mod door;
mod places;

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use baton_proto::{ConnId, Input, Message, PeerAddress, codec};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::inbox::Inbox;
use connection::FrameSender;
pub(crate) use door::Door;
use door::PeerStream;
use places::{Place, Places};

/// Dials under way; more wait for their turn.
const MAX_DIALS: usize = 64;
const DIAL_TIMEOUT: Duration = Duration::from_secs(3);
/// Bytes of received frames that the engine has not handled yet, over all connections. More than one of the
/// longest frames.
const RECEIVED_BUDGET_BYTES: usize = 16 * codec::MAX_FRAME_BYTES;
/// How long to wait when the operating system gives no socket.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often the log says that connections are closed for want of room.
const TELL_AGAIN: Duration = Duration::from_secs(1);

/// The engine thread's hold on the side channel. No call waits. Dropping it ends the listener and, once what
/// is queued is written, every connection.
#[derive(Debug)]
pub(crate) struct SideChannel {
    shared: Arc<Shared>,
    listener: AbortHandle,
}

#[derive(Debug)]
struct Shared {
    inbox: Inbox,
    table: Mutex<Table>,
    door: Door,
    next_conn: AtomicU64,
    places: Arc<Places>,
    dials: Semaphore,
    received: Arc<Semaphore>,
    runtime: runtime::Handle,
}

/// What can be written to.
#[derive(Debug, Default)]
struct Table {
    closed: bool,
    conns: HashMap<ConnId, FrameSender>,
}

impl SideChannel {
    /// Starts to accept connections from `listener`, as many as `max_accepted` at a time.
    pub fn start(listener: TcpListener, door: Door, max_accepted: usize, inbox: Inbox) -> Self {
        let shared = Arc::new(Shared {
            inbox,
            table: Mutex::default(),
            door,
            next_conn: AtomicU64::new(0),
            places: Places::new(max_accepted),
            dials: Semaphore::new(MAX_DIALS),
            received: Arc::new(Semaphore::new(RECEIVED_BUDGET_BYTES)),
            runtime: runtime::Handle::current(),
        });
        let listener = tokio::spawn(accept(listener, shared.clone())).abort_handle();
        Self { shared, listener }
    }

    /// Connected or DialFailed follows, once.
    pub fn dial(&self, address: PeerAddress) {
        let shared = self.shared.clone();
        self.shared.runtime.spawn(async move {
            // The semaphore is never closed; if it were, there would be nobody to answer.
            let Ok(turn) = shared.dials.acquire().await else { return };
            let entered = shared.enter(&address).await;
            drop(turn);
            match entered {
                Some(stream) => {
                    let conn = shared.number();
                    let input = Input::Connected { address, conn };
                    shared.open(stream, conn, input, None).await;
                }
                None => shared.tell(Input::DialFailed { address }).await,
            }
        });
    }

    /// Queues a message. If the connection cannot take it, that is its end, and the answer says so.
    pub fn send(&self, conn: ConnId, message: &Message) -> Option<Input> {
        let mut table = self.shared.table();
        // Gone already: Closed is on its way.
        let frames = table.conns.get(&conn)?;
        if frames.send(codec::encode(message)) {
            return None;
        }
        tracing::warn!(?conn, "a peer does not read; its connection is closed");
        table.conns.remove(&conn);
        Some(Input::Closed { conn })
    }

    /// Closes a connection once what is queued has been written.
    pub fn close(&self, conn: ConnId) {
        self.shared.table().conns.remove(&conn);
    }
}

impl Drop for SideChannel {
    fn drop(&mut self) {
        self.listener.abort();
        let mut table = self.shared.table();
        table.closed = true;
        table.conns.clear();
    }
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        // Every change under the lock is one call; a panic leaves nothing half done.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn number(&self) -> ConnId {
        ConnId(self.next_conn.fetch_add(1, Ordering::Relaxed))
    }

    async fn tell(&self, input: Input) {
        self.inbox.send(baton_engine::Input::Proto(input)).await;
    }

    /// Connects to a peer and shakes hands with it, as far as the operator asks for that.
    async fn enter(&self, address: &PeerAddress) -> Option<Box<dyn PeerStream>> {
        let (peer, host, port) = (&address.engine, address.host.as_str(), address.port);
        let connect = TcpStream::connect((host, port));
        match timeout(DIAL_TIMEOUT, connect).await.unwrap_or_else(|late| Err(late.into())) {
            Ok(stream) => {
                without_delay(&stream);
                let entered = self.door.enter(stream, host).await;
                entered
                    .inspect_err(|why| tracing::warn!(%peer, host, port, %why, "a peer is not trusted, or does not trust us"))
                    .ok()
            }
            Err(error) => {
                tracing::info!(%peer, host, port, %error, "dial failed");
                None
            }
        }
    }

    /// Lets one in that dialled us.
    async fn admit(self: Arc<Self>, stream: TcpStream, place: Place) {
        without_delay(&stream);
        match self.door.admit(stream).await {
            Ok(stream) => {
                let conn = self.number();
                self.open(stream, conn, Input::Accepted { conn }, Some(place)).await;
            }
            Err(why) => tracing::warn!(from = %place.from, %why, "a peer is turned away"),
        }
    }

    /// Tells the engine of a new connection by `opened` and carries it to its end.
    async fn open(
        self: &Arc<Self>,
        stream: Box<dyn PeerStream>,
        conn: ConnId,
        opened: Input,
        place: Option<Place>,
    ) {
        let (sender, queue) = connection::frames();
        {
            let mut table = self.table();
            if table.closed {
                return;
            }
            table.conns.insert(conn, sender);
        }
        // Before any frame of it, since both go through the same queue.
        self.tell(opened).await;
        let shared = self.clone();
        self.runtime.spawn(async move {
            match connection::carry(stream, conn, queue, &shared.inbox, &shared.received).await {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    tracing::warn!(?conn, %error, "a peer breaks the protocol; its connection is closed");
                }
                Err(error) => tracing::debug!(?conn, %error, "a connection of the side channel broke"),
            }
            shared.table().conns.remove(&conn);
            shared.tell(Input::Closed { conn }).await;
            drop(place);
        });
    }
}

/// Without a delay that saves packets, or a small message may wait for the acknowledgement of the one before.
fn without_delay(stream: &TcpStream) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY");
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut told = None;
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                let Some(place) = shared.places.take(from) else {
                    // Not for each of them: whoever opens thousands would fill the log as well.
                    if told.is_none_or(|at: Instant| at.elapsed() >= TELL_AGAIN) {
                        tracing::warn!(%from, "too many connections on the side channel; some are closed");
                        told = Some(Instant::now());
                    }
                    continue;
                };
                tokio::spawn(shared.clone().admit(stream, place));
            }
            Err(error) => {
                tracing::warn!(%error, "the side channel cannot accept");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use baton_proto::Held;
    use baton_types::{EngineId, EngineName, TransferId};
    use tokio::sync::mpsc::Receiver;

    use super::*;
    use crate::inbox::{Item, inbox};

    fn address(port: u16) -> PeerAddress {
        let engine = EngineId::new(EngineName::new("p").unwrap(), 1);
        PeerAddress { engine, host: "127.0.0.1".to_owned(), port }
    }

    async fn next(items: &mut Receiver<Item>) -> Input {
        let item = timeout(Duration::from_secs(10), items.recv()).await.expect("something happens");
        match item.unwrap() {
            Item::Input(baton_engine::Input::Proto(input))
            | Item::Budgeted(baton_engine::Input::Proto(input), _) => input,
            other => panic!("{other:?}"),
        }
    }

    async fn start() -> (SideChannel, Receiver<Item>, u16) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (inbox, items) = inbox(runtime::Handle::current());
        (SideChannel::start(listener, Door::default(), 100, inbox), items, port)
    }

    #[tokio::test]
    async fn a_connection_is_told_of_once_from_its_beginning_to_its_end() {
        let (ours, mut our_items, _) = start().await;
        let (theirs, mut their_items, port) = start().await;
        ours.dial(address(port));
        let Input::Connected { conn, .. } = next(&mut our_items).await else { panic!("connected") };
        let Input::Accepted { conn: accepted } = next(&mut their_items).await else { panic!("accepted") };
        let message = Message::Abort { transfer: TransferId(7) };
        assert_eq!(ours.send(conn, &message), None);
        assert_eq!(theirs.send(accepted, &message), None);
        let frame = codec::encode(&message);
        assert_eq!(next(&mut their_items).await, Input::Received { conn: accepted, frame: frame.clone() });
        assert_eq!(next(&mut our_items).await, Input::Received { conn, frame: frame.clone() });
        // What is queued is still written.
        assert_eq!(ours.send(conn, &message), None);
        ours.close(conn);
        assert_eq!(next(&mut their_items).await, Input::Received { conn: accepted, frame });
        assert_eq!(next(&mut their_items).await, Input::Closed { conn: accepted });
        assert_eq!(theirs.send(accepted, &message), None, "to nobody");
        drop((ours, theirs));
        assert!(matches!(timeout(Duration::from_millis(100), their_items.recv()).await, Ok(None) | Err(_)));
    }

    #[tokio::test]
    async fn a_dial_that_fails_is_told_once() {
        let (side_channel, mut items, _) = start().await;
        let unused = TcpListener::bind(("127.0.0.1", 0)).await.unwrap().local_addr().unwrap().port();
        side_channel.dial(address(unused));
        assert_eq!(next(&mut items).await, Input::DialFailed { address: address(unused) });
    }

    #[tokio::test]
    async fn a_peer_that_does_not_read_is_cut_off() {
        let (side_channel, mut items, port) = start().await;
        let _deaf = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let Input::Accepted { conn } = next(&mut items).await else { panic!("accepted") };
        let chain = vec![baton_types::BlockHash([1; 16]); 100_000];
        let large =
            Message::Claim { transfer: TransferId(1), attempt: 0, first_unit: 0, chain, held: Held::Offered };
        let cut = (0..1_000).find_map(|_| side_channel.send(conn, &large));
        assert_eq!(cut, Some(Input::Closed { conn }));
    }
}
