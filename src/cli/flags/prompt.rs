//! Options of the prompt and the conversation.

use super::Action::{Path, Switch, Text};
use super::{flag, set, Flag};
use crate::cli::low::Source;

#[rustfmt::skip]
pub(super) const FLAGS: &[Flag] = &[
    flag(&["-p", "--prompt"], "PROMPT", "", Text(|a, v| set(&mut a.prompt, Some(Source::Text(v)))),
        "prompt to start with; where the input is no terminal, it is the only turn unless -cnv says that others come. For a system message use -sys"),
    flag(&["-f", "--file"], "FNAME", "", Path(|a, path| set(&mut a.prompt, Some(Source::File(path)))),
        "file with the prompt; one line break at its end is dropped"),
    flag(&["-bf", "--binary-file"], "FNAME", "", Path(|a, path| set(&mut a.prompt, Some(Source::Binary(path)))),
        "file with the prompt, taken as it is"),
    flag(&["-sys", "--system-prompt"], "PROMPT", "", Text(|a, v| set(&mut a.system_prompt, Some(Source::Text(v)))),
        "system message of the conversation"),
    flag(&["-sysf", "--system-prompt-file"], "FNAME", "", Path(|a, path| set(&mut a.system_prompt, Some(Source::File(path)))),
        "file with the system message"),
    flag(&["-e", "--escape"], "", "", Switch(|a, on| set(&mut a.escape, on)),
        r#"replace \n, \r, \t, \', \", \\ and \xHH in prompts (default: enabled)"#).off_by(&["--no-escape"]),
    flag(&["-cnv", "--conversation"], "", "", Switch(|a, on| set(&mut a.conversation, Some(on))),
        "chat with the model by its chat template, or with -no-cnv continue the prompt as plain text (default: chat if the model has a template)")
        .off_by(&["-no-cnv", "--no-conversation"]),
    flag(&["-st", "--single-turn"], "", "", Switch(|a, _| set(&mut a.single_turn, true)),
        "end after the first answer of a conversation"),
    flag(&["-i", "--interactive"], "", "", Switch(|a, _| set(&mut a.interactive, true)),
        "without a chat template: hand over to the user where an answer ends or a reverse prompt comes (default: false)"),
    flag(&["-if", "--interactive-first"], "", "", Switch(|a, _| set(&mut a.interactive_first, true)),
        "as --interactive, and wait for input right after the prompt (default: false)"),
    flag(&["--in-prefix-bos"], "", "", Switch(|a, _| { a.in_prefix_bos = true; Ok(()) }),
        "put BOS in front of what the user types, before --in-prefix"),
    flag(&["--in-prefix"], "STRING", "", Text(|a, v| { a.in_prefix = v; Ok(()) }),
        "text in front of what the user types; switches the chat template off"),
    flag(&["--in-suffix"], "STRING", "", Text(|a, v| { a.in_suffix = v; Ok(()) }),
        "text behind what the user types; switches the chat template off"),
    flag(&["-r", "--reverse-prompt"], "PROMPT", "", Text(|a, v| { a.reverse_prompts.push(v); Ok(()) }),
        "stop when the model writes this text, and in a conversation hand over to the user; may be given several times").accumulates(),
    flag(&["-mli", "--multiline-input"], "", "", Switch(|a, _| set(&mut a.multiline_input, true)),
        r"input of several lines: a line that ends in \ or / hands over to the model"),
];
