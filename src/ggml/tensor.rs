//! Handles of tensors.

use super::context::Context;
use super::dtype::Type;
use super::rpc::Waiting;
use super::{sys, transfer};
use crate::error::{Error, Result};
use std::ffi::CString;
use std::ptr::NonNull;

/// A tensor header; cheap to clone, keeps its context alive.
#[derive(Clone)]
pub struct Tensor {
    pub(super) ptr: NonNull<sys::ggml_tensor>,
    pub(super) ctx: Context,
}

// SAFETY: headers are complete when the handle exists; see `context::Inner`.
unsafe impl Send for Tensor {}
// SAFETY: as above.
unsafe impl Sync for Tensor {}

impl Tensor {
    pub(super) fn raw(&self) -> *mut sys::ggml_tensor {
        self.ptr.as_ptr()
    }

    fn header(&self) -> &sys::ggml_tensor {
        // SAFETY: the context keeps the header alive; ggml changes only `data`, `buffer` and `extra` later, under `&mut` of
        // the scheduler or before the handle is shared.
        unsafe { self.ptr.as_ref() }
    }

    /// Size of each dimension, innermost first.
    pub fn ne(&self) -> [usize; 4] {
        self.header().ne.map(|n| n as usize)
    }

    /// Stride of each dimension. Units: bytes.
    pub fn nb(&self) -> [usize; 4] {
        self.header().nb
    }

    /// Element type.
    pub fn ty(&self) -> Type {
        Type(self.header().type_)
    }

    /// Bytes from the first to the last element.
    pub fn n_bytes(&self) -> usize {
        // SAFETY: the header is alive.
        unsafe { sys::ggml_nbytes(self.raw()) }
    }

    /// Number of elements.
    pub fn n_elements(&self) -> usize {
        self.ne().iter().product()
    }

    /// Whether elements follow each other without gaps in the order of the dimensions.
    pub fn is_contiguous(&self) -> bool {
        // SAFETY: the header is alive.
        unsafe { sys::ggml_is_contiguous(self.raw()) }
    }

    /// Whether it has memory: a scheduler gives none to inputs that no operation reads.
    pub fn has_memory(&self) -> bool {
        !self.header().buffer.is_null()
    }

    /// Whether its bytes are as the type has them, in memory that the CPU reads directly.
    pub(super) fn is_plain(&self) -> bool {
        // SAFETY: the buffer of a tensor with memory is alive.
        self.has_memory() && unsafe { sys::ggml_backend_buffer_is_host(self.header().buffer) }
    }

    /// Its name.
    pub fn name(&self) -> String {
        self.header().name.iter().take_while(|&&c| c != 0).map(|&c| c as u8 as char).collect()
    }

    /// Names it as llama.cpp does, so that dumps of both programs can be compared; gives the tensor back.
    pub fn named(self, name: &str) -> Tensor {
        if let Ok(name) = CString::new(name) {
            // SAFETY: both pointers are valid; ggml copies and cuts the name.
            unsafe { sys::ggml_set_name(self.raw(), name.as_ptr()) };
        }
        self
    }

    /// Keeps the result readable after the graph ran; gives the tensor back.
    pub fn output(self) -> Tensor {
        // SAFETY: the header is alive.
        unsafe { sys::ggml_set_output(self.raw()) };
        self
    }

    /// Copies bytes out of a tensor with memory of its own (weights, cache).
    ///
    /// # Errors
    /// When the tensor has no memory of its own or the range lies outside it.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        self.check_range("read", offset, out.len())?;
        let _waiting = Waiting::new();
        // SAFETY: the tensor has memory owned by its context and the range lies inside it.
        unsafe {
            transfer::count(self.header().buffer, true, out.len());
            sys::ggml_backend_tensor_get(self.raw(), out.as_mut_ptr().cast(), offset, out.len());
        }
        Ok(())
    }

    /// Copies bytes into a tensor with memory of its own. Not while a graph that uses the tensor runs.
    ///
    /// # Errors
    /// When the tensor has no memory of its own or the range lies outside it.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.check_range("write", offset, bytes.len())?;
        let _waiting = Waiting::new();
        // SAFETY: as in `read`; mapped weights are never written (the loader writes only tensors in memory it allocated).
        unsafe {
            transfer::count(self.header().buffer, false, bytes.len());
            sys::ggml_backend_tensor_set(self.raw(), bytes.as_ptr().cast(), offset, bytes.len());
        }
        Ok(())
    }

    /// The tensor's bytes without copying, where the host can address them.
    pub fn host_bytes(&self) -> Option<&[u8]> {
        let header = self.header();
        // SAFETY: the buffer is owned by the context, which `self` keeps alive; host buffers are plain memory. Writers need
        // the ordering that `write` documents.
        unsafe {
            if header.data.is_null()
                || header.buffer.is_null()
                || !self.ctx.owns_memory()
                || !sys::ggml_backend_buffer_is_host(header.buffer)
            {
                return None;
            }
            Some(std::slice::from_raw_parts(header.data.cast(), self.n_bytes()))
        }
    }

    fn check_range(&self, what: &str, offset: usize, len: usize) -> Result<()> {
        if !self.ctx.owns_memory() || self.header().buffer.is_null() {
            return Err(Error::ggml(format!("{what} of tensor '{}', which has no memory of its own", self.name())));
        }
        match offset.checked_add(len) {
            Some(end) if end <= self.n_bytes() => Ok(()),
            _ => Err(Error::shape(
                format!("{what} of tensor '{}'", self.name()),
                format!("at most {} bytes", self.n_bytes()),
                format!("{offset} + {len}"),
            )),
        }
    }
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:?} {}", self.name(), self.ne(), self.ty())
    }
}
