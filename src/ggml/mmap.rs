//! Read-only file mapping.

use crate::error::{Error, Result};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Address, length and file of all mappings.
static MAPPED: Mutex<Vec<(usize, usize, PathBuf)>> = Mutex::new(Vec::new());

/// The file that is mapped at an address.
pub(super) fn file_at(address: usize) -> Option<PathBuf> {
    let mapped = MAPPED.lock().ok()?;
    // The last page has bytes behind the end of the file.
    let holds = |start: usize, n: usize| (start..start + n.next_multiple_of(1 << 16)).contains(&address);
    mapped.iter().find(|&&(start, n, _)| holds(start, n)).map(|(_, _, path)| path.clone())
}

/// A file mapped read-only.
pub struct Mmap {
    map: memmap2::Mmap,
    path: PathBuf,
}

impl Mmap {
    /// Maps the whole file.
    ///
    /// # Errors
    /// When the file cannot be opened or mapped.
    pub fn open(path: &Path) -> Result<Mmap> {
        let file = File::open(path).map_err(|e| Error::io(path, e))?;
        // SAFETY: the mapping is read-only and private to this process. Another program that truncates the file while it
        // is mapped causes SIGBUS on access, which no user-space check can exclude; programs turn it into a line (`fatal`).
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(|e| Error::io(path, e))?;
        if let Ok(mut mapped) = MAPPED.lock() {
            mapped.push((map.as_ptr() as usize, map.len(), path.to_path_buf()));
        }
        Ok(Mmap { map, path: path.to_path_buf() })
    }

    /// Keeps the pages in memory (`mlock`).
    ///
    /// # Errors
    /// When the system refuses, usually because of its limit on locked memory.
    pub fn lock(&self) -> Result<()> {
        #[cfg(unix)]
        self.map.lock().map_err(|e| Error::io(&self.path, e))?;
        Ok(())
    }

    /// The mapped bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Mmap {
    fn drop(&mut self) {
        if let Ok(mut mapped) = MAPPED.lock() {
            mapped.retain(|(start, ..)| *start != self.map.as_ptr() as usize);
        }
    }
}
