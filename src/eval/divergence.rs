//! How far a model is from the log-probabilities of another: llama-perplexity's table of `--kl-divergence`.
//!
//! Source: llama.cpp `tools/perplexity/perplexity.cpp` (`kl_divergence`), statistics, texts and formats. Deviations: sums are
//! `f64` throughout, and an uncertainty that comes out as no number there is 0.

use super::base::Base;
use super::kl::{self, Scored};
use super::perplexity::{self, Batches};
use crate::engine::Engine;
use crate::error::Result;
use rayon::prelude::*;

/// What [`running`]'s columns are.
pub const HEAD: &str =
    "\nchunk             PPL               ln(PPL(Q)/PPL(base))          KL Divergence              Δp RMS            Same top p\n";

/// Tokens without which there are no statistics.
const N_LEAST: usize = 100;

/// Reads the chunks of `base` and compares; `on_chunk` hears its number and everything that is scored so far.
///
/// # Errors
/// When a chunk does not fit the context, the file cannot be read, ggml fails, or a result is no number.
pub fn run(
    engine: &mut Engine,
    base: &mut Base,
    bos: Option<u32>,
    batches: Batches,
    mut on_chunk: impl FnMut(usize, &[Scored]) -> Result<()>,
) -> Result<Vec<Scored>> {
    let n_vocab = engine.model().hp.n_vocab;
    let mut scored = Vec::new();
    let passages = base.passages(bos);
    for (i, passage) in passages.iter().enumerate() {
        let n_at_once = batches.n_at_once(base.n_ctx(), i, passages.len());
        perplexity::read(engine, passage, batches.n_batch, n_at_once, |logits, range| {
            logits.par_chunks_exact_mut(n_vocab).for_each(kl::log_softmax);
            let (targets, first) = (&passage.targets()[range.clone()], range.start + 1);
            // Log-probabilities below 16 nats are no longer those of the base.
            scored.extend(kl::score(&base.rows(range.len())?, logits, targets, first, kl::BASE_FLOOR));
            Ok(())
        })?;
        perplexity::finite(passage, scored.iter().map(|s| s.nll + s.kl).sum())?;
        on_chunk(i, &scored)?;
    }
    Ok(scored)
}

/// A mean or what is derived from it, and its standard error.
#[derive(Clone, Copy)]
struct Estimate(f64, f64);

impl Estimate {
    fn mean(scored: &[Scored], f: impl Fn(&Scored) -> f64) -> Estimate {
        let n = scored.len() as f64;
        let mean = scored.iter().map(&f).sum::<f64>() / n;
        let variance = scored.iter().map(|s| f(s) * f(s)).sum::<f64>() / n - mean * mean;
        Estimate(mean, if scored.len() > 10 { (variance.max(0.0) / (n - 1.0)).sqrt() } else { 0.0 })
    }

    fn exp(self) -> Estimate {
        Estimate(self.0.exp(), self.0.exp() * self.1)
    }

    fn times(self, factor: f64) -> Estimate {
        Estimate(self.0 * factor, self.1 * factor)
    }

    /// The difference of two means that vary together.
    fn minus(self, other: Estimate, covariance: f64) -> Estimate {
        let variance = self.1 * self.1 + other.1 * other.1 - 2.0 * covariance;
        Estimate(self.0 - other.0, variance.max(0.0).sqrt())
    }
}

/// Everything that is a mean.
struct Means {
    log_ppl: Estimate,
    log_ppl_base: Estimate,
    covariance: f64,
    log_ratio: Estimate,
    kl: Estimate,
    delta_p: Estimate,
    rms_delta_p: Estimate,
    same_top: Estimate,
}

impl Means {
    fn of(scored: &[Scored]) -> Means {
        let n = scored.len() as f64;
        let log_ppl = Estimate::mean(scored, |s| s.nll);
        let log_ppl_base = Estimate::mean(scored, |s| s.nll_base);
        let together = scored.iter().map(|s| s.nll * s.nll_base).sum::<f64>() / n - log_ppl.0 * log_ppl_base.0;
        let covariance = if scored.len() < 10 { 0.0 } else { together / (n - 1.0) };
        let square = Estimate::mean(scored, |s| s.delta_p * s.delta_p);
        let rms = square.0.sqrt();
        let same = Estimate::mean(scored, |s| f64::from(u8::from(s.same_top))).0;
        Means {
            log_ppl,
            log_ppl_base,
            covariance,
            log_ratio: log_ppl.minus(log_ppl_base, covariance),
            kl: Estimate::mean(scored, |s| s.kl),
            delta_p: Estimate::mean(scored, |s| s.delta_p).times(100.0),
            rms_delta_p: Estimate(rms, if rms > 0.0 { 0.5 / rms * square.1 } else { 0.0 }).times(100.0),
            same_top: Estimate(same, (same * (1.0 - same) / (n - 1.0).max(1.0)).sqrt()).times(100.0),
        }
    }
}

