//! A number over several seeds: each of them must pass, so the worst one is what a row shows.

use softroce::prelude::Duration;

use super::Setup;
use super::report::Row;

/// The values of one metric, one for each seed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Worst(Vec<f64>);

impl Worst {
    pub(crate) fn add(&mut self, value: f64) {
        self.0.push(value);
    }

    /// The value of the first seed.
    pub(crate) fn first(&self) -> f64 {
        self.0.first().copied().unwrap_or(f64::NAN)
    }

    /// The one with the most of something. Whatever is no number is worse than all others.
    fn most(&self, badness: impl Fn(f64) -> f64) -> f64 {
        let bad = |v: f64| if v.is_finite() { badness(v) } else { f64::INFINITY };
        self.0.iter().copied().max_by(|a, b| bad(*a).total_cmp(&bad(*b))).unwrap_or(f64::NAN)
    }

    /// All of them are within this part of the expected value.
    pub(crate) fn within(
        &self,
        metric: impl Into<String>,
        unit: &'static str,
        expected: f64,
        rel: f64,
    ) -> Row {
        Row::within(metric, unit, self.most(|v| (v - expected).abs()), expected, rel)
    }

    /// All of them are within this distance of the expected value.
    pub(crate) fn near(
        &self,
        metric: impl Into<String>,
        unit: &'static str,
        expected: f64,
        off: f64,
    ) -> Row {
        Row::near(metric, unit, self.most(|v| (v - expected).abs()), expected, off)
    }

    pub(crate) fn at_least(
        &self,
        metric: impl Into<String>,
        unit: &'static str,
        least: f64,
    ) -> Row {
        Row::at_least(metric, unit, self.most(|v| -v), least)
    }

    pub(crate) fn at_most(&self, metric: impl Into<String>, unit: &'static str, most: f64) -> Row {
        Row::at_most(metric, unit, self.most(|v| v), most)
    }

    pub(crate) fn between(
        &self,
        metric: impl Into<String>,
        unit: &'static str,
        least: f64,
        most: f64,
    ) -> Row {
        let middle = f64::midpoint(least, most);
        Row::between(metric, unit, self.most(|v| (v - middle).abs()), least, most)
    }
}

impl Setup {
    /// The seeds of a case: one in the short variant, else so many.
    pub(crate) fn seeds(&self, full: u64) -> std::ops::Range<u64> {
        self.seed..self.seed.saturating_add(self.pick(1, full))
    }
}

pub(crate) const fn millis(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_seed_decides() {
        let mut worst = Worst::default();
        for value in [10.0, 10.3, 9.8] {
            worst.add(value);
        }
        assert!((worst.first() - 10.0).abs() < 1e-12);
        assert!(worst.within("a", "", 10.0, 0.031).ok && !worst.within("a", "", 10.0, 0.02).ok);
        assert!((worst.within("a", "", 10.0, 0.031).value - 10.3).abs() < 1e-12);
        assert!((worst.at_least("a", "", 9.0).value - 9.8).abs() < 1e-12);
        assert!((worst.at_most("a", "", 11.0).value - 10.3).abs() < 1e-12);
        assert!(worst.between("a", "", 9.0, 11.0).ok && worst.near("a", "", 10.0, 0.31).ok);
        worst.add(f64::NAN);
        assert!(!worst.within("a", "", 10.0, 0.5).ok && !worst.at_least("a", "", 0.0).ok);
        assert!(!Worst::default().at_least("a", "", 0.0).ok);
    }
}
