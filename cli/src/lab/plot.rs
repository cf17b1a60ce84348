//! What a plot shows: lines over time or size, distributions, bars beside what they should be. How it looks is
//! [`svg`](super::svg)'s business.

use super::report::number;

/// A plot.
#[derive(Clone, Debug)]
pub(crate) struct Plot {
    /// Name of its file, and of its place in the page: letters, digits and `-`.
    pub(crate) id: String,
    pub(crate) title: String,
    pub(crate) what: What,
}

/// What is in it.
#[derive(Clone, Debug)]
pub(crate) enum What {
    Lines(Lines),
    Bars(Bars),
}

/// Values over values.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lines {
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) series: Vec<Series>,
    /// Horizontal lines: what is expected, thresholds.
    pub(crate) levels: Vec<Level>,
    /// Parts of the x axis that count.
    pub(crate) window: Option<(f64, f64)>,
}

/// One direction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Axis {
    pub(crate) label: String,
    pub(crate) unit: &'static str,
    pub(crate) log: bool,
    /// Where it begins and ends; without, where the data does (a linear y axis begins at 0).
    pub(crate) range: Option<(f64, f64)>,
}

impl Axis {
    pub(crate) fn new(label: impl Into<String>, unit: &'static str) -> Self {
        Self { label: label.into(), unit, ..Self::default() }
    }

    pub(crate) fn log(mut self) -> Self {
        self.log = true;
        self
    }

    pub(crate) fn range(mut self, from: f64, to: f64) -> Self {
        self.range = Some((from, to));
        self
    }

    /// What is written along it.
    pub(crate) fn text(&self) -> String {
        if self.unit.is_empty() {
            self.label.clone()
        } else {
            format!("{} ({})", self.label, self.unit)
        }
    }
}

/// How a series is drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Style {
    #[default]
    Line,
    /// A value holds until the next.
    Step,
    /// Theory beside measurement.
    Dashed,
    /// Each value for itself.
    Dots,
}

/// One line.
#[derive(Clone, Debug, Default)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
    pub(crate) style: Style,
}

impl Series {
    pub(crate) fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), points, style: Style::Line }
    }

    pub(crate) fn style(mut self, style: Style) -> Self {
        self.style = style;
        self
    }

    /// The part of values that are not larger, as a step.
    #[expect(clippy::cast_precision_loss, reason = "of samples")]
    pub(crate) fn cdf(name: impl Into<String>, mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let n = values.len().max(1) as f64;
        let points = values.into_iter().enumerate().map(|(i, v)| (v, (i + 1) as f64 / n));
        Self::new(name, points.collect()).style(Style::Step)
    }
}

/// A horizontal line with a name.
#[derive(Clone, Debug)]
pub(crate) struct Level {
    pub(crate) at: f64,
    pub(crate) label: String,
}

impl Level {
    pub(crate) fn new(at: f64, label: impl Into<String>) -> Self {
        Self { at, label: label.into() }
    }
}

/// Values beside each other.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bars {
    pub(crate) unit: &'static str,
    pub(crate) bars: Vec<Bar>,
}

/// One of them.
#[derive(Clone, Debug)]
pub(crate) struct Bar {
    pub(crate) label: String,
    pub(crate) value: f64,
    /// What it should be, from and to.
    pub(crate) expected: Option<(f64, f64)>,
    /// Bars of one colour belong together.
    pub(crate) group: usize,
}

impl Bar {
    pub(crate) fn new(label: impl Into<String>, value: f64) -> Self {
        Self { label: label.into(), value, expected: None, group: 0 }
    }

    pub(crate) fn expected(mut self, value: f64, rel: f64) -> Self {
        self.expected = Some((value * (1.0 - rel), value * (1.0 + rel)));
        self
    }

    pub(crate) fn group(mut self, group: usize) -> Self {
        self.group = group;
        self
    }
}

/// From values to places.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    pub(crate) from: f64,
    pub(crate) to: f64,
    pub(crate) log: bool,
    /// Where `from` and `to` are, in pixels.
    pub(crate) px: (f64, f64),
}

impl Scale {
    pub(crate) fn at(&self, value: f64) -> f64 {
        let part = if self.log {
            let floor = |v: f64| v.max(f64::MIN_POSITIVE).ln();
            (floor(value) - floor(self.from)) / (floor(self.to) - floor(self.from))
        } else {
            (value - self.from) / (self.to - self.from)
        };
        (self.px.1 - self.px.0).mul_add(part, self.px.0)
    }

    /// A scale that shows all of `values`, with ends at round numbers.
    pub(crate) fn over(
        axis: &Axis,
        values: impl Iterator<Item = f64>,
        from_zero: bool,
        px: (f64, f64),
    ) -> Self {
        let usable = values.filter(|v| v.is_finite() && (!axis.log || *v > 0.0));
        let (mut low, mut high) =
            usable.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        if low > high {
            (low, high) = if axis.log { (1.0, 10.0) } else { (0.0, 1.0) };
        }
        if let Some((from, to)) = axis.range {
            return Self { from, to, log: axis.log, px };
        }
        if axis.log {
            if low >= high * 0.999 {
                (low, high) = (low / 2.0, high * 2.0);
            }
            return Self { from: low, to: high, log: true, px };
        }
        if from_zero {
            low = low.min(0.0);
        }
        if high - low <= high.abs() * 1e-9 {
            high = low + if low == 0.0 { 1.0 } else { low.abs() * 0.1 };
        }
        if from_zero {
            let step = nice_step(high - low, 6.0);
            high = ((high - low) * 1.02 / step).ceil().mul_add(step, low);
            low = (low / step).floor() * step;
        }
        Self { from: low, to: high, log: false, px }
    }

