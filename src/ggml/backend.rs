//! Devices, backends and their kinds of memory.

use super::buffer::Buffer;
use super::sys;
use crate::error::{Error, Result};
use std::ffi::CStr;
use std::ptr::NonNull;

/// A kind of memory of a device.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct BufferType(NonNull<sys::ggml_backend_buffer_type>);

// SAFETY: buffer types are static objects of ggml's registry.
unsafe impl Send for BufferType {}
// SAFETY: as above.
unsafe impl Sync for BufferType {}

impl BufferType {
    /// Ordinary memory of the CPU.
    pub fn cpu() -> BufferType {
        // SAFETY: returns a static object, never null.
        BufferType(unsafe { NonNull::new_unchecked(sys::ggml_backend_cpu_buffer_type()) })
    }

    /// The CPU's extra kinds (AMX, repacked weights), in ggml's order of preference.
    pub fn cpu_extra() -> Vec<BufferType> {
        type GetExtra = unsafe extern "C" fn(sys::ggml_backend_dev_t) -> *mut sys::ggml_backend_buffer_type_t;
        let Some(device) = Device::cpu() else { return Vec::new() };
        let mut out = Vec::new();
        // SAFETY: the procedure has this signature in ggml-backend.h (ggml_backend_dev_get_extra_bufts_t); it returns a
        // null-terminated array of static objects, or null.
        unsafe {
            let address = sys::ggml_backend_reg_get_proc_address(
                sys::ggml_backend_cpu_reg(),
                c"ggml_backend_dev_get_extra_bufts".as_ptr(),
            );
            if address.is_null() {
                return out;
            }
            let get: GetExtra = std::mem::transmute(address);
            let mut list = get(device.0.as_ptr());
            while !list.is_null() {
                match NonNull::new(*list) {
                    Some(buft) => out.push(BufferType(buft)),
                    None => break,
                }
                list = list.add(1);
            }
        }
        out
    }

    /// ggml's name, for example `CPU_REPACK`.
    pub fn name(self) -> &'static str {
        // SAFETY: static object, static name.
        unsafe { CStr::from_ptr(sys::ggml_backend_buft_name(self.0.as_ptr())) }.to_str().unwrap_or("?")
    }

    /// Alignment of tensors in bytes.
    pub fn alignment(self) -> usize {
        // SAFETY: static object.
        unsafe { sys::ggml_backend_buft_get_alignment(self.0.as_ptr()) }
    }

    /// Whether the host can read it through a pointer.
    pub fn is_host(self) -> bool {
        // SAFETY: static object.
        unsafe { sys::ggml_backend_buft_is_host(self.0.as_ptr()) }
    }

    /// Whether the CPU can multiply a weight of this type and shape from this kind of memory.
    ///
    /// Shapes: `ne`, innermost first. Source: llama.cpp `src/llama-model-loader.cpp`, `weight_buft_supported`.
    pub fn supports_mul_mat(self, ty: super::Type, ne: &[usize]) -> bool {
        let probe = || -> Result<bool> {
            let ctx = super::Context::new(8, 0)?;
            let w = ctx.tensor(ty, ne)?;
            let x = ctx.tensor(super::Type::F32, &[ne[0], 512])?;
            let product = ctx.mul_mat(&w, &x)?;
            ctx.own_buffer(Buffer::new(self, 0)?);
            Ok(ctx.supported_from_first_buffer(&w, &product))
        };
        probe().unwrap_or(false)
    }

    pub(super) fn raw(self) -> sys::ggml_backend_buffer_type_t {
        self.0.as_ptr()
    }
}

/// What a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// The processor and system memory.
    Cpu,
    /// A GPU with its own or shared memory.
    Gpu,
    /// Anything else (accelerators beside the CPU, remote servers).
    Other,
}

/// A device that ggml knows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Device(NonNull<sys::ggml_backend_device>);

// SAFETY: devices are static objects of ggml's registry.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// All devices, in ggml's order.
    pub fn all() -> Vec<Device> {
        // SAFETY: indices are below the count; devices are static objects.
        unsafe {
            (0..sys::ggml_backend_dev_count())
                .filter_map(|i| NonNull::new(sys::ggml_backend_dev_get(i)).map(Device))
                .collect()
        }
    }

    /// The CPU.
    pub fn cpu() -> Option<Device> {
        // SAFETY: returns a static object or null.
        unsafe { NonNull::new(sys::ggml_backend_dev_by_type(sys::GGML_BACKEND_DEVICE_TYPE_CPU)).map(Device) }
    }

    /// Short name, as `-dev` takes it.
    pub fn name(self) -> &'static str {
        // SAFETY: static object, static name.
        unsafe { CStr::from_ptr(sys::ggml_backend_dev_name(self.0.as_ptr())) }.to_str().unwrap_or("?")
    }

    /// Long name.
    pub fn description(self) -> &'static str {
        // SAFETY: static object, static text.
        unsafe { CStr::from_ptr(sys::ggml_backend_dev_description(self.0.as_ptr())) }.to_str().unwrap_or("?")
    }

    /// Free and total memory. Units: bytes.
    pub fn memory(self) -> (usize, usize) {
        let (mut free, mut total) = (0, 0);
        // SAFETY: static object; both outputs are valid.
        unsafe { sys::ggml_backend_dev_memory(self.0.as_ptr(), &mut free, &mut total) };
        (free, total)
    }

    /// What it is.
    pub fn kind(self) -> DeviceKind {
        // SAFETY: static object.
        match unsafe { sys::ggml_backend_dev_type(self.0.as_ptr()) } {
            sys::GGML_BACKEND_DEVICE_TYPE_CPU => DeviceKind::Cpu,
            sys::GGML_BACKEND_DEVICE_TYPE_GPU | sys::GGML_BACKEND_DEVICE_TYPE_IGPU => DeviceKind::Gpu,
            _ => DeviceKind::Other,
        }
    }

    /// Its default kind of memory.
    pub fn buffer_type(self) -> BufferType {
        // SAFETY: static object; never null for a registered device.
        BufferType(unsafe { NonNull::new_unchecked(sys::ggml_backend_dev_buffer_type(self.0.as_ptr())) })
    }

    /// Whether the device can compute the operation that `tensor` is the result of.
    pub fn supports(self, tensor: &super::Tensor) -> bool {
        // SAFETY: static object; the tensor is alive through its context.
        unsafe { sys::ggml_backend_dev_supports_op(self.0.as_ptr(), tensor.raw()) }
    }
}

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
}

// SAFETY: a backend may be used from any one thread at a time; every method that computes takes it by `&mut` through the scheduler.
unsafe impl Send for Backend {}
// SAFETY: `&self` gives out only the handle.
unsafe impl Sync for Backend {}

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
            let mut backend = Backend { raw, pools: Vec::new(), active: 0 };
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

    pub(super) fn raw(&self) -> sys::ggml_backend_t {
        self.raw.as_ptr()
    }
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
