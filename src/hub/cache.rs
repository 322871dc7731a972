//! The folders of the caches: `models--USER--MODEL/{refs,blobs,snapshots}` of huggingface_hub, and llama.cpp's files by URL.
//!
//! A file lies once in `blobs` under its checksum; `snapshots/COMMIT/PATH` are links to it; `refs/main` holds the commit.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use super::choose;
use crate::error::{Error, Result};

type Env<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// The first of these variables that is set, with what stands below it.
fn first(env: Env, places: &[(&str, &str)]) -> Result<PathBuf> {
    let set = |name: &str| env(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let found =
        places.iter().find_map(|(name, below)| set(name).map(|p| if below.is_empty() { p } else { p.join(below) }));
    let none = || Error::Usage("error: there is no place for downloaded models; set LLAMA_CACHE or HOME".into());
    found.ok_or_else(none)
}

/// The cache of repositories.
pub(super) fn repos(env: Env) -> Result<PathBuf> {
    let places = [
        ("LLAMA_CACHE", ""),
        ("HF_HUB_CACHE", ""),
        ("HUGGINGFACE_HUB_CACHE", ""),
        ("HF_HOME", "hub"),
        ("XDG_CACHE_HOME", "huggingface/hub"),
        ("HOME", ".cache/huggingface/hub"),
    ];
    first(env, &places)
}

/// The cache of files by URL.
pub(super) fn urls(env: Env) -> Result<PathBuf> {
    let home = if cfg!(target_os = "macos") { "Library/Caches/llama.cpp" } else { ".cache/llama.cpp" };
    first(env, &[("LLAMA_CACHE", ""), ("XDG_CACHE_HOME", "llama.cpp"), ("HOME", home)])
}

/// The folder of one repository.
pub(super) struct Repo {
    folder: PathBuf,
    locks: PathBuf,
}

impl Repo {
    /// The folder of `user/model`.
    ///
    /// # Errors
    /// [`Error::Usage`] when it is no name of a repository.
    pub(super) fn new(cache: &Path, id: &str) -> Result<Repo> {
        if !is_repo(id) {
            return Err(Error::Usage(format!(
                "error: invalid HF repo format, expected <user>/<model>[:quant]: '{id}'"
            )));
        }
        let name = format!("models--{}", id.replace('/', "--"));
        Ok(Repo { folder: cache.join(&name), locks: cache.join(".locks").join(name) })
    }

    /// The name under which huggingface_hub keeps others away from a blob.
    pub(super) fn lock(&self, oid: &str) -> PathBuf {
        self.locks.join(format!("{oid}.lock"))
    }

    pub(super) fn blob(&self, oid: &str) -> PathBuf {
        self.folder.join("blobs").join(oid)
    }

    /// Where a file of a commit lies; `None` for a path that would lead elsewhere.
    pub(super) fn snapshot(&self, commit: &str, path: &str) -> Option<PathBuf> {
        is_inside(path).then(|| self.folder.join("snapshots").join(commit).join(path))
    }

    /// Remembers the commit of a branch.
    pub(super) fn set_ref(&self, branch: &str, commit: &str) -> Result<()> {
        let path = self.folder.join("refs").join(branch);
        let parent = path.parent().unwrap_or(&self.folder);
        fs::create_dir_all(parent).map_err(|e| Error::io(parent, e))?;
        let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
        let write = fs::write(&temporary, commit).and_then(|()| fs::rename(&temporary, &path));
        write.map_err(|e| Error::io(&path, e))
    }

    /// Gives a blob its place among the files of a commit: a link, or the file itself where links cannot be made.
    pub(super) fn link(&self, oid: &str, snapshot: &Path) -> Result<()> {
        let parent = snapshot.parent().unwrap_or(&self.folder);
        fs::create_dir_all(parent).map_err(|e| Error::io(parent, e))?;
        let n_up = parent.strip_prefix(&self.folder).map_or(0, |below| below.components().count());
        let target: PathBuf = std::iter::repeat_n("..", n_up).chain(["blobs", oid]).collect();
        match symlink(&target, snapshot) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(_) => fs::rename(self.blob(oid), snapshot).map_err(|e| Error::io(snapshot, e)),
            Ok(()) => Ok(()),
        }
    }

    /// The commit that the cache has: that of `main`, else of any branch.
    fn commit(&self) -> Option<String> {
        let read = |path: PathBuf| fs::read_to_string(path).ok().map(|c| c.trim().to_owned()).filter(|c| is_commit(c));
        let refs = self.folder.join("refs");
        let others = || fs::read_dir(&refs).ok()?.flatten().find_map(|entry| read(entry.path()));
        read(refs.join("main")).or_else(others)
    }

    /// The files of that commit, as paths below it and on the disk, sorted.
    pub(super) fn files(&self) -> Vec<(String, PathBuf)> {
        let Some(commit) = self.commit() else { return Vec::new() };
        let top = self.folder.join("snapshots").join(commit);
        let (mut files, mut folders) = (Vec::new(), vec![top.clone()]);
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
                let path = entry.path();
                if path.is_file() {
                    let below = path.strip_prefix(&top).unwrap_or(&path).to_string_lossy().replace('\\', "/");
                    files.push((below, path));
                } else if entry.file_type().is_ok_and(|t| t.is_dir()) {
                    folders.push(path);
                }
            }
        }
        files.sort();
        files
    }
}

