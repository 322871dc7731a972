//! Time and memory of a method on a random cache of the size of smollm2 135M:
//! `cargo bench --bench compress -- [method [n_tokens [ratio [n_thread [n_layer]]]]]`.

#![allow(clippy::expect_used)]

use std::time::Instant;

use gracekv::cache::memory::Memory;
use gracekv::compress::{by_name, Budget, MethodOptions};
use rayon::prelude::*;

fn rss() -> (u64, u64) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let get = |key: &str| {
        let line = status.lines().find(|l| l.starts_with(key)).unwrap_or("0 0");
        line.split_whitespace().nth(1).and_then(|v| v.parse().ok()).unwrap_or(0u64)
    };
    (get("VmRSS:") / 1024, get("VmHWM:") / 1024)
}

/// Seconds of processor time used so far, which other load on the machine does not change.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let ticks = stat.split_whitespace().skip(13).take(2).filter_map(|x| x.parse::<f64>().ok()).sum::<f64>();
    ticks / 100.0
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let number = |i: usize, default: f64| args.get(i).map_or(default, |a| a.parse().unwrap_or(default));
    let name = args.first().map_or("gracekv", |a| a.as_str());
    let method = by_name(name, &MethodOptions::default()).expect("method");
    let (n_tokens, ratio, n_layer) = (number(1, 7500.0) as usize, number(2, 32.0), number(4, 30.0) as usize);
    rayon::ThreadPoolBuilder::new().num_threads(number(3, 2.0) as usize).build_global().expect("pool");
    let memory = Memory::random(1, n_layer, 9, 3, 64, n_tokens, [32, 64, 32]);
    let view = memory.view();
    let budget = Budget::of_ratio(ratio, n_layer * 3, n_tokens, 4, 16).expect("budget");
    let (before, cpu_start) = (rss(), cpu());
    let start = Instant::now();
    let allocation = method.allocate(&view, &budget).expect("allocate");
    let (allocated, cpu_allocated) = (start.elapsed(), cpu());
    let n: usize = view
        .layers
        .par_iter()
        .map(|&il| allocation.layer(&view, il).expect("layer").heads.iter().map(|h| h.entries.len()).sum::<usize>())
        .sum();
    let (total, cpu_end) = (start.elapsed(), cpu());
    println!(
        "{} x{ratio} {n_tokens} tokens: allocate {allocated:.2?} layers {:.2?} total {total:.2?}",
        method.name,
        total - allocated
    );
    let per_head = |seconds: f64| seconds * 1e3 / (n_layer * 3) as f64;
    println!(
        "processor time per head: allocate {:.1} ms, layer {:.1} ms",
        per_head(cpu_allocated - cpu_start),
        per_head(cpu_end - cpu_allocated)
    );
    println!(
        "entries {n} of {}, {:?}; resident MB (now, peak) before {before:?} after {:?}",
        budget.n_entries,
        allocation.counters(),
        rss()
    );
}
