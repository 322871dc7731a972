//! `bindings/ggml.rs` is what bindgen makes of the pinned headers (feature `bindgen`, which needs libclang).

#[cfg(feature = "bindgen")]
#[test]
fn bindings_are_fresh() {
    let committed = include_str!("../../bindings/ggml.rs");
    let generated = include_str!(concat!(env!("OUT_DIR"), "/ggml.rs"));
    assert!(committed == generated, "bindings/ggml.rs is stale; run `make bindings`");
}
