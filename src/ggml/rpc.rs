//! ggml's RPC backend: devices of other processes and machines, and serving those of this one.
//!
//! ggml ends the process where a server dies, and waits without bound for one that hangs. Here both end in one line and exit
//! code 1: through ggml's abort callback, and through a thread that watches how long calls take (`GRACEKV_RPC_TIMEOUT`).
//! The functions come from ggml's registry, so that a build without the backend only says so.

use super::device::Device;
use super::fatal::{end, report_aborts};
use super::sys;
use crate::error::{Error, Result};
use std::ffi::{c_char, CStr, CString};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, Once, OnceLock};
use std::time::{Duration, Instant};

/// Port that servers listen on unless they are told otherwise, as llama.cpp's `rpc-server`.
pub const SERVER_PORT: u16 = 50052;
/// How long a server may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long it may take for its first answer, unless the user says how long it may take at all: it serves one client at a
/// time. Units: seconds.
const GREETING_TIMEOUT_S: u64 = 15;
/// How long one call may take. Units: seconds.
const CALL_TIMEOUT_S: u64 = 600;
/// Both, as the user sets them.
const TIMEOUT_VARIABLE: &str = "GRACEKV_RPC_TIMEOUT";

/// The servers in use.
static SERVERS: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// Calls under way that may wait for a server.
static N_WAITING: AtomicUsize = AtomicUsize::new(0);
/// When the last call began or ended. Units: milliseconds since [`start`].
static LAST_MS: AtomicU64 = AtomicU64::new(0);
/// Longest time without such an event while a call is under way. Units: milliseconds; 0 = not watched.
static LIMIT_MS: AtomicU64 = AtomicU64::new(0);

fn start() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now)
}

fn now_ms() -> u64 {
    start().elapsed().as_millis() as u64
}

/// Exists while a call may wait for a server.
pub(super) struct Waiting(());

