//! Models (stage 3 of the flow): hyperparameters, weights and the graph of one forward pass, one file per architecture.
//!
//! A new architecture is one file here, named like `general.architecture` (`-` as `_`), and one word in `architectures!`.

mod adapter;
mod blocks;
mod check;
mod compute;
mod describe;
mod fingerprint;
mod graph;
mod hparams;
mod loader;
mod offload;
mod placement;
mod rotation;
mod routing;
mod weight_file;
mod weights;

pub use adapter::{Adapters, Control, Lora};
use blocks::latent;
pub use blocks::rope_params;
pub use compute::compute_bytes;
pub use graph::{graph_size, Attention, Build, GraphSpec, Home, Inputs, ModelGraph, Outputs};
pub use hparams::{Hparams, Reader, Temperature};
pub use loader::{LoadOptions, Loader};
pub use offload::{layer_of, Offload};
pub use placement::Placement;
pub use rotation::{RopeOptions, RopeScaling};
pub use routing::{Gating, Routing};
pub use weights::{Experts, Ffn, Latent, Layer, Linear, Norm, Weights};

use crate::error::{Error, Result};
use crate::ggml::{Mmap, Tensor, Type};
use crate::gguf::Gguf;
use std::path::Path;

/// One model family, as llama.cpp divides it: numbers, tensors, graph.
pub trait Architecture: Sync {
    /// `general.architecture` of its files.
    fn name(&self) -> &'static str;

    /// Reads and checks the numbers.
    ///
    /// # Errors
    /// When a number is missing or impossible; the message names the key.
    fn hparams(&self, reader: &Reader) -> Result<Hparams>;

    /// Fetches the tensors, each with the shape it must have.
    ///
    /// # Errors
    /// When a tensor is missing or has another shape.
    fn weights(&self, loader: &mut Loader, hp: &Hparams) -> Result<Weights>;

    /// Adds the operations of one forward pass.
    ///
    /// # Errors
    /// When shapes do not fit, which a checked model cannot cause.
    fn graph(&self, b: &mut Build) -> Result<()>;
}

macro_rules! architectures {
    ($($name:ident),* $(,)?) => {
        $(mod $name;)*
        /// Every architecture that runs.
        pub static ARCHITECTURES: &[&dyn Architecture] = &[$(&$name::Arch),*];
    };
}
architectures! {
    llama, qwen2, qwen3, gemma3, gemma2, gemma, phi3, phi2, qwen2moe, qwen3moe, granite, granitemoe, olmo2, olmoe, smollm3,
    gpt_oss, command_r, cohere2, stablelm, starcoder2, falcon, gpt2, gptneox, glm4, mistral3, exaone, minicpm, internlm2,
    nemotron, seed_oss, baichuan, deepseek2, llama4,
}

/// The architecture of a model file.
///
/// # Errors
/// When there is none of that name.
pub fn architecture(gguf: &Gguf) -> Result<&'static dyn Architecture> {
    let name = gguf.architecture();
    ARCHITECTURES.iter().find(|a| a.name() == name).copied().ok_or_else(|| {
        let known: Vec<_> = ARCHITECTURES.iter().map(|a| a.name()).collect();
        Error::gguf(gguf.path(), format!("unsupported architecture '{name}'; supported: {}", known.join(", ")))
    })
}

/// A loaded model; shared between runs and not changed then.
pub struct Model {
    /// Its numbers.
    pub hp: Hparams,
    /// Its tensors.
    pub weights: Weights,
    /// Its metadata.
    pub gguf: Gguf,
    /// What is added to it.
    pub adapters: Adapters,
    /// Where its layers live.
    pub offload: Offload,
    placement: Placement,
    arch: &'static dyn Architecture,
}

impl Model {
    /// Loads a model file (the first one of a split model).
    ///
    /// # Errors
    /// When the file is damaged, of an unknown architecture, or lacks something its architecture needs.
    pub fn load(path: &Path, options: LoadOptions) -> Result<Model> {
        Model::from_gguf(Gguf::open(path)?, options)
    }

