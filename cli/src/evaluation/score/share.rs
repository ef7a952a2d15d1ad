//! A part of a whole, with its percentage and its confidence interval.

use schemars::JsonSchema;
use serde::Serialize;

/// The quantile of the normal distribution for an interval of 95%.
const Z: f64 = 1.959_963_985;

/// A part of a whole.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Share {
    /// The part.
    pub part: u32,
    /// The whole.
    pub whole: u32,
}

impl Share {
    pub fn new(part: u32, whole: u32) -> Self {
        Self { part, whole }
    }

    /// The share with more of both.
    pub fn plus(self, part: u32, whole: u32) -> Self {
        Self { part: self.part + part, whole: self.whole + whole }
    }

    /// Counts one more, as a part or not.
    pub fn count(&mut self, is_part: bool) {
        self.part += u32::from(is_part);
        self.whole += 1;
    }

    /// The share from 0 to 1; `None` of nothing.
    pub fn fraction(self) -> Option<f64> {
        (self.whole > 0).then(|| f64::from(self.part) / f64::from(self.whole))
    }

    /// The percentage, rounded; `None` of nothing.
    pub fn percent(self) -> Option<u32> {
        let rounded =
            (u64::from(self.part) * 100 + u64::from(self.whole) / 2).checked_div(u64::from(self.whole))?;
        u32::try_from(rounded).ok()
    }

    /// The bounds of the Wilson interval of 95%, from 0 to 1; `None` of nothing.
    pub fn interval(self) -> Option<(f64, f64)> {
        let fraction = self.fraction()?;
        let count = f64::from(self.whole);
        let spread = 1.0 + Z * Z / count;
        let middle = (fraction + Z * Z / (2.0 * count)) / spread;
        let half = Z * (fraction * (1.0 - fraction) / count + Z * Z / (4.0 * count * count)).sqrt() / spread;
        Some(((middle - half).max(0.0), (middle + half).min(1.0)))
    }

    /// The counts with the percentage and its interval; `-` of nothing.
    pub fn with_interval(self) -> String {
        match (self.percent(), self.interval()) {
            (Some(percent), Some(interval)) => {
                format!("{} of {} ({percent}%, {})", self.part, self.whole, format_interval(interval, 0))
            }
            _ => "-".to_owned(),
        }
    }
}

/// The counts with the percentage; `-` of nothing.
impl std::fmt::Display for Share {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.percent() {
            None => write!(f, "-"),
            Some(percent) => write!(f, "{} of {} ({percent}%)", self.part, self.whole),
        }
    }
}

/// The bounds of an interval as percentages.
pub fn format_interval((low, high): (f64, f64), decimals: usize) -> String {
    format!("{:.decimals$}–{:.decimals$}%", low * 100.0, high * 100.0)
}

/// The mean of two shares, and its interval from the intervals of both; `None` if one is of nothing.
pub fn balance(one: Share, other: Share) -> Option<(f64, (f64, f64))> {
    let (a, b) = (one.fraction()?, other.fraction()?);
    let ((a_low, a_high), (b_low, b_high)) = (one.interval()?, other.interval()?);
    let mean = f64::midpoint(a, b);
    let half = |x: f64, y: f64| x.hypot(y) / 2.0;
    Some((mean, (mean - half(a - a_low, b - b_low), mean + half(a_high - a, b_high - b))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_are_rounded() {
        let percent = |part, whole| Share::new(part, whole).percent();
        assert_eq!((percent(1, 3), percent(2, 3), percent(0, 0)), (Some(33), Some(67), None));
        assert_eq!(Share::new(0, 0).with_interval(), "-");
    }

    #[test]
    fn intervals_are_those_of_wilson() {
        // Values of R's prop.test(correct = FALSE).
        for (part, whole, expected) in
            [(42, 54, "65–87%"), (0, 10, "0–28%"), (10, 10, "72–100%"), (5, 10, "24–76%")]
        {
            assert_eq!(format_interval(Share::new(part, whole).interval().unwrap(), 0), expected);
        }
        assert_eq!(Share::new(42, 54).with_interval(), "42 of 54 (78%, 65–87%)");
    }

    #[test]
    fn balanced_share_is_the_mean_within_both_intervals() {
        let (mean, (low, high)) = balance(Share::new(90, 100), Share::new(10, 20)).unwrap();
        assert!((mean - 0.7).abs() < 1e-9 && low < 0.6 && high > 0.79, "{low} {high}");
        assert_eq!(balance(Share::new(1, 1), Share::new(0, 0)), None);
    }
}
