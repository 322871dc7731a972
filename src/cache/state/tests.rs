use super::super::mirror::Mirror;
use super::super::plan::{Entry, HeadPlan, LayerPlan, Row};
use super::super::{CacheOptions, CacheShape};
use super::*;
use crate::cache::memory::Random;
use crate::ggml::{BufferType, Type};
use xxhash_rust::xxh3::xxh3_64;

const N_VOCAB: usize = 50;
const N_SWA: usize = 40;

fn empty(ty: Type, n_ctx: usize, n_ubatch: usize) -> KvCache {
    let shape =
        CacheShape { n_head_kv: 2, head_dim_k: 64, head_dim_v: 32, n_swa: N_SWA, swa: vec![false, true, false] };
    KvCache::new(
        &shape,
        CacheOptions { n_ctx, n_ubatch, ty_k: ty, ty_v: ty },
        &vec![BufferType::cpu(); shape.swa.len()],
    )
    .unwrap()
}

/// Gives every row that the next `n` tokens have random bytes.
fn append(cache: &mut KvCache, n: usize, seed: u64) {
    let mut random = Random(seed);
    for p in cache.n_past..cache.n_past + n {
        let rows = cache.rows(&[p as u32], &[0, 1, 2]);
        for (il, rows) in rows.chunks(cache.n_head_kv).enumerate() {
            for &row in rows {
                for (keys, t) in [(true, &cache.layers[il].k), (false, &cache.layers[il].v)] {
                    let stride = cache.row_bytes(keys);
                    let bytes: Vec<u8> = (0..stride).map(|_| random.bits() as u8 & 0x3f).collect();
                    t.write(row as usize * stride, &bytes).unwrap();
                }
            }
        }
        cache.advance(1);
    }
}

/// Every other token of each dense layer is left, one of them a new entry with a bias.
fn compress(cache: &mut KvCache, n_prompt: usize, bias: f32) {
    for il in [0, 2] {
        let head = |g: usize| {
            let mut head = HeadPlan::keep((0..n_prompt as u32).step_by(2 + g));
            head.entries.push(Entry { key: Row::New(0), value: Row::New(0), bias, n_tokens: 3 });
            (head.new_keys, head.new_values) = (vec![0.5; 64], vec![0.25; 32]);
            head
        };
        let mirror = Mirror::new(cache);
        cache.rewrite(&LayerPlan { il, heads: vec![head(0), head(1)] }, 0, n_prompt, 8, &mirror).unwrap();
    }
}

/// The bytes of all rows in use, and the biases of all entries.
fn contents(cache: &KvCache, n_ring: usize) -> (Vec<Vec<u8>>, Vec<Vec<f32>>) {
    let mut rows = Vec::new();
    let mut biases = Vec::new();
    for (il, layer) in cache.layers.iter().enumerate() {
        let held = match cache.held(il) {
            Held::Ring(_) => Held::Ring(n_ring.min(cache.n_past)),
            other => other,
        };
        for g in 0..cache.n_head_kv {
            for (keys, t) in [(true, &layer.k), (false, &layer.v)] {
                let stride = cache.row_bytes(keys);
                let mut head = Vec::new();
                for chunk in cache.used(il, g, &held) {
                    let mut bytes = vec![0; chunk.n * stride];
                    t.read(chunk.row * stride, &mut bytes).unwrap();
                    head.extend(bytes);
                }
                rows.push(head);
            }
            if let (Layout::Pool(heads), false) = (&layer.layout, layer.bias.is_empty()) {
                biases.push(layer.bias[heads[g].row..][..heads[g].n_entries].to_vec());
            }
        }
    }
    (rows, biases)
}

fn identity() -> Identity {
    Identity { model: "0123".into(), kv: "f16 keys and f16 values".into(), compression: "none".into() }
}

fn state(n: usize) -> State {
    State {
        identity: identity(),
        sampling: "greedy".into(),
        n_given: n - 1,
        n_whole: n - 1,
        tokens: (0..n).map(|i| (i * 7 % N_VOCAB) as u32).collect(),
        marks: vec![Mark { n_tokens: n, logits: (0..N_VOCAB).map(|i| i as f32 / 3.0).collect() }],
    }
}

