//! The model file of a repository on the hub: its list of files, the choice among them, and their way into the cache.

use serde_json::Value;
use std::path::PathBuf;

use super::cache::{is_commit, is_inside, is_oid, Repo};
use super::choose;
use super::download::{self, Content, File};
use super::http::Client;
use super::{not_cached, Hub, Watch};
use crate::error::{Error, Result};

/// A file of a repository.
struct Entry {
    path: String,
    /// Where it is on the disk, or will be.
    snapshot: PathBuf,
    /// Its checksum, and its size, when the hub has said so; without them it lies in the cache.
    oid: Option<String>,
    n_bytes: Option<u64>,
    url: String,
}

/// As [`Hub::repo`].
pub(super) fn fetch(hub: &Hub, name: &str, file: Option<&str>, watch: &mut dyn Watch) -> Result<PathBuf> {
    let (id, tag) = name.split_once(':').unwrap_or((name, ""));
    let repo = Repo::new(&hub.repos, id)?;
    let client = hub.client();
    let mut entries = Vec::new();
    let mut failed = None;
    if !hub.offline {
        match online(hub, &client, &repo, id) {
            Ok(found) => entries = found,
            Err(e) => failed = Some(e),
        }
    }
    if entries.is_empty() {
        entries = cached(&repo);
        match failed {
            Some(e) if entries.is_empty() => return Err(e),
            Some(e) => watch.note(2, &format!("{e}; using the cached files of {id}")),
            None if entries.is_empty() && hub.offline => return Err(not_cached(name)),
            None => {}
        }
    }
    let wanted = wanted(&entries, id, tag, file, watch)?;
    for entry in &wanted {
        place(&client, &repo, entry, hub, watch)?;
    }
    wanted.first().map(|e| e.snapshot.clone()).ok_or_else(|| not_cached(name))
}

/// The files of the newest commit of `main`, which is remembered.
fn online(hub: &Hub, client: &Client, repo: &Repo, id: &str) -> Result<Vec<Entry>> {
    let url = format!("{}api/models/{id}/refs", hub.endpoint);
    let refs = client.json(&url)?;
    let branches = refs["branches"].as_array().into_iter().flatten().filter_map(|branch| {
        let (name, commit) = (branch["name"].as_str()?, branch["targetCommit"].as_str()?);
        (is_commit(commit) && is_inside(name)).then_some((name, commit))
    });
    let branch = branches.clone().find(|(name, _)| *name == "main").or_else(|| branches.clone().next());
    let (name, commit) =
        branch.ok_or_else(|| Error::Fetch { from: url.clone(), what: format!("no valid branch for '{id}'") })?;
    repo.set_ref(name, commit)?;
    let url = format!("{}api/models/{id}/tree/{commit}?recursive=true", hub.endpoint);
    let tree = client.json(&url)?;
    let files =
        tree.as_array().ok_or_else(|| Error::Fetch { from: url, what: "the answer is no list of files".into() })?;
    Ok(files.iter().filter_map(|item| entry(hub, repo, id, commit, item)).collect())
}

/// An entry of the list, if it is a file that can be kept.
fn entry(hub: &Hub, repo: &Repo, id: &str, commit: &str, item: &Value) -> Option<Entry> {
    let path = item["path"].as_str().filter(|_| item["type"] == "file")?.to_owned();
    let snapshot = repo.snapshot(commit, &path)?;
    let of = if item["lfs"].is_object() { &item["lfs"] } else { item };
    let oid = of["oid"].as_str().filter(|oid| is_oid(oid))?.to_owned();
    let url = format!("{}{id}/resolve/{commit}/{}", hub.endpoint, escaped(&path));
    Some(Entry { path, snapshot, oid: Some(oid), n_bytes: of["size"].as_u64(), url })
}

/// A path as it stands in a URL.
fn escaped(path: &str) -> String {
    let keep = |b: u8| b.is_ascii_alphanumeric() || b"-._~/".contains(&b);
    path.bytes().map(|b| if keep(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

fn cached(repo: &Repo) -> Vec<Entry> {
    let entry = |(path, snapshot)| Entry { path, snapshot, oid: None, n_bytes: None, url: String::new() };
    repo.files().into_iter().map(entry).collect()
}

/// The file that is asked for, with all its parts.
fn wanted<'a>(
    entries: &'a [Entry],
    id: &str,
    tag: &str,
    file: Option<&str>,
    watch: &mut dyn Watch,
) -> Result<Vec<&'a Entry>> {
    let paths: Vec<&str> = entries.iter().map(|e| e.path.as_str()).collect();
    let first = match file {
        Some(file) => paths.iter().copied().find(|path| *path == file),
        None => choose::best(&paths, tag),
    };
    let Some(first) = first else {
        watch.note(3, "Available GGUF files:");
        paths.iter().filter(|path| path.ends_with(".gguf")).for_each(|path| watch.note(3, &format!(" - {path}")));
        let what = match file {
            Some(file) => format!("file '{file}' not found in repository"),
            None if tag.is_empty() => "no GGUF files found in repository".to_owned(),
            None => format!("no GGUF files found in repository for '{tag}'"),
        };
        return Err(Error::Fetch { from: id.to_owned(), what });
    };
    let find = |part: String| {
        let missing =
            || Error::Fetch { from: id.to_owned(), what: format!("part {part} of the split model is missing") };
        entries.iter().find(|e| e.path == part).ok_or_else(missing)
    };
    choose::all_parts(first).into_iter().map(find).collect()
}

/// Sees to it that the file is in its place.
fn place(client: &Client, repo: &Repo, entry: &Entry, hub: &Hub, watch: &mut dyn Watch) -> Result<()> {
    let Some(oid) = entry.oid.as_deref().filter(|_| !entry.snapshot.exists()) else { return Ok(()) };
    let content = Content { sha256: Some(oid).filter(|oid| oid.len() == 64), n_bytes: entry.n_bytes };
    let blob = repo.blob(oid);
    let file = File { url: &entry.url, path: &blob, lock: repo.lock(oid), content: Some(content) };
    download::fetch(client, &file, hub, watch)?;
    repo.link(oid, &entry.snapshot)
}
