//! Carrying out a plan: a layer becomes a pool of its chosen entries, in a buffer of its size, and the old one is freed.
//!
//! One layer at a time, so that memory never exceeds the full cache and one layer's pool. Entries go straight to the new
//! buffer: moving them to the front of the old one first would only add a copy. Bytes of exact tokens are copied as they are.

use super::hadamard::Hadamard;
use super::mirror::Mirror;
use super::plan::{HeadPlan, LayerPlan, Row};
use super::{KvCache, LayerCache, Layout, PoolHead};
use crate::error::{Error, Result};
use crate::ggml::Tensor;

impl KvCache {
    /// Replaces the tokens from position `first` to `n_prompt` of layer `plan.il` by its plan. Entries of earlier passes, which
    /// stand for the tokens before `first`, stay; later tokens follow exactly, with room for `room` more. What `mirror` has of the
    /// layer is used, and let go of.
    ///
    /// # Errors
    /// When the plan refers to what does not exist, or the memory cannot be had; the layer is then unchanged.
    pub fn rewrite(
        &mut self,
        plan: &LayerPlan,
        first: usize,
        n_prompt: usize,
        room: usize,
        mirror: &Mirror,
    ) -> Result<()> {
        let layer = &self.layers[plan.il];
        // First row of each head and how many entries it keeps.
        let old: Vec<(usize, usize)> = match &layer.layout {
            Layout::Dense if first == 0 => (0..self.n_head_kv).map(|g| (g * self.options.n_ctx, 0)).collect(),
            Layout::Pool(heads) => heads.iter().map(|h| (h.row, h.n_entries)).collect(),
            _ => Vec::new(),
        };
        if old.len() != plan.heads.len() || old.is_empty() || n_prompt > self.n_past || n_prompt < first {
            return Err(Error::shape(
                format!("plan of layer {}", plan.il),
                format!("a layer without a sliding window and {} heads", self.n_head_kv),
                format!("{} heads", plan.heads.len()),
            ));
        }
        for head in &plan.heads {
            head.check(n_prompt - first, self.head_dim_k, self.head_dim_v)?;
        }
        let n_since = self.n_past - n_prompt;
        let mut row = 0;
        let heads: Vec<PoolHead> = plan
            .heads
            .iter()
            .zip(&old)
            .map(|(h, (_, n_kept))| {
                let n_entries = n_kept + h.entries.len();
                let head = PoolHead { row, n_entries, capacity: n_entries + n_since + room };
                row += head.capacity;
                head
            })
            .collect();
        let mut new = self.new_layer(plan.il, row, Layout::Pool(heads.clone()), layer.home())?;
        let keys = |h: &HeadPlan| h.entries.iter().map(|e| e.key).collect::<Vec<_>>();
        let values = |h: &HeadPlan| h.entries.iter().map(|e| e.value).collect::<Vec<_>>();
        let job = Move { il: plan.il, old: &old, heads: &heads, n_tokens: n_prompt - first, n_since, mirror };
        job.run(
            true,
            &layer.k,
            &new.k,
            layer.hadamard_k.as_ref(),
            plan.heads.iter().map(|h| (keys(h), &h.new_keys[..])),
        )?;
        job.run(
            false,
            &layer.v,
            &new.v,
            layer.hadamard_v.as_ref(),
            plan.heads.iter().map(|h| (values(h), &h.new_values[..])),
        )?;
        if !layer.bias.is_empty() || plan.heads.iter().flat_map(|h| &h.entries).any(|e| e.bias != 0.0) {
            new.bias = vec![0.0; row];
            for ((place, head), &(from, n_kept)) in heads.iter().zip(&plan.heads).zip(&old) {
                let kept = layer.bias.get(from..from + n_kept).unwrap_or(&[]).iter().copied();
                // Without biases so far those that stay are 0.
                let kept = kept.chain(std::iter::repeat(0.0)).take(n_kept);
                for (b, e) in new.bias[place.row..].iter_mut().zip(kept.chain(head.entries.iter().map(|e| e.bias))) {
                    *b = e;
                }
            }
            new.spans.set_bias(new.bias.clone());
        }
        mirror.forget(plan.il);
        self.n_prompt = n_prompt;
        self.version += 1;
        self.layers[plan.il] = new;
        Ok(())
    }

    /// Gives every pool room for `room` more tokens.
    ///
    /// # Errors
    /// When the memory cannot be had; pools already enlarged stay so.
    pub fn grow(&mut self, room: usize) -> Result<()> {
        let n_since = self.n_past - self.n_prompt;
        for il in 0..self.layers.len() {
            let Layout::Pool(old) = self.layers[il].layout.clone() else { continue };
            let mut row = 0;
            let heads: Vec<PoolHead> = old
                .iter()
                .map(|h| {
                    let head = PoolHead { row, capacity: h.n_entries + n_since + room, ..*h };
                    row += head.capacity;
                    head
                })
                .collect();
            let layer = &self.layers[il];
            let mut new = self.new_layer(il, row, Layout::Pool(heads.clone()), layer.home())?;
            for (from, to) in [(&layer.k, &new.k), (&layer.v, &new.v)] {
                let stride = from.ty().row_size(from.ne()[0]);
                for (a, b) in old.iter().zip(&heads) {
                    let mut bytes = vec![0u8; (a.n_entries + n_since) * stride];
                    from.read(a.row * stride, &mut bytes)?;
                    to.write(b.row * stride, &bytes)?;
                }
            }
            if !layer.bias.is_empty() {
                new.bias = vec![0.0; row];
                for (a, b) in old.iter().zip(&heads) {
                    new.bias[b.row..b.row + a.n_entries].copy_from_slice(&layer.bias[a.row..a.row + a.n_entries]);
                }
                new.spans.set_bias(new.bias.clone());
            }
            self.version += 1;
            self.layers[il] = new;
        }
        Ok(())
    }
}

