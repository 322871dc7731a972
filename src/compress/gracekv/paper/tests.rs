//! Laws of the whole pass on a small cache.

use super::fixture::{Fixture, D_K, D_V, N_HEAD_KV};
use super::*;
use crate::cache::plan::{LayerPlan, Row};
use crate::compress::{by_name, MethodOptions};

fn plans(fixture: &Fixture, options: &Options, n_entries: usize) -> Vec<LayerPlan> {
    let view = fixture.view();
    let budget = Budget { n_entries, n_sink: 2, n_window: 6 };
    let allocation = Paper { options: options.clone() }.allocate(&view, &budget).unwrap();
    let plans: Vec<LayerPlan> = view.layers.iter().map(|&il| allocation.layer(&view, il).unwrap()).collect();
    for plan in &plans {
        let n: Vec<usize> = plan.heads.iter().map(|h| h.entries.len()).collect();
        assert_eq!(n, allocation.n_entries(plan.il));
        plan.heads.iter().for_each(|h| h.check(fixture.n_tokens, D_K, D_V).unwrap());
    }
    plans
}

fn n_entries(plans: &[LayerPlan]) -> usize {
    plans.iter().flat_map(|p| &p.heads).map(|h| h.entries.len()).sum()
}

fn ablations() -> Vec<Options> {
    let base = Options { slot_min: 4, slot_max: 24, slot_target: 12, ..Options::default() };
    vec![
        base.clone(),
        Options { floor_share: 0.0, ..base.clone() },
        Options { floor_share: 1.0, ..base.clone() },
        Options { multi_hop: false, ..base.clone() },
        Options { multiplicity: false, ..base.clone() },
        Options { fixed_slots: true, ..base.clone() },
        Options { scope: Scope::Layer, ..base.clone() },
        Options { scope: Scope::Head, ..base },
    ]
}

const N: usize = 130;
const N_HEADS: usize = 2 * N_HEAD_KV;

#[test]
fn the_budget_is_spent_exactly_and_every_head_keeps_something() {
    let fixture = Fixture::new(N);
    for options in ablations() {
        for budget in [N_HEADS, N_HEADS + 1, 17, 40, 65, 130, 260, 400, N_HEADS * N - 1] {
            let plans = plans(&fixture, &options, budget);
            assert_eq!(n_entries(&plans), budget, "{options:?}");
            assert!(plans.iter().flat_map(|p| &p.heads).all(|h| !h.entries.is_empty()));
        }
    }
}

#[test]
fn a_head_keeps_sinks_and_window_and_no_token_twice() {
    let fixture = Fixture::new(N);
    for options in ablations() {
        for head in plans(&fixture, &options, 100).iter().flat_map(|p| &p.heads) {
            let exact = head.entries.iter().filter_map(|e| match e.key {
                Row::Token(t) => Some((e, t)),
                Row::New(_) => None,
            });
            let tokens: Vec<u32> = exact.clone().map(|(_, t)| t).collect();
            assert!(exact.clone().all(|(e, t)| e.value == Row::Token(t) && e.bias == 0.0 && e.n_tokens == 1));
            assert!(tokens.windows(2).all(|w| w[0] < w[1]), "ascending, none twice");
            assert!([0, 1].into_iter().chain(N as u32 - 6..N as u32).all(|t| tokens.contains(&t)));
            assert!(head.entries.iter().map(|e| e.n_tokens as usize).sum::<usize>() <= N);
            let prototypes = head.entries.iter().filter(|e| matches!(e.key, Row::New(_)));
            assert!(prototypes
                .clone()
                .all(|e| e.key == e.value && e.n_tokens > 1 && e.bias <= (e.n_tokens as f32).ln()));
            assert!(options.multiplicity || prototypes.clone().all(|e| e.bias == 0.0));
        }
    }
}

#[test]
fn a_queue_per_layer_or_head_gives_each_the_same() {
    let fixture = Fixture::new(N);
    let per_head = |scope, budget| -> Vec<usize> {
        let plans = plans(&fixture, &Options { scope, ..Options::default() }, budget);
        plans.iter().flat_map(|p| &p.heads).map(|h| h.entries.len()).collect()
    };
    assert_eq!(per_head(Scope::Head, 102), [26, 26, 25, 25]);
    let layers = per_head(Scope::Layer, 101);
    assert_eq!((layers[0] + layers[1], layers[2] + layers[3]), (51, 50));
}

