use std::ops::Range;

use super::super::fixture::{reals, Rng};
use super::*;

/// The largest objective over all ways to cut, by trying each.
fn best_by_trial(l: &Lengths, score: &[f64], cost: f64, start: usize) -> f64 {
    if start == score.len() {
        return 0.0;
    }
    let ends = (start + l.min..=(start + l.max).min(score.len()))
        .map(|end| l.worth(score, cost, end - start, end) + best_by_trial(l, score, cost, end));
    ends.fold(f64::NEG_INFINITY, f64::max)
}

#[test]
fn the_cut_has_the_largest_objective_of_all() {
    let l = Lengths { min: 2, max: 5, target: 3 };
    for seed in 0..40 {
        let n = 4 + seed as usize % 13;
        let score: Vec<f64> = reals(&mut Rng(seed), n).iter().map(|&x| f64::from(x) * 3.0).collect();
        let cost = seed as f64 * 0.1;
        let ends = l.cut(&score, cost);
        let starts = std::iter::once(&0).chain(&ends);
        let got: f64 = starts.zip(&ends).map(|(a, &b)| l.worth(&score, cost, b - a, b)).sum();
        assert!((got - best_by_trial(&l, &score, cost, 0)).abs() < 1e-9, "seed {seed}: {ends:?}");
    }
}

#[test]
fn slots_cover_the_prompt_within_their_limits_and_reach_the_target() {
    let o = Options::default();
    for n in [0, 1, 15, 16, 31, 32, 127, 129, 500, 2000] {
        for (seed, n_proj) in [(1, 8), (2, 1)] {
            let hidden = Hidden { layers: vec![reals(&mut Rng(seed), n * n_proj)], n_proj };
            let ends = Slots::cut(&hidden, &[], n, &o).unwrap().ends;
            assert_eq!(ends.last().copied().unwrap_or(0), n);
            let lengths: Vec<usize> = std::iter::once(&0).chain(&ends).zip(&ends).map(|(a, b)| b - a).collect();
            assert!(
                lengths.iter().all(|&l| l <= o.slot_max && (l >= o.slot_min || ends.len() == 1)),
                "{n}: {lengths:?}"
            );
            assert!(ends.len() <= n.div_ceil(o.slot_target) && ends.len() * 100 >= n, "{n}: {}", ends.len());
        }
    }
}

#[test]
fn a_turn_of_the_path_becomes_a_boundary() {
    let n_proj = 8;
    let corners = [0, 49, 119, 169, 239];
    let points: Vec<Vec<f32>> = (0..5).map(|i| reals(&mut Rng(50 + i), n_proj)).collect();
    let state = |t: usize, j: usize| {
        let leg = corners.partition_point(|&c| c <= t).min(4) - 1;
        let part = (t - corners[leg]) as f32 / (corners[leg + 1] - corners[leg]) as f32;
        (1.0 - part) * points[leg][j] + part * points[leg + 1][j]
    };
    let layer = (0..240 * n_proj).map(|i| state(i / n_proj, i % n_proj)).collect();
    let slots = Slots::cut(&Hidden { layers: vec![layer], n_proj }, &[], 240, &Options::default()).unwrap();
    assert_eq!(slots.ends, [50, 120, 170, 240]);
}

#[test]
fn constant_states_give_slots_of_the_target_length() {
    let hidden = Hidden { layers: vec![vec![0.5; 4 * 640]], n_proj: 4 };
    let slots = Slots::cut(&hidden, &vec![1.0; 640], 640, &Options::default()).unwrap();
    assert_eq!(slots.ends, (1..=10).map(|i| i * 64).collect::<Vec<_>>());
    assert!(slots.curvature.iter().all(|&k| k == 0.0));
}

#[test]
fn surprisal_moves_boundaries_only_when_given() {
    let hidden = Hidden { layers: vec![reals(&mut Rng(9), 400 * 4)], n_proj: 4 };
    let o = Options { lambda_surprisal: 100.0, ..Options::default() };
    let mut surprisal = reals(&mut Rng(8), 400);
    surprisal[99] = 50.0;
    assert!(Slots::cut(&hidden, &surprisal, 400, &o).unwrap().ends.contains(&100));
    assert_eq!(Slots::cut(&hidden, &[], 400, &o).unwrap(), Slots::cut(&hidden, &[], 400, &Options::default()).unwrap());
}

#[test]
fn curvature_agrees_with_means_taken_directly() {
    let (n, n_proj, windows) = (30, 5, [2, 7]);
    let layers: Vec<Vec<f32>> = (0..2).map(|i| reals(&mut Rng(i), n * n_proj)).collect();
    let got = curvature(&Hidden { layers: layers.clone(), n_proj }, n, &windows, 0.5);
    for i in 0..n - 1 {
        let mut kappas = Vec::new();
        for layer in &layers {
            let unit: Vec<Vec<f64>> = layer
                .chunks(n_proj)
                .map(|h| {
                    let norm = h.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
                    h.iter().map(|&x| f64::from(x) / norm).collect()
                })
                .collect();
            let mean = |r: Range<usize>, j: usize| r.clone().map(|t| unit[t][j]).sum::<f64>() / r.len() as f64;
            for w in windows {
                let l: Vec<f64> = (0..n_proj).map(|j| unit[i][j] - mean((i + 1).saturating_sub(w)..i + 1, j)).collect();
                let r: Vec<f64> = (0..n_proj).map(|j| mean(i + 1..(i + 1 + w).min(n), j) - unit[i][j]).collect();
                let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
                let norm = (dot(&l, &l) * dot(&r, &r)).sqrt();
                kappas.push(if norm > 0.0 { 1.0 - dot(&l, &r) / norm } else { 0.0 });
            }
        }
        let mean = kappas.iter().sum::<f64>() / 4.0;
        let std = (kappas.iter().map(|k| (k - mean) * (k - mean)).sum::<f64>() / 4.0).sqrt();
        assert!((f64::from(got[i]) - (mean - 0.5 * std)).abs() < 1e-5, "token {i}");
    }
    assert_eq!(got[n - 1], 0.0);
}

#[test]
fn robust_z_ignores_an_outlier() {
    assert_eq!(robust_z(&[1.0, 2.0, 3.0, 4.0, 1000.0])[2], 0.0);
    assert!((robust_z(&[1.0, 2.0, 3.0, 4.0, 1000.0])[3] - 1.0 / 1.4826).abs() < 1e-9);
    assert!(robust_z(&[7.0; 5]).iter().all(|&z| z == 0.0));
}
