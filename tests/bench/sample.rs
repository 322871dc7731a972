//! Time of choosing a token from a large vocabulary: `cargo bench --bench sample`.

use criterion::{criterion_group, criterion_main, Criterion};
use gracekv::sample::{Chain, SampleParams};

fn logits(n_vocab: u32) -> Vec<f32> {
    let mut x = 1u32;
    let next = |_| {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (x >> 8) as f32 / 1_048_576.0 - 8.0
    };
    (0..n_vocab).map(next).collect()
}

fn sample(c: &mut Criterion) {
    for n_vocab in [49_152, 151_936, 262_144] {
        let logits = logits(n_vocab);
        let d = || SampleParams { seed: 1, ..SampleParams::default() };
        let cases = [
            ("default", d()),
            ("greedy", SampleParams { temperature: 0.0, ..d() }),
            ("typical, xtc", SampleParams { typ_p: 0.95, xtc_probability: 0.5, ..d() }),
            ("mirostat 2", SampleParams { mirostat: 2, ..d() }),
        ];
        for (name, params) in cases {
            let Ok(mut chain) = Chain::new(&params) else { continue };
            c.bench_function(&format!("{name}/{n_vocab}"), |b| b.iter(|| chain.sample(&logits)));
        }
    }
}

criterion_group!(benches, sample);
criterion_main!(benches);
