//! Tables and JSON of measurements: one line per method and ratio.

use super::divergence::quantile;
use super::kl::Scored;
use super::perplexity::Perplexity;
use super::plot::{Axis, Chart, Series};
use super::Outcome;
use serde_json::{json, Value};

/// A table of texts; numbers are flush right.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings.
    pub fn new(heads: &[&str]) -> Self {
        Table { rows: vec![heads.iter().map(|&h| h.to_owned()).collect()] }
    }

    /// Adds a line.
    pub fn push(&mut self, row: Vec<String>) {
        self.rows.push(row);
    }
}

impl std::fmt::Display for Table {
    /// Markdown, as llama-bench prints it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Markdown wants a dash before the colon of a column that is aligned to the right.
        let width = |c: usize| self.rows.iter().filter_map(|r| r.get(c)).map(|x| x.chars().count()).fold(2, usize::max);
        let n = self.rows.first().map_or(0, Vec::len);
        for (i, row) in self.rows.iter().enumerate() {
            for (c, x) in row.iter().enumerate() {
                let w = width(c);
                if c == 0 {
                    write!(f, "| {x:<w$} ")?
                } else {
                    write!(f, "| {x:>w$} ")?
                }
            }
            writeln!(f, "|")?;
            if i == 0 {
                for c in 0..n {
                    let w = width(c);
                    if c == 0 {
                        write!(f, "| {} ", "-".repeat(w))?
                    } else {
                        write!(f, "| {}: ", "-".repeat(w - 1))?
                    }
                }
                writeln!(f, "|")?;
            }
        }
        Ok(())
    }
}

/// A ratio without needless digits.
pub fn ratio(x: f64) -> String {
    format!("{x}")
}

/// Sums over scored tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Number of tokens.
    pub n: usize,
    /// Perplexity.
    pub ppl: f64,
    /// Its standard error.
    pub ppl_error: f64,
    /// Mean Kullback-Leibler divergence to the full cache.
    pub kl_mean: f64,
    /// Its 99 % quantile.
    pub kl_99: f64,
    /// Its maximum.
    pub kl_max: f64,
    /// Share of tokens for which the full cache has the same favourite.
    pub same_top: f64,
    /// Root mean square of the change of the token's probability.
    pub rms_delta_p: f64,
}

impl Summary {
    /// The summary of these tokens.
    pub fn of<'a>(scored: impl Iterator<Item = &'a Scored>) -> Self {
        let scored: Vec<&Scored> = scored.collect();
        let mut ppl = Perplexity::default();
        ppl.extend(scored.iter().map(|s| s.nll));
        let mut kl: Vec<f64> = scored.iter().map(|s| s.kl).collect();
        kl.sort_by(f64::total_cmp);
        let mean = |f: fn(&Scored) -> f64| scored.iter().map(|s| f(s)).sum::<f64>() / scored.len() as f64;
        Summary {
            n: kl.len(),
            ppl: ppl.value(),
            ppl_error: ppl.error(),
            kl_mean: mean(|s| s.kl),
            kl_99: quantile(&kl, 0.99),
            kl_max: kl.last().copied().unwrap_or(0.0),
            same_top: mean(|s| f64::from(u8::from(s.same_top))),
            rms_delta_p: mean(|s| s.delta_p * s.delta_p).sqrt(),
        }
    }

    fn to_json(self) -> Value {
        json!({
            "n": self.n, "ppl": self.ppl, "ppl_error": self.ppl_error, "kl_mean": self.kl_mean, "kl_99": self.kl_99,
            "kl_max": self.kl_max, "same_top": self.same_top, "rms_delta_p": self.rms_delta_p,
        })
    }
}

/// Those of the scored tokens of all passages that come after the first `n_skip` of a continuation.
fn after(outcome: &Outcome<Vec<Scored>>, n_skip: usize) -> impl Iterator<Item = &Scored> {
    outcome.results.iter().flatten().filter(move |s| s.index >= n_skip)
}

/// The table of a comparison; a second mean of the divergence counts only tokens after the first `n_skip`.
pub fn perplexity_table(outcomes: &[Outcome<Vec<Scored>>], n_skip: usize) -> Table {
    let later = format!("KL > {n_skip}");
    let heads = [
        "method",
        "ratio",
        "PPL",
        "+-",
        "PPL / full",
        "KL mean",
        &later,
        "KL 99 %",
        "KL max",
        "same top %",
        "RMS dp %",
        "KV MiB",
        "pass ms",
    ];
    let mut table = Table::new(&heads);
    let full = full_ppl(outcomes);
    for o in outcomes {
        let (s, later) = (Summary::of(after(o, 0)), Summary::of(after(o, n_skip)));
        table.push(vec![
            o.name.clone(),
            ratio(o.ratio),
            format!("{:.4}", s.ppl),
            format!("{:.4}", s.ppl_error),
            format!("{:.4}", s.ppl / full),
            format!("{:.5}", s.kl_mean),
            format!("{:.5}", later.kl_mean),
            format!("{:.4}", s.kl_99),
            format!("{:.3}", s.kl_max),
            format!("{:.2}", 100.0 * s.same_top),
            format!("{:.2}", 100.0 * s.rms_delta_p),
            format!("{:.2}", o.kv_bytes / 1048576.0),
            format!("{:.0}", o.pass_ms),
        ]);
    }
    table
}

