//! Models from a hub and from URLs, against a server on this machine: `-hf`, `-hff`, `-hft`, `-mu`, `--offline`, `--cache-list`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use gracekv::error::{Error, Result};
use gracekv::hub::{Hub, Watch};
use tempfile::TempDir;

use crate::support::server::{sha256, Fault, Server, COMMIT};
use crate::support::tiny;

/// Hears everything.
#[derive(Default)]
struct Ear {
    notes: Vec<String>,
    positions: Vec<u64>,
}

impl Watch for Ear {
    fn note(&mut self, _: i32, text: &str) {
        self.notes.push(text.to_owned());
    }

    fn progress(&mut self, _: &str, n_bytes: u64, _: Option<u64>) {
        self.positions.push(n_bytes);
    }

    fn check(&mut self, path: &Path) -> Result<()> {
        match std::fs::read(path).is_ok_and(|content| content.starts_with(b"broken")) {
            true => Err(Error::gguf(path, "broken")),
            false => Ok(()),
        }
    }

    fn end(&mut self) {}
}

fn hub(server: &Server, dir: &TempDir) -> Hub {
    Hub {
        endpoint: server.url.clone(),
        repos: dir.path().join("hub"),
        urls: dir.path().join("urls"),
        token: None,
        offline: false,
        retry_delay: Duration::from_millis(10),
        patience: Duration::from_millis(1500),
    }
}

