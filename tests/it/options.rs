//! The checklist of llama.cpp's options: every spelling and every variable is answered, and README.md says how.
//!
//! `UPDATE_EXPECT=1 cargo test --test it options` renews what is made from the tables: README.md between its marks, and
//! tests/golden/cli/help.txt. Read the difference.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use gracekv::cli::flags::{self, Action, Flag, CATEGORIES};
use gracekv::cli::help;
use gracekv::cli::high::HighArgs;
use gracekv::cli::low::LowArgs;
use gracekv::cli::parse::{parse, parse_with_config};
use gracekv::error::Result;

const LLAMA_FLAGS: &str = include_str!("../golden/cli/llama_flags.tsv");
const LEGACY_FLAGS: &str = include_str!("../golden/cli/llama_flags_legacy.tsv");

const BEGIN: &str = "<!-- options: made from src/cli/flags by UPDATE_EXPECT=1 cargo test --test it options -->\n";
const END: &str = "<!-- options end -->\n";

/// Spellings, placeholder of the value, and variable of every option of the lists.
fn listed() -> impl Iterator<Item = (Vec<&'static str>, &'static str, &'static str)> {
    LLAMA_FLAGS.lines().chain(LEGACY_FLAGS.lines()).filter(|l| !l.starts_with("spellings")).map(|line| {
        let mut columns = line.split('\t');
        let mut next = || columns.next().unwrap_or("");
        (next().split(' ').collect(), next(), next())
    })
}

fn with_env(args: &[&str], env: &[(&str, &str)]) -> Result<LowArgs> {
    let lookup = |name: &str| env.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v));
    parse(args.iter().map(OsString::from), &lookup)
}

#[test]
fn every_option_of_llama_cpp_is_known() {
    for (spellings, value, env) in listed() {
        for spelling in spellings {
            let (flag, _) = flags::find(spelling).unwrap_or_else(|| panic!("{spelling} is unknown"));
            assert_eq!(flag.takes_value(), !value.is_empty(), "{spelling} takes another number of values");
            // Kept away on purpose: it is set for other programs, too.
            if !env.is_empty() && env != "MTMD_BACKEND_DEVICE" {
                assert_eq!(flag.env, env, "{spelling}");
            }
        }
    }
    assert_eq!(LLAMA_FLAGS.lines().count(), 219, "b11434 has 218 options");
}

/// A variable acts, or a warning or an error names it.
#[test]
fn no_variable_is_passed_over() {
    for flag in flags::all().filter(|f| !f.env.is_empty()) {
        let value = if flag.takes_value() && !matches!(flag.action, Action::Choice(_)) { "7" } else { "on" };
        let mut variables = vec![(flag.env.to_owned(), value)];
        if !flag.off.is_empty() {
            variables.push((flag.env.replacen("_ARG_", "_ARG_NO_", 1), "anything"));
        }
        for (variable, value) in variables {
            match with_env(&[], &[(&variable, value)]) {
                Ok(low) => {
                    let answered = !matches!(flag.action, Action::NoEffect(_) | Action::Refused(_));
                    let said = low.warnings.iter().any(|w| w.contains(&variable));
                    assert!(
                        low.given.contains(flag.id()) && (answered || said || flag.off.len() + flag.neutral.len() > 0),
                        "{variable}"
                    );
                }
                Err(e) => assert!(e.to_string().contains(&variable), "{e}"),
            }
        }
    }
}

