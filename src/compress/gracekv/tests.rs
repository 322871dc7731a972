//! The steps against their formulas written out in `f64`, with every intermediate matrix in memory.

use ndarray::{Array1, Array2, Axis};

use super::{
    allocate, cluster, fit,
    observe::{Head, Observation},
    refit, split, GraceKv, Options,
};
use crate::cache::memory::{Memory, Random};
use crate::cache::plan::Row;
use crate::cache::view::{ProbeKind, View};
use crate::compress::score::Queries;
use crate::compress::{Budget, Method};

const SAMPLE_WEIGHT: f32 = 0.75;

fn memory(n_tokens: usize) -> Memory {
    Memory::random(7, 2, 4, 2, 16, n_tokens, [6, 9, 7])
}

fn head(view: &View, il: usize, g: usize) -> Head {
    Head::load(view, il, g, &Observation::new(view, il, g, SAMPLE_WEIGHT).unwrap().0).unwrap()
}

/// The quantities of `observe`, and `a` itself.
struct Reference {
    keys: Array2<f64>,
    values: Array2<f64>,
    queries: Array2<f64>,
    cap: f64,
    a: Array2<f64>,
    lz: Array1<f64>,
    output: Array2<f64>,
    weight: Array1<f64>,
}

impl Reference {
    fn new(memory: &Memory, il: usize, g: usize, queries: &Queries) -> Self {
        let (dim, view) = (memory.head_dim_k, memory.view());
        let wide = |x: Vec<f32>| Array2::from_shape_vec((x.len() / dim, dim), x).unwrap().mapv(f64::from);
        let (keys, values) = (wide(view.keys(il, g).unwrap()), wide(view.values(il, g).unwrap()));
        let (queries_f64, cap) = (queries.rows.mapv(f64::from), f64::from(memory.logit_softcap));
        let mut a = capped(queries_f64.dot(&keys.t()), cap);
        let lz: Array1<f64> = a.rows().into_iter().map(|s| s.mapv(f64::exp).sum().ln()).collect();
        a = (a - lz.view().insert_axis(Axis(1))).mapv(f64::exp);
        let own = wide(view.probes.lookahead_keys[il].clone());
        let weight = (0..lz.len()).map(|row| {
            let (probe, _) = queries.source_of(row);
            let seen = (0..own.nrows() / memory.n_head_kv).filter(|u| {
                probe.is_some_and(|p| p.kind == ProbeKind::Lookahead && memory.n_tokens + u <= p.pos as usize)
            });
            let logit = |u: usize| own.row(u * memory.n_head_kv + g).dot(&queries_f64.row(row));
            let draft: f64 = seen.map(|u| capped(Array2::from_elem((1, 1), logit(u)), cap)[[0, 0]].exp()).sum();
            let share = lz[row].exp() / (lz[row].exp() + draft);
            // One row of a sample stands for the two of its group.
            share * share * if probe.is_none() { 2.0 * f64::from(SAMPLE_WEIGHT) } else { 1.0 }
        });
        let mut weight: Array1<f64> = weight.collect();
        weight /= weight.sum();
        let output = a.dot(&values);
        Reference { keys, values, queries: queries_f64, cap, a, lz, output, weight }
    }
}

fn capped(x: Array2<f64>, cap: f64) -> Array2<f64> {
    if cap == 0.0 {
        x
    } else {
        x.mapv(|s| cap * (s / cap).tanh())
    }
}

/// Solves `a x = b` by elimination with pivoting.
fn eliminate(mut a: Array2<f64>, mut b: Array2<f64>) -> Array2<f64> {
    let n = a.nrows();
    for i in 0..n {
        let pivot = (i..n).max_by(|&r, &s| a[[r, i]].abs().total_cmp(&a[[s, i]].abs())).unwrap();
        for c in 0..n {
            a.swap([i, c], [pivot, c]);
        }
        for c in 0..b.ncols() {
            b.swap([i, c], [pivot, c]);
        }
        for r in (0..n).filter(|&r| r != i) {
            let f = a[[r, i]] / a[[i, i]];
            let (row_a, row_b) = (a.row(i).to_owned(), b.row(i).to_owned());
            a.row_mut(r).scaled_add(-f, &row_a);
            b.row_mut(r).scaled_add(-f, &row_b);
        }
    }
    for i in 0..n {
        let d = a[[i, i]];
        b.row_mut(i).mapv_inplace(|x| x / d);
    }
    b
}

