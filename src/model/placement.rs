//! Which weights leave the mapped file for one of the CPU's extra buffer types (AMX tiles, repacked rows).
//!
//! llama.cpp takes the first extra type that can multiply the weight. That is not always faster: measured on Sapphire Rapids,
//! a Q4_1 model prefills 3.5 times as fast from AMX tiles, one of mostly Q5_0 and Q8_0 at 0.87 of the speed. So types are listed.

use crate::ggml::{BufferType, Type};
use crate::gguf::TensorInfo;

/// Types that multiply faster from AMX tiles than from the file.
const AMX: [Type; 3] = [Type::Q4_0, Type::Q4_1, Type::Q4_K];

/// The choice for one model.
pub struct Placement {
    extra: Vec<BufferType>,
}

impl Placement {
    /// The extra types of this processor; none when `repack` is off.
    pub fn new(repack: bool) -> Placement {
        Placement { extra: if repack { BufferType::cpu_extra() } else { Vec::new() } }
    }

    /// The buffer type for a matrix of this type and shape; `None` leaves it in the file.
    pub fn choose(&self, ty: Type, ne: &[usize]) -> Option<BufferType> {
        self.extra.iter().copied().find(|buft| {
            let worth_it = !buft.name().contains("AMX") || AMX.contains(&ty);
            worth_it && buft.supports_mul_mat(ty, ne)
        })
    }

    /// Whether a matrix gets memory of its own when the CPU holds it; `as_output`, when it is the output matrix.
    pub fn copies(&self, t: &TensorInfo, as_output: bool) -> bool {
        let ne = [t.ne[0] as usize, t.ne[1] as usize];
        let is_matrix = t.n_dims == 2 && (as_output || !t.name.ends_with("_embd.weight"));
        is_matrix && Type::from_id(t.ty.id()).is_some_and(|ty| ty.multiplies() && self.choose(ty, &ne).is_some())
    }
}