/// An option that does nothing says so where it was typed, and only there.
#[test]
fn an_option_that_does_nothing_says_so() {
    for need in flags::NEEDS {
        assert!((need.is_met)(&LowArgs::default()) || need.why.starts_with("without"), "{}", need.why);
        for id in need.options {
            flags::all().find(|f| f.id() == *id).unwrap_or_else(|| panic!("{id} is no option"));
        }
    }
    let said = |args: &[&str]| flags::unmet(&with_env(args, &[]).unwrap()).collect::<Vec<_>>();
    for (args, want) in [
        (&["--kv-method", "snapkv"][..], "--kv-method has no effect without --kv-ratio"),
        (&["--kv-lookahead", "4"], "--kv-lookahead has no effect without --kv-ratio"),
        (&["--kv-discard-lookahead"], "--kv-discard-lookahead has no effect without --kv-ratio"),
        (&["--prompt-cache-all"], "--prompt-cache-all has no effect without --prompt-cache"),
        (&["--prompt-cache-ro"], "--prompt-cache-ro has no effect without --prompt-cache"),
        (&["-sys", "x", "-no-cnv"], "--system-prompt has no effect with -no-cnv"),
        (&["--keep", "4"], "--keep has no effect without --context-shift"),
        (&["-m", "x", "--hf-file", "y"], "--hf-file has no effect without --hf-repo"),
        (&["-m", "x", "-hf", "a/b"], "--model has no effect beside --hf-repo"),
        (
            &["--control-vector-layer-range", "1", "2"],
            "--control-vector-layer-range has no effect without --control-vector",
        ),
    ] {
        assert_eq!(said(args), [want]);
    }
    for args in [
        &["-m", "x", "-p", "y", "-n", "4", "-c", "64"][..],
        &["--kv-ratio", "1", "--kv-method", "snapkv"],
        &["--kv-budget", "64", "--kv-lookahead", "4"],
        &["--prompt-cache", "x", "--prompt-cache-all"],
        &["-sys", "x"],
        &["--context-shift", "--keep", "4"],
        &["-hf", "a/b", "--hf-file", "y"],
    ] {
        assert!(said(args).is_empty(), "{args:?}");
    }
    let ambient = with_env(&[], &[("GRACEKV_ARG_KV_LOOKAHEAD", "4")]).unwrap();
    assert_eq!((flags::unmet(&ambient).count(), ambient.kv_lookahead), (0, 4));
}

#[test]
fn what_is_not_implemented_but_harmless_is_said() {
    for (args, want) in [(["-sm", "row"], "--split-mode row has no effect"), (["-np", "4"], "-np has no effect")] {
        let low = with_env(&args, &[]).unwrap();
        assert!(low.warnings.len() == 1 && low.warnings[0].starts_with(want), "{:?}", low.warnings);
    }
    assert!(with_env(&["-sm", "layer", "-np", "1"], &[]).unwrap().warnings.is_empty());
}

/// The option is named, not what was taken for its value.
#[test]
fn a_missing_value_is_that_of_its_option() {
    let first = |args: &[&str]| with_env(args, &[]).unwrap_err().to_string().lines().next().unwrap().to_owned();
    for option in ["--top-k", "--grammar", "--kv-method", "-f", "-m"] {
        let want =
            format!("error while handling argument \"{option}\": expected value for argument, found the option -p");
        assert_eq!(first(&[option, "-p", "x"]), want);
    }
    assert!(first(&["--top-k", "-p"]).starts_with("error while handling argument \"--top-k\": '-p': "));
    assert_eq!(first(&["-n", "4", "x"]), "error: invalid argument: x");
    assert_eq!(with_env(&["-p", "-n", "-c", "64"], &[]).unwrap().n_ctx, 64, "a text may look like an option");
    let file = |args: &[&str]| HighArgs::new(with_env(&[&["-m", "m"], args].concat(), &[]).unwrap()).unwrap_err();
    for (option, name) in [
        ("-f", "--file"),
        ("-bf", "--binary-file"),
        ("-sysf", "--system-prompt-file"),
        ("--chat-template-file", "--chat-template-file"),
        ("--grammar-file", "--grammar-file"),
        ("-jf", "--json-schema-file"),
    ] {
        let text = file(&[option, "nofile"]).to_string();
        assert!(text.starts_with(&format!("{name} nofile: ")), "{text}");
    }
}

#[test]
fn a_configuration_file_comes_before_the_environment() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("llama.cpp");
    std::fs::create_dir(&folder).unwrap();
    let path = folder.join("config.ini");
    let read = |text: &str, args: &[&str], env: &[(&str, &str)]| {
        std::fs::write(&path, text).unwrap();
        let lookup = |name: &str| match name {
            "XDG_CONFIG_HOME" => Some(dir.path().into()),
            _ => env.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v)),
        };
        parse_with_config(args.iter().map(OsString::from), &lookup)
    };
    let text = "c = 64\nn = 5\nno-perf = true\nflash-attn = off\nreverse-prompt = x\nport = 8080\ndocker-repo = a\n";
    let low = read(text, &[], &[]).unwrap();
    assert_eq!((low.n_ctx, low.n_predict, low.perf), (64, 5, false));
    let file = path.display();
    assert_eq!(low.notices, [format!("using config file: {file}")]);
    assert_eq!(low.warnings.len(), 2, "{:?}", low.warnings);
    assert!(low.warnings.contains(&format!("ignoring option 'port' from {file}: not supported by this program")));
    assert!(low.warnings.iter().any(|w| w.starts_with(&format!("option docker-repo of {file} is ignored"))));
    let low = read(text, &["-n", "7", "-r", "y"], &[("LLAMA_ARG_CTX_SIZE", "99"), ("LLAMA_ARG_PERF", "on")]).unwrap();
    assert_eq!((low.n_ctx, low.n_predict, low.perf), (99, 7, true));
    assert_eq!(low.reverse_prompts, ["x", "y"]);
    let low = read("kv-ratio = 8", &["--kv-budget", "64"], &[]).unwrap();
    assert!(low.given.contains("kv-budget-tokens") && !low.given.contains("kv-ratio"));
    for (text, want) in [
        ("c = many", format!("error while handling option \"c of {file}\": 'many': ")),
        ("perf = maybe", format!("error while handling option \"perf of {file}\": unknown value 'maybe'")),
        ("c", format!("error: {file}: 'c' has no value")),
    ] {
        let e = read(text, &[], &[]).unwrap_err().to_string();
        assert!(e.starts_with(&want), "{e}");
    }
}

