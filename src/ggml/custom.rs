//! Operations of our own, which ggml's CPU backend runs among its own.

use super::context::Context;
use super::device::BufferType;
use super::dtype::Type;
use super::sys;
use super::tensor::Tensor;
use crate::error::Result;
use std::any::Any;
use std::ffi::c_void;
use std::sync::Arc;

/// What each of `nth` threads runs for a node: `(node, ith, nth, parameters)`.
pub(super) type Kernel = unsafe extern "C" fn(*mut sys::ggml_tensor, i32, i32, *mut c_void);

impl Context {
    /// A node that `f` computes from `args` and `params`. Shapes: `ne`. C equivalent: `ggml_custom_4d`.
    ///
    /// `f` must read `userdata` as `P`, only read its sources, and write each byte of the node from one thread.
    ///
    /// # Errors
    /// When the context is full.
    pub(super) fn custom<P: Any + Send + Sync>(
        &self,
        args: &[&Tensor],
        ty: Type,
        ne: [usize; 4],
        f: Kernel,
        params: Arc<P>,
    ) -> Result<Tensor> {
        let userdata = Arc::as_ptr(&params).cast_mut().cast::<c_void>();
        self.keep(params);
        let mut raw: Vec<_> = args.iter().map(|t| t.raw()).collect();
        let n = ne.map(|x| x as i64);
        // SAFETY: the arguments are alive, `userdata` lives as long as the context, and the kernels only read it.
        let out = self.build(args, |ctx| unsafe {
            sys::ggml_custom_4d(
                ctx,
                ty.0,
                n[0],
                n[1],
                n[2],
                n[3],
                raw.as_mut_ptr(),
                raw.len() as i32,
                Some(f),
                -1,
                userdata,
            )
        })?;
        // Other devices cannot call it, and the RPC backend claims that it can compute everything.
        self.pin(&out, BufferType::cpu());
        Ok(out)
    }
}

/// The bytes, shape and type of source `i` of a node.
///
/// # Safety
/// `dst` must be a node being computed, with as many sources.
pub(super) unsafe fn source<'a>(dst: *const sys::ggml_tensor, i: usize) -> (&'a [u8], [usize; 4], Type) {
    // SAFETY: by the caller, the source is a live tensor with memory during the run.
    unsafe {
        let t = (*dst).src[i];
        let bytes = std::slice::from_raw_parts((*t).data.cast::<u8>(), sys::ggml_nbytes(t));
        (bytes, (*t).ne.map(|n| n as usize), Type((*t).type_))
    }
}

/// Runs `f` so that a panic cannot unwind into C.
pub(super) fn guarded(f: impl FnOnce()) {
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).is_err() {
        eprintln!("error: an operation of gracekv's own failed; this is a bug in gracekv");
        std::process::abort();
    }
}
