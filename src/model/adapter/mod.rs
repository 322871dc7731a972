//! What is added to a model at run time: low-rank adapters (`--lora`) and control vectors (`--control-vector`).

mod control;
mod lora;

pub use control::{Control, Directions};
pub use lora::Lora;

use super::Model;
use crate::error::Result;
use std::ops::RangeInclusive;
use std::path::Path;

/// The additions of one model.
#[derive(Clone, Default)]
pub struct Adapters {
    /// In the order in which they were given; none has the scale 0.
    pub loras: Vec<Lora>,
    /// The sum of all control vectors.
    pub control: Control,
}

impl Model {
    /// Adds `scale` times the low-rank adapter in a GGUF file; the scale 0 only checks the file.
    ///
    /// # Errors
    /// When the file is no adapter, or one of another model.
    pub fn add_lora(&mut self, path: &Path, scale: f32) -> Result<()> {
        let lora = Lora::load(self, path, scale)?;
        if scale != 0.0 {
            self.adapters.loras.push(lora);
        }
        Ok(())
    }

    /// Adds control vectors, each with its factor, to the outputs of the layers in `range`.
    ///
    /// # Errors
    /// When a file has no directions, or those of another model.
    pub fn add_control(&mut self, files: &[(&Path, f32)], range: Option<RangeInclusive<usize>>) -> Result<()> {
        let mut sum = Directions::new(self.hp.n_layer, self.hp.n_embd);
        for (path, scale) in files {
            sum.add_file(path, *scale)?;
        }
        self.adapters.control = sum.into_control(range.unwrap_or(1..=self.hp.n_layer))?;
        Ok(())
    }
}
