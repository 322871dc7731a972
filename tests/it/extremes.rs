//! Values at the ends of what is possible: sizes of 1, ratios near 1 and far beyond, prompts of one token, input that is no
//! text, weights that are no numbers. A run works or is refused with one line; it never crashes or hangs.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use gracekv::compress::METHODS;
use gracekv::gguf::Gguf;

use crate::support::tiny;

const PROMPT: &str = "the rain in the inner harbour and the heat of an inert rhine than the train in the hen";

/// The program over a tiny model, with this standard input; it has to end in time.
fn run(model: &Path, args: &[&str], env: &[(&str, &str)], input: &[u8]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gracekv-run"));
    command.args(["-m", model.to_str().unwrap(), "-t", "1", "-n", "4", "--temp", "0", "--no-warmup"]).args(args);
    command.envs(env.iter().copied()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let start = Instant::now();
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    // A program that has ended reads no more.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(start.elapsed() < Duration::from_secs(30), "{args:?}");
    output
}

/// What it says; the code is 0, or 1 with an error line at the end.
fn checked(output: &Output, what: &str) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!text.contains("panicked"), "{what}: {text}");
    let n_errors = text.lines().filter(|l| l.starts_with("error")).count();
    match output.status.code() {
        Some(0) => {}
        // In a conversation there may be errors that do not end it; behind an option that cannot be read comes its usage.
        Some(1) => assert!(n_errors > 0 && (text.contains("usage:") || is_last(&text)), "{what}: {text}"),
        code => panic!("{what}: {code:?}: {text}"),
    }
    text
}

fn is_last(text: &str) -> bool {
    text.lines().last().is_some_and(|line| line.starts_with("error"))
}

fn plain(args: &[&str]) -> (Output, String) {
    let output = run(&tiny::path("llama"), &[&["-no-cnv"], args].concat(), &[], b"");
    let text = checked(&output, &format!("{args:?}"));
    (output, text)
}

#[test]
fn sizes_of_one_work() {
    let expected = plain(&["-p", PROMPT]).0.stdout;
    for args in [&["-c", "1"][..], &["-b", "1"], &["-ub", "1"], &["-b", "1", "-ub", "1"], &["--keep", "1"]] {
        let (output, text) = plain(&[&["-p", PROMPT], args].concat());
        assert!(output.stdout == expected, "{args:?}: {text}");
    }
    for more in [
        &["--kv-decode-interval", "1"][..],
        &["-c", "256", "-ub", "1"],
        &["--kv-lookahead", "1"],
        &["--kv-window", "1"],
    ] {
        let args = ["-p", PROMPT, "--kv-ratio", "2", "--kv-min-tokens", "0", "-n", "20"];
        let (output, text) = plain(&[&args[..], more].concat());
        assert!(output.status.success() && output.stdout.starts_with(PROMPT.as_bytes()), "{more:?}: {text}");
    }
}

#[test]
fn every_method_takes_every_ratio_or_says_which() {
    for method in METHODS {
        for ratio in ["1.0001", "3.7", "1e9"] {
            let args = ["-p", PROMPT, "--kv-method", method.name, "--kv-ratio", ratio, "--kv-min-tokens", "0"];
            let (output, text) = plain(&args);
            let is_refused = text.contains("the largest possible ratio is");
            assert!(output.status.success() || (is_refused && ratio != "1.0001"), "{} {ratio}: {text}", method.name);
        }
    }
}

#[test]
fn prompts_of_one_token_work() {
    for arch in ["llama", "qwen2", "gemma3"] {
        for method in METHODS {
            for force in [&[][..], &["--kv-force"]] {
                let args =
                    ["-no-cnv", "-p", "a", "--kv-min-tokens", "0", "--kv-ratio", "2", "--kv-method", method.name];
                let output = run(&tiny::path(arch), &[&args[..], force].concat(), &[], b"");
                checked(&output, &format!("{arch} {} {force:?}", method.name));
            }
        }
    }
}