fn assert_close<'a>(
    got: impl IntoIterator<Item = &'a f32>,
    want: impl IntoIterator<Item = f64>,
    tolerance: f64,
    what: &str,
) {
    let (mut error, mut size) = (0.0, 0.0);
    for (&got, want) in got.into_iter().zip(want) {
        error += (f64::from(got) - want).powi(2);
        size += want * want;
    }
    assert!(error <= tolerance * tolerance * size + 1e-30, "{what}: relative error {}", (error / size).sqrt());
}

fn cases() -> impl Iterator<Item = (Memory, usize, usize)> {
    let mut capped = memory(90);
    capped.logit_softcap = 5.0;
    // 700 tokens: clusters larger than a tile of logits.
    [memory(90), capped, memory(700)].into_iter().flat_map(|m| [(0, 1), (1, 0)].map(|(il, g)| (m.clone(), il, g)))
}

#[test]
fn probes_see_what_the_formulas_say() {
    for (memory, il, g) in cases() {
        let view = memory.view();
        let queries = Queries::load_all(&view, il, g).unwrap();
        let want = Reference::new(&memory, il, g, &queries);
        let head = head(&view, il, g);
        assert_close(&head.weight, want.weight.iter().copied(), 1e-5, "weight");
        assert_close(&head.lz, want.lz.iter().copied(), 1e-5, "lz");
        assert_close(&head.output, want.output.iter().copied(), 3e-5, "output");
        assert_close(&head.mass, want.a.t().dot(&want.weight), 3e-3, "mass");
        let error = |t: usize| {
            let of = |q: usize| {
                let d = &want.values.row(t) - &want.output.row(q);
                want.weight[q] * want.a[[q, t]].powi(2) * d.dot(&d)
            };
            (0..want.lz.len()).map(of).sum::<f64>()
        };
        assert_close(&head.error, (0..memory.n_tokens).map(error), 3e-3, "error");

        let score = queries.largest_of_all(&view, il, g).unwrap();
        let largest = |t: usize| {
            let mean = |p: usize| (0..2).map(|h| want.a[[2 * p + h, t]]).sum::<f64>() / 2.0;
            (0..queries.probes.len()).map(mean).fold(0.0, f64::max)
        };
        assert_close(&score, (0..memory.n_tokens).map(largest), 1e-5, "score");
        assert_eq!(Observation::new(&view, il, g, SAMPLE_WEIGHT).unwrap().1.len(), score.len());
        assert_close(
            &Observation::new(&view, il, g, SAMPLE_WEIGHT).unwrap().1,
            score.iter().map(|&s| f64::from(s)),
            1e-6,
            "score",
        );
    }
}

/// Also where every query head has its own KV head, so that probes have one row each as samples do.
#[test]
fn samples_have_no_say_in_the_ranking() {
    for n_head in [2, 4] {
        let memory = Memory::random(8, 1, n_head, 2, 16, 90, [6, 30, 7]);
        let view = memory.view();
        let with = Queries::load_all(&view, 0, 1).unwrap().largest_of_all(&view, 0, 1).unwrap();
        let without = Queries::load_answering(&view, 0, 1).unwrap().largest_of_all(&view, 0, 1).unwrap();
        assert_close(&with, without.iter().map(|&s| f64::from(s)), 1e-6, "score");
    }
}

