//! How many bytes of tensors have crossed between the host and memory that it cannot address.

use super::sys;
use std::sync::atomic::{AtomicU64, Ordering};

static DOWN: AtomicU64 = AtomicU64::new(0);
static UP: AtomicU64 = AtomicU64::new(0);

/// Bytes that have crossed since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transfers {
    /// From devices to the host.
    pub down: u64,
    /// From the host to devices.
    pub up: u64,
}

impl Transfers {
    /// The bytes so far. What ggml's scheduler moves between two devices while a graph runs is not among them.
    pub fn now() -> Transfers {
        Transfers { down: DOWN.load(Ordering::Relaxed), up: UP.load(Ordering::Relaxed) }
    }

    /// The bytes since `earlier`.
    pub fn since(self, earlier: Transfers) -> Transfers {
        Transfers { down: self.down - earlier.down, up: self.up - earlier.up }
    }
}

/// # Safety
/// `buffer` must be a live handle or null.
pub(super) unsafe fn count(buffer: sys::ggml_backend_buffer_t, down: bool, n_bytes: usize) {
    // SAFETY: by the caller.
    if !buffer.is_null() && !unsafe { sys::ggml_backend_buffer_is_host(buffer) } {
        if down { &DOWN } else { &UP }.fetch_add(n_bytes as u64, Ordering::Relaxed);
    }
}
