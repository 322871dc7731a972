//! `gracekv-eval`: see [`gracekv::cli::eval`].

#[global_allocator]
static ALLOCATOR: gracekv::ggml::Allocator = gracekv::ggml::Allocator;

fn main() {
    std::process::exit(gracekv::cli::eval::main(std::env::args_os().skip(1)));
}
