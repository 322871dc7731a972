//! What the world around a run can do to it: limits of files, closed outputs, signals, foreign text in messages. It ends with
//! one line and the exit code that belongs to it, and nothing that was there before is lost.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::support::server::{Fault, Server};
use crate::support::tiny;

const PROMPT: &str = "the rain in the inner harbour and the heat of an inert rhine";

/// The program in a shell, behind `setup`, without input; its arguments follow.
fn shell(setup: &str, args: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{setup}\nexec \"$@\""), "sh", env!("CARGO_BIN_EXE_gracekv-run")]).args(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The shell's program over the tiny model.
fn tiny_run(setup: &str, args: &[&str]) -> Output {
    let model = tiny::path("llama");
    let common = ["-m", model.to_str().unwrap(), "-no-cnv", "-t", "1", "-c", "256", "-n", "4", "--temp", "0"];
    shell(setup, &[&common[..], &["-p", PROMPT, "--no-warmup"], args].concat()).output().unwrap()
}

/// The only error line, which is short and has no signs that steer a terminal.
fn error(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(!text.contains("panicked"), "{text}");
    let errors: Vec<&str> = text.lines().filter(|l| l.starts_with("error")).collect();
    assert!(errors.len() == 1 && text.lines().last() == Some(errors[0]), "{text}");
    assert!(errors[0].len() < 5000 && !errors[0].contains(char::is_control), "{text}");
    errors[0].to_owned()
}

fn names(dir: &Path) -> Vec<String> {
    let name = |e: std::io::Result<std::fs::DirEntry>| e.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<_> = std::fs::read_dir(dir).unwrap().map(name).collect();
    names.sort();
    names
}

/// A disk that takes no more, for every option that writes a file: the old file stays, and no other one comes.
#[test]
fn a_file_that_cannot_grow_is_an_error_and_loses_nothing() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("old");
    let file = path.to_str().unwrap();
    for (option, more) in [
        ("-o", &[][..]),
        ("--log-file", &[]),
        ("--kv-report", &["--kv-ratio", "2", "--kv-min-tokens", "0", "--kv-lookahead", "0"]),
        ("--prompt-cache", &[]),
        ("--prompt-cache", &["--prompt-cache-all"]),
        ("-o", &["-cnv", "--chat-template", "chatml"]),
    ] {
        // The prompt cache reads the file first: an old one that is none would be refused for that.
        let old = if option == "--prompt-cache" { "" } else { "what an earlier run has left\n" };
        for limit in ["ulimit -f 0", "ulimit -f 1"] {
            std::fs::write(&path, old).unwrap();
            let output = tiny_run(limit, &[&[option, file], more].concat());
            // What the run is for is the text: it comes to its end first.
            if option != "--log-file" {
                assert_eq!(output.stdout, tiny_run("", more).stdout, "{option} {more:?} {limit}");
            }
            if limit == "ulimit -f 0" || option == "--prompt-cache" {
                let e = error(&output);
                assert!(e.contains(file) && e.contains("File too large"), "{option}: {e}");
                assert_eq!(std::fs::read_to_string(&path).unwrap(), old, "{option}");
            }
            assert_eq!(names(dir.path()), ["old"], "{option} {more:?} {limit}");
        }
    }
}

#[test]
fn a_refused_run_leaves_the_files_of_an_earlier_one() {
    let dir = TempDir::new().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let files = [path("out"), path("log"), path("report")];
    let options = ["-o", &files[0], "--log-file", &files[1], "--kv-report", &files[2]];
    let contents = || files.clone().map(|f| std::fs::read(f).unwrap());
    let long = PROMPT.repeat(40);
    for refused in [&["-m", "/nonexistent"][..], &["-p", &long], &["--grammar", "root ::= ("], &["-cnv", "-p", &long]] {
        files.iter().for_each(|f| std::fs::write(f, "*OLD*").unwrap());
        let output = tiny_run("", &[&options[..], refused].concat());
        assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(contents(), [b"*OLD*"; 3], "{refused:?}");
        assert_eq!(names(dir.path()).len(), 3);
    }
    let output = tiny_run("", &options);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{text}");
    let [out, log, report] = contents();
    let log = String::from_utf8_lossy(&log);
    assert!(out == output.stdout && log.contains(PROMPT) && !log.contains("*OLD*"), "{log}");
    // Nothing was compressed.
    assert!(report == b"*OLD*" && text.contains("there is no report"), "{text}");
}

