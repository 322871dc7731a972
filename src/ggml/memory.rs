//! What this process occupies, as the operating system counts it, and returning freed memory to it.

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
pub fn available_bytes() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kib: u64 =
        info.lines().find_map(|l| l.strip_prefix("MemAvailable:")?.split_whitespace().next()?.parse().ok())?;
    Some(kib * 1024)
}

fn status_kib(key: &str) -> u64 {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return 0 };
    let field = status.lines().find_map(|l| l.strip_prefix(key)?.split_whitespace().next()?.parse().ok());
    field.unwrap_or(0)
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
