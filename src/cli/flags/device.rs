//! Options of devices: which ones, and what lives where.

use super::Action::{Choice, Int, Switch, Text};
use super::{flag, int, one_of, set, Check, Flag};
use crate::cli::low::{LowArgs, OnOffAuto, SplitMode};

const SPLIT_MODES: &[(&str, SplitMode)] =
    &[("layer", SplitMode::Layer), ("none", SplitMode::None), ("row", SplitMode::Layer), ("tensor", SplitMode::Layer)];

#[rustfmt::skip]
pub(super) const FLAGS: &[Flag] = &[
    flag(&["-ngl", "--gpu-layers", "--n-gpu-layers"], "N", "LLAMA_ARG_N_GPU_LAYERS", Text(|a, v| set(&mut a.devices.n_layers, layers(&v)?)),
        "layers that devices hold, the last ones first: a number, auto (as many as fit) or all (default: auto)"),
    flag(&["-dev", "--device"], "<dev1,dev2,..>", "LLAMA_ARG_DEVICE", Text(|a, v| set(&mut a.devices.names, Some(list(&v)))),
        "devices to use, as --list-devices names them; none = the CPU alone (default: all)"),
    flag(&["--rpc"], "SERVERS", "LLAMA_ARG_RPC", Text(|a, v| set(&mut a.devices.rpc, list(&v))),
        "servers whose devices are used, too: host:port,...; for trusted networks only (needs a build with --features rpc)"),
    flag(&["-sm", "--split-mode"], "{none,layer,row,tensor}", "LLAMA_ARG_SPLIT_MODE", Text(split_mode),
        "layer = layers are divided over the devices, none = one device holds them; row and tensor are not implemented and mean layer (default: layer)"),
    flag(&["-ts", "--tensor-split"], "N0,N1,N2,...", "LLAMA_ARG_TENSOR_SPLIT", Text(|a, v| set(&mut a.devices.shares, shares(&v)?)),
        "share of the layers that each device holds, e.g. 3,1 (default: by free memory)"),
    flag(&["-mg", "--main-gpu"], "INDEX", "LLAMA_ARG_MAIN_GPU", Int(|a, n| set(&mut a.devices.main, int(n, 0)?)),
        "the device of -sm none, counted from 0 (default: 0)"),
    flag(&["-kvo", "--kv-offload"], "", "LLAMA_ARG_KV_OFFLOAD", Switch(|a, on| set(&mut a.devices.kv_on_cpu, !on)),
        "caches live with their layers; -nkvo keeps them on the CPU (default: enabled)").off_by(&["-nkvo", "--no-kv-offload"]),
    flag(&["--op-offload"], "", "", Switch(|a, on| set(&mut a.devices.ops_stay, !on)),
        "devices may compute large products with weights of the CPU (default: enabled)").off_by(&["--no-op-offload"]),
    flag(&["-ot", "--override-tensor"], "<tensor name pattern>=<buffer type>,...", "LLAMA_ARG_OVERRIDE_TENSOR", Text(|a, v| overrides(&mut a.devices.overrides, &v)),
        "where weights live whose names match: CPU, or a device").accumulates(),
    flag(&["-cmoe", "--cpu-moe"], "", "LLAMA_ARG_CPU_MOE", Switch(|a, _| { a.devices.overrides.push((EXPERTS.into(), "CPU".into())); Ok(()) }),
        "keep the weights of all experts on the CPU"),
    flag(&["-ncmoe", "--n-cpu-moe"], "N", "LLAMA_ARG_N_CPU_MOE", Int(|a, n| first_layers(&mut a.devices.overrides, int(n, 0)?, EXPERTS)),
        "keep the weights of the experts of the first N layers on the CPU"),
    flag(&["-ncffn", "--n-cpu-ffn"], "N", "LLAMA_ARG_N_CPU_FFN", Int(|a, n| first_layers(&mut a.devices.overrides, int(n, 0)?, FFN)),
        "keep the feed-forward weights of the first N layers on the CPU"),
    flag(&["-fit", "--fit"], "[on|off]", "LLAMA_ARG_FIT", Choice(|a, v| set(&mut a.devices.fit, v != OnOffAuto::Off)),
        "choose a context and -ngl that fit memory where they are not given (default: on)"),
    flag(&["-fitt", "--fit-target"], "MiB0,MiB1,MiB2,...", "LLAMA_ARG_FIT_TARGET", Text(|a, v| set(&mut a.devices.margins_mib, shares(&v)?)),
        "memory that --fit leaves free on each device, in MiB (default: 1024)"),
    flag(&["-fitc", "--fit-ctx"], "N", "LLAMA_ARG_FIT_CTX", Int(|a, n| set(&mut a.devices.min_ctx, int(n, 1)?)),
        "smallest context that --fit chooses (default: 4096)"),
];

/// Names of the weights of experts, and of dense feed-forward networks, behind that of their layer.
const EXPERTS: &str = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps";
const FFN: &str = r"\.ffn_(up|down|gate)\.";

/// -1 stands for auto, -2 for all.
fn layers(text: &str) -> Result<i32, String> {
    match text {
        "auto" => Ok(-1),
        "all" => Ok(-2),
        _ => text.parse().ok().filter(|&n| n >= -2).ok_or_else(|| format!("'{text}' is not a number, auto or all")),
    }
}

fn split_mode(a: &mut LowArgs, name: String) -> Check {
    if ["row", "tensor"].contains(&name.as_str()) {
        a.warnings.push(format!("--split-mode {name} has no effect: tensors are not divided, layers are (layer)"));
    }
    set(&mut a.devices.split_mode, one_of(&name, SPLIT_MODES)?)
}

fn list(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|s| !s.is_empty()).map(str::to_owned).collect()
}

/// Numbers between `,` or `/`, none below 0.
fn shares(text: &str) -> Result<Vec<f64>, String> {
    let number = |s: &str| s.trim().parse().ok().filter(|x: &f64| x.is_finite() && *x >= 0.0);
    text.split([',', '/']).map(|s| number(s).ok_or_else(|| format!("'{s}' is no share"))).collect()
}

fn overrides(all: &mut Vec<(String, String)>, text: &str) -> Result<(), String> {
    for part in text.split(',') {
        let (pattern, place) = part.split_once('=').ok_or_else(|| format!("'{part}' is not pattern=place"))?;
        regex::Regex::new(pattern).map_err(|_| format!("'{pattern}' is no regular expression"))?;
        all.push((pattern.to_owned(), place.to_owned()));
    }
    Ok(())
}

fn first_layers(all: &mut Vec<(String, String)>, n: usize, weights: &str) -> Result<(), String> {
    all.extend((0..n.min(10_000)).map(|il| (format!(r"^blk\.{il}{weights}"), "CPU".to_owned())));
    Ok(())
}
