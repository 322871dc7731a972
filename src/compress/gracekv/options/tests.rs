//! Each modifier changes what it says it does, and nothing else.

use super::super::{cluster, fit, observe};
use super::*;
use crate::cache::memory::Memory;
use crate::cache::plan::{HeadPlan, Row};
use crate::compress::{by_name, Budget, Needs};

fn options(modifiers: &[Modifier]) -> MethodOptions {
    MethodOptions { modifiers: modifiers.to_vec(), ..MethodOptions::default() }
}

#[test]
fn a_modifier_sets_one_parameter() {
    let d = Options::default();
    let fitted = |modifier| Options::of(&options(&[modifier]));
    assert_eq!(Options::of(&options(&[])), d);
    assert_eq!(fitted(NO_LOOKAHEAD), Options { lookahead: false, ..d.clone() });
    assert_eq!(fitted(NO_PROTOTYPES), Options { prototype_share: 0.0, ..d.clone() });
    assert_eq!(fitted(NO_REFIT), Options { refit: false, ..d.clone() });
    assert_eq!(fitted(MEAN_KEYS), Options { min_fitted: usize::MAX, ..d.clone() });
    assert_eq!(fitted(LN_M), Options { fit_bias: false, ..d.clone() });
    assert_eq!(fitted(CONTIGUOUS), Options { contiguous: true, ..d });

    let d = paper::Options::default();
    let paper = |modifier| of_paper_form(&options(&[PAPER, modifier])).unwrap();
    assert_eq!(of_paper_form(&options(&[])), None);
    assert_eq!(paper(PAPER), d);
    assert_eq!(paper(NO_LOOKAHEAD), paper::Options { lookahead: false, ..d.clone() });
    assert_eq!(paper(NO_FLOOR), paper::Options { floor_share: 0.0, ..d.clone() });
    assert_eq!(paper(NO_HOPS), paper::Options { multi_hop: false, ..d.clone() });
    assert_eq!(paper(NO_LN_M), paper::Options { multiplicity: false, ..d.clone() });
    assert_eq!(paper(FIXED_SLOTS), paper::Options { fixed_slots: true, ..d.clone() });
    assert_eq!(paper(LAYER_QUEUE), paper::Options { scope: Scope::Layer, ..d.clone() });
    assert_eq!(paper(HEAD_QUEUE), paper::Options { scope: Scope::Head, ..d });
}

#[test]
fn modifiers_outrank_numbers() {
    let numbers = MethodOptions { floor: Some(0.7), prototypes: Some(0.5), ..options(&[]) };
    let with = |modifiers: &[Modifier]| MethodOptions { modifiers: modifiers.to_vec(), ..numbers.clone() };
    let fitted = Options::of(&with(&[]));
    assert_eq!((fitted.floor, fitted.prototype_share), (0.7, 0.5));
    assert_eq!(Options::of(&with(&[NO_PROTOTYPES])).prototype_share, 0.0);
    assert_eq!(of_paper_form(&with(&[PAPER])).unwrap().floor_share, 0.7);
    assert_eq!(of_paper_form(&with(&[PAPER, NO_FLOOR])).unwrap().floor_share, 0.0);
}

#[test]
fn without_lookahead_nothing_is_decoded_ahead() {
    let needs = |name: &str| by_name(name, &MethodOptions::default()).unwrap().needs();
    for form in ["gracekv", "gracekv+no_prototypes", "gracekv+paper"] {
        let plain = needs(form);
        assert!(plain.lookahead);
        assert_eq!(needs(&format!("{form}+no_lookahead")), Needs { lookahead: false, ..plain });
    }
    assert_eq!(needs("gracekv+paper+fixed_slots"), Needs { hidden: false, ..needs("gracekv+paper") });
}

fn memory() -> Memory {
    Memory::random(7, 2, 4, 2, 16, 240, [16, 24, 12])
}

const BUDGET: Budget = Budget { n_entries: 4 * 48, n_sink: 2, n_window: 8 };

fn plans(name: &str) -> Vec<HeadPlan> {
    let (memory, method) = (memory(), by_name(name, &MethodOptions::default()).unwrap());
    let view = memory.view();
    let allocation = method.allocate(&view, &BUDGET).unwrap();
    (0..2).flat_map(|il| allocation.layer(&view, il).unwrap().heads).collect()
}

fn is_exact(row: Row) -> bool {
    matches!(row, Row::Token(_))
}

#[test]
#[cfg_attr(miri, ignore = "needs more tokens than Miri has time for")]
fn without_prototypes_the_budget_goes_to_exact_tokens() {
    let entries = |name: &str| plans(name).iter().flat_map(|h| h.entries.clone()).collect::<Vec<_>>();
    let (plain, exact) = (entries("gracekv"), entries("gracekv+no_prototypes"));
    assert!(plain.iter().any(|e| e.n_tokens > 1));
    assert!(exact.iter().all(|e| is_exact(e.key) && e.bias == 0.0 && e.n_tokens == 1));
    assert!(exact.iter().all(|e| !is_exact(e.value)), "values are still refitted");
    assert_eq!((plain.len(), exact.len()), (BUDGET.n_entries, BUDGET.n_entries));
}

