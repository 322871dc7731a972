//! Serves the devices of this machine to other machines; see [`gracekv::cli::rpc_server`].

fn main() -> std::process::ExitCode {
    gracekv::cli::rpc_server::main(std::env::args_os().skip(1))
}
