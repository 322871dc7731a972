//! Escape sequences in prompts (`-e`). Source: `string_process_escapes` in llama.cpp `common/common.cpp`.

/// Replaces `\n \r \t \' \" \\` and `\xHH`; anything else behind a backslash stays as it is.
///
/// Works on bytes, since `\xHH` may stand for a part of a character.
pub fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, behind)) = rest.split_first() {
        let (bytes, n_read): (&[u8], usize) = match (byte, behind) {
            (b'\\', [b'n', ..]) => (b"\n", 2),
            (b'\\', [b'r', ..]) => (b"\r", 2),
            (b'\\', [b't', ..]) => (b"\t", 2),
            (b'\\', [b'\'', ..]) => (b"'", 2),
            (b'\\', [b'"', ..]) => (b"\"", 2),
            (b'\\', [b'\\', ..]) => (b"\\", 2),
            (b'\\', [b'x', high, low, ..]) => match (hex(*high), hex(*low)) {
                (Some(high), Some(low)) => (&[high << 4 | low], 4),
                _ => (b"\\x", 2),
            },
            (b'\\', [_, ..]) => (&rest[..2], 2),
            _ => (&rest[..1], 1),
        };
        out.extend_from_slice(bytes);
        rest = &rest[n_read..];
    }
    out
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|d| d as u8)
}

/// Bytes as text; each of those that are no UTF-8 becomes U+FFFD.
pub fn lossy(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        out.push_str(chunk.valid());
        out.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_are_those_of_llama_cpp() {
        for (from, to) in [
            (r#"a\nb\rc\td\'e\"f\\n"#, "a\nb\rc\td'e\"f\\n".as_bytes()),
            (r"\x41\xe2\x82\xac\x4", "A€\\x4".as_bytes()),
            (r"\xff\xzz\x", b"\xff\\xzz\\x"),
            (r"\q\é\", "\\q\\é\\".as_bytes()),
            ("", b""),
        ] {
            assert_eq!(unescape(from.as_bytes()), to, "{from}");
        }
    }
}
