//! Running devices, and how the CPU uses threads.

use super::device::{BufferType, Device};
use super::rpc::Waiting;
use super::sys;
use crate::error::{Error, Result};
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

/// `--numa`: how threads are divided among the nodes of a machine with several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numa {
    /// Evenly.
    Distribute,
    /// All on the node where the program was started.
    Isolate,
    /// As `numactl` says.
    Numactl,
}

impl Numa {
    /// Tells ggml, once per process and before threads are started.
    pub fn init(self) {
        let strategy = match self {
            Numa::Distribute => sys::GGML_NUMA_STRATEGY_DISTRIBUTE,
            Numa::Isolate => sys::GGML_NUMA_STRATEGY_ISOLATE,
            Numa::Numactl => sys::GGML_NUMA_STRATEGY_NUMACTL,
        };
        static ONCE: std::sync::Once = std::sync::Once::new();
        // SAFETY: takes no pointer; ggml asks for one call only.
        ONCE.call_once(|| unsafe { sys::ggml_numa_init(strategy) });
    }
}

/// How the CPU backend uses threads.
#[derive(Clone, Debug, PartialEq)]
pub struct ThreadParams {
    /// Threads, the calling one included.
    pub n_threads: usize,
    /// How eagerly idle threads poll for work, 0 (sleep at once) to 100.
    pub poll: u32,
    /// Scheduling priority: 0 normal, 1 medium, 2 high, 3 realtime, -1 low.
    pub priority: i32,
    /// Processors the threads may run on; empty = all.
    pub cpu_mask: Vec<bool>,
    /// One processor per thread instead of the whole mask for each.
    pub strict_cpu: bool,
}

impl ThreadParams {
    /// `n_threads` threads with llama.cpp's defaults.
    pub fn new(n_threads: usize) -> Self {
        ThreadParams { n_threads: n_threads.max(1), poll: 50, priority: 0, cpu_mask: Vec::new(), strict_cpu: false }
    }
}

/// A running device.
pub struct Backend {
    raw: NonNull<sys::ggml_backend>,
    /// For single tokens, and for batches where those are placed in another way.
    pools: Vec<NonNull<sys::ggml_threadpool>>,
    active: usize,
    /// What ggml looks at between two operations.
    stop: Option<Arc<AtomicBool>>,
}

// SAFETY: a backend may be used from any one thread at a time; every method that computes takes it by `&mut` through the scheduler.
unsafe impl Send for Backend {}
// SAFETY: `&self` gives out only the handle.
unsafe impl Sync for Backend {}

const fn n_processors<const N: usize>(_: fn(&sys::ggml_threadpool_params) -> &[bool; N]) -> usize {
    N
}

/// Most threads of one computation (`GGML_MAX_N_THREADS`).
pub const MAX_THREADS: usize = n_processors(|params| &params.cpumask);

impl Backend {
    /// The CPU backend with ggml's own thread pool (OpenMP's barriers stall for seconds beside other busy processes), and a second
    /// one for batches where `batch` asks for that.
    ///
    /// # Errors
    /// When the threads cannot be started.
    pub fn cpu(threads: &ThreadParams, batch: Option<&ThreadParams>) -> Result<Backend> {
        // SAFETY: plain constructors; null is checked; the pools are freed after the backend in Drop.
        unsafe {
            let raw = NonNull::new(sys::ggml_backend_cpu_init())
                .ok_or_else(|| Error::ggml("the CPU backend cannot be started"))?;
            let mut backend = Backend { raw, pools: Vec::new(), active: 0, stop: None };
            for threads in [Some(threads), batch].into_iter().flatten() {
                let mut params = sys::ggml_threadpool_params_default(threads.n_threads as i32);
                params.poll = threads.poll;
                params.prio = threads.priority as sys::ggml_sched_priority;
                params.strict_cpu = threads.strict_cpu;
                // A pool that waits for its turn must not keep a processor busy.
                params.paused = !backend.pools.is_empty();
                for (slot, &on) in params.cpumask.iter_mut().zip(&threads.cpu_mask) {
                    *slot = on;
                }
                let pool = NonNull::new(sys::ggml_threadpool_new(&mut params))
                    .ok_or_else(|| Error::ggml(format!("cannot start {} threads", threads.n_threads)))?;
                backend.pools.push(pool);
            }
            sys::ggml_backend_cpu_set_threadpool(raw.as_ptr(), backend.pools[0].as_ptr());
            backend.set_threads(threads.n_threads, false);
            Ok(backend)
        }
    }

