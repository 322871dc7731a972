//! Memory that cannot be had: refused before anything is allocated, with what would fit, or one line; never an abort.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use std::sync::Arc;

use gracekv::cache::CacheOptions;
use gracekv::compress;
use gracekv::engine::{Engine, EngineOptions, FlashAttn};
use gracekv::ggml;
use gracekv::gguf::Gguf;
use gracekv::model::{compute_bytes, LoadOptions, Model};
use gracekv::pass::{PassOptions, Target};
use gracekv::sample::{Constraint, Grammar};
use gracekv::session::Session;
use gracekv::tokenizer::Tokenizer;

use crate::support::{decode, engine, options, tiny};

/// The program on a tiny model in an address space of so many KiB.
fn limited(kib: u64, args: &[&str]) -> Output {
    let model = tiny::path("llama");
    let limit = format!("ulimit -v {kib}; ulimit -c 0; exec \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &limit, "sh", env!("CARGO_BIN_EXE_gracekv-run"), "-m", model.to_str().unwrap()]);
    command
        .args(["-no-cnv", "-p", "the rain in the inner harbour", "-n", "8", "--temp", "0", "--no-warmup"])
        .args(args);
    command.stdin(Stdio::null()).output().unwrap()
}

/// The error line; the run must have ended with one.
fn refused(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let line = text.lines().last().unwrap_or_default().to_owned();
    assert!(output.status.code() == Some(1) && line.starts_with("error: ") && !text.contains("panicked"), "{output:?}");
    line
}

/// From an address space in which nothing can be loaded to one that is large enough.
#[test]
fn too_little_memory_is_an_error_line_wherever_it_runs_out() {
    for args in [
        &["-c", "2048"][..],
        &["-c", "2048", "-t", "4", "--kv-ratio", "4", "--kv-min-tokens", "0", "--kv-lookahead", "2"],
        &["-c", "2048", "-fa", "off", "--no-mmap", "--grammar", "root ::= [a-z ]*"],
    ] {
        let mut codes = Vec::new();
        // The loader of the operating system needs some itself, and says so in its own way.
        let mut kib = 24_000;
        while kib < 2_000_000 {
            let output = limited(kib, args);
            let is_ours = output.status.code() != Some(127);
            if output.status.code() != Some(0) && is_ours {
                refused(&output);
            }
            codes.push(output.status.code());
            kib += kib / 6;
        }
        assert!(codes.contains(&Some(1)) && codes.last() == Some(&Some(0)), "{args:?}: {codes:?}");
    }
}

/// The numbers are named, and what is proposed works.
#[test]
fn a_context_that_does_not_fit_is_refused_with_one_that_does() {
    let kib = 1_500_000;
    let line = refused(&limited(kib, &["-c", "4000000"]));
    for part in
        ["the KV cache of 4000000 tokens needs", "MiB of weights", "for computing (-ub 512)", "the CPU has", "use -c "]
    {
        assert!(line.contains(part), "{line}");
    }
    let n_ctx = line.split("use -c ").nth(1).unwrap().split(|c: char| !c.is_ascii_digit()).next().unwrap();
    assert!(n_ctx.parse::<usize>().unwrap() > 100_000, "{line}");
    // Also when a little less is free by then.
    let output = limited(kib - (64 << 10), &["-c", n_ctx]);
    assert_eq!(output.status.code(), Some(0), "-c {n_ctx}: {}", String::from_utf8_lossy(&output.stderr));
    // Without a context asked for, one that fits is taken.
    let output = limited(kib, &[]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The estimate is never less than what ggml takes, and not many times as much where that is megabytes.
#[test]
fn compute_buffers_stay_below_their_estimate() {
    for name in tiny::names() {
        let model = tiny::model(name);
        for (n_ctx, n_ubatch) in [(64, 1), (512, 16), (1024, 512)] {
            for flash_attn in [FlashAttn::Auto, FlashAttn::Off] {
                let o = EngineOptions { n_ubatch, flash_attn, ..options(n_ctx, 1) };
                let Ok(mut engine) = Engine::new(model.clone(), o) else { continue };
                let tokens: Vec<u32> = (0..n_ctx as u32).map(|i| i * 7 % 250).collect();
                decode(&mut engine, &tokens);
                let cache = CacheOptions { n_ubatch, ..*engine.cache.options() };
                let most = compute_bytes(&model.hp, &cache, flash_attn == FlashAttn::Off, 1);
                let found = engine.compute_bytes() as u64;
                let what = format!("{name} -c {n_ctx} -ub {n_ubatch} {flash_attn:?}: {found} of {most} bytes");
                assert!(found <= most && most <= 4 * found + (2 << 20), "{what}");
            }
        }
    }
}

/// What control groups and limits leave is part of what is free.
#[test]
fn a_limit_on_addresses_is_seen() {
    let free = gracekv::ggml::available_bytes();
    assert!(free.is_none_or(|free| free > 1 << 20), "{free:?}");
    if Path::new("/proc/self/limits").exists() {
        let line = refused(&limited(400_000, &["-c", "4000000"]));
        let free: f64 = line.split("the CPU has ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        assert!(free < 400.0, "{line}");
    }
}

/// Loads, encodes, reads, compresses and lets everything go.
fn load_and_drop(path: &Path, number: usize) {
    let model =
        Arc::new(Model::load(path, LoadOptions { mmap: number.is_multiple_of(2), ..LoadOptions::default() }).unwrap());
    let tokenizer = Tokenizer::load(&Gguf::open(path).unwrap()).unwrap();
    let text: String = (0..400).map(|i| format!("word{} ", i * 7)).collect();
    let tokens: Vec<u32> = tokenizer.encode(&text, true, false).unwrap().into_iter().take(200).collect();
    let options = PassOptions { target: Target::Ratio(4.0), n_lookahead: 2, n_min_tokens: 0, ..PassOptions::default() };
    let method = compress::by_name("gracekv", &Default::default()).unwrap();
    let mut session = Session::new(engine(&model, 512, 1), Some((method, options)));
    session.prefill(&tokens, |_| Ok(())).unwrap();
    (0..4).for_each(|token| drop(session.step(token).unwrap()));
    let constraint = Constraint::Gbnf { source: "test".into(), text: "root ::= [a-z ]+".into() };
    drop(Grammar::new(&constraint, &tokenizer).unwrap());
}

/// Alone in a process, see below.
#[test]
#[ignore = "started by what_is_dropped_leaves_nothing_behind"]
fn resident_memory_while_models_come_and_go() {
    ggml::set_log(false);
    for kind in ["qwen2", "gemma3"] {
        let path = tiny::path(kind);
        let resident = |numbers: std::ops::Range<usize>| {
            numbers.for_each(|number| load_and_drop(&path, number));
            ggml::trim();
            ggml::resident_bytes() as i64
        };
        let readings = |first: usize| (0..5).map(move |i| first + 20 * i..first + 20 * (i + 1));
        resident(0..60);
        let before = readings(60).map(resident).max().unwrap();
        resident(160..360);
        let after = readings(360).map(resident).min().unwrap();
        let grown = (after - before) / 1024;
        println!("{kind}: {grown} KiB more after 200 models");
        // What the allocator holds back moves up and down by two MiB, what is left behind only adds up.
        assert!(grown < 1024, "{kind}: {grown} KiB more after 200 models, {} bytes for each", grown * 1024 / 200);
    }
}

/// Other tests of the same process would be measured too.
#[test]
#[cfg(target_os = "linux")]
fn what_is_dropped_leaves_nothing_behind() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["memory::resident_memory_while_models_come_and_go", "--exact", "--ignored", "--nocapture"]);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("after 200 models"), "{said}");
}