    /// Loads the model whose header was read.
    ///
    /// # Errors
    /// As [`Model::load`].
    pub fn from_gguf(gguf: Gguf, options: LoadOptions) -> Result<Model> {
        let arch = architecture(&gguf)?;
        let hp = arch.hparams(&Reader::new(&gguf, options.rope))?;
        let offload = options.offload.clone();
        let mut loader = Loader::new(&gguf, options)?;
        let weights = arch.weights(&mut loader, &hp)?;
        let placement = loader.finish()?;
        let mut model = Model { hp, weights, gguf, adapters: Adapters::default(), offload, placement, arch };
        // The graph takes the divisors from the tensor; rotation on the host needs them, too.
        if let Some(t) = &model.weights.rope_freqs {
            let factors = model.dequantize(&t.name())?;
            model.hp.rope.iter_mut().for_each(|rope| rope.freq_factors.clone_from(&factors));
        }
        for layer in &model.weights.layers {
            let values = layer.attn_sinks.as_ref().map(|t| model.dequantize(&t.name())).transpose()?;
            model.hp.sinks.push(values.unwrap_or_default());
        }
        if let Some(t) = &model.weights.rope_freqs_long {
            model.hp.freq_factors_long = model.dequantize(&t.name())?;
        }
        Ok(model)
    }

    /// The frequency divisors in a context of `n_ctx` tokens.
    pub fn rope_freqs(&self, n_ctx: usize) -> Option<&Tensor> {
        let long = self.weights.rope_freqs_long.as_ref().filter(|_| self.hp.is_long(n_ctx));
        long.or(self.weights.rope_freqs.as_ref())
    }

    /// The matrix that takes what the heads of a layer read from the cache to the residual stream.
    /// Shapes: `{head_dim_v * n_head, n_embd}`.
    ///
    /// # Errors
    /// As [`Model::dequantize`].
    pub fn output_matrix(&self, il: usize) -> Result<Vec<f32>> {
        let wo = self.dequantize(&format!("blk.{il}.attn_output.weight"))?;
        match &self.weights.layers[il].latent {
            None => Ok(wo),
            Some(latent) => {
                let v_b = self.dequantize(&latent.v_b.name())?;
                Ok(latent::compose(&wo, &v_b, [latent.v_b.ne()[0], latent.v_b.ne()[1], self.hp.n_head]))
            }
        }
    }

    /// The architecture.
    pub fn arch(&self) -> &'static dyn Architecture {
        self.arch
    }

    /// A weight as `f32`, adapters included, read from the file again: what is in memory may be repacked or on a device.
    ///
    /// # Errors
    /// When there is no such tensor, or it cannot be read or converted.
    pub fn dequantize(&self, name: &str) -> Result<Vec<f32>> {
        let info = self
            .gguf
            .tensor(name)
            .ok_or_else(|| Error::gguf(self.gguf.path(), format!("tensor '{name}' is missing")))?;
        let unsupported = || Error::unsupported("tensor type", format!("{} of tensor '{name}'", info.ty.name()));
        let ty = Type::from_id(info.ty.id()).ok_or_else(unsupported)?;
        let map = Mmap::open(&self.gguf.files()[info.file])?;
        let end = info.offset.saturating_add(info.n_bytes) as usize;
        let bytes = map
            .bytes()
            .get(info.offset as usize..end)
            .ok_or_else(|| Error::gguf(map.path(), format!("tensor '{name}' ends beyond the file")))?;
        let mut out = vec![0.0; bytes.len() / ty.type_size() * ty.block_size()];
        if !ty.to_f32(bytes, &mut out) {
            return Err(unsupported());
        }
        self.adapters.loras.iter().try_for_each(|lora| lora.merge_into(name, &mut out))?;
        Ok(out)
    }

    /// Bytes of all tensors in the file.
    pub fn n_bytes(&self) -> u64 {
        self.gguf.tensors().iter().map(|t| t.n_bytes).sum()
    }

    /// Number of weights.
    pub fn n_params(&self) -> u64 {
        self.gguf.tensors().iter().map(|t| t.ne.iter().product::<u64>()).sum()
    }
}
