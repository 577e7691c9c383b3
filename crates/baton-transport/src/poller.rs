//! The epoll that an agent sleeps on, and the sockets it watches.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, Shutdown, SocketFlags, SocketType, accept_with, bind, connect, getpeername, getsockname,
    listen, shutdown, socket_with, sockopt,
};

/// A connection under its key. It is watched until it is dropped, which closes it.
#[derive(Debug)]
pub(crate) struct Socket {
    pub key: u64,
    fd: OwnedFd,
    epoll: Arc<OwnedFd>,
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Explicitly: a forked child may still hold the socket, and then neither epoll nor the other end would
        // learn that it is closed. Both calls fail only where that has happened already.
        let _ = epoll::delete(&self.epoll, &self.fd);
        let _ = shutdown(&self.fd, Shutdown::Both);
    }
}

/// What woke us. A connection is told of once whenever it becomes readable or writable (edge-triggered), so
/// whoever reads or writes must go on until it would block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ready {
    Listener,
    Waker,
    /// `ended`: the other end will send no more than what is here, or has broken off.
    Socket {
        key: u64,
        readable: bool,
        writable: bool,
        ended: bool,
    },
}

#[derive(Debug)]
pub(crate) struct Poller {
    epoll: Arc<OwnedFd>,
    next_key: u64,
    /// After this time without a sign of life from the other host a connection ends.
    patience: Duration,
}

const LISTENER: u64 = 0;
const WAKER: u64 = 1;
const MAX_READY: usize = 128;
const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);
const BACKLOG: i32 = 256;
/// Of bytes for a process of this host nothing is on a wire. What waits in the kernel only falls out of the caches, and costs half as
/// much again to copy; so the kernel, which makes it twice as much, is not left to grow it to megabytes.
const SAME_HOST_SEND_BYTES: usize = 256 << 10;

/// A socket that listens at `address`; IPv6 sockets take IPv4 as well where they listen on every address.
pub(crate) fn listen_at(address: SocketAddr) -> Result<(OwnedFd, SocketAddr), Errno> {
    let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let fd = socket_with(family, SocketType::STREAM, FLAGS, None)?;
    sockopt::set_socket_reuseaddr(&fd, true)?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        sockopt::set_ipv6_v6only(&fd, false)?;
    }
    bind(&fd, &address)?;
    listen(&fd, BACKLOG)?;
    let address = SocketAddr::try_from(getsockname(&fd)?).map_err(|_| Errno::AFNOSUPPORT)?;
    Ok((fd, address))
}

/// Whether both ends of a connection are on this host.
fn is_same_host(fd: &OwnedFd, peer: SocketAddr) -> Result<bool, Errno> {
    let ours = SocketAddr::try_from(getsockname(fd)?).map_err(|_| Errno::AFNOSUPPORT)?;
    Ok(ours.ip() == peer.ip() || peer.ip().to_canonical().is_loopback())
}

impl Poller {
    pub fn new(listener: &OwnedFd, waker: &OwnedFd, patience: Duration) -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
        epoll::add(&epoll, waker, epoll::EventData::new_u64(WAKER), epoll::EventFlags::IN)?;
        Ok(Self { epoll: Arc::new(epoll), next_key: WAKER + 1, patience })
    }

    fn watch(&mut self, fd: OwnedFd, peer: SocketAddr) -> Result<Socket, Errno> {
        sockopt::set_tcp_nodelay(&fd, true)?;
        if is_same_host(&fd, peer)? {
            sockopt::set_socket_send_buffer_size(&fd, SAME_HOST_SEND_BYTES)?;
        }
        // A host that vanished without a word: noticed while bytes are on their way by the user timeout, and by
        // probes while there are none.
        let ms = u32::try_from(self.patience.as_millis()).unwrap_or(u32::MAX);
        let interval = (self.patience / 4).clamp(Duration::from_secs(1), Duration::from_secs(15));
        sockopt::set_socket_keepalive(&fd, true)?;
        sockopt::set_tcp_keepidle(&fd, interval)?;
        sockopt::set_tcp_keepintvl(&fd, interval)?;
        sockopt::set_tcp_keepcnt(&fd, 3)?;
        sockopt::set_tcp_user_timeout(&fd, ms)?;
        let key = self.next_key;
        let all = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP;
        epoll::add(&self.epoll, &fd, epoll::EventData::new_u64(key), all | epoll::EventFlags::ET)?;
        self.next_key += 1;
        Ok(Socket { key, fd, epoll: self.epoll.clone() })
    }

    /// Begins to connect. An error if it is known at once that nobody listens there.
    pub fn connect(&mut self, address: SocketAddr) -> Result<Socket, Errno> {
        let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
        let fd = socket_with(family, SocketType::STREAM, FLAGS, None)?;
        match connect(&fd, &address) {
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        sockopt::socket_error(&fd)??;
        self.watch(fd, address)
    }

    pub fn accept(&mut self, listener: &OwnedFd) -> Result<Socket, Errno> {
        let fd = accept_with(listener, FLAGS)?;
        // One that has gone already has no peer any more.
        let peer = getpeername(&fd).map_err(|_| Errno::CONNABORTED)?;
        self.watch(fd, SocketAddr::try_from(peer.ok_or(Errno::CONNABORTED)?).map_err(|_| Errno::AFNOSUPPORT)?)
    }

    /// Whether connections are reported: not while there is no file descriptor left for them.
    pub fn watch_listener(&self, listener: &OwnedFd, on: bool) {
        let flags = if on { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        let modified = epoll::modify(&self.epoll, listener, epoll::EventData::new_u64(LISTENER), flags);
        debug_assert!(modified.is_ok(), "the listener is watched until the agent ends");
    }

    /// Appends what is ready, after `timeout` at the latest; more than 128 at once are left for the next call.
    pub fn ready(&self, timeout: Duration, ready: &mut Vec<Ready>) {
        let mut events = Vec::with_capacity(MAX_READY);
        let timeout = Timespec::try_from(timeout).unwrap_or_default();
        // An interrupted sleep is a short one.
        let _ = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&timeout));
        ready.extend(events.iter().map(|&event| {
            let flags = event.flags;
            let ended =
                flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP | epoll::EventFlags::RDHUP);
            match event.data.u64() {
                LISTENER => Ready::Listener,
                WAKER => Ready::Waker,
                key => Ready::Socket {
                    key,
                    readable: ended || flags.contains(epoll::EventFlags::IN),
                    writable: ended || flags.contains(epoll::EventFlags::OUT),
                    ended,
                },
            }
        }));
    }
}
