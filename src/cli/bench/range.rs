//! Lists of numbers as llama-bench writes them: `512`, `128,512`, `128-512+128` and `1-64*2`.
//!
//! Source: llama.cpp `tools/llama-bench/llama-bench.cpp` (`parse_int_range`).

/// Most numbers of a list; each of them is a measurement.
const MAX_NUMBERS: usize = 1000;

/// The numbers of a list.
///
/// # Errors
/// In words, when it has another form, a step that leads nowhere, or far too many numbers.
pub fn numbers(text: &str) -> Result<Vec<usize>, String> {
    let mut all = Vec::new();
    for part in text.split(',') {
        let (first, last, next) = range(part).ok_or_else(|| {
            format!("'{part}' is neither a number nor a range (first-last, first-last+step or first-last*factor)")
        })?;
        let mut n = Some(first);
        while let Some(x) = n.filter(|&x| x <= last) {
            all.push(x);
            n = next(x).filter(|&next| next > x);
            if all.len() > MAX_NUMBERS {
                return Err(format!("'{text}' has more than {MAX_NUMBERS} numbers"));
            }
        }
    }
    Ok(all)
}

type Next = Box<dyn Fn(usize) -> Option<usize>>;

/// First and last number of a range, and what follows a number of it.
fn range(part: &str) -> Option<(usize, usize, Next)> {
    let Some((first, rest)) = part.split_once('-') else {
        let n = part.parse().ok()?;
        return Some((n, n, Box::new(|_| None)));
    };
    let first = first.parse().ok()?;
    let (last, next): (&str, Next) = match (rest.split_once('+'), rest.split_once('*')) {
        (Some((last, step)), _) => {
            let step: usize = step.parse().ok().filter(|&step| step > 0)?;
            (last, Box::new(move |n| n.checked_add(step)))
        }
        (_, Some((last, factor))) => {
            let factor: usize = factor.parse().ok().filter(|&factor| factor > 1)?;
            (last, Box::new(move |n| n.checked_mul(factor)))
        }
        _ => (rest, Box::new(|n| n.checked_add(1))),
    };
    Some((first, last.parse().ok().filter(|&last| last >= first)?, next))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_llama_benchs() {
        assert_eq!(numbers("512").unwrap(), [512]);
        assert_eq!(numbers("0,16,8").unwrap(), [0, 16, 8]);
        assert_eq!(numbers("128-512+128,1").unwrap(), [128, 256, 384, 512, 1]);
        assert_eq!(numbers("1-70*2").unwrap(), [1, 2, 4, 8, 16, 32, 64]);
        assert_eq!(numbers("3-6").unwrap(), [3, 4, 5, 6]);
        assert_eq!(numbers("0-5*2").unwrap(), [0]);
        for wrong in ["", "a", "1-", "-1", "5-1", "1-9+0", "1-9*1", "1-9+a", "0-99999999", "1--2"] {
            assert!(numbers(wrong).is_err(), "{wrong}");
        }
    }
}
