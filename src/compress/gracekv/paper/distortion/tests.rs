use super::super::attention::{matrix, Queries};
use super::super::fixture::{reals, Rng};
use super::*;
use ndarray::Axis;

#[test]
fn agrees_with_raw_exponentials() {
    let (d, n, n_row) = (8, 12, 9);
    let mut rng = Rng(3);
    let (keys, values) = (reals(&mut rng, d * n), reals(&mut rng, d * n));
    let queries = Queries { rows: reals(&mut rng, d * n_row), n_seen: vec![20; n_row], beyond: vec![0.0; n_row] };
    let lse = reals(&mut rng, n_row).iter().map(|x| x + 5.0).collect();
    let head = Head { queries, lse, ..Head::default() };
    let o = Options { lambda_m: 0.7, ..Options::default() };
    let gauge = Gauge::new(&head, d, 11, 0.0, &o).unwrap();
    let (k, v) = (matrix(&keys, d).unwrap(), matrix(&values, d).unwrap());
    let logits = gauge.logits(k);
    let (left, right) = (logits.view().split_at(Axis(1), 5), v.split_at(Axis(0), 5));
    let mass = Mass::new(left.0, right.0).union(&Mass::new(left.1, right.1));
    let prototype = Prototype { key: reals(&mut rng, d), value: reals(&mut rng, d), ln_m: 0.9 };

    let dot = |row: &[f32], k: &[f32]| row.iter().zip(k).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let (mut want, mut want_drop) = (0.0, 0.0);
    for (q, &lse) in head.queries.rows.chunks(d).zip(&head.lse) {
        let e: Vec<f64> = keys.chunks(d).map(|k| dot(q, k).exp()).collect();
        let z: f64 = e.iter().sum();
        let m: Vec<f64> = (0..d).map(|j| (0..n).map(|t| e[t] * f64::from(values[t * d + j])).sum()).collect();
        let z1 = dot(q, &prototype.key).exp() * f64::from(prototype.ln_m).exp();
        let gap: f64 = m.iter().zip(&prototype.value).map(|(m, &v)| (m - z1 * f64::from(v)).powi(2)).sum();
        let norm: f64 = m.iter().map(|m| m * m).sum();
        let share = z / f64::from(lse).exp();
        want += share * ((z - z1).powi(2) / (z * z) + 0.7 * gap / norm) / n_row as f64;
        want_drop += share * 1.7 / n_row as f64;
    }
    let (got, got_drop) = (gauge.distortion(&mass, &prototype), gauge.dropped(&mass));
    assert!((got - want).abs() < 1e-3 * want, "{got} {want}");
    assert!((got_drop - want_drop).abs() < 1e-3 * want_drop, "{got_drop} {want_drop}");
}

#[test]
fn logits_far_out_of_range_stay_finite() {
    let head = Head {
        queries: Queries { rows: vec![300.0; 8], n_seen: vec![9], beyond: vec![f32::NEG_INFINITY] },
        lse: vec![50_000.0],
        ..Head::default()
    };
    let o = Options::default();
    let gauge = Gauge::new(&head, 8, 1, 0.0, &o).unwrap();
    let (keys, values) = (vec![10.0; 16], vec![1.0; 16]);
    let mass = Mass::new(gauge.logits(matrix(&keys, 8).unwrap()).view(), matrix(&values, 8).unwrap());
    let far = Prototype { key: vec![-90.0; 8], value: vec![1.0; 8], ..Prototype::default() };
    let near = Prototype { key: vec![90.0; 8], value: vec![1.0; 8], ..Prototype::default() };
    assert!(gauge.distortion(&mass, &far).is_finite() && gauge.distortion(&mass, &near).is_finite());
}