/// What a conversation gets by a pipe need not be text, nor short.
#[test]
fn hostile_input_ends_a_conversation_or_is_answered() {
    let long = [vec![b'a'; 10 << 20], b"\n".to_vec()].concat();
    let inputs: [&[u8]; 9] = [
        b"\0\0\0\n\0\n",
        b"\xff\xfe\xc3\n",
        b"\xc3",
        b"/read /dev/null\n/read /nonexistent\0\n/glob [\n/glob **\0\n/regen\n/clear\n/regen\n",
        &b"\\\n".repeat(50_000),
        &b"/\n".repeat(2_000),
        &b"\n".repeat(50_000),
        b"\x1b[2J\x1b]0;title\x07\n",
        &long,
    ];
    for (i, input) in inputs.iter().enumerate() {
        for mode in
            [&["-cnv", "--chat-template", "chatml"][..], &["-i", "-no-cnv", "-p", "a"], &["-cnv", "--in-prefix", "x"]]
        {
            let output = run(&tiny::path("llama"), &[mode, &["-c", "512"]].concat(), &[], input);
            checked(&output, &format!("input {i}, {mode:?}"));
        }
    }
}

#[test]
fn hostile_configuration_files_are_refused_or_read() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("llama.cpp");
    std::fs::create_dir(&folder).unwrap();
    let path = folder.join("config.ini");
    let env = [("XDG_CONFIG_HOME", dir.path().to_str().unwrap())];
    let start = |what: &str| {
        let output = run(&tiny::path("llama"), &["-no-cnv", "-p", "a"], &env, b"");
        (output.status.code(), checked(&output, what))
    };
    let many: String = (0..20_000).map(|i| format!("unknown-{i} = {i}\n")).collect();
    for (content, code) in [
        (&b"\0\0\0"[..], 1),
        (b"\xff\xfet\0e\0m\0p\0", 1),
        (b"top-k = \0", 1),
        (b"[", 1),
        (b"temp = 0\n\x1b[2Jkey\n = 1", 1),
        (b"temp = 0\n\x1b[2Jkey = 1", 0),
        (b"c = 1\nb = 1\nub = 1\n", 0),
        (b"model = \n", 0),
        (many.as_bytes(), 0),
        (&[b"x = ".to_vec(), vec![b'y'; 1 << 19]].concat(), 0),
        (&vec![b'['; 1 << 22], 1),
    ] {
        std::fs::write(&path, content).unwrap();
        let what = String::from_utf8_lossy(&content[..content.len().min(20)]).into_owned();
        let (found, text) = start(&what);
        assert!(text.lines().all(|l| l.len() < 5000 && !l.contains('\x1b')), "{what}");
        assert!(found == Some(code) && (code == 0 || text.contains("config.ini")), "{what}: {text}");
    }
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    assert_eq!(start("a folder").0, Some(1));
}

/// Weights that are no numbers make logits that are none: no token is drawn from them, with or without a pass.
#[test]
fn logits_that_are_no_numbers_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nan.gguf");
    let whole = std::fs::read(tiny::path("llama")).unwrap();
    let gguf = Gguf::open(&tiny::path("llama")).unwrap();
    for name in
        ["token_embd.weight", "blk.0.attn_k.weight", "blk.1.attn_v.weight", "blk.2.ffn_down.weight", "output.weight"]
    {
        for value in [f32::NAN, f32::INFINITY] {
            let tensor = gguf.tensor(name).unwrap();
            let mut bytes = whole.clone();
            for at in 0..tensor.n_bytes as usize / 4 {
                bytes[tensor.offset as usize + 4 * at..][..4].copy_from_slice(&value.to_le_bytes());
            }
            std::fs::write(&path, bytes).unwrap();
            for more in [
                &[][..],
                &["--kv-ratio", "2", "--kv-min-tokens", "0"],
                &["--kv-ratio", "2", "--kv-min-tokens", "0", "--kv-method", "topk"],
            ] {
                let output = run(&path, &[&["-no-cnv", "-p", PROMPT, "--no-display-prompt"], more].concat(), &[], b"");
                let text = checked(&output, name);
                assert_eq!(output.status.code(), Some(1), "{name} {value} {more:?}: {text}");
                assert!(
                    text.contains("--check-tensors") && output.stdout.is_empty(),
                    "{name} {value} {more:?}: {text}"
                );
            }
        }
    }
}
