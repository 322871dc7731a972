//! Plans of the published methods, against those that `scripts/reference_plans.py` makes from the papers' definitions.

use std::path::Path;

use gracekv::cache::memory::Memory;
use gracekv::cache::plan::{HeadPlan, Row};
use gracekv::cache::rope::{Rope, RopeKind};
use gracekv::cache::view::{Probe, ProbeKind, Probes};
use gracekv::compress::{by_name, Budget, MethodOptions, METHODS};
use serde_json::Value;

/// Methods of this project, which have no paper to be compared with.
const OWN: [&str; 3] = ["gracekv", "topk", "none"];

fn read(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/methods/{name}.json"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap()
}

fn number(value: &Value) -> usize {
    value.as_u64().unwrap() as usize
}

fn floats(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

/// Rows of small integers, in units of 1/32, so that every program reads the same numbers.
fn units(value: &Value) -> Vec<Vec<f32>> {
    let rows = value.as_array().unwrap().iter();
    rows.map(|row| floats(row).iter().map(|x| x / 32.0).collect()).collect()
}

fn cache() -> Memory {
    let file = read("cache");
    let n = |name: &str| number(&file[name]);
    let (n_tokens, n_window, n_lookahead) = (n("n_tokens"), n("n_window_query"), n("n_lookahead"));
    let window = (n_tokens - n_window..n_tokens).map(|t| (ProbeKind::Window, t));
    let ahead = (n_tokens..n_tokens + n_lookahead).map(|t| (ProbeKind::Lookahead, t));
    let list = window.chain(ahead).map(|(kind, pos)| Probe { kind, pos: pos as u32 }).collect();
    let head_dim = n("head_dim");
    Memory {
        layers: (0..n("n_layer")).collect(),
        n_head: n("n_head"),
        n_head_kv: n("n_head_kv"),
        head_dim_k: head_dim,
        head_dim_v: head_dim,
        n_tokens,
        keys: units(&file["keys"]),
        values: units(&file["values"]),
        probes: Probes { list, queries: units(&file["queries"]), ..Probes::default() },
        rope: vec![Rope::new(RopeKind::None, head_dim, 10_000.0); n("n_layer")],
        attention_mass: file["attention_mass"].as_array().unwrap().iter().map(floats).collect(),
        ..Memory::default()
    }
}

/// Tokens whose keys or values an entry is made from, by its place: entries of every method are in the order of their tokens.
fn check_head(context: &str, memory: &Memory, (il, g): (usize, usize), head: &HeadPlan, want: &Value) {
    let tokens: Vec<usize> = want["tokens"].as_array().unwrap().iter().map(number).collect();
    let dim = memory.head_dim_k;
    assert_eq!(head.entries.len(), tokens.len(), "{context}: entries");
    for (i, (entry, &token)) in head.entries.iter().zip(&tokens).enumerate() {
        let at = format!("{context}, entry {i}");
        assert_eq!(entry.bias, 0.0, "{at}");
        assert_eq!(entry.n_tokens as usize, want["n_tokens"].get(i).map_or(1, number), "{at}: tokens it stands for");
        let same = |what: &str, row: Row, new: &[f32], old: &[Vec<f32>]| {
            let found = match row {
                Row::Token(t) => {
                    assert_eq!(t as usize, token, "{at}: {what}");
                    &old[il * memory.n_head_kv + g][token * dim..(token + 1) * dim]
                }
                Row::New(r) => &new[r as usize * dim..(r as usize + 1) * dim],
            };
            let merged = want[what].get(i).filter(|row| !row.is_null());
            assert_eq!(merged.is_some(), matches!(row, Row::New(_)), "{at}: merged {what}");
            for (found, want) in found.iter().zip(merged.map(floats).iter().flatten()) {
                assert!((found - want).abs() < 1e-4 * want.abs().max(1.0), "{at}: {what} {found}, {want} expected");
            }
        };
        same("keys", entry.key, &head.new_keys, &memory.keys);
        same("values", entry.value, &head.new_values, &memory.values);
    }
}

#[test]
fn plans_are_those_of_the_papers() {
    let memory = cache();
    let view = memory.view();
    for method in METHODS.iter().filter(|m| !OWN.contains(&m.name)) {
        let cases = read(method.name);
        let cases = cases.as_array().unwrap();
        for m in method.modifiers {
            let name = format!("{}+{}", method.name, m.name);
            assert!(cases.iter().any(|case| case["name"] == name), "no plan of {name}");
        }
        for case in cases {
            let name = case["name"].as_str().unwrap();
            let n = |what: &str| number(&case[what]);
            let budget = Budget { n_entries: n("n_entries"), n_sink: n("n_sink"), n_window: n("n_window") };
            let method = by_name(name, &MethodOptions::default()).unwrap();
            let allocation = method.allocate(&view, &budget).unwrap();
            for il in 0..memory.layers.len() {
                let plan = allocation.layer(&view, il).unwrap();
                assert_eq!(plan.heads.len(), memory.n_head_kv);
                for (g, head) in plan.heads.iter().enumerate() {
                    let context = format!("{name} with {} entries, layer {il}, head {g}", budget.n_entries);
                    check_head(&context, &memory, (il, g), head, &case["heads"][il * memory.n_head_kv + g]);
                }
            }
        }
    }
}
