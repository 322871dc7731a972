//! Which weights leave the mapped file for one of the CPU's extra buffer types (AMX tiles, repacked rows).
//!
//! llama.cpp takes the first extra type that can multiply the weight. That is not always faster: Q8_0 is multiplied faster from
//! the file by products of our own ([`SumOrder`]), which then sum as AMX would, so that the text is the same. Measured on Sapphire
//! Rapids, a Q4_1 model prefills 3.5 times as fast from AMX tiles as by ggml's products from the file, one of mostly Q5_0 and
//! Q8_0 at 0.87 of the speed.

use crate::ggml::{BufferType, SumOrder, Type};
use crate::gguf::TensorInfo;

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
            let worth_it = !is_amx(buft) || ty != Type::Q8_0;
            worth_it && buft.supports_mul_mat(ty, ne)
        })
    }

    /// How products with a matrix are summed where it stays in the file.
    pub fn sum_order(&self, ty: Type, ne: &[usize]) -> SumOrder {
        let would_leave = |buft: &BufferType| is_amx(buft) && buft.supports_mul_mat(ty, ne);
        match ty == Type::Q8_0 && self.extra.iter().any(would_leave) {
            true => SumOrder::Blocks,
            false => SumOrder::Lanes,
        }
    }

    /// Whether a matrix gets memory of its own when the CPU holds it; `as_output`, when it is the output matrix.
    pub fn copies(&self, t: &TensorInfo, as_output: bool) -> bool {
        let ne = [t.ne[0] as usize, t.ne[1] as usize];
        let is_matrix = t.n_dims == 2 && (as_output || !t.name.ends_with("_embd.weight"));
        is_matrix && Type::from_id(t.ty.id()).is_some_and(|ty| ty.multiplies() && self.choose(ty, &ne).is_some())
    }
}

fn is_amx(buft: &BufferType) -> bool {
    buft.name().contains("AMX")
}
