//! What is drawn: scores over ratios, one chart per task, and the entries that a pass left to each layer and KV head.

use super::answer::FULL;
use super::plot::{Axis, Chart, Series};
use super::scores::Row;
use crate::error::{Error, Result};
use serde_json::Value;
use std::path::Path;

/// A chart per task, a line per method; the full cache is a line from the smallest to the largest ratio.
pub fn scores(rows: &[Row]) -> Vec<Chart> {
    let mut charts: Vec<Chart> = Vec::new();
    for of_task in rows.chunk_by(|a, b| a.task == b.task) {
        let compressed = || of_task.iter().filter(|r| r.method != FULL).map(|r| r.ratio);
        let (low, high) = (compressed().fold(f64::INFINITY, f64::min), compressed().fold(f64::NEG_INFINITY, f64::max));
        let of_method = |own: &[Row]| {
            let first = &own[0];
            let points = match first.method == FULL {
                true => vec![(low, 100.0 * first.score), (high, 100.0 * first.score)],
                false => own.iter().map(|r| (r.ratio, 100.0 * r.score)).collect(),
            };
            Series { name: first.method.clone(), points }
        };
        charts.push(Chart::Lines {
            title: of_task[0].task.clone(),
            x: Axis::log("ratio"),
            y: Axis::linear("score %"),
            series: of_task.chunk_by(|a, b| a.method == b.method).map(of_method).collect(),
        });
    }
    charts
}

/// The entries of each layer and KV head in a report that `--kv-report` wrote; layers that were left alone are empty.
///
/// # Errors
/// When the file cannot be read or is no such report.
pub fn entries(path: &Path) -> Result<Chart> {
    let text = std::fs::read_to_string(path).map_err(|e| Error::io(path, e))?;
    let plan = serde_json::from_str::<Value>(&text).ok().and_then(|mut report| Some(report.get_mut("plan")?.take()));
    let parsed = plan.as_ref().and_then(|plan| {
        let n_layer = plan.get("n_layer")?.as_u64()?;
        let mut rows = vec![Vec::new(); usize::try_from(n_layer).ok().filter(|n| *n <= MAX_LAYERS)?];
        for layer in plan.get("layers")?.as_array()? {
            let il = usize::try_from(layer.get("il")?.as_u64()?).ok()?;
            let counts = layer.get("n_entries")?.as_array()?.iter().map(Value::as_f64);
            *rows.get_mut(il)? = counts.collect::<Option<Vec<f64>>>()?;
        }
        let (method, ratio) = (plan.get("method")?.as_str()?, plan.get("ratio_requested")?.as_f64()?);
        Some((format!("Entries: {method} at ratio {ratio}, {} tokens", plan.get("n_tokens")?.as_u64()?), rows))
    });
    let (title, rows) = parsed.ok_or_else(|| Error::Context {
        what: format!("{}: not a report of gracekv-run --kv-report", path.display()),
    })?;
    Ok(Chart::HeatMap { title, x_label: "KV head".to_owned(), y_label: "layer".to_owned(), rows })
}

/// More layers than any model has.
const MAX_LAYERS: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_becomes_a_map_and_other_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.json");
        let chart = |text: &str| {
            std::fs::write(&path, text).unwrap();
            entries(&path)
        };
        let good = r#"{"plan":{"method":"topk","ratio_requested":4.0,"n_tokens":9,"n_layer":3,"layers":[{"il":2,"n_entries":[5,6]}]}}"#;
        let Chart::HeatMap { rows, title, .. } = chart(good).unwrap() else { panic!("not a map") };
        assert_eq!(
            (rows, title.as_str()),
            (vec![vec![], vec![], vec![5.0, 6.0]], "Entries: topk at ratio 4, 9 tokens")
        );
        for bad in ["", "{}", "[1]", &good.replace("\"il\":2", "\"il\":3"), &good.replace("[5,6]", "[5,\"6\"]")] {
            let error = chart(bad).unwrap_err().to_string();
            assert!(error.contains("r.json: not a report"), "{error}");
        }
    }
}
