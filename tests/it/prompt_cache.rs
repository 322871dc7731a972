//! `--prompt-cache`: cached runs say what cold runs say, read only what is new, and refuse what does not fit.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use crate::support::{model_path, tiny, MODELS};

/// A few hundred tokens, enough to be compressed.
const TEXT: &str = include_str!("../golden/README.md");

/// What a run has printed.
struct Ran {
    text: String,
    log: String,
    code: Option<i32>,
}

impl Ran {
    fn of(output: &Output) -> Ran {
        // Texts of random models are no UTF-8: each byte is a character here.
        let text = output.stdout.iter().map(|&b| b as char).collect();
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        let ran = Ran { text, log, code: output.status.code() };
        assert!(!ran.log.contains("panicked"), "{}", ran.log);
        ran
    }

    fn ok(self) -> Ran {
        assert_eq!(self.code, Some(0), "{}", self.log);
        self
    }

    fn says(&self, what: &str) -> bool {
        self.log.contains(what)
    }

    /// Tokens of the line `prompt eval time`.
    fn n_prompt(&self) -> usize {
        let line = self.log.lines().find(|l| l.contains("prompt eval time")).unwrap();
        line.split('/').nth(1).unwrap().split_whitespace().next().unwrap().parse().unwrap()
    }

    fn n_tokens_stored(&self) -> usize {
        let (_, rest) = self.log.split_once("loaded a session with prompt size of ").unwrap();
        rest.split_whitespace().next().unwrap().parse().unwrap()
    }
}

/// A model with a place for its prompt caches.
struct Case {
    name: &'static str,
    model: PathBuf,
    dir: TempDir,
}