fn error<T: std::fmt::Debug>(result: Result<T>) -> String {
    let text = result.unwrap_err().to_string();
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

/// Some bytes that no part of equals another.
fn bytes(n: usize) -> Vec<u8> {
    (0..n as u32).flat_map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()).take(n).collect()
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        std::fs::read_dir(dir).into_iter().flatten().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_repository_is_cached_in_the_layout_of_the_hub() {
    let (server, dir, content) = (Server::start(), TempDir::new().unwrap(), bytes(700_000));
    let paths = server.repo("user/model", &[("README.md", b"x"), ("sub/m-q4_k_m.gguf", &content)]);
    let mut hub = hub(&server, &dir);
    let mut ear = Ear::default();
    let path = hub.repo("user/model", None, &mut ear).unwrap();
    let folder = dir.path().join("hub/models--user--model");
    assert_eq!(path, folder.join("snapshots").join(COMMIT).join("sub/m-q4_k_m.gguf"));
    assert_eq!(std::fs::read(&path).unwrap(), content);
    assert_eq!(std::fs::read_link(&path).unwrap(), Path::new("../../../blobs").join(sha256(&content)));
    assert_eq!(names(&folder.join("blobs")), [sha256(&content)]);
    assert_eq!(std::fs::read_to_string(folder.join("refs/main")).unwrap(), COMMIT);
    assert!(ear.notes.is_empty() && *ear.positions.last().unwrap() == 700_000);

    for tag in ["user/model", "user/model:Q4_K_M", "user/model:q4_k_m"] {
        assert_eq!(hub.repo(tag, None, &mut ear).unwrap(), path);
    }
    assert_eq!(server.requests("GET", &paths[1]).len(), 1, "the file is fetched once");
    hub.offline = true;
    let n_requests = server.n_requests();
    assert_eq!(hub.repo("user/model", None, &mut ear).unwrap(), path);
    assert_eq!(hub.repo("user/model", Some("sub/m-q4_k_m.gguf"), &mut ear).unwrap(), path);
    let e = error(hub.repo("user/other", None, &mut ear));
    assert!(e.starts_with("user/other: required file is not available in cache (offline mode)"), "{e}");
    assert_eq!(server.n_requests(), n_requests, "--offline asks nobody");
}

#[test]
fn a_broken_connection_is_taken_up_again() {
    let (server, dir, content) = (Server::start(), TempDir::new().unwrap(), bytes(500_000));
    let paths = server.repo("a/b", &[("m.gguf", &content)]);
    let hub = hub(&server, &dir);
    let mut ear = Ear::default();
    server.fail(&paths[0], &[Fault::Cut(100_000), Fault::Status(503), Fault::Cut(50_000)]);
    let e = error(hub.repo("a/b", None, &mut ear));
    assert!(e.contains("download failed after 3 attempts: the connection ended after 150000 of 500000 bytes"), "{e}");
    assert_eq!(ear.notes.len(), 2, "{:?}", ear.notes);
    let blobs = dir.path().join("hub/models--a--b/blobs");
    assert_eq!(names(&blobs), [format!("{}.downloadInProgress", sha256(&content))]);

    let path = hub.repo("a/b", None, &mut ear).unwrap();
    assert_eq!(std::fs::read(path).unwrap(), content);
    let ranges: Vec<_> =
        server.requests("GET", &paths[0]).iter().map(|r| r.headers.get("range").cloned().unwrap_or_default()).collect();
    assert_eq!(ranges, ["", "bytes=100000-", "bytes=100000-", "bytes=150000-"]);
    assert_eq!(names(&blobs), [sha256(&content)]);
}

#[test]
fn a_damaged_file_is_refused_and_removed() {
    let (server, dir) = (Server::start(), TempDir::new().unwrap());
    let (content, other) = (bytes(1000), bytes(1001)[1..].to_vec());
    let paths = server.repo("a/b", &[("m.gguf", &content)]);
    server.file(&paths[0], &other);
    let hub = hub(&server, &dir);
    let e = error(hub.repo("a/b", None, &mut Ear::default()));
    assert!(e.contains("damaged") && e.contains(&sha256(&content)) && e.contains(&sha256(&other)), "{e}");
    assert!(e.starts_with(&format!("{}{}: ", server.url, paths[0])), "{e}");
    let folder = dir.path().join("hub/models--a--b");
    assert!(names(&folder.join("blobs")).is_empty() && !folder.join("snapshots").exists());
    // Bytes of another file that an earlier run left do not survive either.
    server.file(&paths[0], &content);
    let partial = folder.join("blobs").join(format!("{}.downloadInProgress", sha256(&content)));
    std::fs::write(&partial, &other[..500]).unwrap();
    assert!(error(hub.repo("a/b", None, &mut Ear::default())).contains("damaged"));
    std::fs::write(&partial, bytes(2000)).unwrap();
    assert_eq!(std::fs::read(hub.repo("a/b", None, &mut Ear::default()).unwrap()).unwrap(), content);
}

/// Nobody has said what is in a file by URL: what it should be is checked before it has its name.
#[test]
fn what_is_no_model_does_not_get_its_name() {
    let (server, dir) = (Server::start(), TempDir::new().unwrap());
    server.file("files/m.gguf", b"broken");
    let url = format!("{}files/m.gguf", server.url);
    let e = error(hub(&server, &dir).url(&url, None, &mut Ear::default()));
    assert!(e.starts_with(&url) && e.contains("what came is no model") && e.contains("it was removed"), "{e}");
    let model = std::fs::read(tiny::path("llama")).unwrap();
    for (name, content) in
        [("page.gguf", &b"<html>please log in</html>"[..]), ("none.gguf", b""), ("cut.gguf", &model[..model.len() / 2])]
    {
        server.file(name, content);
        let url = format!("{}{name}", server.url);
        let (code, err) = text(&run(&server, &dir, &["-mu", &url]).output().unwrap());
        assert_eq!(code, Some(1), "{err}");
        assert!(err.lines().last().unwrap().contains("what came is no model"), "{err}");
        let left = names(&dir.path().join(".cache/llama.cpp"));
        assert!(left.iter().all(|n| n.ends_with(".lock")), "{name}: {left:?}");
    }
}

/// A server that says nothing, hardly anything or always something else is given up.
#[test]
fn a_server_without_an_answer_is_given_up() {
    let (server, dir) = (Server::start(), TempDir::new().unwrap());
    let hub = Hub { patience: Duration::from_millis(200), ..hub(&server, &dir) };
    let late = Fault::Late(Duration::from_secs(5));
    let drip = Fault::Drip(Duration::from_millis(20));
    let refs = "api/models/a/b/refs";
    server.redirect("loop.gguf", "/loop.gguf");
    server.redirect("there.gguf", "/back.gguf");
    server.redirect("back.gguf", "/there.gguf");
    server.file("m.gguf", &bytes(20_000));
    let start = Instant::now();
    for fault in [&late, &drip] {
        server.repo("a/b", &[("m.gguf", &bytes(20_000))]);
        server.file(refs, &[b' '; 20_000]);
        server.fail(refs, &[fault.clone(), fault.clone(), fault.clone()]);
        error(hub.repo("a/b", None, &mut Ear::default()));
        server.fail("m.gguf", &[fault.clone(), fault.clone(), fault.clone()]);
        let e = error(hub.url(&format!("{}m.gguf", server.url), None, &mut Ear::default()));
        assert!(e.contains("download failed after 3 attempts"), "{e}");
    }
    for name in ["loop.gguf", "there.gguf"] {
        error(hub.url(&format!("{}{name}", server.url), None, &mut Ear::default()));
    }
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
}

#[test]
fn refusals_say_what_to_do() {
    let (server, dir) = (Server::start(), TempDir::new().unwrap());
    let mut hub = hub(&server, &dir);
    let mut ear = Ear::default();
    let paths = server.repo("a/b", &[("m.gguf", b"x")]);
    let refs = "api/models/a/b/refs";
    for (fault, at, want) in [
        (
            Fault::Status(401),
            refs,
            "GET failed (401): it does not exist, or it is private or gated; give a token with -hft or HF_TOKEN",
        ),
        (Fault::Status(404), refs, "GET failed (404): there is no such repository or file; check the name"),
        (Fault::Status(403), &paths[0], "GET failed (403): "),
        (Fault::Cut(3), refs, ""),
    ] {
        server.fail(at, &[fault]);
        let e = error(hub.repo("a/b", None, &mut ear));
        assert!(e.starts_with(&format!("{}{at}: {want}", server.url)), "{e}");
    }
    for name in ["b", "a/b/c", "../b", "a/..", "/b", "a/", ":q4", ""] {
        let e = error(hub.repo(name, None, &mut ear));
        assert!(e.contains("invalid HF repo format, expected <user>/<model>[:quant]"), "{e}");
    }
    assert!(error(hub.repo("x/y", None, &mut ear)).contains("GET failed (404)"));
    assert!(error(hub.repo("a/b:Q9", None, &mut ear)).contains("a/b: no GGUF files found in repository for 'Q9'"));
    assert!(error(hub.repo("a/b", Some("n.gguf"), &mut ear)).contains("file 'n.gguf' not found in repository"));
    assert!(ear.notes.contains(&" - m.gguf".to_owned()), "{:?}", ear.notes);
    hub.endpoint = "http://127.0.0.1:9/".to_owned();
    let e = error(hub.repo("n/m", None, &mut ear));
    assert!(e.starts_with("http://127.0.0.1:9/api/models/n/m/refs: "), "{e}");
}

#[test]
fn a_hub_that_is_not_there_leaves_the_cache() {
    let (server, dir) = (Server::start(), TempDir::new().unwrap());
    server.repo("a/b", &[("m.gguf", b"x")]);
    let mut hub = hub(&server, &dir);
    let path = hub.repo("a/b", None, &mut Ear::default()).unwrap();
    hub.endpoint = "http://127.0.0.1:9/".to_owned();
    let mut ear = Ear::default();
    assert_eq!(hub.repo("a/b", None, &mut ear).unwrap(), path);
    assert!(ear.notes[0].ends_with("using the cached files of a/b"), "{:?}", ear.notes);
}

#[test]
fn all_parts_of_a_split_model_are_fetched() {
    let (server, dir) = (Server::start(), TempDir::new().unwrap());
    let parts: Vec<String> = (1..=3).map(|i| format!("m-Q8_0-{i:05}-of-00003.gguf")).collect();
    let contents = [bytes(10), bytes(20), bytes(30)];
    let files: Vec<(&str, &[u8])> = parts.iter().map(String::as_str).zip(contents.iter().map(Vec::as_slice)).collect();
    server.repo("a/b", &files);
    let hub = hub(&server, &dir);
    let first = hub.repo("a/b", None, &mut Ear::default()).unwrap();
    assert!(first.ends_with(&parts[0]));
    for (name, content) in &files {
        assert_eq!(std::fs::read(first.with_file_name(name)).unwrap(), *content);
    }
    server.repo("a/c", &files[..2]);
    let e = error(hub.repo("a/c", None, &mut Ear::default()));
    assert_eq!(e, format!("a/c: part {} of the split model is missing", parts[2]));

    for (name, content) in &files {
        server.file(&format!("files/{name}"), content);
    }
    let url = format!("{}files/{}", server.url, parts[0]);
    let first = hub.url(&url, None, &mut Ear::default()).unwrap();
    assert_eq!(first, dir.path().join("urls").join(&parts[0]));
    let expected: Vec<_> = parts.iter().flat_map(|part| [part.clone(), format!("{part}.etag")]).collect();
    assert_eq!(names(&dir.path().join("urls")), expected);
}

/// What a hub answers is not trusted: nothing is written outside the cache.
#[test]
fn a_hostile_hub_writes_nowhere_else() {
    let (server, dir) = (Server::start(), TempDir::new().unwrap());
    let hub = hub(&server, &dir);
    let good = sha256(b"x");
    for (path, oid) in [
        ("../../../../m.gguf", good.as_str()),
        ("/tmp/m.gguf", &good),
        ("a\n\u{1b}b.gguf", &good),
        ("m.gguf", "../../../evil"),
        ("m.gguf", ""),
    ] {
        let tree = serde_json::json!([{"type": "file", "path": path, "lfs": {"oid": oid, "size": 1}}]);
        server.listing("a/b", &tree.to_string());
        server.file(&format!("a/b/resolve/{COMMIT}/{path}"), b"x");
        assert!(error(hub.repo("a/b", None, &mut Ear::default())).contains("no GGUF files found"), "{path} {oid}");
    }
    for tree in ["", "{}", "[1, null, {\"path\": 3}]", "[[[[[[", "\u{0}"] {
        server.listing("a/b", tree);
        error(hub.repo("a/b", None, &mut Ear::default()));
    }
    server.file(
        "api/models/a/b/refs",
        br#"{"branches": [{"name": "../../x", "targetCommit": "0000000000000000000000000000000000000000"}]}"#,
    );
    assert!(error(hub.repo("a/b", None, &mut Ear::default())).contains("no valid branch for 'a/b'"));
    assert_eq!(names(dir.path()), ["hub"]);
    assert_eq!(names(&dir.path().join("hub/models--a--b")), ["refs"]);
}

#[test]
fn a_file_by_url_is_fetched_again_when_it_has_changed() {
    let (server, dir) = (Server::start(), TempDir::new().unwrap());
    let hub = hub(&server, &dir);
    let url = format!("{}dir/m.gguf?download=true", server.url);
    let path = "dir/m.gguf?download=true";
    let fetch = |to: Option<&Path>| hub.url(&url, to, &mut Ear::default());
    let read = |path: PathBuf| std::fs::read(path).unwrap();
    server.file(path, &bytes(5000));
    let cached = fetch(None).unwrap();
    assert_eq!(cached, dir.path().join("urls/m.gguf"));
    assert_eq!(read(fetch(None).unwrap()), bytes(5000));
    assert_eq!(server.requests("GET", path).len(), 1);

    let new = bytes(6000)[100..].to_vec();
    server.file(path, &new);
    server.fail(path, &[Fault::Cut(900), Fault::Status(404)]);
    assert!(error(fetch(None)).contains("GET failed (404)"));
    assert_eq!(std::fs::read(&cached).unwrap(), bytes(5000), "the old file stays until the new one is whole");
    // Meanwhile it changes once more: the 900 bytes do not belong to it.
    let newer = bytes(7000)[200..].to_vec();
    server.file(path, &newer);
    assert_eq!(read(fetch(None).unwrap()), newer);
    assert_eq!(names(&dir.path().join("urls")), ["m.gguf", "m.gguf.etag"]);

    let mine = dir.path().join("mine.gguf");
    assert_eq!(fetch(Some(&mine)).unwrap(), mine);
    assert_eq!(read(mine), newer);
    assert!(error(hub.url("https://h/", None, &mut Ear::default())).contains("names no file"));
    assert!(error(hub.url("nonsense", None, &mut Ear::default())).starts_with("nonsense: "));
}

#[test]
fn the_token_is_told_to_the_hub_only() {
    let (server, other, dir) = (Server::start(), Server::start(), TempDir::new().unwrap());
    let mut hub = hub(&server, &dir);
    hub.token = Some("hf_secret".to_owned());
    let content = bytes(300_000);
    let paths = server.repo("a/b", &[("m.gguf", &content)]);
    server.redirect(&paths[0], &format!("{}cdn/m.gguf", other.url));
    other.file("cdn/m.gguf", &content);
    other.file("x.gguf", b"x");
    other.fail("cdn/m.gguf", &[Fault::Cut(1000)]);
    assert_eq!(std::fs::read(hub.repo("a/b", None, &mut Ear::default()).unwrap()).unwrap(), content);
    hub.url(&format!("{}x.gguf", other.url), None, &mut Ear::default()).unwrap();
    let token = |r: &crate::support::server::Request| r.headers.get("authorization").cloned();
    assert_eq!(token(&server.requests("GET", "api/models/a/b/refs")[0]).unwrap(), "Bearer hf_secret");
    assert_eq!(token(&server.requests("GET", &paths[0])[0]).unwrap(), "Bearer hf_secret");
    let elsewhere = [other.requests("GET", "cdn/m.gguf"), other.requests("GET", "x.gguf")].concat();
    assert!(elsewhere.iter().all(|r| token(r).is_none()), "{elsewhere:?}");
    assert_eq!(elsewhere[1].headers["range"], "bytes=1000-", "a redirected download goes on, too");
}

fn run(server: &Server, dir: &TempDir, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gracekv-run"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for (name, _) in std::env::vars_os().filter(|(n, _)| n.to_string_lossy().starts_with("LLAMA_ARG_")) {
        command.env_remove(name);
    }
    for name in [
        "MODEL_ENDPOINT",
        "LLAMA_CACHE",
        "HF_HUB_CACHE",
        "HUGGINGFACE_HUB_CACHE",
        "HF_HOME",
        "XDG_CACHE_HOME",
        "HF_TOKEN",
    ] {
        command.env_remove(name);
    }
    command
        .env("HF_ENDPOINT", server.url.trim_end_matches('/'))
        .env("HOME", dir.path())
        .env("XDG_CONFIG_HOME", dir.path());
    command
}

