//! Options of how the model file is read, and of threads.

use super::Action::{Int, Switch, Text};
use super::{flag, one_of, set, Flag};
use crate::cli::low::LoadMode;
use crate::ggml::{Numa, MAX_THREADS};

const LOAD_MODES: &[(&str, LoadMode)] = &[
    ("auto", LoadMode::Mmap),
    ("none", LoadMode::Read),
    ("mmap", LoadMode::Mmap),
    ("mlock", LoadMode::Mlock),
    ("mmap+mlock", LoadMode::Mlock),
    ("dio", LoadMode::Read),
];

const NUMA: &[(&str, Numa)] =
    &[("distribute", Numa::Distribute), ("isolate", Numa::Isolate), ("numactl", Numa::Numactl)];

#[rustfmt::skip]
pub(super) const FLAGS: &[Flag] = &[
    flag(&["-lm", "--load-mode"], "MODE", "LLAMA_ARG_LOAD_MODE", Text(|a, v| set(&mut a.load_mode, one_of(&v, LOAD_MODES)?)),
        "how the model file is read: auto (mmap), none (read into memory), mmap, mlock, mmap+mlock, dio (as none) (default: auto)"),
    flag(&["--mmap"], "", "", Switch(|a, on| set(&mut a.load_mode, if on { LoadMode::Mmap } else { LoadMode::Read })),
        "same as --load-mode mmap or none").off_by(&["--no-mmap"]),
    flag(&["--mlock"], "", "", Switch(|a, _| set(&mut a.load_mode, LoadMode::Mlock)),
        "same as --load-mode mlock"),
    flag(&["-dio", "--direct-io"], "", "", Switch(|a, on| if on { set(&mut a.load_mode, LoadMode::Read) } else { Ok(()) }),
        "same as --load-mode dio").off_by(&["-ndio", "--no-direct-io"]),
    flag(&["--repack"], "", "LLAMA_ARG_REPACK", Switch(|a, on| set(&mut a.repack, on)),
        "let ggml rearrange weights for faster matrix products (default: enabled)").off_by(&["-nr", "--no-repack"]),
    flag(&["-t", "--threads"], "N", "LLAMA_ARG_THREADS", Int(|a, n| set(&mut a.n_threads, Some(threads(n)?))),
        "threads for generation; 0 or less = all hardware threads (default: number of physical cores)"),
    flag(&["-tb", "--threads-batch"], "N", "", Int(|a, n| set(&mut a.n_threads_batch, Some(threads(n)?))),
        "threads for prompt processing (default: same as --threads)"),
    flag(&["-C", "--cpu-mask"], "M", "", Text(|a, v| set(&mut a.placement.cpu_mask, mask(&v)?)),
        "processors the threads may run on, as a hexadecimal mask (default: all)"),
    flag(&["-Cr", "--cpu-range"], "lo-hi", "", Text(|a, v| range(&mut a.placement.cpu_mask, &v)),
        "processors the threads may run on, as a range; adds to --cpu-mask"),
    flag(&["--cpu-strict"], "<0|1>", "", Int(|a, n| set(&mut a.placement.strict, n != 0)),
        "one processor per thread (default: 0)"),
    flag(&["--prio"], "N", "", Int(|a, n| set(&mut a.placement.priority, priority(n, -1)?)),
        "priority of the threads: -1 low, 0 normal, 1 medium, 2 high, 3 realtime (default: 0)"),
    flag(&["--poll"], "<0...100>", "", Int(|a, n| set(&mut a.placement.poll, poll(n)?)),
        "how eagerly threads wait for work, 0 = they sleep (default: 50)"),
    flag(&["-Cb", "--cpu-mask-batch"], "M", "", Text(|a, v| set(&mut a.placement_batch.cpu_mask, mask(&v)?)),
        "the same as --cpu-mask for prompts (default: same as --cpu-mask)"),
    flag(&["-Crb", "--cpu-range-batch"], "lo-hi", "", Text(|a, v| range(&mut a.placement_batch.cpu_mask, &v)),
        "the same as --cpu-range for prompts; adds to --cpu-mask-batch"),
    flag(&["--cpu-strict-batch"], "<0|1>", "", Int(|a, n| set(&mut a.placement_batch.strict, Some(n != 0))),
        "the same as --cpu-strict for prompts (default: same as --cpu-strict)"),
    flag(&["--prio-batch"], "N", "", Int(|a, n| set(&mut a.placement_batch.priority, Some(priority(n, 0)?))),
        "the same as --prio for prompts, 0 to 3 (default: same as --prio)"),
    flag(&["--poll-batch"], "<0...100>", "", Int(|a, n| set(&mut a.placement_batch.poll, Some(poll(n)?))),
        "the same as --poll for prompts (default: same as --poll)"),
    flag(&["--numa"], "TYPE", "LLAMA_ARG_NUMA", Text(|a, v| set(&mut a.numa, Some(one_of(&v, NUMA)?))),
        "threads on a machine with several memory nodes: distribute, isolate (on one node), numactl (default: as the system does)"),
];

fn threads(n: i64) -> Result<usize, String> {
    let n = usize::try_from(n.max(0)).unwrap_or(usize::MAX);
    (n <= MAX_THREADS)
        .then_some(n)
        .ok_or_else(|| format!("{n} threads are more than the {MAX_THREADS} that ggml can use"))
}

fn priority(n: i64, lowest: i32) -> Result<i32, String> {
    n.try_into().ok().filter(|p| (lowest..=3).contains(p)).ok_or_else(|| "invalid value".to_string())
}

fn poll(n: i64) -> Result<u32, String> {
    u32::try_from(n).ok().filter(|&p| p <= 100).ok_or_else(|| "invalid value".to_string())
}

/// A hexadecimal mask, lowest processor in the last digit.
fn mask(text: &str) -> Result<Vec<bool>, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let mut cpus = Vec::new();
    for digit in digits.chars().rev() {
        let bits = digit.to_digit(16).ok_or("invalid cpumask")?;
        cpus.extend((0..4).map(|i| bits >> i & 1 == 1));
    }
    if cpus.contains(&true) && cpus.len() <= 1024 {
        Ok(cpus)
    } else {
        Err("invalid cpumask".to_string())
    }
}

/// `lo-hi`, where one end may be missing (0 and 511, as in llama.cpp).
fn range(cpus: &mut Vec<bool>, text: &str) -> Result<(), String> {
    let end = |s: &str, default: usize| if s.is_empty() { Some(default) } else { s.parse().ok() };
    let (lo, hi) = text.split_once('-').ok_or("invalid range")?;
    match (end(lo, 0), end(hi, 511)) {
        (Some(lo), Some(hi)) if lo <= hi && hi < 512 => {
            cpus.resize(cpus.len().max(hi + 1), false);
            cpus[lo..=hi].fill(true);
            Ok(())
        }
        _ => Err("invalid range".to_string()),
    }
}
