//! TUN devices: whatever a host sends comes out of a descriptor as IP packets, and packets that are written to it arrive at the host.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, open as open_file};
use rustix::ioctl::{Opcode, Setter, ioctl};

const TUNSETIFF: Opcode = 0x4004_54ca;
/// IP packets, with nothing in front of them.
const IFF_TUN_NO_PI: u16 = 0x1001;
const NAME_BYTES: usize = 16;

/// `struct ifreq` as TUNSETIFF reads it.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; NAME_BYTES],
    flags: u16,
    rest: [u8; 22],
}

/// Makes the device `name`, which lives as long as its descriptor. Reads do not wait.
///
/// # Errors
/// The operating system's.
pub fn open(name: &str) -> io::Result<OwnedFd> {
    let fd = open_file("/dev/net/tun", OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
    let mut request = InterfaceRequest { name: [0; NAME_BYTES], flags: IFF_TUN_NO_PI, rest: [0; 22] };
    if name.len() >= NAME_BYTES {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: TUNSETIFF reads one `struct ifreq`, whose size and layout `InterfaceRequest` has.
    #[allow(unsafe_code)]
    unsafe { ioctl(&fd, Setter::<TUNSETIFF, InterfaceRequest>::new(request)) }?;
    Ok(fd)
}
