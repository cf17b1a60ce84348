//! DCQCN as a fluid in time: the model of [`theory`](super::theory) stepped forward, with what it says of a
//! time tau* ago kept in a ring.
//!
//! Steps of fixed length (Euler). Rates stay between a thousandth of the fair share and the line's, the queue
//! between nothing and the buffer; below Kmin nothing is marked, above Kmax everything.

use super::theory::{Params, Terms};

/// What happened.
#[derive(Clone, Debug, Default)]
pub(crate) struct Run {
    /// Seconds.
    pub(crate) time: Vec<f64>,
    /// Bytes.
    pub(crate) queue: Vec<f64>,
    /// Bits per second of each flow, one row per time.
    pub(crate) rates: Vec<Vec<f64>>,
    bits_per_s: f64,
}

/// A flow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    /// Seconds.
    pub(crate) at: f64,
    /// Its first rate, as a part of the line's.
    pub(crate) rate: f64,
}

impl Start {
    /// At once, at line rate.
    pub(crate) const LINE_RATE: Self = Self { at: 0.0, rate: 1.0 };
}

/// How long, and how finely.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) seconds: f64,
    pub(crate) step: f64,
    /// What the queue has room for, in bytes.
    pub(crate) buffer: f64,
}

impl Span {
    /// With steps of a microsecond and a buffer of 10 MB.
    pub(crate) const fn seconds(seconds: f64) -> Self {
        Self { seconds, step: 1e-6, buffer: 10e6 }
    }
}

#[derive(Clone, Copy, Debug)]
struct Flow {
    rate: f64,
    target: f64,
    alpha: f64,
    starts: f64,
}

impl Flow {
    /// A step, with what the flow sent and which part was marked tau* ago.
    fn step(&mut self, marked: f64, rate_ago: f64, dt: f64, least: f64, k: &Params) {
        let line = k.capacity();
        let t = if marked <= 0.0 {
            let (by_bytes, by_time) = (1.0 / k.counter(), 1.0 / (k.increase_timer * rate_ago));
            Terms {
                cut: 0.0,
                by_bytes,
                by_bytes_beyond: by_bytes,
                by_time,
                by_time_beyond: by_time,
                alpha: 0.0,
            }
        } else if marked >= 1.0 {
            Terms {
                cut: 1.0,
                by_bytes: 0.0,
                by_bytes_beyond: 0.0,
                by_time: 0.0,
                by_time_beyond: 0.0,
                alpha: 1.0,
            }
        } else {
            Terms::new(marked, rate_ago, k)
        };
        let Self { rate, target, alpha, .. } = *self;
        let rise = (target - rate) / 2.0 * rate_ago * (t.by_bytes + t.by_time);
        let cut = rate * alpha * t.cut / (2.0 * k.cnp_interval);
        let further = k.step() * rate_ago * (t.by_bytes_beyond + t.by_time_beyond);
        let nearer = (target - rate) * t.cut / k.cnp_interval;
        self.rate = (rate + dt * (rise - cut)).clamp(least, line);
        self.target = (target + dt * (further - nearer)).clamp(least, line);
        self.alpha = alpha + dt * (k.weight / k.alpha_timer * (t.alpha - alpha));
    }
}

/// N flows that start together at line rate: one stands for all.
pub(crate) fn together(n: u32, k: &Params, span: Span) -> Run {
    run(&[Start::LINE_RATE], f64::from(n), k, span)
}

/// Flows of their own.
pub(crate) fn apart(starts: &[Start], k: &Params, span: Span) -> Run {
    run(starts, 1.0, k, span)
}

/// Each of `starts` stands for `each` equal flows.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "small positive counts"
)]
fn run(starts: &[Start], each: f64, k: &Params, span: Span) -> Run {
    let (line, frame) = (k.capacity(), f64::from(k.packet.frame));
    let flow = |s: &Start| {
        let rate = s.rate * line;
        Flow { rate, target: rate, alpha: 1.0, starts: s.at }
    };
    let mut flows: Vec<Flow> = starts.iter().map(flow).collect();
    #[expect(clippy::cast_precision_loss, reason = "of a few flows")]
    let least = 1e-3 * line / (each * flows.len() as f64);
    let dt = span.step;
    let late = ((k.delay / dt).round() as usize).max(1);
    let mut rates_ago: Vec<Vec<f64>> = vec![flows.iter().map(|f| f.rate).collect(); late];
    let mut queue_ago = vec![0.0; late];
    let mut queue: f64 = 0.0;
    let steps = (span.seconds / dt) as usize;
    let mut run = Run { bits_per_s: k.bits_per_s, ..Run::default() };
    let to_bits = f64::from(k.packet.wire) * 8.0;
    for i in 0..steps {
        #[expect(clippy::cast_precision_loss, reason = "fewer than 2^53 steps")]
        let t = i as f64 * dt;
        let slot = i % late;
        let ago = queue_ago[slot];
        let marked = if ago <= k.low() {
            0.0
        } else if ago <= k.high() {
            (ago - k.low()) / (k.high() - k.low()) * k.pmax
        } else {
            1.0
        };
        queue_ago[slot] = queue;
        let mut sum = 0.0;
        for (flow, rate_ago) in flows.iter_mut().zip(&mut rates_ago[slot]) {
            let before = std::mem::replace(rate_ago, flow.rate);
            if flow.starts <= t {
                flow.step(marked, before, dt, least, k);
                sum += flow.rate * each;
            }
        }
        queue = (queue + dt * (sum - line)).clamp(0.0, span.buffer / frame);
        if i % 10 == 0 {
            run.time.push(t);
            run.queue.push(queue * frame);
            let rate = |f: &Flow| if f.starts <= t { f.rate * each * to_bits } else { 0.0 };
            run.rates.push(flows.iter().map(rate).collect());
        }
    }
    run
}