/// The same as JSON, with the mean divergence of every passage, so that methods can be compared in pairs.
pub fn perplexity_json(outcomes: &[Outcome<Vec<Scored>>], passages: &[String], n_skip: usize) -> Value {
    let full = full_ppl(outcomes);
    let row = |o: &Outcome<Vec<Scored>>| {
        let passage = |(scored, name): (&Vec<Scored>, &String)| {
            let later = Summary::of(scored.iter().filter(|s| s.index >= n_skip));
            json!({ "name": name, "all": Summary::of(scored.iter()).to_json(), "later": later.to_json() })
        };
        json!({
            "method": o.name,
            "ratio": o.ratio,
            "ppl_ratio": Summary::of(after(o, 0)).ppl / full,
            "all": Summary::of(after(o, 0)).to_json(),
            "later": Summary::of(after(o, n_skip)).to_json(),
            "passages": o.results.iter().zip(passages).map(passage).collect::<Vec<_>>(),
            "kv_bytes": o.kv_bytes,
            "pass_ms": o.pass_ms,
        })
    };
    json!({ "skip": n_skip, "rows": outcomes.iter().map(row).collect::<Vec<_>>() })
}

/// The same as CSV, a line per method and ratio, numbers in full.
///
/// # Errors
/// When `out` cannot be written.
pub fn perplexity_csv(
    out: impl std::io::Write,
    outcomes: &[Outcome<Vec<Scored>>],
    n_skip: usize,
) -> std::io::Result<()> {
    let mut csv = csv::Writer::from_writer(out);
    csv.write_record([
        "method",
        "ratio",
        "n",
        "ppl",
        "ppl_error",
        "ppl_ratio",
        "kl_mean",
        "kl_later",
        "kl_99",
        "kl_max",
        "same_top",
        "rms_delta_p",
        "kv_bytes",
        "pass_ms",
    ])?;
    let full = full_ppl(outcomes);
    for o in outcomes {
        let (s, later) = (Summary::of(after(o, 0)), Summary::of(after(o, n_skip)));
        let numbers = [
            o.ratio,
            s.n as f64,
            s.ppl,
            s.ppl_error,
            s.ppl / full,
            s.kl_mean,
            later.kl_mean,
            s.kl_99,
            s.kl_max,
            s.same_top,
            s.rms_delta_p,
            o.kv_bytes,
            o.pass_ms,
        ];
        csv.write_record([o.name.clone()].into_iter().chain(numbers.map(|x| x.to_string())))?;
    }
    csv.flush()
}

/// Perplexity and divergence over the ratio, one line per method; every line begins at the full cache.
pub fn perplexity_charts(outcomes: &[Outcome<Vec<Scored>>]) -> Vec<Chart> {
    let mut names: Vec<&str> = Vec::new();
    for o in outcomes.iter().skip(usize::from(outcomes.len() > 1)) {
        if !names.contains(&o.name.as_str()) {
            names.push(&o.name);
        }
    }
    let full = outcomes.first().map(|o| (1.0, full_ppl(std::slice::from_ref(o))));
    let lines = |value: fn(&Summary) -> f64, first: Option<(f64, f64)>| {
        let line = |name: &str| {
            let of_name = outcomes.iter().skip(1).filter(|o| o.name == name);
            let points = of_name.map(|o| (o.ratio, value(&Summary::of(after(o, 0)))));
            let mut points: Vec<(f64, f64)> = first.into_iter().chain(points).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            Series { name: name.to_owned(), points }
        };
        names.iter().map(|name| line(name)).collect::<Vec<_>>()
    };
    let chart = |title: &str, y: &str, series| Chart::Lines {
        title: title.to_owned(),
        x: Axis::log("compression ratio"),
        y: Axis::log(y),
        series,
    };
    let mut charts = vec![chart("Perplexity", "perplexity", lines(|s| s.ppl, full))];
    let divergence = lines(|s| s.kl_mean, None);
    // Without compression there is none, and nothing to draw.
    if divergence.iter().flat_map(|line| &line.points).any(|p| p.1 > 0.0) {
        charts.push(chart("Divergence from the full cache", "mean KL divergence (nats)", divergence));
    }
    charts
}

fn full_ppl(outcomes: &[Outcome<Vec<Scored>>]) -> f64 {
    outcomes.first().map_or(f64::NAN, |o| Summary::of(after(o, 0)).ppl)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_columns_are_markdown() {
        let mut table = Table::new(&["a", "n"]);
        table.push(vec!["x".into(), "1".into()]);
        assert_eq!(table.to_string(), "| a  |  n |\n| -- | -: |\n| x  |  1 |\n");
    }

    #[test]
    fn summary_is_that_of_the_definitions() {
        let scored: Vec<Scored> = (0..101)
            .map(|i| Scored {
                index: i,
                nll: 2.0,
                nll_base: 2.0,
                kl: f64::from(i as u32),
                same_top: i % 4 == 0,
                delta_p: if i == 3 { -0.5 } else { 0.0 },
            })
            .collect();
        let s = Summary::of(scored.iter());
        assert_eq!((s.n, s.kl_mean, s.kl_99, s.kl_max), (101, 50.0, 99.0, 100.0));
        assert!((s.ppl - 2f64.exp()).abs() < 1e-12 && s.ppl_error == 0.0);
        assert!((s.same_top - 26.0 / 101.0).abs() < 1e-12);
        assert!((s.rms_delta_p - 0.5 / 101f64.sqrt()).abs() < 1e-12);
        assert_eq!(quantile(&[1.0, 3.0], 0.25), 1.5);
    }

    #[test]
    fn columns_of_a_table_line_up() {
        let mut table = Table::new(&["a", "number"]);
        table.push(vec!["long name".into(), "1.5".into()]);
        let text = table.to_string();
        assert_eq!(text, "| a         | number |\n| --------- | -----: |\n| long name |    1.5 |\n");
    }
}
