//! Options that change a model after it was made: metadata, adapters, control vectors, and the check of its weights.

use super::Action::{Switch, Text};
use super::{flag, set, Check, Flag};
use crate::cli::low::LowArgs;
use crate::gguf::Value;
use std::path::PathBuf;

#[rustfmt::skip]
pub(super) const FLAGS: &[Flag] = &[
    flag(&["--override-kv"], "KEY=TYPE:VALUE,...", "", Text(|a, v| items(&v)?.iter().try_for_each(|item| { a.kv_overrides.push(override_of(item)?); Ok(()) })),
        "use another value for a key of the model file; types: int, float, bool, str; several by commas; may be given several times").accumulates(),
    flag(&["--check-tensors"], "", "", Switch(|a, _| set(&mut a.check_tensors, true)),
        "look at every weight and refuse a model with one that is not finite"),
    flag(&["--lora"], "FNAME", "", Text(|a, v| { a.loras.extend(items(&v)?.into_iter().map(|path| (path.into(), 1.0))); Ok(()) }),
        "LoRA adapter (GGUF); several by commas; may be given several times").accumulates(),
    flag(&["--lora-scaled"], "FNAME:SCALE,...", "", Text(|a, v| scaled(&mut a.loras, &v)),
        "the same with a factor").accumulates(),
    flag(&["--control-vector"], "FNAME", "", Text(|a, v| { a.control_vectors.extend(items(&v)?.into_iter().map(|path| (path.into(), 1.0))); Ok(()) }),
        "control vector (GGUF) to add behind the layers; several by commas; may be given several times").accumulates(),
    flag(&["--control-vector-scaled"], "FNAME:SCALE,...", "", Text(|a, v| scaled(&mut a.control_vectors, &v)),
        "the same with a factor").accumulates(),
    flag(&["--control-vector-layer-range"], "START END", "", Text(layer_range),
        "first and last layer that control vectors are added to (default: all)"),
];

/// The fields of a line of comma-separated values; quotes may hold a comma.
fn items(text: &str) -> Result<Vec<String>, String> {
    let mut rows = csv::ReaderBuilder::new().has_headers(false).from_reader(text.as_bytes());
    let mut row = csv::StringRecord::new();
    rows.read_record(&mut row).map_err(|e| e.to_string())?;
    match row.iter().all(str::is_empty) {
        true => Err("a value is missing".to_string()),
        false => Ok(row.iter().map(str::to_owned).collect()),
    }
}

/// `KEY=TYPE:VALUE`. Source: llama.cpp `string_parse_kv_override`, which takes any number that a text begins with.
fn override_of(item: &str) -> Result<(String, Value), String> {
    let wrong = |why: &str| format!("invalid KV override '{item}': {why}");
    let (key, typed) = item.split_once('=').ok_or_else(|| wrong("expected KEY=TYPE:VALUE"))?;
    if key.is_empty() || key.len() >= 128 {
        return Err(wrong("a key has 1 to 127 bytes"));
    }
    let (ty, value) = typed.split_once(':').ok_or_else(|| wrong("expected TYPE:VALUE"))?;
    let value = match ty {
        "int" => Value::I64(value.parse().map_err(|_| wrong("the value is no integer"))?),
        "float" => match value.parse::<f64>() {
            Ok(x) if x.is_finite() => Value::F64(x),
            _ => return Err(wrong("the value is no finite number")),
        },
        "bool" => Value::Bool(value.parse().map_err(|_| wrong("the value is neither true nor false"))?),
        "str" if value.len() > 127 => return Err(wrong("a text has 127 bytes at most")),
        "str" => Value::Str(value.to_owned()),
        _ => return Err(wrong("the type is none of int, float, bool, str")),
    };
    Ok((key.to_owned(), value))
}

/// `FNAME:SCALE,..`; the last colon divides, so that a path may have others.
fn scaled(list: &mut Vec<(PathBuf, f32)>, text: &str) -> Check {
    for item in items(text)? {
        let parts = item.rsplit_once(':').and_then(|(path, scale)| Some((path, scale.parse::<f32>().ok()?)));
        match parts {
            Some((path, scale)) if scale.is_finite() && !path.is_empty() => list.push((path.into(), scale)),
            _ => return Err(format!("'{item}' is not FNAME:SCALE with a finite number")),
        }
    }
    Ok(())
}

/// Two numbers, both included; one of 0 or less means no end, as in llama.cpp.
fn layer_range(a: &mut LowArgs, text: String) -> Check {
    let mut ends = text.split_whitespace().map(|n| n.parse::<i64>().map_err(|_| format!("'{n}' is no number")));
    let (Some(first), Some(last), None) = (ends.next(), ends.next(), ends.next()) else {
        return Err("expected two numbers".to_string());
    };
    let end = |n: i64, open: usize| usize::try_from(n).ok().filter(|&n| n > 0).unwrap_or(open);
    set(&mut a.control_range, Some((end(first?, 1), end(last?, usize::MAX))))
}
