//! Conversations: in a pipe, on a pseudo-terminal, with Ctrl-C in the middle of an answer, and with an output that ends early.

use std::io::{Read, Write};
use std::process::{Child, Command, Output, Stdio};

use tempfile::TempDir;

use crate::support::{model_path, tiny};

/// The tiny models have no template; their answers have no end.
fn program(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gracekv-run"));
    let model = tiny::path("llama");
    command.args(["-m", model.to_str().unwrap(), "-t", "1", "--no-warmup", "--temp", "0", "--ignore-eos"]);
    command.args(["--chat-template", "chatml"]).args(args);
    command.env("TERM", "xterm").env_remove("NO_COLOR");
    command
}

fn piped(args: &[&str]) -> Child {
    program(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn talk(args: &[&str], typed: &str) -> Output {
    let mut child = piped(args);
    child.stdin.take().unwrap().write_all(typed.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn exit_ends_a_conversation_in_a_pipe() {
    let Some(model) = model_path("SmolLM2-135M-Instruct.Q4_1.gguf") else { return };
    for (args, n_prompts) in [(&["-cnv"][..], 2), (&["-cnv", "-st"], 1)] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_gracekv-run"))
            .args(["-m", model.to_str().unwrap(), "-t", "1", "--no-warmup", "--temp", "0", "-n", "64"])
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(b"hello\n/exit\n").unwrap();
        let output = child.wait_with_output().unwrap();
        let out = text(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert_eq!(out.matches("\n> ").count(), n_prompts, "{out:?}");
        assert!(out.len() > 20 && !out.contains('\u{1b}') && out.starts_with("\n> hello\n"), "{out:?}");
    }
}

#[test]
fn an_automatic_conversation_says_so() {
    let says = |args: &[&str]| {
        let output = talk(args, "");
        assert_eq!(output.status.code(), Some(0));
        text(&output.stderr).contains("enabling conversation mode (disable it with -no-cnv)")
    };
    assert!(says(&["-n", "2"]));
    assert!(!says(&["-n", "2", "-cnv"]));
    assert!(!says(&["-n", "2", "-no-cnv", "-p", "the rain"]));
}

/// As in llama-completion, standard output has what came through a pipe, and `-n` counts it: here no token is left for answers.
#[test]
fn what_a_pipe_says_is_shown_and_counted() {
    let out =
        |args: &[&str]| text(&talk(&[&["-cnv", "-n", "3"], args].concat(), "the rain\\\nfalls\nthe heat\n").stdout);
    assert_eq!(out(&[]), "\n> the rain\nfalls\n\n> the heat\n\n> \n\n");
    assert_eq!(out(&["--simple-io"]), "\n> \n> \n> \n\n");
    assert_eq!(
        out(&["-sys", "Be brief."]).find("\n> the rain"),
        Some("<|im_start|>system\nBe brief.<|im_end|>\n".len())
    );
}

/// What was asked for and does not happen is told in one line.
#[test]
fn a_cache_that_stays_whole_says_so() {
    let prompt = "the rain in the inner harbour falls on the north gate and on the boats";
    let err = |args: &[&str], typed: &str| {
        let output =
            talk(&[&["-c", "1024", "-n", "4", "--kv-ratio", "4", "--kv-min-tokens", "8"], args].concat(), typed);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stderr)
    };
    let early = "the answer ended within the 32 tokens of --kv-lookahead: nothing was compressed";
    let count = |err: &str, line: &str| err.matches(&format!("gracekv: {line}")).count();
    let kept = err(&["-no-cnv", "-p", prompt], "");
    assert_eq!((count(&kept, early), count(&kept, "entries")), (1, 0), "{kept}");
    let at_once = err(&["-no-cnv", "-p", prompt, "--kv-lookahead", "0"], "");
    assert_eq!((count(&at_once, "the answer ended"), count(&at_once, "entries")), (0, 1), "{at_once}");

    let typed = format!("{prompt}\n").repeat(3);
    let once = err(&["-cnv", "--kv-method", "h2o"], &typed);
    assert_eq!((count(&once, "this turn stays exact"), count(&once, "entries")), (1, 1), "{once}");
    let each = err(&["-cnv", "--kv-method", "snapkv"], &typed);
    assert_eq!((count(&each, "this turn stays exact"), count(&each, "entries")), (0, 3), "{each}");
    let interval = err(&["-no-cnv", "-p", prompt, "--kv-method", "h2o", "--kv-decode-interval", "9"], "");
    assert!(
        interval.contains("--kv-decode-interval has no effect: h2o compresses the first prompt only"),
        "{interval}"
    );
}

/// What can be found out without the model is not left until it is loaded; a file beside it is named by what it is.
#[test]
fn arguments_are_checked_before_the_model() {
    for (args, want) in [
        (&["--chat-template", "nosuch"][..], "error: the supplied chat template is not supported: 'nosuch' is"),
        (&["--chat-template", "{% if %}"], "error: unsupported chat template: "),
    ] {
        let output =
            Command::new(env!("CARGO_BIN_EXE_gracekv-run")).args(["-m", "nosuch.gguf"]).args(args).output().unwrap();
        let err = text(&output.stderr);
        assert!(output.status.code() == Some(1) && err.starts_with(want), "{err}");
    }
    for (option, what) in [("--lora", "LoRA adapter"), ("--control-vector", "control vector")] {
        let output = program(&[option, "nosuch.gguf"]).stdin(Stdio::null()).output().unwrap();
        assert!(text(&output.stderr).contains(&format!("error: {what} nosuch.gguf: ")), "{}", text(&output.stderr));
    }
}

/// Without a terminal a prompt on the command line is one turn (report 76), unless -cnv says that others come.
#[test]
fn a_prompt_without_a_terminal_is_a_single_turn() {
    let mut child = piped(&["-n", "4", "-p", "the rain"]);
    // Standard input stays open: the program must not wait for it.
    let stdin = child.stdin.take();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    drop(stdin);
    let output = talk(&["-cnv", "-n", "4", "-p", "the rain"], "the heat\n");
    assert_eq!(text(&output.stdout).matches("\n> ").count(), 2, "{:?}", text(&output.stdout));
}

/// Lines that such a run leaves in a pipe are not dropped without a word.
#[test]
fn a_pipe_that_is_not_read_is_named() {
    let says = |args: &[&str], typed: &str| {
        let output = talk(&[&["-n", "4", "-p", "the rain"], args].concat(), typed);
        assert_eq!(output.status.code(), Some(0));
        text(&output.stderr).contains("standard input was not read")
    };
    assert!(says(&[], "the heat\n"));
    for (args, typed) in [(&[][..], ""), (&["-cnv"], "the heat\n"), (&["-st"], "the heat\n"), (&["-no-cnv"], "x\n")] {
        assert!(!says(args, typed), "{args:?} {typed:?}");
    }
}

/// Not logits that are none: the template is at fault, whichever turn it has no text for.
#[test]
fn a_template_without_text_is_named() {
    let only_first = "{% if messages | length == 1 %}hello{% endif %}";
    for (template, typed) in [("{% set x = 1 %}", "a\n"), ("{{ '' }}", "a\n"), (only_first, "a\nb\n")] {
        let mut child = piped(&["--jinja", "-cnv", "-n", "4", "--chat-template", template]);
        child.stdin.take().unwrap().write_all(typed.as_bytes()).unwrap();
        let err = text(&child.wait_with_output().unwrap().stderr);
        assert!(err.contains("error: the chat template gave no text") && !err.contains("--check-tensors"), "{err}");
    }
}

#[test]
fn a_closed_input_ends_every_mode() {
    for args in [&["-no-cnv", "-p", "the rain"][..], &["-cnv"], &["-st"], &["-i", "-no-cnv", "-p", "the rain"], &[]] {
        let output = program(args).args(["-n", "4"]).stdin(Stdio::null()).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", text(&output.stderr));
    }
}

#[test]
fn commands_and_the_transcript() {
    let dir = TempDir::new().unwrap();
    let (file, transcript) = (dir.path().join("f.txt"), dir.path().join("transcript"));
    std::fs::write(&file, "in the inner harbour").unwrap();
    let typed = format!(
        "the rain\n/regen\n/read {}\n/read nowhere.txt\n/glob {}/*.txt\nand the heat\n/clear\n/regen\nagain\n/exit\nnever\n",
        file.display(),
        dir.path().display()
    );
    let output = talk(&["-cnv", "-n", "150", "-c", "2048", "-o", transcript.to_str().unwrap()], &typed);
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{err}");
    for line in
        ["Loaded text from", "error: nowhere.txt: No such file", "Chat history cleared.", "No message to regenerate."]
    {
        assert!(err.contains(line), "{line} in {err}");
    }
    let written = std::fs::read_to_string(&transcript).unwrap();
    assert_eq!(written.matches("User:\n").count(), 3, "{written}");
    assert_eq!(written.matches("Assistant:\n").count(), 4, "{written}");
    assert_eq!(written.matches("--- File: ").count(), 2, "{written}");
    let answers: Vec<&str> = written.split("Assistant:\n").collect();
    assert!(!answers[1].trim_end().is_empty(), "{written}");
    assert_eq!(answers[1].trim_end(), answers[2].split("User:").next().unwrap().trim_end(), "/regen at temperature 0");
}

#[test]
fn standard_output_has_the_text_and_nothing_else() {
    let dir = TempDir::new().unwrap();
    let log = dir.path().join("log");
    let args =
        ["-no-cnv", "-n", "8", "-p", "the rain", "--log-file", log.to_str().unwrap(), "--log-prefix", "-co", "auto"];
    let output = talk(&args, "");
    let out = text(&output.stdout);
    assert!(out.starts_with("the rain") && out.ends_with("\n\n") && !out.contains('\u{1b}'), "{out:?}");
    assert!(text(&output.stderr).lines().filter(|l| !l.is_empty()).any(|l| l.starts_with("I sampler seed")));
    let log = std::fs::read_to_string(log).unwrap();
    assert!(log.contains("the rain") && log.contains("common_perf_print"), "{log}");
    let silent = talk(&["-no-cnv", "-n", "8", "-p", "the rain", "--log-disable"], "");
    assert_eq!((text(&silent.stdout), text(&silent.stderr)), (out, String::new()));
}

#[test]
fn a_reader_that_takes_one_line_is_no_error() {
    let mut child = piped(&["-cnv", "-n", "2000", "-c", "4096"]);
    child.stdin.take().unwrap().write_all(b"the rain\n").unwrap();
    let mut first = [0; 4];
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut first).unwrap();
    drop(stdout);
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr).contains("panicked")), (Some(0), false));
}

