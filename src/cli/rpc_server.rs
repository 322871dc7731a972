//! `gracekv-rpc-server`: the devices of this machine for `--rpc` of another one, through ggml's own server.
//!
//! Options as of llama.cpp's `rpc-server`. Deviation: without a device named, it serves the GPUs there are, else the CPU.

use crate::error::{Error, Result};
use crate::ggml::{self, Device, MAX_THREADS};
use clap::{value_parser, Arg, Command};
use std::ffi::OsString;
use std::process::ExitCode;

const WARNING: &str = "warning: ggml's RPC has no passwords and no encryption, and whoever reaches it can crash this program or worse; serve trusted networks only";

/// Runs the server until it is ended from outside.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    match run(args) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: impl IntoIterator<Item = OsString>) -> Result<String> {
    let matches = match command().try_get_matches_from(args) {
        Ok(matches) => matches,
        Err(e) if !e.use_stderr() => return Ok(e.to_string()),
        Err(e) => {
            let first = e.to_string().lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
            return Err(Error::Usage(first));
        }
    };
    let text = |id| matches.get_one::<String>(id).map_or("", String::as_str);
    let port = matches.get_one::<u16>("port").copied().unwrap_or(ggml::SERVER_PORT);
    let n_threads = match matches.get_one::<usize>("threads").copied() {
        Some(n) if n > MAX_THREADS => {
            return Err(Error::Usage(format!("-t {n}: ggml can use {MAX_THREADS} threads at most")));
        }
        Some(n) => n,
        None => num_cpus::get_physical().min(MAX_THREADS),
    };
    let devices = devices(text("device"))?;
    eprintln!("{WARNING}");
    if !["127.0.0.1", "localhost"].contains(&text("host")) {
        eprintln!("warning: it listens at {}, not only for this machine", text("host"));
    }
    ggml::serve(&format!("{}:{port}", text("host")), n_threads.max(1), &devices)?;
    Ok(String::new())
}

fn command() -> Command {
    Command::new("gracekv-rpc-server")
        .about("Lets another machine compute on the devices of this one (gracekv-run --rpc HOST:PORT).")
        .no_binary_name(true)
        .args([
            Arg::new("host")
                .short('H')
                .long("host")
                .default_value("127.0.0.1")
                .help("IPv4 address to listen at; anything but 127.0.0.1 opens it to a network"),
            Arg::new("port")
                .short('p')
                .long("port")
                .value_parser(value_parser!(u16))
                .help(format!("Port [default: {}]", ggml::SERVER_PORT)),
            Arg::new("threads")
                .short('t')
                .long("threads")
                .value_parser(value_parser!(usize))
                .help("Threads of the CPU [default: cores]"),
            Arg::new("device")
                .short('d')
                .long("device")
                .default_value("")
                .hide_default_value(true)
                .value_name("dev1,dev2,..")
                .help("Devices to serve [default: all GPUs, else the CPU]"),
        ])
}

fn devices(names: &str) -> Result<Vec<Device>> {
    let all = Device::all();
    if names.is_empty() {
        let gpus = Device::offload();
        return Ok(if gpus.is_empty() { Device::cpu().into_iter().collect() } else { gpus });
    }
    let find = |name: &str| {
        let known = || all.iter().map(|d| d.name()).collect::<Vec<_>>().join(", ");
        let found = all.iter().find(|d| d.name().eq_ignore_ascii_case(name)).copied();
        found.ok_or_else(|| Error::Usage(format!("no device is named '{name}'; there are {}", known())))
    };
    names.split(',').map(find).collect()
}
