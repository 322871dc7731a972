//! Head sensitivity: how much the residual stream depends on a (layer, KV head) (stage 5, section "value flow" of arXiv 2608.07001).

use ndarray::linalg::general_mat_mul;
use ndarray::{s, Array2};

use super::attention::matrix;
use crate::cache::view::View;
use crate::error::Result;

/// `omega = sqrt(a * b)` with `a = sqrt(sum_h |W_O^h|_F^2)` and `b = mean over probes |sum_h W_O^h o_u^h|`, h over the group's query heads.
///
/// Shapes: `outputs: {head_dim_v, n_group, n_probe}`, the attention outputs `o_u^h` of the group.
///
/// # Errors
/// When the output weights cannot be read.
pub(super) fn omega(view: &View, il: usize, g: usize, outputs: &[f32]) -> Result<f32> {
    let (d, n_group) = (view.head_dim_v, view.n_group());
    let outputs = matrix(outputs, d * n_group)?;
    let (mut weight, mut added) = (0.0, Array2::<f32>::zeros((0, 0)));
    for h in 0..n_group {
        let w = view.source.output_weight(il, g * n_group + h)?;
        let n_embd = w.len() / d;
        let w = matrix(&w, n_embd)?;
        weight += w.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>();
        if h == 0 {
            added = Array2::zeros((outputs.nrows(), n_embd));
        }
        general_mat_mul(1.0, &outputs.slice(s![.., h * d..(h + 1) * d]), &w, 1.0, &mut added);
    }
    let norm = |row: ndarray::ArrayView1<f32>| row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    let b = added.rows().into_iter().map(norm).sum::<f64>() / outputs.nrows().max(1) as f64;
    let omega = (weight.sqrt() * b).sqrt() as f32;
    Ok(if omega.is_finite() { omega } else { 0.0 })
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{reals, Fixture, Rng};
    use super::*;

    #[test]
    fn agrees_with_sums_over_single_weights() {
        let fixture = Fixture::new(20);
        let view = &fixture.view();
        let (d, n_group, n_probe) = (view.head_dim_v, view.n_group(), 5);
        let outputs = reals(&mut Rng(2), d * n_group * n_probe);
        let w: Vec<Vec<f32>> = (0..n_group).map(|h| view.source.output_weight(1, n_group + h).unwrap()).collect();
        let a = w.iter().flatten().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
        let n_embd = w[0].len() / d;
        let mut b = 0.0;
        for u in 0..n_probe {
            let of = |e: usize| -> f64 {
                let at = |h: usize, j: usize| {
                    f64::from(w[h][j * n_embd + e]) * f64::from(outputs[(u * n_group + h) * d + j])
                };
                (0..n_group).flat_map(|h| (0..d).map(move |j| (h, j))).map(|(h, j)| at(h, j)).sum()
            };
            b += (0..n_embd).map(|e| of(e).powi(2)).sum::<f64>().sqrt() / n_probe as f64;
        }
        let got = f64::from(omega(view, 1, 1, &outputs).unwrap());
        assert!((got - (a * b).sqrt()).abs() < 1e-4 * got, "{got} {}", (a * b).sqrt());
    }
}
