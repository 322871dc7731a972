//! Laws of the reader and writer: what is written is read back, and no damage to a file goes unnoticed or panics.

use std::fs;
use std::path::Path;

use super::read::parse;
use super::{Array, GgmlType, Gguf, StrArray, Value, Writer};
use crate::error::Error;

mod hostile;

/// Deterministic random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.next() as u8).collect()
    }
}

/// One value and one array of every type, with random contents.
fn all_values(random: &mut Random, n: usize) -> Vec<Value> {
    let r: Vec<u64> = (0..n).map(|_| random.next()).collect();
    let strings: StrArray = (0..n).map(|i| random.bytes(i % 7)).collect();
    let x = random.next();
    vec![
        Value::U8(x as u8),
        Value::I8(x as i8),
        Value::U16(x as u16),
        Value::I16(x as i16),
        Value::U32(x as u32),
        Value::I32(x as i32),
        Value::F32(x as f32),
        Value::Bool(x & 1 == 1),
        Value::Str(format!("{x} \u{1f980} \n")),
        Value::U64(x),
        Value::I64(x as i64),
        Value::F64(x as f64),
        Value::Array(Array::U8(r.iter().map(|&v| v as u8).collect())),
        Value::Array(Array::I8(r.iter().map(|&v| v as i8).collect())),
        Value::Array(Array::U16(r.iter().map(|&v| v as u16).collect())),
        Value::Array(Array::I16(r.iter().map(|&v| v as i16).collect())),
        Value::Array(Array::U32(r.iter().map(|&v| v as u32).collect())),
        Value::Array(Array::I32(r.iter().map(|&v| v as i32).collect())),
        Value::Array(Array::F32(r.iter().map(|&v| v as f32).collect())),
        Value::Array(Array::Bool(r.iter().map(|&v| v & 1 == 1).collect())),
        Value::Array(Array::Str(strings)),
        Value::Array(Array::U64(r.clone())),
        Value::Array(Array::I64(r.iter().map(|&v| v as i64).collect())),
        Value::Array(Array::F64(r.iter().map(|&v| v as f64).collect())),
    ]
}

/// A model with every value type and a tensor of every element type, and the tensors' data.
fn rich_model(random: &mut Random, n: usize, alignment: Option<u32>) -> (Writer, Vec<Vec<u8>>) {
    let mut w = Writer::new();
    w.set("general.architecture", "test").unwrap();
    if let Some(alignment) = alignment {
        w.set("general.alignment", alignment).unwrap();
    }
    for (i, value) in all_values(random, n).into_iter().enumerate() {
        w.set(&format!("test.{i}"), value).unwrap();
    }
    let mut data = Vec::new();
    for ty in GgmlType::all() {
        let dims = [ty.block_size(), 1 + random.next() % 3, 1, 2];
        let n_dims = 1 + (random.next() % 4) as usize;
        w.add_tensor(ty.name(), ty, &dims[..n_dims]).unwrap();
        let rows: u64 = dims[1..n_dims].iter().product();
        data.push(random.bytes((rows * ty.type_size()) as usize));
    }
    (w, data)
}

fn write(w: &Writer, path: &Path, data: &[Vec<u8>]) {
    let mut data = data.iter();
    w.write(path, |_| Ok(data.next().unwrap())).unwrap();
}

#[test]
fn what_is_written_is_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let mut random = Random(1);
    for (n, alignment) in [(0, None), (1, Some(1)), (9, Some(8)), (70, Some(4096)), (5000, None)] {
        let (w, data) = rich_model(&mut random, n, alignment);
        write(&w, &path, &data);
        let gguf = Gguf::open(&path).unwrap();
        let file = fs::read(&path).unwrap();

        let written: Vec<_> = w.metadata.iter().map(|(k, v)| (k.as_str(), v)).collect();
        assert_eq!(gguf.keys().collect::<Vec<_>>(), written);
        assert_eq!(gguf.tensors().len(), data.len());
        for ((t, declared), bytes) in gguf.tensors().iter().zip(&w.tensors).zip(&data) {
            assert_eq!((&t.name, t.ty, t.ne, t.n_dims), (&declared.name, declared.ty, declared.ne, declared.n_dims));
            assert_eq!(t.offset % u64::from(alignment.unwrap_or(32)), 0);
            assert_eq!(&file[t.offset as usize..][..t.n_bytes as usize], bytes);
            assert_eq!(gguf.tensor(&t.name), Some(t));
        }

        let mut copy = Writer::new();
        gguf.keys().for_each(|(k, v)| copy.set(k, v.clone()).unwrap());
        for t in gguf.tensors() {
            copy.add_tensor(&t.name, t.ty, &t.ne[..t.n_dims as usize]).unwrap();
        }
        write(&copy, &path, &data);
        assert_eq!(fs::read(&path).unwrap(), file, "a copy has the same bytes");
    }
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 1, "no temporary file is left");
}

