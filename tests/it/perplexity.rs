//! gracekv-perplexity as a program, on a tiny model: llama-perplexity's base file and table, the comparison and its files, errors.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use regex::{Captures, Regex};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::tiny;

/// What llama-perplexity prints with `--kl-divergence`; see tests/golden/README.md.
const LLAMA_TABLE: &str = include_str!("../golden/perplexity/kl_divergence.txt");

struct Folder(TempDir);

impl Folder {
    /// A folder with a text of about 1,500 tokens of the tiny models, most of which are bytes.
    fn new() -> Folder {
        let dir = tempfile::tempdir().unwrap();
        let text: String = (0..60).map(|i| format!("Line {i} of {} says {}.\n", i * 7 % 13, i * i)).collect();
        std::fs::write(dir.path().join("text"), text).unwrap();
        Folder(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Exit code, standard output and standard error of a run in this folder.
    fn run(&self, args: &str) -> (Option<i32>, String, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_gracekv-perplexity"))
            .current_dir(self.0.path())
            .arg("-m")
            .arg(tiny::path("llama"))
            .args(["-t", "1"])
            .args(args.split_whitespace())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    }

    fn stdout(&self, args: &str) -> String {
        let (code, out, err) = self.run(args);
        assert_eq!(code, Some(0), "{args}: {err}");
        out
    }

    /// The one error line of a run that fails and prints nothing.
    fn error(&self, args: &str) -> String {
        let (code, out, err) = self.run(args);
        assert!(code == Some(1) && out.is_empty() && !err.contains("panicked"), "{args}: {code:?} {out} {err}");
        let lines: Vec<&str> = err.lines().filter(|l| l.starts_with("error")).collect();
        assert!(lines.len() == 1 && err.lines().last() == Some(lines[0]), "{args}: {err}");
        lines[0].to_owned()
    }

    fn files(&self) -> usize {
        std::fs::read_dir(self.0.path()).unwrap().count()
    }
}

/// A table with the number of decimals in the place of each value; quantiles before a colon are names.
fn form(text: &str) -> String {
    let value = Regex::new(r" *-?\d+(?:\.(\d+))?").unwrap();
    let line = |line: &str| {
        let (name, values) = line.split_at(line.find(':').unwrap_or(0));
        let decimals = |c: &Captures| format!("#{}", c.get(1).map_or(0, |d| d.len()));
        format!("{name}{}\n", value.replace_all(values, decimals))
    };
    text.trim().lines().map(line).collect()
}

/// The first number behind `name` in a text.
fn number(text: &str, name: &str) -> f64 {
    let at = text.find(name).unwrap_or_else(|| panic!("no {name} in {text}")) + name.len();
    let rest = text[at..].trim_start_matches([' ', ':']);
    rest.split([' ', '%', '\n']).next().unwrap().parse().unwrap()
}

#[test]
fn a_base_file_compared_with_its_own_model_shows_no_difference() {
    let folder = Folder::new();
    let (code, out, err) = folder.run("-f text -c 128 --chunks 3 --kl-divergence-base base");
    assert!(code == Some(0) && out.matches('[').count() == 3, "{out} {err}");
    assert_eq!(out, folder.stdout("-f text -c 128 --chunks 3"));
    // Head, tokens, 63 rows a chunk.
    let n_bytes = 20 + 3 * 128 * 4 + 3 * 63 * 2 * (300 + 4);
    assert_eq!(std::fs::metadata(folder.path("base")).unwrap().len(), n_bytes);

    for args in ["--kl-divergence", "-f text -c 256 --kl-divergence"] {
        let out = folder.stdout(&format!("--kl-divergence-base base {args}"));
        let final_ppl = number(&err, "PPL =");
        for name in ["Mean PPL(Q)", "Mean PPL(base)"] {
            assert!((number(&out, name) / final_ppl - 1.0).abs() < 1e-4, "{out}");
        }
        assert!((number(&out, "Mean PPL(Q)/PPL(base)") - 1.0).abs() < 1e-4, "{out}");
        assert!(number(&out, "Mean    KLD").abs() < 1e-5 && number(&out, "Maximum KLD") < 1e-4, "{out}");
        assert!(number(&out, "Same top p:") > 98.0 && number(&out, "RMS Δp") < 0.01, "{out}");
    }
}

#[test]
fn the_table_has_the_form_of_llama_perplexitys() {
    let folder = Folder::new();
    folder.stdout("-f text -c 256 --chunks 2 --kl-divergence-base base");
    let out = folder.stdout("--kl-divergence-base base --kl-divergence -ctk q8_0 -ctv q8_0");
    assert_eq!(form(&out), form(LLAMA_TABLE), "{out}");
    assert!(number(&out, "Mean    KLD") > 0.0 && number(&out, "Mean PPL(Q)/PPL(base)") > 0.5);
}

/// Numbers that no model says are the file's fault, in the first chunk and in a later one.
#[test]
fn a_damaged_record_is_an_error_that_names_file_and_chunk() {
    let folder = Folder::new();
    folder.stdout("-f text -c 64 --chunks 3 --kl-divergence-base base");
    let bytes = std::fs::read(folder.path("base")).unwrap();
    let (head, n_row) = (20 + 3 * 64 * 4, 2 * (300 + 4));
    for (chunk, row) in [(1, 0), (2, 5), (3, 30)] {
        for (at, value) in [(0, f32::NAN), (4, f32::NEG_INFINITY), (0, 1e30), (4, 4.0)] {
            let at = head + ((chunk - 1) * 31 + row) * n_row + at;
            let mut bytes = bytes.clone();
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            std::fs::write(folder.path("bad"), &bytes).unwrap();
            let (code, out, err) = folder.run("--kl-divergence-base bad --kl-divergence");
            let want = format!("error: bad: chunk {chunk}: what it holds for scored token {}", row + 1);
            assert!(code == Some(1) && err.lines().any(|l| l.starts_with(&want)), "{value}: {out}{err}");
            assert!(!out.contains("NaN") && !out.contains("inf"), "{value}: {out}");
            assert_eq!(out.lines().filter(|l| l.contains('±')).count(), chunk - 1, "{out}");
        }
    }
    // Chunks that are not asked for are not read.
    let out = folder.stdout("--kl-divergence-base bad --kl-divergence --chunks 2");
    assert_eq!(out.lines().filter(|l| l.trim_start().starts_with(['1', '2', '3'])).count(), 2, "{out}");
}

#[test]
fn errors_are_one_line_and_leave_no_file() {
    let folder = Folder::new();
    folder.stdout("-f text -c 64 --chunks 2 --kl-divergence-base base");
    let bytes = std::fs::read(folder.path("base")).unwrap();
    std::fs::write(folder.path("short"), &bytes[..bytes.len() - 1]).unwrap();
    std::fs::write(folder.path("other"), [&bytes[..12], &151_936u32.to_le_bytes(), &bytes[16..]].concat()).unwrap();
    std::fs::write(folder.path("long"), [&bytes[..], &[0]].concat()).unwrap();
    std::fs::write(folder.path("empty"), [&bytes[..16], &0u32.to_le_bytes()].concat()).unwrap();
    std::fs::write(folder.path("old"), "kept").unwrap();
    std::fs::write(folder.path("brief"), "the rain in the inner harbour").unwrap();
    let n = folder.files();
    let cases = [
        ("--kl-divergence-base short --kl-divergence", "short: 2 chunks of 64 tokens take"),
        ("--kl-divergence-base long --kl-divergence", "it is damaged"),
        ("--kl-divergence-base empty --kl-divergence", "empty: it has 0 chunks of 64 tokens: nothing to compare with"),
        ("--kl-divergence-base base --kl-divergence --chunks 0", "--chunks 0"),
        ("--kl-divergence-base other --kl-divergence", "its vocabulary has 151936 tokens, the model's has 300"),
        ("--kl-divergence-base text --kl-divergence", "text: no file of log-probabilities"),
        ("--kl-divergence-base none --kl-divergence", "none: No such file"),
        ("--kl-divergence-base base --kl-divergence -f brief", "its text is not that of brief"),
        ("--kl-divergence-base base --kl-divergence -c 32", "chunks of 64 tokens, the context 32; increase it with -c"),
        ("--kl-divergence -f text", "--kl-divergence-base FNAME"),
        ("--kl-divergence-base old -f text --kv-ratio 4", "not with --kv-ratio or --prefix"),
        ("--kl-divergence-base old -f brief", "at least 1024 tokens"),
        ("-f brief -c 64 --kv-ratio 4 --json old --csv old2", "at least 128 tokens"),
        ("-f text -c 64 --json old", "--json takes the results of a comparison"),
        ("-f text -c 64 --chunks 1 --kv-ratio 4 --csv none/out", "none/out: No such file"),
        ("-f text -c 64 --chunks 1 --kv-ratio 64 --json old", "KV budget"),
        ("-c 64", "one text is needed (-f), 0 are given"),
        ("-c 64 --prefix 32", "one text is needed (-f), 0 are given"),
        ("-f text -c 64 --chunks 0", "--chunks 0"),
        ("-f text -c 64 --chunks 1 --kv-ratio 4 --plot .", "."),
    ];
    for (args, want) in cases {
        let error = folder.error(args);
        assert!(error.contains(want), "{args}: {error}");
    }
    assert_eq!((folder.files(), std::fs::read(folder.path("old")).unwrap()), (n, b"kept".to_vec()));
}

#[test]
fn table_json_csv_and_chart_say_the_same() {
    let folder = Folder::new();
    let args =
        "-f text -c 128 --chunks 2 --kv-ratio 1,2,4 --kv-method topk,streaming_llm --json j --csv c --plot p.svg";
    let table = folder.stdout(args);
    let cells = |line: &str| line.split('|').map(|x| x.trim().to_owned()).filter(|x| !x.is_empty()).collect::<Vec<_>>();
    let rows: Vec<Vec<String>> = table.lines().filter(|l| l.starts_with('|')).map(cells).collect();
    let json: Value = serde_json::from_slice(&std::fs::read(folder.path("j")).unwrap()).unwrap();
    let mut csv = csv::Reader::from_path(folder.path("c")).unwrap();
    let heads = csv.headers().unwrap().clone();
    let lines: Vec<csv::StringRecord> = csv.records().map(|r| r.unwrap()).collect();
    assert_eq!((rows.len(), lines.len(), json["rows"].as_array().unwrap().len()), (2 + 5, 5, 5));

    let names = ["full 1", "topk 2", "topk 4", "streaming_llm 2", "streaming_llm 4"];
    for (i, name) in names.iter().enumerate() {
        let (row, line, json) = (&rows[2 + i], &lines[i], &json["rows"][i]);
        assert_eq!(format!("{} {}", row[0], row[1]), *name);
        assert_eq!((&line[0], json["method"].as_str().unwrap()), (&*row[0], &*row[0]));
        let columns = [
            ("ratio", &json["ratio"], "ratio", 1.0),
            ("ppl", &json["all"]["ppl"], "PPL", 1.0),
            ("ppl_error", &json["all"]["ppl_error"], "+-", 1.0),
            ("ppl_ratio", &json["ppl_ratio"], "PPL / full", 1.0),
            ("kl_mean", &json["all"]["kl_mean"], "KL mean", 1.0),
            ("kl_later", &json["later"]["kl_mean"], "KL > 32", 1.0),
            ("kl_99", &json["all"]["kl_99"], "KL 99 %", 1.0),
            ("kl_max", &json["all"]["kl_max"], "KL max", 1.0),
            ("same_top", &json["all"]["same_top"], "same top %", 100.0),
            ("rms_delta_p", &json["all"]["rms_delta_p"], "RMS dp %", 100.0),
            ("kv_bytes", &json["kv_bytes"], "KV MiB", 1.0 / 1048576.0),
            ("pass_ms", &json["pass_ms"], "pass ms", 1.0),
        ];
        for (key, json, head, unit) in columns {
            let at = rows[0].iter().position(|h| h == head).unwrap();
            let in_csv: f64 = line[heads.iter().position(|h| h == key).unwrap()].parse().unwrap();
            let digits = row[at].split_once('.').map_or(0, |(_, d)| d.len());
            // serde_json reads numbers but for their last bit.
            assert!((json.as_f64().unwrap() - in_csv).abs() <= 1e-14 * in_csv.abs(), "{name} {key}");
            assert_eq!(format!("{:.digits$}", in_csv * unit), row[at], "{name} {key}");
        }
        let n = |key: &str| json["all"][key].as_f64().unwrap();
        assert_eq!(n("n"), 126.0);
        assert!(if i == 0 { n("kl_max") == 0.0 && n("same_top") == 1.0 } else { n("kl_mean") > 0.0 });
    }
    let svg = std::fs::read_to_string(folder.path("p.svg")).unwrap();
    let document = roxmltree::Document::parse(&svg).unwrap();
    for want in ["topk", "streaming_llm", "compression ratio", "perplexity", "1", "2", "4"] {
        let has = document.descendants().any(|n| n.has_tag_name("text") && n.text().is_some_and(|t| t.trim() == want));
        assert!(has, "{want} is not in the chart");
    }
}

#[test]
fn ratio_1_alone_is_the_full_cache() {
    let folder = Folder::new();
    let table = folder.stdout("-f text -c 64 --chunks 2 --kv-ratio 1 --plot p.svg");
    assert_eq!(table.lines().count(), 3, "{table}");
    assert!(Path::new(&folder.path("p.svg")).exists());
}
