//! `--check-tensors`: every weight of every tensor is looked at before it is used.

use crate::error::{Error, Result};
use crate::ggml::{Mmap, Type};
use crate::gguf::{Gguf, TensorInfo};
use rayon::prelude::*;
use std::sync::Arc;

/// Weights that are converted at a time.
const N_AT_ONCE: usize = 1 << 16;

/// Refuses weights that are not finite; tensors of types that ggml cannot convert are refused where they are loaded.
///
/// # Errors
/// [`Error::Gguf`] naming a tensor, the element and its value.
pub(super) fn check_finite(gguf: &Gguf, files: &[Arc<Mmap>]) -> Result<()> {
    gguf.tensors().par_iter().try_for_each(|info| {
        let Some(ty) = Type::from_id(info.ty.id()) else { return Ok(()) };
        let bytes = &files[info.file].bytes()[info.offset as usize..][..info.n_bytes as usize];
        let n = (N_AT_ONCE / ty.block_size()).max(1) * ty.block_size();
        let parts = bytes.par_chunks(ty.row_size(n)).enumerate();
        parts.try_for_each(|(i, part)| check_part(gguf, info, ty, i * n, part))
    })
}

/// Looks at the weights from number `first` on.
fn check_part(gguf: &Gguf, info: &TensorInfo, ty: Type, first: usize, part: &[u8]) -> Result<()> {
    let mut weights = vec![0.0; part.len() / ty.type_size() * ty.block_size()];
    if !ty.to_f32(part, &mut weights) {
        return Ok(());
    }
    match weights.iter().position(|x| !x.is_finite()) {
        Some(at) => Err(Error::gguf(
            &gguf.files()[info.file],
            format!("tensor '{}' has the weight {} at element {}", info.name, weights[at], first + at),
        )),
        None => Ok(()),
    }
}
