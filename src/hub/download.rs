//! One file over HTTP: it goes on where an earlier attempt ended, is compared with what the hub says of it, and has its name
//! only when it is whole.
//!
//! Beside `NAME` stands `NAME.downloadInProgress` while it is incomplete (llama.cpp's name, so that either program goes on
//! with the other's), and `NAME.etag` afterwards for files by URL.

use std::fs::{self, File as Disk, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use ureq::http::{HeaderMap, StatusCode};

use super::http::{refused, Client, Failure};
use super::{Hub, Watch};
use crate::error::{Error, Result};

const N_ATTEMPTS: u32 = 3;
const CHUNK: usize = 1 << 18;
/// Bytes that come in the time after which silence ends an attempt, at least.
const MIN_BYTES: u64 = 1 << 10;

/// What is to be fetched.
pub(super) struct File<'a> {
    pub url: &'a str,
    pub path: &'a Path,
    /// Locked while the file is fetched.
    pub lock: PathBuf,
    /// What must be in it, where its name says so; otherwise the server is asked whether it has changed.
    pub content: Option<Content<'a>>,
}

/// The content of a file as the hub knows it.
#[derive(Clone, Copy)]
pub(super) struct Content<'a> {
    /// Checksum in hexadecimal digits; only files of git itself have none.
    pub sha256: Option<&'a str>,
    pub n_bytes: Option<u64>,
}

/// Whether the file is there and what the server has. When the server cannot say, it is.
fn is_current(client: &Client, file: &File) -> bool {
    if !file.path.exists() || file.content.is_some() {
        return file.path.exists();
    }
    let Some(head) = client.head(file.url).ok().filter(|head| head.status().is_success()) else { return true };
    let known = fs::read_to_string(beside(file.path, ".etag")).ok();
    match (text(head.headers(), "etag"), known) {
        (Some(now), Some(then)) => now == then.trim_end(),
        (None, _) => true,
        (Some(_), None) => match (number(head.headers(), "content-length"), fs::metadata(file.path)) {
            (Some(n), Ok(file)) => file.len() == n,
            _ => true,
        },
    }
}

/// Fetches the file unless it is there. Another process that fetches it, too, is waited for.
///
/// # Errors
/// [`Error::Fetch`] when the server does not give it or it is damaged, [`Error::Io`] for the disk.
pub(super) fn fetch(client: &Client, file: &File, hub: &Hub, watch: &mut dyn Watch) -> Result<()> {
    if is_current(client, file) {
        return Ok(());
    }
    let disk = |path: &Path| {
        let path = path.to_owned();
        move |e| Error::io(path, e)
    };
    for folder in [file.path.parent(), file.lock.parent()].into_iter().flatten() {
        fs::create_dir_all(folder).map_err(disk(folder))?;
    }
    let lock = OpenOptions::new().create(true).append(true).open(&file.lock).map_err(disk(&file.lock))?;
    if lock.try_lock().is_err() {
        watch.note(3, &format!("waiting for another process that fetches {}", file.path.display()));
        lock.lock().map_err(disk(&file.lock))?;
    }
    let done = match is_current(client, file) {
        true => Ok(()),
        false => attempts(client, file, hub.retry_delay, watch),
    };
    watch.end();
    if done.is_ok() {
        // The file has its name: whoever comes later sees it and needs no lock.
        let _ = fs::remove_file(&file.lock);
    }
    done
}

fn attempts(client: &Client, file: &File, retry_delay: Duration, watch: &mut dyn Watch) -> Result<()> {
    let mut delay = retry_delay;
    for attempt in 1.. {
        match once(client, file, watch) {
            Ok(()) => break,
            Err(Stop::Disk(e)) => return Err(e),
            Err(Stop::Net(f)) if !f.may_retry => return Err(f.at(file.url)),
            Err(Stop::Net(f)) if attempt == N_ATTEMPTS => {
                let what = format!("download failed after {N_ATTEMPTS} attempts: {}", f.what);
                return Err(Failure::final_(what).at(file.url));
            }
            Err(Stop::Net(f)) => {
                watch.note(2, &format!("{}; retrying after {} seconds...", f.what, delay.as_secs_f32()));
                std::thread::sleep(delay);
                delay *= 2;
            }
        }
    }
    Ok(())
}

/// What ends an attempt.
enum Stop {
    Net(Failure),
    Disk(Error),
}

impl From<Failure> for Stop {
    fn from(f: Failure) -> Stop {
        Stop::Net(f)
    }
}