/// `> file` and a path that leads there, too: nothing is written over.
#[test]
fn a_file_that_the_text_goes_to_gets_both() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("out");
    let file = path.to_str().unwrap();
    let kv = ["--kv-ratio", "2", "--kv-min-tokens", "0", "--kv-lookahead", "0"];
    let plain = tiny_run("", &kv).stdout;
    for name in ["/dev/stdout", "/proc/self/fd/1", file] {
        for option in ["-o", "--kv-report", "--log-file"] {
            for setup in [format!("exec >'{file}'"), format!("echo before >'{file}'\nexec >>'{file}'")] {
                let output = tiny_run(&setup, &[&kv[..], &[option, name]].concat());
                let log = String::from_utf8_lossy(&output.stderr);
                assert_eq!(output.status.code(), Some(0), "{log}");
                let found = std::fs::read(&path).unwrap();
                let found = found.strip_prefix(b"before\n").unwrap_or(&found);
                let what = format!("{option} {name}: {}", String::from_utf8_lossy(found));
                let n_more = found.len().checked_sub(plain.len()).unwrap_or_else(|| panic!("{what}"));
                match option {
                    "-o" => assert_eq!(n_more, plain.len(), "{what}"),
                    "--kv-report" => {
                        let at = found.iter().position(|&b| b == b'{').unwrap_or_else(|| panic!("{what}"));
                        let rest = [&found[..at], &found[at + n_more..]].concat();
                        assert_eq!(rest, plain, "{what}");
                        serde_json::from_slice::<serde_json::Value>(&found[at..at + n_more]).expect(&what);
                    }
                    _ => assert!(n_more > plain.len() && what.contains("sampler seed"), "{what}"),
                }
                assert_eq!(names(dir.path()), ["out"]);
            }
        }
    }
}

/// ggml starts threads one by one and stops the process beyond its limit: no program may get that far.
#[test]
fn more_threads_than_ggml_has_are_refused_at_once() {
    let programs: [(&str, &[&str]); 4] = [
        (env!("CARGO_BIN_EXE_gracekv-run"), &["-t", "-tb", "--threads"]),
        (env!("CARGO_BIN_EXE_gracekv-perplexity"), &["-t", "-tb"]),
        (env!("CARGO_BIN_EXE_gracekv-eval"), &["-t", "-tb"]),
        (env!("CARGO_BIN_EXE_gracekv-bench"), &["-t"]),
    ];
    let start = Instant::now();
    for (program, options) in programs {
        for (option, n) in options.iter().flat_map(|o| ["513", "999999999", "4294967297"].map(|n| (o, n))) {
            let output = Command::new(program).args(["-m", "/nonexistent", option, n]).output().unwrap();
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.code() == Some(1) && text.starts_with("error"), "{program} {option} {n}: {text}");
            assert!(text.contains("512") && text.contains(n), "{program} {option} {n}: {text}");
        }
    }
    assert!(start.elapsed() < Duration::from_secs(20));
    assert!(error(&tiny_run("", &["-m", "/nonexistent", "-t", "512"])).contains("/nonexistent"));
}

#[test]
fn outputs_that_cannot_be_written_are_named() {
    for (args, want) in [
        (&["-o", "/dev/full"][..], "/dev/full: "),
        (&["-o", "/dev/full", "-cnv", "--chat-template", "chatml"], "/dev/full: "),
        (&["--log-file", "/dev/full"], "/dev/full: "),
        (&["--kv-report", "/nonexistent/x"], "/nonexistent/x: "),
        (&["-o", "/nonexistent/x"], "/nonexistent/x: "),
        (&["--log-file", "/nonexistent/x"], "/nonexistent/x: "),
    ] {
        let output = tiny_run("", args);
        let e = error(&output);
        assert!(output.stdout.is_empty() != args.starts_with(&["-o", "/dev/full"]), "{args:?}");
        assert!(e.contains(want) && !e.contains("standard output"), "{args:?}: {e}");
    }
    assert!(error(&tiny_run("exec >/dev/full", &[])).contains("standard output: No space left"));
    for (setup, args) in [
        ("exec >/dev/full", &["--help"][..]),
        ("exec >/dev/full", &["--kv-method", "list"]),
        ("exec >/dev/full", &["-cl"]),
        ("exec >/dev/full", &["--completion-bash"]),
    ] {
        assert!(error(&shell(setup, args).output().unwrap()).contains("standard output"), "{args:?}");
    }
    for setup in ["exec 2>&-", "exec 2>/dev/full"] {
        let codes = [&["--version"][..], &["--nonsense"], &["-m", "/nonexistent"]]
            .map(|args| shell(setup, args).output().unwrap().status.code());
        assert_eq!(codes, [Some(0), Some(1), Some(1)], "{setup}");
        assert_eq!(tiny_run(setup, &[]).status.code(), Some(0), "{setup}");
    }
}

