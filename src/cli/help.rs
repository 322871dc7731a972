//! The texts of `-h`, `--version` and `--kv-method list`, made from the tables. Layout as llama.cpp's help.

use super::flags::{Action, Flag, CATEGORIES};
use crate::compress::METHODS;

/// Column in which the explanations begin, and their width.
const INDENT: usize = 40;
const WIDTH: usize = 70;

const HEAD: &str = "\
usage: gracekv-run -m model.gguf [options]

Runs a GGUF model as llama-completion and llama-cli do, and can make the KV cache of the prompt many times
smaller before it answers (--kv-ratio).

  gracekv-run -m model.gguf -p \"I believe the meaning of life is\" -n 64 -no-cnv
  gracekv-run -m model.gguf -f long_document.txt --kv-ratio 32
";

/// The complete help.
pub fn help() -> String {
    let mut text = HEAD.to_string();
    for category in CATEGORIES.iter().filter(|c| !c.title.is_empty()) {
        text += &format!("\n----- {} -----\n\n", category.title);
        category.flags.iter().for_each(|flag| text += &row(flag));
    }
    text +=
        &names("options of llama.cpp without effect here (a warning says why)", |a| matches!(a, Action::NoEffect(_)));
    text +=
        &names("options of llama.cpp that are not supported (an error says why)", |a| matches!(a, Action::Refused(_)));
    text
}

/// The help of one option.
pub fn row(flag: &Flag) -> String {
    let names: Vec<&str> = flag.names.iter().chain(flag.off).copied().collect();
    let mut head = match names.split_first() {
        Some((first, rest)) if !rest.is_empty() => format!("{:<7}{}", format!("{first}, "), rest.join(", ")),
        _ => names.concat(),
    };
    if flag.takes_value() {
        head += &format!(" {}", flag.hint);
    }
    let mut lines = wrap(flag.help, WIDTH);
    if !flag.env.is_empty() {
        lines.push(format!("(env: {})", flag.env));
    }
    let gap = if head.chars().count() > INDENT - 3 {
        format!("\n{:INDENT$}", "")
    } else {
        " ".repeat(INDENT - head.chars().count())
    };
    format!("{head}{gap}{}\n", lines.join(&format!("\n{:INDENT$}", "")))
}

fn names(title: &str, is: impl Fn(&Action) -> bool) -> String {
    let flags = CATEGORIES.iter().flat_map(|c| c.flags).filter(|flag| is(&flag.action));
    let names: Vec<&str> = flags.flat_map(|flag| flag.names.iter().chain(flag.off)).copied().collect();
    format!("\n----- {title} -----\n\n{}\n", wrap(&names.join(" "), INDENT + WIDTH).join("\n"))
}

/// Breaks at spaces; a longer word stays whole.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => *line += &format!(" {word}"),
            _ => lines.push(word.to_string()),
        }
    }
    lines
}

/// The text of `--completion-bash`: spellings of options, and files behind those that take one.
pub fn completion_bash() -> String {
    let names: Vec<&str> =
        CATEGORIES.iter().flat_map(|c| c.flags).flat_map(|f| f.names.iter().chain(f.off)).copied().collect();
    let files = |option: &str, ending: &str| {
        let spellings = super::flags::find(option).map_or(option.to_owned(), |(flag, _)| flag.names.join("|"));
        format!(
            "        {spellings})\n            COMPREPLY=( $(compgen -f -X '!*.{ending}' -- \"$cur\") $(compgen -d -- \"$cur\") )\n            ;;\n"
        )
    };
    format!(
        "_gracekv_run() {{\n    local cur=\"${{COMP_WORDS[COMP_CWORD]}}\" prev=\"${{COMP_WORDS[COMP_CWORD-1]}}\"\n    case \"$prev\" in\n{}{}{}        *)\n            COMPREPLY=( $(compgen -W \"{}\" -- \"$cur\") )\n            [ ${{#COMPREPLY[@]}} -gt 0 ] || COMPREPLY=( $(compgen -f -- \"$cur\") )\n            ;;\n    esac\n}}\ncomplete -F _gracekv_run gracekv-run\n",
        files("--model", "gguf"),
        files("--grammar-file", "gbnf"),
        files("--chat-template-file", "jinja"),
        names.join(" "),
    )
}

/// The text of `--version`.
pub fn version() -> String {
    let ggml = option_env!("GRACEKV_GGML_VERSION").unwrap_or("unknown");
    let llama_build = option_env!("GRACEKV_LLAMA_BUILD").unwrap_or("unknown");
    let (arch, os) = (std::env::consts::ARCH, std::env::consts::OS);
    format!("version: {} (ggml {ggml} of llama.cpp {llama_build})\nbuilt for {arch} {os}\n", env!("CARGO_PKG_VERSION"))
}

/// The text of `--kv-method list`: every method, and its modifiers below it.
pub fn methods() -> String {
    let line = |(name, about): (String, &str)| format!("{name:<20}{about}\n");
    let lines = METHODS.iter().flat_map(|method| {
        let modifiers = method.modifiers.iter().map(|m| (format!("  +{}", m.name), m.about));
        std::iter::once((method.name.to_owned(), method.about)).chain(modifiers)
    });
    lines.map(line).collect()
}
