//! `--check-tensors`: every weight of every tensor is looked at before it is used.

use crate::error::{Error, Result};
use crate::ggml::{Mmap, Type};
use crate::gguf::{Gguf, TensorInfo};
use rayon::prelude::*;

/// Weights that are converted at a time.
const N_AT_ONCE: usize = 1 << 16;

/// Refuses weights that are not finite; tensors of types that ggml cannot convert are refused where they are loaded.
///
/// # Errors
/// [`Error::Gguf`] naming a tensor, the element and its value, or that a file cannot be mapped.
pub(super) fn check_finite(gguf: &Gguf) -> Result<()> {
    let files = gguf.files().iter().map(|path| Mmap::open(path)).collect::<Result<Vec<_>>>()?;
    gguf.tensors().par_iter().try_for_each(|info| {
        let Some(ty) = Type::from_id(info.ty.id()) else { return Ok(()) };
        let (file, start) = (&files[info.file], info.offset as usize);
        let bytes = file
            .bytes()
            .get(start..start.saturating_add(info.n_bytes as usize))
            .ok_or_else(|| Error::gguf(file.path(), format!("tensor '{}' ends beyond the file", info.name)))?;
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