/// One line of what is known after so many chunks.
pub fn running(n_chunk: usize, scored: &[Scored]) -> String {
    let m = Means::of(scored);
    let (ppl, ratio, kl, rms, top) = (m.log_ppl.exp(), m.log_ratio, m.kl, m.rms_delta_p, m.same_top);
    format!(
        "{n_chunk:4}    {:9.4} ± {:9.4}    {:10.5} ± {:10.5}    {:10.5} ± {:10.5}    {:6.3} ± {:6.3} %    {:6.3} ± {:6.3} %\n",
        ppl.0, ppl.1, ratio.0, ratio.1, kl.0, kl.1, rms.0, rms.1, top.0, top.1
    )
}

/// The statistics of everything; nothing but a line break for less than 100 tokens.
pub fn statistics(scored: &[Scored]) -> String {
    if scored.len() < N_LEAST {
        return "\n".to_owned();
    }
    let m = Means::of(scored);
    let (ppl, ppl_base) = (m.log_ppl.exp(), m.log_ppl_base.exp());
    let line = |name: &str, e: Estimate| format!("{name}: {:10.6} ± {:10.6}\n", e.0, e.1);
    let mut text = "\n====== Perplexity statistics ======\n".to_owned();
    text += &line("Mean PPL(Q)                   ", ppl);
    text += &line("Mean PPL(base)                ", ppl_base);
    let spread = m.log_ppl.1 * m.log_ppl_base.1;
    let correlation = if spread > 0.0 { m.covariance / spread } else { 0.0 };
    text += &format!("Cor(ln(PPL(Q)), ln(PPL(base))): {:6.2}%\n", 100.0 * correlation);
    text += &line("Mean ln(PPL(Q)/PPL(base))     ", m.log_ratio);
    text += &line("Mean PPL(Q)/PPL(base)         ", m.log_ratio.exp());
    text += &line("Mean PPL(Q)-PPL(base)         ", ppl.minus(ppl_base, ppl.0 * ppl_base.0 * m.covariance));

    text += "\n====== KL divergence statistics ======\n";
    text += &line("Mean    KLD", m.kl);
    let kl = ascending(scored, |s| s.kl);
    let shares = [1.0, 0.999, 0.99, 0.95, 0.9, 0.5, 0.1, 0.05, 0.01, 0.001, 0.0];
    for share in shares {
        text += &format!("{} KLD: {:10.6}\n", name(share), quantile(&kl, share));
    }

    text += "\n====== Token probability statistics ======\n";
    text += &format!("Mean    Δp: {:6.3} ± {:5.3} %\n", m.delta_p.0, m.delta_p.1);
    let delta_p = ascending(scored, |s| 100.0 * s.delta_p);
    for share in [&shares[..5], &[0.75, 0.5, 0.25], &shares[6..]].concat() {
        text += &format!("{} Δp: {:6.3}%\n", name(share), quantile(&delta_p, share));
    }
    text += &format!("RMS Δp    : {:6.3} ± {:5.3} %\n", m.rms_delta_p.0, m.rms_delta_p.1);
    text + &format!("Same top p: {:6.3} ± {:5.3} %\n", m.same_top.0, m.same_top.1)
}

/// A quantile's name, 7 letters wide.
fn name(share: f64) -> String {
    match share {
        1.0 => "Maximum".to_owned(),
        0.5 => "Median ".to_owned(),
        0.0 => "Minimum".to_owned(),
        _ => format!("{:4.1}%  ", 100.0 * share),
    }
}

fn ascending(scored: &[Scored], f: impl Fn(&Scored) -> f64) -> Vec<f64> {
    let mut values: Vec<f64> = scored.iter().map(f).collect();
    values.sort_by(f64::total_cmp);
    values
}

