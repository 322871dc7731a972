//! Devices: their options, and, with the feature `rpc`, layers and caches in memory that the host cannot address (ggml's RPC
//! backend over loopback).

use std::process::{Command, Output};

use crate::support::tiny;

/// Runs the program; the text that it printed, and all else.
fn run(args: &[&str]) -> (Output, String) {
    let out = Command::new(env!("CARGO_BIN_EXE_gracekv-run"))
        .args(args)
        .env_remove("LLAMA_ARG_RPC")
        .env("GRACEKV_RPC_TIMEOUT", "60")
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!log.contains("panicked"), "{log}");
    (out, log)
}

/// The line of an error, after checking that it is the only one, with exit code 1.
fn error(args: &[&str]) -> String {
    let (out, log) = run(args);
    assert_eq!(out.status.code(), Some(1), "{args:?}: {log}");
    let errors: Vec<&str> = log.lines().filter(|l| l.contains("error")).collect();
    assert!(errors.len() == 1 && out.stdout.is_empty(), "{args:?}: {log}");
    errors[0].to_owned()
}

#[test]
fn without_a_device_ngl_is_accepted_with_one_warning() {
    if !gracekv::ggml::Device::offload().is_empty() {
        return;
    }
    let model = tiny::path("llama");
    let args = ["-m", model.to_str().unwrap(), "-p", "ab", "-n", "2", "-no-cnv", "-c", "64", "--temp", "0"];
    let (plain, _) = run(&args);
    for more in
        [&["-ngl", "99"][..], &["-ngl", "all"], &["-ngl", "99", "-dev", "none", "-sm", "none", "-ts", "1", "-nkvo"]]
    {
        let (out, log) = run(&[&args[..], more].concat());
        assert!(out.status.success() && out.stdout == plain.stdout, "{more:?}: {log}");
        assert_eq!(log.lines().filter(|l| l.contains("warning") && l.contains("--gpu-layers")).count(), 1, "{log}");
    }
    assert_eq!(String::from_utf8(run(&["--list-devices"]).0.stdout).unwrap(), "Available devices:\n  (none)\n");
}

#[test]
fn unknown_devices_and_servers_are_named_in_one_line() {
    let model = tiny::path("llama");
    let with =
        |more: &[&str]| error(&[&["-m", model.to_str().unwrap(), "-p", "ab", "-n", "1", "-no-cnv"], more].concat());
    let line = with(&["-dev", "CUDA7"]);
    assert!(line.contains("no device is named 'CUDA7'"), "{line}");
    let line = with(&["-ot", "ffn=CUDA7"]);
    assert!(line.contains("no device in use is named 'CUDA7'"), "{line}");
    let bad = [("-ngl", "x"), ("-ts", "a,b"), ("-ot", "[=CPU"), ("-ot", "ffn"), ("-sm", "rows"), ("-mg", "-1")];
    for (name, value) in bad {
        let line = with(&[name, value]);
        assert!(line.contains(&format!("error while handling argument \"{name}\"")), "{line}");
    }
    for server in ["nonsense", "127.0.0.1:x", "127.0.0.1:1"] {
        let line = with(&["--rpc", server]);
        let expected = if cfg!(feature = "rpc") || server != "127.0.0.1:1" { server } else { "--features rpc" };
        assert!(line.contains(expected), "{line}");
    }
}

/// Refused before anything is allocated, with what would fit.
#[test]
fn too_large_a_cache_is_refused_with_what_would_fit() {
    let model = tiny::path("llama");
    let line = error(&["-m", model.to_str().unwrap(), "-p", "ab", "-n", "1", "-no-cnv", "-c", "2000000000"]);
    for part in ["the KV cache of 2000000000 tokens needs", "MiB of weights", "the CPU has", "use -c "] {
        assert!(line.contains(part), "{line}");
    }
}

#[cfg(feature = "rpc")]
mod rpc {
    use super::{error, run};
    use crate::support::{model_path, tiny, MODELS};
    use serde_json::Value;
    use std::io::{BufRead, BufReader};
    use std::net::{TcpListener, TcpStream};
    use std::path::{Path, PathBuf};
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    /// A server at a free port of this machine; ended when dropped.
    struct Server {
        child: Child,
        address: String,
    }

