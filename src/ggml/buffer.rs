//! Memory of tensors.

use super::device::BufferType;
use super::mmap::Mmap;
use super::rpc::Waiting;
use super::sys;
use crate::error::{Error, Result};
use std::ptr::NonNull;
use std::sync::Arc;

/// A block of backend memory; freed when dropped.
pub struct Buffer {
    raw: NonNull<sys::ggml_backend_buffer>,
    /// Keeps a wrapped mapping alive.
    _map: Option<Arc<Mmap>>,
}

// SAFETY: a buffer is only a handle; ggml's buffer functions do not use thread-local state, and writes to its memory go
// through `Tensor::write`, whose documentation puts the ordering on the caller.
unsafe impl Send for Buffer {}
// SAFETY: as above; shared use only reads the handle.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Allocates `size` bytes of this kind.
    ///
    /// # Errors
    /// When the backend cannot give that much memory.
    pub fn new(buft: BufferType, size: usize) -> Result<Buffer> {
        let _waiting = Waiting::new();
        // SAFETY: `buft` is a live handle (they are never freed).
        let raw = unsafe { sys::ggml_backend_buft_alloc_buffer(buft.raw(), size.max(1)) };
        match NonNull::new(raw) {
            Some(raw) => Ok(Buffer { raw, _map: None }),
            None => Err(Error::ggml(format!(
                "cannot allocate {:.1} MiB of {} memory",
                size as f64 / 1048576.0,
                buft.name()
            ))),
        }
    }

    /// Wraps a mapped file as CPU memory, without copying.
    ///
    /// # Errors
    /// When ggml refuses the address (never for a page-aligned mapping).
    pub fn from_mmap(map: Arc<Mmap>) -> Result<Buffer> {
        let bytes = map.bytes();
        // SAFETY: the mapping outlives the buffer (`_map`), and weights are never written, so the cast to mut is not used.
        let raw = unsafe { sys::ggml_backend_cpu_buffer_from_ptr(bytes.as_ptr().cast_mut().cast(), bytes.len()) };
        match NonNull::new(raw) {
            Some(raw) => Ok(Buffer { raw, _map: Some(map) }),
            None => Err(Error::ggml(format!("cannot use the mapping of {}", map.path().display()))),
        }
    }

    /// # Safety
    /// `raw` must be a live buffer that nothing else frees.
    pub(super) unsafe fn adopt(raw: NonNull<sys::ggml_backend_buffer>) -> Buffer {
        Buffer { raw, _map: None }
    }

    /// Its size in bytes.
    pub fn size(&self) -> usize {
        // SAFETY: the handle is live.
        unsafe { sys::ggml_backend_buffer_get_size(self.raw.as_ptr()) }
    }

    /// Marks the contents as weights, which the scheduler then leaves where they are.
    pub fn set_weights(&self) {
        // SAFETY: the handle is live.
        unsafe { sys::ggml_backend_buffer_set_usage(self.raw.as_ptr(), sys::GGML_BACKEND_BUFFER_USAGE_WEIGHTS) }
    }

    /// Fills the buffer with one byte.
    pub fn clear(&self, value: u8) {
        let _waiting = Waiting::new();
        // SAFETY: the handle is live.
        unsafe { sys::ggml_backend_buffer_clear(self.raw.as_ptr(), value) }
    }

    pub(super) fn raw(&self) -> sys::ggml_backend_buffer_t {
        self.raw.as_ptr()
    }

    pub(super) fn base(&self) -> *mut u8 {
        // SAFETY: the handle is live.
        unsafe { sys::ggml_backend_buffer_get_base(self.raw.as_ptr()).cast() }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let _waiting = Waiting::new();
        // SAFETY: this is the only owner; tensors that point into the buffer hold an Arc of the context that owns it.
        unsafe { sys::ggml_backend_buffer_free(self.raw.as_ptr()) }
    }
}
