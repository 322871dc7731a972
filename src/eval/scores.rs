//! What the answers come to: a row per task, method and ratio, and in how many settings each method is among the best.
//!
//! Sums run in the order of the samples, so that the order in which answers came leaves every digit alone.

use super::answer::FULL;
use super::records::Record;
use super::report::{self, Table};
use super::tasks::TASKS;
use serde_json::{json, Value};
use std::collections::BTreeSet;

/// Task of the rows that are the mean over all tasks.
pub const MEAN: &str = "mean";
/// Share of the best score that counts as the best.
const AS_GOOD: f64 = 0.99;

/// One task, method and ratio.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The task, or [`MEAN`].
    pub task: String,
    /// Method, or `full` for the uncompressed cache.
    pub method: String,
    /// How many times smaller the cache was to become.
    pub ratio: f64,
    /// Mean score, from 0 to 1.
    pub score: f64,
    /// Its standard error; NaN of a single answer.
    pub error: f64,
    /// Answers.
    pub n: usize,
    /// Bytes of the compressed contexts, without room for tokens to come; mean.
    pub kv_bytes: f64,
    /// Time of a pass; mean.
    pub pass_ms: f64,
}

/// The rows of these answers: tasks and methods as they are listed or came, ratios ascending; the means over all tasks at the
/// end, where there are several, for what all of them have.
pub fn rows(records: &[Record]) -> Vec<Row> {
    let mut tasks = in_order(records.iter().map(|r| r.task.as_str()));
    tasks.sort_by_key(|name| TASKS.iter().position(|task| task.name == *name).unwrap_or(TASKS.len()));
    let mut methods = in_order(records.iter().map(|r| r.method.as_str()));
    methods.sort_by_key(|name| *name != FULL);

    let mut out = Vec::new();
    for task in &tasks {
        for (method, ratio) in methods.iter().flat_map(|m| ratios(records, m).into_iter().map(move |ratio| (*m, ratio)))
        {
            let mine = |r: &&Record| r.task == *task && r.method == method && r.ratio == ratio;
            let mut own: Vec<&Record> = records.iter().filter(mine).collect();
            own.sort_by_key(|r| r.sample);
            if !own.is_empty() {
                out.push(row(task, method, ratio, &own));
            }
        }
    }
    if tasks.len() > 1 {
        let means = means(&out, tasks.len());
        out.extend(means);
    }
    out
}

fn row(task: &str, method: &str, ratio: f64, own: &[&Record]) -> Row {
    let n = own.len() as f64;
    let mean = |f: fn(&Record) -> f64| own.iter().map(|r| f(r)).sum::<f64>() / n;
    let score = mean(|r| r.score);
    let variance = own.iter().map(|r| (r.score - score).powi(2)).sum::<f64>() / (n - 1.0);
    Row {
        task: task.to_owned(),
        method: method.to_owned(),
        ratio,
        score,
        error: (variance / n).sqrt(),
        n: own.len(),
        kv_bytes: mean(|r| r.kv_bytes as f64),
        pass_ms: mean(|r| r.pass_ms),
    }
}

/// Means over the tasks, each counting the same, of the methods and ratios that all of them have.
fn means(rows: &[Row], n_task: usize) -> Vec<Row> {
    let mut out: Vec<Row> = Vec::new();
    for first in rows {
        let of_all: Vec<&Row> = rows.iter().filter(|r| r.method == first.method && r.ratio == first.ratio).collect();
        if of_all.len() < n_task || out.iter().any(|r| r.method == first.method && r.ratio == first.ratio) {
            continue;
        }
        let mean = |f: fn(&Row) -> f64| of_all.iter().map(|r| f(r)).sum::<f64>() / n_task as f64;
        out.push(Row {
            task: MEAN.to_owned(),
            method: first.method.clone(),
            ratio: first.ratio,
            score: mean(|r| r.score),
            error: of_all.iter().map(|r| r.error * r.error).sum::<f64>().sqrt() / n_task as f64,
            n: of_all.iter().map(|r| r.n).sum(),
            kv_bytes: mean(|r| r.kv_bytes),
            pass_ms: mean(|r| r.pass_ms),
        });
    }
    out
}

/// Each name once, as they first come.
fn in_order<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = BTreeSet::new();
    names.filter(|name| seen.insert(*name)).collect()
}

/// The ratios of a method, ascending.
fn ratios(records: &[Record], method: &str) -> Vec<f64> {
    let mut all: Vec<f64> = records.iter().filter(|r| r.method == method).map(|r| r.ratio).collect();
    all.sort_by(f64::total_cmp);
    all.dedup();
    all
}

