//! Devices of ggml's registry and their kinds of memory.

use super::buffer::Buffer;
use super::rpc::Waiting;
use super::sys;
use crate::error::Result;
use std::ffi::CStr;
use std::ptr::NonNull;

/// A kind of memory of a device.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct BufferType(NonNull<sys::ggml_backend_buffer_type>);

impl std::fmt::Debug for BufferType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

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
    /// Shapes: `ne`, innermost first.
    pub fn supports_mul_mat(self, ty: super::Type, ne: &[usize]) -> bool {
        Device::cpu().is_some_and(|cpu| cpu.multiplies_from(self, ty, ne))
    }

    /// `raw` is never null: every device has a default buffer type.
    pub(super) fn from_raw(raw: sys::ggml_backend_buffer_type_t) -> BufferType {
        NonNull::new(raw).map_or_else(BufferType::cpu, BufferType)
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
    /// A GPU with its own or shared memory, or a remote server.
    Gpu,
    /// Anything else (accelerators beside the CPU).
    Other,
}

/// A device that ggml knows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Device(NonNull<sys::ggml_backend_device>);

// SAFETY: devices are static objects of ggml's registry.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

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

    /// Those that layers can be moved to, remote ones first, as llama.cpp orders them.
    pub fn offload() -> Vec<Device> {
        let mut devices: Vec<_> = Device::all().into_iter().filter(|d| d.kind() == DeviceKind::Gpu).collect();
        devices.sort_by_key(|d| !d.is_remote());
        devices
    }

    /// Whether another process or machine computes (ggml's RPC backend).
    pub fn is_remote(self) -> bool {
        self.buffer_type().name().starts_with("RPC")
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
        let _waiting = Waiting::new();
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
        let _waiting = Waiting::new();
        // SAFETY: static object.
        BufferType::from_raw(unsafe { sys::ggml_backend_dev_buffer_type(self.0.as_ptr()) })
    }

    /// Whether the device can multiply a weight of this type and shape from this kind of memory.
    ///
    /// Shapes: `ne`, innermost first. Source: llama.cpp `src/llama-model-loader.cpp`, `weight_buft_supported`.
    pub fn multiplies_from(self, buft: BufferType, ty: super::Type, ne: &[usize]) -> bool {
        let probe = || -> Result<bool> {
            let ctx = super::Context::new(8, 0)?;
            let w = ctx.tensor(ty, ne)?;
            let x = ctx.tensor(super::Type::F32, &[ne[0], 512])?;
            let product = ctx.mul_mat(&w, &x)?;
            ctx.own_buffer(Buffer::new(buft, 0)?);
            Ok(ctx.supported_from_first_buffer(&w, &product, self))
        };
        probe().unwrap_or(false)
    }

    /// Whether the device can compute the operation that `tensor` is the result of.
    pub fn supports(self, tensor: &super::Tensor) -> bool {
        // SAFETY: static object; the tensor is alive through its context.
        unsafe { sys::ggml_backend_dev_supports_op(self.0.as_ptr(), tensor.raw()) }
    }

    pub(super) fn raw(self) -> sys::ggml_backend_dev_t {
        self.0.as_ptr()
    }
}
