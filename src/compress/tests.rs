//! Laws that hold for every method, every modifier and every budget. A new method or modifier is covered by being declared.

mod case;

use self::case::{budget, has_queries, memories, memory, methods, n_head, plan, recorded, tokens, with_two_modifiers};
use super::{by_name, Budget, MethodOptions, Named, METHODS};
use crate::cache::memory::Memory;
use crate::cache::plan::{HeadPlan, LayerPlan};
use crate::cache::view::{Probe, ProbeKind, Probes};
use crate::error::Error;

/// Methods that tell heads apart by their number: the paper's form weighs a head with its output matrix and adds up over heads,
/// so that another order rounds differently.
const BY_NUMBER_OF_HEAD: [&str; 1] = ["gracekv+paper"];

fn check(context: &str, memory: &Memory, budget: &Budget, layers: &[LayerPlan]) {
    let heads: Vec<&HeadPlan> = layers.iter().flat_map(|layer| &layer.heads).collect();
    let n_entries: usize = heads.iter().map(|head| head.entries.len()).sum();
    assert!(n_entries <= budget.n_entries, "{context}: {n_entries} entries of {}", budget.n_entries);
    assert_eq!(heads.len(), n_head(memory), "{context}");
    for head in heads {
        // At least one entry, rows that exist, finite numbers.
        head.check(memory.n_tokens, memory.head_dim_k, memory.head_dim_v).unwrap_or_else(|e| panic!("{context}: {e}"));
        assert!(tokens(head).is_sorted_by(|a, b| a < b), "{context}: tokens ascending, none twice");
        let n_represented: usize = head.entries.iter().map(|entry| entry.n_tokens as usize).sum();
        assert!(n_represented <= memory.n_tokens, "{context}: {n_represented} tokens of {}", memory.n_tokens);
    }
}

#[test]
fn every_plan_is_valid_and_within_its_budget() {
    for (name, memory) in memories() {
        for method in methods().iter().filter(|m| has_queries(&memory, &m.needs())) {
            for ratio in [1.0, 1.01, 2.0, 5.0, 32.0, 1e9] {
                let budget = budget(&memory, ratio);
                let context = format!("{name}, {}, ratio {ratio}", method.name);
                check(&context, &memory, &budget, &plan(method, &memory, &budget));
            }
        }
    }
}

