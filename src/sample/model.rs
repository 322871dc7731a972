//! Parameters that a model file brings: `general.sampling.*` takes the place of defaults, not of what the user set.
//!
//! Source: `common_init_sampler_from_model` in `common/common.cpp` of llama.cpp. Deviation: an order given by letters counts
//! as set by the user, too.

use super::order::Order;
use super::SampleParams;
use crate::error::Result;
use crate::gguf::{Gguf, Value};

/// A number of any type, also as text.
fn number(gguf: &Gguf, key: &str) -> Option<f64> {
    match gguf.value(&format!("general.sampling.{key}"))? {
        Value::F32(x) => Some(f64::from(*x)),
        Value::F64(x) => Some(*x),
        Value::Str(text) => text.trim().parse().ok(),
        other => other.integer().map(|x| x as f64),
    }
}

impl SampleParams {
    /// Takes what the model recommends for every parameter that the user has not set; gives what has to be said about
    /// its order of the samplers.
    ///
    /// # Errors
    /// When the model asks for the infill sampler.
    pub fn recommended(&mut self, gguf: &Gguf, is_set: &dyn Fn(&str) -> bool) -> Result<Vec<String>> {
        let float = |option: &str, key: &str, slot: &mut f32| {
            if let Some(x) = number(gguf, key).filter(|x| x.is_finite() && !is_set(option)) {
                *slot = x as f32;
            }
        };
        float("temp", "temp", &mut self.temperature);
        float("top-p", "top_p", &mut self.top_p);
        float("min-p", "min_p", &mut self.min_p);
        float("xtc-probability", "xtc_probability", &mut self.xtc_probability);
        float("xtc-threshold", "xtc_threshold", &mut self.xtc_threshold);
        float("repeat-penalty", "penalty_repeat", &mut self.repeat_penalty);
        float("mirostat-ent", "mirostat_tau", &mut self.mirostat_tau);
        float("mirostat-lr", "mirostat_eta", &mut self.mirostat_eta);
        let int = |option: &str, key: &str| number(gguf, key).filter(|_| !is_set(option));
        if let Some(k) = int("top-k", "top_k") {
            self.top_k = k as i32;
        }
        if let Some(n) = int("repeat-last-n", "penalty_last_n") {
            self.repeat_last_n = n.max(0.0) as u32;
        }
        if let Some(version) = int("mirostat", "mirostat") {
            self.mirostat = version as i32;
        }
        match gguf.value("general.sampling.sequence") {
            Some(Value::Str(names)) if !is_set("samplers") && !is_set("sampler-seq") => {
                let order = Order::from_names(names)?;
                self.samplers = order.names;
                Ok(order.warnings)
            }
            _ => Ok(Vec::new()),
        }
    }
}
