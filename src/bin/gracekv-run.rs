//! `gracekv-run`: see [`gracekv::cli::run`].

#[global_allocator]
static ALLOCATOR: gracekv::ggml::Allocator = gracekv::ggml::Allocator;

fn main() {
    std::process::exit(gracekv::cli::run::main(std::env::args_os().skip(1)));
}
