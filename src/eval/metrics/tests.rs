use super::*;

fn strings(all: &[&str]) -> Vec<String> {
    all.iter().map(|&s| s.to_owned()).collect()
}

fn score(metric: Metric, text: &str, answers: &[&str]) -> f64 {
    metric.score(text, &strings(answers), &[])
}

/// Computed by hand from the definitions.
#[test]
fn values_are_those_of_the_definitions() {
    use Metric::*;
    for (metric, text, answers, want) in [
        (StringMatchAll, "are 17, 4 and abc", &["17", "ABC", "9", "4"][..], 0.75),
        (StringMatchPart, "are 17 and abc", &["9", "ABC"], 1.0),
        (StringMatchPart, "nothing", &["9", "ABC"], 0.0),
        // 2 of 4 words, the quotation marks among them, against 2 of 4: articles and ASCII punctuation are gone.
        (F1, "The Red, “a” dog!", &["red dog barks the loud"], 0.5),
        (F1, "red red", &["red"], 2.0 / 3.0),
        (F1, "blue", &["red", "blue sky"], 2.0 / 3.0),
        (F1, "thea", &["the a"], 0.0),
        (Count, "There are 12, or 7, or 12.", &["12"], 2.0 / 3.0),
        (Count, "none", &["12"], 0.0),
        (Retrieval, "Paragraph 5, not 15", &["Paragraph 5"], 0.5),
        (Retrieval, "5", &["Paragraph x, Paragraph 5"], 1.0),
        (Retrieval, "5", &["5"], 0.0),
        (CodeSim, "\n# comment\n```\nreturn x + 1\nmore", &["return x + 2"], 0.92),
        (CodeSim, "for i in range(10):", &["for j in range(n):"], 0.86),
        (CodeSim, "abc", &["abcd"], 0.86),
        (CodeSim, "// none", &["abcd"], 0.0),
    ] {
        let got = score(metric, text, answers);
        assert!((got - want).abs() < 1e-12, "{metric:?} of {text:?}: {got}, not {want}");
    }
}

#[test]
fn a_class_is_shared_with_the_others_that_are_named() {
    let classes = strings(&["food", "other animal", "animal", "dog animal"]);
    let of = |text: &str, answer: &str| Metric::Classification.score(text, &strings(&[answer]), &classes);
    assert_eq!(of("It is food.", "food"), 1.0);
    assert_eq!(of("food or animal", "food"), 0.5);
    assert_eq!(of("It is food.", "animal"), 0.0);
    // A class that is part of the right one does not count against it.
    assert_eq!(of("other animal", "other animal"), 1.0);
    assert_eq!(Metric::Classification.chance(&classes), 0.25);
}

/// From the Python package: `Rouge().get_scores([text], [answer])[0]["rouge-l"]["f"]` of `rouge` 1.0.1.
#[test]
fn rouge_l_is_that_of_the_package() {
    for (text, answer, want) in [
        ("the cat sat on the mat", "the cat is on the mat", 0.7999999950000002),
        ("a dog ran. a cat slept in the sun", "a cat slept. the dog ran in the sun today", 0.9411764656055364),
        ("x y z", "a b c", 0.0),
        ("police killed the gunman. the gunman was old", "police kill the gunman", 0.5999999952),
        ("one two three four five six seven", "one three two five four seven six", 0.5714285664285715),
        ("b a b a", "a b a b", 0.999999995),
        ("alpha  beta\ngamma. delta", "beta gamma. alpha delta", 0.999999995),
        ("...", "a b", 0.0),
        (" ", "a b", 0.0),
    ] {
        let got = score(Metric::RougeL, text, &[answer]);
        assert!((got - want).abs() < 1e-12, "{text:?}: {got}, not {want}");
    }
}

#[test]
fn equals_score_1_strangers_0_and_all_lies_between() {
    let texts = ["Paragraph 3", "7", "dog food", "let x = a.b(c);", "one. two three. four", "ü€ 12 12 The end"];
    for (_, metric) in METRICS {
        let classes = strings(&texts);
        let of = |text: &str, answer: &str| metric.score(text, &strings(&[answer]), &classes);
        for (i, a) in texts.iter().enumerate() {
            let fits = match metric {
                Metric::Retrieval => i == 0,
                Metric::Count => i == 1,
                _ => true,
            };
            assert!(!fits || (of(a, a) - 1.0).abs() < 1e-8, "{metric:?}: {a:?}");
            assert_eq!(of("#", a), 0.0, "{metric:?}: {a:?}");
            for b in texts {
                let s = of(a, b);
                assert!((0.0..=1.0).contains(&s), "{metric:?}: {a:?}, {b:?}: {s}");
            }
        }
        assert_eq!(metric.score("anything", &[], &[]), 0.0);
    }
}

/// The law of stopping early: where an answer is called final, whatever is added leaves the score alone.
#[test]
fn what_is_final_stays() {
    let text = "\n# a\nthe 12 Dogs\nfood 7 x";
    let answers = strings(&["dogs", "12"]);
    let mut n_final = 0;
    for (_, metric) in METRICS {
        for end in 0..text.len() {
            if metric.is_final(&text[..end], &answers) {
                n_final += 1;
                let score = metric.score(&text[..end], &answers, &answers);
                assert!(
                    (end..=text.len()).all(|n| metric.score(&text[..n], &answers, &answers) == score),
                    "{metric:?}"
                );
            }
        }
    }
    assert!(n_final > 20);
}
