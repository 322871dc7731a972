//! Rotary position embedding on the host, equal to ggml's `ggml_rope_ext` (stage 4: methods rotate keys and queries to other positions).
//!
//! Source: llama.cpp `ggml/src/ggml-cpu/ops.cpp` (`rope_yarn`, `ggml_rope_cache_init`), RoFormer (arXiv 2104.09864), YaRN (arXiv 2309.00071).

/// Which components form a rotated pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeKind {
    /// No rotation (some layers of some models).
    None,
    /// Pairs `(2i, 2i + 1)` (`GGML_ROPE_TYPE_NORMAL`).
    Normal,
    /// Pairs `(i, i + n_rot / 2)` (`GGML_ROPE_TYPE_NEOX`).
    Neox,
}

/// The rotation of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Pair layout.
    pub kind: RopeKind,
    /// Rotated components of a head; the rest pass unchanged.
    pub n_rot: usize,
    /// Base of the frequencies.
    pub freq_base: f32,
    /// Position scale (1 / context extension factor).
    pub freq_scale: f32,
    /// YaRN extrapolation mix, 0 = off.
    pub ext_factor: f32,
    /// YaRN magnitude factor.
    pub attn_factor: f32,
    /// YaRN correction bounds (`beta_fast`).
    pub beta_fast: f32,
    /// YaRN correction bounds (`beta_slow`).
    pub beta_slow: f32,
    /// Context length the model was trained with, for YaRN.
    pub n_ctx_orig: usize,
    /// Per-pair frequency divisors (llama-3, long-rope); empty = none. Shapes: `{n_rot / 2}`.
    pub freq_factors: Vec<f32>,
}

impl Rope {
    /// The plain rotation over `n_rot` components.
    pub fn new(kind: RopeKind, n_rot: usize, freq_base: f32) -> Self {
        Rope {
            kind,
            n_rot,
            freq_base,
            freq_scale: 1.0,
            ext_factor: 0.0,
            attn_factor: 1.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            n_ctx_orig: 0,
            freq_factors: Vec::new(),
        }
    }

    /// Rotates `x: {head_dim}` from position 0 to `pos`, with ggml's magnitude factor.
    pub fn rotate(&self, x: &mut [f32], pos: f32) {
        self.apply(x, pos, 1.0, self.magnitude());
    }

    /// Undoes [`Rope::rotate`]: from `pos` back to position 0.
    pub fn unrotate(&self, x: &mut [f32], pos: f32) {
        self.apply(x, pos, -1.0, 1.0 / self.magnitude());
    }

    /// Moves already rotated rows of `dim` numbers by `delta` positions. Angles are linear in the position, so where a row
    /// stands does not matter, and the magnitude stays.
    pub fn shift_all(&self, rows: &mut [f32], dim: usize, delta: f32) {
        let turns: Vec<(f32, f32)> = (0..self.n_rot / 2).map(|i| self.angle(i, delta).sin_cos()).collect();
        rows.chunks_exact_mut(dim).for_each(|row| self.turn(row, &turns, 1.0));
    }

    fn magnitude(&self) -> f32 {
        if self.ext_factor == 0.0 {
            return self.attn_factor;
        }
        self.attn_factor * (1.0 + 0.1 * (1.0 / self.freq_scale).ln())
    }

    /// Angle of pair `i` at `pos` (ggml's `rope_yarn` without the magnitude).
    fn angle(&self, i: usize, pos: f32) -> f32 {
        let theta_scale = self.freq_base.powf(-2.0 / self.n_rot as f32);
        let factor = self.freq_factors.get(i).copied().unwrap_or(1.0);
        let theta_extrap = pos * theta_scale.powi(i as i32) / factor;
        let theta_interp = self.freq_scale * theta_extrap;
        if self.ext_factor == 0.0 {
            return theta_interp;
        }
        let (low, high) = self.corr_dims();
        let y = (i as f32 - low) / (high - low).max(0.001);
        let ramp_mix = (1.0 - y.clamp(0.0, 1.0)) * self.ext_factor;
        theta_interp * (1.0 - ramp_mix) + theta_extrap * ramp_mix
    }

    /// `ggml_rope_yarn_corr_dims`.
    fn corr_dims(&self) -> (f32, f32) {
        let dim = |n_rot: f32| {
            self.n_rot as f32 * (self.n_ctx_orig as f32 / (n_rot * 2.0 * std::f32::consts::PI)).ln()
                / (2.0 * self.freq_base.ln())
        };
        let low = dim(self.beta_fast).floor().max(0.0);
        let high = dim(self.beta_slow).ceil().min(self.n_rot as f32 - 1.0);
        (low, high)
    }

    fn apply(&self, x: &mut [f32], pos: f32, sign: f32, magnitude: f32) {
        let turns: Vec<(f32, f32)> = (0..self.n_rot / 2).map(|i| (sign * self.angle(i, pos)).sin_cos()).collect();
        self.turn(x, &turns, magnitude);
    }

    /// Turns each pair by its sine and cosine.
    fn turn(&self, x: &mut [f32], turns: &[(f32, f32)], magnitude: f32) {
        for (i, (sin, cos)) in turns.iter().enumerate() {
            let (a, b) = match self.kind {
                RopeKind::None => return,
                RopeKind::Normal => (2 * i, 2 * i + 1),
                RopeKind::Neox => (i, i + turns.len()),
            };
            let (x0, x1) = (x[a], x[b]);
            x[a] = (x0 * cos - x1 * sin) * magnitude;
            x[b] = (x0 * sin + x1 * cos) * magnitude;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn yarn() -> Rope {
        let mut rope = Rope::new(RopeKind::Neox, 32, 10_000.0);
        rope.freq_scale = 0.25;
        rope.ext_factor = 1.0;
        rope.n_ctx_orig = 4096;
        rope
    }

    #[test]
    fn unrotate_inverts_rotate_for_every_kind() {
        let mut factors = Rope::new(RopeKind::Normal, 32, 500_000.0);
        factors.freq_factors = (0..16).map(|i| 1.0 + i as f32).collect();
        let plain = [RopeKind::None, RopeKind::Normal, RopeKind::Neox].map(|k| Rope::new(k, 32, 10_000.0));
        for rope in plain.into_iter().chain([factors, yarn()]) {
            let x: Vec<f32> = (0..48).map(|i| (i as f32 * 0.37).sin()).collect();
            let mut y = x.clone();
            rope.rotate(&mut y, 1234.0);
            rope.unrotate(&mut y, 1234.0);
            assert!(x.iter().zip(&y).all(|(a, b)| (a - b).abs() < 1e-4), "{rope:?}");
            assert_eq!(x[32..], y[32..], "components beyond n_rot must pass unchanged");
        }
    }

    #[test]
    fn all_rows_move_as_each_would() {
        let mut factors = yarn();
        factors.freq_factors = (0..16).map(|i| 1.0 + i as f32).collect();
        for rope in [Rope::new(RopeKind::Normal, 32, 10_000.0), yarn(), factors] {
            let x: Vec<f32> = (0..48).map(|i| (i as f32 * 0.29).sin()).collect();
            let (mut a, mut b) = ([x.clone(), x.clone()].concat(), x);
            rope.rotate(&mut a[..48], 700.0);
            rope.rotate(&mut a[48..], 31.0);
            rope.shift_all(&mut a, 48, -25.0);
            rope.rotate(&mut b, 675.0);
            assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-3), "{rope:?}");
            rope.shift_all(&mut a[48..], 48, 669.0);
            assert!(a[48..].iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-3), "{rope:?}");
        }
    }
}
