//! Results of gracekv-bench in the forms that llama-bench prints: fields, their order and the table's widths are its own.
//!
//! Source: llama.cpp `tools/llama-bench/llama-bench.cpp` (`test::get_fields`, the printers). Fields of devices, splits and
//! placement are left out; `kv_ratio`, `kv_bytes` and `pass_ns` come at the end when `--kv-ratio` was given.

use super::measure::Test;
use super::options::{Format, Options};
use crate::engine::FlashAttn;
use crate::ggml::{self, Device};
use crate::model::Model;
use serde_json::{json, Value};
use std::io::{self, Write};
use std::time::Duration;

/// A measured test.
#[derive(Clone, Debug)]
pub struct Row {
    /// What was measured.
    pub test: Test,
    /// Tokens in the cache before.
    pub depth: usize,
    /// Times of the repetitions.
    pub samples: Vec<Duration>,
    /// How often smaller the cache was made.
    pub kv_ratio: f64,
    /// Bytes of the cache.
    pub kv_bytes: u64,
    /// Time of the pass; `None` when it did not run.
    pub pass: Option<Duration>,
}

impl Row {
    /// Tokens per second of the repetitions.
    fn speeds(&self) -> Vec<f64> {
        let (n_prompt, n_gen) = self.test.n_tokens();
        self.samples.iter().map(|t| (n_prompt + n_gen) as f64 / t.as_secs_f64()).collect()
    }
}

/// Mean and sample standard deviation.
fn statistics(x: &[f64]) -> (f64, f64) {
    let n = x.len() as f64;
    let mean = x.iter().sum::<f64>() / n.max(1.0);
    let squares: f64 = x.iter().map(|v| (v - mean).powi(2)).sum();
    (mean, if x.len() > 1 { (squares / (n - 1.0)).sqrt() } else { 0.0 })
}

/// Prints rows as they come.
pub struct Table<'a, W: Write> {
    out: W,
    format: Format,
    model: &'a Model,
    /// Every combination there will be rows of.
    all: &'a [Options],
    n_rows: usize,
}

impl<'a, W: Write> Table<'a, W> {
    /// A table on `out`, of rows that were measured with some of `all` options.
    pub fn new(out: W, format: Format, model: &'a Model, all: &'a [Options]) -> Self {
        Table { out, format, model, all, n_rows: 0 }
    }

    /// Prints one row that was measured with these options.
    ///
    /// # Errors
    /// When `out` cannot be written.
    pub fn row(&mut self, row: &Row, o: &Options) -> io::Result<()> {
        match self.format {
            Format::Md => self.md(row, o)?,
            Format::Json => {
                let lead = if self.n_rows == 0 { "[" } else { "," };
                write!(self.out, "{lead}\n  {}", object(&self.fields(row, o), ",\n    "))?;
            }
            Format::Jsonl => writeln!(self.out, "{}", object(&self.fields(row, o), ", "))?,
            Format::Csv => self.csv(row, o)?,
        }
        self.n_rows += 1;
        self.out.flush()
    }

    /// Prints what comes after the last row.
    ///
    /// # Errors
    /// When `out` cannot be written.
    pub fn finish(&mut self) -> io::Result<()> {
        match self.format {
            Format::Md => {
                let (version, ggml, build) = (env!("CARGO_PKG_VERSION"), ggml::version(), ggml::LLAMA_BUILD);
                writeln!(self.out, "\nbuild: gracekv {version} (ggml {ggml} of llama.cpp {build})")
            }
            Format::Json => writeln!(self.out, "\n]"),
            Format::Jsonl | Format::Csv => Ok(()),
        }
    }