#[test]
fn the_metric_is_the_variance_of_logit_differences() {
    let memory = memory(40);
    let queries = Queries::load_all(&memory.view(), 0, 0).unwrap();
    let want = Reference::new(&memory, 0, 0, &queries);
    let x = want.keys.mapv(|k| k as f32).dot(&cluster::metric(queries.rows.view()));
    let s = want.queries.dot(&want.keys.t());
    let centred = &want.queries - &want.queries.mean_axis(Axis(0)).unwrap();
    let trace = (&centred * &centred).sum() / centred.nrows() as f64;
    for t in 0..40 {
        for u in 0..t {
            let (d, xd) = (&s.column(t) - &s.column(u), &x.row(t) - &x.row(u));
            let variance = d.mapv(|v| v * v).mean().unwrap() - d.mean().unwrap().powi(2);
            // Directions in which queries hardly differ are left out: a tenth of their variance, so of any such product.
            let apart = &want.keys.row(t) - &want.keys.row(u);
            let missing = variance - f64::from(xd.dot(&xd));
            let most = 0.1 * trace * apart.dot(&apart);
            assert!(missing > -1e-4 * variance && missing <= most, "{t} {u}: {missing} of {variance}, at most {most}");
        }
    }
}

/// k-means as written, every distance computed by itself.
fn k_means(x: &Array2<f32>, weight: &[f32], n: usize, n_step: usize) -> Vec<usize> {
    let mut heaviest: Vec<usize> = (0..x.nrows()).collect();
    heaviest.sort_by(|&a, &b| weight[b].total_cmp(&weight[a]));
    let x = x.mapv(f64::from);
    let mut centres = x.select(Axis(0), &heaviest[..n]);
    let mut of = Vec::new();
    for _ in 0..n_step {
        let distance = |t: usize, j: usize| (&x.row(t) - &centres.row(j)).mapv(|v| v * v).sum();
        let nearest = |t: usize| (0..n).min_by(|&i, &j| distance(t, i).total_cmp(&distance(t, j))).unwrap();
        of = (0..x.nrows()).map(nearest).collect::<Vec<_>>();
        for j in 0..n {
            let own: Vec<usize> = (0..of.len()).filter(|&t| of[t] == j).collect();
            let total: f64 = own.iter().map(|&t| f64::from(weight[t])).sum();
            let sum = own.iter().fold(Array1::zeros(x.ncols()), |s, &t| s + &x.row(t) * f64::from(weight[t]));
            if total > 0.0 {
                centres.row_mut(j).assign(&(sum / total));
            }
        }
    }
    of
}

#[test]
fn clusters_are_those_of_weighted_k_means_and_none_is_empty() {
    let mut random = Random(3);
    for n in [1, 5, 40] {
        let x = Array2::from_shape_vec((200, 6), random.vector(1200, 1.0)).unwrap();
        let weight: Vec<f32> = random.vector(200, 1.0).iter().map(|w| w.abs() + 0.01).collect();
        let got = cluster::k_means(&x, &weight, n, 6);
        let want = k_means(&x, &weight, n, 6);
        assert!(got.iter().zip(&want).all(|(&g, &w)| g as usize == w));
    }
    let same = Array2::from_elem((10, 4), 0.5);
    let mut of = cluster::k_means(&same, &[1.0; 10], 7, 6);
    of.sort_unstable();
    of.dedup();
    assert_eq!(of, [0, 1, 2, 3, 4, 5, 6], "equal tokens must still fill every cluster");
}

