//! What splitting the prototypes of a head is worth, measured: the gains of step 2 in the queue.
//!
//! The tree of a head begins with all its tokens that are not exact; the leaf with the largest error is cut in two in the
//! metric of the queries ([`cluster`]). The error of a leaf j under half of the probes, with key `k0` (mean weighted by
//! attention), bias and value fitted to the other half, `e_q = exp(q.k0 - lz_q)`: `sum_q w_q |M_q - Z_q o_q - b e_q (v - o_q)|^2`,
//! `b = sum w e Z / sum w e^2`, `v = sum w e M / (b sum w e^2)`; `Z, M` as in [`fit`](super::fit). Values are projected to
//! a few dimensions, and every n-th query has a say: errors need only be comparable.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use ndarray::{Array2, ArrayView2, ArrayViewMut2, Axis};

use super::cluster;
use super::fit::MAX_LOG_E;
use super::observe::{Head, Rows, FLOOR};
use crate::cache::product::add_weighted_rows;
use crate::compress::vector;
use crate::error::Result;

/// Dimensions to which values are projected.
const N_PROJ: usize = 16;
/// Probes that measure.
const N_PROBE: usize = 32;
/// Steps of a cut.
const N_STEP: usize = 2;
/// Tokens that are read at a time.
const TILE: usize = 256;
/// Tokens from which a leaf keeps its sums, for the larger of its parts; they take as much memory as some twenty tokens.
const MANY: usize = 128;

/// The gains of up to `n` splits of the `evicted` tokens of a head, best first, in units of [`Head::error`].
///
/// Once no leaf has an error of `least`, the splits that follow are left out: however many they are, they gain less than `least`
/// on average, as all of them together cannot gain more than the leaves that they begin with lose.
///
/// # Errors
/// When a matrix of the head cannot be read.
pub fn gains(head: Head, n_group: usize, evicted: &[u32], n: usize, least: f32) -> Result<Vec<f32>> {
    if evicted.len() < 2 || n == 0 {
        return Ok(Vec::new());
    }
    let mut gains = Tree::new(head, n_group, evicted)?.split(n, least);
    concave(&mut gains);
    Ok(gains)
}

/// Replaces gains by those of the least concave curve above their sums: an action that only makes a later one possible has a
/// share in what both are worth.
pub(super) fn concave(gains: &mut [f32]) {
    let mut runs: Vec<(f32, usize)> = Vec::new();
    for &gain in gains.iter() {
        let mut run = (gain, 1);
        while let Some(&(sum, n)) = runs.last() {
            if sum * run.1 as f32 > run.0 * n as f32 {
                break;
            }
            runs.pop();
            run = (run.0 + sum, run.1 + n);
        }
        runs.push(run);
    }
    let means = runs.iter().flat_map(|&(sum, n)| std::iter::repeat_n(sum / n as f32, n));
    gains.iter_mut().zip(means).for_each(|(gain, mean)| *gain = mean);
}

/// Sums over the tokens of a leaf.
struct Sums {
    /// `Z_q`. Shapes: `{n_row}`.
    z: Vec<f32>,
    /// `M_q`, projected. Shapes: `{N_PROJ, n_row}`.
    m: Vec<f32>,
    /// Keys, each weighted by its attention. Shapes: `{head_dim_k}`.
    key: Vec<f32>,
    /// The weights.
    mass: f32,
}

impl Sums {
    /// The sums over the other tokens.
    fn without(mut self, part: &Sums) -> Sums {
        vector::add_scaled(&mut self.z, -1.0, &part.z);
        vector::add_scaled(&mut self.m, -1.0, &part.m);
        vector::add_scaled(&mut self.key, -1.0, &part.key);
        self.mass -= part.mass;
        self
    }
}

struct Leaf {
    /// Rows of the tree's matrices.
    tokens: Vec<u32>,
    error: f32,
    /// Of leaves with [`MANY`] tokens.
    sums: Option<Sums>,
}

