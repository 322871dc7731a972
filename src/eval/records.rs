//! Answers as JSON lines: one line per sample, method and ratio, written as they come, so that a run that is killed goes on
//! where it was.
//!
//! The first line holds the settings that decide the numbers; a file with others is refused. A line without its end was torn
//! by the end of a run: it is dropped and measured again.

use crate::error::{Error, Result};
use serde_json::{json, Map, Value};
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// The file in the folder of a run.
pub const FILE: &str = "answers.jsonl";

/// One answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The task.
    pub task: String,
    /// Number of the sample, 1 first.
    pub sample: usize,
    /// Method, or `full` for the uncompressed cache.
    pub method: String,
    /// How many times smaller the cache was to become.
    pub ratio: f64,
    /// Score, from 0 to 1.
    pub score: f64,
    /// Score of blind guessing.
    pub chance: f64,
    /// Bytes of the compressed context, without room for tokens to come.
    pub kv_bytes: u64,
    /// Time of the pass.
    pub pass_ms: f64,
    /// Tokens of the prompt.
    pub n_tokens: usize,
    /// The answer.
    pub text: String,
    /// What it is compared with.
    pub answers: Vec<String>,
}

impl Record {
    /// The fields of a line.
    pub fn to_json(&self) -> Value {
        json!({
            "task": self.task, "sample": self.sample, "method": self.method, "ratio": self.ratio, "score": self.score,
            "chance": self.chance, "kv_bytes": self.kv_bytes, "pass_ms": self.pass_ms, "n_tokens": self.n_tokens,
            "text": self.text, "answers": self.answers,
        })
    }

    fn from_json(v: &Value) -> Option<Record> {
        let text = |name: &str| Some(v.get(name)?.as_str()?.to_owned());
        let number = |name: &str| v.get(name)?.as_f64();
        let count = |name: &str| usize::try_from(v.get(name)?.as_u64()?).ok();
        Some(Record {
            task: text("task")?,
            sample: count("sample")?,
            method: text("method")?,
            ratio: number("ratio")?,
            score: number("score")?,
            chance: number("chance")?,
            kv_bytes: v.get("kv_bytes")?.as_u64()?,
            pass_ms: number("pass_ms")?,
            n_tokens: count("n_tokens")?,
            text: text("text")?,
            answers: v
                .get("answers")?
                .as_array()?
                .iter()
                .map(|a| Some(a.as_str()?.to_owned()))
                .collect::<Option<_>>()?,
        })
    }
}

/// Task, sample, method and ratio.
type Key = (String, usize, String, u64);

/// Answers, in a file as well where one was opened.
#[derive(Default)]
pub struct Records {
    list: Vec<Record>,
    known: BTreeSet<Key>,
    file: Option<(PathBuf, File)>,
}

impl Records {
    /// Answers that are forgotten with the run.
    pub fn new() -> Self {
        Records::default()
    }

    /// The answers in folder `dir`, which is made where it is missing, as far as `settings` have led.
    ///
    /// # Errors
    /// When the file cannot be read or written, holds answers of other settings, or another run writes to it.
    pub fn open(dir: &Path, settings: &Map<String, Value>) -> Result<Self> {
        std::fs::create_dir_all(dir).map_err(|e| Error::io(dir, e))?;
        let path = dir.join(FILE);
        let io = |e| Error::io(&path, e);
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).map_err(io)?;
        // Where the file system knows no locks, nobody is kept out.
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            return Err(Error::Context { what: format!("{}: another run writes to it", path.display()) });
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(io)?;
        let n_whole = bytes.iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1);
        file.set_len(n_whole as u64).map_err(io)?;
        file.seek(SeekFrom::End(0)).map_err(io)?;

        let mut records = Records::new();
        let mut lines = bytes[..n_whole].split_inclusive(|&b| b == b'\n').enumerate();
        match lines.next() {
            Some((_, line)) => same(&path, line, settings)?,
            None => {
                let line = format!("{}\n", json!({ "settings": settings }));
                file.write_all(line.as_bytes()).map_err(io)?;
            }
        }
        for (i, line) in lines {
            let record = serde_json::from_slice(line).ok().as_ref().and_then(Record::from_json);
            records.add(record.ok_or_else(|| Error::Context {
                what: format!("{}:{}: not an answer of gracekv-eval; remove the line", path.display(), i + 1),
            })?);
        }
        records.file = Some((path, file));
        Ok(records)
    }

    /// Adds an answer and writes it.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn push(&mut self, record: Record) -> Result<()> {
        if let Some((path, file)) = &mut self.file {
            // One call: a line is there, or its end is missing.
            file.write_all(format!("{}\n", record.to_json()).as_bytes()).map_err(|e| Error::io(&path, e))?;
        }
        self.add(record);
        Ok(())
    }

    /// Whether this is answered.
    pub fn has(&self, task: &str, sample: usize, method: &str, ratio: f64) -> bool {
        self.known.contains(&(task.to_owned(), sample, method.to_owned(), ratio.to_bits()))
    }

    /// All answers, in the order of their lines.
    pub fn list(&self) -> &[Record] {
        &self.list
    }

    /// Nothing counts twice.
    fn add(&mut self, record: Record) {
        let key = (record.task.clone(), record.sample, record.method.clone(), record.ratio.to_bits());
        if self.known.insert(key) {
            self.list.push(record);
        }
    }
}