/// Text of others: names, patterns, templates, models. Its line breaks, its colours and its megabytes stay out of messages.
#[test]
fn foreign_text_does_not_break_a_line() {
    let dir = TempDir::new().unwrap();
    let path = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let lines = path("lines", "{{ raise_exception('a\nb\r\n\x1b[31mc') }}");
    let long = path("long", &format!("{{{{ raise_exception('{}') }}}}", "a line\n".repeat(10_000)));
    let grammar = path("grammar", &format!("root ::= {}\n{}", "\u{1b}".repeat(3), "x\n".repeat(100_000)));
    let long_name = "n\n".repeat(3000);
    for args in [
        &["-cnv", "--chat-template-file", &lines][..],
        &["-cnv", "--chat-template-file", &long],
        &["-cnv", "--chat-template", "a\nb"],
        &["-j", r#"{"type":"string","pattern":"("}"#],
        &["-j", "{\"type\":\"string\",\n\"pattern\":\"\n[\"}"],
        &["-j", "{\"\n"],
        &["--grammar", "root ::= \"\n\n"],
        &["--grammar-file", &grammar],
        &["-m", "a\nb\x1b[2J.gguf"],
        &["-m", &long_name],
        &["-f", "a\nb"],
        &["--lora", "a\nb"],
        &["-o", "/nonexistent/a\nb"],
        &["-hf", "a/b\nc"],
        &["-hf", "a\nb/c:q\n4"],
        &["-mu", "http://127.0.0.1:9/a\nb.gguf"],
        &["-mu", "http://127.0.0.1:9/\x1b[31m.gguf"],
        &["-mu", "a b"],
    ] {
        error(&tiny_run(&format!("cd '{0}'; export HOME='{0}'", dir.path().display()), args));
    }
    assert_eq!(names(dir.path()), ["grammar", "lines", "long"]);
    // What a model says is foreign, too.
    let mut recipe = tiny::recipe("llama");
    recipe.header.set("tokenizer.chat_template", "{{ raise_exception('a\n\x1b[2Jb') }}").unwrap();
    let model = dir.path().join("model.gguf");
    recipe.write(&model);
    let output = tiny_run("", &["-cnv", "-st", "-m", model.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && text.contains("cannot be used (unsupported chat template"), "{text}");
    assert!(!text.contains('\x1b') && text.contains("invalid operation: a \u{fffd}[2Jb"), "{text}");
}

/// Sends a signal to a run that is busy, and gives its exit code and what it says.
fn interrupted(mut command: Command, signal: &str, wait: impl FnOnce()) -> (Option<i32>, String) {
    let child = command.spawn().unwrap();
    wait();
    let kill = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let at = Instant::now();
    let output = child.wait_with_output().unwrap();
    assert!(at.elapsed() < Duration::from_secs(10));
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Before there is an answer to be stopped: while a prompt, a model or a hub is waited for.
#[test]
fn a_signal_ends_a_run_that_has_not_begun() {
    let dir = TempDir::new().unwrap();
    let fifo = dir.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let server = Server::start();
    server.file("m.gguf", b"GGUF");
    server.fail("m.gguf", &[(); 3].map(|()| Fault::Late(Duration::from_secs(20))));
    let url = format!("{}m.gguf", server.url);
    let (model, fifo) = (tiny::path("llama"), fifo.to_str().unwrap());
    let setup = format!("export HOME='{0}' LLAMA_CACHE='{0}/cache'", dir.path().display());
    let model = model.to_str().unwrap();
    for args in [
        &["-m", model, "-f", fifo][..],
        &["-mu", &url],
        &["-m", model, "-p", "a", "-no-cnv", "-o", fifo],
        &["-m", model, "-p", "a", "-cnv", "--chat-template", "chatml", "-o", fifo],
        &["-m", model, "-p", "a", "-no-cnv", "--kv-report", fifo],
        &["-m", model, "-p", "a", "-no-cnv", "--log-file", fifo],
    ] {
        for (signal, code) in [("-INT", 130), ("-TERM", 143), ("-HUP", 129)] {
            let wait = || std::thread::sleep(Duration::from_millis(300));
            let (found, text) = interrupted(shell(&setup, args), signal, wait);
            assert_eq!(found, Some(code), "{signal} {args:?}: {text}");
            assert_eq!(text.lines().last(), Some("Interrupted by user"), "{signal}: {text}");
        }
    }
}

/// An interrupted answer is what `-o` has.
#[test]
fn a_signal_leaves_no_half_written_file() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("out");
    let model = tiny::path("llama");
    std::fs::write(&path, "old").unwrap();
    let args = ["-m", model.to_str().unwrap(), "-no-cnv", "-t", "1", "-c", "4096", "-n", "-1", "-p", PROMPT];
    let more = ["--ignore-eos", "--context-shift", "-o", path.to_str().unwrap()];
    let mut command = shell("", &[&args[..], &more].concat());
    command.stdout(Stdio::null());
    let wait = || {
        let at = Instant::now();
        while names(dir.path()).len() < 2 && at.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(20));
        }
        std::thread::sleep(Duration::from_millis(200));
    };
    let (code, text) = interrupted(command, "-INT", wait);
    assert_eq!(code, Some(130), "{text}");
    let out = std::fs::read(&path).unwrap();
    assert!(out.starts_with(PROMPT.as_bytes()), "{text}");
    assert_eq!(names(dir.path()), ["out"]);
}

