//! llama-bench for this engine; see [`gracekv::cli::bench`].

fn main() -> std::process::ExitCode {
    gracekv::cli::bench::main(std::env::args_os().skip(1))
}