/// Bash itself reads the script and completes by it.
#[test]
fn the_completion_script_completes() {
    let script = help::completion_bash();
    let ask =
        "COMP_WORDS=(gracekv-run --kv-rat); COMP_CWORD=1; _gracekv_run; echo ${COMPREPLY[@]}; complete -p gracekv-run";
    let output = match std::process::Command::new("bash").args(["-c", &format!("{script}\n{ask}")]).output() {
        Ok(output) => output,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return,
        Err(e) => panic!("{e}"),
    };
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(
        text,
        "--kv-ratio\ncomplete -F _gracekv_run gracekv-run\n",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// How the options of the lists are answered, as a table: one row for each kind of answer.
fn table() -> String {
    let names: Vec<&str> = listed().flat_map(|(spellings, ..)| spellings).collect();
    let row = |title: &str, options: Vec<&Flag>| {
        let spelled = |flag: &&Flag| {
            let all: Vec<&str> = flag.names.iter().chain(flag.off).copied().filter(|n| names.contains(n)).collect();
            (!all.is_empty()).then(|| format!("`{}`", all.join(" ")))
        };
        let cells: Vec<String> = options.iter().filter_map(spelled).collect();
        match cells.is_empty() {
            true => String::new(),
            false => format!("| {title} | {} |\n", cells.join(", ")),
        }
    };
    let mut text = String::from(
        "<details>\n<summary>All options of llama.cpp and how each is answered</summary>\n\n| | |\n|---|---|\n",
    );
    for category in CATEGORIES.iter().filter(|c| !c.title.is_empty()) {
        text +=
            &row(&format!("**act**: {}", category.title), category.flags.iter().filter(|f| !is_answered(f)).collect());
    }
    let mut answers: BTreeMap<(&str, &str), Vec<&Flag>> = BTreeMap::new();
    for flag in flags::all() {
        match flag.action {
            Action::NoEffect(why) => answers.entry(("**no effect**", why)).or_default().push(flag),
            Action::Refused(why) => answers.entry(("**refused**", why)).or_default().push(flag),
            _ => {}
        }
    }
    for ((answer, why), options) in answers {
        text += &row(&format!("{answer}: {why}"), options);
    }
    text + "\n</details>\n"
}

fn is_answered(flag: &Flag) -> bool {
    matches!(flag.action, Action::NoEffect(_) | Action::Refused(_))
}

#[test]
fn the_table_of_the_readme_is_that_of_the_program() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("README.md has the mark of the table");
    let (found, after) = rest.split_once(END).expect("README.md has the end of the table");
    let want = table();
    for name in listed().flat_map(|(spellings, ..)| spellings) {
        let stands = want.split(['`', ' ', '|']).any(|word| word == name);
        assert!(stands, "{name} is not in the table");
    }
    if found != want && std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}{want}{END}{after}")).unwrap();
        return;
    }
    assert_eq!(found, want, "renew it: UPDATE_EXPECT=1 cargo test --test it options");
}

#[test]
fn help_is_the_reviewed_text() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/cli/help.txt");
    let want = help::help();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, &want).unwrap();
    }
    assert_eq!(want, std::fs::read_to_string(path).unwrap(), "renew it: UPDATE_EXPECT=1 cargo test --test it options");
    assert!(want.lines().all(|l| l.chars().count() <= 125));
    for flag in flags::all() {
        assert!(want.contains(flag.names[0]), "{}", flag.id());
    }
}
