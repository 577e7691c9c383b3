//! Connections between agents: abstract Unix SOCK_SEQPACKET sockets, and the epoll that watches them.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind,
    connect, listen, recvmsg, sendmsg, shutdown, socket_with,
};

use super::packet::{MAX_PACKET, Packet};

/// One end of a connection, watched by [`Sockets`] under its key.
#[derive(Debug)]
pub(super) struct Link {
    pub key: u64,
    fd: OwnedFd,
}

/// What a link had to say.
#[derive(Debug)]
pub(super) enum Received {
    Packet(Packet, Option<OwnedFd>),
    /// Bytes that no agent sends.
    Garbage,
    Nothing,
    /// The other end is closed, by its process or by its death.
    End,
}

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

fn new_socket() -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)
}

/// A socket that listens under an abstract name: no file, gone with the process.
pub(super) fn listen_on(name: &[u8]) -> Result<OwnedFd, Errno> {
    let fd = new_socket()?;
    bind(&fd, &SocketAddrUnix::new_abstract_name(name)?)?;
    listen(&fd, 128)?;
    Ok(fd)
}

/// Whether the process at the other end runs as our user. Abstract names have no permissions, so whoever is
/// on the host may connect, or take the name of an agent that is gone; the kernel tells who did.
#[allow(unsafe_code)]
fn is_our_user(fd: BorrowedFd<'_>) -> bool {
    let mut credentials = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // Not by rustix: its credentials cannot hold the process id 0, which is what a peer in another pid
    // namespace has. SAFETY: the pointers are to a `ucred` and its length, which is what SO_PEERCRED writes.
    let rc = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut len,
        )
    };
    rc == 0 && credentials.uid == rustix::process::geteuid().as_raw()
}

impl Link {
    /// Sends a packet whole or not at all. `WouldBlock` when the other end does not read.
    ///
    /// Every copy before it is visible to whoever receives it: both calls take the kernel's lock on the socket's
    /// queue, no compiler moves a store past a system call, and streaming stores were fenced where they were made.
    pub fn send(&self, packet: &Packet, file: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files = file.as_slice();
        if !files.is_empty() {
            let fits = control.push(SendAncillaryMessage::ScmRights(files));
            assert!(fits, "there is space for one file");
        }
        let bytes = packet.encode();
        rustix::io::retry_on_intr(|| {
            sendmsg(
                &self.fd,
                &[IoSlice::new(&bytes)],
                &mut control,
                SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
            )
        })?;
        Ok(())
    }

    pub fn receive(&self) -> Received {
        let mut bytes = [0; MAX_PACKET];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let message = loop {
            match recvmsg(&self.fd, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
                Ok(message) => break message,
                // The other end was closed before it had read everything; what it sent is still to be read,
                // then the end.
                Err(Errno::INTR | Errno::CONNRESET) => {}
                Err(_) => return Received::Nothing,
            }
        };
        if message.bytes == 0 {
            return if self.is_hung_up() { Received::End } else { Received::Garbage };
        }
        let mut files = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut files) => files.next(),
            _ => None,
        });
        let file = files.next();
        drop(files);
        if message.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Received::Garbage;
        }
        Packet::decode(&bytes[..message.bytes])
            .map_or(Received::Garbage, |packet| Received::Packet(packet, file))
    }

    /// An empty packet reads like the end, and the end must never be assumed: it is the fence.
    fn is_hung_up(&self) -> bool {
        let mut polled = [PollFd::new(&self.fd, PollFlags::RDHUP)];
        let ready = rustix::io::retry_on_intr(|| poll(&mut polled, Some(&Timespec::default())));
        ready.is_ok() && polled[0].revents().intersects(PollFlags::RDHUP | PollFlags::HUP)
    }

    /// Ends our direction only: the other end sees the end, and we still see when it closes.
    pub fn half_close(&self) {
        // It fails where the other end is gone already, and then there is nobody to tell.
        let _ = shutdown(&self.fd, Shutdown::Write);
    }
}

