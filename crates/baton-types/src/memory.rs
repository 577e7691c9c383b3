//! Memory that an engine's runner computes in and that transports move bytes from and into.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

/// A run of bytes that stays where it is for as long as the value lives.
///
/// The KV pool is one region, shared by the runner, which computes in blocks, and by transports (a peer process among
/// them), which move whole blocks. Nobody holds a Rust reference into it across a step: everybody goes through raw pointers
/// into the blocks that `baton-engine` and `baton-proto` say are theirs, and those are disjoint (I1, I3).
///
/// # Safety
/// `base()` must be valid for reads and writes of `len()` bytes, aligned to 64 bytes, initialised, and must stay the same
/// until the value is dropped, whichever thread asks. `shared_fd()`, if any, must map to exactly these bytes.
#[allow(unsafe_code)]
pub unsafe trait MemoryRegion: Send + Sync + Debug {
    fn base(&self) -> NonNull<u8>;
    fn len(&self) -> usize;
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The memory file behind the region, where other processes can map it too.
    fn shared_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A zeroed region on this process's heap: for one-process systems, the simulator and tests.
#[derive(Debug)]
pub struct HeapRegion {
    base: NonNull<u8>,
    layout: Layout,
}

const ALIGN: usize = 64;

#[allow(unsafe_code)]
impl HeapRegion {
    /// # Panics
    /// If `len` is zero or beyond `isize::MAX`.
    pub fn new(len: usize) -> Self {
        assert!(len > 0, "a region has bytes");
        let layout = Layout::from_size_align(len, ALIGN).expect("a region fits the address space");
        // SAFETY: the layout's size is not zero.
        let base = unsafe { alloc_zeroed(layout) };
        Self { base: NonNull::new(base).unwrap_or_else(|| handle_alloc_error(layout)), layout }
    }
}

#[allow(unsafe_code)]
impl Drop for HeapRegion {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this very layout, freed once.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

// SAFETY: the allocation belongs to this value alone, is `layout.size()` long, zeroed, 64-aligned, and never moves.
#[allow(unsafe_code)]
unsafe impl MemoryRegion for HeapRegion {
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn len(&self) -> usize {
        self.layout.size()
    }
}

// SAFETY: the value only carries the address; what happens behind it follows the rule on `MemoryRegion`.
#[allow(unsafe_code)]
unsafe impl Send for HeapRegion {}
// SAFETY: as for `Send`.
#[allow(unsafe_code)]
unsafe impl Sync for HeapRegion {}
