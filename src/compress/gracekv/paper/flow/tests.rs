use super::super::fixture::{Fixture, D_K, N_HEAD, N_HEAD_KV};
use super::*;

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

/// Softmax of `query` over the first `n_seen` tokens and `more` keys, by direct exponentials.
fn softmax(query: &[f32], keys: &[f32], n_seen: usize, more: &[&[f32]], scale: f32) -> (Vec<f64>, f64) {
    let e = |k: &[f32]| (dot(query, k) * f64::from(scale)).exp();
    let exps: Vec<f64> = keys.chunks(D_K).take(n_seen).map(e).collect();
    let z = exps.iter().sum::<f64>() + more.iter().map(|k| e(k)).sum::<f64>();
    (exps.iter().map(|x| x / z).collect(), z)
}

#[test]
#[cfg_attr(miri, ignore = "minutes")]
fn direct_scores_are_the_largest_probability_of_any_probe() {
    let fixture = Fixture::new(90);
    let view = fixture.view();
    for head in direct(&view).unwrap() {
        let keys = view.keys(head.il, head.g).unwrap();
        let mut want = vec![0f64; 90];
        let (mut row, mut n_draft) = (0, 0);
        for (p, probe) in fixture.probes.list.iter().enumerate() {
            n_draft += usize::from(probe.kind == ProbeKind::Lookahead);
            for h in head.g * 2..head.g * 2 + 2 {
                let drafts: Vec<&[f32]> = fixture.probes.lookahead_keys[head.il]
                    .chunks(D_K)
                    .skip(head.g)
                    .step_by(N_HEAD_KV)
                    .take(n_draft)
                    .collect();
                let (s, z) = softmax(view.query(head.il, p, h), &keys, probe.pos as usize + 1, &drafts, view.kq_scale);
                want.iter_mut().zip(s).for_each(|(w, s)| *w = w.max(s));
                assert!((f64::from(head.lse[row]) - z.ln()).abs() < 1e-4);
                row += 1;
            }
        }
        assert!(head.relevance.iter().zip(&want).all(|(a, b)| (f64::from(*a) - b).abs() < 1e-5));
        assert!(head.omega > 0.0);
    }
}

#[test]
#[cfg_attr(miri, ignore = "minutes")]
fn hops_follow_the_attention_of_the_seeds() {
    let fixture = Fixture::new(60);
    let view = fixture.view();
    let o = Options { n_seed: 3, n_hop: 2, n_hop_layer: 2, ..Options::default() };
    let mean: Vec<f64> = (0..60).map(|t| f64::from((t * 17 % 23) as u8) + 0.001 * f64::from(t as u8)).collect();
    let (n, got) = hops(&view, &mean, 4..56, &o).unwrap();
    assert_eq!(n, 2);

    let mut used: Vec<usize> = (0..4).chain(56..60).collect();
    let (mut weight, mut want) = (mean, vec![0f64; 60]);
    for scale in [0.5, 0.25] {
        let mut order: Vec<usize> = (0..60).filter(|t| !used.contains(t)).collect();
        order.sort_by(|&a, &b| weight[b].total_cmp(&weight[a]));
        let seeds: Vec<usize> = order[..3].to_vec();
        used.extend(&seeds);
        let total: f64 = seeds.iter().map(|&t| weight[t]).sum();
        let mut reached = vec![0f64; 60];
        for &t in &seeds {
            let decoded = view.source.queries_of(&[t as u32]).unwrap();
            for (il, h) in [0, 2].into_iter().flat_map(|il| (0..N_HEAD).map(move |h| (il, h))) {
                let keys = view.keys(il, h / 2).unwrap();
                let (s, _) = softmax(&decoded[il][h * D_K..(h + 1) * D_K], &keys, t + 1, &[], view.kq_scale);
                reached.iter_mut().zip(s).for_each(|(r, s)| *r += weight[t] / total * s / 8.0);
            }
        }
        (0..60).filter(|t| !used.contains(t)).for_each(|t| want[t] += scale * reached[t]);
        weight = reached;
    }
    assert!(got.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-6));
}

#[test]
fn relevance_keeps_its_mass_and_does_without_a_decoder() {
    let mut fixture = Fixture::new(80);
    let plain = direct(&fixture.view()).unwrap();
    let sum = |heads: &[Head]| heads.iter().flat_map(|h| &h.relevance[4..70]).map(|&r| f64::from(r)).sum::<f64>();
    let mut hopped = plain.clone();
    assert_eq!(relevance(&fixture.view(), &mut hopped, 4..70, &Options::default()).unwrap(), 2);
    assert!((sum(&hopped) / sum(&plain) - 1.0).abs() < 1e-4);
    assert_ne!(hopped[0].relevance, plain[0].relevance);
    fixture.decodes = false;
    let mut same = plain.clone();
    assert_eq!(relevance(&fixture.view(), &mut same, 4..70, &Options::default()).unwrap(), 0);
    assert!(same.iter().zip(&plain).all(|(a, b)| a.relevance == b.relevance));
}

#[test]
fn without_probes_the_error_says_what_is_missing() {
    let mut fixture = Fixture::new(30);
    fixture.probes.list.clear();
    let text = direct(&fixture.view()).unwrap_err().to_string();
    assert!(text.contains("lookahead"), "{text}");
}
