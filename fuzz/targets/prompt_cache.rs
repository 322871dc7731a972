//! Any bytes as a prompt cache of a tiny model, with the checksum that belongs to them: read, put into the cache, gone on from.
#![no_main]

use std::cell::RefCell;

use gracekv::cache::state::StateFile;
use gracekv::session::Session;
use gracekv_fuzz::{cached, start, Input};
use libfuzzer_sys::fuzz_target;
use xxhash_rust::xxh3::xxh3_64;

struct State {
    input: Input,
    session: Session,
}

impl Default for State {
    fn default() -> Self {
        State { input: Input::default(), session: cached::session() }
    }
}

thread_local!(static STATE: RefCell<State> = RefCell::default());

fn resume(state: &mut State, bytes: &[u8]) -> gracekv::error::Result<()> {
    let State { input, session } = state;
    session.clear()?;
    let n_vocab = session.engine.model().hp.n_vocab;
    let file = StateFile::open(input.write(bytes, 0), &cached::identity(session), &session.engine.cache, n_vocab)?;
    let n_tokens = session.load(file)?.tokens.len();
    assert_eq!(session.engine.cache.n_past(), n_tokens);
    let logits = session.step(7)?;
    assert_eq!(logits.len(), n_vocab);
    Ok(())
}

fuzz_target!(init: start(), |data: &[u8]| {
    let mut bytes = data.to_vec();
    bytes.extend(xxh3_64(data).to_le_bytes());
    STATE.with_borrow_mut(|state| {
        let _ = resume(state, &bytes);
    });
});
