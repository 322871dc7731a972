use super::*;

fn run(args: &str) -> Result<Box<Run>> {
    match parse(args.split(' ').map(OsString::from))? {
        Request::Run(run) => Ok(run),
        Request::Print(text) => panic!("{text}"),
        Request::Devices(_) => panic!("devices"),
    }
}

fn one(args: &str) -> Options {
    let run = run(args).unwrap();
    assert_eq!(run.combinations.len(), 1, "{args}");
    run.combinations[0].clone()
}

#[test]
fn llama_bench_s_spelling_is_understood() {
    let args = "-m x.gguf -p 0 -n 32,64 -n 128 -d 0,4096 -r 1 -t 2 -ub 256 -b 1024 -fa 0 -ctk q8_0 -ctv f16 -o jsonl --no-warmup";
    let o = one(args);
    assert_eq!((o.n_prompt, o.n_gen, o.n_depth), (vec![0], vec![32, 64, 128], vec![0, 4096]));
    assert_eq!((o.n_reps, o.threads.n_threads, o.n_ubatch, o.n_batch), (1, 2, 256, 1024));
    assert_eq!((o.flash_attn, o.ty_k, o.ty_v, o.warmup), (FlashAttn::Off, Type::Q8_0, Type::F16, false));
    assert_eq!((run(args).unwrap().format, run(args).unwrap().format_err), (Format::Jsonl, None));
    let o = one("-m x.gguf");
    assert_eq!((o.n_prompt, o.n_gen, o.n_depth, o.kv_ratio), (vec![512], vec![128], vec![0], vec![]));
    let o = one("-m x.gguf -p 128-512+128 -n 1-8*2 -pg 512,128 -pg 64,1");
    assert_eq!((o.n_prompt, o.n_gen), (vec![128, 256, 384, 512], vec![1, 2, 4, 8]));
    assert_eq!(o.n_pg, [(512, 128), (64, 1)]);
    assert!(one("-m x.gguf -p 0 -n 0 -pg 512,128").n_pg.len() == 1);
}

#[test]
fn options_of_gracekv_run_mean_the_same() {
    let low = |args: &str| run(args).unwrap().low;
    assert_eq!((low("-m x").devices.n_layers, low("-m x").devices.names), (-2, None));
    let names = |names: &[&str]| Some(names.iter().map(|s| s.to_string()).collect::<Vec<_>>());
    let devices = low("-m x -ngl 7 -dev a/b -sm none -mg 1 -nkvo 1").devices;
    assert_eq!((devices.n_layers, devices.names, devices.main, devices.kv_on_cpu), (7, names(&["a", "b"]), 1, true));
    assert!(!low("-m x -nkvo 0").devices.kv_on_cpu && low("-m x -repack 1").repack && !low("-m x --repack 0").repack);
    assert_eq!(low("-m x -ngl -1").devices.n_layers, -1);
    use crate::cli::low::LoadMode;
    assert_eq!((low("-m x -mmp 0").load_mode, low("-m x -lm mlock").load_mode), (LoadMode::Read, LoadMode::Mlock));
    let threads = one("-m x --prio 2 --poll 0 -C 0x3 --cpu-strict 1 -t 2").threads;
    assert_eq!((threads.priority, threads.poll, threads.strict_cpu), (2, 0, true));
    assert_eq!(threads.cpu_mask, [true, true, false, false]);
    let low = low("-hf a/b --offline");
    assert_eq!((low.hf_repo.as_deref(), low.offline, low.model), (Some("a/b"), true, None));
}

