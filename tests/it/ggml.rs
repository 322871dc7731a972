//! ggml as it was built: products are right from every kind of memory, tables agree, wrong calls are errors and not aborts.

use gracekv::cache::memory::Random;
use gracekv::cache::rope::{Rope, RopeKind};
use gracekv::error::{Error, Result};
use gracekv::ggml::{
    self, Act, Backend, BufferType, Context, Graph, LayerSpans, Logits, Ragged, RopeParams, Scheduler, SumOrder, Tensor,
};
use gracekv::ggml::{ThreadParams, Type};
use gracekv::gguf::GgmlType;
use gracekv::model::rope_params;

use crate::support::nmse;

/// Runs a graph of one result and reads it.
fn compute(ctx: &Context, out: Tensor, inputs: &[(&Tensor, &[u8])]) -> Vec<f32> {
    let out = out.output();
    let mut graph = Graph::new(ctx, 128).unwrap();
    graph.expand(&out).unwrap();
    let mut sched = Scheduler::new(vec![Backend::cpu(&ThreadParams::new(2), None).unwrap()], 128, true).unwrap();
    sched.allocate(&mut graph).unwrap();
    for (t, bytes) in inputs {
        sched.write(&graph, t, bytes).unwrap();
    }
    sched.compute(&mut graph).unwrap();
    let mut values = vec![0.0; out.n_elements()];
    sched.read(&graph, &out, &mut values).unwrap();
    values
}

fn bytes(x: &[f32]) -> Vec<u8> {
    x.iter().flat_map(|v| v.to_le_bytes()).collect()
}

#[test]
fn the_version_is_the_locked_one() {
    // With GRACEKV_GGML_DIR the user has chosen other sources.
    if ggml::LOCKED_VERSION != "unknown" {
        assert_eq!(ggml::version(), ggml::LOCKED_VERSION);
    }
}

#[test]
fn the_table_of_types_is_that_of_ggml() {
    for ty in GgmlType::all() {
        let theirs = Type::from_id(ty.id()).unwrap_or_else(|| panic!("ggml does not know {ty:?}"));
        assert_eq!(ty.name(), theirs.name());
        assert_eq!(ty.block_size(), theirs.block_size() as u64, "{ty:?}");
        assert_eq!(ty.type_size(), theirs.type_size() as u64, "{ty:?}");
    }
    for id in 0..100 {
        assert_eq!(GgmlType::from_id(id).is_some(), Type::from_id(id).is_some(), "type {id}");
    }
}

/// A product with many rows goes through the AMX tiles or repacked rows where the processor has them. Activations are rounded
/// to 8 bits, hence the bound.
#[test]
fn products_are_right_from_every_kind_of_memory() {
    let (n, m) = (512, 256);
    let mut random = Random(11);
    let weights = random.vector(n * m, 0.05);
    let types =
        [Type::Q4_0, Type::Q4_1, Type::Q5_0, Type::Q5_1, Type::Q8_0, Type::Q4_K, Type::Q6_K, Type::IQ4_NL, Type::F16];
    for ty in types {
        let mut quantised = vec![0u8; ty.row_size(n * m)];
        assert!(ty.from_f32(&weights, n, &mut quantised));
        let mut exact = vec![0.0; n * m];
        assert!(ty.to_f32(&quantised, &mut exact));
        for t in [1, 7, 64] {
            let x = random.vector(n * t, 1.0);
            let dot = |i: usize| {
                let (w, x) = (&exact[i % m * n..][..n], &x[i / m * n..][..n]);
                w.iter().zip(x).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() as f32
            };
            let want: Vec<f32> = (0..m * t).map(dot).collect();
            for buft in [BufferType::cpu()].into_iter().chain(BufferType::cpu_extra()) {
                if buft != BufferType::cpu() && !buft.supports_mul_mat(ty, &[n, m]) {
                    continue;
                }
                let memory = Context::new(2, 0).unwrap();
                let w = memory.tensor(ty, &[n, m]).unwrap();
                memory.allocate(buft).unwrap();
                memory.set_weights();
                w.write(0, &quantised).unwrap();
                let ctx = Context::new(32, 128).unwrap();
                let input = ctx.input(Type::F32, &[n, t]).unwrap();
                let product = ctx.mul_mat(&w, &input).unwrap();
                let error = nmse(&want, &compute(&ctx, product, &[(&input, &bytes(&x))]));
                eprintln!("{ty} x {t} from {}: NMSE {error:.1e}", buft.name());
                assert!(error < 2e-4, "{ty} x {t} from {}: NMSE {error:e}", buft.name());
            }
        }
    }
}

