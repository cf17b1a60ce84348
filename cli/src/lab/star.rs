//! Senders `H0`, `H1`... and a receiver `R` at one switch `SW`: what most experiments with congestion control need.

use softroce::cc::Dcqcn;
use softroce::prelude::{Duration, Recovery};
use softroce::sim::{PortCounters, SwitchConfig, Topology};

use super::Result;
use super::drawing::Drawing;
use super::net::{DATA, DATA_CLASS, LINE, Net, Path, host};
use super::traffic::{Flow, Jitter, Mark, Spec, paper, until};

/// The network and its flows, which have begun.
#[derive(Debug)]
pub(crate) struct Star {
    pub(crate) net: Net,
    pub(crate) flows: Vec<Flow>,
}

/// One sender.
#[derive(Clone, Debug)]
pub(crate) struct Sender {
    pub(crate) start: Duration,
    pub(crate) cc: Option<Dcqcn>,
}

/// So many that start together, within as many packet times, under DCQCN or without anything.
pub(crate) fn alike(path: Path, n: u32, seed: u64, dcqcn: bool) -> Result<Vec<Sender>> {
    let mut jitter = Jitter::new(seed);
    let sender = |_| {
        let cc = if dcqcn { Some(paper(LINE)?) } else { None };
        Ok(Sender { start: path.start(&mut jitter, n), cc })
    };
    (0..n).map(sender).collect()
}

/// The name of a sender.
pub(crate) fn name(i: usize) -> String {
    format!("H{i}")
}

impl Star {
    pub(crate) fn new(
        path: Path,
        config: SwitchConfig,
        seed: u64,
        senders: &[Sender],
    ) -> Result<Self> {
        Self::recovering(path, config, seed, senders, Recovery::GoBackN)
    }

    /// The same, with another answer to losses.
    pub(crate) fn recovering(
        path: Path,
        config: SwitchConfig,
        seed: u64,
        senders: &[Sender],
        recovery: Recovery,
    ) -> Result<Self> {
        let mut t = Topology::new();
        t.switch("SW", config).host("R", "SW", host());
        for i in 0..senders.len() {
            t.host(name(i), "SW", host());
        }
        let net = Net::build(&t, seed)?;
        let flow = |(i, sender): (usize, &Sender)| {
            let spec = Spec::new(path.mtu, sender.start).traffic_class(DATA_CLASS);
            net.flow(&name(i), "R", &spec.cc(sender.cc.clone()).recovery(recovery))
        };
        let flows = senders.iter().enumerate().map(flow).collect::<Result<_>>()?;
        Ok(Self { net, flows })
    }

    /// Runs until a time.
    pub(crate) fn until(&self, when: Duration) {
        until(self.net.sim(), when);
    }

    /// Runs until a time; Gbit/s of payload of each flow meanwhile.
    pub(crate) fn rates_until(&self, when: Duration) -> Result<Vec<f64>> {
        let mark = Mark::new(self.net.sim(), &self.flows)?;
        self.until(when);
        mark.rates(self.net.sim(), &self.flows)
    }

    /// Frame bytes of data that wait for the receiver's line.
    #[expect(clippy::cast_precision_loss, reason = "bytes of a queue")]
    pub(crate) fn queue(&self) -> Result<f64> {
        Ok(self.net.net.queue("SW", "R")?[usize::from(DATA)] as f64)
    }

    /// Runs until a time and looks at the queue every so often: (ms, bytes).
    pub(crate) fn queue_until(&self, when: Duration, every: Duration) -> Result<Vec<(f64, f64)>> {
        let mut samples = Vec::new();
        while self.net.sim().now() < when {
            self.until((self.net.sim().now() + every).min(when));
            samples.push((self.net.sim().now().as_secs_f64() * 1e3, self.queue()?));
        }
        Ok(samples)
    }

    /// What the port to the receiver has counted.
    pub(crate) fn port(&self) -> Result<PortCounters> {
        Ok(self.net.net.counters("SW", "R")?)
    }

    /// Congestion notifications that all senders have had.
    pub(crate) fn cnps(&self) -> Result<u64> {
        let of = |i| self.net.station(&name(i)).counter("rp_cnp_handled");
        (0..self.flows.len()).map(of).sum()
    }
}

/// A picture of it.
pub(crate) fn drawing(senders: &[&str]) -> Drawing {
    let mut drawing = Drawing::new("all cables 40 Gbit/s, 1 us")
        .hosts(0, senders)
        .switches(1, &["SW"])
        .hosts(2, &["R"])
        .cable("SW", "R")
        .bottleneck("SW", "R")
        .tag("R", "receiver");
    for sender in senders {
        drawing = drawing.cable(sender, "SW");
    }
    drawing
}

/// Mean of samples.
#[expect(clippy::cast_precision_loss, reason = "of samples")]
pub(crate) fn mean(samples: &[(f64, f64)]) -> f64 {
    samples.iter().map(|s| s.1).sum::<f64>() / samples.len().max(1) as f64
}

/// Their standard deviation.
#[expect(clippy::cast_precision_loss, reason = "of samples")]
pub(crate) fn deviation(samples: &[(f64, f64)]) -> f64 {
    let mean = mean(samples);
    let squares: f64 = samples.iter().map(|s| (s.1 - mean).powi(2)).sum();
    (squares / samples.len().max(1) as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::super::worst::millis;
    use super::*;

    #[test]
    fn two_flows_share_a_line_and_queue_for_it() {
        let path = Path::MTU_4096;
        let senders = alike(path, 2, 1, true).unwrap();
        let star = Star::new(path, path.marking(), 1, &senders).unwrap();
        let samples = star.queue_until(millis(3), Duration::from_micros(10)).unwrap();
        assert_eq!(samples.len(), 300);
        assert!(samples.iter().any(|s| s.1 > 100_000.0), "the start is too fast for the line");
        let rates = star.rates_until(millis(6)).unwrap();
        let sum: f64 = rates.iter().sum();
        assert!((sum / path.full() - 1.0).abs() < 0.02, "{rates:?}");
        assert!(star.cnps().unwrap() > 2 && star.port().unwrap().ecn_marked > 2);
        assert_eq!(star.net.drops(), 0);
    }

    #[test]
    fn known_samples() {
        let samples = [(0.0, 1.0), (1.0, 3.0)];
        assert!((mean(&samples) - 2.0).abs() < 1e-12 && (deviation(&samples) - 1.0).abs() < 1e-12);
    }
}
