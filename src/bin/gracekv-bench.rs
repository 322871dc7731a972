//! llama-bench for this engine; see [`gracekv::cli::bench`].

#[global_allocator]
static ALLOCATOR: gracekv::ggml::Allocator = gracekv::ggml::Allocator;

fn main() -> std::process::ExitCode {
    gracekv::cli::bench::main(std::env::args_os().skip(1))
}