    impl Server {
        fn start() -> Server {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let mut child = Command::new(env!("CARGO_BIN_EXE_gracekv-rpc-server"))
                .args(["-p", &port.to_string(), "-t", "2"])
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let mut line = String::new();
            BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
            assert!(line.contains("trusted networks only"), "{line}");
            let address = format!("127.0.0.1:{port}");
            let begin = Instant::now();
            while TcpStream::connect(&address).is_err() {
                assert!(begin.elapsed() < Duration::from_secs(20), "the server does not listen");
                std::thread::sleep(Duration::from_millis(20));
            }
            Server { child, address }
        }
    }

    impl Drop for Server {
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    /// What a run prints and reports. The report comes without times and memory.
    fn answer(model: &Path, more: &[&str]) -> (Vec<u8>, Value, Value, String) {
        let dir = tempfile::tempdir().unwrap();
        let report = dir.path().join("report.json");
        let args = ["-m", model.to_str().unwrap(), "-no-cnv", "--no-warmup", "--temp", "0", "--ignore-eos", "-n", "8"];
        // The same operations on both sides: ggml's attention, and weights as they are in the file.
        let fixed = ["-fa", "on", "--no-repack", "-t", "2", "-c", "1024", "--kv-report", report.to_str().unwrap()];
        let (out, log) = run(&[&args[..], &fixed, more].concat());
        assert!(out.status.success(), "{more:?}: {log}");
        let report = std::fs::read_to_string(&report).map_or(Value::Null, |text| serde_json::from_str(&text).unwrap());
        (out.stdout, report["plan"].clone(), report["memory"].clone(), log)
    }

    fn tiny_models() -> Vec<PathBuf> {
        ["llama", "gemma3"].map(tiny::path).into()
    }

    const PROMPT: &str = include_str!("../golden/README.md");

    fn prompt(n_bytes: usize) -> &'static str {
        let end = (n_bytes..PROMPT.len()).find(|&i| PROMPT.is_char_boundary(i)).unwrap_or(PROMPT.len());
        &PROMPT[..end]
    }

    #[test]
    fn servers_are_devices() {
        let server = Server::start();
        let (out, log) = run(&["--rpc", &server.address, "--list-devices"]);
        let text = String::from_utf8(out.stdout).unwrap();
        assert!(text.contains(&format!("RPC0: {} (", server.address)), "{text}{log}");
        let model = tiny::path("llama");
        let line = error(&[
            "-m",
            model.to_str().unwrap(),
            "-p",
            "a",
            "-n",
            "1",
            "-no-cnv",
            "--rpc",
            &server.address,
            "-dev",
            "RPC9",
        ]);
        assert!(line.contains("no device is named 'RPC9'; there are RPC0"), "{line}");
    }

    /// Full and compressed: two servers, one beside the CPU, caches on the CPU, weights elsewhere; every text and plan is that of
    /// a run on the CPU.
    #[test]
    fn a_model_split_over_servers_gives_the_text_and_the_plan_of_one() {
        let servers = [Server::start(), Server::start()];
        let both = format!("{},{}", servers[0].address, servers[1].address);
        for model in tiny_models() {
            let prompt = prompt(500);
            for kv in [&["-p", prompt][..], &["-p", prompt, "--kv-ratio", "8", "--kv-lookahead", "4"]] {
                let want = answer(&model, kv);
                for devices in [
                    &["--rpc", &both][..],
                    &["--rpc", &both, "-ngl", "2"],
                    &["--rpc", &servers[0].address, "-ngl", "2"],
                    &["--rpc", &servers[0].address, "-nkvo"],
                    &["--rpc", &both, "-sm", "none", "-mg", "1", "-ot", "ffn_up=CPU"],
                    &["--rpc", &both, "-ts", "3,1"],
                ] {
                    let found = answer(&model, &[kv, devices].concat());
                    assert_eq!(found.1, want.1, "{} {devices:?}", model.display());
                    assert!(found.0 == want.0, "{} {devices:?}: {}", model.display(), found.3);
                }
            }
        }
    }

