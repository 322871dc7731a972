//! The timing lines at the end of a run, worded as llama-completion words them, so that scripts that look for them go on working.
//!
//! Source: llama.cpp `common/sampling.cpp`, `common_perf_print`.

use std::time::{Duration, Instant};

/// Times and counts of a run.
#[derive(Clone, Debug)]
pub struct Perf {
    start: Instant,
    /// Until the model was ready.
    pub load: Duration,
    /// Reading prompts.
    pub prompt: Duration,
    /// Tokens of prompts.
    pub n_prompt: usize,
    /// Time and tokens of the last prompt or turn.
    pub last_prompt: (Duration, usize),
    /// Decoding single tokens, the pass excluded.
    pub eval: Duration,
    /// Tokens decoded one by one.
    pub n_eval: usize,
    /// Decoding since the pass.
    pub eval_compressed: Duration,
    /// Tokens decoded since the pass.
    pub n_eval_compressed: usize,
    /// Choosing tokens.
    pub sample: Duration,
    /// Tokens that the samplers were told of, chosen or read.
    pub n_sample: usize,
    /// The pass.
    pub pass: Duration,
}

impl Perf {
    /// Starts the clock.
    pub fn start() -> Perf {
        let zero = Duration::ZERO;
        Perf {
            start: Instant::now(),
            load: zero,
            prompt: zero,
            n_prompt: 0,
            last_prompt: (zero, 0),
            eval: zero,
            n_eval: 0,
            eval_compressed: zero,
            n_eval_compressed: 0,
            sample: zero,
            n_sample: 0,
            pass: zero,
        }
    }

    /// Marks the end of loading, which the total time does not count, as in llama.cpp.
    pub fn loaded(&mut self) {
        self.load = self.start.elapsed();
        self.start = Instant::now();
    }

    /// The lines.
    pub fn lines(&self, n_reused: u64) -> String {
        let ms = |d: Duration| d.as_secs_f64() * 1e3;
        // llama.cpp counts at least one token, and a rate over no time is infinite.
        let (n_prompt, n_eval) = (self.n_prompt.max(1), self.n_eval.max(1));
        let rate = |d: Duration, n: usize| (ms(d) / n as f64, n as f64 / d.as_secs_f64());
        let total = self.start.elapsed();
        let known = self.sample + self.prompt + self.eval + self.pass;
        let rest = total.saturating_sub(known);
        let parts = if self.pass > Duration::ZERO { " - pass" } else { "" };
        let (p, e) = (rate(self.prompt, n_prompt), rate(self.eval, n_eval));
        let name = "common_perf_print";
        let mut out = String::new();
        out += &format!("{name}:    sampling time = {:10.2} ms\n", ms(self.sample));
        out += &format!("{name}:    samplers time = {:10.2} ms / {:5} tokens\n", ms(self.sample), self.n_sample);
        out += &format!("{name}:        load time = {:10.2} ms\n", ms(self.load));
        out += &format!(
            "{name}: prompt eval time = {:10.2} ms / {:5} tokens ({:8.2} ms per token, {:8.2} tokens per second)\n",
            ms(self.prompt),
            n_prompt,
            p.0,
            p.1
        );
        out += &format!(
            "{name}:        eval time = {:10.2} ms / {:5} runs   ({:8.2} ms per token, {:8.2} tokens per second)\n",
            ms(self.eval),
            n_eval,
            e.0,
            e.1
        );
        out += &format!("{name}:       total time = {:10.2} ms / {:5} tokens\n", ms(total), n_prompt + n_eval);
        out += &format!("{name}: unaccounted time = {:10.2} ms / {:5.1} %      (total - sampling - prompt eval - eval{parts}) / (total)\n", ms(rest), 100.0 * ms(rest) / ms(total).max(1e-9));
        out += &format!("{name}:    graphs reused = {n_reused:10}");
        if self.pass > Duration::ZERO {
            let c = match self.n_eval_compressed {
                0 => (0.0, 0.0),
                n => rate(self.eval_compressed, n),
            };
            let share = 100.0 * ms(self.pass) / ms(self.prompt).max(1e-9);
            out += &format!(
                "\ngracekv:         pass time = {:10.2} ms / {share:5.1} % of the prompt eval time",
                ms(self.pass)
            );
            out += &format!("\ngracekv: eval since pass   = {:10.2} ms / {:5} runs   ({:8.2} ms per token, {:8.2} tokens per second)", ms(self.eval_compressed), self.n_eval_compressed, c.0, c.1);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_that_nothing_follows_has_no_speed() {
        let mut perf = Perf::start();
        perf.pass = Duration::from_millis(5);
        let lines = perf.lines(0);
        let ours: Vec<&str> = lines.lines().filter(|l| l.starts_with("gracekv:")).collect();
        assert!(ours.len() == 2 && ours.iter().all(|l| !l.contains("inf") && !l.contains("NaN")), "{lines}");
    }

    #[test]
    fn the_total_begins_when_the_model_is_ready() {
        let mut perf = Perf::start();
        std::thread::sleep(Duration::from_millis(30));
        perf.loaded();
        let lines = perf.lines(0);
        let ms = |name: &str| -> f64 {
            let line = lines.lines().find(|l| l.contains(name)).unwrap();
            line.split('=').nth(1).unwrap().split_whitespace().next().unwrap().parse().unwrap()
        };
        assert!(ms("load time") >= 30.0 && ms("total time") < 30.0, "{lines}");
    }
}
