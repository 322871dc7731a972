//! Laws that hold for every method and every budget.

use super::{by_name, select::Pinned, Budget, MethodOptions, Named, METHODS};
use crate::cache::memory::Memory;
use crate::cache::plan::{HeadPlan, LayerPlan, Row};
use crate::cache::view::{Probe, ProbeKind, Probes};

const N_SINK: usize = 4;
const N_WINDOW: usize = 8;

fn methods() -> Vec<Named> {
    METHODS.iter().map(|m| by_name(m.name, &MethodOptions::default()).unwrap()).collect()
}

/// Caches that are like real ones, and caches that nothing can be learned from.
fn memories() -> Vec<(&'static str, Memory)> {
    let plain = || Memory::random(11, 3, 6, 2, 8, 90, [5, 9, 6]);
    let mut constant = plain();
    constant.keys.iter_mut().flatten().for_each(|k| *k = 0.5);
    let mut unattended = plain();
    // Logits of this head lie far below those of one token that takes all attention.
    unattended.keys[2].iter_mut().skip(8).for_each(|k| *k *= 1e-3);
    unattended.keys[2].iter_mut().take(8).for_each(|k| *k *= 300.0);
    let mut zero = plain();
    zero.probes.queries.iter_mut().flatten().for_each(|q| *q = 0.0);
    let mut huge = plain();
    huge.probes.queries.iter_mut().flatten().for_each(|q| *q *= 1e15);
    let mut not_a_number = plain();
    not_a_number.probes.queries[1].iter_mut().step_by(97).for_each(|q| *q = f32::NAN);
    not_a_number.probes.queries[2][0] = f32::INFINITY;
    let mut equal_values = plain();
    equal_values.values.iter_mut().flatten().for_each(|v| *v = 1.0);
    let mut no_lookahead = Memory::random(12, 3, 6, 2, 8, 90, [5, 9, 0]);
    no_lookahead.probes.lookahead_keys.clear();
    let mut some_layers = plain();
    some_layers.layers = vec![0, 2];
    some_layers.probes.queries[1].clear();
    vec![
        ("plain", plain()),
        ("constant keys", constant),
        ("a head nobody attends to", unattended),
        ("equal scores", zero),
        ("huge logits", huge),
        ("queries that are not numbers", not_a_number),
        ("equal values", equal_values),
        ("no lookahead", no_lookahead),
        ("only samples", Memory::random(13, 3, 6, 2, 8, 90, [0, 9, 0])),
        ("some layers", some_layers),
        ("one token", Memory::random(14, 3, 6, 2, 8, 1, [1, 0, 3])),
        ("two tokens", Memory::random(14, 3, 6, 2, 8, 2, [2, 0, 3])),
    ]
}

fn budget(memory: &Memory, ratio: f64) -> Budget {
    let n_head = memory.layers.len() * memory.n_head_kv;
    let n_entries = ((n_head * memory.n_tokens) as f64 / ratio) as usize;
    Budget { n_entries: n_entries.max(n_head), n_sink: N_SINK, n_window: N_WINDOW }
}

fn plan(method: &Named, memory: &Memory, budget: &Budget) -> Vec<LayerPlan> {
    let view = memory.view();
    let allocation = method.allocate(&view, budget).unwrap();
    let layers: Vec<LayerPlan> = memory.layers.iter().map(|&il| allocation.layer(&view, il).unwrap()).collect();
    for layer in &layers {
        let n: Vec<usize> = layer.heads.iter().map(|head| head.entries.len()).collect();
        assert_eq!(allocation.n_entries(layer.il), n, "{}: entries planned as announced", method.name);
    }
    layers
}

fn tokens(head: &HeadPlan) -> Vec<u32> {
    let token = |row: Row| match row {
        Row::Token(t) => Some(t),
        Row::New(_) => None,
    };
    head.entries.iter().filter_map(|entry| token(entry.key)).collect()
}

