//! The side channel: protocol messages between engines over TCP. A frame is its length in bytes (u32, little-endian) and its
//! payload. Nothing here knows what a message means.

mod connection;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_proto::{ConnId, Input, Message, PeerAddress, codec};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::inbox::Inbox;
use connection::FrameSender;

/// Connections that others opened; beyond that they are closed as they come.
const MAX_ACCEPTED: usize = 4096;
/// Dials under way; more wait for their turn.
const MAX_DIALS: usize = 64;
const DIAL_TIMEOUT: Duration = Duration::from_secs(3);
/// Bytes of received frames that the engine has not handled yet, over all connections. More than one of the longest frames.
const RECEIVED_BUDGET_BYTES: usize = 16 * codec::MAX_FRAME_BYTES;
/// How long to wait when the operating system gives no socket.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The engine thread's hold on the side channel. No call waits. Dropping it ends the listener and, once what is queued is written,
/// every connection.
#[derive(Debug)]
pub(crate) struct SideChannel {
    shared: Arc<Shared>,
    listener: AbortHandle,
}

#[derive(Debug)]
struct Shared {
    inbox: Inbox,
    table: Mutex<Table>,
    next_conn: AtomicU64,
    accepted: Arc<Semaphore>,
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
    /// Starts to accept connections from `listener`.
    pub fn start(listener: TcpListener, inbox: Inbox) -> Self {
        let shared = Arc::new(Shared {
            inbox,
            table: Mutex::default(),
            next_conn: AtomicU64::new(0),
            accepted: Arc::new(Semaphore::new(MAX_ACCEPTED)),
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
            let connect = TcpStream::connect((address.host.as_str(), address.port));
            let connected = timeout(DIAL_TIMEOUT, connect).await.unwrap_or_else(|late| Err(late.into()));
            drop(turn);
            match connected {
                Ok(stream) => {
                    let conn = shared.number();
                    let input = Input::Connected { address, conn };
                    shared.open(stream, conn, input, None).await;
                }
                Err(error) => {
                    tracing::info!(peer = %address.engine, host = address.host, port = address.port, %error, "dial failed");
                    shared.tell(Input::DialFailed { address }).await;
                }
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

    /// Tells the engine of a new connection by `opened` and carries it to its end.
    async fn open(
        self: &Arc<Self>,
        stream: TcpStream,
        conn: ConnId,
        opened: Input,
        place: Option<OwnedSemaphorePermit>,
    ) {
        // Without it, a small message may wait for the acknowledgement of the one before.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(?conn, %error, "TCP_NODELAY");
        }
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
            if let Err(error) = connection::carry(stream, conn, queue, &shared.inbox, &shared.received).await
            {
                tracing::debug!(?conn, %error, "a connection of the side channel broke");
            }
            shared.table().conns.remove(&conn);
            shared.tell(Input::Closed { conn }).await;
            drop(place);
        });
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                let Ok(place) = shared.accepted.clone().try_acquire_owned() else {
                    tracing::warn!(%from, "too many connections on the side channel; one is closed");
                    continue;
                };
                let conn = shared.number();
                shared.open(stream, conn, Input::Accepted { conn }, Some(place)).await;
            }
            Err(error) => {
                tracing::warn!(%error, "the side channel cannot accept");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