    /// Where ticks are, about `many` of them, each with its text.
    pub(crate) fn ticks(&self, many: f64) -> Vec<(f64, String)> {
        if self.log { self.log_ticks() } else { self.linear_ticks(many) }
    }

    #[expect(clippy::cast_possible_truncation, reason = "a few steps")]
    fn linear_ticks(&self, many: f64) -> Vec<(f64, String)> {
        let step = nice_step(self.to - self.from, many);
        let (first, last) =
            ((self.from / step - 1e-9).ceil() as i64, (self.to / step + 1e-9).floor() as i64);
        #[expect(clippy::cast_precision_loss, reason = "a few steps")]
        let at = |i: i64| i as f64 * step;
        (first..=last).take(100).map(|i| (at(i), number(at(i)))).collect()
    }

    /// Powers of ten, and what is between them where there are few.
    fn log_ticks(&self) -> Vec<(f64, String)> {
        let decades = (self.to / self.from).log10();
        let between: &[f64] = if decades > 3.5 {
            &[1.0]
        } else if decades > 1.2 {
            &[1.0, 2.0, 5.0]
        } else {
            &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0]
        };
        #[expect(clippy::cast_possible_truncation, reason = "an exponent")]
        let (first, last) = (self.from.log10().floor() as i32, self.to.log10().ceil() as i32);
        let all = (first..=last).flat_map(|e| between.iter().map(move |b| b * 10_f64.powi(e)));
        let inside = |v: &f64| (self.from * 0.999_999..=self.to * 1.000_001).contains(v);
        all.filter(inside).map(|v| (v, number(v))).collect()
    }
}

/// The round step (1, 2 or 5 times a power of ten) that cuts `span` into about `many`.
pub(crate) fn nice_step(span: f64, many: f64) -> f64 {
    let rough = (span / many).max(f64::MIN_POSITIVE);
    let power = 10_f64.powf(rough.log10().floor());
    let part = rough / power;
    let nice = if part <= 1.0 {
        1.0
    } else if part <= 2.0 {
        2.0
    } else if part <= 5.0 {
        5.0
    } else {
        10.0
    };
    nice * power
}

/// At most the smallest and the largest of each of `columns` parts of the points, in their order.
pub(crate) fn thinned(points: &[(f64, f64)], columns: usize) -> Vec<(f64, f64)> {
    if points.len() <= columns * 2 {
        return points.to_vec();
    }
    let mut thin = Vec::with_capacity(columns * 2 + 2);
    let per = points.len().div_ceil(columns);
    for part in points.chunks(per) {
        let of = |better: fn(f64, f64) -> bool| {
            (0..part.len())
                .fold(0, |best, i| if better(part[i].1, part[best].1) { i } else { best })
        };
        let (low, high) = (of(|a, b| a < b), of(|a, b| a > b));
        thin.push(part[low.min(high)]);
        if low != high {
            thin.push(part[low.max(high)]);
        }
    }
    thin
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round() {
        for (span, step) in [(1.0, 0.2), (10.0, 2.0), (38.0, 10.0), (0.07, 0.02), (1234.0, 500.0)] {
            assert!(
                (nice_step(span, 5.0) / step - 1.0).abs() < 1e-12,
                "{span}: {}",
                nice_step(span, 5.0)
            );
        }
    }

    #[test]
    fn ticks_are_inside_and_round() {
        let axis = Axis::new("q", "KB");
        let scale = Scale::over(&axis, [3.0, 37.2].into_iter(), true, (300.0, 0.0));
        let ticks = scale.ticks(6.0);
        let texts: Vec<&str> = ticks.iter().map(|(_, t)| t.as_str()).collect();
        assert_eq!(texts, ["0", "10", "20", "30", "40"]);
        assert!((scale.at(0.0) - 300.0).abs() < 1e-9 && scale.at(40.0).abs() < 1e-9);
        let log =
            Scale::over(&Axis::new("n", "").log(), [1.0, 1000.0].into_iter(), false, (0.0, 90.0));
        assert!((log.at(10.0) - 30.0).abs() < 1e-9);
        let texts: Vec<String> = log.ticks(5.0).into_iter().map(|(_, t)| t).collect();
        assert_eq!(texts, ["1", "2", "5", "10", "20", "50", "100", "200", "500", "1000"]);
    }

    #[test]
    fn odd_data_has_a_scale() {
        let axis = Axis::new("q", "");
        for values in [vec![], vec![0.0], vec![5.0, 5.0], vec![f64::NAN], vec![-3.0, -1.0]] {
            for axis in [axis.clone(), axis.clone().log()] {
                let scale = Scale::over(&axis, values.iter().copied(), true, (0.0, 100.0));
                assert!(scale.from < scale.to, "{values:?}: {scale:?}");
                assert!(!scale.ticks(5.0).is_empty(), "{values:?}: {scale:?}");
            }
        }
    }

    #[test]
    fn thinning_keeps_what_stands_out() {
        let mut points: Vec<(f64, f64)> = (0..10_000).map(|i| (f64::from(i), 1.0)).collect();
        points[4321].1 = 9.0;
        points[77].1 = -9.0;
        let thin = thinned(&points, 100);
        assert!(thin.len() <= 200);
        assert!(thin.contains(&(4321.0, 9.0)) && thin.contains(&(77.0, -9.0)));
        assert!(thin.windows(2).all(|w| w[0].0 < w[1].0));
        assert_eq!(thinned(&points[..150], 100), points[..150]);
    }

    #[test]
    fn a_distribution_ends_at_one() {
        let cdf = Series::cdf("q", vec![3.0, 1.0, 2.0, 2.0]);
        assert_eq!(cdf.points, [(1.0, 0.25), (2.0, 0.5), (2.0, 0.75), (3.0, 1.0)]);
    }
}