/// How often a method is among the best.
#[derive(Clone, Debug, PartialEq)]
pub struct Rank {
    /// The method.
    pub method: String,
    /// Settings in which its score is the highest.
    pub n_first: usize,
    /// Settings in which its score is the highest, or within 1 % of it.
    pub n_best: usize,
    /// Settings it took part in.
    pub n: usize,
}

/// Ranks the methods. A setting is a task and a ratio above 1 at which several methods answered the same samples, those that
/// all of them answered, and some method is better than chance. The most successful method comes first.
pub fn rank(records: &[Record]) -> Vec<Rank> {
    let compressed: Vec<&Record> = records.iter().filter(|r| r.ratio > 1.0).collect();
    let mut out: Vec<Rank> = in_order(compressed.iter().map(|r| r.method.as_str()))
        .into_iter()
        .map(|method| Rank { method: method.to_owned(), n_first: 0, n_best: 0, n: 0 })
        .collect();
    let settings: BTreeSet<(&str, u64)> = compressed.iter().map(|r| (r.task.as_str(), r.ratio.to_bits())).collect();
    for (task, ratio) in settings {
        let own: Vec<&Record> =
            compressed.iter().copied().filter(|r| r.task == task && r.ratio.to_bits() == ratio).collect();
        let scores = common_scores(&own);
        let Some((_, _, best)) = scores.iter().max_by(|a, b| a.2.total_cmp(&b.2)).copied() else { continue };
        if scores.len() < 2 || scores.iter().all(|(_, chance, score)| score <= chance) {
            continue;
        }
        for (method, _, score) in scores {
            for rank in out.iter_mut().filter(|rank| rank.method == method) {
                rank.n += 1;
                rank.n_first += usize::from(score >= best - 1e-9);
                rank.n_best += usize::from(score >= AS_GOOD * best - 1e-9);
            }
        }
    }
    // A stable sort: equals stay in their order.
    out.sort_by_key(|rank| std::cmp::Reverse((rank.n_best, rank.n_first)));
    out
}

/// Each method's mean chance and score over the samples that all methods answered.
fn common_scores<'a>(own: &[&'a Record]) -> Vec<(&'a str, f64, f64)> {
    let methods = in_order(own.iter().map(|r| r.method.as_str()));
    let samples = |method: &str| own.iter().filter(|r| r.method == method).map(|r| r.sample).collect::<BTreeSet<_>>();
    let common = methods.iter().map(|m| samples(m)).reduce(|a, b| &a & &b).unwrap_or_default();
    if common.is_empty() {
        return Vec::new();
    }
    let mean = |method: &str, f: fn(&Record) -> f64| {
        let mut of: Vec<&&Record> = own.iter().filter(|r| r.method == method && common.contains(&r.sample)).collect();
        of.sort_by_key(|r| r.sample);
        of.iter().map(|r| f(r)).sum::<f64>() / common.len() as f64
    };
    methods.into_iter().map(|m| (m, mean(m, |r| r.chance), mean(m, |r| r.score))).collect()
}

const HEADS: [&str; 8] = ["task", "method", "ratio", "score %", "+-", "n", "KV MiB", "pass ms"];

fn cells(row: &Row) -> Vec<String> {
    vec![
        row.task.clone(),
        row.method.clone(),
        report::ratio(row.ratio),
        format!("{:.1}", 100.0 * row.score),
        if row.error.is_nan() { "-".into() } else { format!("{:.1}", 100.0 * row.error) },
        row.n.to_string(),
        format!("{:.2}", row.kv_bytes / 1048576.0),
        format!("{:.0}", row.pass_ms),
    ]
}

/// The table of the rows.
pub fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(&HEADS);
    rows.iter().for_each(|row| table.push(cells(row)));
    table
}

/// The same as CSV.
///
/// # Errors
/// When `out` cannot be written.
pub fn csv(out: impl std::io::Write, rows: &[Row]) -> std::io::Result<()> {
    let mut csv = csv::Writer::from_writer(out);
    csv.write_record(HEADS)?;
    rows.iter().try_for_each(|row| csv.write_record(cells(row)))?;
    csv.flush()
}

/// The table of the ranks.
pub fn rank_table(ranks: &[Rank]) -> Table {
    let mut table = Table::new(&["method", "first or within 1 %", "first", "settings"]);
    for rank in ranks {
        table.push(vec![rank.method.clone(), rank.n_best.to_string(), rank.n_first.to_string(), rank.n.to_string()]);
    }
    table
}

