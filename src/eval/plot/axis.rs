//! Scales of a chart's axes: range, places of the ticks, their texts.
//!
//! plotters' own scales choose ticks that a ratio of 1 to 64 has no use for, and do not end for some odd ranges.

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use std::ops::Range;

/// The part of an axis that is shown. Places are values, or their logarithms to base 10.
pub struct Scale {
    low: f64,
    high: f64,
    log: bool,
    ticks: Vec<f64>,
}

impl Ranged for Scale {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let place = if self.log { value.log10() } else { *value };
        let share = ((place - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
        limit.0 + (f64::from(limit.1 - limit.0) * share).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        match hint.weight().allow_light_points() {
            true => Vec::new(),
            false => self.ticks.iter().map(|t| self.value(*t)).collect(),
        }
    }

    fn range(&self) -> Range<f64> {
        self.value(self.low)..self.value(self.high)
    }
}

impl ValueFormatter<f64> for Scale {
    fn format(value: &f64) -> String {
        number(*value)
    }
}

/// Most values that are ticks themselves; more are replaced by round ones.
const N_OWN: usize = 8;

/// Whether a value can be drawn: a number, of a size that leaves room for margins, above 0 on a log axis.
pub fn has_place(v: f64, log: bool) -> bool {
    v.abs() <= 1e100 && (!log || v >= 1e-100)
}

impl Scale {
    /// The scale that shows these values, with a margin; all of them must have a place.
    pub fn new(values: impl Iterator<Item = f64>, log: bool) -> Self {
        let mut places: Vec<f64> = values.map(|v| if log { v.log10() } else { v }).collect();
        places.sort_by(f64::total_cmp);
        let (first, last) = (places.first().copied().unwrap_or(0.0), places.last().copied().unwrap_or(0.0));
        let least = if log { 0.3 } else { 1e-9 * first.abs().max(last.abs()) };
        let spread = match last - first {
            d if d > least => d,
            _ if log => 0.6,
            _ => 0.2 * first.abs().max(last.abs()).max(5.0),
        };
        let middle = first + (last - first) / 2.0;
        let (low, high) = (middle - 0.54 * spread, middle + 0.54 * spread);
        let mut scale = Scale { low, high, log, ticks: Vec::new() };
        scale.ticks = scale.own_ticks(&places).unwrap_or_else(|| if log { scale.decades() } else { scale.even() });
        scale
    }

    fn value(&self, place: f64) -> f64 {
        if self.log {
            10f64.powf(place)
        } else {
            place
        }
    }

    /// Few whole values far enough apart, such as ratios, are the best ticks of a log axis.
    fn own_ticks(&self, sorted: &[f64]) -> Option<Vec<f64>> {
        let mut own = sorted.to_vec();
        own.dedup_by(|a, b| (*a - *b).abs() < 1e-9);
        let whole = |place: &f64| *place < 7.0 && (self.value(*place) - self.value(*place).round()).abs() < 1e-6;
        let apart = own.windows(2).all(|w| w[1] - w[0] > 0.06 * (self.high - self.low));
        (self.log && own.len() <= N_OWN && apart && own.iter().all(whole)).then_some(own)
    }

    /// 1, 2 and 5 of each power of ten, or only the powers, or every n-th of them.
    fn decades(&self) -> Vec<f64> {
        let n = self.high - self.low;
        let steps: &[f64] = match n {
            n if n < 0.7 => return self.even_values(),
            n if n < 2.7 => &[1.0, 2.0, 5.0],
            _ => &[1.0],
        };
        let every = (n / 8.0).ceil().max(1.0) as i64;
        (self.low.floor() as i64..=self.high.ceil() as i64)
            .filter(|k| k.rem_euclid(every) == 0)
            .flat_map(|k| steps.iter().map(move |s| k as f64 + s.log10()))
            .filter(|v| (self.low..self.high).contains(v))
            .collect()
    }

    /// Less than a power of ten: even steps of the values themselves.
    fn even_values(&self) -> Vec<f64> {
        let plain = Scale { low: self.value(self.low), high: self.value(self.high), log: false, ticks: Vec::new() };
        plain.even().into_iter().filter(|v| *v > 0.0).map(f64::log10).collect()
    }

    /// Multiples of 1, 2 or 5 times a power of ten: 4 to 10 of them.
    fn even(&self) -> Vec<f64> {
        let raw = (self.high - self.low) / 8.0;
        let power = 10f64.powf(raw.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].iter().map(|s| s * power).find(|s| *s >= raw).unwrap_or(raw);
        let first = (self.low / step).ceil();
        (0..12).map(|i| (first + f64::from(i)) * step).filter(|v| (self.low..self.high).contains(v)).collect()
    }
}

/// A number in few letters.
pub fn number(v: f64) -> String {
    let size = v.abs();
    if v == 0.0 {
        return "0".to_owned();
    }
    if !(1e-4..1e6).contains(&size) {
        let text = format!("{v:.2e}");
        let (digits, power) = text.split_once('e').unwrap_or((&text, "0"));
        return format!("{}e{power}", digits.trim_end_matches('0').trim_end_matches('.'));
    }
    // Four digits that mean something, and no zeros at the end.
    let places = (3 - size.log10().floor() as i32).max(0) as usize;
    let text = format!("{v:.places$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// At most `most` of the numbers below `n`, evenly.
pub fn indices(n: i32, most: i32) -> impl Iterator<Item = i32> {
    let step = (n + most.max(1) - 1) / most.max(1);
    (0..n).step_by(step.max(1) as usize)
}
