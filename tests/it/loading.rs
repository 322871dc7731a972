//! How weights get into memory: mapped or read, repacked or not, they are the same, and none is there twice.

use std::path::Path;
use std::sync::Arc;

use gracekv::gguf::GgmlType;
use gracekv::model::{LoadOptions, Model};

use crate::support::{decode, engine, tiny};

fn load(path: &Path, mmap: bool, repack: bool) -> Arc<Model> {
    gracekv::ggml::set_log(false);
    Arc::new(Model::load(path, LoadOptions { mmap, repack, ..LoadOptions::default() }).unwrap())
}

#[test]
fn a_file_that_is_read_gives_the_same_logits_as_one_that_is_mapped() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    for ty in [GgmlType::F16, GgmlType::Q4_0, GgmlType::Q4_1, GgmlType::Q8_0, GgmlType::Q4_K, GgmlType::IQ4_NL] {
        tiny::in_type(ty, false).write(&path);
        for repack in [false, true] {
            let [mapped, read] = [true, false].map(|mmap| {
                let mut engine = engine(&load(&path, mmap, repack), 64, 1);
                decode(&mut engine, &(3..40).collect::<Vec<u32>>())
            });
            assert_eq!(mapped, read, "{ty:?}, repacked {repack}");
        }
    }
}

#[test]
#[cfg(target_os = "linux")]
fn only_a_file_whose_weights_stay_in_it_is_mapped() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    tiny::in_type(GgmlType::Q4_0, false).write(&path);
    for mmap in [true, false] {
        let model = load(&path, mmap, true);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert_eq!(maps.contains(path.to_str().unwrap()), mmap);
        drop(model);
    }
}
