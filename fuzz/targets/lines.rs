//! Any bytes as JSON lines of gracekv-eval: a set of questions (`--data`), and the answers that a run goes on from (`--out`).
//!
//! What a run adds to a file that it has accepted is there when it is opened again.
#![no_main]

use std::path::Path;

use gracekv::eval::records::{Record, Records, FILE};
use gracekv::eval::{data, scores};
use gracekv_fuzz::shared::{record, settings};
use gracekv_fuzz::start;
use libfuzzer_sys::fuzz_target;
use tempfile::TempDir;

thread_local!(static DIR: TempDir = TempDir::new().unwrap());

fn check(dir: &Path, bytes: &[u8]) {
    let path = dir.join(FILE);
    std::fs::write(&path, bytes).unwrap();
    let file = path.to_str().unwrap().to_owned();
    if let Ok(samples) = data::open(std::slice::from_ref(&file)) {
        assert!(samples.iter().all(|s| s.index > 0 && !s.answers.is_empty()));
    }
    let Ok(mut records) = Records::open(dir, &settings()) else { return };
    drop(scores::rows(records.list()));
    let new = Record { task: "new".into(), ..record() };
    records.push(new.clone()).unwrap();
    let before = records.list().to_vec();
    drop(records);
    let again = Records::open(dir, &settings()).unwrap();
    assert!(again.list().len() == before.len() && again.has("new", new.sample, &new.method, new.ratio));
}

fuzz_target!(init: start(), |data: &[u8]| {
    DIR.with(|dir| check(dir.path(), data));
});
