//! `gracekv-run`: see [`gracekv::cli::run`].

fn main() {
    std::process::exit(gracekv::cli::run::main(std::env::args_os().skip(1)));
}
