use super::super::fixture::{Fixture, D_K, D_V};
use super::super::flow::direct;
use super::super::options::Options;
use super::super::rotation::Rotations;
use super::*;

/// Key, value and `ln m` of a prototype in f64, with the model's own rotation.
fn root_by_averages(view: &View, head: &Head, tokens: &[u32]) -> (Vec<f64>, Vec<f64>, f64) {
    let (keys, values) = (view.keys(head.il, head.g).unwrap(), view.values(head.il, head.g).unwrap());
    let rope = &view.rope[head.il];
    let n = tokens.len() as f64;
    let r = |t: u32| f64::from(head.relevance[t as usize]);
    let beta = 0.1 * tokens.iter().map(|&t| r(t)).sum::<f64>() / n;
    let (mut key, mut value, mut norms, mut total) = (vec![0f64; D_K], vec![0f64; D_V], 0.0, 0.0);
    for &t in tokens {
        let mut k = keys[t as usize * D_K..][..D_K].to_vec();
        rope.unrotate(&mut k, t as f32);
        norms += k.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt() / n;
        key.iter_mut().zip(&k).for_each(|(a, &x)| *a += f64::from(x) / n);
        value.iter_mut().zip(&values[t as usize * D_V..]).for_each(|(a, &x)| *a += (r(t) + beta) * f64::from(x));
        total += r(t) + beta;
    }
    value.iter_mut().for_each(|x| *x /= total);
    let c = key.iter().map(|x| x * x).sum::<f64>().sqrt() / (norms + 1e-6);
    let mut k: Vec<f32> = key.iter().map(|&x| x as f32).collect();
    let p = (tokens.iter().map(|&t| f64::from(t)).sum::<f64>() / n + 0.5).floor();
    rope.rotate(&mut k, p as f32);
    (k.iter().map(|&x| f64::from(x)).collect(), value, (n * c * c).clamp(1.0, n).ln())
}

fn close(a: &[f32], b: &[f64]) -> bool {
    a.iter().zip(b).all(|(a, b)| (f64::from(*a) - b).abs() < 1e-4 * (1.0 + b.abs()))
}

#[test]
fn roots_agree_with_direct_averages() {
    let fixture = Fixture::new(100);
    let view = fixture.view();
    let rotations = Rotations::new(&view);
    for head in direct(&view).unwrap() {
        let rotation = rotations.of(head.il);
        let tokens: Vec<u32> = (11..70).filter(|t| t % 5 != 0).collect();
        let gathered = Tokens::gather(&view, &head, rotation, &tokens).unwrap();
        for range in [0..tokens.len(), 3..9, 7..8] {
            let got = gathered.root(range.clone(), rotation, true);
            let (key, value, ln_m) = root_by_averages(&view, &head, &tokens[range.clone()]);
            assert!(close(&got.key, &key) && close(&got.value, &value) && close(&[got.ln_m], &[ln_m]), "{range:?}");
            assert_eq!(gathered.root(range, rotation, false).ln_m, 0.0);
        }
    }
}

#[test]
fn an_evaluation_is_the_better_of_all_halves_and_the_take_out() {
    let fixture = Fixture::new(100);
    let view = fixture.view();
    let (rotations, o) = (Rotations::new(&view), Options::default());
    let curvature: Vec<f32> = (0..100).map(|t| ((t * 13) % 31) as f32).collect();
    for (head, range) in direct(&view).unwrap().iter().flat_map(|h| [20..21, 20..22, 20..60, 90..97].map(|r| (h, r))) {
        let rotation = rotations.of(head.il);
        let tokens: Vec<u32> = range.collect();
        let n = tokens.len();
        let gauge = Gauge::new(head, D_K, tokens[n - 1], 0.0, &o).unwrap();
        let gather = |r: Range<usize>| Tokens::gather(&view, head, rotation, &tokens[r]).unwrap();
        // Each child on its own, read from the cache anew.
        let distortion = |r: Range<usize>| {
            if r.len() < 2 {
                return 0.0;
            }
            let t = gather(r.clone());
            gauge.distortion(
                &Mass::new(gauge.logits(t.keys.view()).view(), t.values.view()),
                &t.root(0..r.len(), rotation, true),
            )
        };
        let got = evaluate(&gather(0..n), &gauge, rotation, &curvature, true);
        assert!((got.distortion - distortion(0..n)).abs() < 1e-5 * (1e-3 + got.distortion));
        let Some(split) = got.split else {
            assert_eq!(n, 1);
            continue;
        };
        let half = (1..n)
            .max_by(|&a, &b| curvature[tokens[a - 1] as usize].total_cmp(&curvature[tokens[b - 1] as usize]))
            .unwrap();
        let best = (0..n)
            .max_by(|&a, &b| head.relevance[tokens[a] as usize].total_cmp(&head.relevance[tokens[b] as usize]))
            .unwrap();
        let halves = distortion(0..n) - distortion(0..half) - distortion(half..n);
        let take_out = distortion(0..n) - distortion(0..best) - distortion(best + 1..n);
        let take_out = take_out / if best == 0 || best == n - 1 { 1.0 } else { 2.0 };
        let gain = (got.distortion - split.distortion) / split.cost() as f64;
        assert!((gain - halves.max(take_out)).abs() < 1e-4 * (1e-3 + got.distortion), "{gain} {halves} {take_out}");
        assert_eq!(split.children.first().unwrap().start, 0);
        assert_eq!(split.children.last().unwrap().end, n);
        assert!(split.children.windows(2).all(|w| w[0].end == w[1].start && !w[0].is_empty()));
    }
}

#[test]
fn halves_meet_at_the_highest_curvature_or_in_the_middle() {
    let tokens: Vec<u32> = (10..20).collect();
    let mut curvature = vec![0.0; 30];
    assert_eq!(halving_point(&tokens, &curvature), 5);
    curvature[12] = 1.0;
    assert_eq!(halving_point(&tokens, &curvature), 3);
    curvature[19] = 9.0;
    assert_eq!(halving_point(&tokens, &curvature), 3, "the last token has no neighbour inside");
}

#[test]
fn mean_positions_round_half_up() {
    assert_eq!(mean_position(&[7]), 7);
    assert_eq!(mean_position(&[1, 2]), 2);
    assert_eq!(mean_position(&[1, 2, 5]), 3);
}