#[test]
fn every_plan_is_valid_and_within_its_budget() {
    for (name, memory) in memories() {
        for method in methods() {
            for ratio in [1.0, 1.01, 2.0, 5.0, 32.0, 1e9] {
                let budget = budget(&memory, ratio);
                if method.name == "none" && budget.n_entries < memory.layers.len() * 2 * memory.n_tokens {
                    assert!(method.allocate(&memory.view(), &budget).is_err(), "none cannot compress");
                    continue;
                }
                let context = format!("{name}, {}, ratio {ratio}", method.name);
                let layers = plan(&method, &memory, &budget);
                let heads: Vec<&HeadPlan> = layers.iter().flat_map(|layer| &layer.heads).collect();
                assert!(heads.iter().map(|head| head.entries.len()).sum::<usize>() <= budget.n_entries, "{context}");
                assert_eq!(heads.len(), memory.layers.len() * memory.n_head_kv);
                let mut pinned = Pinned::new(&budget, budget.n_entries * 4 / 5 / heads.len(), memory.n_tokens);
                if budget.n_entries < 4 * heads.len() {
                    pinned = Pinned { n_sink: 0, n_window: 0 };
                }
                for head in heads {
                    head.check(memory.n_tokens, 8, 8).unwrap_or_else(|e| panic!("{context}: {e}"));
                    let tokens = tokens(head);
                    assert!(tokens.is_sorted_by(|a, b| a < b), "{context}: tokens sorted and unique");
                    let n = memory.n_tokens as u32;
                    let promised = (0..pinned.n_sink as u32).chain(n - pinned.n_window as u32..n);
                    assert!(
                        promised.into_iter().all(|t| tokens.binary_search(&t).is_ok()),
                        "{context}: sinks and window"
                    );
                    let n_represented: u32 = head.entries.iter().map(|entry| entry.n_tokens).sum();
                    let merges = head.entries.iter().any(|entry| entry.n_tokens > 1);
                    assert!(n_represented == n || !merges, "{context}: {n_represented} tokens of {n}");
                }
            }
        }
    }
}

#[test]
fn ratio_one_keeps_every_token_exactly() {
    for (name, memory) in memories() {
        for method in methods() {
            for layer in plan(&method, &memory, &budget(&memory, 1.0)) {
                for head in layer.heads {
                    assert_eq!(head, HeadPlan::keep(0..memory.n_tokens as u32), "{name}, {}", method.name);
                }
            }
        }
    }
}

#[test]
fn the_same_input_gives_the_same_plan_whatever_the_number_of_threads() {
    let memory = Memory::random(21, 3, 6, 2, 8, 300, [5, 9, 6]);
    let pool = |n| rayon::ThreadPoolBuilder::new().num_threads(n).build().unwrap();
    for method in methods().into_iter().filter(|m| m.name != "none") {
        for ratio in [2.0, 20.0] {
            let budget = budget(&memory, ratio);
            let run = |n| pool(n).install(|| plan(&method, &memory, &budget));
            let first = run(1);
            assert!(first == run(1) && first == run(4), "{} {ratio}", method.name);
        }
    }
}

#[test]
fn the_order_of_heads_does_not_matter() {
    let memory = Memory::random(22, 3, 6, 3, 8, 200, [5, 9, 6]);
    let mut permuted = memory.clone();
    let (dim, old) = (8, [2usize, 0, 1]);
    for il in 0..3 {
        for (g, &from) in old.iter().enumerate() {
            permuted.keys[il * 3 + g].clone_from(&memory.keys[il * 3 + from]);
            permuted.values[il * 3 + g].clone_from(&memory.values[il * 3 + from]);
        }
        let reorder = |rows: &[f32], n_per_kv: usize| -> Vec<f32> {
            let of_probe = |probe: &[f32]| {
                old.iter().flat_map(|&g| probe[g * n_per_kv * dim..][..n_per_kv * dim].to_vec()).collect::<Vec<_>>()
            };
            rows.chunks(3 * n_per_kv * dim).flat_map(of_probe).collect()
        };
        permuted.probes.queries[il] = reorder(&memory.probes.queries[il], 2);
        permuted.probes.lookahead_keys[il] = reorder(&memory.probes.lookahead_keys[il], 1);
    }
    for method in methods().into_iter().filter(|m| m.name != "none") {
        for ratio in [1.0, 3.0, 20.0] {
            let budget = budget(&memory, ratio);
            let (a, b) = (plan(&method, &memory, &budget), plan(&method, &permuted, &budget));
            for (a, b) in a.iter().zip(&b) {
                assert!((0..3).all(|g| b.heads[g] == a.heads[old[g]]), "{} {ratio}", method.name);
            }
        }
    }
}

#[test]
fn what_cannot_be_done_is_an_error() {
    let memory = Memory::random(23, 2, 4, 2, 8, 50, [4, 4, 4]);
    let too_small = Budget { n_entries: 3, n_sink: 0, n_window: 0 };
    let mut untapped = memory.clone();
    untapped.probes = Probes { list: vec![Probe { kind: ProbeKind::Window, pos: 49 }], ..Probes::default() };
    let mut no_probe = memory.clone();
    no_probe.probes = Probes { queries: vec![Vec::new(); 2], ..Probes::default() };
    for method in methods().into_iter().filter(|m| m.name != "none") {
        assert!(method.allocate(&memory.view(), &too_small).is_err());
        if method.needs().n_window_query > 0 {
            for memory in [&untapped, &no_probe] {
                assert!(method.allocate(&memory.view(), &budget(memory, 4.0)).is_err(), "{}", method.name);
            }
        }
    }
}
