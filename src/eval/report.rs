//! Tables and JSON of measurements: one line per method and ratio.

use super::kl::Scored;
use super::needle::{exact_match, Answer};
use super::perplexity::Perplexity;
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
        let width = |c: usize| self.rows.iter().filter_map(|r| r.get(c)).map(|x| x.chars().count()).max().unwrap_or(0);
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
                        write!(f, "| {}: ", "-".repeat(w.max(1) - 1))?
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

/// Linear between the two nearest of ascending numbers, as llama-perplexity.
fn quantile(ascending: &[f64], share: f64) -> f64 {
    let place = share * ascending.len().saturating_sub(1) as f64;
    let at = |i: usize| ascending.get(i.min(ascending.len().saturating_sub(1))).copied().unwrap_or(0.0);
    let (low, part) = (place as usize, place.fract());
    at(low) * (1.0 - part) + at(low + 1) * part
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
    let full = outcomes.first().map_or(f64::NAN, |o| Summary::of(after(o, 0)).ppl);
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
    let row = |o: &Outcome<Vec<Scored>>| {
        let passage = |(scored, name): (&Vec<Scored>, &String)| {
            let later = Summary::of(scored.iter().filter(|s| s.index >= n_skip));
            json!({ "name": name, "all": Summary::of(scored.iter()).to_json(), "later": later.to_json() })
        };
        json!({
            "method": o.name,
            "ratio": o.ratio,
            "all": Summary::of(after(o, 0)).to_json(),
            "later": Summary::of(after(o, n_skip)).to_json(),
            "passages": o.results.iter().zip(passages).map(passage).collect::<Vec<_>>(),
            "kv_bytes": o.kv_bytes,
            "pass_ms": o.pass_ms,
        })
    };
    json!({ "skip": n_skip, "rows": outcomes.iter().map(row).collect::<Vec<_>>() })
}

/// The table of a task.
pub fn needle_table(outcomes: &[Outcome<Answer>]) -> Table {
    let mut table = Table::new(&["method", "ratio", "exact match", "KV MiB", "pass ms"]);
    for o in outcomes {
        table.push(vec![
            o.name.clone(),
            ratio(o.ratio),
            format!("{:.2}", exact_match(o)),
            format!("{:.2}", o.kv_bytes / 1048576.0),
            format!("{:.0}", o.pass_ms),
        ]);
    }
    table
}

/// The same as JSON, with every answer.
pub fn needle_json(outcomes: &[Outcome<Answer>], right: &[&str]) -> Value {
    let row = |o: &Outcome<Answer>| {
        let answers: Vec<Value> = o.results.iter().map(|a| json!({ "right": a.is_right, "text": a.text })).collect();
        json!({ "method": o.name, "ratio": o.ratio, "exact_match": exact_match(o), "answers": answers, "kv_bytes": o.kv_bytes })
    };
    json!({ "right": right, "rows": outcomes.iter().map(row).collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_is_that_of_the_definitions() {
        let scored: Vec<Scored> = (0..101)
            .map(|i| Scored {
                index: i,
                nll: 2.0,
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
