//! Graphs and the scheduler that runs them.

use super::backend::Backend;
use super::context::Context;
use super::device::BufferType;
use super::rpc::Waiting;
use super::tensor::Tensor;
use super::{sys, transfer};
use crate::error::{Error, Result};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;

/// A set of operations in the order in which they run.
pub struct Graph {
    raw: NonNull<sys::ggml_cgraph>,
    ctx: Context,
    size: usize,
    /// Which scheduler allocation the graph's tensors belong to; 0 = none.
    allocation: u64,
}

// SAFETY: the graph lives in its context, which the handle keeps alive; it is changed only through `&mut self`.
unsafe impl Send for Graph {}
// SAFETY: through `&self` the graph is only read.
unsafe impl Sync for Graph {}

impl Graph {
    /// An empty graph for up to `size` nodes in `ctx`, which must have been made with at least that graph size.
    ///
    /// # Errors
    /// When ggml cannot create it.
    pub fn new(ctx: &Context, size: usize) -> Result<Graph> {
        // SAFETY: the context reserved room for a graph of this size (`Context::new`).
        let raw = unsafe { sys::ggml_new_graph_custom(ctx.raw(), size, false) };
        match NonNull::new(raw) {
            Some(raw) => Ok(Graph { raw, ctx: ctx.clone(), size, allocation: 0 }),
            None => Err(Error::ggml("a graph could not be created")),
        }
    }

    /// Adds everything that `tensor` needs and then `tensor` itself.
    ///
    /// # Errors
    /// When the graph is full.
    pub fn expand(&mut self, tensor: &Tensor) -> Result<()> {
        if self.n_nodes() + 64 > self.size {
            return Err(Error::ggml("a graph is full; this is a bug in its size estimate"));
        }
        // SAFETY: graph and tensor are alive; there is room (an expansion adds far fewer than 64 nodes between two calls
        // of a layer's builder; ggml itself asserts the bound).
        unsafe { sys::ggml_build_forward_expand(self.raw.as_ptr(), tensor.raw()) };
        Ok(())
    }

    /// Number of operations.
    pub fn n_nodes(&self) -> usize {
        // SAFETY: the graph is alive.
        unsafe { sys::ggml_graph_n_nodes(self.raw.as_ptr()) as usize }
    }

    /// The context of the graph's tensors.
    pub fn context(&self) -> &Context {
        &self.ctx
    }
}

/// Gives graphs memory and runs them on one or more backends.
pub struct Scheduler {
    raw: NonNull<sys::ggml_backend_sched>,
    backends: Vec<Backend>,
    allocation: u64,
}

// SAFETY: used by one thread at a time, through `&mut self`.
unsafe impl Send for Scheduler {}
// SAFETY: through `&self` only sizes are read.
unsafe impl Sync for Scheduler {}

/// Numbers allocations of all schedulers, so that a graph of one cannot be run by another.
static ALLOCATIONS: AtomicU64 = AtomicU64::new(1);

impl Scheduler {
    /// A scheduler over `backends`, best first, the CPU last, for graphs of up to `graph_size` nodes; `op_offload` lets a device
    /// compute large products with weights that the CPU holds.
    ///
    /// # Errors
    /// When ggml cannot create it.
    pub fn new(backends: Vec<Backend>, graph_size: usize, op_offload: bool) -> Result<Scheduler> {
        let mut raws: Vec<_> = backends.iter().map(Backend::raw).collect();
        if raws.is_empty() {
            return Err(Error::ggml("a scheduler needs at least one backend"));
        }
        // SAFETY: the backends are alive and owned by the scheduler from here on; null for the buffer types means defaults.
        let raw = unsafe {
            sys::ggml_backend_sched_new(
                raws.as_mut_ptr(),
                std::ptr::null_mut(),
                raws.len() as i32,
                graph_size,
                false,
                op_offload,
            )
        };
        match NonNull::new(raw) {
            Some(raw) => Ok(Scheduler { raw, backends, allocation: 0 }),
            None => Err(Error::ggml("the scheduler could not be created")),
        }
    }

    /// Gives the graph's tensors memory; those of every other graph lose theirs.
    ///
    /// # Errors
    /// When there is not enough memory.
    pub fn allocate(&mut self, graph: &mut Graph) -> Result<()> {
        let _waiting = Waiting::new();
        // SAFETY: scheduler and graph are alive, and pinned tensors are of the graph's context.
        let ok = unsafe {
            sys::ggml_backend_sched_reset(self.raw.as_ptr());
            for (tensor, buft) in graph.ctx.pinned() {
                sys::ggml_backend_sched_set_tensor_backend(self.raw.as_ptr(), tensor.as_ptr(), self.backend_of(buft));
            }
            sys::ggml_backend_sched_alloc_graph(self.raw.as_ptr(), graph.raw.as_ptr())
        };
        self.allocation = ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        graph.allocation = if ok { self.allocation } else { 0 };
        match ok {
            true => Ok(()),
            false => Err(Error::ggml(format!(
                "not enough memory for the compute buffer of a graph of {} operations; a smaller -ub needs less",
                graph.n_nodes()
            ))),
        }
    }

