//! What this process occupies and what it may have, as the operating system counts it, returning freed memory, and the end of it.

use super::fatal;
use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Resident memory of the process in bytes; 0 where the system does not tell.
pub fn resident_bytes() -> u64 {
    status_kib("VmRSS:") * 1024
}

/// The highest resident memory since the start or the last [`reset_peak_resident`], in bytes; 0 where the system does not tell.
pub fn peak_resident_bytes() -> u64 {
    status_kib("VmHWM:") * 1024
}

/// Restarts the measurement of [`peak_resident_bytes`]; without effect where the system cannot.
pub fn reset_peak_resident() {
    // Writing 5 resets the high-water mark (proc_pid_clear_refs(5)); a refusal leaves an older, higher mark.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// Memory that can be had without swapping, in bytes; `None` where the system does not tell.
///
/// The least of what the machine has, what the control groups of this process leave (containers), and [`addressable_bytes`].
pub fn available_bytes() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let machine = field_kib(&info, "MemAvailable:").map(|kib| kib * 1024);
    [machine, cgroup_bytes(), addressable_bytes()].into_iter().flatten().min()
}

/// Addresses that the limit of this process (`ulimit -v`) leaves, in bytes; mapped files take from them, too. `None` without a limit.
pub fn addressable_bytes() -> Option<u64> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let limit: u64 =
        limits.lines().find_map(|l| l.strip_prefix("Max address space")?.split_whitespace().next()?.parse().ok())?;
    Some(limit.saturating_sub(status_kib("VmSize:") * 1024))
}

/// What the control groups (version 2) of this process leave, in bytes: the tightest limit from its own group upwards.
fn cgroup_bytes() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = groups.lines().find_map(|l| l.strip_prefix("0::/"))?;
    let root = Path::new("/sys/fs/cgroup");
    let number = |dir: &Path, name: &str| std::fs::read_to_string(dir.join(name)).ok()?.trim().parse::<u64>().ok();
    let left = |dir: &Path| {
        let (limit, used) = (number(dir, "memory.max")?, number(dir, "memory.current")?);
        // Cached files are given back when memory is needed.
        let stat = std::fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
        let cached = stat.lines().find_map(|l| l.strip_prefix("inactive_file ")?.trim().parse().ok()).unwrap_or(0);
        Some(limit.saturating_sub(used.saturating_sub(cached)))
    };
    root.join(own).ancestors().take_while(|dir| dir.starts_with(root)).filter_map(left).min()
}

fn status_kib(key: &str) -> u64 {
    field_kib(&std::fs::read_to_string("/proc/self/status").unwrap_or_default(), key).unwrap_or(0)
}

fn field_kib(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|l| l.strip_prefix(key)?.split_whitespace().next()?.parse().ok())
}

/// Gives freed heap memory back to the operating system (glibc keeps it otherwise).
pub fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        extern "C" {
            fn malloc_trim(pad: usize) -> std::ffi::c_int;
        }
        // SAFETY: malloc_trim takes no pointer and may be called at any time.
        unsafe {
            malloc_trim(0);
        }
    }
}

/// The system's allocator, for programs that have called [`super::report_fatal`]: memory that cannot be had is then an error line
/// and exit code 1 instead of an abort.
pub struct Allocator;

// SAFETY: every call is handed on as it is, and what it gives back is not changed.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's.
        checked(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's.
        checked(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller's.
        checked(unsafe { System.realloc(old, layout, new_size) }, new_size)
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { System.dealloc(memory, layout) }
    }
}

fn checked(memory: *mut u8, size: usize) -> *mut u8 {
    static IS_ENDING: AtomicBool = AtomicBool::new(false);
    // What the end itself asks for is not asked for again.
    if memory.is_null() && fatal::is_reporting() && !IS_ENDING.swap(true, Ordering::SeqCst) {
        fatal::end(format_args!(
            "not enough memory: another {size} bytes cannot be had; a smaller context (-c), batch (-ub) or cache type (-ctk, -ctv) needs less"
        ));
    }
    memory
}