/// Where the rows of a layer come from and go to.
struct Move<'a> {
    il: usize,
    /// First row of each head and how many of its entries stay.
    old: &'a [(usize, usize)],
    heads: &'a [PoolHead],
    /// Tokens that the plan replaces.
    n_tokens: usize,
    n_since: usize,
    mirror: &'a Mirror,
}

impl Move<'_> {
    /// Copies the rows of one tensor. `plans`: per head the sources and the new rows `{dim, n_new}`.
    fn run<'p>(
        &self,
        keys: bool,
        from: &Tensor,
        to: &Tensor,
        hadamard: Option<&Hadamard>,
        plans: impl Iterator<Item = (Vec<Row>, &'p [f32])>,
    ) -> Result<()> {
        let dim = from.ne()[0];
        let stride = from.ty().row_size(dim);
        let mut old = Vec::new();
        for (g, (rows, new)) in plans.enumerate() {
            let (first, n_kept) = self.old[g];
            let n_replaced = n_kept + self.n_tokens;
            old.resize((n_replaced + self.n_since) * stride, 0);
            if from.host_bytes().is_some() {
                from.read(first * stride, &mut old)?;
            } else {
                from.read(first * stride, &mut old[..n_kept * stride])?;
                let rows = self.mirror.rows((self.il, keys, g), from, first + n_kept)?;
                old[n_kept * stride..].copy_from_slice(&rows);
            }
            let mut new = new.to_vec();
            hadamard.iter().for_each(|h| h.apply(&mut new));
            let mut converted = vec![0u8; new.len() / dim * stride];
            if !new.is_empty() && !from.ty().from_f32(&new, dim, &mut converted) {
                return Err(Error::unsupported("KV cache type for new entries", from.ty().name()));
            }
            let mut out = Vec::with_capacity((n_kept + rows.len() + self.n_since) * stride);
            out.extend_from_slice(&old[..n_kept * stride]);
            for row in rows {
                let (source, r) = match row {
                    Row::Token(t) => (&old, n_kept + t as usize),
                    Row::New(r) => (&converted, r as usize),
                };
                out.extend_from_slice(&source[r * stride..(r + 1) * stride]);
            }
            out.extend_from_slice(&old[n_replaced * stride..]);
            to.write(self.heads[g].row * stride, &out)?;
        }
        Ok(())
    }
}

impl KvCache {
    /// Bytes of `n_tokens` tokens in those layers that a pass compresses and the host cannot address.
    pub fn bytes_remote(&self, n_tokens: usize) -> u64 {
        let layers = self.layers.iter().filter(|l| l.layout != Layout::Ring && l.k.host_bytes().is_none());
        layers.map(|l| (n_tokens * self.n_head_kv * (l.k.nb()[1] + l.v.nb()[1])) as u64).sum()
    }

    /// Bytes of pool rows for tokens after the prompt, decoded ones and those to come.
    pub fn bytes_of_room(&self) -> u64 {
        let bytes = |l: &LayerCache| match &l.layout {
            Layout::Pool(heads) => {
                let free: usize = heads.iter().map(|h| h.capacity - h.n_entries).sum();
                let bias = if l.bias.is_empty() { 0 } else { std::mem::size_of::<f32>() };
                free * (l.k.nb()[1] + l.v.nb()[1] + bias)
            }
            _ => 0,
        };
        self.layers.iter().map(|l| bytes(l) as u64).sum()
    }

    /// A dense copy, for measurements that compress one state several times.
    ///
    /// # Errors
    /// When the pass has run, or the memory cannot be had.
    pub fn duplicate(&self) -> Result<KvCache> {
        let mut layers = Vec::with_capacity(self.layers.len());
        for (il, l) in self.layers.iter().enumerate() {
            if matches!(l.layout, Layout::Pool(_)) {
                return Err(Error::unsupported("copying", "a compressed cache"));
            }
            let new = self.new_layer(il, l.n_rows(), l.layout.clone(), l.home())?;
            for (from, to) in [(&l.k, &new.k), (&l.v, &new.v)] {
                match from.host_bytes() {
                    Some(bytes) => to.write(0, bytes)?,
                    None => {
                        let mut bytes = vec![0u8; from.n_bytes()];
                        from.read(0, &mut bytes)?;
                        to.write(0, &bytes)?;
                    }
                }
            }
            layers.push(new);
        }
        Ok(KvCache { layers, version: self.version + 1, ..*self })
    }
}

impl LayerCache {
    /// Entries that the pass left in each head; empty before it.
    pub fn pool_entries(&self) -> Vec<usize> {
        match &self.layout {
            Layout::Pool(heads) => heads.iter().map(|h| h.n_entries).collect(),
            _ => Vec::new(),
        }
    }
}
