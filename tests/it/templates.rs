//! Chat templates in the program: a broken one never stops a completion, its error is told, and another one can be set.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::support::tiny;

const PROMPT: &str = "the rain";

/// A tiny model with this template.
fn model(dir: &TempDir, arch: &str, template: &str) -> PathBuf {
    let path = dir.path().join("model.gguf");
    let mut recipe = tiny::recipe(arch);
    recipe.header.set("tokenizer.chat_template", template).unwrap();
    recipe.write(&path);
    path
}

/// Runs the program without input: exit code, standard output and standard error.
fn run(model: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let common = ["-t", "1", "-n", "3", "--temp", "0", "-c", "512"];
    let output = Command::new(env!("CARGO_BIN_EXE_gracekv-run"))
        .args(["-m", model.to_str().unwrap()])
        .args(common)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// Templates of public reports (tags that only training knows, tags of other engines) and hostile ones, with what the
/// message must say.
const BROKEN: [(&str, &str); 8] = [
    ("\n\n{% breakfast %}x{% endbreakfast %}", "line 3: syntax error: unknown statement breakfast"),
    ("{{ messages", "line 1: "),
    ("{% for m in messages %}{{ m.content }}", "line 1: "),
    ("{% include 'other' %}", "line 1: "),
    ("a\n{{ raise_exception('no users here') }}", "line 2: invalid operation: no users here"),
    ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
    ("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}", "too much time or memory"),
    ("{{ nothing.at.all }}", "line 1: undefined value"),
];

#[test]
fn a_broken_template_never_stops_a_completion() {
    let dir = TempDir::new().unwrap();
    let (_, plain, _) = run(&tiny::path("llama"), &["-no-cnv", "-p", PROMPT]);
    for (template, want) in BROKEN {
        let model = model(&dir, "llama", template);
        let (code, out, err) = run(&model, &["-no-cnv", "-p", PROMPT]);
        assert_eq!((code, &out), (Some(0), &plain), "{template}: {err}");
        assert!(!err.contains("template"), "{template}: {err}");

        let (code, _, err) = run(&model, &["-p", PROMPT, "-st"]);
        let line = err.lines().find(|l| l.contains("chat template cannot be used")).unwrap_or_else(|| panic!("{err}"));
        assert_eq!(code, Some(0), "{err}");
        for want in [want, "chatml is used instead", "--chat-template sets another one, -no-cnv none"] {
            assert!(line.contains(want), "{template}: {err}");
        }
    }
}

#[test]
fn another_template_takes_its_place() {
    let dir = TempDir::new().unwrap();
    let model = model(&dir, "llama", BROKEN[0].0);
    let file = dir.path().join("good.jinja");
    std::fs::write(&file, "{% generation %}{{ messages[0].content }}{% endgeneration %}").unwrap();
    let (plain_code, plain, _) = run(&model, &["-no-cnv", "-p", PROMPT, "--no-display-prompt"]);
    let (code, out, err) =
        run(&model, &["-p", PROMPT, "-st", "--no-display-prompt", "--chat-template-file", file.to_str().unwrap()]);
    assert!(!err.contains("chatml"), "{err}");
    assert_eq!((code, out.trim_end()), (plain_code, plain.trim_end()), "{err}");
    for (template, want) in [("{{ 1", "line 1: "), ("llama9", "is neither Jinja text nor one of chatml, llama2, ")] {
        let (code, _, err) = run(&model, &["-p", PROMPT, "-st", "--chat-template", template]);
        let last = err.lines().last().unwrap();
        assert!(code == Some(1) && last.starts_with("error: ") && last.contains(want), "{err}");
    }
}

/// One BOS token, whoever writes it; two are the user's doing and are told.
#[test]
fn a_prompt_begins_with_one_bos_token() {
    let dir = TempDir::new().unwrap();
    let model = model(&dir, "gemma3", "{{ bos_token }}{{ messages[0].content }}");
    let two = "begins with a BOS token";
    let prompt_tokens = |args: &[&str]| {
        let (code, _, err) = run(&model, args);
        assert_eq!(code, Some(0), "{err}");
        let line = err.lines().find(|l| l.contains("prompt eval time")).unwrap_or_else(|| panic!("{err}")).to_owned();
        (line.split('/').nth(1).unwrap().split_whitespace().next().unwrap().to_owned(), err.contains(two))
    };
    let (n_plain, warned) = prompt_tokens(&["-no-cnv", "-p", PROMPT]);
    assert!(!warned);
    assert_eq!(prompt_tokens(&["-p", PROMPT, "-st"]), (n_plain.clone(), false));
    let (n_two, warned) = prompt_tokens(&["-no-cnv", "-p", &format!("<bos>{PROMPT}")]);
    assert!(warned && n_two != n_plain);
}