/// Checks the first line of a file.
fn same(path: &Path, line: &[u8], settings: &Map<String, Value>) -> Result<()> {
    let refuse = |why: String| Err(Error::Context { what: format!("{}: {why}", path.display()) });
    let value: Value = serde_json::from_slice(line).unwrap_or_default();
    let Some(there) = value.get("settings").and_then(Value::as_object) else {
        return refuse("the first line holds no settings of gracekv-eval; give another folder".to_owned());
    };
    let names: BTreeSet<&String> = there.keys().chain(settings.keys()).collect();
    let show = |v: Option<&Value>| v.map_or("nothing".to_owned(), Value::to_string);
    for name in names {
        let (old, new) = (there.get(name), settings.get(name));
        if old != new {
            let (old, new) = (show(old), show(new));
            return refuse(format!(
                "'{name}' was {old} and is {new} now; give another folder, or the settings it was made with"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::scores;
    use super::*;

    fn settings(seed: u64) -> Map<String, Value> {
        json!({ "model": "m.gguf", "seed": seed }).as_object().unwrap().clone()
    }

    /// What a run would measure, in its order.
    fn all() -> Vec<Record> {
        let mut all = Vec::new();
        for (task, sample) in [("vt", 1), ("vt", 2), ("cwe", 1), ("cwe", 2)] {
            for (j, (method, ratio)) in [("full", 1.0), ("a+b", 4.0), ("a+b", 16.0), ("c", 4.0)].into_iter().enumerate()
            {
                let x = (sample * 7 + j * 3 + task.len()) as f64;
                all.push(Record {
                    task: task.into(),
                    sample,
                    method: method.into(),
                    ratio,
                    score: x / 31.0,
                    chance: 0.0,
                    kv_bytes: x as u64 * 1000,
                    pass_ms: x / 3.0,
                    n_tokens: 100,
                    text: "\"ü\n".into(),
                    answers: vec!["1\u{2028}".into(), String::new()],
                });
            }
        }
        all
    }

    fn finish(dir: &Path) -> (Vec<Record>, String) {
        let mut records = Records::open(dir, &settings(1)).unwrap();
        for r in all() {
            if !records.has(&r.task, r.sample, &r.method, r.ratio) {
                records.push(r).unwrap();
            }
        }
        (records.list().to_vec(), scores::table(&scores::rows(records.list())).to_string())
    }

    #[test]
    fn a_run_that_is_killed_anywhere_ends_with_the_same_table() {
        let dir = tempfile::tempdir().unwrap();
        let want = finish(dir.path());
        assert_eq!(want.0, all());
        let bytes = std::fs::read(dir.path().join(FILE)).unwrap();
        for end in (0..bytes.len()).step_by(3).chain((0..bytes.len()).filter(|&i| i > 0 && bytes[i - 1] == b'\n')) {
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join(FILE), &bytes[..end]).unwrap();
            assert_eq!(finish(dir.path()), want, "cut at {end}");
            assert_eq!(std::fs::read(dir.path().join(FILE)).unwrap(), bytes, "cut at {end}");
        }
    }

    #[test]
    fn lines_that_stand_twice_count_once() {
        let dir = tempfile::tempdir().unwrap();
        let want = finish(dir.path());
        let path = dir.path().join(FILE);
        let text = std::fs::read_to_string(&path).unwrap();
        let (head, lines) = text.split_once('\n').unwrap();
        std::fs::write(&path, format!("{head}\n{lines}{lines}")).unwrap();
        assert_eq!(finish(dir.path()), want);
    }

    #[test]
    fn other_settings_and_foreign_lines_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        finish(dir.path());
        let refused = |seed| Records::open(dir.path(), &settings(seed)).map(|_| ()).unwrap_err().to_string();
        assert!(refused(2).contains("'seed' was 1 and is 2 now"), "{}", refused(2));
        let path = dir.path().join(FILE);
        let text = std::fs::read_to_string(&path).unwrap().replacen("\"score\"", "\"points\"", 1);
        std::fs::write(&path, text).unwrap();
        assert!(refused(1).contains("answers.jsonl:2: not an answer"), "{}", refused(1));
        std::fs::write(&path, "hello\n").unwrap();
        assert!(refused(1).contains("holds no settings"), "{}", refused(1));
        let open = std::fs::File::open(&path).unwrap();
        open.lock().unwrap();
        assert!(refused(1).contains("another run"), "{}", refused(1));
    }
}
