//! Which file of a repository is meant: by quantisation, and with all parts of a split one.
//!
//! Source: llama.cpp `common/download.cpp` (`find_best_model`, `get_gguf_split_info`).

/// Quantisations that are taken when none is asked for, best first.
const DEFAULT_TAGS: [&str; 2] = ["Q4_K_M", "Q8_0"];
/// Parts of names of GGUF files that are no language model of their own.
const NO_MODEL: [&str; 6] = ["mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-"];

/// What the name of a GGUF file says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Name<'a> {
    /// The path up to the number of the part.
    pub prefix: &'a str,
    /// Quantisation in capitals; empty without one.
    pub tag: String,
    /// Number of this part, from 1.
    pub index: u32,
    /// Number of all parts.
    pub count: u32,
}

/// Reads the name of a GGUF file; `None` for any other file.
pub(super) fn name(path: &str) -> Option<Name<'_>> {
    let stem = path.strip_suffix(".gguf")?;
    let (prefix, index, count) = split(stem).unwrap_or((stem, 1, 1));
    let word = prefix.rsplit(['-', '.']).next().filter(|w| w.len() < prefix.len());
    let tag = word.filter(|w| !w.is_empty() && w.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'));
    Some(Name { prefix, tag: tag.unwrap_or("").to_ascii_uppercase(), index, count })
}

/// `PREFIX-00001-of-00003`.
fn split(stem: &str) -> Option<(&str, u32, u32)> {
    let digits = |s: &str| (s.len() == 5 && s.bytes().all(|b| b.is_ascii_digit())).then(|| s.parse().ok()).flatten();
    let (rest, count) = stem.rsplit_once('-')?;
    let (rest, of) = rest.rsplit_once('-')?;
    let (prefix, index) = rest.rsplit_once('-')?;
    (of.eq_ignore_ascii_case("of") && !prefix.is_empty()).then_some((prefix, digits(index)?, digits(count)?))
}

pub(super) fn is_model(path: &str) -> bool {
    let file = path.rsplit('/').next().unwrap_or(path);
    path.ends_with(".gguf") && !NO_MODEL.iter().any(|part| file.contains(part))
}

/// The file for this tag, in any case of letters; without a tag Q4_K_M, else Q8_0, else the first model.
pub(super) fn best<'a>(paths: &[&'a str], tag: &str) -> Option<&'a str> {
    let first_parts = || paths.iter().copied().filter(|p| is_model(p) && name(p).is_some_and(|n| n.index == 1));
    let has = |path: &str, tag: &str| {
        let (path, tag) = (path.to_ascii_uppercase(), tag.to_ascii_uppercase());
        path.match_indices(&tag).any(|(at, _)| path[at + tag.len()..].starts_with(['.', '-']))
    };
    let tags: &[&str] = if tag.is_empty() { &DEFAULT_TAGS } else { &[tag] };
    let tagged = tags.iter().find_map(|tag| first_parts().find(|path| has(path, tag)));
    tagged.or_else(|| first_parts().next().filter(|_| tag.is_empty()))
}

/// The paths of all parts of the split that `first` begins, in order; only itself when it is no split.
pub(super) fn all_parts(first: &str) -> Vec<String> {
    match name(first) {
        Some(n) if n.count > 1 => {
            (1..=n.count).map(|i| format!("{}-{i:05}-of-{:05}.gguf", n.prefix, n.count)).collect()
        }
        _ => vec![first.to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_quantisation_and_part() {
        for (path, want) in [
            ("a/model-Q4_K_M.gguf", Some(("a/model-Q4_K_M", "Q4_K_M", 1, 1))),
            ("model.q8_0.gguf", Some(("model.q8_0", "Q8_0", 1, 1))),
            ("m-Q6_K-00002-of-00003.gguf", Some(("m-Q6_K", "Q6_K", 2, 3))),
            ("model.gguf", Some(("model", "", 1, 1))),
            ("00001-of-00002.gguf", Some(("00001-of-00002", "00002", 1, 1))),
            ("README.md", None),
        ] {
            let got = name(path);
            assert_eq!(got.as_ref().map(|n| (n.prefix, n.tag.as_str(), n.index, n.count)), want, "{path}");
        }
        assert_eq!(all_parts("m-00001-of-00002.gguf"), ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]);
        assert_eq!(all_parts("https://h/m.gguf?x"), ["https://h/m.gguf?x"]);
    }

    #[test]
    fn the_best_file_is_that_of_the_tag() {
        let all = [
            "README.md",
            "mmproj-Q4_K_M.gguf",
            "m-F16.gguf",
            "m-q8_0.gguf",
            "m-Q4_K_M-00002-of-00002.gguf",
            "m-Q4_K_M-00001-of-00002.gguf",
        ];
        assert_eq!(best(&all, ""), Some("m-Q4_K_M-00001-of-00002.gguf"));
        assert_eq!(best(&all[..4], ""), Some("m-q8_0.gguf"));
        assert_eq!(best(&all[..3], ""), Some("m-F16.gguf"));
        assert_eq!(best(&all, "f16"), Some("m-F16.gguf"));
        assert_eq!(best(&all, "Q8_0"), Some("m-q8_0.gguf"));
        assert_eq!((best(&all, "Q2_K"), best(&all, "Q4_K"), best(&all[..2], "")), (None, None, None));
    }
}