/// Step 4 for one cluster, with `Z` and `M` as matrices.
fn fit_reference(r: &Reference, tokens: &[usize]) -> (Array1<f64>, f64, Array1<f64>) {
    let (a, k, v) = (r.a.select(Axis(1), tokens), r.keys.select(Axis(0), tokens), r.values.select(Axis(0), tokens));
    let (z, m) = (a.sum_axis(Axis(1)), a.dot(&v));
    let mass = a.t().dot(&r.weight);
    let k0 = k.t().dot(&mass) / mass.sum();
    let omega = &r.weight * &z / (&r.weight * &z).sum();
    let y = z.mapv(f64::ln) + &r.lz - r.queries.dot(&k0);
    let (mu, b0) = (r.queries.t().dot(&omega), omega.dot(&y));
    let mut g = Array2::<f64>::zeros((k.ncols(), k.ncols()));
    let mut rhs = Array1::<f64>::zeros(k.ncols());
    for q in 0..omega.len() {
        let c = (&r.queries.row(q) - &mu).insert_axis(Axis(1));
        g = g + c.dot(&c.t()) * omega[q];
        rhs = rhs + c.column(0).to_owned() * (omega[q] * (y[q] - b0));
    }
    let ridge = 0.1 * g.diag().mean().unwrap();
    let key = k0 + eliminate(g + Array2::<f64>::eye(k.ncols()) * ridge, rhs.insert_axis(Axis(1))).column(0);
    let logit = capped(r.queries.dot(&key).insert_axis(Axis(1)), r.cap).column(0).to_owned();
    let e = (logit - &r.lz).mapv(|x| x.min(3.0).exp());
    let scale = (&r.weight * &e * &z).sum() / (&r.weight * &e * &e).sum();
    let z_fit = e * scale;
    let wz = &r.weight * &z_fit;
    (key, scale.ln(), m.t().dot(&wz) / (&wz * &z_fit).sum())
}

#[test]
fn keys_biases_and_values_are_those_of_the_formulas() {
    for (memory, il, g) in cases() {
        let view = memory.view();
        let want = Reference::new(&memory, il, g, &Queries::load_all(&view, il, g).unwrap());
        let head = head(&view, il, g);
        // Clusters of all sizes; the last holds most of the tokens.
        let evicted: Vec<u32> = (0..memory.n_tokens as u32).collect();
        let cluster_of: Vec<u32> =
            evicted.iter().map(|&t| [0, 1, 1, 2, 2, 2, 2].get(t as usize).copied().unwrap_or(3)).collect();
        let prototypes = fit::fit(&head, &evicted, &cluster_of, 4, &Options { min_fitted: 2, ..Options::default() });
        for (j, prototype) in prototypes.iter().enumerate() {
            let tokens: Vec<usize> =
                evicted.iter().zip(&cluster_of).filter(|(_, &of)| of as usize == j).map(|(&t, _)| t as usize).collect();
            let (mut key, bias, value) = fit_reference(&want, &tokens);
            if let [token] = tokens[..] {
                key = want.keys.row(token).to_owned();
                assert_eq!((prototype.token, prototype.bias), (Some(token as u32), 0.0));
            } else {
                assert!((f64::from(prototype.bias) - bias).abs() < 1e-3, "bias {} {bias}", prototype.bias);
                assert_close(&prototype.value, value, 2e-3, "value");
            }
            assert_close(&prototype.key, key, 2e-3, "key");
            assert_eq!(prototype.n_tokens as usize, tokens.len());
        }
    }
}

#[test]
fn refitted_values_solve_the_normal_equations_in_both_forms() {
    for (memory, il, g) in cases() {
        let view = memory.view();
        let want = Reference::new(&memory, il, g, &Queries::load_all(&view, il, g).unwrap());
        let head = head(&view, il, g);
        // 600: more than two tiles of entries.
        for n in [3, 30, 80, 600].into_iter().filter(|&n| n <= memory.n_tokens) {
            let (k, v) = (want.keys.slice(ndarray::s![..n, ..]), want.values.slice(ndarray::s![..n, ..]));
            let bias: Vec<f32> = (0..n).map(|i| (i % 5) as f32 * 0.3).collect();
            let mut p = capped(want.queries.dot(&k.t()), want.cap);
            for mut row in p.rows_mut() {
                row.iter_mut().zip(&bias).for_each(|(s, &b)| *s = (*s + f64::from(b)).exp());
                row /= row.sum();
            }
            let wp = &p * &want.weight.view().insert_axis(Axis(1));
            let system = p.t().dot(&wp);
            let lambda = 0.1 * system.diag().mean().unwrap();
            let rhs = wp.t().dot(&(&want.output - &p.dot(&v)));
            let fitted = &v + &eliminate(system + Array2::<f64>::eye(n) * lambda, rhs);
            let narrow = |x: &ndarray::ArrayView2<f64>| x.mapv(|x| x as f32);
            // Some of the entries are exact tokens, the others new.
            let tokens: Vec<u32> = (0..n as u32 / 3).collect();
            let new_keys: Vec<f32> = narrow(&k).iter().skip(tokens.len() * memory.head_dim_k).copied().collect();
            let entries = refit::Entries { tokens: &tokens, new_keys: &new_keys, bias: &bias };
            let got = refit::refit(&head, &entries, narrow(&v), 0.1).unwrap();
            assert_close(&got, fitted, 1e-3, "refitted values");
        }
    }
}