/// Rows and tokens that fill no tile, few tokens, tokens that two weights share, and weights that are not centred, so that minima
/// count; in the order of ggml's products with plain weights and, where the processor has AMX, of those with arranged ones.
#[test]
fn products_of_our_own_are_those_of_ggml_to_the_last_bit() {
    let mut random = Random(12);
    let amx = BufferType::cpu_extra().into_iter().find(|buft| buft.name().contains("AMX"));
    for ty in [Type::Q4_0, Type::Q4_1, Type::Q5_0, Type::Q5_1, Type::Q8_0] {
        let sizes = [(512, 40, 16), (256, 16, 17), (1536, 3, 31), (2048, 1000, 19), (640, 96, 50)];
        let few = [(32, 1, 1), (576, 300, 1), (4864, 32, 1), (640, 7, 2), (96, 50, 3), (512, 64, 4), (224, 160, 15)];
        for (k, m, n) in sizes.into_iter().chain(few) {
            let mut quantised = vec![0u8; ty.row_size(k * m)];
            let weights: Vec<f32> = random.vector(k * m, 0.05).iter().map(|w| w + 0.03).collect();
            assert!(ty.from_f32(&weights, k, &mut quantised));
            let weight = |buft: BufferType| {
                let memory = Context::new(2, 0).unwrap();
                let w = memory.tensor(ty, &[k, m]).unwrap();
                memory.allocate(buft).unwrap();
                memory.set_weights();
                w.write(0, &quantised).unwrap();
                w
            };
            let x: Vec<f32> = random.vector(k * n, 1.0).iter().map(|x| x + 0.2).collect();
            let product = |w: &Tensor, order: Option<SumOrder>| {
                let ctx = Context::new(32, 128).unwrap();
                let input = ctx.input(Type::F32, &[k, n]).unwrap();
                let mut tokens = None;
                let mut product = || match order {
                    Some(order) => ctx.quantized_mul_mat(w, &input, order, &mut tokens).unwrap(),
                    None => Some(ctx.mul_mat(w, &input).unwrap()),
                };
                let (first, second) = (product()?, product()?);
                let sum = ctx.add(&first, &second).unwrap();
                Some(compute(&ctx, sum, &[(&input, &bytes(&x))]))
            };
            let plain = weight(BufferType::cpu());
            let arranged = amx.filter(|buft| buft.supports_mul_mat(ty, &[k, m])).map(weight);
            for (order, theirs) in [(SumOrder::Lanes, Some(&plain)), (SumOrder::Blocks, arranged.as_ref())] {
                // None on a processor without the instructions, and for an order that is not needed.
                let (Some(found), Some(theirs)) = (product(&plain, Some(order)), theirs) else { continue };
                let want = product(theirs, None).unwrap();
                let n_wrong = found.iter().zip(&want).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
                assert_eq!(n_wrong, 0, "{ty} {k} x {m} x {n}, {order:?}: NMSE {:e}", nmse(&want, &found));
            }
        }
    }
}

