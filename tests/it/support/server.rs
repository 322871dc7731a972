//! A server on this machine that speaks as much HTTP as a hub does, and fails when it is told to.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use sha2::{Digest, Sha256};

/// The commit of every repository.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// What happens to one GET instead of a whole answer.
#[derive(Clone)]
pub enum Fault {
    Status(u16),
    /// The connection ends after so many bytes of the body.
    Cut(usize),
    /// The answer comes late.
    Late(Duration),
    /// The body comes a byte at a time, with this pause.
    Drip(Duration),
}

/// One request as it came.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    pub path: String,
    pub headers: BTreeMap<String, String>,
}

#[derive(Default)]
struct State {
    files: BTreeMap<String, Vec<u8>>,
    redirects: BTreeMap<String, String>,
    faults: BTreeMap<String, VecDeque<Fault>>,
    log: Vec<Request>,
}

/// The server; it ends with the test process.
pub struct Server {
    /// Its address, with `/` at the end.
    pub url: String,
    state: Arc<Mutex<State>>,
}

impl Server {
    pub fn start() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(State::default()));
        let shared = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = shared.clone();
                // A client that goes away is no failure of the server.
                std::thread::spawn(move || drop(answer(stream, &state)));
            }
        });
        Server { url, state }
    }

    /// Serves a file under this path.
    pub fn file(&self, path: &str, content: &[u8]) {
        self.state.lock().unwrap().files.insert(format!("/{path}"), content.to_vec());
    }

    pub fn redirect(&self, path: &str, to: &str) {
        self.state.lock().unwrap().redirects.insert(format!("/{path}"), to.to_owned());
    }

    /// Serves a repository with these files, and gives the paths of their content.
    pub fn repo(&self, id: &str, files: &[(&str, &[u8])]) -> Vec<String> {
        let entry = |(path, content): &(&str, &[u8])| {
            json!({"type": "file", "path": path, "oid": "0".repeat(40), "size": 130,
                   "lfs": {"oid": sha256(content), "size": content.len()}})
        };
        let tree: Vec<_> = files.iter().map(entry).collect();
        self.listing(id, &json!(tree).to_string());
        let path = |(path, content): &(&str, &[u8])| {
            let path = format!("{id}/resolve/{COMMIT}/{path}");
            self.file(&path, content);
            path
        };
        files.iter().map(path).collect()
    }

    /// Serves a repository whose list of files is this text.
    pub fn listing(&self, id: &str, tree: &str) {
        let branches = json!({"branches": [{"name": "old", "targetCommit": "f".repeat(40)}, {"name": "main", "targetCommit": COMMIT}]});
        self.file(&format!("api/models/{id}/refs"), branches.to_string().as_bytes());
        self.file(&format!("api/models/{id}/tree/{COMMIT}?recursive=true"), tree.as_bytes());
    }

    /// The next GETs of this path fail in this way, one after the other.
    pub fn fail(&self, path: &str, faults: &[Fault]) {
        self.state.lock().unwrap().faults.entry(format!("/{path}")).or_default().extend(faults.iter().cloned());
    }

    /// The requests for this path so far.
    pub fn requests(&self, method: &str, path: &str) -> Vec<Request> {
        let path = format!("/{path}");
        let log = &self.state.lock().unwrap().log;
        log.iter().filter(|r| r.method == method && r.path == path).cloned().collect()
    }

    pub fn n_requests(&self) -> usize {
        self.state.lock().unwrap().log.len()
    }
}

pub fn sha256(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn answer(stream: TcpStream, state: &Mutex<State>) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    let mut words = first.split(' ').map(str::to_owned);
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut headers = BTreeMap::new();
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(": ") else { break };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let (content, redirect, fault) = {
        let mut state = state.lock().unwrap();
        state.log.push(Request { method: method.clone(), path: path.clone(), headers: headers.clone() });
        let fault = if method == "GET" { state.faults.get_mut(&path).and_then(VecDeque::pop_front) } else { None };
        (state.files.get(&path).cloned(), state.redirects.get(&path).cloned(), fault)
    };
    let mut out = stream;
    let mut head = |status: &str, more: &str| write!(out, "HTTP/1.1 {status}\r\nConnection: close\r\n{more}\r\n");
    if let Some(to) = redirect {
        return head("302 Found", &format!("Location: {to}\r\nContent-Length: 0\r\n"));
    }
    if let Some(Fault::Late(time)) = fault {
        std::thread::sleep(time);
    }
    let Some(content) = content.filter(|_| !matches!(fault, Some(Fault::Status(_)))) else {
        let status = if let Some(Fault::Status(status)) = fault { status } else { 404 };
        return head(&format!("{status} Refused"), "Content-Length: 0\r\n");
    };
    let etag = format!("\"{}\"", &sha256(&content)[..16]);
    let is_same = headers.get("if-range").is_none_or(|tag| *tag == etag);
    let from = headers.get("range").and_then(|r| r.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
    let body = match from.filter(|_| is_same) {
        Some(from) if from >= content.len() => return head("416 Range Not Satisfiable", "Content-Length: 0\r\n"),
        Some(from) => {
            let range = format!("Content-Range: bytes {from}-{}/{}\r\n", content.len() - 1, content.len());
            head(
                "206 Partial Content",
                &format!("{range}ETag: {etag}\r\nContent-Length: {}\r\n", content.len() - from),
            )?;
            &content[from..]
        }
        None => {
            head("200 OK", &format!("Accept-Ranges: bytes\r\nETag: {etag}\r\nContent-Length: {}\r\n", content.len()))?;
            &content[..]
        }
    };
    let body = if let Some(Fault::Cut(n)) = fault { &body[..n] } else { body };
    if let Some(Fault::Drip(pause)) = fault {
        for byte in body {
            out.write_all(&[*byte])?;
            out.flush()?;
            std::thread::sleep(pause);
        }
        return Ok(());
    }
    if method != "HEAD" {
        out.write_all(body)?;
    }
    out.flush()
}
