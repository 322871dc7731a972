//! What a model is, in the words of llama.cpp's tables: `llama 135M Q4_1`.

use super::Model;

/// Names of `general.file_type`, from number 0 on; empty where llama.cpp has retired the number.
/// Source: llama.cpp `include/llama.h` (`llama_ftype`) and `llama_model_ftype_name`.
const FILE_TYPES: [&str; 40] = [
    "all F32",
    "F16",
    "Q4_0",
    "Q4_1",
    "",
    "",
    "",
    "Q8_0",
    "Q5_0",
    "Q5_1",
    "Q2_K - Medium",
    "Q3_K - Small",
    "Q3_K - Medium",
    "Q3_K - Large",
    "Q4_K - Small",
    "Q4_K - Medium",
    "Q5_K - Small",
    "Q5_K - Medium",
    "Q6_K",
    "IQ2_XXS - 2.0625 bpw",
    "IQ2_XS - 2.3125 bpw",
    "Q2_K - Small",
    "IQ3_XS - 3.3 bpw",
    "IQ3_XXS - 3.0625 bpw",
    "IQ1_S - 1.5625 bpw",
    "IQ4_NL - 4.5 bpw",
    "IQ3_S - 3.4375 bpw",
    "IQ3_S mix - 3.66 bpw",
    "IQ2_S - 2.5 bpw",
    "IQ2_M - 2.7 bpw",
    "IQ4_XS - 4.25 bpw",
    "IQ1_M - 1.75 bpw",
    "BF16",
    "",
    "",
    "",
    "TQ1_0 - 1.69 bpw ternary",
    "TQ2_0 - 2.06 bpw ternary",
    "MXFP4 MoE",
    "NVFP4",
];

impl Model {
    /// Architecture, size and file type.
    ///
    /// llama.cpp knows the size of well-known models by their number of layers; here the file's own label says it.
    pub fn describe(&self) -> String {
        let size = self.gguf.str("general.size_label").ok().flatten();
        let size = size.map_or_else(|| in_short(self.n_params()), str::to_owned);
        format!("{} {size} {}", self.arch().name(), self.file_type())
    }

    fn file_type(&self) -> String {
        let number = self.gguf.u32("general.file_type").ok().flatten();
        match number.and_then(|n| FILE_TYPES.get(n as usize)).filter(|name| !name.is_empty()) {
            Some(name) => (*name).to_owned(),
            None => {
                let matrices = self.gguf.tensors().iter().filter(|t| t.ne.len() > 1);
                let widest = matrices.max_by_key(|t| t.n_bytes).map_or("?", |t| t.ty.name());
                format!("(guessed) {}", widest.to_uppercase())
            }
        }
    }
}

/// A number of weights as labels write it.
fn in_short(n: u64) -> String {
    match n {
        0..1_000_000_000 => format!("{:.0}M", n as f64 / 1e6),
        _ => format!("{:.1}B", n as f64 / 1e9),
    }
}
