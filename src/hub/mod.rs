//! Where model files come from beside the disk (before stage 1 of the flow): Hugging Face repositories and URLs.
//!
//! `http` (requests, and what to say about their failures) -> `download` (one file: resumed, checked, whole or not there) ->
//! `repo` (which files of a repository) over `cache` (the folders that llama.cpp and huggingface_hub share). Source: llama.cpp
//! `common/download.cpp`, `common/hf-cache.cpp`.
//! Deviations: checksums are compared, two processes wait for each other, a file that is replaced stays until the new one is
//! whole, and the token goes to the endpoint only.

mod cache;
mod choose;
mod download;
mod http;
mod repo;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{Error, Result};
use download::File;
use http::Client;

pub use cache::cached_models;

/// Where Hugging Face answers.
const ENDPOINT: &str = "https://huggingface.co/";

/// Silence after which a server is given up.
const PATIENCE: Duration = Duration::from_secs(30);

/// Who hears about a download.
pub trait Watch {
    /// A line for the user; level as of the console (2 warning, 3 information).
    fn note(&mut self, level: i32, text: &str);

    /// So many bytes of a file are here; `total` is unknown where the server does not say.
    fn progress(&mut self, name: &str, n_bytes: u64, total: Option<u64>);

    /// Looks into a file whose content nobody has vouched for, before it gets its name. An error refuses it.
    ///
    /// # Errors
    /// When it is not what it should be.
    fn check(&mut self, path: &Path) -> Result<()>;

    /// The file is complete, or was given up.
    fn end(&mut self);
}

/// Where files are fetched from and kept.
#[derive(Clone, Debug)]
pub struct Hub {
    /// Base of the hub's URLs, with `/` at its end.
    pub endpoint: String,
    /// Cache of repositories, in the layout of huggingface_hub.
    pub repos: PathBuf,
    /// Cache of files by URL.
    pub urls: PathBuf,
    /// Token for private and gated repositories.
    pub token: Option<String>,
    /// Nothing is fetched; files must be in the cache.
    pub offline: bool,
    /// Time before the second attempt; it doubles before each further one.
    pub retry_delay: Duration,
    /// A server that says nothing for so long has gone away.
    pub patience: Duration,
}

impl Hub {
    /// The hub and the caches that the environment names, as llama.cpp looks for them.
    ///
    /// # Errors
    /// [`Error::Usage`] when no variable says where the caches are, or the token cannot be one.
    pub fn new(env: &dyn Fn(&str) -> Option<OsString>, token: Option<&str>, offline: bool) -> Result<Hub> {
        let token = token.filter(|t| !t.is_empty());
        if token.is_some_and(|t| !t.bytes().all(|b| b.is_ascii_graphic())) {
            return Err(Error::Usage("error: the token of -hft or HF_TOKEN has characters that no token has".into()));
        }
        let named = ["MODEL_ENDPOINT", "HF_ENDPOINT"].into_iter().filter_map(env).filter_map(|v| v.into_string().ok());
        let endpoint = named.into_iter().find(|v| !v.is_empty()).unwrap_or_else(|| ENDPOINT.to_owned());
        Ok(Hub {
            endpoint: if endpoint.ends_with('/') { endpoint } else { endpoint + "/" },
            repos: cache::repos(env)?,
            urls: cache::urls(env)?,
            token: token.map(str::to_owned),
            offline,
            retry_delay: Duration::from_secs(2),
            patience: PATIENCE,
        })
    }

    fn client(&self) -> Client<'_> {
        Client::new(self.token.as_deref(), &self.endpoint, self.patience)
    }

    /// The model file of `user/model[:quant]`, fetched unless the cache has it; `file` names one of the repository instead.
    ///
    /// # Errors
    /// [`Error::Usage`] for a name that is none, [`Error::Fetch`] when the file is nowhere or damaged.
    pub fn repo(&self, name: &str, file: Option<&str>, watch: &mut dyn Watch) -> Result<PathBuf> {
        repo::fetch(self, name, file, watch)
    }

    /// The file behind `url`, fetched to `to` or into the cache unless it is there and unchanged. Of a split file all parts
    /// are fetched, and the path is that of the first.
    ///
    /// # Errors
    /// [`Error::Fetch`] when it is nowhere or damaged.
    pub fn url(&self, url: &str, to: Option<&Path>, watch: &mut dyn Watch) -> Result<PathBuf> {
        if url.contains(|c: char| c.is_control() || c.is_whitespace()) {
            return Err(Error::Usage(format!("error: --model-url {url} has characters that no URL has")));
        }
        let parts = choose::all_parts(url);
        let client = self.client();
        let mut first = None;
        for part in &parts {
            let name = part.split(['?', '#']).next().and_then(|p| p.rsplit('/').next()).unwrap_or("");
            if name.is_empty() {
                return Err(Error::Usage(format!("error: --model-url {url} names no file")));
            }
            let path = match to {
                Some(to) if parts.len() == 1 => to.to_owned(),
                Some(to) => to.with_file_name(name),
                None => self.urls.join(name),
            };
            if self.offline {
                if !path.exists() {
                    return Err(not_cached(&path.display().to_string()));
                }
            } else {
                let lock = path.with_file_name(format!("{name}.lock"));
                let file = File { url: part, path: &path, lock, content: None };
                download::fetch(&client, &file, self, watch)?;
            }
            first.get_or_insert(path);
        }
        first.ok_or_else(|| Error::Usage(format!("error: --model-url {url} names no file")))
    }
}

/// The error for a file that only the network has.
fn not_cached(what: &str) -> Error {
    Error::Fetch {
        from: what.to_owned(),
        what: "required file is not available in cache (offline mode); run once without --offline to fetch it".into(),
    }
}
