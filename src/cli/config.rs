//! Configuration files: options that hold unless the environment or the command line says otherwise.
//!
//! Places and form as in llama.cpp (`common/arg.cpp`, `common/preset.cpp`): `/etc/llama.cpp/config.ini`, then
//! `${XDG_CONFIG_HOME:-~/.config}/llama.cpp/config.ini`; `key = value` with any spelling of an option without its dashes, or
//! its environment variable; what stands before the first heading, in `[default]` and in `[*]` counts. All programs share
//! the files, so a key that this one does not know is a warning.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use configparser::ini::Ini;

use super::flags::{self, Flag};
use crate::error::{Error, Result};

/// Largest file; with every option there is it would have some thousand bytes.
const MAX_BYTES: u64 = 1 << 20;
const SYSTEM: &str = "/etc/llama.cpp/config.ini";

/// One option of a file.
#[derive(Clone, Debug)]
pub struct Entry {
    /// As the file spells it.
    pub key: String,
    /// Its value.
    pub value: String,
    /// The file.
    pub path: PathBuf,
}

/// The files that are looked for, in the order in which they are read.
pub fn paths(env: &dyn Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let folder = |name: &str| env(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let own = folder("XDG_CONFIG_HOME").or_else(|| folder("HOME").map(|home| home.join(".config")));
    let own = own.map(|folder| folder.join("llama.cpp/config.ini"));
    [PathBuf::from(SYSTEM)].into_iter().chain(own).collect()
}

/// The options of a file; none when it does not exist.
///
/// # Errors
/// [`Error::Io`] when it cannot be read, [`Error::Usage`] when it has another form.
pub fn read(path: &Path) -> Result<Vec<Entry>> {
    let read = |file: File| {
        let mut text = String::new();
        file.take(MAX_BYTES + 1).read_to_string(&mut text).map(|_| text)
    };
    let text = match File::open(path).and_then(read) {
        Ok(text) if text.len() as u64 > MAX_BYTES => {
            return Err(Error::Usage(format!("error: {}: more than {MAX_BYTES} bytes", path.display())));
        }
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(Error::io(path, e)),
    };
    let mut ini = Ini::new_cs();
    let mut form = ini.defaults();
    form.delimiters = vec!['='];
    ini.load_defaults(form);
    let wrong = |why: String| Error::Usage(format!("error: {}: {why}", path.display()));
    let sections = ini.read(text).map_err(wrong)?;
    let mut entries = Vec::new();
    for section in ["*", "default"] {
        let mut keys: Vec<_> = sections.get(section).into_iter().flatten().collect();
        keys.sort();
        for (key, value) in keys.into_iter().filter(|(key, _)| *key != "version") {
            let value = value.clone().ok_or_else(|| wrong(format!("'{key}' has no value")))?;
            entries.push(Entry { key: key.clone(), value, path: path.to_owned() });
        }
    }
    Ok(entries)
}

/// The option of a key, and whether the key means on.
pub fn find(key: &str) -> Option<(&'static Flag, bool)> {
    let is = |name: &&&str| name.trim_start_matches('-') == key;
    flags::all().find_map(|flag| {
        let on = flag.names.iter().any(|name| is(&name)) || (!flag.env.is_empty() && flag.env == key);
        (on || flag.off.iter().any(|name| is(&name))).then_some((flag, on))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_llama_cpps_form() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.ini");
        let entries = |text: &str| -> Result<Vec<(String, String)>> {
            std::fs::write(&path, text).unwrap();
            Ok(read(&path)?.into_iter().map(|e| (e.key, e.value)).collect())
        };
        let text = "; all programs\nversion = 1\nctx-size = 4096   # enough\nurl = http://h:1/x#y\n\n[*]\nn = 5\n[default]\nTemp = 0\n[server]\nport=1\n";
        let pair = |k: &str, v: &str| (k.to_owned(), v.to_owned());
        assert_eq!(
            entries(text).unwrap(),
            [pair("n", "5"), pair("Temp", "0"), pair("ctx-size", "4096"), pair("url", "http://h:1/x")]
        );
        assert!(entries("n\n").unwrap_err().to_string().contains("config.ini: 'n' has no value"));
        assert!(entries("[oops\n").is_err());
        assert!(read(&dir.path().join("none.ini")).unwrap().is_empty());
    }

    #[test]
    fn keys_are_spellings_without_dashes() {
        for key in ["c", "ctx-size", "LLAMA_ARG_CTX_SIZE"] {
            assert_eq!(find(key).map(|(flag, on)| (flag.id(), on)), Some(("ctx-size", true)), "{key}");
        }
        assert_eq!(find("no-cnv").map(|(flag, on)| (flag.id(), on)), Some(("conversation", false)));
        assert!(find("").is_none() && find("port").is_none());
    }
}