/// A context that fills up is compressed when that was asked for, and `-n` still counts (reports 35 and 36).
#[test]
fn a_full_context_is_compressed_instead_of_ending() {
    let run = |args: &[&str]| {
        let output =
            program(&[&["-no-cnv", "-c", "256", "-n", "700", "-p", "the rain in the inner harbour"], args].concat())
                .stdin(Stdio::null())
                .output()
                .unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stderr)
    };
    let n_chosen = |err: &str| -> usize {
        let line = err.lines().find(|l| l.contains(" eval time") && l.contains("runs")).unwrap();
        line.split('/').nth(1).unwrap().split_whitespace().next().unwrap().parse().unwrap()
    };
    let plain = run(&[]);
    assert!(plain.contains("context full and context shift is disabled => stopping") && n_chosen(&plain) < 256);
    for args in [&["--kv-ratio", "8"][..], &["--kv-ratio", "8", "--kv-decode-interval", "100"], &["--context-shift"]] {
        let err = run(args);
        assert!(!err.contains("=> stopping") && n_chosen(&err) == 699, "{args:?}: {err}");
    }
    assert!(run(&["--kv-ratio", "8"]).matches("gracekv: entries").count() >= 2);
    assert!(run(&["--context-shift"]).matches("context shift: ").count() >= 4);
}

