//! What `baton up` hands its children to listen on, from the child's side.

use std::io;
use std::net::TcpListener;

use rustix::net::sockopt::socket_acceptconn;

use super::PARENT;

/// The socket that this process is to serve, if `baton up` started it: its standard input, as inetd did it.
///
/// # Errors
/// The operating system's.
pub fn inherited_listener() -> io::Result<Option<TcpListener>> {
    let stdin = io::stdin();
    // Somebody else's may be anything; and of `baton up` it is null for a process that binds by itself.
    if std::env::var_os(PARENT).is_none() || !socket_acceptconn(&stdin).unwrap_or(false) {
        return Ok(None);
    }
    let listener = TcpListener::from(rustix::io::fcntl_dupfd_cloexec(&stdin, 3)?);
    listener.set_nonblocking(true)?;
    Ok(Some(listener))
}