    fn md(&mut self, row: &Row, o: &Options) -> io::Result<()> {
        let cells = self.cells(row, o);
        if self.n_rows == 0 {
            let names: Vec<_> = cells.iter().map(|c| pad(c.0, c.1)).collect();
            let rule = |width: i32| "-".repeat(width.unsigned_abs() as usize - 1) + if width > 0 { ":" } else { "-" };
            let rules: Vec<_> = cells.iter().map(|c| rule(c.1)).collect();
            writeln!(self.out, "| {} |\n| {} |", names.join(" | "), rules.join(" | "))?;
        }
        let values: Vec<_> = cells.iter().map(|c| pad(&c.2, c.1)).collect();
        writeln!(self.out, "| {} |", values.join(" | "))
    }

    /// Name, width (negative: to the left) and text of each column; settings appear when some are not the default.
    fn cells(&self, row: &Row, o: &Options) -> Vec<(&'static str, i32, String)> {
        let any = |is: fn(&Options) -> bool| self.all.iter().any(is);
        let mib = |bytes: u64| bytes as f64 / 1_048_576.0;
        let (size, n_params) = (mib(self.model.n_bytes()), self.model.n_params() as f64);
        let size = if size < 1024.0 { format!("{size:.2} MiB") } else { format!("{:.2} GiB", size / 1024.0) };
        let params =
            if n_params < 1e9 { format!("{:.2} M", n_params / 1e6) } else { format!("{:.2} B", n_params / 1e9) };
        let mut cells = vec![
            ("model", -30, self.model.describe()),
            ("size", 10, size),
            ("params", 10, params),
            ("backend", -10, "CPU".to_owned()),
            ("threads", 7, o.threads.n_threads.to_string()),
        ];
        let settings = [
            (any(|o| o.n_batch != 2048), ("n_batch", 7, o.n_batch.to_string())),
            (any(|o| o.n_ubatch != 512), ("n_ubatch", 8, o.n_ubatch.to_string())),
            (any(|o| o.ty_k != ggml::Type::F16), ("type_k", 6, o.ty_k.to_string())),
            (any(|o| o.ty_v != ggml::Type::F16), ("type_v", 6, o.ty_v.to_string())),
            (any(|o| o.flash_attn != FlashAttn::Auto), ("fa", 3, flash_attn(o.flash_attn).to_string())),
            (o.kv_method != "gracekv", ("method", -14, o.kv_method.clone())),
        ];
        cells.extend(settings.into_iter().filter_map(|(shown, cell)| shown.then_some(cell)));
        if !o.kv_ratio.is_empty() {
            cells.push(("kv", 5, format!("{}x", row.kv_ratio)));
            cells.push(("KV MiB", 8, format!("{:.2}", mib(row.kv_bytes))));
            cells.push(("pass ms", 8, row.pass.map_or_else(String::new, |t| format!("{:.0}", t.as_secs_f64() * 1e3))));
        }
        let (mean, deviation) = statistics(&row.speeds());
        cells.push(("test", 15, row.test.name(row.depth)));
        cells.push(("t/s", 20, format!("{mean:.2} ± {deviation:.2}")));
        cells
    }

    fn csv(&mut self, row: &Row, o: &Options) -> io::Result<()> {
        // Samples are lists, which the table of llama-bench leaves out too.
        let mut fields = self.fields(row, o);
        fields.retain(|(_, value)| !value.is_array());
        if self.n_rows == 0 {
            let names: Vec<_> = fields.iter().map(|f| f.0).collect();
            writeln!(self.out, "{}", names.join(","))?;
        }
        let text = |v: &Value| v.as_str().map_or_else(|| v.to_string(), str::to_owned).replace('"', "\"\"");
        let values: Vec<_> = fields.iter().map(|(_, v)| format!("\"{}\"", text(v))).collect();
        writeln!(self.out, "{}", values.join(","))
    }