#[test]
#[cfg_attr(miri, ignore = "needs more tokens than Miri has time for")]
fn without_refit_exact_tokens_keep_their_values_and_nothing_else_changes() {
    for (plain, bare) in plans("gracekv").iter().zip(&plans("gracekv+no_refit")) {
        assert!(plain.entries.iter().all(|e| !is_exact(e.value)));
        assert!(bare.entries.iter().all(|e| e.value == e.key));
        assert_eq!(plain.new_keys, bare.new_keys);
        let rest = |head: &HeadPlan| head.entries.iter().map(|e| (e.key, e.bias, e.n_tokens)).collect::<Vec<_>>();
        assert_eq!(rest(plain), rest(bare));
    }
}

#[test]
fn runs_are_of_equal_length_and_in_order() {
    for (n_token, n) in [(1, 1), (7, 7), (10, 3), (192, 10), (513, 100)] {
        let of = cluster::runs(n_token, n);
        let size = |j: usize| of.iter().filter(|&&of| of as usize == j).count();
        assert!(of.is_sorted() && of.len() == n_token);
        assert!((0..n).all(|j| (n_token / n..=n_token.div_ceil(n)).contains(&size(j))), "{n_token} {n}");
    }
    for (plain, runs) in plans("gracekv").iter().zip(&plans("gracekv+contiguous")) {
        assert_eq!(plain.entries.len(), runs.entries.len());
        let sizes: Vec<u32> = runs.entries.iter().map(|e| e.n_tokens).filter(|&n| n > 1).collect();
        assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1, "{sizes:?}");
        let total = |head: &HeadPlan| head.entries.iter().map(|e| e.n_tokens).sum::<u32>();
        assert_eq!((total(plain), total(runs)), (240, 240));
    }
}

fn mean(rows: &ndarray::Array2<f32>, tokens: &[u32], mass: &[f32]) -> Vec<f64> {
    let total: f64 = tokens.iter().map(|&t| f64::from(mass[t as usize])).sum();
    let part = |t: u32, j: usize| f64::from(mass[t as usize]) * f64::from(rows[[t as usize, j]]);
    (0..rows.ncols()).map(|j| tokens.iter().map(|&t| part(t, j)).sum::<f64>() / total).collect()
}

fn is_close(got: &[f32], want: &[f64]) -> bool {
    got.iter().zip(want).all(|(&g, w)| (f64::from(g) - w).abs() < 1e-4 * (1.0 + w.abs()))
}

#[test]
#[cfg_attr(miri, ignore = "needs more tokens than Miri has time for")]
fn keys_biases_and_values_are_means_where_they_are_not_fitted() {
    let memory = memory();
    let view = memory.view();
    let head = observe::Head::load(&view, 1, 0, &observe::Observation::new(&view, 1, 0, 0.5).unwrap().0).unwrap();
    let all: Vec<u32> = (0..240).collect();
    let (keys, values, evicted) = (head.keys.of(&all), head.values.of(&all), &all[2..232]);
    let n = 12;
    let cluster_of = cluster::cluster(&head, evicted, n, 6);
    let fit = |modifiers: &[Modifier]| fit::fit(&head, evicted, &cluster_of, n, &Options::of(&options(modifiers)));
    let (plain, mean_keys, ln_m) = (fit(&[]), fit(&[MEAN_KEYS]), fit(&[LN_M]));
    let members = |j: usize| -> Vec<u32> {
        evicted.iter().zip(&cluster_of).filter(|(_, &of)| of as usize == j).map(|(&t, _)| t).collect()
    };
    assert!((0..n).any(|j| members(j).len() >= 8) && (0..n).any(|j| (2..8).contains(&members(j).len())));
    for j in (0..n).filter(|&j| members(j).len() > 1) {
        let tokens = members(j);
        let (k0, v0) = (mean(&keys, &tokens, &head.mass), mean(&values, &tokens, &head.mass));
        let is_fitted = tokens.len() >= Options::default().min_fitted;
        assert!(is_close(&mean_keys[j].key, &k0) && is_close(&plain[j].key, &k0) != is_fitted, "cluster {j}: key");
        assert!(!is_close(&mean_keys[j].value, &v0), "cluster {j}: the value is fitted");

        let norm = |t: &u32| keys.row(*t as usize).iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        let n_token = tokens.len() as f64;
        let c = k0.iter().map(|x| x * x).sum::<f64>().sqrt() / (tokens.iter().map(norm).sum::<f64>() / n_token);
        let m = (n_token * c * c).clamp(1.0, n_token);
        assert!((f64::from(ln_m[j].bias) - m.ln()).abs() < 1e-3, "cluster {j}: {} {}", ln_m[j].bias, m.ln());
        assert!(is_close(&ln_m[j].value, &v0) && !is_close(&plain[j].value, &v0), "cluster {j}: value");
        assert_eq!(ln_m[j].key, plain[j].key);
        assert_eq!(ln_m[j].n_tokens, plain[j].n_tokens);
    }
}