    /// Each key and value of a compressed layer crosses once, and back comes what the pass leaves.
    #[test]
    fn a_pass_reads_the_cache_once_and_writes_what_it_leaves() {
        let server = Server::start();
        let types = [&[][..], &["-ctk", "q8_0", "-ctv", "q4_0"]];
        for (model, types) in
            MODELS.iter().filter_map(|(_, file)| model_path(file)).flat_map(|m| types.map(|t| (m.clone(), t)))
        {
            let args = [&["-p", prompt(1600), "--kv-ratio", "8", "--kv-lookahead", "4"], types].concat();
            let want = answer(&model, &args);
            let found = answer(&model, &[&args[..], &["--rpc", &server.address]].concat());
            assert_eq!(found.1, want.1, "{} {types:?}", model.display());
            assert!(found.0 == want.0, "{} {types:?}: {}", model.display(), found.3);
            let bytes = |key: &str| found.2[key].as_u64().unwrap();
            let (kv, down, up) = (bytes("kv_bytes_remote"), bytes("bytes_from_devices"), bytes("bytes_to_devices"));
            eprintln!("{} {types:?}: {kv} bytes of cache, {down} down, {up} up", model.display());
            assert!(kv > 0 && down * 100 <= kv * 115, "{down} of {kv} bytes came down");
            assert!(up * 100 <= kv * 30, "{up} of {kv} bytes went up");
        }
    }

    /// A program that accepts and says nothing; the user says how long that may take, in the greeting, too.
    #[test]
    fn a_server_that_never_greets_ends_the_run_when_the_user_says() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = silent.local_addr().unwrap().to_string();
        let list = |seconds: &str| {
            let begin = Instant::now();
            let out = Command::new(env!("CARGO_BIN_EXE_gracekv-run"))
                .args(["--rpc", &address, "--list-devices"])
                .env("GRACEKV_RPC_TIMEOUT", seconds)
                .output()
                .unwrap();
            let log = String::from_utf8_lossy(&out.stderr).into_owned();
            assert_eq!(out.status.code(), Some(1), "{log}");
            (begin.elapsed(), log)
        };
        let (elapsed, log) = list("1");
        assert!(elapsed < Duration::from_secs(8), "{elapsed:?}: {log}");
        assert!(log.contains(&format!("no answer from the RPC server at {address} for 1 s")), "{log}");
        for wrong in ["soon", "-1", ""] {
            let (_, log) = list(wrong);
            assert!(log.contains(&format!("GRACEKV_RPC_TIMEOUT={wrong}: it is a number of seconds")), "{log}");
        }
    }

    #[test]
    fn a_server_that_dies_or_hangs_ends_the_run_in_one_line() {
        let model = tiny::path("llama");
        for (signal, expected) in [("KILL", "has ended"), ("STOP", "no answer")] {
            let server = Server::start();
            let mut child = Command::new(env!("CARGO_BIN_EXE_gracekv-run"))
                .args(["-m", model.to_str().unwrap(), "-no-cnv", "-p", "ab", "-n", "-1", "--ignore-eos", "-c", "4096"])
                .args(["--context-shift", "--rpc", &server.address])
                .env("GRACEKV_RPC_TIMEOUT", "2")
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            // It is at work once it has answered something.
            let mut stdout = child.stdout.take().unwrap();
            let mut first = [0u8; 4];
            std::io::Read::read_exact(&mut stdout, &mut first).unwrap();
            let drain = std::thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()));
            let kill = Command::new("kill").args([format!("-{signal}"), server.child.id().to_string()]).status();
            assert!(kill.unwrap().success());
            let begin = Instant::now();
            let out = child.wait_with_output().unwrap();
            assert!(begin.elapsed() < Duration::from_secs(20), "{signal}");
            let _ = drain.join();
            let log = String::from_utf8_lossy(&out.stderr).into_owned();
            let errors: Vec<&str> = log.lines().filter(|l| l.contains("error")).collect();
            assert!(errors.len() == 1 && errors[0].contains(expected) && errors[0].contains(&server.address), "{log}");
            assert_eq!(out.status.code(), Some(1), "{signal}: {log}");
        }
    }
}