/// What was read and said is kept when the user has enough of it (report 42); a file of messages has no signs for a terminal (report 78).
#[test]
fn an_interrupted_run_saves_its_prompt_cache() {
    for extra in [&["--prompt-cache-all"][..], &[], &["--prompt-cache-all", "--kv-ratio", "2", "--kv-min-tokens", "4"]]
    {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("state");
        let model = tiny::path("llama");
        let args = ["-m", model.to_str().unwrap(), "-no-cnv", "-t", "1", "-c", "4096", "--temp", "0", "-p", PROMPT];
        let args = [&args[..], &["--ignore-eos", "--prompt-cache", path.to_str().unwrap()], extra].concat();
        let mut command = shell("", &[&args[..], &["-n", "3900"]].concat());
        command.stdout(Stdio::null());
        let wait = || {
            let at = Instant::now();
            while std::fs::metadata(&path).map_or(0, |found| found.len()) == 0 && at.elapsed() < Duration::from_secs(20)
            {
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        let (code, text) = interrupted(command, "-INT", wait);
        assert!(matches!(code, Some(130 | 0)), "{extra:?}: {text}");
        assert!(!text.contains(['\r', '\x1b']), "{text}");
        assert_eq!(names(dir.path()), ["state"]);
        let again = shell("", &[&args[..], &["-n", "4"]].concat()).output().unwrap();
        let text = String::from_utf8_lossy(&again.stderr).into_owned();
        let line = text.lines().find(|line| line.contains("prompt eval time")).unwrap();
        assert!(again.status.success() && line.contains("/     1 tokens"), "{extra:?}: {text}");
    }
}

/// Options that may be given any number of times cost what they mean, not what was typed.
#[test]
fn thousands_of_sequence_breakers_are_one_or_too_many() {
    let run = |text: &dyn Fn(usize) -> String, n: usize| {
        let args: Vec<String> = (0..n).flat_map(|i| ["--dry-sequence-breaker".into(), text(i)]).collect();
        let args: Vec<&str> = ["--dry-multiplier", "1"].into_iter().chain(args.iter().map(String::as_str)).collect();
        tiny_run("ulimit -v 2000000", &args)
    };
    let start = Instant::now();
    let (one, same) = (run(&|_| "a".into(), 1), run(&|_| "a".into(), 3000));
    assert_eq!((same.status.code(), &same.stdout), (Some(0), &one.stdout), "{}", String::from_utf8_lossy(&same.stderr));
    assert!(run(&|i| format!("a{}", i % 100), 1000).status.success());
    let e = error(&run(&|i| format!("a{i}"), 200));
    assert!(e.contains("200 different values of --dry-sequence-breaker; 128 are the most"), "{e}");
    assert!(start.elapsed() < Duration::from_secs(20));
}

/// A result takes the place of a file; never that of the model or of the prompt.
#[test]
fn results_do_not_replace_what_is_read() {
    let dir = TempDir::new().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (model, prompt) = (at("model.gguf"), at("prompt.txt"));
    std::fs::copy(tiny::path("llama"), &model).unwrap();
    std::fs::write(&prompt, "the rain").unwrap();
    let before = [&model, &prompt].map(|path| std::fs::read(path).unwrap());
    for option in ["-o", "--kv-report", "--log-file", "--prompt-cache"] {
        for file in [&model, &prompt] {
            let args = ["-m", &model, "-f", &prompt, "-n", "2", "-no-cnv", option, file];
            let output = Command::new(env!("CARGO_BIN_EXE_gracekv-run")).args(args).output().unwrap();
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(
                output.status.code() == Some(1) && text.contains("would replace the file of --"),
                "{option}: {text}"
            );
        }
    }
    for option in ["--json", "--csv", "--plot", "--log-file"] {
        let args = ["-m", &model, "-f", &prompt, "--kv-ratio", "2", option, &prompt];
        let output = Command::new(env!("CARGO_BIN_EXE_gracekv-perplexity")).args(args).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && text.contains("would replace the file of -f"), "{option}: {text}");
    }
    assert!(before == [&model, &prompt].map(|path| std::fs::read(path).unwrap()));
}