/// What the cache holds: repository and quantisation of every model, for `--cache-list`.
///
/// # Errors
/// [`Error::Usage`] when the environment names no cache.
pub fn cached_models(env: &dyn Fn(&str) -> Option<OsString>) -> Result<Vec<String>> {
    let cache = repos(env)?;
    let mut models = Vec::new();
    for entry in fs::read_dir(&cache).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(id) = name.strip_prefix("models--").map(|n| n.replace("--", "/")) else { continue };
        for (path, _) in Repo::new(&cache, &id).map(|repo| repo.files()).unwrap_or_default() {
            if let Some(n) =
                choose::name(&path).filter(|n| choose::is_model(&path) && n.index == 1 && !n.tag.is_empty())
            {
                models.push(format!("{id}:{}", n.tag));
            }
        }
    }
    models.sort();
    models.dedup();
    Ok(models)
}

#[cfg(unix)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(not(unix))]
fn symlink(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// One `/`, and `.`, `-` and it only between letters, digits and `_`.
fn is_repo(id: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut words = id.split(['/', '.', '-']);
    id.len() <= 256 && id.matches('/').count() == 1 && words.all(|w| !w.is_empty() && w.chars().all(is_word))
}

pub(super) fn is_commit(hash: &str) -> bool {
    hash.len() == 40 && is_hex(hash)
}

/// Checksums of git and of large files.
pub(super) fn is_oid(hash: &str) -> bool {
    [40, 64].contains(&hash.len()) && is_hex(hash)
}

fn is_hex(hash: &str) -> bool {
    hash.bytes().all(|b| b.is_ascii_hexdigit())
}

/// A path that stays below the folder that it is joined to, without signs that would steer a terminal.
pub(super) fn is_inside(path: &str) -> bool {
    !path.is_empty()
        && !path.contains(char::is_control)
        && Path::new(path).components().all(|c| matches!(c, Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for id in ["a/b", "ggml-org/SmolLM2-135M.v1_0", "A/b.c-d"] {
            assert!(is_repo(id), "{id}");
        }
        for id in ["", "a", "a/b/c", "../b", "a/..", "a/b ", "-a/b", "a/b-", "a//b", "a/b\n", "a/ä"] {
            assert!(!is_repo(id), "{id}");
        }
        for path in ["", "/etc/passwd", "../x", "a/../../x", "./x", "a\nb.gguf", "\u{1b}[2J.gguf"] {
            assert!(!is_inside(path), "{path}");
        }
        assert!(is_inside("a/b.gguf") && is_commit(&"a".repeat(40)) && !is_commit("../x") && is_oid(&"0".repeat(64)));
    }

    #[test]
    fn the_environment_says_where_the_caches_are() {
        let place = |find: fn(Env) -> Result<PathBuf>, set: &[(&str, &str)]| {
            find(&|name| set.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v))).ok()
        };
        let home = ("HOME", "/h");
        assert_eq!(place(repos, &[home]), Some("/h/.cache/huggingface/hub".into()));
        assert_eq!(place(repos, &[home, ("HF_HOME", "/f")]), Some("/f/hub".into()));
        assert_eq!(place(repos, &[home, ("HF_HUB_CACHE", "/c"), ("LLAMA_CACHE", "")]), Some("/c".into()));
        assert_eq!(place(repos, &[home, ("LLAMA_CACHE", "/l")]), Some("/l".into()));
        assert_eq!(place(urls, &[home, ("XDG_CACHE_HOME", "/x")]), Some("/x/llama.cpp".into()));
        assert_eq!(place(urls, &[]), None);
    }
}
