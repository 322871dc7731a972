//! Every class of malformed file, built byte by byte: each is refused with the byte offset and the field.

use std::path::Path;

use crate::error::Error;
use crate::gguf::read::parse;
use crate::gguf::{Array, Gguf, Value};

fn str(s: &[u8]) -> Vec<u8> {
    [&(s.len() as u64).to_le_bytes()[..], s].concat()
}

/// A key record; `value` without the type.
fn key(key: &[u8], type_id: u32, value: &[u8]) -> Vec<u8> {
    [&str(key)[..], &type_id.to_le_bytes(), value].concat()
}

fn array(type_id: u32, n: u64, elements: &[u8]) -> Vec<u8> {
    [&type_id.to_le_bytes()[..], &n.to_le_bytes(), elements].concat()
}

fn tensor(name: &[u8], dims: &[u64], type_id: u32, offset: u64) -> Vec<u8> {
    let mut out = str(name);
    out.extend((dims.len() as u32).to_le_bytes());
    dims.iter().for_each(|d| out.extend(d.to_le_bytes()));
    out.extend(type_id.to_le_bytes());
    out.extend(offset.to_le_bytes());
    out
}

fn header(version: u32, n_tensors: u64, n_kv: u64) -> Vec<u8> {
    [&b"GGUF"[..], &version.to_le_bytes(), &n_tensors.to_le_bytes(), &n_kv.to_le_bytes()].concat()
}

/// A file with the given records and `data` bytes after the padded header.
fn file(keys: &[Vec<u8>], tensors: &[Vec<u8>], data: usize) -> Vec<u8> {
    let mut out = header(3, tensors.len() as u64, keys.len() as u64);
    out.extend([keys.concat(), tensors.concat()].concat());
    out.resize(out.len().next_multiple_of(32) + data, 0);
    out
}

/// Asserts that `bytes` are refused at byte `at` with a single line that has `what`.
#[track_caller]
fn refused(bytes: &[u8], at: u64, what: &str) {
    let error = parse(Path::new("m.gguf"), bytes, bytes.len() as u64).unwrap_err();
    let message = error.to_string();
    assert!(matches!(error, Error::Gguf { offset: Some(found), .. } if found == at), "not at {at}: {message}");
    assert!(
        message.contains(what) && message.starts_with("m.gguf: ") && !message.contains('\n'),
        "no '{what}': {message}"
    );
}