impl Ord for Leaf {
    fn cmp(&self, other: &Self) -> Ordering {
        self.error.total_cmp(&other.error).then_with(|| other.tokens.cmp(&self.tokens))
    }
}
impl PartialOrd for Leaf {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Leaf {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Leaf {}

pub(super) struct Tree<'a> {
    /// Without its values.
    head: Head,
    tokens: &'a [u32],
    /// The queries that measure. Shapes: `{head_dim_k, n_row}`.
    queries: Array2<f32>,
    /// Their weights, summing to 1.
    row_weight: Vec<f32>,
    /// Their `lz_q`.
    lz: Vec<f32>,
    /// Attention to each token. Shapes: `{n_row, n_tokens}`.
    attention: Rows,
    /// Projected values. Shapes: `{N_PROJ, n_tokens}`.
    values: Rows,
    /// Projected outputs. Shapes: `{N_PROJ, n_row}`.
    output: Array2<f32>,
    /// Where the tokens lie in the metric of the queries. Shapes: `{rank, n_tokens}`.
    x: Array2<f32>,
    /// Squares of the rows of `x`.
    square: Vec<f32>,
    weight: Vec<f32>,
}

impl<'a> Tree<'a> {
    /// # Errors
    /// When a matrix of the head cannot be read.
    pub(super) fn new(mut head: Head, n_group: usize, tokens: &'a [u32]) -> Result<Self> {
        let first_sample = head.n_probe * n_group;
        let n_probe = head.n_probe + head.queries.nrows() - first_sample;
        let step = n_probe.div_ceil(N_PROBE).max(1);
        // Query heads of the group in turn; samples have one each.
        let row = |p: usize| match p.checked_sub(head.n_probe) {
            Some(sample) => first_sample + sample,
            None => p * n_group + (p / step) % n_group,
        };
        let rows: Vec<usize> = (0..n_probe).step_by(step).map(row).collect();
        let projection = projection(head.values.dim());
        let values = product(&head.values, tokens, projection.view(), |_| ())?;
        // A megabyte that is not needed beside what follows.
        head.values = Rows::default();

        let total: f32 = rows.iter().map(|&q| head.weight[q]).sum();
        let queries = head.queries.select(Axis(0), &rows);
        let lz: Vec<f32> = rows.iter().map(|&q| head.lz[q]).collect();
        let mut unused = vec![0.0; rows.len()];
        let turned = queries.t().as_standard_layout().into_owned();
        let attention = product(&head.keys, tokens, turned.view(), |row| {
            vector::softcap(row, head.softcap);
            vector::exp_shifted(row, &lz, FLOOR, &mut unused);
        })?;
        let factor = cluster::metric(head.queries.view());
        let mut x = Array2::zeros((tokens.len(), factor.ncols()));
        for (tile, mut x) in tokens.chunks(TILE).zip(x.axis_chunks_iter_mut(Axis(0), TILE)) {
            add_weighted_rows(head.keys.of(tile).view(), factor.view(), x.view_mut());
        }
        Ok(Tree {
            tokens,
            attention,
            values,
            output: head.output.select(Axis(0), &rows).dot(&projection),
            square: x.rows().into_iter().map(|x| x.dot(&x)).collect(),
            x,
            weight: cluster::weights(&head, tokens),
            row_weight: rows.iter().map(|&q| head.weight[q] / total.max(f32::MIN_POSITIVE)).collect(),
            lz,
            queries,
            head,
        })
    }

    /// The gains of the first `n` splits, as they come, as long as a leaf has an error of `least`.
    fn split(&self, n: usize, least: f32) -> Vec<f32> {
        let all: Vec<u32> = (0..self.tokens.len() as u32).collect();
        let sums = self.sums(&all);
        let mut leaves = BinaryHeap::from([self.leaf(all, sums)]);
        let mut gains = Vec::with_capacity(n);
        while gains.len() < n {
            let is_worth = |leaf: &Leaf| leaf.tokens.len() > 1 && leaf.error > 0.0 && leaf.error >= least;
            let Some(leaf) = leaves.pop().filter(is_worth) else { break };
            let (mut few, mut many) = self.cut(&leaf.tokens);
            if few.len() > many.len() {
                std::mem::swap(&mut few, &mut many);
            }
            // Most cuts take a little off a large leaf, so only that little is read.
            let of_few = self.sums(&few);
            let of_many = leaf.sums.map_or_else(|| self.sums(&many), |sums| sums.without(&of_few));
            let parts = [self.leaf(few, of_few), self.leaf(many, of_many)];
            gains.push(leaf.error - parts[0].error - parts[1].error);
            leaves.extend(parts);
        }
        gains
    }