    /// Whether the graph's tensors have memory.
    pub fn is_allocated(&self, graph: &Graph) -> bool {
        graph.allocation != 0 && graph.allocation == self.allocation
    }

    /// Runs the graph and waits for it.
    ///
    /// # Errors
    /// When the graph is not allocated, or a backend fails.
    pub fn compute(&mut self, graph: &mut Graph) -> Result<()> {
        self.check(graph)?;
        let _waiting = Waiting::new();
        // SAFETY: the graph is allocated by this scheduler, and `&mut` of both keeps other users away.
        match unsafe { sys::ggml_backend_sched_graph_compute(self.raw.as_ptr(), graph.raw.as_ptr()) } {
            sys::GGML_STATUS_SUCCESS => Ok(()),
            sys::GGML_STATUS_ABORTED => Err(Error::Interrupted),
            sys::GGML_STATUS_ALLOC_FAILED => Err(Error::ggml("not enough memory to run a graph")),
            code => Err(Error::ggml(format!("running a graph failed with status {code}"))),
        }
    }

    /// Fills an input of an allocated graph.
    ///
    /// # Errors
    /// When the graph is not allocated or the size differs.
    pub fn write<T: Plain>(&mut self, graph: &Graph, tensor: &Tensor, data: &[T]) -> Result<()> {
        self.check(graph)?;
        let len = std::mem::size_of_val(data);
        self.check_size(tensor, "write", len == tensor.n_bytes(), len)?;
        let _waiting = Waiting::new();
        // SAFETY: the tensor has memory of this size; T is plain data.
        unsafe {
            transfer::count((*tensor.raw()).buffer, false, len);
            sys::ggml_backend_tensor_set(tensor.raw(), data.as_ptr().cast(), 0, len);
        }
        Ok(())
    }

    /// Reads a result of the graph that ran last; `out` may be shorter than the tensor.
    ///
    /// # Errors
    /// When the graph is not allocated or `out` is longer than the tensor.
    pub fn read<T: Plain>(&mut self, graph: &Graph, tensor: &Tensor, out: &mut [T]) -> Result<()> {
        self.check(graph)?;
        let len = std::mem::size_of_val(out);
        self.check_size(tensor, "read", len <= tensor.n_bytes(), len)?;
        let _waiting = Waiting::new();
        // SAFETY: the tensor has at least this much memory; any bit pattern is a valid T.
        unsafe {
            transfer::count((*tensor.raw()).buffer, true, len);
            sys::ggml_backend_tensor_get(tensor.raw(), out.as_mut_ptr().cast(), 0, len);
        }
        Ok(())
    }

    /// Uses this many CPU threads from the next graph on; batches may have threads of their own.
    pub fn set_threads(&mut self, n_threads: usize, is_batch: bool) {
        if let Some(cpu) = self.backends.last_mut() {
            cpu.set_threads(n_threads, is_batch);
        }
    }

    /// The CPU stops between two operations while this is set; [`Scheduler::compute`] then fails with [`Error::Interrupted`].
    pub fn set_stop(&mut self, stop: Option<Arc<AtomicBool>>) {
        if let Some(cpu) = self.backends.last_mut() {
            cpu.set_stop(stop);
        }
    }

    /// Bytes of all compute buffers.
    pub fn buffer_bytes(&self) -> usize {
        // SAFETY: the backends are alive and known to the scheduler.
        self.backends
            .iter()
            .map(|b| unsafe { sys::ggml_backend_sched_get_buffer_size(self.raw.as_ptr(), b.raw()) })
            .sum()
    }

    /// The backend whose memory is of this kind; the last one, the CPU, where there is none.
    fn backend_of(&self, buft: BufferType) -> sys::ggml_backend_t {
        let found = self.backends.iter().find(|b| b.buffer_type() == buft).or(self.backends.last());
        found.map_or(std::ptr::null_mut(), Backend::raw)
    }

    fn check(&self, graph: &Graph) -> Result<()> {
        match self.is_allocated(graph) {
            true => Ok(()),
            false => Err(Error::ggml("a graph was used after another one took its memory")),
        }
    }

    fn check_size(&self, tensor: &Tensor, what: &str, ok: bool, len: usize) -> Result<()> {
        // SAFETY: the header is alive.
        let has_memory = unsafe { !(*tensor.raw()).buffer.is_null() };
        match ok && has_memory {
            true => Ok(()),
            false => Err(Error::shape(
                format!("{what} of tensor '{}'", tensor.name()),
                format!("{} bytes", tensor.n_bytes()),
                format!("{len} bytes"),
            )),
        }
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        // SAFETY: sole owner; the backends are freed after it.
        unsafe { sys::ggml_backend_sched_free(self.raw.as_ptr()) }
    }
}

/// Types whose every bit pattern is valid, as ggml stores them.
pub trait Plain: Copy + private::Sealed {}

mod private {
    pub trait Sealed {}
}

macro_rules! plain {
    ($($t:ty),*) => { $(impl private::Sealed for $t {} impl Plain for $t {})* };
}
plain!(u8, u16, i32, i64, f32);