#[test]
fn rotation_on_the_host_is_that_of_ggml() {
    let (dim, n_head, n_tokens) = (64, 2, 5);
    let mut random = Random(3);
    let x = random.vector(dim * n_head * n_tokens, 1.0);
    let pos = [0i32, 1, 77, 1000, 4095];
    let plain = |kind, n_rot| Rope::new(kind, n_rot, 10_000.0);
    let mut scaled = plain(RopeKind::Normal, 64);
    scaled.freq_scale = 0.25;
    let mut factors = plain(RopeKind::Neox, 64);
    factors.freq_factors = (0..32).map(|i| 1.0 + i as f32 / 4.0).collect();
    let mut yarn = plain(RopeKind::Neox, 64);
    (yarn.freq_scale, yarn.ext_factor, yarn.n_ctx_orig) = (0.25, 1.0, 1024);
    let mut yarn_partial = Rope { n_rot: 32, kind: RopeKind::Normal, attn_factor: 1.2, ..yarn.clone() };
    yarn_partial.freq_factors = (0..16).map(|i| 1.0 + i as f32 / 9.0).collect();
    let ropes =
        [plain(RopeKind::Normal, 64), plain(RopeKind::Neox, 64), plain(RopeKind::Neox, 32), scaled, factors, yarn];
    for rope in ropes.into_iter().chain([plain(RopeKind::Normal, 48), yarn_partial]) {
        let ctx = Context::new(32, 128).unwrap();
        let a = ctx.input(Type::F32, &[dim, n_head, n_tokens]).unwrap();
        let p = ctx.input(Type::I32, &[n_tokens]).unwrap();
        let f = ctx.input(Type::F32, &[rope.n_rot / 2]).unwrap();
        let has_factors = !rope.freq_factors.is_empty();
        let out = ctx.rope(&a, &p, has_factors.then_some(&f), &rope_params(&rope)).unwrap();
        let (x_bytes, factor_bytes) = (bytes(&x), bytes(&rope.freq_factors));
        let pos_bytes: Vec<u8> = pos.iter().flat_map(|p| p.to_le_bytes()).collect();
        let mut inputs: Vec<(&Tensor, &[u8])> = vec![(&a, &x_bytes), (&p, &pos_bytes)];
        if has_factors {
            inputs.push((&f, &factor_bytes));
        }
        let want = compute(&ctx, out, &inputs);
        let mut found = x.clone();
        for (i, head) in found.chunks_exact_mut(dim).enumerate() {
            rope.rotate(head, pos[i / n_head] as f32);
        }
        // Angles grow to thousands of radians, of which f32 keeps four decimals.
        let error = nmse(&want, &found);
        assert!(error < 1e-6, "{rope:?}: NMSE {error:e}");
    }
}

