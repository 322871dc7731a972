//! The rules of the source tree: who may use whom, where `unsafe` may stand, how long a file may be, what every part must have.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use gracekv::compress::METHODS;
use gracekv::model::ARCHITECTURES;

/// What each module may use beside itself, in the order of the data. No arrow goes back.
const MAY_USE: [(&str, &[&str]); 15] = [
    ("error", &[]),
    ("hub", &["error"]),
    ("gguf", &["error"]),
    ("tokenizer", &["error", "gguf"]),
    ("ggml", &["error"]),
    ("cache", &["error", "ggml"]),
    ("model", &["error", "gguf", "ggml", "cache"]),
    ("engine", &["error", "ggml", "model", "cache"]),
    ("compress", &["error", "cache"]),
    ("report", &["error", "ggml", "cache", "compress"]),
    ("pass", &["error", "ggml", "model", "cache", "engine", "compress", "report"]),
    ("sample", &["error", "gguf", "tokenizer"]),
    ("session", &["error", "cache", "engine", "compress", "pass", "report"]),
    (
        "eval",
        &["error", "ggml", "tokenizer", "model", "cache", "engine", "compress", "pass", "report", "session", "sample"],
    ),
    (
        "cli",
        &[
            "error",
            "hub",
            "gguf",
            "ggml",
            "tokenizer",
            "model",
            "cache",
            "engine",
            "compress",
            "pass",
            "report",
            "session",
            "sample",
            "eval",
        ],
    ),
];

/// Most lines of a file.
const MAX_LINES: usize = 500;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All Rust files under a folder of the repository, with their text.
fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    let mut out = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                out.push((path.strip_prefix(root()).unwrap().to_path_buf(), text));
            }
        }
    }
    assert!(!out.is_empty(), "{folder} has no sources");
    out
}

/// The code without comments and string literals on one line, which may name what they do not use.
fn code(text: &str) -> String {
    text.lines().map(|line| line.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n")
}

/// The top-level module of a file: `src/cache/mask.rs` belongs to `cache`.
fn module(path: &Path) -> String {
    let first = path.components().nth(1).unwrap().as_os_str().to_string_lossy().into_owned();
    first.trim_end_matches(".rs").to_owned()
}

/// The top-level modules that a text names by `crate::`, lists in braces included.
fn used(text: &str) -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    for (at, _) in text.match_indices("crate::") {
        let rest = &text[at + "crate::".len()..];
        let name = |s: &str| s.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
        match rest.strip_prefix('{') {
            Some(list) => {
                let mut depth = 0;
                let inner: String = list
                    .chars()
                    .take_while(|c| {
                        depth += i32::from(*c == '{') - i32::from(*c == '}');
                        depth >= 0
                    })
                    .collect();
                let mut depth = 0;
                let items = inner.split(|c| {
                    depth += i32::from(c == '{') - i32::from(c == '}');
                    c == ',' && depth == 0
                });
                out.extend(items.map(|item| name(item.trim_start())).filter(|n| !n.is_empty()));
            }
            None => {
                out.insert(name(rest));
            }
        }
    }
    out
}

#[test]
fn uses_are_found_in_every_spelling() {
    let text =
        "use crate::cache::{a, b};\nuse crate::{error::{Error, Result}, ggml, model::Hparams};\ncrate::gguf::Value";
    assert_eq!(used(text).into_iter().collect::<Vec<_>>(), ["cache", "error", "ggml", "gguf", "model"]);
}

#[test]
fn no_arrow_goes_back() {
    let mut wrong = Vec::new();
    for (path, text) in sources("src") {
        let module = module(&path);
        if ["lib", "bin"].contains(&module.as_str()) {
            continue;
        }
        let (_, allowed) = MAY_USE.iter().find(|(m, _)| *m == module).unwrap_or_else(|| panic!("{module} has no row"));
        for other in used(&code(&text)) {
            if other != module && !allowed.contains(&other.as_str()) {
                wrong.push(format!("{}: {module} uses {other}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_table_has_no_cycle() {
    let allowed = |m: &str| MAY_USE.iter().find(|(name, _)| *name == m).unwrap().1;
    for (i, (module, _)) in MAY_USE.iter().enumerate() {
        for used in allowed(module) {
            let j = MAY_USE.iter().position(|(m, _)| m == used).unwrap();
            assert!(!allowed(used).contains(module) && i != j, "{module} and {used} use each other");
        }
    }
    assert!(!allowed("compress").iter().any(|m| ["ggml", "model", "engine"].contains(m)));
}

#[test]
fn the_programs_only_call_the_library() {
    for (path, text) in sources("src/bin") {
        assert!(text.lines().count() <= 8, "{} has logic", path.display());
    }
}

#[test]
fn unsafe_stands_in_one_folder() {
    for (path, text) in sources("src") {
        let has = code(&text).split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "unsafe");
        assert!(!has || module(&path) == "ggml", "{} has unsafe code", path.display());
    }
}

#[test]
fn files_stay_short() {
    for (path, text) in sources("src").into_iter().chain(sources("tests")) {
        let n = text.lines().count();
        assert!(n <= MAX_LINES, "{} has {n} lines", path.display());
    }
}

#[test]
fn files_begin_with_what_they_are() {
    for (path, text) in sources("src").into_iter().chain(sources("tests")) {
        if path.ends_with("tests.rs") {
            continue; // It belongs to the file of its folder's name.
        }
        let n = text.lines().take_while(|l| l.starts_with("//!")).count();
        assert!((1..=12).contains(&n), "{}: {n} lines of `//!`", path.display());
    }
}

#[test]
fn every_architecture_has_its_file_and_a_tiny_model() {
    for a in ARCHITECTURES {
        assert!(root().join(format!("src/model/{}.rs", a.name().replace('-', "_"))).is_file(), "{}", a.name());
        assert_eq!(crate::support::tiny::model(a.name()).arch().name(), a.name());
    }
}

/// Laws run over the registry; what a method computes has tests of its own, in its file or folder, or by name.
#[test]
fn every_method_has_its_file_and_tests() {
    let tests = sources("src/compress");
    for m in METHODS {
        let own = |path: &Path| {
            let path = path.to_string_lossy();
            path.contains(&format!("compress/{}.rs", m.name)) || path.contains(&format!("compress/{}/", m.name))
        };
        assert!(tests.iter().any(|(path, _)| own(path)), "{} has no file of its own", m.name);
        let tested = tests.iter().any(|(path, text)| {
            text.contains("#[test]")
                && (own(path) || text.contains("METHODS") || text.contains(&format!("{}::", m.name)))
        });
        assert!(tested, "{} has no test", m.name);
    }
}