fn saved(cache: &KvCache) -> Vec<u8> {
    let mut bytes = Vec::new();
    state(cache.n_past()).write(cache, &mut bytes).unwrap();
    bytes
}

fn open(bytes: &[u8], cache: &KvCache) -> Result<StateFile> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    StateFile::open(file.path(), &identity(), cache, N_VOCAB)
}

fn refusal(bytes: &[u8], cache: &KvCache) -> String {
    let text = open(bytes, cache).map(|_| ()).unwrap_err().to_string();
    assert!(!text.contains('\n'), "{text}");
    text
}

/// The file with a changed header and a right checksum, as somebody who wants to do harm would make it.
fn forged(bytes: &[u8], change: impl Fn(&mut serde_json::Value)) -> Vec<u8> {
    let n = u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
    let mut header = serde_json::from_slice(&bytes[16..16 + n]).unwrap();
    change(&mut header);
    let text = serde_json::to_vec(&header).unwrap();
    let mut out = bytes[..12].to_vec();
    out.extend((text.len() as u32).to_le_bytes());
    out.extend(text);
    out.extend(&bytes[16 + n..bytes.len() - 8]);
    sealed(out)
}

fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.extend(xxh3_64(&bytes).to_le_bytes());
    bytes
}

/// A cache with all kinds of layers, compressed or not, long enough that its ring has gone round.
fn filled(ty: Type, bias: Option<f32>) -> KvCache {
    let mut cache = empty(ty, 1024, 64);
    append(&mut cache, 700, 1);
    if let Some(bias) = bias {
        compress(&mut cache, 600, bias);
        append(&mut cache, 5, 2);
    }
    cache
}

#[test]
fn a_loaded_cache_holds_what_was_saved() {
    for ty in [Type::F16, Type::F32, Type::Q8_0, Type::Q4_0] {
        for bias in [None, Some(0.0), Some(1.5)] {
            let cache = filled(ty, bias);
            // Another context, and a ring that is shorter or longer.
            for (n_ctx, n_ubatch) in [(1024, 64), (2048, 1), (705, 512)] {
                let mut loaded = empty(ty, n_ctx, n_ubatch);
                let file = open(&saved(&cache), &loaded).unwrap();
                assert_eq!(file.n_compressed(), if bias.is_some() { 600 } else { 0 });
                let found = file.load(&mut loaded, 3).unwrap();
                assert_eq!(found, state(cache.n_past()));
                assert_eq!((loaded.n_past(), loaded.is_compressed()), (cache.n_past(), bias.is_some()));
                let n_ring = N_SWA - 1;
                assert_eq!(contents(&loaded, n_ring), contents(&cache, n_ring), "{ty} {bias:?} {n_ctx} {n_ubatch}");
                let has_bias = loaded.layers.iter().any(|l| !l.bias.is_empty());
                assert_eq!(has_bias, bias.is_some_and(|b| b != 0.0));
                if bias.is_some() {
                    assert_eq!(loaded.room(), 3);
                }
            }
        }
    }
}

#[test]
fn a_loaded_window_is_taken_back_only_as_far_as_it_reaches() {
    let cache = filled(Type::F16, None);
    let mut loaded = empty(Type::F16, 1024, 512);
    open(&saved(&cache), &loaded).unwrap().load(&mut loaded, 0).unwrap();
    let reach = cache.n_ring() - N_SWA;
    assert!(loaded.n_ring() > cache.n_ring() && loaded.truncate(700 - reach - 1).is_err());
    loaded.truncate(700 - reach).unwrap();
    assert_eq!(loaded.n_past(), 700 - reach);
}