#[cfg(unix)]
mod terminal {
    use super::*;
    use rexpect::process::{Signal, WaitStatus};
    use rexpect::session::{spawn_command, PtySession};

    fn open(args: &[&str]) -> PtySession {
        spawn_command(program(args), Some(60_000)).unwrap()
    }

    /// Waits until an answer has begun: the line about the prompt is gone and something stands in its place.
    fn wait_for_answer(session: &mut PtySession) {
        session.exp_regex(r"tokens\r +\r\S").unwrap();
    }

    fn send(session: &mut PtySession, keys: &str) {
        session.send(keys).unwrap();
        session.flush().unwrap();
    }

    fn status(session: &PtySession) -> WaitStatus {
        session.process().wait().unwrap()
    }

    #[test]
    fn ctrl_c_stops_the_answer_and_then_the_program() {
        let mut session = open(&["-c", "4096", "-n", "100000"]);
        // llama-cli prints nothing about samplers, and no block of times at its end.
        let head = session.exp_string("/exit or Ctrl+C").unwrap();
        assert!(!head.contains("sampler") && !head.contains("KV buffer"), "{head}");
        session.exp_string("> ").unwrap();
        session.send_line("/nosuch rain").unwrap();
        session.exp_string("/nosuch is no command").unwrap();
        wait_for_answer(&mut session);
        session.send_control('c').unwrap();
        session.exp_string("Generation: ").unwrap();
        session.exp_string("> ").unwrap();
        session.send_line("/clear").unwrap();
        session.exp_string("Chat history cleared.").unwrap();
        session.exp_string("> ").unwrap();
        session.send_control('c').unwrap();
        session.exp_string("Exiting...").unwrap();
        let tail = session.exp_eof().unwrap();
        assert!(!tail.contains("common_perf_print"), "{tail}");
        assert!(matches!(status(&session), WaitStatus::Exited(_, 0)));
    }

