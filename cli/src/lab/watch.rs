//! What ports have seen, for experiments about pauses: when the first came, how long they lasted, what arrived.

use softroce::prelude::Duration;
use softroce::sim::{PortCounters, Receiver};

use super::Result;
use super::net::{Net, Path};

/// Bytes that a host holds before it asks its switch to pause.
const HOST_XOFF: usize = 100_000;
/// What is on its way to a host while its switch learns that it must stop, and to spare.
const HOST_HEADROOM: usize = 50_000;

/// A host that takes packets in at this speed, counted on the line; 0: not at all.
pub(crate) fn slow(path: Path, bits_per_s: u64) -> Receiver {
    Receiver {
        bits_per_s,
        buffer: HOST_XOFF + HOST_HEADROOM,
        xoff: HOST_XOFF,
        xon: HOST_XOFF - 2 * path.packet.frame as usize,
    }
}

/// Microseconds from a time to the first pause that a port sent. No number if it has sent none, or one before.
pub(crate) fn first_pause(net: &Net, of: &str, to: &str, since: Duration) -> Result<f64> {
    let first = net.net.counters(of, to)?.first_pause;
    let after = first.and_then(|at| at.checked_sub(since));
    Ok(after.map_or(f64::NAN, |d| d.as_secs_f64() * 1e6))
}

/// What a port had received, and for how long it had been paused, at a time.
#[derive(Debug)]
pub(crate) struct PortMark {
    at: Duration,
    port: (String, String),
    seen: PortCounters,
}

impl PortMark {
    /// Now.
    pub(crate) fn new(net: &Net, of: &str, to: &str) -> Result<Self> {
        let seen = net.net.counters(of, to)?;
        Ok(Self { at: net.sim().now(), port: (of.into(), to.into()), seen })
    }

    /// The counters now, and the nanoseconds since then.
    fn now(&self, net: &Net) -> Result<(PortCounters, f64)> {
        let now = net.net.counters(&self.port.0, &self.port.1)?;
        let ns = net.sim().now().saturating_sub(self.at).as_nanos() as f64;
        Ok((now, ns.max(1.0)))
    }

    /// Gbit/s of payload that arrived there since then in full packets of this priority.
    pub(crate) fn arrived(&self, net: &Net, path: Path, priority: u8) -> Result<f64> {
        let (now, ns) = self.now(net)?;
        let p = usize::from(priority);
        let packets = now.rx_packets[p] - self.seen.rx_packets[p];
        Ok(packets as f64 * path.mtu.bytes() as f64 * 8.0 / ns)
    }

    /// Percent of the time since then for which it could not send, by pauses that have ended.
    pub(crate) fn paused(&self, net: &Net) -> Result<f64> {
        let (now, ns) = self.now(net)?;
        let paused = |c: &PortCounters| c.rx_pause_ns.iter().sum::<u64>();
        Ok((paused(&now) - paused(&self.seen)) as f64 * 100.0 / ns)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::lab::net::host;
    use crate::lab::traffic::until;
    use crate::lab::worst::millis;
    use crate::lab::{Experiment, Progress, Setup, html};
    use softroce::sim::Topology;

    /// The short variant of an experiment passes, and comes to the same bytes again.
    pub(crate) fn short_passes_and_repeats(experiment: &dyn Experiment) {
        let run = || {
            let setup = Setup { seed: 1, short: true };
            experiment.run(&setup, &mut Progress::new("test")).unwrap()
        };
        let (first, second) = (run(), run());
        assert!(first.ok(), "{:#?}", first.rows.iter().filter(|r| !r.ok).collect::<Vec<_>>());
        assert_eq!(first.json().unwrap(), second.json().unwrap());
        assert_eq!(html::page(&first, true), html::page(&second, true));
        assert!(first.drawing.is_some() && !first.plots.is_empty() && !first.lesson.is_empty());
    }

    #[test]
    fn ports_are_watched() {
        let path = Path::MTU_1024;
        let mut t = Topology::new();
        t.switch("S", path.pausing(100_000)).host("A", "S", host()).host("R", "S", host());
        let net = Net::build(&t, 1).unwrap();
        let spec = crate::lab::traffic::Spec::new(path.mtu, Duration::ZERO);
        let _flow = net.flow("A", "R", &spec.traffic_class(crate::lab::net::DATA_CLASS)).unwrap();
        until(net.sim(), millis(1));
        net.net.set_receiver("R", Some(slow(path, 10_000_000_000))).unwrap();
        let here = PortMark::new(&net, "R", "S").unwrap();
        let there = PortMark::new(&net, "S", "R").unwrap();
        assert!(first_pause(&net, "R", "S", Duration::ZERO).unwrap().is_nan(), "none yet");
        until(net.sim(), millis(6));
        // 100 kB fill at three quarters of 40 Gbit/s, and a packet or two.
        let first = first_pause(&net, "R", "S", millis(1)).unwrap();
        assert!((26.0..29.0).contains(&first), "{first}");
        assert!(first_pause(&net, "R", "S", millis(2)).unwrap().is_nan(), "it was before that");
        // A quarter of the line, and what the buffer took.
        let arrived = here.arrived(&net, path, 3).unwrap();
        assert!((arrived - path.full() / 4.0 - 0.15).abs() < 0.05, "{arrived}");
        let paused = there.paused(&net).unwrap();
        assert!((72.0..77.0).contains(&paused), "{paused}");
        assert!(here.paused(&net).unwrap().abs() < 1e-9);
    }
}