impl Case {
    fn new(name: &'static str, model: PathBuf) -> Case {
        Case { name, model, dir: tempfile::tempdir().unwrap() }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gracekv-run"));
        command
            .args(["-m", self.model.to_str().unwrap(), "-no-cnv", "-t", "1", "-c", "2048", "--no-warmup"])
            .args(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// A greedy run with 48 tokens.
    fn run(&self, args: &[&str]) -> Ran {
        Ran::of(&self.command(&[&["-n", "48", "--temp", "0"], args].concat()).output().unwrap())
    }

    fn cached(&self, file: &str, args: &[&str]) -> Ran {
        self.run(&[&["--prompt-cache", self.file(file).to_str().unwrap()], args].concat())
    }
}

/// The tiny models, and the real ones that were fetched.
fn cases() -> Vec<Case> {
    let tiny = ["llama", "gemma3"].map(|arch| Case::new(arch, tiny::path(arch)));
    let real = MODELS.iter().filter(|(name, _)| *name != "qwen2");
    tiny.into_iter().chain(real.filter_map(|(name, file)| Some(Case::new(name, model_path(file)?)))).collect()
}

fn prompt(n: usize) -> String {
    TEXT.chars().filter(|c| c.is_ascii()).take(n).collect()
}

/// Reports 40 and 43 of the reference: the text is the same, and nothing is read twice.
#[test]
fn a_cached_run_says_what_a_cold_run_says() {
    for case in cases() {
        for kv in [&["--kv-ratio", "1"][..], &["--kv-ratio", "4"], &["-ctk", "q8_0", "-ctv", "q8_0"]] {
            let p = prompt(900);
            let args = [kv, &["-p", &p]].concat();
            let file = format!("{}.bin", kv.concat());
            let cold = case.run(&args).ok();
            let first = case.cached(&file, &args).ok();
            assert!(first.says("session file does not exist, will create."), "{}", first.log);
            let bytes = std::fs::read(case.file(&file)).unwrap();
            let second = case.cached(&file, &args).ok();
            assert!(second.says("session file has exact match for prompt!"), "{}", second.log);
            assert_eq!((&first.text, &second.text), (&cold.text, &cold.text), "{} {kv:?}", case.name);
            // The line counts one token where there is none, as llama.cpp's does.
            assert!(second.n_prompt() <= 1);
            assert_eq!(std::fs::read(case.file(&file)).unwrap(), bytes, "an exact match is not saved again");
            // Fewer tokens end within those that were stored, more go beyond.
            let short = case.cached(&file, &[&args[..], &["-n", "5"]].concat()).ok();
            assert!(cold.text.starts_with(short.text.strip_suffix("\n\n").unwrap()), "{}", case.name);
            // Without a prompt the file's own goes on.
            let without = case.cached(&file, kv).ok();
            assert_eq!(without.text, cold.text, "{} {kv:?}", case.name);
            assert!(without.says("using full prompt from session file"), "{}", without.log);
        }
    }
}

/// What is compressed takes a fraction of the space, whatever ended the first run.
#[test]
fn a_compressed_prompt_is_a_small_file() {
    let case = Case::new("llama", tiny::path("llama"));
    let p = prompt(1500);
    let size = |file: &str, args: &[&str]| {
        case.cached(file, &[&["-p", &p][..], args].concat()).ok();
        std::fs::metadata(case.file(file)).unwrap().len()
    };
    let whole = size("whole", &[]);
    let small = size("small", &["--kv-ratio", "16"]);
    assert!(small * 8 < whole, "{small} of {whole}");
    // The lookahead is completed for the file when the answer is shorter than that.
    let early = size("early", &["--kv-ratio", "16", "-n", "3"]);
    assert_eq!(early, small);
    let cold = case.run(&["-p", &p, "--kv-ratio", "16"]).ok();
    let later = case.cached("early", &["-p", &p, "--kv-ratio", "16"]).ok();
    assert_eq!(later.text, cold.text);
}

/// Report 41: a longer or another stored prompt is cut where the new one leaves it.
///
/// Real models are quantised, and their kernels round a batch in another way than a token: there each token is read alone.
#[test]
fn a_prompt_that_shares_its_beginning_is_read_from_there() {
    for case in cases() {
        let is_tiny = case.model.starts_with(env!("CARGO_TARGET_TMPDIR"));
        let (n, ub) = if is_tiny { (700, "512") } else { (300, "1") };
        let p = prompt(n);
        let run = |p: &str| case.run(&["-p", p, "-ub", ub]).ok();
        let cached = |p: &str, args: &[&str]| case.cached("a", &[&["-p", p, "-ub", ub][..], args].concat()).ok();
        cached(&p, &[]);
        for other in [format!("{p} and then"), p[..n - 100].to_string(), format!("{} something else", &p[..n - 200])] {
            let (cold, warm) = (run(&other), cached(&other, &["--prompt-cache-ro"]));
            assert_eq!(warm.text, cold.text, "{}: {:?}", case.name, &other[other.len() - 20..]);
            assert!(warm.says("tokens of prompt") || warm.says("exact match"), "{}", warm.log);
            assert!(warm.n_prompt() > 0 && warm.n_prompt() < 20, "{}", warm.log);
        }
        assert_eq!(cached("Something else", &["--prompt-cache-ro"]).text, run("Something else").text, "{}", case.name);
        // Read only: it still serves the first prompt.
        assert!(cached(&p, &[]).says("exact match"));
        // Otherwise it is the new prompt's.
        cached("Something else", &[]);
        assert!(cached("Something else", &[]).says("exact match"));
    }
}

#[test]
fn low_similarity_is_said() {
    let case = Case::new("llama", tiny::path("llama"));
    case.cached("a", &["-p", &prompt(50)]).ok();
    let p = format!("{}{}", prompt(20), "z".repeat(200));
    let ran = case.cached("a", &["-p", &p]).ok();
    assert!(ran.says("session file has low similarity to prompt (") && ran.says("will mostly be reevaluated"));
}

#[test]
fn a_compressed_prompt_serves_itself_and_what_begins_with_it() {
    let case = Case::new("llama", tiny::path("llama"));
    let (p, kv) = (prompt(900), ["--kv-ratio", "4"]);
    case.cached("a", &[&kv[..], &["-p", &p]].concat()).ok();
    let longer = format!("{p} and then");
    let ran = case.cached("a", &[&kv[..], &["-p", &longer, "--prompt-cache-ro"]].concat()).ok();
    assert!(ran.says("tokens of prompt") && ran.n_prompt() < 20, "{}", ran.log);
    let shorter = &p[..800];
    let ran = case.cached("a", &[&kv[..], &["-p", shorter, "--prompt-cache-ro"]].concat()).ok();
    assert!(ran.says("one compressed prompt, which cannot be cut after"), "{}", ran.log);
    assert_eq!(ran.text, case.run(&[&kv[..], &["-p", shorter]].concat()).ok().text);
    // Tokens that were chosen at random are not given again: a new answer begins behind the prompt.
    let hot = ["--kv-ratio", "4", "--temp", "1.5", "-s", "7", "-p", &p];
    let other = ["--kv-ratio", "4", "--temp", "1.5", "-s", "8", "-p", &p];
    let (a, b) = (case.cached("a", &hot).ok(), case.cached("a", &other).ok());
    assert!(a.says("exact match") && a.text != b.text);
    assert_eq!(a.text, case.cached("a", &hot).ok().text);
}

/// `--prompt-cache-all`: the text goes on where it ended.
#[test]
fn the_answer_is_a_part_of_the_prompt_when_it_is_saved() {
    for case in cases() {
        for kv in [&["--kv-ratio", "1"][..], &["--kv-ratio", "4"]] {
            let (p, file) = (prompt(900), kv[1]);
            let both = case.run(&[kv, &["-p", &p, "-n", "80"]].concat()).ok();
            let first = case.cached(file, &[kv, &["-p", &p, "-n", "40", "--prompt-cache-all"]].concat()).ok();
            assert!(first.says("saving final output to session file") && first.says("saved final session to"));
            let second = case.cached(file, &[kv, &["-n", "40"]].concat()).ok();
            assert_eq!(second.text, both.text, "{} {kv:?}", case.name);
            assert!(second.n_prompt() <= 1);
            // The first prompt alone still has its own answer.
            let again = case.cached(file, &[kv, &["-p", &p, "-n", "40"]].concat()).ok();
            assert_eq!(again.text, first.text, "{} {kv:?}", case.name);
        }
    }
}

/// Whatever ended the first run, and whichever file it left: a greedy run goes on as one that never stopped.
#[test]
fn an_answer_that_ended_early_spoils_no_later_one() {
    let case = Case::new("llama", tiny::path("llama"));
    let (p, kv) = (prompt(900), ["--kv-ratio", "8", "--kv-lookahead", "16"]);
    let run = |file: &str, args: &[&str]| match file {
        "" => case.run(&[&kv[..], args].concat()).ok(),
        _ => case.cached(file, &[&kv[..], args].concat()).ok(),
    };
    for all in [&[][..], &["--prompt-cache-all"]] {
        for n in [1, 2, 15, 16, 17, 30] {
            let (file, count) = (format!("{n}{}", all.concat()), n.to_string());
            run(&file, &[&["-p", &p, "-n", &count], all].concat());
            let n_before = if all.is_empty() { 0 } else { n };
            let cold = run("", &["-p", &p, "-n", &(40 + n_before).to_string()]);
            let later = run(&file, &["-n", "40", "--prompt-cache-ro"]);
            assert_eq!(later.text, cold.text, "{n} tokens, then 40 {all:?}");
            let again = run(&file, &["-p", &p, "-n", "40", "--prompt-cache-ro"]);
            assert_eq!(again.text, run("", &["-p", &p, "-n", "40"]).text, "{n} tokens, then the prompt again {all:?}");
            // A shorter answer from the same file leaves it as good as it was.
            run(&file, &[&["-p", &p, "-n", "3"], all].concat());
            assert_eq!(run(&file, &["-p", &p, "-n", "40"]).text, again.text, "{n} tokens, then 3 {all:?}");
            // Other tokens than the stored ones need only be tokens.
            run(&file, &["-n", "5", "--temp", "1.5", "-s", "3", "--prompt-cache-ro"]);
        }
    }
}

#[cfg(unix)]
#[test]
fn what_is_no_file_is_refused_at_once() {
    let case = Case::new("llama", tiny::path("llama"));
    let fifo = case.file("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    for path in [fifo.to_str().unwrap(), "/dev/zero", case.dir.path().to_str().unwrap()] {
        let ran = case.run(&["-p", "a", "--prompt-cache", path]);
        assert!(ran.code == Some(1) && ran.says("is no regular file") && ran.text.is_empty(), "{path}: {}", ran.log);
    }
}

#[test]
fn a_file_that_does_not_fit_is_refused() {
    let case = Case::new("llama", tiny::path("llama"));
    let p = prompt(300);
    case.cached("a", &["-p", &p]).ok();
    let refused = |case: &Case, args: &[&str]| {
        let ran = case.cached("a", &[&["-p", &p][..], args].concat());
        assert_eq!(ran.code, Some(1), "{}", ran.log);
        let errors: Vec<&str> = ran.log.lines().filter(|l| l.starts_with("error")).collect();
        assert!(errors.len() == 1 && errors[0].contains(case.file("a").to_str().unwrap()), "{}", ran.log);
        errors[0].to_owned()
    };
    assert!(refused(&case, &["-ctk", "q8_0"]).contains("holds f16 keys and f16 values, this run q8_0 keys"));
    assert!(refused(&case, &["--kv-ratio", "8"]).contains("'none', this run has 'gracekv --kv-ratio 8"));
    assert!(refused(&case, &["-c", "128"]).contains("tokens, the context 256; use -c"));
    for changed in [&["--rope-freq-base", "5000"][..], &["--override-kv", "llama.context_length=int:99"]] {
        assert!(refused(&case, changed).contains("it is of another model"), "{changed:?}");
    }
    let other = Case { model: tiny::path("qwen2"), ..Case::new("qwen2", PathBuf::new()) };
    std::fs::copy(case.file("a"), other.file("a")).unwrap();
    assert!(refused(&other, &[]).contains("it is of another model"));
    let bytes = std::fs::read(case.file("a")).unwrap();
    for n in [3, 100, bytes.len() / 2, bytes.len() - 1] {
        std::fs::write(case.file("a"), &bytes[..n]).unwrap();
        assert!(refused(&case, &[]).contains("prompt cache cannot be used"), "{n}");
    }
    std::fs::write(case.file("a"), b"").unwrap();
    assert!(case.cached("a", &["-p", &p]).ok().says("The session file is empty."));
    let ran = case.run(&["-p", &p, "--prompt-cache", case.file("none/a").to_str().unwrap()]);
    assert!(ran.code == Some(1) && ran.text.is_empty(), "{}", ran.log);
}

/// Report 42: what cannot be saved is refused before anything is typed.
#[test]
fn conversations_do_not_save_their_answers() {
    let case = Case::new("llama", tiny::path("llama"));
    let mut command = case.command(&["-cnv", "--chat-template", "chatml", "--prompt-cache-all", "--prompt-cache"]);
    let ran = Ran::of(&command.arg(case.file("a")).output().unwrap());
    assert!(ran.code == Some(1) && ran.says("--prompt-cache-all not supported in interactive mode yet"), "{}", ran.log);
}

/// Many writers and readers of one file: each of them finds a whole one.
#[test]
fn programs_that_share_a_file_do_not_damage_it() {
    let case = Case::new("llama", tiny::path("llama"));
    let prompts: Vec<String> = (0..4).map(|i| format!("{i}{}", prompt(200 + 50 * i))).collect();
    let cold: Vec<String> = prompts.iter().map(|p| case.run(&["-p", p, "-n", "8"]).ok().text).collect();
    for _ in 0..2 {
        let start = |p: &String| {
            let file = case.file("a");
            let args = ["-n", "8", "--temp", "0", "--prompt-cache", file.to_str().unwrap(), "-p", p];
            case.command(&args).spawn().unwrap()
        };
        let running: Vec<_> = prompts.iter().map(start).collect();
        for (child, cold) in running.into_iter().zip(&cold) {
            assert_eq!(Ran::of(&child.wait_with_output().unwrap()).ok().text, *cold);
        }
    }
    assert_eq!(files(case.dir.path()), 1, "a temporary file was left");
    assert!(case.cached("a", &["-p", &prompts[0], "-n", "8"]).ok().n_tokens_stored() > 0);
}

fn files(dir: &Path) -> usize {
    std::fs::read_dir(dir).unwrap().count()
}