#[test]
fn the_plan_represents_the_outputs_better_than_the_same_number_of_exact_tokens() {
    let memory = Memory::random(5, 2, 4, 2, 16, 300, [16, 32, 16]);
    let view = memory.view();
    let error = |options: Options| {
        let method = GraceKv { options };
        let allocation = method.allocate(&view, &Budget { n_entries: 4 * 30, n_sink: 2, n_window: 8 }).unwrap();
        let mut error = 0.0;
        for il in 0..2 {
            for (g, plan) in allocation.layer(&view, il).unwrap().heads.iter().enumerate() {
                let r = Reference::new(&memory, il, g, &Queries::load_all(&view, il, g).unwrap());
                let row = |row: Row, old: &Array2<f64>, new: &[f32]| match row {
                    Row::Token(t) => old.row(t as usize).to_owned(),
                    Row::New(i) => new[i as usize * 16..][..16].iter().map(|&x| f64::from(x)).collect(),
                };
                for (q, query) in r.queries.rows().into_iter().enumerate() {
                    let (mut sum, mut out) = (0.0, Array1::<f64>::zeros(16));
                    for entry in &plan.entries {
                        let e = (query.dot(&row(entry.key, &r.keys, &plan.new_keys)) + f64::from(entry.bias)).exp();
                        sum += e;
                        out.scaled_add(e, &row(entry.value, &r.values, &plan.new_values));
                    }
                    error += (out / sum - r.output.row(q)).mapv(|x| x * x).sum();
                }
            }
        }
        error
    };
    let exact = error(Options { prototype_share: 0.0, refit: false, ..Options::default() });
    let merged = error(Options { refit: false, ..Options::default() });
    let full = error(Options::default());
    assert!(merged < 0.6 * exact && full < 0.8 * merged, "{exact} {merged} {full}");
}

#[test]
fn one_entry_per_head_is_one_prototype_of_everything() {
    let memory = memory(50);
    let budget = Budget { n_entries: 4, n_sink: 4, n_window: 16 };
    let choices = allocate::allocate(&memory.view(), &budget, &Options::default()).unwrap();
    assert!(choices.iter().all(|choice| choice.kept.is_empty() && choice.n_prototype == 1));
}

