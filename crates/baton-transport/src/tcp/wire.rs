//! The bytes of a connection, as they are or inside TLS.

use std::io::{self, BufRead, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd};

use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustls::Connection;

use crate::poller::Socket;

/// Where bytes are, or are to go: raw, because KV blocks are nobody's to borrow.
pub(super) type Part = libc::iovec;

/// The part that a slice is.
pub(super) fn part(bytes: &[u8]) -> Part {
    Part { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}

/// The part that a slice to be filled is.
pub(super) fn part_mut(bytes: &mut [u8]) -> Part {
    Part { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }
}

#[derive(Debug)]
pub(super) enum Wire {
    Plain(Socket),
    Tls(Box<TlsWire>),
}

#[derive(Debug)]
pub(super) struct TlsWire {
    socket: Socket,
    connection: Connection,
    /// What came and is not decrypted.
    sealed: Vec<u8>,
    sealed_begin: usize,
}

/// Plain bytes that TLS holds back until they are sent.
const TLS_BUFFER: usize = 256 << 10;
/// Bytes taken from a socket at once for TLS.
const SEALED: usize = 64 << 10;

impl Wire {
    pub fn tls(socket: Socket, mut connection: Connection) -> Self {
        connection.set_buffer_limit(Some(TLS_BUFFER));
        Self::Tls(Box::new(TlsWire { socket, connection, sealed: Vec::new(), sealed_begin: 0 }))
    }

    pub fn key(&self) -> u64 {
        match self {
            Self::Plain(socket) => socket.key,
            Self::Tls(wire) => wire.socket.key,
        }
    }

    pub fn is_tls(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    /// Sends some of the bytes, and says how many. `WouldBlock` if none.
    ///
    /// # Safety
    /// The parts must be valid for reads, and at most 1,024. Nobody may write them meanwhile; between engines,
    /// leases see to that (I3).
    #[allow(unsafe_code)]
    pub unsafe fn send(&mut self, parts: &[Part]) -> io::Result<usize> {
        match self {
            // SAFETY: the caller's.
            Self::Plain(socket) => unsafe { send_parts(socket, parts) },
            // SAFETY: the caller's.
            Self::Tls(wire) => unsafe { wire.send(parts) },
        }
    }

    /// Receives some bytes into the parts, in their order, and says how many; 0 at the end. `WouldBlock` if there
    /// are none.
    ///
    /// # Safety
    /// The parts must be valid for writes, and at most 1,024. Nobody may touch them meanwhile; between engines,
    /// leases see to that (I3).
    #[allow(unsafe_code)]
    pub unsafe fn receive(&mut self, parts: &[Part]) -> io::Result<usize> {
        match self {
            // SAFETY: the caller's.
            Self::Plain(socket) => unsafe { receive_parts(socket, parts) },
            // SAFETY: the caller's.
            Self::Tls(wire) => unsafe { wire.receive(parts) },
        }
    }

    /// Whether TLS has something to send of its own, or of what it was given.
    pub fn holds_back(&self) -> bool {
        matches!(self, Self::Tls(wire) if wire.connection.wants_write())
    }
}

/// # Safety
/// As for [`Wire::send`].
#[allow(unsafe_code)]
unsafe fn send_parts(socket: &Socket, parts: &[Part]) -> io::Result<usize> {
    // SAFETY: all zero is a message without parts, address and control.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_ptr().cast_mut();
    message.msg_iovlen = parts.len() as _;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the message lives, and its parts are valid for reads (caller).
    count(|| unsafe { libc::sendmsg(fd, &raw const message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) })
}

/// # Safety
/// As for [`Wire::receive`].
#[allow(unsafe_code)]
unsafe fn receive_parts(socket: &Socket, parts: &[Part]) -> io::Result<usize> {
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the parts are valid for writes (caller); the kernel checks how many there are.
    count(|| unsafe { libc::readv(fd, parts.as_ptr(), parts.len() as i32) })
}

/// Repeats an interrupted call.
fn count(call: impl Fn() -> isize) -> io::Result<usize> {
    loop {
        match usize::try_from(call()) {
            Ok(count) => return Ok(count),
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
}

impl TlsWire {
    /// # Safety
    /// As for [`Wire::send`].
    #[allow(unsafe_code)]
    unsafe fn send(&mut self, parts: &[Part]) -> io::Result<usize> {
        self.flush()?;
        if self.connection.is_handshaking() {
            return Err(ErrorKind::WouldBlock.into());
        }
        let mut taken = 0;
        for part in parts.iter().filter(|part| part.iov_len > 0) {
            // SAFETY: valid for reads, and written by nobody until it is encrypted, which it is in `write` (caller).
            let bytes = unsafe { std::slice::from_raw_parts(part.iov_base.cast::<u8>(), part.iov_len) };
            let n = self.connection.writer().write(bytes)?;
            taken += n;
            if n < bytes.len() {
                break;
            }
        }
        match self.flush() {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ if taken == 0 && parts.iter().any(|part| part.iov_len > 0) => Err(ErrorKind::WouldBlock.into()),
            _ => Ok(taken),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.connection.wants_write() {
            self.connection.write_tls(&mut Stream(&self.socket))?;
        }
        Ok(())
    }

    /// # Safety
    /// As for [`Wire::receive`].
    #[allow(unsafe_code)]
    unsafe fn receive(&mut self, parts: &[Part]) -> io::Result<usize> {
        loop {
            // SAFETY: the caller's.
            let opened = unsafe { self.take_opened(parts) }?;
            if opened > 0 {
                return Ok(opened);
            }
            if self.sealed_begin == self.sealed.len() {
                self.sealed.resize(SEALED, 0);
                let received = Stream(&self.socket).read(&mut self.sealed);
                self.sealed.truncate(*received.as_ref().unwrap_or(&0));
                self.sealed_begin = 0;
                if received? == 0 {
                    return Ok(0);
                }
            }
            let mut sealed = &self.sealed[self.sealed_begin..];
            let taken = self.connection.read_tls(&mut sealed)?;
            self.sealed_begin += taken;
            let processed = self.connection.process_new_packets();
            // An answer of the handshake, or the word why it failed. What does not fit goes with the next send.
            let _ = self.flush();
            processed.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
        }
    }

    /// Moves what is decrypted into the parts.
    ///
    /// # Safety
    /// As for [`Wire::receive`].
    #[allow(unsafe_code)]
    unsafe fn take_opened(&mut self, parts: &[Part]) -> io::Result<usize> {
        let mut reader = self.connection.reader();
        let mut moved = 0;
        for part in parts {
            let mut filled = 0;
            while filled < part.iov_len {
                let opened = match reader.fill_buf() {
                    Ok([]) => {
                        return if moved > 0 { Ok(moved) } else { Err(ErrorKind::UnexpectedEof.into()) };
                    }
                    Ok(opened) => opened,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(moved),
                    Err(error) => return Err(error),
                };
                let n = opened.len().min(part.iov_len - filled);
                // SAFETY: `n` bytes from `filled` on are inside the part, which is valid for writes (caller);
                // decrypted bytes are in memory of their own.
                unsafe {
                    std::ptr::copy_nonoverlapping(opened.as_ptr(), part.iov_base.cast::<u8>().add(filled), n);
                }
                reader.consume(n);
                filled += n;
                moved += n;
            }
        }
        Ok(moved)
    }
}

/// A socket as TLS sees it.
struct Stream<'a>(&'a Socket);

impl Read for Stream<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let received = rustix::io::retry_on_intr(|| recv(self.0, &mut *bytes, RecvFlags::DONTWAIT))?;
        Ok(received.0)
    }
}

impl Write for Stream<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        Ok(rustix::io::retry_on_intr(|| send(self.0, bytes, flags))?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