/// Everything as JSON: rows, ranks, and every answer, so that methods can be compared in pairs.
pub fn json(settings: &Value, records: &[Record]) -> Value {
    let row = |r: &Row| {
        json!({
            "task": r.task, "method": r.method, "ratio": r.ratio, "score": r.score, "score_error": r.error, "n": r.n,
            "kv_bytes": r.kv_bytes, "pass_ms": r.pass_ms,
        })
    };
    let rank = |r: &Rank| json!({ "method": r.method, "first_or_within_1_percent": r.n_best, "first": r.n_first, "settings": r.n });
    json!({
        "settings": settings,
        "rows": rows(records).iter().map(row).collect::<Vec<_>>(),
        "rank": self::rank(records).iter().map(rank).collect::<Vec<_>>(),
        "answers": records.iter().map(Record::to_json).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(task: &str, sample: usize, method: &str, ratio: f64, score: f64) -> Record {
        Record {
            task: task.into(),
            sample,
            method: method.into(),
            ratio,
            score,
            chance: 0.2,
            kv_bytes: 1 << 20,
            pass_ms: 3.0,
            n_tokens: 9,
            text: String::new(),
            answers: Vec::new(),
        }
    }

    /// Scores by task, sample, method.
    fn records() -> Vec<Record> {
        let mut all = Vec::new();
        for (task, scores) in
            [("mine", [[1.0, 0.9, 0.991], [0.5, 0.5, 0.5]]), ("vt", [[0.3, 0.1, 0.2], [0.1, 0.1, 0.0]])]
        {
            for (i, of_sample) in scores.iter().enumerate() {
                all.push(record(task, i + 1, "full", 1.0, 1.0));
                for (method, score) in ["a", "b,c", "d"].iter().zip(of_sample) {
                    all.push(record(task, i + 1, method, 16.0, *score));
                    all.push(record(task, i + 1, method, 4.0, *score / 4.0));
                }
            }
        }
        all
    }

    #[test]
    fn rows_are_means_and_their_order_is_not_that_of_the_answers() {
        let rows = rows(&records());
        assert_eq!(rows.len(), 3 * 7);
        let at = |task: &str, method: &str, ratio: f64| {
            rows.iter().find(|r| (r.task.as_str(), r.method.as_str(), r.ratio) == (task, method, ratio)).unwrap()
        };
        let x = at("mine", "a", 16.0);
        assert_eq!((x.score, x.n, x.kv_bytes), (0.75, 2, 1048576.0));
        assert!((x.error - 0.25).abs() < 1e-12, "{}", x.error);
        assert!((at(MEAN, "a", 16.0).score - (0.75 + 0.2) / 2.0).abs() < 1e-12);
        assert_eq!(
            (rows[0].task.as_str(), rows[0].method.as_str(), rows[1].ratio, rows[7].task.as_str()),
            ("vt", "full", 4.0, "mine")
        );
        let mut reversed = records();
        reversed.reverse();
        let key =
            |r: &Row| format!("{} {} {} {:?} {:?}", r.task, r.method, r.ratio, r.score.to_bits(), r.error.to_bits());
        let sorted = |rows: &[Row]| rows.iter().map(key).collect::<BTreeSet<_>>();
        assert_eq!(sorted(&super::rows(&reversed)), sorted(&rows));
        let mut text = Vec::new();
        csv(&mut text, &rows).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("mine,\"b,c\",16,70.0,20.0,2,1.00,3\n"), "{text}");
    }

    #[test]
    fn one_answer_has_no_standard_error() {
        let records = [record("mine", 1, "a", 16.0, 1.0)];
        assert_eq!(cells(&rows(&records)[0])[3..6], ["100.0", "-", "1"]);
        assert!(json(&Value::Null, &records)["rows"][0]["score_error"].is_null());
    }

    #[test]
    fn ranks_count_settings_above_chance_over_common_samples() {
        // At ratio 4 no method is better than chance; at 16, `mine` has a first and a near one, `vt` nobody above .2 on average.
        let ranks = rank(&records());
        let of =
            |ranks: &[Rank], m: &str| ranks.iter().find(|r| r.method == m).map(|r| (r.n_best, r.n_first, r.n)).unwrap();
        assert_eq!((of(&ranks, "a"), of(&ranks, "b,c"), of(&ranks, "d")), ((1, 1, 1), (0, 0, 1), (1, 0, 1)));
        assert_eq!(ranks[0].method, "a");
        // Only the samples that all have: without `a`'s first, the second decides, and all are equal.
        let less: Vec<Record> =
            records().into_iter().filter(|r| !(r.method == "a" && r.task == "mine" && r.sample == 1)).collect();
        assert_eq!(of(&rank(&less), "b,c"), (1, 1, 1));
    }
}