    /// What a pass did is told behind the answer, not in the middle of it.
    #[test]
    fn a_conversation_is_compressed() {
        let ratio = ["--kv-ratio", "4", "--kv-min-tokens", "8", "--kv-lookahead", "4"];
        let mut session = open(&[&["-c", "1024", "-n", "12"], &ratio[..]].concat());
        session.exp_string("> ").unwrap();
        for _ in 0..2 {
            session.send_line("the rain in the inner harbour").unwrap();
            let text = session.exp_string("gracekv: entries ").unwrap();
            assert!(text.ends_with("\r\n"), "{text}");
            session.exp_string("Generation: ").unwrap();
            session.exp_string("> ").unwrap();
        }
        session.send_line("/exit").unwrap();
        session.exp_eof().unwrap();
        assert!(matches!(status(&session), WaitStatus::Exited(_, 0)));
    }

    #[test]
    fn two_signals_end_an_answer_that_does_not_stop() {
        let mut session = open(&["-c", "4096", "-n", "100000", "-no-cnv", "-p", "the rain"]);
        session.exp_string("the rain").unwrap();
        session.send_control('c').unwrap();
        session.exp_string("Interrupted by user").unwrap();
        session.exp_eof().unwrap();
        assert!(matches!(status(&session), WaitStatus::Exited(_, 130)));
    }