/// What woke us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ready {
    Listener,
    Waker,
    Link { key: u64 },
}

/// Every file descriptor that the agent sleeps on.
#[derive(Debug)]
pub(super) struct Sockets {
    epoll: OwnedFd,
    next_key: u64,
}

const LISTENER: u64 = 0;
const WAKER: u64 = 1;
const MAX_READY: usize = 64;

impl Sockets {
    pub fn new(listener: &OwnedFd, waker: &OwnedFd) -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
        epoll::add(&epoll, waker, epoll::EventData::new_u64(WAKER), epoll::EventFlags::IN)?;
        Ok(Self { epoll, next_key: WAKER + 1 })
    }

    fn watch(&mut self, fd: OwnedFd) -> Result<Link, Errno> {
        let key = self.next_key;
        epoll::add(&self.epoll, &fd, epoll::EventData::new_u64(key), epoll::EventFlags::IN)?;
        self.next_key += 1;
        Ok(Link { key, fd })
    }

    /// Connects to an agent of our user. `WouldBlock` when too many wait before it.
    pub fn connect(&mut self, name: &[u8]) -> Result<Link, Errno> {
        let fd = new_socket()?;
        connect(&fd, &SocketAddrUnix::new_abstract_name(name)?)?;
        if !is_our_user(fd.as_fd()) {
            return Err(Errno::PERM);
        }
        self.watch(fd)
    }

    /// The next connection, or `Ok(None)` for one by somebody else's process, which is closed at once.
    pub fn accept(&mut self, listener: &OwnedFd) -> Result<Option<Link>, Errno> {
        let fd = accept_with(listener, FLAGS)?;
        if !is_our_user(fd.as_fd()) {
            return Ok(None);
        }
        self.watch(fd).map(Some)
    }

    pub fn close(&self, link: Link) {
        // Explicitly: a forked child may still hold the socket, and then epoll would go on reporting it.
        let _ = epoll::delete(&self.epoll, &link.fd);
    }

    /// Whether to report that a link has room to send again.
    pub fn watch_room(&self, link: &Link, on: bool) {
        let flags = if on { epoll::EventFlags::IN | epoll::EventFlags::OUT } else { epoll::EventFlags::IN };
        let modified = epoll::modify(&self.epoll, &link.fd, epoll::EventData::new_u64(link.key), flags);
        debug_assert!(modified.is_ok(), "a link is watched until it is closed");
    }

    /// Whether connections are reported: not while there is no file descriptor left for them.
    pub fn watch_listener(&self, listener: &OwnedFd, on: bool) {
        let flags = if on { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        let modified = epoll::modify(&self.epoll, listener, epoll::EventData::new_u64(LISTENER), flags);
        debug_assert!(modified.is_ok(), "the listener is watched until the agent ends");
    }

    /// What is ready, after `timeout` at the latest; more than 64 at once are left for the next call.
    pub fn ready(&self, timeout: Duration) -> Vec<Ready> {
        let mut events = Vec::with_capacity(MAX_READY);
        let timeout = Timespec::try_from(timeout).unwrap_or_default();
        // An interrupted sleep is a short one.
        let _ = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&timeout));
        let ready = |event: &epoll::Event| match event.data.u64() {
            LISTENER => Ready::Listener,
            WAKER => Ready::Waker,
            key => Ready::Link { key },
        };
        events.iter().map(ready).collect()
    }
}

/// The name that an agent listens under.
pub(super) fn socket_name(random: &[u8; 16]) -> Vec<u8> {
    let hex = random.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    format!("baton-{hex}").into_bytes()
}

/// 16 bytes that nobody can guess.
pub(super) fn random_bytes() -> io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    assert_eq!(filled, bytes.len(), "so few bytes come whole");
    Ok(bytes)
}
