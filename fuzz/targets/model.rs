//! Any bytes as the header of a tiny model whose weights are zeros: from the file to a token, as `gracekv-run` does it.
#![no_main]

use gracekv_fuzz::shared::run;
use gracekv_fuzz::{start, Input, N_WEIGHTS};
use libfuzzer_sys::fuzz_target;

thread_local!(static INPUT: Input = Input::default());

fuzz_target!(init: start(), |data: &[u8]| {
    INPUT.with(|input| {
        let _ = run(input.write(data, N_WEIGHTS), &[]);
    });
});