fn once(client: &Client, file: &File, watch: &mut dyn Watch) -> std::result::Result<(), Stop> {
    let partial = beside(file.path, ".downloadInProgress");
    let partial_etag = beside(file.path, ".downloadInProgress.etag");
    let disk = |e: io::Error| Stop::Disk(Error::io(&partial, e));
    let (mut hash, mut n_here) = hash_of(&partial).map_err(disk)?;
    let n_bytes = file.content.and_then(|c| c.n_bytes);
    if n_bytes.is_some_and(|n| n_here > n) {
        (hash, n_here) = (Sha256::new(), 0);
    }
    let mut etag = None;
    if n_bytes != Some(n_here) {
        let mut headers = Vec::new();
        if n_here > 0 {
            headers.push(("Range", format!("bytes={n_here}-")));
            // A file that has changed meanwhile is sent from its beginning.
            headers.extend(fs::read_to_string(&partial_etag).ok().map(|tag| ("If-Range", tag)));
        }
        let mut answer = client.get(file.url, &headers)?;
        match answer.status() {
            StatusCode::PARTIAL_CONTENT if starts_at(answer.headers(), n_here) => {}
            StatusCode::OK => (hash, n_here) = (Sha256::new(), 0),
            StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE => {
                fs::remove_file(&partial).map_err(disk)?;
                return Err(Failure::passing("the server does not go on where the last attempt ended").into());
            }
            status => return Err(refused(status).into()),
        }
        etag = text(answer.headers(), "etag").filter(|_| file.content.is_none()).map(str::to_owned);
        let total = n_bytes.or(number(answer.headers(), "content-length").map(|n| n + n_here));
        let mut out = open(&partial, n_here).map_err(disk)?;
        if let Some(etag) = &etag {
            fs::write(&partial_etag, etag).map_err(disk)?;
        }
        let name = file.path.file_name().unwrap_or_default().to_string_lossy();
        let name = file.url.split(['?', '#']).next().and_then(|u| u.rsplit('/').next()).unwrap_or(&name);
        let mut body = answer.body_mut().as_reader();
        let mut chunk = vec![0; CHUNK];
        let mut mark = (Instant::now(), n_here);
        loop {
            watch.progress(name, n_here, total);
            if mark.0.elapsed() > client.patience {
                if n_here - mark.1 < MIN_BYTES {
                    return Err(ended(n_here, total, "the server has become too slow").into());
                }
                mark = (Instant::now(), n_here);
            }
            let n = body.read(&mut chunk).map_err(|e| ended(n_here, total, &e.to_string()))?;
            if n == 0 {
                break;
            }
            out.write_all(&chunk[..n]).map_err(disk)?;
            hash.update(&chunk[..n]);
            n_here += n as u64;
            if total.is_some_and(|total| n_here > total) {
                break;
            }
        }
        if total.is_some_and(|total| total > n_here) {
            return Err(ended(n_here, total, "no more came").into());
        }
    }
    let checked = check(file, hash, n_here).and_then(|()| match file.content.and_then(|c| c.sha256) {
        Some(_) => Ok(()),
        None => {
            watch.check(&partial).map_err(|e| Failure::final_(format!("what came is no model: {e}; it was removed")))
        }
    });
    checked.inspect_err(|_| {
        let _ = fs::remove_file(&partial).and_then(|()| fs::remove_file(&partial_etag));
    })?;
    Disk::open(&partial).and_then(|f| f.sync_all()).and_then(|()| fs::rename(&partial, file.path)).map_err(disk)?;
    let _ = fs::remove_file(&partial_etag);
    if let Some(etag) = etag {
        fs::write(beside(file.path, ".etag"), etag).map_err(disk)?;
    }
    Ok(())
}

fn ended(n_here: u64, total: Option<u64>, why: &str) -> Failure {
    let of = total.map(|n| format!(" of {n}")).unwrap_or_default();
    Failure::passing(format!("the connection ended after {n_here}{of} bytes: {why}"))
}

/// Compares what came with what was promised.
fn check(file: &File, hash: Sha256, n_here: u64) -> std::result::Result<(), Failure> {
    let Some(Content { sha256, n_bytes }) = file.content else { return Ok(()) };
    if let Some(n) = n_bytes.filter(|&n| n != n_here) {
        return Err(Failure::final_(format!("the file should have {n} bytes and {n_here} came; it was removed")));
    }
    let found: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    match sha256 {
        Some(want) if !want.eq_ignore_ascii_case(&found) => Err(Failure::final_(format!(
            "the file is damaged: its sha256 is {found}, the hub says {want}; it was removed, try again"
        ))),
        _ => Ok(()),
    }
}

/// The running checksum of what is there already, and its length.
fn hash_of(path: &Path) -> io::Result<(Sha256, u64)> {
    let mut hash = Sha256::new();
    let mut file = match Disk::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok((hash, 0)),
        Err(e) => return Err(e),
    };
    let (mut chunk, mut n_bytes) = (vec![0; CHUNK], 0);
    loop {
        match file.read(&mut chunk)? {
            0 => return Ok((hash, n_bytes)),
            n => {
                hash.update(&chunk[..n]);
                n_bytes += n as u64;
            }
        }
    }
}

/// Opens the incomplete file to be continued behind `n_bytes`.
fn open(path: &Path, n_bytes: u64) -> io::Result<Disk> {
    let file = OpenOptions::new().create(true).append(true).open(path)?;
    file.set_len(n_bytes)?;
    Ok(file)
}

fn starts_at(headers: &HeaderMap, n_bytes: u64) -> bool {
    let range = text(headers, "content-range").and_then(|r| r.strip_prefix("bytes "));
    range.and_then(|r| r.split('-').next()).and_then(|n| n.trim().parse().ok()) == Some(n_bytes)
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|v| v.to_str().ok())
}

fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    text(headers, name)?.trim().parse().ok()
}

/// `path` with something behind its name.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
