//! `gracekv-perplexity`: see [`gracekv::cli::perplexity`].

fn main() {
    std::process::exit(gracekv::cli::perplexity::main(std::env::args_os().skip(1)));
}
