//! `gracekv-perplexity`: see [`gracekv::cli::perplexity`].

#[global_allocator]
static ALLOCATOR: gracekv::ggml::Allocator = gracekv::ggml::Allocator;

fn main() {
    std::process::exit(gracekv::cli::perplexity::main(std::env::args_os().skip(1)));
}
