//! Which layers leave the CPU, and for which device (stage 3 of the flow).
//!
//! As in llama.cpp (`src/llama-model.cpp`, `load_tensors`): the last layers go first, in runs whose lengths follow the shares
//! of the devices; the output matrix counts as one layer more; token embeddings stay on the CPU, where rows are picked.

use crate::ggml::{BufferType, Device, Type};
use regex::Regex;

/// Where layers, their caches and single weights live.
#[derive(Clone, Debug, Default)]
pub struct Offload {
    /// The devices in use beside the CPU.
    pub devices: Vec<Device>,
    /// Device of each layer, as an index; a layer that is not listed is the CPU's.
    pub layers: Vec<Option<usize>>,
    /// Device of the output matrix and its normalisation.
    pub output: Option<usize>,
    /// Caches stay on the CPU (`-nkvo`).
    pub kv_on_cpu: bool,
    /// Large products with weights of the CPU stay there, too (`--no-op-offload`).
    pub ops_stay: bool,
    /// Weights that do not go with their layer: a pattern of names, and a device; `None` is the CPU. The first that fits counts.
    pub overrides: Vec<(Regex, Option<usize>)>,
}

impl Offload {
    /// Gives the last `n_offloaded` of `n_layer` layers and the output to devices, in proportion to `shares`, one per device.
    pub fn split(&mut self, n_layer: usize, n_offloaded: usize, shares: &[f64]) {
        let n_offloaded = if self.devices.is_empty() { 0 } else { n_offloaded.min(n_layer + 1) };
        let first = n_layer + 1 - n_offloaded;
        let total: f64 = shares.iter().sum();
        let device = |i: usize| {
            let at = (i - first) as f64 / n_offloaded as f64;
            let mut sum = 0.0;
            let found = shares.iter().position(|share| {
                sum += share / total;
                sum > at
            });
            found.unwrap_or(shares.len().saturating_sub(1))
        };
        let place = |i: usize| (i >= first && total > 0.0).then(|| device(i));
        self.layers = (0..n_layer).map(place).collect();
        self.output = place(n_layer);
    }

    /// Layers that a device holds, the output counted as one.
    pub fn n_offloaded(&self) -> usize {
        self.layers.iter().chain([&self.output]).flatten().count()
    }

    /// Where the cache of a layer lives.
    pub fn cache_buffer_type(&self, il: usize) -> BufferType {
        let device = self.layers.get(il).copied().flatten().filter(|_| !self.kv_on_cpu);
        device.and_then(|i| self.devices.get(i)).map_or_else(BufferType::cpu, |d| d.buffer_type())
    }

    /// The device that holds a weight, by its name; `None` is the CPU.
    pub fn index_of(&self, name: &str) -> Option<usize> {
        if let Some((_, device)) = self.overrides.iter().find(|(pattern, _)| pattern.is_match(name)) {
            return *device;
        }
        match layer_of(name) {
            Some(il) => self.layers.get(il).copied().flatten(),
            None if name.starts_with("output") => self.output,
            None => None,
        }
    }

    /// As [`Offload::index_of`], unless the device cannot multiply with the weight. Shapes: `ne`, innermost first.
    pub(super) fn choose(&self, name: &str, ty: Type, ne: &[usize]) -> Option<BufferType> {
        let device = self.devices.get(self.index_of(name)?)?;
        let buft = device.buffer_type();
        // A remote server is not asked: ggml's RPC backend says yes to everything.
        (ne.len() < 2 || device.is_remote() || device.multiplies_from(buft, ty, ne)).then_some(buft)
    }
}

/// The layer that a weight belongs to: `blk.7.ffn_up.weight` is of layer 7.
pub fn layer_of(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split_once('.')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(n_device: usize, n_layer: usize, n_offloaded: usize, shares: &[f64]) -> Vec<Option<usize>> {
        let devices = vec![Device::cpu().unwrap(); n_device];
        let mut offload = Offload { devices, ..Offload::default() };
        offload.split(n_layer, n_offloaded, shares);
        offload.layers.into_iter().chain([offload.output]).collect()
    }

    #[test]
    fn the_last_layers_go_in_runs() {
        assert_eq!(split(0, 3, 99, &[]), [None; 4]);
        assert_eq!(split(1, 3, 0, &[1.0]), [None; 4]);
        assert_eq!(split(1, 3, 2, &[1.0]), [None, None, Some(0), Some(0)]);
        assert_eq!(split(2, 3, 99, &[1.0, 1.0]), [Some(0), Some(0), Some(1), Some(1)]);
        assert_eq!(split(2, 7, 99, &[3.0, 1.0]), [[Some(0); 6].as_slice(), &[Some(1); 2]].concat());
        assert_eq!(split(2, 3, 3, &[0.0, 2.0]), [None, Some(1), Some(1), Some(1)]);
    }

    #[test]
    fn weights_go_with_their_layer() {
        let devices = vec![Device::cpu().unwrap(); 2];
        let mut offload = Offload { devices, ..Offload::default() };
        offload.split(4, 3, &[1.0, 1.0]);
        offload.overrides = vec![(Regex::new("ffn_(up|down)").unwrap(), None)];
        let found = ["token_embd.weight", "blk.1.attn_q.weight", "blk.2.attn_q.weight", "blk.2.ffn_up.weight"];
        assert_eq!(found.map(|name| offload.index_of(name)), [None, None, Some(0), None]);
        assert_eq!(
            ["output.weight", "output_norm.weight", "blk.3.attn_norm.weight"].map(|n| offload.index_of(n)),
            [Some(1), Some(1), Some(0)]
        );
        assert_eq!((layer_of("blk.17.x"), layer_of("blk.x.17"), layer_of("rope_freqs.weight")), (Some(17), None, None));
    }
}
