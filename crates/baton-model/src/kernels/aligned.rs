//! Buffers for kernels: aligned to cache lines, large ones to huge pages, and shareable between the threads of one step.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use baton_types::MemoryRegion;

const LINE: usize = 64;
const HUGE_PAGE: usize = 2 << 20;

/// A zeroed, fixed-size buffer of plain values.
///
/// Threads of one step write disjoint parts of it through [`Buffer::ptr`]; between steps it belongs to its owner alone.
#[derive(Debug)]
pub struct Buffer<T: Copy> {
    base: NonNull<T>,
    len: usize,
    layout: Layout,
}

/// Types for which all-zero bytes are a value.
pub trait Plain: Copy + Send + Sync {}
impl Plain for f32 {}
impl Plain for i8 {}
impl Plain for u8 {}
impl Plain for i32 {}

impl<T: Plain> Buffer<T> {
    /// `len` zeros.
    pub fn zeroed(len: usize) -> Self {
        let bytes = len.max(1) * size_of::<T>();
        let align = if bytes >= HUGE_PAGE { HUGE_PAGE } else { LINE };
        let layout = Layout::from_size_align(bytes, align).expect("a buffer fits the address space");
        // SAFETY: the size is not zero.
        let base = unsafe { alloc(layout) };
        let base = NonNull::new(base).unwrap_or_else(|| handle_alloc_error(layout));
        if bytes >= HUGE_PAGE {
            advise_huge_pages(base, bytes);
        }
        // SAFETY: `bytes` bytes were just allocated.
        unsafe { base.as_ptr().write_bytes(0, bytes) };
        Self { base: base.cast(), len, layout }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn ptr(&self) -> *mut T {
        self.base.as_ptr()
    }

    pub fn as_slice(&self) -> &[T] {
        // SAFETY: `len` initialised values; no step runs while its owner can call this with a plain reference.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }

    pub fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: as for `as_slice`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }

    /// Grows to at least `len`, losing the contents.
    pub fn reserve_zeroed(&mut self, len: usize) {
        if self.len < len {
            *self = Self::zeroed(len);
        }
    }
}

/// Asks for huge pages before the memory is first touched: a decode step reads all weights, and with small pages spends much of
/// that on address translation. Where there are none, nothing is lost.
fn advise_huge_pages(base: NonNull<u8>, bytes: usize) {
    #[cfg(target_os = "linux")]
    {
        let whole_pages = bytes / HUGE_PAGE * HUGE_PAGE;
        // SAFETY: inside the allocation, aligned to a huge page; the advice changes no contents.
        let advised = unsafe {
            rustix::mm::madvise(base.as_ptr().cast(), whole_pages, rustix::mm::Advice::LinuxHugepage)
        };
        // A kernel without huge pages says so, and the buffer is as good, only slower.
        let _ = advised;
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (base, bytes);
}

impl<T: Copy> Drop for Buffer<T> {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this layout, freed once; T has no destructor.
        unsafe { dealloc(self.base.as_ptr().cast(), self.layout) };
    }
}

// SAFETY: the allocation is `len` initialised bytes, aligned to at least a cache line, and stays until the value is dropped.
unsafe impl MemoryRegion for Buffer<u8> {
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn len(&self) -> usize {
        self.len
    }
}

// SAFETY: a buffer is a plain owned allocation; sharing follows the rule on the type.
unsafe impl<T: Plain> Send for Buffer<T> {}
// SAFETY: as for `Send`.
unsafe impl<T: Plain> Sync for Buffer<T> {}
