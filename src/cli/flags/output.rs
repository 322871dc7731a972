//! Options of what is printed, and of the program itself.

use super::Action::{Choice, Int, Path, Switch};
use super::{flag, int, set, Flag};
use crate::cli::low::Special;

#[rustfmt::skip]
pub(super) const FLAGS: &[Flag] = &[
    flag(&["-h", "--help", "--usage"], "", "", Switch(|a, _| { a.special.get_or_insert(Special::Help); Ok(()) }),
        "print this help and exit"),
    flag(&["--version"], "", "", Switch(|a, _| { a.special.get_or_insert(Special::Version); Ok(()) }),
        "print version and build and exit"),
    flag(&["--display-prompt"], "", "", Switch(|a, on| set(&mut a.display_prompt, on)),
        "print the prompt before the generated text (default: true)").off_by(&["--no-display-prompt"]),
    flag(&["-sp", "--special"], "", "", Switch(|a, _| set(&mut a.special_tokens, true)),
        "print special tokens (default: false)"),
    flag(&["-co", "--color"], "[on|off|auto]", "", Choice(|a, v| set(&mut a.color, v)),
        "colours for prompt and input; auto = on a terminal, a bare option = on (default: auto)"),
    flag(&["--simple-io"], "", "", Switch(|a, _| set(&mut a.simple_io, true)),
        "plain input and output for subprocesses: no colours, no progress lines"),
    flag(&["--perf"], "", "LLAMA_ARG_PERF", Switch(|a, on| set(&mut a.perf, on)),
        "print timings at the end (default: enabled)").off_by(&["--no-perf"]),
    flag(&["--show-timings"], "", "LLAMA_ARG_SHOW_TIMINGS", Switch(|a, on| set(&mut a.show_timings, Some(on))),
        "print tokens per second after each answer of a conversation (default: on a terminal)").off_by(&["--no-show-timings"]),
    flag(&["-ptc", "--print-token-count"], "N", "", Int(|a, n| set(&mut a.n_print, int(n, i64::MIN)?)),
        "print how full the context is every N tokens, at verbosity 5 (default: -1, never)"),
    flag(&["--verbose-prompt"], "", "", Switch(|a, _| set(&mut a.verbose_prompt, true)),
        "print the tokens of the prompt before generation (default: false)"),
    flag(&["-o", "--output", "--output-file"], "FNAME", "", Path(|a, path| set(&mut a.output, Some(path))),
        "write a transcript of the conversation, or without one a copy of the text"),
    flag(&["--warmup"], "", "", Switch(|a, on| set(&mut a.warmup, on)),
        "run the model once before the prompt, so that timings are not those of the first access (default: enabled)").off_by(&["--no-warmup"]),
    flag(&["-v", "--verbose", "--log-verbose"], "", "", Switch(|a, _| set(&mut a.verbosity, i32::MAX)),
        "print all messages"),
    flag(&["-lv", "--verbosity", "--log-verbosity"], "N", "LLAMA_ARG_LOG_VERBOSITY", Int(|a, n| set(&mut a.verbosity, int(n, i64::MIN)?)),
        "messages up to this level: 1 errors, 2 warnings, 3 information, 4 more of it, 5 all (default: 3)"),
    flag(&["--log-disable"], "", "", Switch(|a, _| set(&mut a.verbosity, -1)),
        "print no messages, only the text"),
    flag(&["--log-file"], "FNAME", "LLAMA_ARG_LOG_FILE", Path(|a, path| set(&mut a.log_file, Some(path))),
        "write text and messages to this file, too"),
    flag(&["--log-colors"], "[on|off|auto]", "LLAMA_ARG_LOG_COLORS", Choice(|a, v| set(&mut a.log_colors, v)),
        "colours for messages; auto = when standard error is a terminal (default: auto)"),
    flag(&["--log-prefix"], "", "LLAMA_ARG_LOG_PREFIX", Switch(|a, on| set(&mut a.log_prefix, on)),
        "begin messages with a letter for their level (default: disabled)").off_by(&["--no-log-prefix"]),
    flag(&["--log-timestamps"], "", "LLAMA_ARG_LOG_TIMESTAMPS", Switch(|a, on| set(&mut a.log_timestamps, on)),
        "begin messages with the time since the start (default: disabled)").off_by(&["--no-log-timestamps"]),
];
