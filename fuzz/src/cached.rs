//! The session whose prompt cache is fuzzed, and the caches that seeds are made of.

use gracekv::cache::state::{Identity, Mark, State};
use gracekv::compress;
use gracekv::pass::{PassOptions, Target};
use gracekv::session::Session;

use crate::support::{engine, tiny};

/// A session of the tiny llama.
pub fn session() -> Session {
    Session::new(engine(&tiny::model("llama"), 256, 1), None)
}

/// What a cache must name to be taken.
pub fn identity(session: &Session) -> Identity {
    Identity { model: "tiny".into(), kv: session.engine.cache.types(), compression: "none".into() }
}

/// A dense and a compressed cache of some tokens, without their checksums.
pub fn files() -> [Vec<u8>; 2] {
    let options = PassOptions { target: Target::Ratio(4.0), n_lookahead: 0, n_min_tokens: 0, ..PassOptions::default() };
    let method = || compress::by_name("gracekv", &Default::default()).unwrap();
    [None, Some((method(), options))].map(|compress| {
        let mut session = Session::new(engine(&tiny::model("llama"), 256, 1), compress);
        let tokens: Vec<u32> = (0..120).map(|i| i * 7 % 250).collect();
        let logits = session.prefill(&tokens, |_| Ok(())).unwrap();
        let state = State {
            identity: identity(&session),
            sampling: String::new(),
            n_given: tokens.len(),
            n_whole: tokens.len(),
            marks: vec![Mark { n_tokens: tokens.len(), logits }],
            tokens,
        };
        let mut bytes = Vec::new();
        state.write(&session.engine.cache, &mut bytes).unwrap();
        bytes.truncate(bytes.len() - 8);
        bytes
    })
}