fn text(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn the_program_runs_a_model_of_the_hub() {
    let (server, dir) = (Server::start(), TempDir::new().unwrap());
    let model = std::fs::read(tiny::path("llama")).unwrap();
    let paths = server.repo("user/tiny", &[("tiny-F32.gguf", &model)]);
    let args = ["-hf", "user/tiny:f32", "-no-cnv", "-p", "the rain", "-n", "4", "-t", "1", "--temp", "0"];
    let output = run(&server, &dir, &args).output().unwrap();
    let (code, err) = text(&output);
    assert_eq!(code, Some(0), "{err}");
    assert!(
        output.stdout.starts_with(b"the rain") && err.contains("downloading tiny-F32.gguf") && !err.contains('\r'),
        "{err}"
    );
    let local =
        run(&server, &dir, &[&["-m", tiny::path("llama").to_str().unwrap()], &args[2..]].concat()).output().unwrap();
    assert_eq!(output.stdout, local.stdout);
    let again = run(&server, &dir, &[&args[..], &["--offline"]].concat()).output().unwrap();
    assert_eq!((again.status.code(), &again.stdout), (Some(0), &local.stdout), "{}", text(&again).1);
    assert_eq!(server.requests("GET", &paths[0]).len(), 1);
    let list = run(&server, &dir, &["-cl"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&list.stdout), "number of models in cache: 1\n   1. user/tiny:F32\n");

    server.fail("api/models/user/secret/refs", &[Fault::Status(401)]);
    let (code, err) = text(&run(&server, &dir, &["-hf", "user/secret"]).output().unwrap());
    assert_eq!(code, Some(1));
    let last = err.lines().last().unwrap();
    assert!(last.starts_with("error: http://127.0.0.1:") && last.contains("give a token with -hft"), "{err}");
    let (code, err) = text(&run(&server, &dir, &["-mu", "http://127.0.0.1:9/m.gguf", "--offline"]).output().unwrap());
    assert!(
        code == Some(1) && err.contains(".cache/llama.cpp/m.gguf: required file is not available in cache"),
        "{err}"
    );
}

#[test]
fn two_processes_fetch_a_file_once() {
    let (server, dir) = (Server::start(), TempDir::new().unwrap());
    let model = std::fs::read(tiny::path("llama")).unwrap();
    let paths = server.repo("user/tiny", &[("tiny-F32.gguf", &model)]);
    server.fail(&paths[0], &[Fault::Late(Duration::from_millis(800))]);
    let args = ["-hf", "user/tiny", "-no-cnv", "-p", "the rain", "-n", "1", "-t", "1"];
    let both = [(); 2].map(|()| run(&server, &dir, &args).spawn().unwrap());
    for child in both {
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output).1);
    }
    assert_eq!(server.requests("GET", &paths[0]).len(), 1);
}