#[test]
fn lists_are_combined_in_llama_bench_s_order() {
    let run = run("-m x -b 64,128 -ub 16-32*2 -ctk f16,q8_0 -fa 0,1 -t 1,2 -oe md --delay 3 --progress -v").unwrap();
    let all: Vec<_> =
        run.combinations.iter().map(|o| (o.n_batch, o.n_ubatch, o.ty_k, o.flash_attn, o.threads.n_threads)).collect();
    assert_eq!(all.len(), 32);
    assert_eq!(all[0], (64, 16, Type::F16, FlashAttn::Off, 1));
    assert_eq!(all[1], (64, 16, Type::F16, FlashAttn::Off, 2));
    assert_eq!(all[2], (64, 16, Type::F16, FlashAttn::On, 1));
    assert_eq!(all[4], (64, 16, Type::Q8_0, FlashAttn::Off, 1));
    assert_eq!(all[31], (128, 32, Type::Q8_0, FlashAttn::On, 2));
    assert_eq!(
        (run.format_err, run.delay, run.progress, run.verbose),
        (Some(Format::Md), Duration::from_secs(3), true, true)
    );
}

/// Every option of llama-bench is understood, or named by its refusal.
#[test]
fn no_option_of_llama_bench_is_unknown() {
    let with_value = [
        ("-r", "1"),
        ("--prio", "0"),
        ("--delay", "0"),
        ("-o", "csv"),
        ("-oe", "csv"),
        ("--output-err", "md"),
        ("-hf", "a/b"),
        ("-hfr", "a/b"),
        ("--hf-repo", "a/b"),
        ("-hff", "f"),
        ("-hft", "t"),
        ("-p", "1"),
        ("-n", "1"),
        ("-pg", "1,1"),
        ("-d", "1"),
        ("-b", "1"),
        ("-ub", "1"),
        ("-ctk", "f16"),
        ("-ctv", "f16"),
        ("-t", "1"),
        ("-C", "0x1"),
        ("--cpu-strict", "0"),
        ("--poll", "0"),
        ("-ngl", "0"),
        ("-sm", "layer"),
        ("-mg", "0"),
        ("-nkvo", "0"),
        ("-fa", "auto"),
        ("-dev", "none"),
        ("-lm", "auto"),
        ("--repack", "1"),
        ("-rpc", "h:1"),
        ("--numa", "isolate"),
        ("-mmp", "1"),
        ("--n_prompt", "1"),
    ];
    for (name, value) in with_value {
        assert!(
            run(&format!("-m x {name} {value}")).is_ok(),
            "{name}: {:?}",
            run(&format!("-m x {name} {value}")).err()
        );
    }
    for name in ["-v", "--verbose", "--progress", "--no-warmup", "--offline"] {
        assert!(run(&format!("-m x {name}")).is_ok(), "{name}");
    }
    for name in ["--version", "-h", "--help"] {
        assert!(matches!(parse([name.into()]), Ok(Request::Print(_))), "{name}");
    }
    assert!(matches!(parse(["--list-devices".into()]), Ok(Request::Devices(_))));
    for name in
        ["-fitt", "--fit-target", "-fitc", "-ncmoe", "-ts", "-ot", "-embd", "-nopo", "--no-host", "-lzm", "--no_host"]
    {
        let error = run(&format!("-m x {name} 1")).unwrap_err().to_string();
        assert!(error.starts_with(&name.replace('_', "-")) && error.contains("not supported"), "{name}: {error}");
    }
}

#[test]
fn mistakes_are_told_in_one_line() {
    for args in [
        "-p 1",
        "-m x --bogus",
        "-m x -bogus",
        "-m x -r 0",
        "-m x -p 0 -n 0",
        "-m x -fa 2",
        "-m x -ctk q9",
        "-m x -n a",
        "-m x -n 5-1",
        "-m x -o sql",
        "-m x -pg 5",
        "-m x -pg 0,0",
        "-m x -ngl some",
        "-m x -ngl -5",
        "-m x -sm rows",
        "-m x -t 1,99999",
        "-m x --prio 9",
        "-m x -d 512 --kv-ratio 0.5",
        "-m x --kv-ratio 8",
        "-m x -d 512,4096 --kv-ratio 600",
        "-m x -d 512 --kv-ratio 1e300",
    ] {
        let Err(e) = run(args) else { panic!("{args} was accepted") };
        let line = e.to_string();
        assert!(line.lines().count() == 1 && line.len() < 250, "{args}: {line}");
    }
}