#[test]
fn a_damaged_file_is_refused() {
    let mut cache = empty(Type::F16, 64, 1);
    append(&mut cache, 10, 3);
    let bytes = saved(&cache);
    let empty = empty(Type::F16, 64, 1);
    open(&bytes, &empty).unwrap();
    for n in (0..bytes.len()).step_by(37).chain([bytes.len() - 1]) {
        assert!(refusal(&bytes[..n], &empty).contains("prompt cache"), "{n}");
    }
    for at in (0..bytes.len()).step_by(101) {
        let mut wrong = bytes.clone();
        wrong[at] ^= 0x10;
        refusal(&wrong, &empty);
    }
    let mut longer = bytes.clone();
    longer.push(0);
    refusal(&longer, &empty);
    assert!(
        refusal(b"GGSN, a session of llama.cpp, of some length", &empty).contains("no prompt cache of this program")
    );
    let mut newer = bytes[..bytes.len() - 8].to_vec();
    newer[8] = VERSION as u8 + 1;
    let want = format!("its version is {}, expected {VERSION}", VERSION + 1);
    assert!(refusal(&sealed(newer), &empty).contains(&want));
}

/// Numbers that ask for more than the file has, which is where saved states were attacked (CVE-2026-43629).
#[test]
fn a_forged_header_is_refused_before_anything_is_allocated() {
    let bytes = saved(&filled(Type::F16, Some(1.0)));
    let cache = empty(Type::F16, 1024, 64);
    open(&forged(&bytes, |_| ()), &cache).unwrap();
    let huge = [0u64, 1, 599, 1 << 31, 1 << 32, (1 << 62) + 1, u64::MAX];
    let fields = ["n_tokens", "n_compressed", "n_vocab", "n_given", "n_whole"];
    for n in huge {
        for field in fields {
            if field == "n_given" && n <= 705 {
                continue; // Where the answer begins is free.
            }
            refusal(&forged(&bytes, |h| h[field] = n.into()), &cache);
        }
        refusal(&forged(&bytes, |h| h["marks"] = vec![n, n, n].into()), &cache);
        refusal(&forged(&bytes, |h| h["layers"][1]["ring"] = n.into()), &cache);
        refusal(&forged(&bytes, |h| h["layers"][0]["pool"]["entries"][1] = n.into()), &cache);
        refusal(&forged(&bytes, |h| h["layers"][0]["pool"]["entries"] = vec![n; 3].into()), &cache);
    }
    for n in [serde_json::json!(-1), serde_json::json!(1.5), serde_json::json!("9"), serde_json::Value::Null] {
        refusal(&forged(&bytes, |h| h["n_tokens"] = n.clone()), &cache);
    }
    refusal(&forged(&bytes, |h| h["layers"][0]["pool"]["bias"] = false.into()), &cache);
    refusal(&forged(&bytes, |h| h["layers"][0] = "dense".into()), &cache);
    refusal(&forged(&bytes, |h| h["layers"][1] = "dense".into()), &cache);
    refusal(&forged(&bytes, |h| h["layers"] = serde_json::json!([])), &cache);
    let mut wrong = bytes[..bytes.len() - 8].to_vec();
    wrong[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(refusal(&sealed(wrong), &cache).contains("longer than the file"));
}

#[test]
fn what_does_not_fit_is_named() {
    let mut cache = empty(Type::F16, 64, 1);
    append(&mut cache, 10, 3);
    let bytes = saved(&cache);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &bytes).unwrap();
    let refusal = |other: Identity| {
        let text = StateFile::open(file.path(), &other, &cache, N_VOCAB).map(|_| ()).unwrap_err().to_string();
        assert!(text.starts_with(&file.path().display().to_string()), "{text}");
        text
    };
    assert!(refusal(Identity { model: "4567".into(), ..identity() }).contains("another model"));
    let text = refusal(Identity { kv: "q8_0 keys and f16 values".into(), ..identity() });
    assert!(text.contains("holds f16 keys and f16 values, this run q8_0 keys and f16 values"), "{text}");
    let text = refusal(Identity { compression: "gracekv 32".into(), ..identity() });
    assert!(text.contains("compression 'none', this run has 'gracekv 32'"), "{text}");
    let text = open(&bytes, &empty(Type::F16, 9, 1)).map(|_| ()).unwrap_err().to_string();
    assert!(text.contains("10 tokens, the context 9; use -c 10"), "{text}");
}

#[test]
fn a_state_says_only_what_the_cache_holds() {
    let mut cache = empty(Type::F16, 64, 1);
    append(&mut cache, 10, 3);
    assert!(state(11).write(&cache, Vec::new()).is_err());
}
