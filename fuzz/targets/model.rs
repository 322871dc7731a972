//! Any bytes as the header of a tiny model whose weights are zeros: from the file to a token, as `gracekv-run` does it.
#![no_main]

use std::path::Path;

use gracekv::cli::{high::HighArgs, parse, setup};
use gracekv::error::Result;
use gracekv_fuzz::{start, Input, N_WEIGHTS};
use libfuzzer_sys::fuzz_target;

thread_local!(static INPUT: Input = Input::default());

fn run(model: &Path) -> Result<()> {
    let args = ["-c", "256", "-t", "1", "--temp", "0", "-m"].map(Into::into).into_iter().chain([model.into()]);
    let args = HighArgs::new(parse::parse(args, &|_| None)?)?;
    let loaded = setup::load(&args, &mut |_| ())?;
    let mut session = setup::session(&args, &loaded)?;
    let mut chain = setup::chain(&args, &loaded, &mut |_| ())?;
    let tokens = loaded.tokenizer.encode("the rain in the harbour", true, true)?;
    let logits = session.prefill(&tokens, |_| Ok(()))?;
    let token = chain.sample(&logits)?;
    session.step(token).map(drop)
}

fuzz_target!(init: start(), |data: &[u8]| {
    INPUT.with(|input| {
        let _ = run(input.write(data, N_WEIGHTS));
    });
});