    /// The backend of a device other than the CPU.
    ///
    /// # Errors
    /// When the device cannot be started.
    pub fn device(device: Device) -> Result<Backend> {
        let _waiting = Waiting::new();
        // SAFETY: devices are static objects of the registry; null is checked.
        let raw = NonNull::new(unsafe { sys::ggml_backend_dev_init(device.raw(), std::ptr::null()) })
            .ok_or_else(|| Error::ggml(format!("device {} cannot be started", device.name())))?;
        Ok(Backend { raw, pools: Vec::new(), active: 0, stop: None })
    }

    /// The default kind of memory.
    pub fn buffer_type(&self) -> BufferType {
        // SAFETY: the handle is live; every backend has a default buffer type.
        BufferType::from_raw(unsafe { sys::ggml_backend_get_default_buffer_type(self.raw.as_ptr()) })
    }

    /// Uses this many threads from the next graph on, of the pool for batches if there is one.
    pub fn set_threads(&mut self, n_threads: usize, is_batch: bool) {
        let wanted = if is_batch { self.pools.len().saturating_sub(1) } else { 0 };
        // SAFETY: only called on a CPU backend (only `cpu` makes pools); the pools are alive, and ggml pauses the one that is
        // replaced and wakes the other with the next graph.
        unsafe {
            if let Some(pool) = self.pools.get(wanted).filter(|_| wanted != self.active) {
                sys::ggml_backend_cpu_set_threadpool(self.raw.as_ptr(), pool.as_ptr());
                self.active = wanted;
            }
            sys::ggml_backend_cpu_set_n_threads(self.raw.as_ptr(), n_threads.max(1) as i32)
        }
    }

    /// Computations of this backend end with [`Error::Interrupted`] while `stop` is set; only the CPU has such a thing.
    pub fn set_stop(&mut self, stop: Option<Arc<AtomicBool>>) {
        if self.pools.is_empty() {
            return;
        }
        let (call, data): (sys::ggml_abort_callback, _) = match &stop {
            Some(flag) => (Some(is_set), Arc::as_ptr(flag).cast_mut().cast()),
            None => (None, std::ptr::null_mut()),
        };
        // SAFETY: only a CPU backend has pools; the flag lives as long as `self.stop`, which goes after the backend or after ggml
        // has been given another one, and no computation runs while `&mut self` is held.
        unsafe { sys::ggml_backend_cpu_set_abort_callback(self.raw.as_ptr(), call, data) }
        self.stop = stop;
    }

    pub(super) fn raw(&self) -> sys::ggml_backend_t {
        self.raw.as_ptr()
    }
}

unsafe extern "C" fn is_set(flag: *mut c_void) -> bool {
    // SAFETY: ggml gives back what `set_stop` gave it, an `AtomicBool` that the backend keeps alive.
    unsafe { (*flag.cast::<AtomicBool>()).load(Ordering::Relaxed) }
}

impl Drop for Backend {
    fn drop(&mut self) {
        // SAFETY: sole owner; the backend goes first because it refers to a pool.
        unsafe {
            sys::ggml_backend_free(self.raw.as_ptr());
            for pool in &self.pools {
                sys::ggml_threadpool_free(pool.as_ptr());
            }
        }
    }
}