    fn leaf(&self, tokens: Vec<u32>, sums: Sums) -> Leaf {
        let error = self.error_of(&tokens, &sums);
        let sums = (tokens.len() >= MANY).then_some(sums);
        Leaf { tokens, error, sums }
    }

    /// Two parts that lie apart, neither empty.
    pub(super) fn cut(&self, tokens: &[u32]) -> (Vec<u32>, Vec<u32>) {
        let rank = self.x.ncols();
        let row = |t: u32| &self.x.as_slice().unwrap_or(&[])[t as usize * rank..][..rank];
        let weight: Vec<f32> = tokens.iter().map(|&t| self.weight[t as usize]).collect();
        let largest = |of: &[f32]| (0..of.len()).fold(0, |best, i| if of[i] > of[best] { i } else { best });
        let (mut x, mut along, mut is_second) = (Vec::new(), vec![0.0; TILE], vec![false; tokens.len()]);
        let gather = |tile: &[u32], x: &mut Vec<f32>| {
            x.clear();
            tile.iter().for_each(|&t| x.extend_from_slice(row(t)));
        };

        let first = row(tokens[largest(&weight)]);
        let square = vector::dot(first, first);
        let mut spread = weight.clone();
        for (tile, spread) in tokens.chunks(TILE).zip(spread.chunks_mut(TILE)) {
            gather(tile, &mut x);
            vector::multiply(&x, first, &mut along);
            for ((spread, &t), along) in spread.iter_mut().zip(tile).zip(&along) {
                *spread *= (self.square[t as usize] + square - 2.0 * along).max(0.0);
            }
        }
        let mut centres = [first.to_vec(), row(tokens[largest(&spread)]).to_vec()];
        for _ in 0..N_STEP {
            // Nearer to the second centre: beyond the plane between them.
            let normal: Vec<f32> = centres[1].iter().zip(&centres[0]).map(|(b, a)| b - a).collect();
            let plane = (vector::dot(&centres[1], &centres[1]) - vector::dot(&centres[0], &centres[0])) / 2.0;
            let (mut sums, mut total) = ([vec![0.0; rank], vec![0.0; rank]], [0.0f32; 2]);
            let tiles = tokens.chunks(TILE).zip(weight.chunks(TILE)).zip(is_second.chunks_mut(TILE));
            for ((tile, weight), is_second) in tiles {
                gather(tile, &mut x);
                let along = &mut along[..tile.len()];
                vector::multiply(&x, &normal, along);
                is_second.iter_mut().zip(&*along).for_each(|(second, &along)| *second = along > plane);
                for (i, second) in [false, true].into_iter().enumerate() {
                    let own = |(&w, &s): (&f32, &bool)| if s == second { w } else { 0.0 };
                    along.iter_mut().zip(weight.iter().zip(&*is_second).map(own)).for_each(|(a, w)| *a = w);
                    total[i] += vector::sum(along);
                    vector::add_weighted(&x, along, &mut sums[i]);
                }
            }
            for ((centre, sum), total) in centres.iter_mut().zip(sums).zip(total).filter(|(_, total)| *total > 0.0) {
                centre.iter_mut().zip(sum).for_each(|(centre, sum)| *centre = sum / total);
            }
        }
        let part = |second: bool| {
            let own = tokens.iter().zip(&is_second).filter(|(_, &s)| s == second);
            own.map(|(&t, _)| t).collect::<Vec<u32>>()
        };
        let (first, second) = (part(false), part(true));
        if first.is_empty() || second.is_empty() {
            let (first, second) = tokens.split_at(tokens.len() / 2);
            return (first.to_vec(), second.to_vec());
        }
        (first, second)
    }

    #[cfg(test)]
    pub(super) fn error(&self, tokens: &[u32]) -> f32 {
        self.error_of(tokens, &self.sums(tokens))
    }

