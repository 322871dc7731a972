//! How a model rotates positions: what its file says, and what the command line changes about that (RoPE scaling, YaRN).
//!
//! Source: llama.cpp `src/llama-model.cpp` (`load_hparams`), `src/llama-context.cpp` (the constructor), `ggml_rope_ext`;
//! YaRN is arXiv 2309.00071. As there, only the base and the scale of layers that see the whole context can be changed, and
//! the magnitude of YaRN follows from its scale.

use super::{Hparams, Reader};
use crate::cache::rope::{Rope, RopeKind};
use crate::error::{Error, Result};

/// A way to reach further than the model was trained for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeScaling {
    /// Positions as they are.
    None,
    /// Positions divided by a factor.
    Linear,
    /// Low frequencies divided, high ones kept.
    Yarn,
}

/// What is asked for in place of what the file says; `None` leaves it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RopeOptions {
    /// `--rope-scaling`.
    pub scaling: Option<RopeScaling>,
    /// `--rope-freq-base`.
    pub freq_base: Option<f32>,
    /// `--rope-freq-scale`, the inverse of `--rope-scale`.
    pub freq_scale: Option<f32>,
    /// `--yarn-orig-ctx`.
    pub yarn_orig_ctx: Option<usize>,
    /// `--yarn-ext-factor`.
    pub yarn_ext_factor: Option<f32>,
    /// `--yarn-attn-factor`; without effect where YaRN is on.
    pub yarn_attn_factor: Option<f32>,
    /// `--yarn-beta-fast`.
    pub yarn_beta_fast: Option<f32>,
    /// `--yarn-beta-slow`.
    pub yarn_beta_slow: Option<f32>,
}

