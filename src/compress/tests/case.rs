//! What the laws of the methods run over: every name of the registry, and caches as prefill would have recorded them for a method.

use crate::cache::memory::Memory;
use crate::cache::plan::{HeadPlan, LayerPlan, Row};
use crate::cache::view::ProbeKind;
use crate::compress::{by_name, Budget, MethodOptions, Named, Needs, METHODS};

/// Every method that can make a cache smaller, plain and with each of its modifiers; interpreted, which takes a thousand times as
/// long, only plain.
pub fn methods() -> Vec<Named> {
    let names =
        METHODS.iter().flat_map(|entry| entry.names().into_iter().take(if cfg!(miri) { 1 } else { usize::MAX }));
    names.filter(|name| name != "none").map(|name| by_name(&name, &MethodOptions::default()).unwrap()).collect()
}

/// Every method with any two modifiers that go together.
pub fn with_two_modifiers() -> Vec<Named> {
    let pairs = METHODS.iter().flat_map(|entry| {
        let names = entry.names().into_iter().skip(1);
        names.flat_map(|name| entry.modifiers.iter().map(move |m| format!("{name}+{}", m.name)))
    });
    let mut found: Vec<Named> = pairs.filter_map(|name| by_name(&name, &MethodOptions::default()).ok()).collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found.dedup_by(|a, b| a.name == b.name);
    found
}

/// A cache like real ones, with something in it for every need.
pub fn memory(n_tokens: usize) -> Memory {
    Memory::random(11, 3, 6, 2, 8, n_tokens, [5, 9, 6])
}

/// Caches that are like real ones, and caches that nothing can be learned from; interpreted, three of them.
pub fn memories() -> Vec<(&'static str, Memory)> {
    let plain = || memory(90);
    let mut constant = plain();
    constant.keys.iter_mut().flatten().for_each(|k| *k = 0.5);
    let mut unattended = plain();
    // Logits of this head lie far below those of one token that takes all attention.
    unattended.keys[2].iter_mut().skip(8).for_each(|k| *k *= 1e-3);
    unattended.keys[2].iter_mut().take(8).for_each(|k| *k *= 300.0);
    let mut zero = plain();
    queries(&mut zero).for_each(|q| *q = 0.0);
    let mut huge = plain();
    queries(&mut huge).for_each(|q| *q *= 1e15);
    let mut not_a_number = plain();
    not_a_number.probes.queries[1].iter_mut().step_by(97).for_each(|q| *q = f32::NAN);
    not_a_number.probes.queries[2][0] = f32::INFINITY;
    not_a_number.probes.sample_queries[1][3] = f32::NAN;
    let mut equal_values = plain();
    equal_values.values.iter_mut().flatten().for_each(|v| *v = 1.0);
    let mut empty = plain();
    empty.keys.iter_mut().chain(&mut empty.values).flatten().for_each(|x| *x = 0.0);
    empty.hidden.layers.iter_mut().flatten().for_each(|x| *x = 0.0);
    let mut no_lookahead = Memory::random(12, 3, 6, 2, 8, 90, [5, 9, 0]);
    no_lookahead.probes.lookahead_keys.clear();
    let mut some_layers = plain();
    some_layers.layers = vec![0, 2];
    some_layers.probes.queries[1].clear();
    let mut capped = plain();
    capped.logit_softcap = 5.0;
    let all = vec![
        ("plain", plain()),
        ("constant keys", constant),
        ("a head nobody attends to", unattended),
        ("equal scores", zero),
        ("huge logits", huge),
        ("queries that are not numbers", not_a_number),
        ("equal values", equal_values),
        ("nothing but zeros", empty),
        ("no lookahead", no_lookahead),
        ("only samples", Memory::random(13, 3, 6, 2, 8, 90, [0, 9, 0])),
        ("some layers", some_layers),
        ("capped logits", capped),
        ("one token", Memory::random(14, 3, 6, 2, 8, 1, [1, 0, 3])),
        ("two tokens", Memory::random(14, 3, 6, 2, 8, 2, [2, 0, 3])),
    ];
    all.into_iter().step_by(if cfg!(miri) { 5 } else { 1 }).collect()
}

/// All numbers of all queries.
fn queries(memory: &mut Memory) -> impl Iterator<Item = &mut f32> {
    let probes = &mut memory.probes;
    probes.queries.iter_mut().chain(&mut probes.sample_queries).flatten()
}

/// `memory` with what prefill and lookahead record for a method with these needs, and no more.
pub fn recorded(memory: &Memory, needs: &Needs) -> Memory {
    let mut out = memory.clone();
    let wanted = |kind: ProbeKind| match kind {
        ProbeKind::Window => needs.n_window_query,
        ProbeKind::Lookahead => {
            if needs.lookahead {
                usize::MAX
            } else {
                0
            }
        }
    };
    let list = &memory.probes.list;
    let n_after = |i: usize| list[i + 1..].iter().filter(|probe| probe.kind == list[i].kind).count();
    let keep: Vec<bool> = (0..list.len()).map(|i| n_after(i) < wanted(list[i].kind)).collect();
    out.probes.list = list.iter().zip(&keep).filter(|(_, &keep)| keep).map(|(&probe, _)| probe).collect();
    for queries in &mut out.probes.queries {
        let per_probe = queries.chunks(memory.head_dim_k * memory.n_head).zip(&keep);
        *queries = per_probe.filter(|(_, &keep)| keep).flat_map(|(q, _)| q.to_vec()).collect();
    }
    if needs.n_sample_query == 0 {
        out.probes.samples.clear();
        out.probes.sample_queries.clear();
    }
    if !needs.lookahead {
        out.probes.lookahead_keys.clear();
    }
    if !needs.hidden {
        out.hidden = Default::default();
    }
    if !needs.attention_mass {
        out.attention_mass.clear();
    }
    out
}

/// Whether a method with these needs finds queries, if it wants any.
pub fn has_queries(memory: &Memory, needs: &Needs) -> bool {
    let probes = recorded(memory, needs).probes;
    needs.n_window_query + needs.n_sample_query == 0 || !probes.list.is_empty() || !probes.samples.is_empty()
}

pub fn n_head(memory: &Memory) -> usize {
    memory.layers.len() * memory.n_head_kv
}

/// The budget of a ratio, at least one entry per head.
pub fn budget(memory: &Memory, ratio: f64) -> Budget {
    let n_entries = ((n_head(memory) * memory.n_tokens) as f64 / ratio) as usize;
    Budget { n_entries: n_entries.max(n_head(memory)), n_sink: 4, n_window: 8 }
}

/// The plan of every layer of a cache that was recorded for this method; entries must be as announced.
pub fn plan(method: &Named, memory: &Memory, budget: &Budget) -> Vec<LayerPlan> {
    let memory = recorded(memory, &method.needs());
    let view = memory.view();
    let allocation = method.allocate(&view, budget).unwrap_or_else(|e| panic!("{}: {e}", method.name));
    let layers: Vec<LayerPlan> = memory.layers.iter().map(|&il| allocation.layer(&view, il).unwrap()).collect();
    for layer in &layers {
        let n: Vec<usize> = layer.heads.iter().map(|head| head.entries.len()).collect();
        assert_eq!(allocation.n_entries(layer.il), n, "{}: entries planned as announced", method.name);
    }
    layers
}

/// The tokens whose keys a head keeps, in the order of its entries.
pub fn tokens(head: &HeadPlan) -> Vec<u32> {
    let token = |row: Row| match row {
        Row::Token(t) => Some(t),
        Row::New(_) => None,
    };
    head.entries.iter().filter_map(|entry| token(entry.key)).collect()
}