    fn sums(&self, tokens: &[u32]) -> Sums {
        let n_row = self.lz.len();
        let mut sums =
            Sums { z: vec![0.0; n_row], m: vec![0.0; n_row * N_PROJ], key: vec![0.0; self.head.keys.dim()], mass: 0.0 };
        for tile in tokens.chunks(TILE) {
            let ids: Vec<u32> = tile.iter().map(|&i| self.tokens[i as usize]).collect();
            let mass: Vec<f32> = ids.iter().map(|&t| self.head.mass[t as usize]).collect();
            sums.mass += mass.iter().sum::<f32>();
            vector::add_weighted(self.head.keys.of(&ids).as_slice().unwrap_or(&[]), &mass, &mut sums.key);
            let (attention, values) = (self.attention.of(tile), self.values.of(tile));
            for (a, v) in attention.rows().into_iter().zip(values.rows()) {
                let (Some(a), Some(v)) = (a.to_slice(), v.to_slice()) else { continue };
                vector::add_scaled(&mut sums.z, 1.0, a);
                vector::add_outer(&mut sums.m, a, v);
            }
        }
        sums
    }

    /// The error of one entry in place of a leaf, fitted to one half of the probes and measured with the other, and the reverse.
    fn error_of(&self, tokens: &[u32], sums: &Sums) -> f32 {
        if tokens.len() < 2 || sums.mass <= 0.0 {
            return 0.0;
        }
        let (mut e, key) = (vec![0.0; self.lz.len()], sums.key.iter().map(|k| k / sums.mass).collect::<Vec<f32>>());
        vector::multiply(self.queries.as_slice().unwrap_or(&[]), &key, &mut e);
        vector::softcap(&mut e, self.head.softcap);
        e.iter_mut().zip(&self.lz).for_each(|(e, lz)| *e = (*e - lz).min(MAX_LOG_E));
        vector::exp_minus(&mut e, 0.0, FLOOR);
        (0..2).map(|half| self.error_of_half(half, &e, sums)).sum()
    }

    fn error_of_half(&self, half: usize, e: &[f32], sums: &Sums) -> f32 {
        let of_row = |x: &[f32], r: usize| -> [f32; N_PROJ] { std::array::from_fn(|i| x[r * N_PROJ + i]) };
        let row = |r: usize| (self.row_weight[r], sums.z[r], of_row(&sums.m, r));
        let output = self.output.as_slice().unwrap_or(&[]);
        let n_row = self.lz.len();
        let (mut z_fit, mut m_fit, mut square) = (0.0, [0.0f32; N_PROJ], f32::MIN_POSITIVE);
        for r in (half..n_row).step_by(2) {
            let (w, z, m) = row(r);
            square += w * e[r] * e[r];
            z_fit += w * e[r] * z;
            (0..N_PROJ).for_each(|i| m_fit[i] += w * e[r] * m[i]);
        }
        // `b`, and `b v`.
        z_fit /= square;
        m_fit.iter_mut().for_each(|x| *x /= square);
        let measured = (1 - half..n_row).step_by(2).map(|r| {
            let (w, z, m) = row(r);
            let (o, off) = (of_row(output, r), z - e[r] * z_fit);
            let lost: [f32; N_PROJ] = std::array::from_fn(|i| m[i] - e[r] * m_fit[i] - off * o[i]);
            w * lost.iter().map(|x| x * x).sum::<f32>()
        });
        measured.sum()
    }
}

/// Rows of `tokens`, times a matrix, each finished by `finish`. Shapes: `matrix: {n, dim}`, result: `{n, tokens.len()}`.
fn product(rows: &Rows, tokens: &[u32], matrix: ArrayView2<f32>, mut finish: impl FnMut(&mut [f32])) -> Result<Rows> {
    let n = matrix.ncols().max(1);
    Rows::read(tokens.len(), matrix.ncols(), |first, out| {
        let rows = rows.of(&tokens[first..first + out.len() / n]);
        out.fill(0.0);
        if let Ok(product) = ArrayViewMut2::from_shape((rows.nrows(), matrix.ncols()), out) {
            add_weighted_rows(rows.view(), matrix, product);
        }
        out.chunks_exact_mut(n).for_each(&mut finish);
        Ok(())
    })
}

/// A fixed matrix of +-1/sqrt(N_PROJ), which keeps lengths on average. Shapes: `{N_PROJ, dim}`.
pub(super) fn projection(dim: usize) -> Array2<f32> {
    let mut x = 0x9e37_79b9_7f4a_7c15u64;
    Array2::from_shape_simple_fn((dim, N_PROJ), || {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (if x >> 63 == 0 { 1.0 } else { -1.0 }) / (N_PROJ as f32).sqrt()
    })
}