#[test]
fn a_failed_write_leaves_the_old_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    fs::write(&path, "old").unwrap();
    let mut w = Writer::new();
    w.add_tensor("a", GgmlType::F32, &[2]).unwrap();
    assert!(matches!(w.write(&path, |_| Ok([0; 7])), Err(Error::Shape { .. })));
    assert_eq!(fs::read(&path).unwrap(), b"old");
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
}

#[test]
fn every_truncation_is_an_error() {
    let file = small_file();
    for n in (0..file.len()).step_by(if cfg!(miri) { 101 } else { 1 }) {
        assert!(parse(Path::new("m.gguf"), &file[..n], n as u64).is_err(), "cut after {n} of {} bytes", file.len());
    }
    parse(Path::new("m.gguf"), &file[..], file.len() as u64).unwrap();
}

#[test]
fn no_change_of_bytes_panics() {
    let file = small_file();
    let mut random = Random(2);
    let mut accepted = 0;
    let n = if cfg!(miri) { 30 } else { 10_000 };
    for _ in 0..n {
        let mut damaged = file.clone();
        for _ in 0..=random.next() % 3 {
            let at = random.next() as usize % file.len();
            damaged[at] = random.next() as u8;
        }
        let Ok(gguf) = parse(Path::new("m.gguf"), &damaged[..], damaged.len() as u64) else {
            continue;
        };
        accepted += 1;
        for (key, value) in gguf.keys() {
            let _ = (gguf.u32(key), gguf.u64(key), gguf.f32(key), gguf.bool(key), gguf.str(key));
            let _ = (gguf.str_array(key), gguf.f32_array(key), gguf.i32_array(key), gguf.bool_array(key));
            assert!(!value.to_string().contains('\n'));
        }
        for t in gguf.tensors() {
            assert!(t.offset + t.n_bytes <= damaged.len() as u64, "the data is in the file");
        }
    }
    assert!(accepted > n / 100 || cfg!(miri), "changes of mere values are accepted, {accepted} were");
}

/// All value types and two tensors, without padding at its end.
fn small_file() -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let mut w = Writer::new();
    for (i, value) in all_values(&mut Random(3), 2).into_iter().enumerate() {
        w.set(&format!("k{i}"), value).unwrap();
    }
    w.add_tensor("a", GgmlType::F32, &[3, 2]).unwrap();
    w.add_tensor("b", GgmlType::Q8_0, &[32]).unwrap();
    w.write(&path, |t| Ok(vec![7; t.n_bytes as usize])).unwrap();
    let gguf = parse(&path, &fs::read(&path).unwrap()[..], u64::MAX).unwrap();
    let last = &gguf.tensors()[1];
    let mut file = fs::read(&path).unwrap();
    file.truncate((last.offset + last.n_bytes) as usize);
    file
}