impl Waiting {
    pub(super) fn new() -> Waiting {
        LAST_MS.store(now_ms(), Ordering::Relaxed);
        N_WAITING.fetch_add(1, Ordering::Relaxed);
        Waiting(())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        LAST_MS.store(now_ms(), Ordering::Relaxed);
        N_WAITING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Which server has gone, where that is why ggml gives up.
pub(super) fn lost_server(message: &str) -> Option<String> {
    let is_lost = ["Remote RPC server", "RPC handshake", "connect to"].iter().any(|known| message.contains(known));
    let servers = SERVERS.try_lock().map(|s| s.clone()).unwrap_or_default();
    if !is_lost || servers.is_empty() {
        return None;
    }
    let gone: Vec<&str> = servers.iter().map(String::as_str).filter(|s| reach(s).is_err()).collect();
    let which = if gone.is_empty() { servers.join(" or ") } else { gone.join(" and ") };
    Some(format!("the RPC server at {which} has ended or sent what cannot be understood; start it again"))
}

fn watch() {
    loop {
        let limit = LIMIT_MS.load(Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis((limit / 4).clamp(50, 1000)));
        let quiet = now_ms().saturating_sub(LAST_MS.load(Ordering::Relaxed));
        if limit > 0 && N_WAITING.load(Ordering::Relaxed) > 0 && quiet > limit {
            let servers = SERVERS.try_lock().map(|s| s.join(" or ")).unwrap_or_default();
            end(format_args!(
                "no answer from the RPC server at {servers} for {} s; it hangs, serves another client, or needs more time ({TIMEOUT_VARIABLE}, in seconds)",
                limit / 1000
            ));
        }
    }
}

fn reach(endpoint: &str) -> std::io::Result<()> {
    let mut last = std::io::Error::other("the name has no address");
    for address in endpoint.to_socket_addrs()?.filter(|a| a.is_ipv4()) {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(_) => return Ok(()),
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// A function of the RPC backend by its name; null becomes an error.
fn function(name: &CStr) -> Result<*mut std::ffi::c_void> {
    // SAFETY: the names are NUL-terminated; both functions only look things up, and null is checked.
    let address = unsafe {
        let reg = sys::ggml_backend_reg_by_name(c"RPC".as_ptr());
        if reg.is_null() {
            std::ptr::null_mut()
        } else {
            sys::ggml_backend_reg_get_proc_address(reg, name.as_ptr())
        }
    };
    match address.is_null() {
        false => Ok(address),
        true => Err(Error::Usage("this build has no RPC; build it with --features rpc".into())),
    }
}

fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::Usage("a NUL in the name of an RPC server".into()))
}

/// `host:port`, checked before ggml sees it, which ends the process where it is something else.
fn check_endpoint(endpoint: &str) -> Result<()> {
    let parts = endpoint.split_once(':').filter(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    match parts {
        Some(_) => Ok(()),
        None => Err(Error::Usage(format!("'{endpoint}' is no RPC server; it must be host:port"))),
    }
}

/// How long an answer may take, where the user says so; 0 = without bound. Units: seconds.
fn timeout() -> Result<Option<u64>> {
    let Some(value) = std::env::var_os(TIMEOUT_VARIABLE) else { return Ok(None) };
    let seconds = value.to_str().and_then(|s| s.trim().parse().ok());
    let wrong = || Error::Usage(format!("{TIMEOUT_VARIABLE}={}: it is a number of seconds", value.to_string_lossy()));
    seconds.map(Some).ok_or_else(wrong)
}

/// Makes the devices of the server at `endpoint` (`host:port`) known to the registry.
///
/// # Errors
/// When this build has no RPC backend, or the server cannot be reached or has no device.
pub fn add_server(endpoint: &str) -> Result<()> {
    type AddServer = unsafe extern "C" fn(*const c_char) -> sys::ggml_backend_reg_t;
    check_endpoint(endpoint)?;
    let timeout = timeout()?;
    let add = function(c"ggml_backend_rpc_add_server")?;
    reach(endpoint).map_err(|e| Error::Usage(format!("the RPC server at {endpoint} cannot be reached: {e}")))?;
    let name = c_string(endpoint)?;
    if let Ok(mut servers) = SERVERS.lock() {
        servers.push(endpoint.to_owned());
    }
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        start();
        report_aborts();
        std::thread::spawn(watch);
    });
    LIMIT_MS.store(timeout.unwrap_or(GREETING_TIMEOUT_S).saturating_mul(1000), Ordering::Relaxed);
    let waiting = Waiting::new();
    // SAFETY: the function has this signature (ggml-rpc.h); the name is NUL-terminated; ggml keeps what it returns.
    let reg = unsafe { std::mem::transmute::<*mut std::ffi::c_void, AddServer>(add)(name.as_ptr()) };
    drop(waiting);
    LIMIT_MS.store(timeout.unwrap_or(CALL_TIMEOUT_S).saturating_mul(1000), Ordering::Relaxed);
    if reg.is_null() {
        return Err(Error::Usage(format!("the RPC server at {endpoint} has no device")));
    }
    // SAFETY: a live registration that ggml keeps; adding it twice does nothing.
    unsafe { sys::ggml_backend_register(reg) };
    Ok(())
}

/// Serves these devices at `endpoint` until the process ends; gives back only an error.
///
/// # Errors
/// When this build has no RPC backend, or the address cannot be used.
pub fn serve(endpoint: &str, n_threads: usize, devices: &[Device]) -> Result<()> {
    type Serve = unsafe extern "C" fn(*const c_char, *const c_char, usize, usize, *mut sys::ggml_backend_dev_t);
    check_endpoint(endpoint)?;
    let serve = function(c"ggml_backend_rpc_start_server")?;
    let name = c_string(endpoint)?;
    let mut devices: Vec<_> = devices.iter().map(|d| d.raw()).collect();
    // SAFETY: the function has this signature (ggml-rpc.h); null stands for no cache of tensors.
    unsafe {
        std::mem::transmute::<*mut std::ffi::c_void, Serve>(serve)(
            name.as_ptr(),
            std::ptr::null(),
            n_threads,
            devices.len(),
            devices.as_mut_ptr(),
        )
    };
    Err(Error::Usage(format!("cannot serve at {endpoint}; is the address in use?")))
}
