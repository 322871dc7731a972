//! Multi-head latent attention in its absorbed form: all heads attend to one key `[rotated | latent]` and one value, the latent.
//!
//! Source: DeepSeek-V2 (arXiv 2405.04434); llama.cpp `src/models/deepseek2.cpp`. So the cache has one KV head per layer, and a
//! pass compresses it like any other: its rotated part comes first and is turned back by the plain rotation.
//! Deviation: the value is stored beside the key, where llama.cpp reads it from the key; a cache is that much larger.

use super::super::graph::Build;
use super::super::weights::Latent;
use super::NormKind;
use crate::error::Result;
use crate::ggml::Tensor;

impl Build<'_> {
    /// Rotated queries and keys and the latent value. Shapes: `{n_rot + n_latent, n_head or 1, n}`, `{n_latent, 1, n}`.
    pub(super) fn latent_qkv(&self, il: usize, x: &Tensor, w: &Latent) -> Result<(Tensor, Tensor, Tensor)> {
        let (hp, ctx, n) = (&self.model.hp, &self.ctx, x.ne()[1]);
        let (n_latent, n_rot) = (hp.head_dim_v, hp.head_dim_k - hp.head_dim_v);
        let x_q = match &w.q_a {
            Some((a, norm)) => self.norm(NormKind::Rms, &self.linear(a, x)?, norm)?,
            None => x.clone(),
        };
        let n_plain = w.k_b.ne()[0];
        let q = ctx.reshape(&self.linear(&w.q, &x_q)?, &[n_plain + n_rot, hp.n_head, n])?;
        let nb = q.nb();
        let part =
            |first: usize, len: usize| ctx.view(&q, [len, hp.n_head, n, 1], [nb[1], nb[2], nb[3]], first * nb[0]);
        // The key's up-projection is applied to the query instead: {n_plain, n, n_head} to {n_latent, n_head, n}.
        let plain = ctx.mul_mat(&w.k_b, &ctx.permute(&part(0, n_plain)?, [0, 2, 1, 3])?)?;
        let plain = ctx.cont(&ctx.permute(&plain, [0, 2, 1, 3])?)?;
        let rotated = self.rope(&ctx.cont(&part(n_plain, n_rot)?)?, il)?;
        let q = self.tempered(il, ctx.concat(&rotated, &plain, 0)?)?.named(&format!("Qcur-{il}"));

        let kv = self.linear(&w.kv_a, x)?;
        let row = kv.nb()[1];
        let part = |first: usize, len: usize| ctx.cont(&ctx.view(&kv, [len, n, 1, 1], [row; 3], first * kv.nb()[0])?);
        let latent = self.norm(NormKind::Rms, &part(0, n_latent)?, &w.kv_a_norm)?;
        let latent = ctx.reshape(&latent, &[n_latent, 1, n])?;
        let rotated = self.rope(&ctx.reshape(&part(n_latent, n_rot)?, &[n_rot, 1, n])?, il)?;
        let k = ctx.concat(&rotated, &latent, 0)?.named(&format!("Kcur-{il}"));
        Ok((q, k, latent))
    }

    /// The heads' own values from their sums of latents. Shapes: `{n_latent, n_head, n}` to `{head_dim, n_head, n}`.
    pub(super) fn latent_values(&self, out: &Tensor, w: &Latent) -> Result<Tensor> {
        let heads = self.ctx.mul_mat(&w.v_b, &self.ctx.permute(out, [0, 2, 1, 3])?)?;
        self.ctx.cont(&self.ctx.permute(&heads, [0, 2, 1, 3])?)
    }
}

/// The output matrix of heads that give their latents: `wo[e] . v_b[h]` for each row. Shapes: `wo: {dv * n_head, n_embd}`,
/// `v_b: {n_latent, dv, n_head}`; result `{n_latent * n_head, n_embd}`.
pub fn compose(wo: &[f32], v_b: &[f32], [n_latent, dv, n_head]: [usize; 3]) -> Vec<f32> {
    let mut out = Vec::with_capacity(wo.len() / dv * n_latent);
    for row in wo.chunks_exact(dv * n_head) {
        for (w, v_b) in row.chunks_exact(dv).zip(v_b.chunks_exact(n_latent * dv)) {
            let mut sum = vec![0.0f32; n_latent];
            for (w, v) in w.iter().zip(v_b.chunks_exact(n_latent)) {
                sum.iter_mut().zip(v).for_each(|(s, v)| *s += w * v);
            }
            out.extend(sum);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_composed_matrix_gives_what_both_give() {
        let [n_latent, dv, n_head, n_embd] = [3, 2, 2, 2];
        let number = |i: usize| (i as f32 * 0.7).sin();
        let wo: Vec<f32> = (0..dv * n_head * n_embd).map(number).collect();
        let v_b: Vec<f32> = (0..n_latent * dv * n_head).map(|i| number(i + 50)).collect();
        let z: Vec<f32> = (0..n_latent * n_head).map(|i| number(i + 90)).collect();
        let composed = super::compose(&wo, &v_b, [n_latent, dv, n_head]);
        for e in 0..n_embd {
            let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
            let values =
                (0..n_head * dv).map(|i| dot(&v_b[i * n_latent..][..n_latent], &z[i / dv * n_latent..][..n_latent]));
            let want = dot(&wo[e * dv * n_head..][..dv * n_head], &values.collect::<Vec<_>>());
            let found = dot(&composed[e * n_latent * n_head..][..n_latent * n_head], &z);
            assert!((want - found).abs() < 1e-5, "{want} {found}");
        }
    }
}
