//! The safe face of ggml, and the only folder with `unsafe` in it.
//!
//! ggml aborts the process on a wrong shape or type, so every operation is checked here, in Rust, before it is called.
//! Owners (`Context`, `Buffer`, `Backend`, `Scheduler`) free in `Drop`; a [`Tensor`] keeps the context it lives in alive, a context
//! keeps those of the tensors it uses, so nothing dangles whatever is dropped first.

#![allow(unsafe_code)]

mod attention;
mod backend;
mod buffer;
mod context;
mod custom;
mod device;
mod dtype;
mod fatal;
mod graph;
mod memory;
mod mmap;
mod ops;
mod product;
mod rpc;
mod simd;
mod sys;
mod tensor;
mod transfer;

pub use attention::{Bias, Chunk, HeadSpan, LayerSpans, Ragged, CHUNK_ENTRIES};
pub use backend::{Backend, Numa, ThreadParams, MAX_THREADS};
pub use buffer::Buffer;
pub use context::Context;
pub use device::{BufferType, Device, DeviceKind};
pub use dtype::Type;
pub use fatal::report_fatal;
pub use graph::{Graph, Scheduler};
pub use memory::{
    addressable_bytes, available_bytes, peak_resident_bytes, reset_peak_resident, resident_bytes, trim, Allocator,
};
pub use mmap::Mmap;
pub use ops::{Act, Logits, RopeParams};
pub use product::Tokens;
pub use rpc::{add_server, serve, SERVER_PORT};
pub use simd::matrix::{product_fn, ProductFn, ProductSize};
pub use simd::tile::SumOrder;
pub use tensor::Tensor;
pub use transfer::Transfers;

use std::ffi::{c_char, c_void, CStr};
use std::io::Write;

/// Version of the ggml that is linked in.
pub fn version() -> &'static str {
    // SAFETY: ggml_version returns a static NUL-terminated string.
    unsafe { CStr::from_ptr(sys::ggml_version()) }.to_str().unwrap_or("?")
}

/// Version that the build took from `vendor/ggml.lock`.
pub const LOCKED_VERSION: &str = match option_env!("GRACEKV_GGML_VERSION") {
    Some(v) => v,
    None => "unknown",
};

/// llama.cpp build whose tree the sources come from.
pub const LLAMA_BUILD: &str = match option_env!("GRACEKV_LLAMA_BUILD") {
    Some(v) => v,
    None => "unknown",
};

unsafe extern "C" fn discard(_: sys::ggml_log_level, _: *const c_char, _: *mut c_void) {}

unsafe extern "C" fn warn(level: sys::ggml_log_level, text: *const c_char, _: *mut c_void) {
    if level >= sys::GGML_LOG_LEVEL_WARN && level != sys::GGML_LOG_LEVEL_CONT && !text.is_null() {
        // SAFETY: ggml passes a NUL-terminated string that lives for the call.
        let text = unsafe { CStr::from_ptr(text) };
        // A closed standard error is no reason to unwind into C.
        let _ = write!(std::io::stderr(), "ggml: {}", text.to_string_lossy());
    }
}

/// Sends ggml's own messages nowhere, or its warnings and errors to standard error.
pub fn set_log(show_warnings: bool) {
    let sink: unsafe extern "C" fn(_, _, _) = if show_warnings { warn } else { discard };
    // SAFETY: both sinks are plain functions without user data.
    unsafe { sys::ggml_log_set(Some(sink), std::ptr::null_mut()) }
}