/// What the modifiers of the paper's form leave out is not done, and the report shows it.
#[test]
fn what_a_modifier_takes_away_is_gone() {
    let fixture = Fixture::new(N);
    let run = |name: &str| {
        let budget = Budget { n_entries: 100, n_sink: 2, n_window: 6 };
        let allocation = by_name(name, &MethodOptions::default()).unwrap().allocate(&fixture.view(), &budget).unwrap();
        let plans = [0, 2].map(|il| allocation.layer(&fixture.view(), il).unwrap());
        let count = move |counter: &str| allocation.counters().iter().find(|c| c.0 == counter).unwrap().1;
        (count("slots"), count("hops"), count("floor_tokens"), plans)
    };
    let n_biased = |plans: &[LayerPlan]| {
        plans.iter().flat_map(|p| &p.heads).flat_map(|h| &h.entries).filter(|e| e.bias != 0.0).count()
    };
    let plain = run("gracekv+paper");
    // 100 entries less 8 sinks and window tokens in each of 4 heads; three fifths of them.
    assert_eq!((plain.1, plain.2), (2, 40));
    assert!(n_biased(&plain.3) > 0);
    let no_hops = run("gracekv+paper+no_hops");
    assert_eq!((no_hops.0, no_hops.1, no_hops.2), (plain.0, 0, plain.2));
    let no_floor = run("gracekv+paper+no_floor");
    assert_eq!((no_floor.0, no_floor.1, no_floor.2), (plain.0, plain.1, 0));
    let fixed_slots = run("gracekv+paper+fixed_slots");
    assert_eq!((fixed_slots.0, fixed_slots.1, fixed_slots.2), (N.div_ceil(64) as u64, plain.1, plain.2));
    let no_ln_m = run("gracekv+paper+no_ln_m");
    assert_eq!((no_ln_m.0, no_ln_m.1, no_ln_m.2, n_biased(&no_ln_m.3)), (plain.0, plain.1, plain.2, 0));
    assert!(no_ln_m.3.iter().flat_map(|p| &p.heads).any(|h| !h.new_keys.is_empty()), "prototypes without bias");
    for (name, sizes) in [("head_queue", vec![25; 4]), ("layer_queue", vec![50, 50])] {
        let plans = run(&format!("gracekv+paper+{name}")).3;
        let heads: Vec<usize> = plans.iter().flat_map(|p| &p.heads).map(|h| h.entries.len()).collect();
        let found: Vec<usize> = heads.chunks(4 / sizes.len()).map(|part| part.iter().sum()).collect();
        assert_eq!(found, sizes, "{name}");
    }
}

#[test]
fn ratio_one_keeps_every_token() {
    let fixture = Fixture::new(30);
    for plan in plans(&fixture, &Options::default(), N_HEADS * 30) {
        plan.heads.iter().for_each(|h| assert_eq!(*h, crate::cache::plan::HeadPlan::keep(0..30)));
    }
}

#[test]
fn plans_are_bit_identical_for_any_number_of_threads() {
    let fixture = Fixture::new(300);
    let run = |n| {
        rayon::ThreadPoolBuilder::new()
            .num_threads(n)
            .build()
            .unwrap()
            .install(|| plans(&fixture, &Options::default(), 150))
    };
    let want = run(1);
    assert_eq!(want, run(1));
    assert_eq!(want, run(4));
    let with_prototypes = |p: &LayerPlan| p.heads.iter().any(|h| !h.new_keys.is_empty());
    assert!(want.iter().any(with_prototypes), "the pass must have had something to decide");
}

#[test]
fn degenerate_caches_are_divided_without_complaint() {
    let mut constant = Fixture::new(200);
    constant.keys.iter_mut().chain(&mut constant.values).for_each(|x| x.fill(0.5));
    constant.hidden.layers.iter_mut().for_each(|x| x.fill(1.0));
    let mut silent = Fixture::new(200);
    silent.probes.queries.iter_mut().for_each(|q| q.fill(0.0));
    silent.values.iter_mut().for_each(|v| v.fill(0.0));
    let mut bare = Fixture::new(200);
    bare.hidden = Default::default();
    let mut huge = Fixture::new(200);
    huge.keys.iter_mut().for_each(|k| k.iter_mut().for_each(|x| *x *= 1e4));
    for fixture in [constant, silent, bare, huge] {
        for budget in [N_HEADS, 50, 300] {
            assert_eq!(n_entries(&plans(&fixture, &Options::default(), budget)), budget);
        }
    }
    for n in [1, 2, 3, 17] {
        for budget in N_HEADS..=N_HEADS * n {
            assert_eq!(n_entries(&plans(&Fixture::new(n), &Options::default(), budget)), budget);
        }
    }
}

#[test]
fn a_needle_read_by_one_head_is_kept_exactly() {
    let mut fixture = Fixture::new(N);
    let n_probe = fixture.probes.list.len();
    let query = fixture.probes.queries[2][((n_probe - 1) * 4 + 3) * D_K..][..D_K].to_vec();
    fixture.keys[2 * N_HEAD_KV + 1][77 * D_K..78 * D_K].copy_from_slice(&query);
    let head = &plans(&fixture, &Options::default(), 60)[1].heads[1];
    assert!(head.entries.iter().any(|e| e.key == Row::Token(77)));
}

#[test]
fn impossible_requests_are_errors() {
    let fixture = Fixture::new(40);
    let budget = |n_entries| Budget { n_entries, n_sink: 1, n_window: 1 };
    let paper = Paper::default();
    assert!(matches!(paper.allocate(&fixture.view(), &budget(N_HEADS - 1)), Err(Error::Budget { .. })));
    let wrong = Paper { options: Options { floor_share: 1.5, ..Options::default() } };
    assert!(matches!(wrong.allocate(&fixture.view(), &budget(40)), Err(Error::Usage(_))));
    let allocation = paper.allocate(&fixture.view(), &budget(40)).unwrap();
    assert!(allocation.layer(&fixture.view(), 1).is_err(), "layer 1 may not be compressed");
}
