//! What would end the process without a word, or with a dump: ggml's assertions, memory that cannot be had, and pages of a mapped
//! file that are gone because somebody has truncated it. With [`report_fatal`] each is one line and exit code 1.
//!
//! Only programs ask for that: a library takes neither the signals nor the standard error of its user. A signal handler may do
//! next to nothing, so this one hands the address to a thread and waits for the end; that thread finds the file and says so.
//! Source of the idea: systemd's `src/basic/sigbus.c`. llama.cpp, ripgrep and LMDB let the signal end them.

#[cfg(unix)]
use super::mmap;
use super::sys;
use std::ffi::{c_char, c_int, CStr};
use std::fmt;
use std::io::Write;
use std::sync::OnceLock;

/// What a program still has to do before it ends.
static LAST: OnceLock<fn()> = OnceLock::new();

/// From now on what would end the process abruptly calls `last` and says what happened on standard error, with exit code 1.
pub fn report_fatal(last: fn()) {
    if LAST.set(last).is_ok() {
        report_aborts();
        #[cfg(unix)]
        pages::watch();
    }
}

/// The part of [`report_fatal`] that is ggml's own.
pub(super) fn report_aborts() {
    // SAFETY: the callback is a plain function.
    unsafe { sys::ggml_set_abort_callback(Some(on_abort)) };
}

/// Whether a program has asked for reports.
pub(super) fn is_reporting() -> bool {
    LAST.get().is_some()
}

/// One line, and the end: neither ggml's threads nor C++'s destructors can be relied on any more.
pub(super) fn end(why: fmt::Arguments) -> ! {
    if let Some(last) = LAST.get() {
        last();
    }
    // A closed standard error changes nothing any more.
    let _ = writeln!(std::io::stderr(), "error: {why}");
    extern "C" {
        fn _exit(code: c_int) -> !;
    }
    // SAFETY: takes a number and does not return.
    unsafe { _exit(1) }
}

unsafe extern "C" fn on_abort(message: *const c_char) {
    // SAFETY: ggml passes a NUL-terminated text that lives for the call.
    let message = unsafe { CStr::from_ptr(message) }.to_string_lossy();
    match super::rpc::lost_server(&message) {
        Some(lost) => end(format_args!("{lost}")),
        // ggml's words for an allocation that has failed.
        None if message.contains("mem_buffer != NULL") || message.contains("failed to allocate") => {
            end(format_args!("not enough memory; a smaller context (-c) or batch (-ub) needs less (ggml: {message})"))
        }
        None => end(format_args!("ggml: {message}")),
    }
}

#[cfg(unix)]
mod pages {
    use super::{end, mmap};
    use crate::error::one_line;
    use nix::libc::{self, c_int, c_void, siginfo_t};
    use nix::sys::signal::{sigaction, SaFlags, SigAction, SigHandler, SigSet, Signal};
    use std::io::{PipeReader, Read};
    use std::os::fd::IntoRawFd;
    use std::sync::atomic::{AtomicI32, Ordering};

    /// Where the handler writes addresses.
    static ADDRESSES: AtomicI32 = AtomicI32::new(-1);

    /// Takes over SIGBUS. Where the system refuses, the signal ends the process as ever.
    pub fn watch() {
        let Ok((addresses, writer)) = std::io::pipe() else { return };
        let thread = std::thread::Builder::new().name("lost pages".into()).spawn(move || report(addresses));
        if thread.is_err() {
            return;
        }
        ADDRESSES.store(writer.into_raw_fd(), Ordering::SeqCst);
        let flags = SaFlags::SA_SIGINFO | SaFlags::SA_ONSTACK;
        let action = SigAction::new(SigHandler::SigAction(on_bus_error), flags, SigSet::empty());
        // SAFETY: the handler calls only what signal-safety(7) allows.
        let _ = unsafe { sigaction(Signal::SIGBUS, &action) };
    }

    extern "C" fn on_bus_error(_: c_int, info: *mut siginfo_t, _: *mut c_void) {
        // SAFETY: the kernel passes a valid record; write, pause and signal are async-signal-safe, and the array outlives the call.
        unsafe {
            let address = ((*info).si_addr() as usize).to_ne_bytes();
            let fd = ADDRESSES.load(Ordering::SeqCst);
            if (*info).si_code == libc::BUS_ADRERR && libc::write(fd, address.as_ptr().cast(), address.len()) > 0 {
                // Several threads may come here; to go back would be to fault again.
                loop {
                    libc::pause();
                }
            }
            // Another failure, of this program or of the machine: the instruction is tried again, and ends the process.
            libc::signal(libc::SIGBUS, libc::SIG_DFL);
        }
    }

    fn report(mut addresses: PipeReader) {
        let mut address = [0; size_of::<usize>()];
        if addresses.read_exact(&mut address).is_ok() {
            match mmap::file_at(usize::from_ne_bytes(address)) {
                Some(path) => end(format_args!(
                    "{}: the file was truncated while it was in use, or can no longer be read; run again with the whole file (--no-mmap reads it once, before anything else)",
                    one_line(&path.to_string_lossy())
                )),
                None => end(format_args!("a page of memory can no longer be read; is the disk or the memory full?")),
            }
        }
    }
}
