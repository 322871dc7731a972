use super::*;
use std::collections::BTreeSet;

/// A tokenizer that is at hand everywhere: letters and digits in pieces of up to three, everything else alone.
fn count(sample: &Sample) -> Result<usize> {
    let mut n = 0;
    let mut run = 0;
    for c in sample.text().chars() {
        run = if c.is_alphanumeric() { run + 1 } else { 0 };
        n += usize::from(run % 3 == 1 || run == 0 && c != ' ');
    }
    Ok(n)
}

fn sample(task: &Task, n_tokens: usize, seed: u64, index: usize) -> Sample {
    task.sample(&Haystack::filler(), seed, index, n_tokens, count).unwrap()
}

#[test]
fn the_length_is_met_closely_and_never_exceeded() {
    for task in TASKS {
        for n_tokens in [300, 999, 4096, 20_000] {
            let n = count(&sample(task, n_tokens, 1, 1)).unwrap();
            assert!(n <= n_tokens && n_tokens - n <= 12, "{}: {n} of {n_tokens} tokens", task.name);
        }
        let error = task.sample(&Haystack::filler(), 1, 1, 20, count).unwrap_err().to_string();
        assert!(error.contains(task.name) && error.contains("--length 20"), "{error}");
    }
}

#[test]
fn the_same_seed_gives_the_same_sample_and_others_differ() {
    for task in TASKS {
        let mut seen = BTreeSet::new();
        for (seed, index) in [(1, 1), (1, 2), (2, 1), (1, 1_000_000)] {
            let one = sample(task, 600, seed, index);
            assert_eq!(one, sample(task, 600, seed, index));
            assert!(seen.insert(one.answers), "{}", task.name);
        }
    }
}

#[test]
fn the_answers_stand_in_the_context_alone() {
    for task in TASKS {
        for index in 1..20 {
            let s = sample(task, 700, 5, index);
            assert!(!s.answers.is_empty());
            for answer in &s.answers {
                assert!(s.context.contains(answer.as_str()), "{}: {answer}", task.name);
                assert!(!s.question.contains(answer.as_str()) && !s.answer_prefix.contains(answer.as_str()));
            }
        }
    }
}

fn occurrences(text: &str, word: &str) -> usize {
    text.split(|c: char| !c.is_alphabetic()).filter(|w| *w == word).count()
}

#[test]
fn common_and_frequent_words_are_what_they_are_called() {
    for name in ["cwe", "fwe"] {
        for n_tokens in [300, 1000, 5000, 40_000] {
            let s = sample(by_name(name).unwrap(), n_tokens, 3, 1);
            let (_, list) = s.context.split_once('\n').unwrap();
            let words: BTreeSet<&str> = list.split(|c: char| !c.is_alphabetic()).filter(|w| !w.is_empty()).collect();
            let least = s.answers.iter().map(|a| occurrences(list, a)).min().unwrap();
            let others = words.iter().filter(|w| !s.answers.iter().any(|a| a == *w));
            let most = others.map(|w| occurrences(list, w)).max().unwrap();
            assert!(least > most, "{name} at {n_tokens}: {least} against {most}");
            assert!(name == "fwe" || n_tokens < 1000 || least >= 7 * most, "{name} at {n_tokens}: {least}, {most}");
        }
    }
}

#[test]
fn names_of_lines_are_unique_and_a_chain_leads_from_its_number() {
    let lines = sample(by_name("line_retrieval").unwrap(), 200_000, 1, 1).context;
    let names: Vec<&str> = lines.lines().skip(1).map(|l| l.split(' ').nth(3).unwrap()).collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
    assert!(names.len() > 8640, "{}", names.len());

    let vt = sample(by_name("vt").unwrap(), 600, 1, 1);
    for pair in vt.answers.windows(2) {
        assert!(vt.context.contains(&format!("VAR {} = VAR {}.", pair[1], pair[0])));
    }
}

#[test]
fn the_largest_size_is_found_whatever_the_slope() {
    for f in [|n: usize| 40 + n, |n| 40 + 7 * n, |n| 40 + n + n * n / 90, |n| 40 + n + n / 100 * 300] {
        for n_tokens in [40, 41, 100, 5000, 70_000] {
            let size = largest(n_tokens, |n| Ok(f(n))).unwrap().unwrap();
            assert!(f(size) <= n_tokens && (f(size + 1) > n_tokens), "{size} for {n_tokens}");
        }
        assert_eq!(largest(39, |n| Ok(f(n))).unwrap(), Err(40));
    }
}
