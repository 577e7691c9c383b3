//! Memory that other processes of the host can map: a sealed memory file.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};

use baton_types::MemoryRegion;
use rustix::fs::memfd_create;
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate,
};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

/// With these a file keeps its length for good, so that no access to a mapping of it can end in SIGBUS.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// A region in a memory file without a name: nothing in `/dev/shm`, and nothing left when the last process
/// that maps it ends, however it ends.
#[derive(Debug)]
pub struct ShmRegion {
    mapping: Mapping,
    file: OwnedFd,
}

impl ShmRegion {
    /// A zeroed region whose pages are allocated when they are first touched.
    pub fn new(len: usize) -> io::Result<Self> {
        Self::with_pages(len, false)
    }

    /// A zeroed region whose pages are all allocated now: what is missing shows here and not in the middle of
    /// a step.
    pub fn populated(len: usize) -> io::Result<Self> {
        Self::with_pages(len, true)
    }

    fn with_pages(len: usize, populate: bool) -> io::Result<Self> {
        if len == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a region has bytes"));
        }
        let file = memfd_create("baton-kv", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, len as u64)?;
        fcntl_add_seals(&file, SEALS | SealFlags::SEAL)?;
        if populate {
            fallocate(&file, FallocateFlags::empty(), 0, len as u64)?;
        }
        let mapping =
            Mapping::new(&file, len, if populate { MapFlags::POPULATE } else { MapFlags::empty() })?;
        Ok(Self { mapping, file })
    }
}

// SAFETY: the mapping is this value's, page-aligned, zeroed by the kernel, of a file that cannot shrink, and
// lives as long.
#[allow(unsafe_code)]
unsafe impl MemoryRegion for ShmRegion {
    fn base(&self) -> NonNull<u8> {
        self.mapping.base
    }

    fn len(&self) -> usize {
        self.mapping.len
    }

    fn shared_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }
}

/// A file mapped into this process, shared, readable and writable.
#[derive(Debug)]
pub(super) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    /// So many bytes from the start have their pages in this process's tables.
    populated: usize,
}

/// How much of a mapping is populated before whoever waits for the poll gets its turn.
const POPULATE_BYTES: usize = 8 << 20;

impl Mapping {
    #[allow(unsafe_code)]
    fn new(file: impl AsFd, len: usize, flags: MapFlags) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that anybody knows.
        let base = unsafe {
            mmap(null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | flags, file, 0)?
        };
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mapping = Self { base, len, populated: 0 };
        // Fewer and cheaper page faults where the host allows it; where not, nothing is lost.
        let _ = mapping.advise(Advice::LinuxHugepage);
        Ok(mapping)
    }

    /// Maps a peer's region.
    ///
    /// A peer could hand over any file: only one that is sealed against resizing, and as long as was agreed,
    /// can never make us fault. A child that this process forks must not inherit the mapping: the connection
    /// that is the peer's fence could be closed while the child still writes.
    pub fn of_peer(file: impl AsFd, len: u64) -> io::Result<Self> {
        let invalid = |why| io::Error::new(io::ErrorKind::InvalidData, why);
        let seals = fcntl_get_seals(&file).map_err(|_| invalid("the peer's region is not a memory file"))?;
        if !seals.contains(SEALS) {
            return Err(invalid("the peer's region is not sealed against resizing"));
        }
        if u64::try_from(fstat(&file)?.st_size) != Ok(len) {
            return Err(invalid("the peer's region is not as long as it said"));
        }
        let len = usize::try_from(len).map_err(|_| invalid("the peer's region is too long"))?;
        let mapping = Self::new(file, len, MapFlags::empty())?;
        mapping.advise(Advice::LinuxDontFork)?;
        Ok(mapping)
    }

    #[allow(unsafe_code)]
    fn advise(&self, advice: Advice) -> io::Result<()> {
        // SAFETY: the range is this mapping, and none of the advices given here changes what it holds.
        unsafe { madvise(self.base.as_ptr().cast(), self.len, advice)? };
        Ok(())
    }

    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub fn is_populated(&self) -> bool {
        self.populated >= self.len
    }

    /// Enters the next pages into this process's tables, so that no copy has to wait for them. Where the kernel cannot do
    /// it, copies do.
    #[allow(unsafe_code)]
    pub fn populate_slice(&mut self) {
        let len = POPULATE_BYTES.min(self.len - self.populated);
        // SAFETY: the range is inside this mapping, begins at a page, and the advice changes nothing that it holds.
        let advised = unsafe {
            madvise(self.base.as_ptr().add(self.populated).cast(), len, Advice::LinuxPopulateWrite)
        };
        self.populated = if advised.is_ok() { self.populated + len } else { self.len };
    }
}

#[allow(unsafe_code)]
impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length; whoever copies into it borrows this value or what owns
        // it.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "a mapping ends once");
    }
}

// SAFETY: the value only carries the address; what happens behind it follows the rule on `MemoryRegion`.
#[allow(unsafe_code)]
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`.
#[allow(unsafe_code)]
unsafe impl Sync for Mapping {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sealed_memory_files_of_the_agreed_length_are_mapped() {
        let region = ShmRegion::new(5000).unwrap();
        let file = region.shared_fd().unwrap();
        assert!(Mapping::of_peer(file, 5000).is_ok());
        assert!(Mapping::of_peer(file, 4999).is_err());
        assert!(Mapping::of_peer(file, 8192).is_err());

        let unsealed = memfd_create("unsealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&unsealed, 5000).unwrap();
        assert!(Mapping::of_peer(&unsealed, 5000).is_err());
        fcntl_add_seals(&unsealed, SealFlags::GROW).unwrap();
        assert!(Mapping::of_peer(&unsealed, 5000).is_err());

        let device = std::fs::File::open("/dev/zero").unwrap();
        assert!(Mapping::of_peer(&device, 5000).is_err());
    }

    #[test]
    fn a_region_is_zeroed_and_keeps_its_length() {
        for region in [ShmRegion::new(70_000).unwrap(), ShmRegion::populated(70_000).unwrap()] {
            assert_eq!((region.len(), region.base().as_ptr() as usize % 64), (70_000, 0));
            // SAFETY: the region is this test's alone.
            #[allow(unsafe_code)]
            let bytes = unsafe { std::slice::from_raw_parts(region.base().as_ptr(), region.len()) };
            assert!(bytes.iter().all(|&b| b == 0));
            assert!(ftruncate(&region.file, 0).is_err() && ftruncate(&region.file, 80_000).is_err());
        }
        assert!(ShmRegion::new(0).is_err());
    }
}