#[test]
fn errors_of_leaves_are_those_of_the_formulas() {
    for (memory, il, g) in cases() {
        let view = memory.view();
        let queries = Queries::load_all(&view, il, g).unwrap();
        let r = Reference::new(&memory, il, g, &queries);
        let evicted: Vec<u32> = (3..memory.n_tokens as u32).filter(|t| t % 5 != 0).collect();
        let tree = split::Tree::new(self::head(&view, il, g), view.n_group(), &evicted).unwrap();
        let project = split::projection(memory.head_dim_v).mapv(f64::from);
        // One query head of the group per probe, in turn, and the samples.
        let n_probe = queries.probes.len();
        let rows: Vec<usize> = (0..n_probe).map(|p| 2 * p + p % 2).chain(2 * n_probe..queries.rows.nrows()).collect();
        let total: f64 = rows.iter().map(|&q| r.weight[q]).sum();
        let error = |tokens: &[u32]| {
            let tokens: Vec<usize> = tokens.iter().map(|&i| evicted[i as usize] as usize).collect();
            let mass: Vec<f64> = tokens.iter().map(|&t| r.a.column(t).dot(&r.weight)).collect();
            let mut k0 = Array1::zeros(memory.head_dim_k);
            tokens.iter().zip(&mass).for_each(|(&t, m)| k0.scaled_add(*m, &r.keys.row(t)));
            k0 /= mass.iter().sum::<f64>();
            let of_row = |&q: &usize| {
                let logit = capped(Array2::from_elem((1, 1), r.queries.row(q).dot(&k0)), r.cap)[[0, 0]];
                let z: f64 = tokens.iter().map(|&t| r.a[[q, t]]).sum();
                let m =
                    tokens.iter().fold(Array1::zeros(memory.head_dim_v), |m, &t| m + r.a[[q, t]] * &r.values.row(t));
                (
                    r.weight[q] / total,
                    (logit - r.lz[q]).min(3.0).exp(),
                    z,
                    m.dot(&project),
                    r.output.row(q).dot(&project),
                )
            };
            let rows: Vec<_> = rows.iter().map(of_row).collect();
            let of_half = |half: usize| {
                let fitted = || rows.iter().skip(half).step_by(2);
                let square: f64 = fitted().map(|(w, e, ..)| w * e * e).sum();
                let b = fitted().map(|(w, e, z, ..)| w * e * z).sum::<f64>() / square;
                let v =
                    fitted().fold(Array1::zeros(project.ncols()), |v, (w, e, _, m, _)| v + *w * *e * m) / (b * square);
                let lost = |(w, e, z, m, o): &(f64, f64, f64, Array1<f64>, Array1<f64>)| {
                    let d = m - &(*z * o) - b * e * (&v - o);
                    w * d.dot(&d)
                };
                rows.iter().skip(1 - half).step_by(2).map(lost).sum::<f64>()
            };
            of_half(0) + of_half(1)
        };
        let all: Vec<u32> = (0..evicted.len() as u32).collect();
        let (first, second) = tree.cut(&all);
        let mut both = [&first[..], &second[..]].concat();
        both.sort_unstable();
        assert!(!first.is_empty() && !second.is_empty() && both == all);
        for tokens in [all, first, second] {
            assert_close(&[tree.error(&tokens)], [error(&tokens)], 3e-3, "error of a leaf");
        }
    }
}

#[test]
fn gains_of_splits_fall_and_keep_their_sums() {
    let mut gains = [1.0, 3.0, 2.0, -1.0, 4.0, 0.5];
    split::concave(&mut gains);
    assert_eq!(gains, [2.0, 2.0, 2.0, 1.5, 1.5, 0.5]);

    let memory = memory(300);
    let view = memory.view();
    let evicted: Vec<u32> = (0..300).collect();
    let gains_from = |least| split::gains(head(&view, 1, 0), view.n_group(), &evicted, 1000, least).unwrap();
    let gains = gains_from(0.0);
    assert!(gains.windows(2).all(|pair| pair[0] >= pair[1]), "{gains:?}");
    // Split to the end, nothing is lost: the gains are all of the error of one leaf.
    let tree = split::Tree::new(head(&view, 1, 0), view.n_group(), &evicted).unwrap();
    let root = tree.error(&evicted);
    assert!(gains.len() < 300 && (gains.iter().sum::<f32>() - root).abs() < 1e-3 * root);

    // What is left out gains less than the least that was asked for, and nothing else changes.
    for least in [gains[0] * 2.0, gains[3], gains[40], gains[150]] {
        let (some, n) = (gains_from(least), gains.partition_point(|&gain| gain > least * 1.0001));
        assert!(some.len() < gains.len() && some.len() >= n, "{} of {n}", some.len());
        assert_close(&some[..n], gains[..n].iter().map(|&gain| f64::from(gain)), 1e-5, "gains above the least");
        assert!(some[n..].iter().all(|&gain| gain <= least * 1.0001), "{least}: {some:?}");
    }
}
