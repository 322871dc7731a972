use std::ops::Range;

use super::super::fixture::{Fixture, D_K, D_V};
use super::super::flow::direct;
use super::super::tree::Prototype;
use super::*;

/// `D` of an interval in f64 by direct exponentials; a prototype of nothing gives `D_drop`. Only rows that see `last` count.
fn distortion(view: &View, head: &Head, tokens: &[u32], prototype: Option<&Prototype>, last: u32) -> f64 {
    let (keys, values) = (view.keys(head.il, head.g).unwrap(), view.values(head.il, head.g).unwrap());
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let row = |a: &[f32], t: u32, d: usize| a[t as usize * d..(t as usize + 1) * d].to_vec();
    let mut sum = 0.0;
    for (i, q) in head.queries.rows.chunks(D_K).enumerate() {
        if head.queries.n_seen[i] <= last as usize {
            continue;
        }
        let e: Vec<f64> = tokens.iter().map(|&t| dot(q, &row(&keys, t, D_K)).exp()).collect();
        let z: f64 = e.iter().sum();
        let m = |j: usize| -> f64 { e.iter().zip(tokens).map(|(e, &t)| e * f64::from(row(&values, t, D_V)[j])).sum() };
        let z1 = prototype.map_or(0.0, |p| (dot(q, &p.key) + f64::from(p.ln_m)).exp());
        let m1 = |j: usize| prototype.map_or(0.0, |p| z1 * f64::from(p.value[j]));
        let gap: f64 = (0..D_V).map(|j| (m(j) - m1(j)).powi(2)).sum();
        let norm: f64 = (0..D_V).map(|j| m(j).powi(2)).sum();
        sum += z / f64::from(head.lse[i]).exp() * ((z - z1).powi(2) / (z * z) + gap / norm);
    }
    sum / head.lse.len() as f64
}

#[test]
fn gains_follow_from_the_definitions() {
    let fixture = Fixture::new(90);
    let view = fixture.view();
    let heads = direct(&view).unwrap();
    let (rotations, options, counter) = (Rotations::new(&view), Options::default(), AtomicU64::new(0));
    let slots = Slots { ends: vec![30, 60, 90], curvature: vec![0.0; 90] };
    let rest: Vec<Vec<u32>> = (0..heads.len() as u32).map(|h| (4..88).filter(|t| (t + h) % 3 != 0).collect()).collect();
    let forest = Forest {
        view: &view,
        heads: &heads,
        rest: &rest,
        rotations: &rotations,
        slots: &slots,
        options: &options,
        n_evaluated: &counter,
    };
    let roots = forest.roots().unwrap();
    assert_eq!(roots.len(), 3 * heads.len());
    for add in roots {
        let (head, rotation) = (&heads[add.node.head], rotations.of(heads[add.node.head].il));
        let tokens = |r: &Range<usize>| &rest[add.node.head][r.clone()];
        let last = *tokens(&add.node.range).last().unwrap();
        let d = |r: &Range<usize>| match r.len() {
            1 => 0.0,
            n => {
                let gathered = Tokens::gather(&view, head, rotation, tokens(r)).unwrap();
                distortion(&view, head, tokens(r), Some(&gathered.root(0..n, rotation, true)), last)
            }
        };
        let relevance: f64 = tokens(&add.node.range).iter().map(|&t| f64::from(head.relevance[t as usize])).sum();
        let weight = f64::from(head.omega) * relevance;
        let own = d(&add.node.range);
        let want = weight * (distortion(&view, head, tokens(&add.node.range), None, last) - own);
        assert!((add.gain - want).abs() < 1e-3 * weight * own.max(0.01), "{} {want}", add.gain);

        let split = &add.next.as_ref().unwrap()[0];
        let want = weight * (own - split.children.iter().map(d).sum::<f64>());
        assert!((split.gain - want).abs() < 1e-3 * weight * own.max(0.01), "{} {want}", split.gain);
        assert_eq!(split.cost, split.children.len() - 1);
        assert!(forest.expand(split).unwrap().iter().all(|next| split.children.contains(&next.node.range)));
    }
}