#[test]
fn header_fields() {
    refused(b"", 0, "the file is empty");
    refused(b"GG", 0, "magic of 4 bytes, the file ends after 2 more");
    refused(b"PK\x03\x04 and more", 0, r#"not a GGUF file, it starts with [50, 4b, 03, 04] "PK\x03\x04""#);
    for version in [0, 1, 4, 1 << 20] {
        refused(&header(version, 0, 0), 4, &format!("version is {version}, expected 2 or 3"));
    }
    refused(&header(3u32.swap_bytes(), 0, 0), 4, "big-endian");
    for n in [1, 1 << 40, 1 << 63, u64::MAX] {
        refused(&header(3, n, 0), 8, &format!("number of tensors is {n}, a file of 24 bytes has room for 0"));
        refused(&header(3, 0, n), 16, &format!("number of keys is {n}, a file of 24 bytes has room for 0"));
    }
    parse(Path::new("m.gguf"), &header(2, 0, 0)[..], 24).unwrap();
}

#[test]
fn keys() {
    refused(&file(&[key(b"", 0, &[1])], &[], 9), 24, "key has 0 bytes");
    refused(&file(&[key(&[b'a'; 65536], 0, &[1])], &[], 9), 24, "key has 65536 bytes");
    refused(&file(&[key(b"a\0b", 0, &[1])], &[], 9), 24, "NUL");
    refused(&file(&[key(b"a\xff", 0, &[1])], &[], 9), 24, "not UTF-8");
    refused(&file(&[key(b"a", 0, &[1]), key(b"a", 0, &[1])], &[], 0), 38, "key 'a': the key occurs twice");
    for n in [100, u64::MAX] {
        let bytes = [header(3, 0, 1), n.to_le_bytes().to_vec(), vec![b'a'; 6]].concat();
        refused(&bytes, 32, &format!("key 0: key of {n} bytes, the file ends after 6 more"));
    }
    for type_id in [13, u32::MAX] {
        refused(&file(&[key(b"a", type_id, &[1])], &[], 0), 33, &format!("key 'a': value type is {type_id}"));
    }
    let long = [b'\n'; 500];
    refused(&file(&[key(&long, 77, &[1])], &[], 0), 532, r"\n\n...'");
}

#[test]
fn values() {
    let value = |type_id, value: &[u8]| [header(3, 0, 1), key(b"a", type_id, value)].concat();
    refused(&value(7, &[2]), 37, "bool is 2, expected 0 or 1");
    refused(&value(9, &array(7, 3, &[0, 1, 9])), 51, "bool is 9");
    refused(&value(8, &str(b"\xff")), 37, "not UTF-8");
    refused(&value(8, &u64::MAX.to_le_bytes()), 45, "value of 18446744073709551615 bytes, the file ends after 0");
    refused(&value(9, &array(9, 1, &array(0, 1, &[1]))), 37, "arrays of arrays");
    refused(&value(9, &array(13, 1, &[1])), 37, "element type is 13");
    for n in [2, 1 << 40, 1 << 61, u64::MAX] {
        refused(&value(9, &array(4, n, &[1, 0, 0, 0])), 49, "array of ");
        refused(&value(9, &array(12, n, &[1, 0, 0, 0])), 49, "array of ");
        refused(&value(9, &array(8, n, &str(b""))), 49, "array of ");
    }
    refused(&value(9, &array(8, 1, &u64::MAX.to_le_bytes())), 57, "string of 18446744073709551615 bytes");
}

#[test]
fn type_ids_and_byte_order_are_the_formats() {
    let scalars = [
        (0, vec![0xfe], Value::U8(254)),
        (1, vec![0xfe], Value::I8(-2)),
        (2, vec![0xfe, 0xff], Value::U16(0xfffe)),
        (3, vec![0xfe, 0xff], Value::I16(-2)),
        (4, vec![1, 2, 3, 4], Value::U32(0x0403_0201)),
        (5, vec![0xfe, 0xff, 0xff, 0xff], Value::I32(-2)),
        (6, vec![0, 0, 0xc0, 0x3f], Value::F32(1.5)),
        (7, vec![1], Value::Bool(true)),
        (8, str(b"ab"), Value::Str("ab".into())),
        (10, vec![1, 2, 3, 4, 5, 6, 7, 0xf8], Value::U64(0xf807_0605_0403_0201)),
        (11, vec![0xfe, 255, 255, 255, 255, 255, 255, 255], Value::I64(-2)),
        (12, vec![0, 0, 0, 0, 0, 0, 0xf8, 0x3f], Value::F64(1.5)),
    ];
    for (type_id, bytes, want) in scalars {
        let pair = array(type_id, 2, &[&bytes[..], &bytes].concat());
        let bytes = file(&[key(b"one", type_id, &bytes), key(b"two", 9, &pair)], &[], 0);
        let gguf = parse(Path::new("m.gguf"), &bytes[..], bytes.len() as u64).unwrap();
        assert_eq!(gguf.value("one"), Some(&want));
        let Some(Value::Array(two)) = gguf.value("two") else { panic!("type {type_id}: no array") };
        let same = match (two, want) {
            (Array::U8(a), Value::U8(v)) => a == &[v, v],
            (Array::I8(a), Value::I8(v)) => a == &[v, v],
            (Array::U16(a), Value::U16(v)) => a == &[v, v],
            (Array::I16(a), Value::I16(v)) => a == &[v, v],
            (Array::U32(a), Value::U32(v)) => a == &[v, v],
            (Array::I32(a), Value::I32(v)) => a == &[v, v],
            (Array::F32(a), Value::F32(v)) => a == &[v, v],
            (Array::Bool(a), Value::Bool(v)) => a == &[v, v],
            (Array::Str(a), Value::Str(v)) => a.iter().eq([v.as_bytes(), v.as_bytes()]),
            (Array::U64(a), Value::U64(v)) => a == &[v, v],
            (Array::I64(a), Value::I64(v)) => a == &[v, v],
            (Array::F64(a), Value::F64(v)) => a == &[v, v],
            _ => false,
        };
        assert!(same, "arrays of type {type_id}: {two:?}");
    }
}

#[test]
fn a_huge_sparse_file_cannot_ask_for_memory() {
    let bytes = [header(3, 0, 1), key(b"a", 9, &array(0, 1 << 40, &[]))].concat();
    let error = parse(Path::new("m.gguf"), &bytes[..], 1 << 50).unwrap_err().to_string();
    assert!(error.contains("expected a header of at most"), "{error}");
}

#[test]
fn alignment() {
    let aligned = |type_id, value: &[u8]| file(&[key(b"general.alignment", type_id, value)], &[], 0);
    for n in [0u32, 3, 33, 1 << 21, u32::MAX] {
        refused(
            &aligned(4, &n.to_le_bytes()),
            24,
            &format!("key 'general.alignment': is u32 {n}, expected u32, a power of two"),
        );
    }
    refused(&aligned(10, &32u64.to_le_bytes()), 24, "is u64 32, expected u32");
    refused(&aligned(8, &str(b"32")), 24, "is str '32', expected u32");
}

#[test]
fn tensor_fields() {
    let one = |t: Vec<u8>| file(&[], &[t], 4096);
    refused(&one(tensor(b"", &[1], 0, 0)), 24, "name has 0 bytes");
    refused(&one(tensor(&[b'a'; 64], &[1], 0, 0)), 24, "name has 64 bytes");
    refused(&one(tensor(b"a\0", &[1], 0, 0)), 24, "NUL");
    refused(
        &file(&[], &[tensor(b"a", &[1], 0, 0), tensor(b"a", &[1], 0, 32)], 64),
        57,
        "tensor 'a': the name occurs twice",
    );
    refused(&one(tensor(b"a", &[], 0, 0)), 33, "has 0 dimensions");
    refused(&one(tensor(b"a", &[1; 5], 0, 0)), 33, "has 5 dimensions");
    refused(&one(tensor(b"a", &[8, 0], 0, 0)), 33, "expected no dimension of 0");
    for dims in [&[u64::MAX][..], &[1 << 63], &[1 << 32, 1 << 31], &[1 << 21; 3]] {
        refused(&one(tensor(b"a", dims, 24, 0)), 33, "expected fewer than 2^63 elements");
    }
    for n in [1 << 60, 1 << 62] {
        refused(&one(tensor(b"a", &[n], 0, 0)), 33, "size in bytes overflows");
    }
    refused(&one(tensor(b"a", &[33], 8, 0)), 33, "rows of 33 elements, expected a multiple of 32 for type q8_0");
    refused(&one(tensor(b"a", &[1], 43, 0)), 45, "type is 43, expected 0 to 42");
    refused(&one(tensor(b"a", &[32], 31, 0)), 45, "type 31 was removed from ggml: q4_0_4_4 (use q4_0)");
}

#[test]
fn tensor_data() {
    let two = |second: u64, data| file(&[], &[tensor(b"a", &[9], 0, 0), tensor(b"b", &[1], 0, second)], data);
    parse(Path::new("m.gguf"), &two(64, 68)[..], 96 + 68).unwrap();
    for offset in [0, 32, 36, 63, 96, u64::MAX] {
        refused(&two(offset, 4096), 82, &format!("tensor 'b': data offset is {offset}, expected 64"));
    }
    for data in [0, 31, 67] {
        let what = format!("tensor data: the file has {} bytes, expected at least 164; it is truncated", 96 + data);
        refused(&two(64, data), 96, &what);
    }
    let n = (1 << 61) - 32;
    let large: Vec<_> = (0..5).map(|i| tensor(&[b'a' + i], &[n], 24, n * u64::from(i))).collect();
    refused(&file(&[], &large, 0), 24 + 4 * 33 + 9, "end beyond 2^63");
}

#[test]
fn what_is_no_model_file() {
    let dir = tempfile::tempdir().unwrap();
    let message = |path: &Path| Gguf::open(path).unwrap_err().to_string();
    assert!(message(dir.path()).contains("is a directory, expected a GGUF file"));
    assert!(message(&dir.path().join("none")).contains("none: "));
    #[cfg(unix)]
    assert!(message(Path::new("/dev/null")).contains("not a regular file"));

    let path = dir.path().join("m.gguf");
    for (keys, what) in [
        (vec![], "key 'general.architecture' is missing"),
        (vec![key(b"general.architecture", 0, &[1])], "at byte 24: key 'general.architecture' is u8 1, expected str"),
        (vec![key(b"general.architecture", 8, &str(b""))], "key 'general.architecture' is empty"),
    ] {
        std::fs::write(&path, file(&keys, &[], 0)).unwrap();
        assert!(message(&path).contains(what), "{}", message(&path));
    }
}
