//! Which weights leave the mapped file for one of the CPU's extra buffer types (AMX tiles, repacked rows).
//!
//! llama.cpp takes the first extra type that can multiply the weight. That is not always faster: measured on Sapphire Rapids,
//! a Q4_1 model prefills 3.5 times as fast from AMX tiles, one of mostly Q5_0 and Q8_0 at 0.87 of the speed. So types are listed.

use crate::ggml::{BufferType, Type};

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
}
