//! Gives the tests' tiny models the folder that cargo gives integration tests.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-env=CARGO_TARGET_TMPDIR={}", std::env::var("OUT_DIR").unwrap_or_default());
}