    fn fields(&self, row: &Row, o: &Options) -> Vec<(&'static str, Value)> {
        let (n_prompt, n_gen) = row.test.n_tokens();
        let nanoseconds: Vec<f64> = row.samples.iter().map(|t| t.as_nanos() as f64).collect();
        let ((avg_ns, stddev_ns), (avg_ts, stddev_ts)) = (statistics(&nanoseconds), statistics(&row.speeds()));
        let build: u64 = ggml::LLAMA_BUILD.trim_start_matches('b').parse().unwrap_or(0);
        let used = &self.model.offload.devices;
        let devices = |text: fn(Device) -> &'static str| used.iter().map(|&d| text(d)).collect::<Vec<_>>().join(", ");
        let time = jiff::Timestamp::now().strftime("%FT%TZ").to_string();
        let mut fields = vec![
            ("build_commit", json!(concat!("gracekv-", env!("CARGO_PKG_VERSION")))),
            ("build_number", json!(build)),
            ("cpu_info", json!(Device::cpu().map_or("", Device::description))),
            ("gpu_info", json!(devices(Device::description))),
            ("backends", json!(if used.is_empty() { "CPU".to_owned() } else { devices(Device::name) })),
            ("n_gpu_layers", json!(self.model.offload.n_offloaded())),
            ("model_filename", json!(self.model.gguf.files().first().map_or("".into(), |path| path.to_string_lossy()))),
            ("model_type", json!(self.model.describe())),
            ("model_size", json!(self.model.n_bytes())),
            ("model_n_params", json!(self.model.n_params())),
            ("n_batch", json!(o.n_batch)),
            ("n_ubatch", json!(o.n_ubatch)),
            ("n_threads", json!(o.threads.n_threads)),
            ("type_k", json!(o.ty_k.name())),
            ("type_v", json!(o.ty_v.name())),
            ("flash_attn", json!(flash_attn(o.flash_attn))),
            ("n_prompt", json!(n_prompt)),
            ("n_gen", json!(n_gen)),
            ("n_depth", json!(row.depth)),
            ("test_time", json!(time)),
            ("avg_ns", json!(avg_ns as u64)),
            ("stddev_ns", json!(stddev_ns as u64)),
            ("avg_ts", json!(avg_ts)),
            ("stddev_ts", json!(stddev_ts)),
        ];
        if !o.kv_ratio.is_empty() {
            fields.push(("kv_method", json!(o.kv_method)));
            fields.push(("kv_ratio", json!(row.kv_ratio)));
            fields.push(("kv_bytes", json!(row.kv_bytes)));
            fields.push(("pass_ns", json!(row.pass.map_or(0, |t| t.as_nanos() as u64))));
        }
        fields.push(("samples_ns", json!(row.samples.iter().map(|t| t.as_nanos() as u64).collect::<Vec<_>>())));
        fields.push(("samples_ts", json!(row.speeds())));
        fields
    }
}

/// The number that llama.cpp gives the setting.
fn flash_attn(fa: FlashAttn) -> i32 {
    match fa {
        FlashAttn::Auto => -1,
        FlashAttn::Off => 0,
        FlashAttn::On => 1,
    }
}

/// A JSON object that keeps the order of its fields.
fn object(fields: &[(&'static str, Value)], between: &str) -> String {
    let pairs: Vec<_> = fields.iter().map(|(name, value)| format!("\"{name}\": {value}")).collect();
    let (indent, end) = match between.strip_prefix(",\n") {
        Some(indent) => (format!("\n{indent}"), "\n  "),
        None => (String::new(), ""),
    };
    format!("{{{indent}{}{end}}}", pairs.join(between))
}

fn pad(text: &str, width: i32) -> String {
    let n = width.unsigned_abs() as usize;
    if width < 0 {
        format!("{text:<n$}")
    } else {
        format!("{text:>n$}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_those_of_a_sample() {
        assert_eq!(statistics(&[2.0, 4.0, 6.0]), (4.0, 2.0));
        assert_eq!(statistics(&[5.0]), (5.0, 0.0));
    }

    #[test]
    fn objects_keep_their_order_and_are_json() {
        let fields = [("z", json!("\"quoted\"")), ("a", json!([1.5]))];
        for between in [", ", ",\n    "] {
            let text = object(&fields, between);
            assert!(text.find("\"z\"") < text.find("\"a\""));
            assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), json!({ "a": [1.5], "z": "\"quoted\"" }));
        }
    }
}