/// What a run came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Tail {
    /// Bytes.
    pub(crate) mean: f64,
    /// Standard deviation, bytes.
    pub(crate) sd: f64,
    /// Part of the line that was used. What arrives cannot be served faster than the line goes, so it idles
    /// where the queue is empty and the sum of the rates is below its own.
    pub(crate) util: f64,
}

impl Run {
    /// From the last part `part` of the run.
    #[expect(clippy::cast_precision_loss, reason = "of samples")]
    pub(crate) fn tail(&self, part: f64) -> Tail {
        let end = self.time.last().copied().unwrap_or_default();
        let first = self.time.partition_point(|&t| t <= end * (1.0 - part));
        let queue = &self.queue[first..];
        let n = queue.len().max(1) as f64;
        let mean = queue.iter().sum::<f64>() / n;
        let sd = (queue.iter().map(|q| (q - mean).powi(2)).sum::<f64>() / n).sqrt();
        let served = queue.iter().zip(&self.rates[first..]).map(|(&q, rates)| {
            let sum: f64 = rates.iter().sum();
            if q > 0.0 { self.bits_per_s } else { sum.min(self.bits_per_s) }
        });
        Tail { mean, sd, util: served.sum::<f64>() / n / self.bits_per_s }
    }

    /// When, after `from`, two flows were for the last time further than the part `limit` from equal shares.
    pub(crate) fn last_apart(&self, from: f64, limit: f64) -> f64 {
        let fair = self.bits_per_s / 2.0;
        let samples = self.time.iter().zip(&self.rates).rev();
        let mut apart =
            samples.take_while(|&(&t, _)| t > from).filter_map(|(&t, rates)| match rates[..] {
                [a, b] if (a - b).abs() / 2.0 > limit * fair => Some(t),
                _ => None,
            });
        apart.next().map_or(0.0, |t| t - from)
    }
}

#[cfg(test)]
mod tests {
    use super::super::theory::fixed_point;
    use super::*;

    #[track_caller]
    fn near(got: f64, want: f64, off: f64) {
        assert!((got - want).abs() <= off, "{got} instead of {want}");
    }

    #[test]
    fn it_comes_to_rest_where_the_root_is() {
        let k = Params::paper(1024);
        for n in [2, 4, 8, 10] {
            let tail = together(n, &k, Span::seconds(0.3)).tail(0.3);
            let root = fixed_point(f64::from(n), &k).queue;
            near(tail.mean / root, 1.0, 0.005);
            assert!(tail.sd < 1e3 && tail.util > 0.999_9, "{n}: {tail:?}");
        }
    }

    #[test]
    fn beyond_the_ramp_it_stays_under_kmax() {
        let k = Params::paper(1024);
        for (n, mean) in [(16, 191.3), (32, 186.1)] {
            let tail = together(n, &k, Span::seconds(0.3)).tail(0.3);
            near(tail.mean / 1e3, mean, 0.2);
        }
    }

    #[test]
    fn late_feedback_makes_it_swing() {
        let k = Params { delay: 85e-6, ..Params::paper(1024) };
        // Mean and deviation in KB, utilisation in percent: from the same model in another language.
        for (n, mean, sd, util) in [
            (2, 21.8, 0.0, 100.0),
            (4, 45.3, 34.04, 99.94),
            (8, 55.7, 75.06, 96.06),
            (10, 55.1, 79.43, 94.72),
            (32, 87.4, 120.29, 89.52),
        ] {
            let tail = together(n, &k, Span::seconds(0.3)).tail(0.3);
            near(tail.mean / 1e3, mean, 0.1);
            near(tail.sd / 1e3, sd, 0.1);
            near(tail.util * 100.0, util, 0.02);
        }
    }

    #[test]
    fn two_flows_find_the_same_rate() {
        let k = Params::paper(1024);
        let span = Span { step: 2e-6, ..Span::seconds(0.15) };
        let joins = [Start::LINE_RATE, Start { at: 0.05, rate: 1.0 }];
        let run = apart(&joins, &k, span);
        let after = |limit| 1e3 * run.last_apart(0.050_1, limit);
        for (limit, ms) in [(0.25, 33.1), (0.1, 49.3), (0.05, 59.3)] {
            near(after(limit), ms, 0.2);
        }
        let unequal = [Start { at: 0.0, rate: 0.75 }, Start { at: 0.0, rate: 0.25 }];
        let run = apart(&unequal, &k, Span { step: 2e-6, ..Span::seconds(0.1) });
        for (limit, ms) in [(0.25, 10.7), (0.1, 23.3), (0.05, 32.3)] {
            near(1e3 * run.last_apart(0.0, limit), ms, 0.1);
        }
    }
}
