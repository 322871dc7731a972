//! Options of the chat template and of what it is told about reasoning.

use serde_json::{Map, Value};

use super::Action::{Choice, Int, Path, Switch, Text};
use super::{flag, set, Check, Flag};
use crate::cli::low::{LowArgs, OnOffAuto, Source};

#[rustfmt::skip]
pub(super) const FLAGS: &[Flag] = &[
    flag(&["--chat-template"], "JINJA_TEMPLATE", "LLAMA_ARG_CHAT_TEMPLATE", Text(|a, v| set(&mut a.chat_template, (!v.is_empty()).then_some(Source::Text(v)))),
        "chat template to use instead of the model's: Jinja text, or one of llama.cpp's names for formats, such as chatml, llama3, gemma, mistral-v7, phi4 (a wrong name lists them all)"),
    flag(&["--chat-template-file"], "JINJA_TEMPLATE_FILE", "LLAMA_ARG_CHAT_TEMPLATE_FILE", Path(|a, path| set(&mut a.chat_template, Some(Source::Binary(path)))),
        "file with the chat template"),
    flag(&["-cml", "--chatml"], "", "", Switch(|a, _| set(&mut a.chat_template, Some(Source::Text("chatml".to_string())))),
        "same as --chat-template chatml"),
    flag(&["--jinja"], "", "LLAMA_ARG_JINJA", Switch(|a, on| set(&mut a.jinja, Some(on))),
        "read chat templates as Jinja, or with --no-jinja use llama.cpp's built-in template of the same format. Default: Jinja for a conversation on a terminal, as in llama-cli; otherwise the built-in one, as in llama-completion, unless there is none or the template is given variables").off_by(&["--no-jinja"]),
    flag(&["--chat-template-kwargs"], "STRING", "LLAMA_ARG_CHAT_TEMPLATE_KWARGS", Text(|a, v| kwargs(a, &v)),
        r#"variables for the chat template, as a JSON object: '{"key1": "value1"}'"#),
    flag(&["-rea", "--reasoning"], "[on|off|auto]", "LLAMA_ARG_REASONING", Choice(|a, v| match v {
        OnOffAuto::On => variable(a, "enable_thinking", true.into()),
        OnOffAuto::Off => variable(a, "enable_thinking", false.into()),
        OnOffAuto::Auto => Ok(()),
    }), "tell the chat template to let the model think or not (default: auto)"),
    flag(&["--reasoning-effort"], "LEVEL", "LLAMA_ARG_REASONING_EFFORT", Text(|a, v| effort(a, &v)),
        "effort that the chat template is told, such as low, medium, high, or default (default: default)"),
    flag(&["--reasoning-budget"], "N", "LLAMA_ARG_THINK_BUDGET", Int(budget),
        "tokens for thinking: -1 = no limit, 0 = as --reasoning off; other limits are not supported (default: -1)"),
    flag(&["--reasoning-preserve"], "", "LLAMA_ARG_REASONING_PRESERVE", Switch(preserve),
        "tell the chat template to keep the thoughts of earlier answers or not (default: what it does by itself)").off_by(&["--no-reasoning-preserve"]),
];

fn variable(a: &mut LowArgs, name: &str, value: Value) -> Check {
    a.template_variables.insert(name.to_owned(), value);
    Ok(())
}

fn kwargs(a: &mut LowArgs, text: &str) -> Check {
    let variables: Map<String, Value> =
        serde_json::from_str(text).map_err(|e| format!("'{text}' is no JSON object: {e}"))?;
    for (name, option) in [
        ("enable_thinking", "--reasoning on / --reasoning off"),
        ("preserve_reasoning", "--reasoning-preserve / --no-reasoning-preserve"),
    ] {
        if variables.contains_key(name) {
            a.warnings
                .push(format!("Setting '{name}' via --chat-template-kwargs is deprecated. Use {option} instead."));
        }
    }
    a.template_variables.extend(variables);
    Ok(())
}

/// Templates call it by one of two names. Source: llama.cpp `common/jinja/caps.cpp`, as for [`preserve`].
fn effort(a: &mut LowArgs, level: &str) -> Check {
    for name in ["reasoning_effort", "reasoning_strength"] {
        match level {
            "default" => drop(a.template_variables.remove(name)),
            _ => variable(a, name, level.into())?,
        }
    }
    Ok(())
}

fn preserve(a: &mut LowArgs, on: bool) -> Check {
    for name in ["preserve_reasoning", "preserve_thinking"] {
        variable(a, name, on.into())?;
    }
    for name in ["clear_thinking", "truncate_history_thinking", "drop_thinking"] {
        variable(a, name, (!on).into())?;
    }
    Ok(())
}

fn budget(a: &mut LowArgs, n: i64) -> Check {
    match n {
        -1 => Ok(()),
        0 => variable(a, "enable_thinking", false.into()),
        1.. => Err("not supported: thoughts can be switched off by 0, but not cut after some tokens".to_owned()),
        _ => Err("invalid value".to_owned()),
    }
}
