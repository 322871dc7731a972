//! Any bytes as a GGUF file: the reader, the numbers of the architecture, and the rule that all tensors lie in the file.
#![no_main]

use gracekv::gguf::Gguf;
use gracekv::model::{architecture, Reader, RopeOptions};
use gracekv_fuzz::{start, Input};
use libfuzzer_sys::fuzz_target;

thread_local!(static INPUT: Input = Input::default());

fuzz_target!(init: start(), |data: &[u8]| {
    INPUT.with(|input| {
        let Ok(gguf) = Gguf::open(input.write(data, 0)) else { return };
        for t in gguf.tensors() {
            assert!(t.offset.checked_add(t.n_bytes).is_some_and(|end| end <= data.len() as u64), "{}", t.name);
            assert!(t.ne.iter().all(|&n| n > 0) && gguf.tensor(&t.name).is_some());
        }
        let hparams = |arch: &'static dyn gracekv::model::Architecture| arch.hparams(&Reader::new(&gguf, RopeOptions::default()));
        let _ = architecture(&gguf).and_then(hparams);
    });
});
