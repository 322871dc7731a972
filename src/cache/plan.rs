//! A plan: which entries a layer holds after the pass (stage 4 of the flow, made by stage 5).
//!
//! It states exactly what memory results; `rewrite` carries it out. An entry is one K row, one V row and a bias on its logit.

use crate::error::{Error, Result};

/// Where one row of an entry comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Row {
    /// Copied bit by bit from the row of this prompt token.
    Token(u32),
    /// Taken from this row of [`HeadPlan::new_keys`] or [`HeadPlan::new_values`].
    New(u32),
}

/// One entry of a head after the pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Entry {
    /// Source of the key.
    pub key: Row,
    /// Source of the value.
    pub value: Row,
    /// Added to the logit of this entry (ln of a multiplicity, or a fitted bias); 0 for an exact token.
    pub bias: f32,
    /// How many prompt tokens the entry stands for.
    pub n_tokens: u32,
}

/// The entries of one (layer, KV head).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HeadPlan {
    /// Entries in the order in which they are stored.
    pub entries: Vec<Entry>,
    /// Keys that are no token's. Shapes: `{head_dim_k, n_new}`.
    pub new_keys: Vec<f32>,
    /// Values that are no token's. Shapes: `{head_dim_v, n_new}`.
    pub new_values: Vec<f32>,
}

/// The entries of one layer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerPlan {
    /// The layer.
    pub il: usize,
    /// One per KV head.
    pub heads: Vec<HeadPlan>,
}

impl HeadPlan {
    /// The plan that keeps exactly these tokens.
    pub fn keep(tokens: impl IntoIterator<Item = u32>) -> Self {
        let entries = tokens
            .into_iter()
            .map(|t| Entry { key: Row::Token(t), value: Row::Token(t), bias: 0.0, n_tokens: 1 })
            .collect();
        HeadPlan { entries, ..HeadPlan::default() }
    }

    /// Checks every reference and number, so that `rewrite` cannot read outside a tensor or store a NaN.
    ///
    /// # Errors
    /// [`Error::Budget`] naming the first wrong entry.
    pub fn check(&self, n_tokens: usize, head_dim_k: usize, head_dim_v: usize) -> Result<()> {
        let bad = |what: String| Err(Error::Budget { what });
        if self.entries.is_empty() {
            return bad("a head would be left without any entry".into());
        }
        for (i, e) in self.entries.iter().enumerate() {
            let fits = |row: Row, new: &[f32], dim: usize| match row {
                Row::Token(t) => (t as usize) < n_tokens,
                Row::New(r) => (r as usize + 1) * dim <= new.len(),
            };
            if !fits(e.key, &self.new_keys, head_dim_k) || !fits(e.value, &self.new_values, head_dim_v) {
                return bad(format!("entry {i} refers to a row that does not exist"));
            }
            if !e.bias.is_finite() {
                return bad(format!("entry {i} has the bias {}", e.bias));
            }
        }
        if self.new_keys.iter().chain(&self.new_values).any(|x| !x.is_finite()) {
            return bad("a fitted key or value is not finite".into());
        }
        Ok(())
    }
}
