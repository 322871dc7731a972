//! Every weight type that ggml multiplies on the CPU: a model in it computes what its weights, turned back into f32, compute.

use std::path::Path;
use std::sync::Arc;

use gracekv::engine::{EngineOptions, FlashAttn};
use gracekv::ggml::Type;
use gracekv::gguf::GgmlType;
use gracekv::model::{LoadOptions, Model};

use crate::support::{self, decode, nmse, options, tiny};

/// The types of ggml's tables that weights can have.
const TYPES: [GgmlType; 28] = [
    GgmlType::F32,
    GgmlType::F16,
    GgmlType::BF16,
    GgmlType::Q1_0,
    GgmlType::Q2_0,
    GgmlType::Q4_0,
    GgmlType::Q4_1,
    GgmlType::Q5_0,
    GgmlType::Q5_1,
    GgmlType::Q8_0,
    GgmlType::Q2_K,
    GgmlType::Q3_K,
    GgmlType::Q4_K,
    GgmlType::Q5_K,
    GgmlType::Q6_K,
    GgmlType::IQ1_S,
    GgmlType::IQ1_M,
    GgmlType::IQ2_XXS,
    GgmlType::IQ2_XS,
    GgmlType::IQ2_S,
    GgmlType::IQ3_XXS,
    GgmlType::IQ3_S,
    GgmlType::IQ4_NL,
    GgmlType::IQ4_XS,
    GgmlType::TQ1_0,
    GgmlType::TQ2_0,
    GgmlType::MXFP4,
    GgmlType::NVFP4,
];

/// Activations are rounded to 8 bits of their block's largest before they meet quantised weights; blocks of 256 lose most.
const MAX_NMSE: f64 = 1e-2;

fn load(path: &Path, repack: bool) -> Arc<Model> {
    gracekv::ggml::set_log(false);
    Arc::new(Model::load(path, LoadOptions { repack, ..LoadOptions::default() }).unwrap())
}

fn logits(model: &Arc<Model>) -> Vec<f32> {
    let options = EngineOptions { flash_attn: FlashAttn::Off, ty_k: Type::F32, ty_v: Type::F32, ..options(64, 1) };
    let mut engine = gracekv::engine::Engine::new(model.clone(), options).unwrap();
    decode(&mut engine, &(3..40).collect::<Vec<u32>>())
}

#[test]
fn the_list_is_what_ggml_multiplies() {
    let all = (0..).map_while(|id| (id < 256).then_some(id)).filter_map(Type::from_id);
    let multiplied: Vec<_> = all.filter(|ty| ty.multiplies()).map(Type::name).collect();
    for ty in TYPES {
        let name = Type::from_id(ty.id()).unwrap().name();
        assert!(multiplied.contains(&name), "{name} is not multiplied");
    }
    assert_eq!(multiplied.len(), TYPES.len(), "{multiplied:?}");
}

#[test]
fn a_model_in_every_type_computes_what_its_weights_say() {
    let folder = tempfile::tempdir().unwrap();
    for ty in TYPES {
        let name = Type::from_id(ty.id()).unwrap().name();
        let [own, back] = ["own", "back"].map(|kind| folder.path().join(format!("{name}-{kind}.gguf")));
        tiny::in_type(ty, false).write(&own);
        tiny::in_type(ty, true).write(&back);
        let want = logits(&load(&back, true));
        for repack in [false, true] {
            let found = logits(&load(&own, repack));
            let error = nmse(&want, &found);
            eprintln!("{name}, repacked {repack}: NMSE {error:.1e}");
            assert!(error <= MAX_NMSE, "{name}, repacked {repack}: NMSE {error:e}");
        }
    }
}

#[test]
fn types_of_activations_are_refused_as_weights() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("q8_k.gguf");
    let mut recipe = tiny::in_type(GgmlType::F32, false);
    recipe.tensors.iter_mut().filter(|t| t.name == "token_embd.weight").for_each(|t| t.ty = GgmlType::Q8_K);
    recipe.write_zeros(&path);
    let e = support::error(Model::load(&path, LoadOptions::default()));
    assert!(e.ends_with("q8_k.gguf: tensor 'token_embd.weight' is of type q8_K, which holds no weights"), "{e}");
}