    /// An answer that a pass has merged is read again for /regen. Where that is stopped, nothing that was said is lost.
    #[test]
    fn a_conversation_survives_what_interrupts_its_being_read_again() {
        let dir = TempDir::new().unwrap();
        let (file, transcript) = (dir.path().join("f.txt"), dir.path().join("transcript"));
        std::fs::write(&file, "the rain in the inner harbour ".repeat(150)).unwrap();
        let ratio = ["--kv-ratio", "4", "--kv-min-tokens", "8", "--kv-lookahead", "4", "--kv-decode-interval", "20"];
        let args = ["-c", "32768", "-n", "60", "-ub", "1", "-o", transcript.to_str().unwrap()];
        let mut session = open(&[&args[..], &ratio].concat());
        session.exp_string("> ").unwrap();
        session.send_line(&format!("/read {}", file.display())).unwrap();
        session.exp_string("Loaded text").unwrap();
        session.exp_string("> ").unwrap();
        session.send_line("and the heat").unwrap();
        session.exp_string("Generation: ").unwrap();
        session.exp_string("> ").unwrap();
        let n_read = |session: &mut PtySession| {
            let (_, found) = session.exp_regex(r"reading the prompt: \d+ of \d+ tokens").unwrap();
            found.rsplit(' ').nth(1).unwrap().parse::<usize>().unwrap()
        };
        session.send_line("/regen").unwrap();
        let n_first = n_read(&mut session);
        session.send_control('c').unwrap();
        session.exp_string("The next message will be read together with all that was said before.").unwrap();
        session.exp_string("> ").unwrap();
        // Once more, to the end; then stopped again, and another message instead.
        session.send_line("/regen").unwrap();
        assert_eq!(n_read(&mut session), n_first);
        let line = session.exp_string("Generation: ").unwrap();
        assert!(line.contains("[ Prompt: "), "{line}");
        session.exp_string("> ").unwrap();
        session.send_line("/regen").unwrap();
        n_read(&mut session);
        session.send_control('c').unwrap();
        session.exp_string("The next message").unwrap();
        session.exp_string("> ").unwrap();
        session.send_line("and the north gate").unwrap();
        assert!(n_read(&mut session) > n_first + 60, "the question, its answer and what was said next");
        session.exp_string("Generation: ").unwrap();
        session.exp_string("> ").unwrap();
        session.send_line("/exit").unwrap();
        session.exp_eof().unwrap();
        assert!(matches!(status(&session), WaitStatus::Exited(_, 0)));
        let written = std::fs::read_to_string(transcript).unwrap();
        assert_eq!((written.matches("User:\n").count(), written.matches("Assistant:\n").count()), (2, 3), "{written}");
    }

    /// What was not read again has no speed.
    #[test]
    fn an_answer_that_is_given_again_shows_its_own_speed() {
        let mut session = open(&["-n", "4"]);
        session.exp_string("> ").unwrap();
        for (typed, has_prompt) in [("the rain", true), ("/regen", false)] {
            session.send_line(typed).unwrap();
            let line = session.exp_string("Generation: ").unwrap();
            assert_eq!(line.contains("Prompt: "), has_prompt, "{line}");
            session.exp_string("> ").unwrap();
        }
    }

    /// Whatever ends the program at the prompt, the terminal is as it was: no bold green, no marks around what is pasted.
    #[test]
    fn a_signal_at_the_prompt_leaves_the_terminal_as_it_was() {
        for (signal, code) in [(Signal::SIGTERM, 143), (Signal::SIGHUP, 129)] {
            let mut session = open(&["-co", "on"]);
            session.exp_string("\u{1b}[?2004h").unwrap();
            session.exp_string("> ").unwrap();
            session.process_mut().signal(signal).unwrap();
            let end = session.exp_eof().unwrap();
            let last = |of: &str| end.rfind(of).unwrap_or_else(|| panic!("{of:?} is not in {end:?}"));
            last("\u{1b}[?2004l");
            assert!(end[last("\u{1b}[0m")..].find("\u{1b}[32m").is_none(), "{end:?}");
            assert!(matches!(status(&session), WaitStatus::Exited(_, found) if found == code));
        }
    }

    #[test]
    fn lines_are_edited_and_remembered() {
        let mut session = open(&["-n", "4"]);
        session.exp_string("> ").unwrap();
        // A key that deletes, the end of the input on the next prompt.
        send(&mut session, "the raim\u{7f}n\r");
        session.exp_string("Generation: ").unwrap();
        session.exp_string("> ").unwrap();
        send(&mut session, "\u{1b}[A");
        session.exp_string("the rain").unwrap();
        send(&mut session, "\u{15}");
        session.send_control('d').unwrap();
        session.exp_string("Exiting...").unwrap();
        session.exp_eof().unwrap();
        assert!(matches!(status(&session), WaitStatus::Exited(_, 0)));
    }

    #[test]
    fn a_terminated_program_ends_at_the_prompt_and_in_an_answer() {
        for is_answering in [false, true] {
            let mut session = open(&["-c", "4096", "-n", "100000"]);
            session.exp_string("> ").unwrap();
            if is_answering {
                session.send_line("the rain").unwrap();
                wait_for_answer(&mut session);
            }
            session.process_mut().signal(Signal::SIGTERM).unwrap();
            session.exp_eof().unwrap();
            assert!(matches!(status(&session), WaitStatus::Exited(_, 143)), "{is_answering}");
        }
    }
}
