//! Rotations of all prompt positions as a table (stage 5): a prototype rotates keys back to position 0 and forward again.
//!
//! `Rope` computes powers and sines for every pair of every call; the pass needs each angle once per token, layer and head.
//! The table is filled through `Rope::rotate` itself, so that partial rotation, frequency factors and YaRN are those of the model.

use rayon::prelude::*;

use crate::cache::rope::{Rope, RopeKind};
use crate::cache::view::View;

/// The rotation of one layer at the positions `0..n_tokens`.
#[derive(Debug)]
pub(super) struct Rotation {
    kind: RopeKind,
    half: usize,
    /// `magnitude * (cos, sin)`. Shapes: `{n_rot / 2, n_tokens}`.
    table: Vec<(f32, f32)>,
    /// `1 / magnitude^2`.
    inverse: f32,
}

impl Rotation {
    /// The table of `rope` for `n_tokens` positions.
    pub fn new(rope: &Rope, n_tokens: usize) -> Self {
        let half = if rope.kind == RopeKind::None { 0 } else { rope.n_rot / 2 };
        let mut this = Rotation { kind: rope.kind, half, table: vec![(0.0, 0.0); half * n_tokens], inverse: 1.0 };
        if half == 0 {
            return this;
        }
        let pairs: Vec<(usize, usize)> = (0..half).map(|i| this.pair(i)).collect();
        this.table.par_chunks_mut(half).enumerate().for_each(|(pos, row)| {
            let mut x = vec![0.0; rope.n_rot];
            pairs.iter().for_each(|&(a, _)| x[a] = 1.0);
            rope.rotate(&mut x, pos as f32);
            row.iter_mut().zip(&pairs).for_each(|(to, &(a, b))| *to = (x[a], x[b]));
        });
        if let Some((cos, _)) = this.table.first() {
            this.inverse = 1.0 / (cos * cos);
        }
        this
    }

    fn pair(&self, i: usize) -> (usize, usize) {
        match self.kind {
            RopeKind::Normal => (2 * i, 2 * i + 1),
            RopeKind::Neox | RopeKind::None => (i, i + self.half),
        }
    }

    /// Rotates `x: {head_dim}` from position 0 to `pos`.
    pub fn rotate(&self, x: &mut [f32], pos: u32) {
        for (i, &(cos, sin)) in self.row(pos).iter().enumerate() {
            let (a, b) = self.pair(i);
            (x[a], x[b]) = (x[a] * cos - x[b] * sin, x[a] * sin + x[b] * cos);
        }
    }

    /// Undoes [`Rotation::rotate`].
    pub fn unrotate(&self, x: &mut [f32], pos: u32) {
        for (i, &(cos, sin)) in self.row(pos).iter().enumerate() {
            let (a, b) = self.pair(i);
            (x[a], x[b]) = ((x[a] * cos + x[b] * sin) * self.inverse, (x[b] * cos - x[a] * sin) * self.inverse);
        }
    }

    fn row(&self, pos: u32) -> &[(f32, f32)] {
        &self.table[pos as usize * self.half..(pos as usize + 1) * self.half]
    }
}

/// One table per distinct rotation of the model.
#[derive(Debug)]
pub(super) struct Rotations {
    tables: Vec<Rotation>,
    of_layer: Vec<usize>,
}

impl Rotations {
    /// The tables of the layers that may be compressed.
    pub fn new(view: &View) -> Self {
        let mut distinct: Vec<&Rope> = Vec::new();
        let mut of_layer = vec![0; view.n_layer];
        for &il in view.layers {
            let rope = &view.rope[il];
            of_layer[il] = distinct.iter().position(|&r| r == rope).unwrap_or_else(|| {
                distinct.push(rope);
                distinct.len() - 1
            });
        }
        Rotations { tables: distinct.iter().map(|r| Rotation::new(r, view.n_tokens)).collect(), of_layer }
    }

    /// No rotations, for plans without prototypes.
    pub fn none(n_layer: usize) -> Self {
        let table = Rotation { kind: RopeKind::None, half: 0, table: Vec::new(), inverse: 1.0 };
        Rotations { tables: vec![table], of_layer: vec![0; n_layer] }
    }

    /// The rotation of layer `il`, one of the view's layers.
    pub fn of(&self, il: usize) -> &Rotation {
        &self.tables[self.of_layer[il]]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_equals_the_rotation_it_was_made_from() {
        let mut yarn = Rope::new(RopeKind::Neox, 16, 10_000.0);
        (yarn.freq_scale, yarn.ext_factor, yarn.n_ctx_orig) = (0.25, 1.0, 4096);
        let kinds = [RopeKind::None, RopeKind::Normal, RopeKind::Neox].map(|k| Rope::new(k, 16, 10_000.0));
        for rope in kinds.into_iter().chain([yarn]) {
            let table = Rotation::new(&rope, 300);
            let x: Vec<f32> = (0..24).map(|i| (i as f32 * 0.7).sin()).collect();
            for pos in [0, 1, 299] {
                let (mut a, mut b) = (x.clone(), x.clone());
                rope.rotate(&mut a, pos as f32);
                table.rotate(&mut b, pos);
                assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-6), "{rope:?}");
                table.unrotate(&mut b, pos);
                assert!(x.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-5), "{rope:?}");
            }
        }
    }
}
