//! What the pass did: the lines on standard error and the JSON of `--kv-report`.

use crate::cache::plan::{LayerPlan, Row};
use crate::ggml::Transfers;
use serde_json::{json, Value};
use std::fmt;
use std::time::Duration;

/// Time of each stage.
#[derive(Clone, Copy, Debug, Default)]
pub struct StageTimes {
    /// Reading all layers and dividing the budget.
    pub allocate: Duration,
    /// Making the plans.
    pub plan: Duration,
    /// Rewriting the tensors.
    pub rewrite: Duration,
}

/// What one layer holds after the pass.
#[derive(Clone, Debug)]
pub struct LayerReport {
    /// The layer.
    pub il: usize,
    /// Entries of each KV head.
    pub n_entries: Vec<usize>,
    /// Those of them whose key is a prompt token's.
    pub n_exact: Vec<usize>,
    /// Prompt tokens that are kept, per KV head.
    pub tokens: Vec<Vec<u32>>,
}

impl LayerReport {
    /// The report of a plan.
    pub fn of(plan: &LayerPlan) -> Self {
        let tokens: Vec<Vec<u32>> = plan
            .heads
            .iter()
            .map(|h| h.entries.iter().filter_map(|e| if let Row::Token(t) = e.key { Some(t) } else { None }).collect())
            .collect();
        LayerReport {
            il: plan.il,
            n_entries: plan.heads.iter().map(|h| h.entries.len()).collect(),
            n_exact: tokens.iter().map(Vec::len).collect(),
            tokens,
        }
    }
}

/// What the pass did.
#[derive(Clone, Debug)]
pub struct Report {
    /// The full name of the method.
    pub method: String,
    /// The ratio asked for.
    pub ratio: f64,
    /// Position of the first token that was compressed; earlier passes have covered those before it.
    pub first: usize,
    /// Tokens that were compressed.
    pub n_tokens: usize,
    /// Tokens decoded from the full cache whose queries served as probes.
    pub n_lookahead: usize,
    /// Entries of the compressed layers before the pass.
    pub n_entries_before: usize,
    /// The compressed layers.
    pub layers: Vec<LayerReport>,
    /// Layers of the model, those left alone included.
    pub n_layer: usize,
    /// Bytes of the cache before the pass, all layers.
    pub bytes_before: u64,
    /// Bytes of the cache after it, all layers, biases and room for tokens to come included.
    pub bytes_after: u64,
    /// Bytes of `bytes_after` that belong to tokens after the prompt: the lookahead and room for those to come.
    pub bytes_room: u64,
    /// Bytes, before the pass, of what was compressed in memory that the host cannot address.
    pub bytes_remote: u64,
    /// What the devices say has become free during the pass.
    pub device_freed: u64,
    /// Bytes that crossed between the host and such memory during the pass.
    pub moved: Transfers,
    /// Resident memory of the process before the pass; 0 = unknown.
    pub resident_before: u64,
    /// Resident memory after it.
    pub resident_after: u64,
    /// Highest resident memory during it.
    pub resident_peak: u64,
    /// The method's own counters.
    pub counters: Vec<(&'static str, u64)>,
    /// Time of each stage.
    pub times: StageTimes,
    /// Time of the pass.
    pub total: Duration,
}

impl Report {
    /// Entries after the pass.
    pub fn n_entries_after(&self) -> usize {
        self.layers.iter().flat_map(|l| &l.n_entries).sum()
    }

    /// Entries before over entries after.
    pub fn achieved_ratio(&self) -> f64 {
        self.n_entries_before as f64 / self.n_entries_after().max(1) as f64
    }

    /// The JSON of `--kv-report`. Everything under `plan` is the same for equal input; times and memory are not.
    pub fn to_json(&self) -> Value {
        let layer =
            |l: &LayerReport| json!({ "il": l.il, "n_entries": l.n_entries, "n_exact": l.n_exact, "tokens": l.tokens });
        let counters: serde_json::Map<String, Value> =
            self.counters.iter().map(|(k, v)| ((*k).to_owned(), json!(v))).collect();
        let ms = |d: Duration| d.as_secs_f64() * 1e3;
        json!({
            "plan": {
                "method": self.method,
                "ratio_requested": self.ratio,
                "ratio_achieved": self.achieved_ratio(),
                "first": self.first,
                "n_tokens": self.n_tokens,
                "n_lookahead": self.n_lookahead,
                "n_layer": self.n_layer,
                "n_layer_compressed": self.layers.len(),
                "n_entries_before": self.n_entries_before,
                "n_entries_after": self.n_entries_after(),
                "counters": counters,
                "layers": self.layers.iter().map(layer).collect::<Vec<_>>(),
            },
            "memory": {
                "kv_bytes_before": self.bytes_before,
                "kv_bytes_after": self.bytes_after,
                "kv_bytes_room": self.bytes_room,
                "kv_bytes_remote": self.bytes_remote,
                "device_bytes_freed": self.device_freed,
                "bytes_from_devices": self.moved.down,
                "bytes_to_devices": self.moved.up,
                "resident_bytes_before": self.resident_before,
                "resident_bytes_after": self.resident_after,
                "resident_bytes_peak": self.resident_peak,
            },
            "time_ms": { "allocate": ms(self.times.allocate), "plan": ms(self.times.plan), "rewrite": ms(self.times.rewrite), "total": ms(self.total) },
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |b: u64| b as f64 / 1048576.0;
        let ms = |d: Duration| d.as_secs_f64() * 1e3;
        writeln!(
            f,
            "gracekv: entries {} -> {} ({:.2}x, {:.2}x asked) in {} of {} layers, method {}, {} tokens{}, {} lookahead",
            self.n_entries_before,
            self.n_entries_after(),
            self.achieved_ratio(),
            self.ratio,
            self.layers.len(),
            self.n_layer,
            self.method,
            self.n_tokens,
            if self.first > 0 { format!(" from position {}", self.first) } else { String::new() },
            self.n_lookahead
        )?;
        let counters: Vec<String> = self.counters.iter().map(|(k, v)| format!("{k} {v}")).collect();
        if !counters.is_empty() {
            writeln!(f, "gracekv: {}", counters.join(", "))?;
        }
        writeln!(
            f,
            "gracekv: KV memory {:.2} MiB -> {:.2} MiB ({:.2} MiB of it for the answer's tokens); resident {:.1} -> {:.1} MiB, peak {:.1} MiB",
            mib(self.bytes_before), mib(self.bytes_after), mib(self.bytes_room), mib(self.resident_before), mib(self.resident_after), mib(self.resident_peak)
        )?;
        if self.bytes_remote > 0 {
            let (remote, Transfers { down, up }) = (self.bytes_remote, self.moved);
            writeln!(
                f,
                "gracekv: {:.2} MiB of it on devices; {:.2} MiB were read from them and {:.2} MiB written",
                mib(remote),
                mib(down),
                mib(up)
            )?;
        }
        write!(
            f,
            "gracekv: pass time = {:.2} ms (allocate {:.2}, plan {:.2}, rewrite {:.2}); compression is lossy",
            ms(self.total),
            ms(self.times.allocate),
            ms(self.times.plan),
            ms(self.times.rewrite)
        )
    }
}