#[test]
fn every_budget_from_one_entry_per_head_to_all_can_be_met() {
    let memory = Memory::random(15, 2, 4, 2, 8, 13, [3, 4, 3]);
    for method in methods() {
        for n_entries in n_head(&memory)..=n_head(&memory) * memory.n_tokens {
            let budget = Budget { n_entries, n_sink: 1, n_window: 2 };
            check(&format!("{}, {n_entries}", method.name), &memory, &budget, &plan(&method, &memory, &budget));
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "hours")]
fn modifiers_that_go_together_make_valid_plans() {
    let memory = memory(90);
    for method in with_two_modifiers() {
        for ratio in [1.0, 4.0, 30.0] {
            let budget = budget(&memory, ratio);
            let context = format!("{}, ratio {ratio}", method.name);
            check(&context, &memory, &budget, &plan(&method, &memory, &budget));
        }
    }
}

#[test]
fn ratio_one_keeps_every_token_exactly() {
    let none = by_name("none", &MethodOptions::default()).unwrap();
    for (name, memory) in memories() {
        for method in methods().iter().chain([&none]) {
            for layer in plan(method, &memory, &budget(&memory, 1.0)) {
                for head in layer.heads {
                    assert_eq!(head, HeadPlan::keep(0..memory.n_tokens as u32), "{name}, {}", method.name);
                }
            }
        }
    }
}

/// Below half of what a head gets on average, the promise is kept to the letter.
#[test]
#[cfg_attr(miri, ignore = "hours")]
fn sinks_and_window_stay_where_they_fit() {
    let memory = memory(300);
    for method in methods() {
        let mut n_checked = 0;
        for ratio in [1.2, 2.0, 4.0, 8.0] {
            let budget = Budget { n_sink: 4, n_window: 16, ..budget(&memory, ratio) };
            let (pinned, n_average) = (method.pinned(&budget), budget.n_entries * 4 / 5 / n_head(&memory));
            if pinned != pinned.within(n_average, memory.n_tokens) || 2 * pinned.len() > n_average {
                continue;
            }
            n_checked += 1;
            for head in plan(&method, &memory, &budget).iter().flat_map(|layer| &layer.heads) {
                let (tokens, n) = (tokens(head), memory.n_tokens as u32);
                let mut promised = (0..pinned.n_sink as u32).chain(n - pinned.n_window as u32..n);
                let kept = promised.all(|t| tokens.binary_search(&t).is_ok());
                assert!(kept, "{}, ratio {ratio}: {pinned:?}", method.name);
            }
        }
        assert!(n_checked > 0, "{} promises more than fits anywhere", method.name);
    }
}

#[test]
#[cfg_attr(miri, ignore = "hours")]
fn the_same_input_gives_the_same_plan_whatever_the_number_of_threads() {
    let memory = memory(300);
    let pool = |n| rayon::ThreadPoolBuilder::new().num_threads(n).build().unwrap();
    for method in methods() {
        for ratio in [2.0, 20.0] {
            let budget = budget(&memory, ratio);
            let run = |n| pool(n).install(|| plan(&method, &memory, &budget));
            let first = run(1);
            assert!(first == run(1) && first == run(4), "{} {ratio}", method.name);
        }
    }
}

/// A modifier that changes no plan of a cache like real ones would be a name for nothing.
#[test]
#[cfg_attr(miri, ignore = "hours")]
fn every_modifier_changes_something() {
    let memory = Memory::random(16, 3, 6, 2, 8, 400, [40, 9, 12]);
    let plans = |name: &str| {
        let method = by_name(name, &MethodOptions::default()).unwrap();
        [3.0, 8.0].map(|ratio| plan(&method, &memory, &budget(&memory, ratio)))
    };
    for entry in METHODS {
        for name in entry.names().into_iter().skip(1) {
            let (without, modifier) = name.rsplit_once('+').unwrap();
            assert!(plans(&name) != plans(without), "{modifier} changes nothing of {without}");
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "hours")]
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
        permuted.probes.sample_queries[il] = reorder(&memory.probes.sample_queries[il], 1);
        let n = memory.n_tokens;
        permuted.attention_mass[il] =
            old.iter().flat_map(|g| &memory.attention_mass[il][g * n..][..n]).copied().collect();
        permuted.probes.lookahead_keys[il] = reorder(&memory.probes.lookahead_keys[il], 1);
    }
    let by_number = |m: &Named| BY_NUMBER_OF_HEAD.iter().any(|name| m.name.starts_with(name));
    for method in methods().into_iter().filter(|m| !by_number(m)) {
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
fn a_budget_that_cannot_be_met_is_an_error() {
    let memory = Memory::random(23, 2, 4, 2, 8, 50, [4, 4, 4]);
    let n_all = n_head(&memory) * memory.n_tokens;
    let refuses = |method: &Named, n_entries: usize| {
        let memory = recorded(&memory, &method.needs());
        let result = method.allocate(&memory.view(), &Budget { n_entries, n_sink: 1, n_window: 1 });
        assert!(matches!(result, Err(Error::Budget { .. })), "{} with {n_entries} entries", method.name);
    };
    for method in methods() {
        (0..n_head(&memory)).for_each(|n_entries| refuses(&method, n_entries));
    }
    let none = by_name("none", &MethodOptions::default()).unwrap();
    [0, 3, 4, n_all / 2, n_all - 1].into_iter().for_each(|n_entries| refuses(&none, n_entries));
}

#[test]
fn attention_mass_that_is_missing_is_an_error() {
    let mut memory = memory(50);
    memory.attention_mass[1].pop();
    for method in methods().into_iter().filter(|m| m.needs().attention_mass) {
        assert!(method.allocate(&memory.view(), &budget(&memory, 4.0)).is_err(), "{}", method.name);
        memory.attention_mass.truncate(1);
    }
}

#[test]
fn queries_that_are_missing_are_an_error() {
    let memory = memory(50);
    let mut untapped = memory.clone();
    untapped.probes = Probes { list: vec![Probe { kind: ProbeKind::Window, pos: 49 }], ..Probes::default() };
    let mut no_probe = memory.clone();
    no_probe.probes = Probes { queries: vec![Vec::new(); 3], sample_queries: vec![Vec::new(); 3], ..Probes::default() };
    for method in methods().into_iter().filter(|m| m.needs().n_window_query > 0) {
        for missing in [&untapped, &no_probe] {
            assert!(method.allocate(&missing.view(), &budget(&memory, 4.0)).is_err(), "{}", method.name);
        }
    }
}
