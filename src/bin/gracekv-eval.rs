//! `gracekv-eval`: see [`gracekv::cli::eval`].

fn main() {
    std::process::exit(gracekv::cli::eval::main(std::env::args_os().skip(1)));
}