/// Linear between the two nearest of ascending numbers.
pub fn quantile(ascending: &[f64], share: f64) -> f64 {
    let place = share * ascending.len().saturating_sub(1) as f64;
    let at = |i: usize| ascending.get(i.min(ascending.len().saturating_sub(1))).copied().unwrap_or(0.0);
    let (low, part) = (place as usize, place.fract());
    at(low) * (1.0 - part) + at(low + 1) * part
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scored(n: usize) -> Vec<Scored> {
        let wave = |i: usize, f: f64| (i as f64 * f).sin();
        let one = |index: usize| {
            let (nll, nll_base) = (3.0 + wave(index, 0.7), 2.9 + wave(index, 0.71));
            let delta_p = (-nll).exp() - (-nll_base).exp();
            Scored {
                index,
                nll,
                nll_base,
                kl: 0.1 + 0.1 * wave(index, 1.3),
                same_top: !index.is_multiple_of(5),
                delta_p,
            }
        };
        (0..n).map(one).collect()
    }

    /// The numbers of the line that begins so.
    fn numbers(text: &str, name: &str) -> Vec<f64> {
        let line = text.lines().find(|l| l.starts_with(name)).unwrap_or_else(|| panic!("{name} in {text}"));
        line[name.len()..].split([' ', '%', ':']).filter_map(|x| x.parse().ok()).collect()
    }

    #[test]
    fn statistics_are_those_of_the_definitions() {
        let scored = scored(250);
        let text = statistics(&scored);
        let n = scored.len() as f64;
        let mean = |f: &dyn Fn(&Scored) -> f64| scored.iter().map(f).sum::<f64>() / n;
        let covariance = |f: &dyn Fn(&Scored) -> f64, g: &dyn Fn(&Scored) -> f64| {
            let (mf, mg) = (mean(f), mean(g));
            scored.iter().map(|s| (f(s) - mf) * (g(s) - mg)).sum::<f64>() / n
        };
        let close = |name: &str, want: &[f64], tolerance: f64| {
            let got = numbers(&text, name);
            assert!(
                got.len() == want.len() && got.iter().zip(want).all(|(g, w)| (g - w).abs() < tolerance),
                "{name}: {got:?} {want:?}"
            );
        };
        let error = |f: &dyn Fn(&Scored) -> f64| (covariance(f, f) / (n - 1.0)).sqrt();
        let (q, base, kl): (&dyn Fn(&Scored) -> f64, _, _) = (&|s| s.nll, |s: &Scored| s.nll_base, |s: &Scored| s.kl);
        let difference = |s: &Scored| s.nll - s.nll_base;
        let ppl = mean(q).exp();
        close("Mean PPL(Q)  ", &[ppl, ppl * error(q)], 1e-6);
        close("Mean PPL(base)  ", &[mean(&base).exp(), mean(&base).exp() * error(&base)], 1e-6);
        let correlation = covariance(q, &base) / (covariance(q, q) * covariance(&base, &base)).sqrt();
        close("Cor(ln(PPL(Q)), ln(PPL(base)))", &[100.0 * correlation], 6e-3);
        // The error of a mean difference is that of the mean of the differences.
        close("Mean ln(PPL(Q)/PPL(base))", &[mean(&difference), error(&difference)], 1e-6);
        close("Mean PPL(Q)/PPL(base)", &[mean(&difference).exp(), mean(&difference).exp() * error(&difference)], 1e-6);
        close("Mean    KLD", &[mean(&kl), error(&kl)], 1e-6);
        let mut sorted: Vec<f64> = scored.iter().map(kl).collect();
        sorted.sort_by(f64::total_cmp);
        close("Median  KLD", &[(sorted[124] + sorted[125]) / 2.0], 1e-6);
        close("Maximum KLD", &[sorted[249]], 1e-6);
        close("90.0%   KLD", &[sorted[224] + 0.1 * (sorted[225] - sorted[224])], 1e-6);
        let square = |s: &Scored| s.delta_p * s.delta_p;
        let rms = mean(&square).sqrt();
        close("RMS Δp", &[100.0 * rms, 50.0 / rms * error(&square)], 6e-4);
        close("Same top p", &[80.0, 100.0 * (0.8 * 0.2 / 249.0f64).sqrt()], 6e-4);
    }

    #[test]
    fn few_or_equal_values_are_no_reason_to_print_nan() {
        assert_eq!(statistics(&scored(99)), "\n");
        let mut equal = vec![scored(8)[7]; 120];
        equal.iter_mut().for_each(|s| (s.nll_base, s.delta_p, s.kl, s.same_top) = (s.nll, 0.0, 0.0, true));
        for text in [running(1, &scored(1)), running(1, &scored(9)), running(2, &equal), statistics(&equal)] {
            assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        }
    }
}