impl Reader<'_> {
    /// The rotation of a layer that sees the whole context.
    pub(super) fn rope(&self, kind: RopeKind, head_dim: usize, n_ctx_train: usize) -> Result<Rope> {
        let asked = self.rope_options();
        let n_rot = self.u32("rope.dimension_count")?.map_or(head_dim, |n| n as usize);
        if n_rot == 0 || n_rot > head_dim || n_rot % 2 != 0 {
            return Err(self.bad(
                "rope.dimension_count",
                format!("is {n_rot}; expected an even number up to the head size {head_dim}"),
            ));
        }
        let mut rope = Rope::new(kind, n_rot, asked.freq_base.or(self.f32("rope.freq_base")?).unwrap_or(10_000.0));
        if rope.freq_base <= 0.0 {
            return Err(self.bad("rope.freq_base", format!("is {}", rope.freq_base)));
        }
        let scaling = match (asked.scaling, self.text("rope.scaling.type")?.unwrap_or("linear")) {
            (Some(scaling), _) => scaling,
            (_, "none") => RopeScaling::None,
            // Long-rope differs from linear by factors that are tensors.
            (_, "linear" | "longrope") => RopeScaling::Linear,
            (_, "yarn") => RopeScaling::Yarn,
            (_, other) => return Err(Error::unsupported("rope.scaling.type", other)),
        };
        let factor = self.f32("rope.scaling.factor")?.or(self.f32("rope.scale_linear")?).filter(|&x| x > 0.0);
        rope.freq_scale = asked.freq_scale.or(factor.map(f32::recip)).unwrap_or(1.0);
        if scaling == RopeScaling::None {
            rope.freq_scale = 1.0;
        }
        let in_file = self.u32("rope.scaling.original_context_length")?.filter(|&n| n > 0).map(|n| n as usize);
        rope.n_ctx_orig = asked.yarn_orig_ctx.or(in_file).unwrap_or(n_ctx_train);
        rope.beta_fast = asked.yarn_beta_fast.unwrap_or(32.0);
        rope.beta_slow = asked.yarn_beta_slow.unwrap_or(1.0);
        rope.ext_factor = asked.yarn_ext_factor.unwrap_or(if scaling == RopeScaling::Yarn { 1.0 } else { 0.0 });
        rope.attn_factor = asked.yarn_attn_factor.unwrap_or(1.0);
        if rope.ext_factor != 0.0 {
            // ggml multiplies by the second factor itself, for scales below 1 too, where YaRN leaves the magnitude alone.
            let stretch = 0.1 * rope.freq_scale.recip().ln();
            rope.attn_factor = (1.0 + stretch.max(0.0)) / (1.0 + stretch);
        }
        rope.attn_factor *= self.f32("rope.scaling.attn_factor")?.unwrap_or(1.0);
        match rope.attn_factor.is_finite() {
            true => Ok(rope),
            false => Err(Error::Usage(format!("a RoPE scale of {} leaves no magnitude", rope.freq_scale))),
        }
    }

    /// YaRN's bounds and the weight of its magnitude, for architectures whose files have them.
    ///
    /// # Errors
    /// When one has another type or is not finite.
    pub(super) fn yarn_of_file(&self, hp: &mut Hparams) -> Result<()> {
        let asked = self.rope_options();
        let (fast, slow) = (self.f32("rope.scaling.yarn_beta_fast")?, self.f32("rope.scaling.yarn_beta_slow")?);
        let log_mul = self.f32("rope.scaling.yarn_log_multiplier")?.filter(|&x| x != 0.0);
        for rope in &mut hp.rope {
            rope.beta_fast = asked.yarn_beta_fast.or(fast).unwrap_or(rope.beta_fast);
            rope.beta_slow = asked.yarn_beta_slow.or(slow).unwrap_or(rope.beta_slow);
            if let Some(mul) = log_mul.filter(|_| rope.ext_factor != 0.0) {
                let stretch = 0.1 * rope.freq_scale.recip().ln().max(0.0);
                rope.attn_factor /= 1.0 + mul * stretch;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::{Gguf, Writer};

    fn rope(keys: &[(&str, f32)], scaling: Option<&str>, asked: RopeOptions) -> Result<Rope> {
        let mut header = Writer::new();
        header.set("general.architecture", "llama").unwrap();
        keys.iter().for_each(|(key, x)| header.set(&format!("llama.rope.{key}"), *x).unwrap());
        scaling.iter().for_each(|s| header.set("llama.rope.scaling.type", *s).unwrap());
        let file = tempfile::NamedTempFile::new().unwrap();
        header.write(file.path(), |_| Ok(Vec::new())).unwrap();
        let gguf = Gguf::open(file.path()).unwrap();
        Reader::new(&gguf, asked).rope(RopeKind::Normal, 64, 2048)
    }

    /// The product with ggml's own factor is 1 + 0.1 ln s, and 1 for s below 1.
    #[test]
    fn yarn_has_the_magnitude_of_the_paper() {
        for s in [0.5f32, 1.0, 4.0, 32.0] {
            let asked = RopeOptions { freq_scale: Some(1.0 / s), ..RopeOptions::default() };
            let yarn = rope(&[], Some("yarn"), asked).unwrap();
            assert_eq!((yarn.ext_factor, yarn.beta_fast, yarn.beta_slow, yarn.n_ctx_orig), (1.0, 32.0, 1.0, 2048));
            let whole = yarn.attn_factor * (1.0 + 0.1 * s.ln());
            assert!((whole - (1.0 + 0.1 * s.ln().max(0.0))).abs() < 1e-6, "{s}: {whole}");
        }
    }

    #[test]
    fn the_command_line_goes_before_the_file() {
        let keys = [("freq_base", 5e5), ("scaling.factor", 4.0), ("scaling.attn_factor", 1.5)];
        let file = rope(&keys, Some("yarn"), RopeOptions::default()).unwrap();
        assert_eq!((file.freq_base, file.freq_scale, file.ext_factor, file.attn_factor), (5e5, 0.25, 1.0, 1.5));
        let asked = RopeOptions {
            scaling: Some(RopeScaling::Linear),
            freq_base: Some(1e6),
            freq_scale: Some(0.125),
            yarn_attn_factor: Some(2.0),
            ..RopeOptions::default()
        };
        let both = rope(&keys, Some("yarn"), asked).unwrap();
        assert_eq!((both.freq_base, both.freq_scale, both.ext_factor, both.attn_factor), (1e6, 0.125, 0.0, 3.0));
        let none = RopeOptions { scaling: Some(RopeScaling::None), freq_scale: Some(0.5), ..RopeOptions::default() };
        assert_eq!(rope(&keys, Some("yarn"), none).unwrap().freq_scale, 1.0);
        let yarn = RopeOptions { yarn_ext_factor: Some(0.5), yarn_orig_ctx: Some(512), ..RopeOptions::default() };
        let yarn = rope(&[("scaling.factor", 2.0)], None, yarn).unwrap();
        assert_eq!((yarn.freq_scale, yarn.ext_factor, yarn.n_ctx_orig), (0.5, 0.5, 512));
        assert!(rope(&[], Some("spiral"), RopeOptions::default()).is_err());
        let steep = RopeOptions { freq_scale: Some(f32::MAX), yarn_ext_factor: Some(1.0), ..RopeOptions::default() };
        assert!(rope(&[], None, steep).map_or(true, |r| r.attn_factor.is_finite()));
    }
}