#[test]
fn typed_access_converts_only_what_fits() {
    let mut w = Writer::new();
    w.set("general.architecture", "test").unwrap();
    let numbers = |v: &[i64]| Value::Array(Array::I64(v.to_vec()));
    for (key, value) in [
        ("u8", Value::U8(200)),
        ("i64", Value::I64(200)),
        ("negative", Value::I8(-1)),
        ("large", Value::U64(1 << 40)),
        ("f32", Value::F32(1.5)),
        ("f64", Value::F64(1.5)),
        ("bool", Value::Bool(true)),
        ("fit", numbers(&[-5, i32::MAX.into()])),
        ("wide", numbers(&[1 << 31])),
    ] {
        w.set(key, value).unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    write(&w, &path, &[]);
    let mut gguf = Gguf::open(&path).unwrap();

    for key in ["u8", "i64"] {
        assert_eq!((gguf.u32(key).unwrap(), gguf.u64(key).unwrap()), (Some(200), Some(200)));
    }
    assert_eq!((gguf.f32("f32").unwrap(), gguf.f32("f64").unwrap()), (Some(1.5), Some(1.5)));
    assert_eq!((gguf.u64("large").unwrap(), gguf.bool("bool").unwrap()), (Some(1 << 40), Some(true)));
    assert_eq!(gguf.i32_array("fit").unwrap().unwrap(), [-5, i32::MAX]);
    assert_eq!(gguf.arch_key("block_count"), "test.block_count");

    for key in ["negative", "large", "f32", "bool", "fit", "general.architecture"] {
        let message = gguf.u32(key).unwrap_err().to_string();
        assert!(message.contains(&format!("key '{key}' is {}", gguf.value(key).unwrap())), "{message}");
    }
    assert!(gguf.i32_array("wide").is_err() && gguf.f32("u8").is_err() && gguf.str("u8").is_err());
    assert_eq!(gguf.u32("absent").unwrap(), None);
    assert!(gguf.require_u32("absent").unwrap_err().to_string().contains("'absent' is missing"));

    gguf.set_override("u8", 7u32.into()).unwrap();
    gguf.set_override("new", "x".into()).unwrap();
    assert_eq!((gguf.u32("u8").unwrap(), gguf.str("new").unwrap()), (Some(7), Some("x")));
    for key in ["general.architecture", "general.alignment", "split.no", "", "a\0b"] {
        assert!(gguf.set_override(key, 7u32.into()).is_err(), "{key:?}");
    }
}

#[test]
fn element_types_have_their_own_id_and_name() {
    let all: Vec<_> = GgmlType::all().collect();
    assert_eq!(all.len(), 35);
    assert!(all.iter().all(|t| GgmlType::from_id(t.id()) == Some(*t) && t.type_size() > 0));
    let named =
        [(GgmlType::Q4_K, "q4_K"), (GgmlType::BF16, "bf16"), (GgmlType::TQ2_0, "tq2_0"), (GgmlType::Q2_0, "q2_0")];
    for (ty, name) in named {
        assert_eq!(ty.name(), name);
    }
    assert_eq!(GgmlType::Q4_K.n_bytes(&[512, 3, 1, 1]), Some(2 * 144 * 3));
    assert_eq!(GgmlType::Q4_K.n_bytes(&[128, 1, 1, 1]), None);
    assert_eq!(GgmlType::F64.n_bytes(&[u64::MAX, 1, 1, 1]), None);
}

#[test]
fn splits_are_followed_and_checked() {
    let dir = tempfile::tempdir().unwrap();
    let part = |no: u16| dir.path().join(format!("m-{:05}-of-00003.gguf", no + 1));
    let total = std::cell::Cell::new(3i32);
    // Writes part `file` saying that it is `no` of `count`, with one tensor.
    let write_part = |file: u16, no: u16, count: u16, arch: &str, tensor: &str| {
        let mut w = Writer::new();
        w.set("general.architecture", arch).unwrap();
        w.set("split.no", Value::U16(no)).unwrap();
        w.set("split.count", Value::U16(count)).unwrap();
        w.set("split.tensors.count", total.get()).unwrap();
        w.add_tensor(tensor, GgmlType::F32, &[1]).unwrap();
        write(&w, &part(file), &[vec![file as u8; 4]]);
    };
    let open = || Gguf::open(&part(0));
    let refused = |names: u16, what: &str| {
        let message = open().unwrap_err().to_string();
        assert!(message.starts_with(&*part(names).to_string_lossy()) && message.contains(what), "{message}");
    };

    (0..3).for_each(|i| write_part(i, i, 3, "test", &format!("t{i}")));
    let gguf = open().unwrap();
    assert_eq!(gguf.files(), [part(0), part(1), part(2)]);
    for (i, t) in gguf.tensors().iter().enumerate() {
        assert_eq!((&t.name, t.file), (&format!("t{i}"), i));
        assert_eq!(fs::read(&gguf.files()[t.file]).unwrap()[t.offset as usize], i as u8);
    }

    let message = Gguf::open(&part(1)).unwrap_err().to_string();
    assert!(message.contains("part 2 of 3") && message.contains("m-00001-of-00003.gguf"), "{message}");
    write_part(1, 2, 3, "test", "t1");
    refused(1, "split.no is 2, expected 1");
    write_part(1, 1, 4, "test", "t1");
    refused(1, "split.count is 4, expected 3");
    write_part(1, 1, 3, "other", "t1");
    refused(1, "'other', expected 'test'");
    write_part(1, 1, 3, "test", "t0");
    refused(1, "tensor 't0' is also in an earlier part");
    fs::write(part(1), "GGUF").unwrap();
    refused(1, "version of 4 bytes");
    fs::remove_file(part(1)).unwrap();
    refused(1, "part 2 of 3 of the model is missing");
    write_part(1, 1, 3, "test", "t1");
    write_part(0, 0, 2, "test", "t0");
    refused(0, "must end in '-00001-of-00002.gguf'");
    total.set(4);
    write_part(0, 0, 3, "test", "t0");
    refused(0, "split.tensors.count is 4, the 3 parts have 3 tensors");
    total.set(3);
    write_part(0, 0, 3, "test", "t0");
    open().unwrap();
}