/// ggml aborts the process on each of these.
#[test]
fn wrong_calls_are_errors() {
    let ctx = Context::new(256, 0).unwrap();
    let t = |ty, ne: &[usize]| ctx.tensor(ty, ne).unwrap();
    let f = |ne: &[usize]| t(Type::F32, ne);
    let turned = ctx.permute(&f(&[8, 4, 2]), [1, 0, 2, 3]).unwrap();
    let rope = RopeParams {
        neox: true,
        n_rot: 8,
        n_ctx_orig: 0,
        freq_base: 1e4,
        freq_scale: 1.0,
        ext_factor: 0.0,
        attn_factor: 1.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
    };
    let odd = RopeParams { n_rot: 7, ..rope.clone() };
    let long = RopeParams { n_rot: 10, ..rope.clone() };
    let spans = LayerSpans::new();
    let attn = |q: &Tensor, k: &Tensor, v: &Tensor, n_head_kv| {
        ctx.ragged_attn(
            q,
            k,
            v,
            &Ragged { n_head_kv, n_entries: 16, scale: 1.0, softcap: 0.0, spans: &spans, sinks: None },
        )
    };
    let ids = |n: usize| t(Type::I32, &[n]);
    let two = |n: usize, m: usize| t(Type::I32, &[n, m]);
    let logits = Logits::default();
    let (sink, mask) = (f(&[1]), t(Type::F16, &[4, 1]));
    let sunk = Logits { sinks: Some(&sink), ..logits };
    let calls: Vec<(&str, Result<Tensor>)> = vec![
        ("no dimension", ctx.tensor(Type::F32, &[])),
        ("five dimensions", ctx.tensor(Type::F32, &[1; 5])),
        ("an empty dimension", ctx.tensor(Type::F32, &[4, 0])),
        ("half a block", ctx.tensor(Type::Q4_0, &[16, 2])),
        ("too large", ctx.tensor(Type::F32, &[usize::MAX / 2, 2])),
        ("add, other shape", ctx.add(&f(&[8, 2]), &f(&[8, 3]))),
        ("add, f16", ctx.add(&f(&[8]), &t(Type::F16, &[8]))),
        ("add, turned", ctx.add(&turned, &turned)),
        ("mul, not repeatable", ctx.mul(&f(&[8]), &f(&[3]))),
        ("tanh of i32", ctx.tanh(&ids(4))),
        ("tanh, turned", ctx.tanh(&turned)),
        ("scale of i32", ctx.scale(&ids(4), 2.0)),
        ("scale, turned", ctx.scale(&turned, 2.0)),
        ("activation, turned", ctx.act(&turned, Act::Silu)),
        ("glu, other shape", ctx.glu(&f(&[8, 2]), &f(&[8, 3]), Act::Silu)),
        ("rms_norm, turned", ctx.rms_norm(&turned, 1e-6)),
        ("rms_norm, negative epsilon", ctx.rms_norm(&f(&[8]), -1.0)),
        ("norm of f16", ctx.norm(&t(Type::F16, &[8]), 1e-6)),
        ("mul_mat, other rows", ctx.mul_mat(&f(&[8, 2]), &f(&[9, 2]))),
        ("mul_mat, f16 operand", ctx.mul_mat(&f(&[8, 2]), &t(Type::F16, &[8, 2]))),
        ("mul_mat, turned", ctx.mul_mat(&turned, &f(&[4, 3, 2]))),
        ("mul_mat of i32", ctx.mul_mat(&t(Type::I32, &[8, 2]), &f(&[8, 2]))),
        ("mul_mat, other heads", ctx.mul_mat(&f(&[8, 2, 2]), &f(&[8, 2, 3]))),
        ("get_rows, f32 ids", ctx.get_rows(&f(&[8, 2]), &f(&[2]))),
        ("get_rows, three dimensions", ctx.get_rows(&f(&[8, 2, 2]), &ids(2))),
        ("get_rows, turned", ctx.get_rows(&ctx.permute(&f(&[8, 2]), [1, 0, 2, 3]).unwrap(), &ids(2))),
        ("set_rows, i32 ids", ctx.set_rows(&f(&[8, 4]), &f(&[8, 2]), &ids(2))),
        ("set_rows, other rows", ctx.set_rows(&f(&[8, 4]), &f(&[9, 2]), &t(Type::I64, &[2]))),
        ("set_rows, too few ids", ctx.set_rows(&f(&[8, 4]), &f(&[8, 2]), &t(Type::I64, &[1]))),
        ("reshape, other size", ctx.reshape(&f(&[8, 4]), &[8, 5])),
        ("reshape, one dimension", ctx.reshape(&f(&[8, 4]), &[32])),
        ("reshape, turned", ctx.reshape(&turned, &[8, 8])),
        ("view beyond the end", ctx.view(&f(&[8, 4]), [8, 4, 1, 1], [32; 3], 4)),
        ("view, huge offset", ctx.view(&f(&[8, 4]), [8, 1, 1, 1], [32; 3], usize::MAX)),
        ("view, huge stride", ctx.view(&f(&[8, 4]), [8, 3, 1, 1], [usize::MAX; 3], 0)),
        ("permute, no permutation", ctx.permute(&f(&[8]), [0, 1, 1, 3])),
        ("cont, turned blocks", ctx.cont(&ctx.permute(&t(Type::Q4_0, &[64, 32]), [1, 0, 2, 3]).unwrap())),
        ("cast, half a block", ctx.cast(&f(&[16]), Type::Q4_0)),
        ("cast between quantised types", ctx.cast(&t(Type::Q4_0, &[32]), Type::Q8_0)),
        ("concat, other rows", ctx.concat(&f(&[8, 2]), &f(&[9, 2]), 1)),
        ("concat, no such dimension", ctx.concat(&f(&[8]), &f(&[8]), 4)),
        ("concat, other types", ctx.concat(&f(&[8]), &t(Type::F16, &[8]), 0)),
        ("rope, odd", ctx.rope(&f(&[8, 1, 2]), &ids(2), None, &odd)),
        ("rope, too long", ctx.rope(&f(&[8, 1, 2]), &ids(2), None, &long)),
        ("rope, too few positions", ctx.rope(&f(&[8, 1, 2]), &ids(1), None, &rope)),
        ("rope, too few factors", ctx.rope(&f(&[8, 1, 2]), &ids(2), Some(&f(&[3])), &rope)),
        ("soft_max, short mask", ctx.soft_max(&f(&[8, 4]), &f(&[8, 3]), logits)),
        ("soft_max, i32 mask", ctx.soft_max(&f(&[8, 4]), &t(Type::I32, &[8, 4]), logits)),
        (
            "flash_attn, other head size",
            ctx.flash_attn(&f(&[8, 1, 2]), &f(&[9, 4, 2]), &f(&[8, 4, 2]), &t(Type::F16, &[4, 1]), logits),
        ),
        ("flash_attn, f32 mask", ctx.flash_attn(&f(&[8, 1, 2]), &f(&[8, 4, 2]), &f(&[8, 4, 2]), &f(&[4, 1]), logits)),
        ("flash_attn, a sink too few", ctx.flash_attn(&f(&[8, 1, 2]), &f(&[8, 4, 2]), &f(&[8, 4, 2]), &mask, sunk)),
        ("soft_max, a sink too few", ctx.soft_max(&f(&[4, 1, 2]), &mask, sunk)),
        ("halves, odd", ctx.glu_halves(&f(&[7, 2]), Act::Silu)),
        ("halves, no such form", ctx.glu_halves(&f(&[8, 2]), Act::Relu)),
        ("gate, no such form", ctx.glu(&f(&[8, 2]), &f(&[8, 2]), Act::ReluSqr)),
        ("activation, gate only", ctx.act(&f(&[8, 2]), Act::SwigluOai)),
        ("top_k, more than a row", ctx.top_k(&f(&[4, 2]), 5)),
        ("top_k, none", ctx.top_k(&f(&[4, 2]), 0)),
        ("gather, other lists", ctx.gather(&f(&[1, 4, 2]), &two(2, 3))),
        ("scatter, other rows", ctx.scatter(&f(&[4, 4, 2]), &f(&[3, 2, 2]), &two(2, 2))),
        ("mul_mat_id, other rows", ctx.mul_mat_id(&f(&[8, 4, 3]), &f(&[7, 1, 2]), &two(2, 2))),
        ("mul_mat_id, other lists", ctx.mul_mat_id(&f(&[8, 4, 3]), &f(&[8, 1, 2]), &two(2, 3))),
        ("add_id, other rows", ctx.add_id(&f(&[8, 2, 2]), &f(&[7, 3]), &two(2, 2))),
        ("repeat, no multiple", ctx.repeat(&f(&[8, 2]), [8, 3, 1, 1])),
        ("clamp, bounds that cross", ctx.clamp(&f(&[8]), 1.0, 0.0)),
        ("ragged_attn, other head size", attn(&f(&[8, 2, 1]), &f(&[9, 4]), &f(&[8, 4]), 1)),
        ("ragged_attn, no heads", attn(&f(&[8, 2, 1]), &f(&[8, 4]), &f(&[8, 4]), 0)),
        ("ragged_attn, heads that do not divide", attn(&f(&[8, 3, 1]), &f(&[8, 4]), &f(&[8, 4]), 2)),
        ("ragged_attn, other rows", attn(&f(&[8, 2, 1]), &f(&[8, 4]), &f(&[8, 5]), 1)),
    ];
    for (what, result) in calls {
        match result {
            Err(Error::Shape { .. }) => {}
            Err(e) => panic!("{what}: {e}"),
            Ok(_) => panic!("{what} was accepted"),
        }
    }
}

#[test]
fn memory_is_checked_before_it_is_touched() {
    let ctx = Context::new(4, 128).unwrap();
    let t = ctx.tensor(Type::F32, &[4]).unwrap();
    assert!(matches!(t.read(0, &mut [0; 4]), Err(Error::Ggml { .. })), "no memory yet");
    ctx.allocate(BufferType::cpu()).unwrap();
    t.write(0, &[0; 16]).unwrap();
    assert!(matches!(t.write(4, &[0; 16]), Err(Error::Shape { .. })));
    assert!(matches!(t.write(usize::MAX, &[0; 16]), Err(Error::Shape { .. })));
    assert!(ctx.place(&t, 0, 1 << 40).is_err());
    let full = Context::new(2, 0).unwrap();
    full.tensor(Type::F32, &[1]).unwrap();
    assert!(full.tensor(Type::F32, &[1]).unwrap_err().to_string().contains("full"));
    let mut sched = Scheduler::new(vec![Backend::cpu(&ThreadParams::new(1), None).unwrap()], 128, true).unwrap();
    let mut graph = Graph::new(&ctx, 128).unwrap();
    assert!(sched.compute(&mut graph).is_err(), "not allocated");
    assert!(Scheduler::new(Vec::new(), 8, true).is_err());
}
