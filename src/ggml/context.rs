//! Contexts: arenas of tensor headers. Tensor data lives in buffers, never here (`no_alloc`).

use super::buffer::Buffer;
use super::device::{BufferType, Device};
use super::dtype::Type;
use super::rpc::Waiting;
use super::sys;
use super::tensor::Tensor;
use crate::error::{Error, Result};
use std::any::Any;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard};

/// A line of the processor's cache. Units: bytes.
const LINE: usize = 64;

/// An arena of tensor headers and of the operations between them.
#[derive(Clone)]
pub struct Context(pub(super) Arc<Inner>);

pub(super) struct Inner {
    raw: NonNull<sys::ggml_context>,
    state: Mutex<State>,
}

struct State {
    /// Tensor headers that still fit; ggml aborts when the arena is full.
    n_left: usize,
    /// Memory of this context's tensors, if they have memory of their own.
    buffers: Vec<Buffer>,
    /// What the tensors refer to: other contexts, parameters of custom operations.
    keep: Vec<Arc<dyn Any + Send + Sync>>,
    /// Tensors that must be computed by the backend of this kind of memory.
    pinned: Vec<(NonNull<sys::ggml_tensor>, BufferType)>,
}

// SAFETY: the raw context is only changed while `state` is locked; reading tensor headers that are complete is not a data race
// because headers are not changed after the constructor returned them (names and flags are set under the same lock).
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Context {
    /// A context for up to `n_tensors` tensor headers and a graph of `graph_size` nodes (0 = none).
    ///
    /// # Errors
    /// When there is no memory for the headers.
    pub fn new(n_tensors: usize, graph_size: usize) -> Result<Context> {
        // SAFETY: both functions only compute sizes.
        let (tensor, graph) = unsafe {
            (
                sys::ggml_tensor_overhead(),
                if graph_size > 0 { sys::ggml_graph_overhead_custom(graph_size, false) } else { 0 },
            )
        };
        let params = sys::ggml_init_params {
            mem_size: n_tensors * tensor + graph + 1024,
            mem_buffer: std::ptr::null_mut(),
            no_alloc: true,
        };
        // SAFETY: the parameters are valid; null is checked.
        let raw =
            NonNull::new(unsafe { sys::ggml_init(params) }).ok_or_else(|| Error::ggml("no memory for a context"))?;
        let state = State { n_left: n_tensors, buffers: Vec::new(), keep: Vec::new(), pinned: Vec::new() };
        Ok(Context(Arc::new(Inner { raw, state: Mutex::new(state) })))
    }

    /// A new tensor without memory. Shapes: `ne`, innermost first.
    ///
    /// # Errors
    /// When the shape is empty, too large, or `ne[0]` is not a multiple of the type's block size.
    pub fn tensor(&self, ty: Type, ne: &[usize]) -> Result<Tensor> {
        let mut full = [1i64; 4];
        let want = || format!("1 to 4 positive dimensions, the first a multiple of {}", ty.block_size());
        if ne.is_empty() || ne.len() > 4 || ne.contains(&0) || !ne[0].is_multiple_of(ty.block_size()) {
            return Err(Error::shape("new tensor", want(), format!("{ne:?}")));
        }
        let mut bytes = Some(ty.row_size(ne[0]));
        for (slot, &n) in full.iter_mut().zip(ne) {
            *slot = n as i64;
        }
        for &n in &ne[1..] {
            bytes = bytes.and_then(|b| b.checked_mul(n));
        }
        if bytes.is_none_or(|b| b > isize::MAX as usize) {
            return Err(Error::shape("new tensor", "a size that fits memory", format!("{ne:?}")));
        }
        // SAFETY: type and dimensions were checked; `build` has the room.
        self.build(&[], |ctx| unsafe { sys::ggml_new_tensor_4d(ctx, ty.0, full[0], full[1], full[2], full[3]) })
    }

    /// A new tensor whose memory is filled by the host before each run. Shapes: `ne`, innermost first.
    ///
    /// It takes whole lines of the processor's cache. ggml aligns to half of one, so that a few bytes would shift all that comes
    /// behind them, and every vector of every product would lie across two lines.
    ///
    /// # Errors
    /// As [`Context::tensor`].
    pub fn input(&self, ty: Type, ne: &[usize]) -> Result<Tensor> {
        let n_bytes = ne.iter().try_fold(ty.type_size(), |bytes, &n| bytes.checked_mul(n)).unwrap_or(0);
        if ty.block_size() > 1 || n_bytes == 0 || n_bytes.is_multiple_of(LINE) {
            let t = self.tensor(ty, ne)?;
            // SAFETY: the tensor is alive and not shared yet.
            unsafe { sys::ggml_set_input(t.raw()) };
            return Ok(t);
        }
        let lines = self.input(ty, &[n_bytes.next_multiple_of(LINE) / ty.type_size()])?;
        let mut full = [1; 4];
        full.iter_mut().zip(ne).for_each(|(to, n)| *to = *n);
        let row = full[0] * ty.type_size();
        self.view(&lines, full, [row, row * full[1], row * full[1] * full[2]], 0)
    }

    /// Gives all tensors of this context memory of one kind; the context owns it.
    ///
    /// # Errors
    /// When the backend cannot give that much memory.
    pub fn allocate(&self, buft: BufferType) -> Result<()> {
        let mut state = self.lock();
        let _waiting = Waiting::new();
        // SAFETY: context and buffer type are alive; the buffer is owned by `Buffer` through `adopt`.
        unsafe {
            let raw = sys::ggml_backend_alloc_ctx_tensors_from_buft(self.0.raw.as_ptr(), buft.raw());
            let Some(buffer) = NonNull::new(raw) else {
                return Err(Error::ggml(format!("cannot allocate {} memory for tensors", buft.name())));
            };
            state.buffers.push(Buffer::adopt(buffer));
        }
        Ok(())
    }

    /// Takes over a buffer for tensors of this context to be placed in.
    pub fn own_buffer(&self, buffer: Buffer) {
        self.lock().buffers.push(buffer);
    }

    /// Places a tensor of this context at `offset` of the context's `index`-th buffer.
    ///
    /// # Errors
    /// When there is no such buffer, or the tensor would not lie inside it.
    pub fn place(&self, t: &Tensor, index: usize, offset: usize) -> Result<()> {
        let state = self.lock();
        let size = state.buffers.get(index).map_or(0, Buffer::size);
        let fits = offset.checked_add(t.n_bytes()).is_some_and(|end| end <= size);
        let Some(buffer) = state.buffers.get(index).filter(|_| fits && Arc::ptr_eq(&t.ctx.0, &self.0)) else {
            return Err(Error::shape(
                format!("memory of tensor '{}'", t.name()),
                format!("at most {size} bytes"),
                format!("offset {offset} + {} bytes", t.n_bytes()),
            ));
        };
        // SAFETY: the range lies inside a buffer that this context owns, and the tensor is of this context.
        let status = unsafe { sys::ggml_backend_tensor_alloc(buffer.raw(), t.raw(), buffer.base().add(offset).cast()) };
        match status {
            sys::GGML_STATUS_SUCCESS => Ok(()),
            code => Err(Error::ggml(format!("placing tensor '{}': status {code}", t.name()))),
        }
    }

    /// Bytes of the buffers this context owns.
    pub fn buffer_bytes(&self) -> usize {
        self.lock().buffers.iter().map(Buffer::size).sum()
    }

    /// Fills the memory this context owns with zeros.
    pub fn clear(&self) {
        for buffer in &self.lock().buffers {
            buffer.clear(0);
        }
    }

    /// Marks the memory this context owns as weights.
    pub fn set_weights(&self) {
        for buffer in &self.lock().buffers {
            buffer.set_weights();
        }
    }

    pub(super) fn owns_memory(&self) -> bool {
        !self.lock().buffers.is_empty()
    }

    /// Whether the device can compute `op` with its operand `w` in this context's first buffer.
    pub(super) fn supported_from_first_buffer(&self, w: &Tensor, op: &Tensor, device: Device) -> bool {
        let state = self.lock();
        let Some(buffer) = state.buffers.first() else { return false };
        // SAFETY: both tensors are fresh, of this context and not shared; the buffer outlives the question. The pointer is
        // taken back so that nothing frees or reads through it later.
        unsafe {
            (*w.raw()).buffer = buffer.raw();
            let ok = device.supports(op);
            (*w.raw()).buffer = std::ptr::null_mut();
            ok
        }
    }

    /// Has `t`, of this context, filled or computed where memory of this kind is, wherever the scheduler would put it.
    pub fn pin(&self, t: &Tensor, buft: BufferType) {
        // SAFETY: the tensor is alive; a view's memory is that of another tensor, which then is alive, too.
        let owner = NonNull::new(unsafe { (*t.raw()).view_src }).unwrap_or(t.ptr);
        self.lock().pinned.push((owner, buft));
    }

    /// What is pinned.
    pub(super) fn pinned(&self) -> Vec<(NonNull<sys::ggml_tensor>, BufferType)> {
        self.lock().pinned.clone()
    }

    /// Keeps `what` alive as long as this context.
    pub(super) fn keep(&self, what: Arc<dyn Any + Send + Sync>) {
        self.lock().keep.push(what);
    }

    /// Runs a constructor of one tensor (two headers at most), keeping the contexts of its sources alive.
    pub(super) fn build(
        &self,
        sources: &[&Tensor],
        make: impl FnOnce(*mut sys::ggml_context) -> *mut sys::ggml_tensor,
    ) -> Result<Tensor> {
        let mut state = self.lock();
        if state.n_left < 2 {
            return Err(Error::ggml("a context is full; this is a bug in the size estimate of a graph"));
        }
        state.n_left -= 1;
        for source in sources {
            if !Arc::ptr_eq(&source.ctx.0, &self.0) {
                let known = state
                    .keep
                    .iter()
                    .any(|k| std::ptr::eq(Arc::as_ptr(k).cast::<()>(), Arc::as_ptr(&source.ctx.0).cast()));
                if !known {
                    state.keep.push(source.ctx.0.clone());
                }
            }
        }
        match NonNull::new(make(self.0.raw.as_ptr())) {
            Some(ptr) => Ok(Tensor { ptr, ctx: self.clone() }),
            None => Err(Error::ggml("a tensor could not be created")),
        }
    }

    pub(super) fn raw(&self) -> *mut sys::ggml_context {
        self.0.raw.as_ptr()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while the lock was held leaves the counters valid: they only shrink.
        self.0.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: the last handle is gone, so no tensor of this context exists any more.
        unsafe { sys::ggml_free(self.raw.as_ptr()) }
    }
}
