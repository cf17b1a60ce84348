//! Three switches in a circle.

use softroce::prelude::Duration;
use softroce::sim::{SwitchConfig, Threshold, Topology};

use crate::lab::Result;
use crate::lab::drawing::Drawing;
use crate::lab::net::{DATA_CLASS, Net, Path, cable, host};
use crate::lab::traffic::{Jitter, Spec, until};

/// Bytes that a port may hold, where pauses come early.
pub(super) const XOFF: usize = 20_000;
/// When the senders are switched off.
pub(super) const STOP: Duration = Duration::from_millis(1);
/// What is on cables has arrived by then.
const SETTLED: Duration = Duration::from_micros(50);
/// The shortest time in which a packet and its ACK go by four cables: four times 1 us there, and four back.
const RTT: Duration = Duration::from_micros(9);
pub(super) const PATH: Path = Path::MTU_1024;
pub(super) const SWITCHES: [&str; 3] = ["S0", "S1", "S2"];
const RECEIVERS: [&str; 3] = ["R0", "R1", "R2"];
/// One on each switch.
const SENDERS: [&str; 3] = ["A0", "A1", "A2"];

/// How packets go round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ways {
    /// All clockwise, by two cables between switches.
    Circle,
    /// The same, but nobody goes up after having gone down (S0 is on top): from S1 to S0 by the one cable.
    UpDown,
}

/// What came of it.
#[derive(Debug)]
pub(super) struct Outcome {
    /// Queues that wait for each other.
    pub(super) circle: usize,
    /// Least that a switch holds when all is settled.
    pub(super) held: usize,
    /// Bytes in all switches then.
    pub(super) total: usize,
    /// Most by which any switch changed in ten round trips after that.
    pub(super) moved: usize,
    /// Bytes in all switches at the end.
    pub(super) left: usize,
    /// Milliseconds, and kilobytes in all switches.
    pub(super) over_time: Vec<(f64, f64)>,
    pub(super) drawing: Drawing,
}

/// A switch that pauses early.
pub(super) fn early() -> SwitchConfig {
    PATH.pausing(XOFF)
}

/// A switch that pauses when nearly all of its buffer is in use.
pub(super) fn late() -> SwitchConfig {
    SwitchConfig { threshold: Threshold::Dynamic(8.0), ..PATH.switch() }
}

pub(super) fn run(config: &SwitchConfig, ways: Ways, seed: u64) -> Result<Outcome> {
    let mut t = Topology::new();
    for switch in SWITCHES {
        t.switch(switch, config.clone());
    }
    for i in 0..3 {
        t.cable(SWITCHES[i], SWITCHES[(i + 1) % 3], cable());
        t.host(RECEIVERS[i], SWITCHES[i], host());
        t.host(SENDERS[i], SWITCHES[i], host());
    }
    let net = Net::build(&t, seed)?;
    let mut jitter = Jitter::new(seed);
    let mut flows = Vec::new();
    for i in 0..3 {
        let (next, last) = ((i + 1) % 3, (i + 2) % 3);
        let (circle, direct) =
            ([SWITCHES[i], SWITCHES[next], SWITCHES[last]], [SWITCHES[i], SWITCHES[last]]);
        let up_after_down = i == 1;
        let way = if ways == Ways::UpDown && up_after_down { &direct[..] } else { &circle };
        net.pin(SENDERS[i], RECEIVERS[last], way)?;
        let spec = Spec::new(PATH.mtu, PATH.start(&mut jitter, 3)).traffic_class(DATA_CLASS);
        flows.push(net.flow(SENDERS[i], RECEIVERS[last], &spec)?);
    }
    let held =
        || -> Result<Vec<usize>> { SWITCHES.iter().map(|s| Ok(net.net.buffered(s)?.0)).collect() };
    let mut over_time = Vec::new();
    let mut watch = |end: Duration, step: Duration| -> Result<()> {
        while net.sim().now() < end {
            until(net.sim(), (net.sim().now() + step).min(end));
            let kilobytes = held()?.iter().sum::<usize>() as f64 / 1e3;
            over_time.push((net.sim().now().as_secs_f64() * 1e3, kilobytes));
        }
        Ok(())
    };
    watch(STOP, Duration::from_micros(20))?;
    for sender in SENDERS {
        net.sim().kill(&net.station(sender).ctx)?;
    }
    watch(STOP + SETTLED, Duration::from_micros(10))?;
    let settled = held()?;
    let mut moved = 0;
    for _ in 0..10 {
        watch(net.sim().now() + RTT, RTT)?;
        let change = held()?.iter().zip(&settled).map(|(a, b)| a.abs_diff(*b)).max();
        moved = moved.max(change.unwrap_or(0));
    }
    watch(4 * STOP, Duration::from_micros(20))?;
    let circle = net.net.deadlock().len();
    let mut drawing = drawing();
    net.show_pauses(&mut drawing);
    Ok(Outcome {
        circle,
        held: settled.iter().copied().min().unwrap_or(0),
        total: settled.iter().sum(),
        moved,
        left: held()?.iter().sum(),
        over_time,
        drawing,
    })
}

fn drawing() -> Drawing {
    let mut drawing =
        Drawing::new("all cables 40 Gbit/s, 1 us; everything goes clockwise, two switches far")
            .switches(1, &["S0"])
            .switches(2, &["S2", "S1"])
            .hosts(0, &["A0", "R0"])
            .hosts(3, &["A2", "R2", "A1", "R1"]);
    for i in 0..3 {
        drawing = drawing.cable(SWITCHES[i], SWITCHES[(i + 1) % 3]);
        drawing = drawing.cable(RECEIVERS[i], SWITCHES[i]);
        drawing = drawing
            .cable(SENDERS[i], SWITCHES[i])
            .tag(SENDERS[i], format!("to {}", RECEIVERS[(i + 2) % 3]));
    }
    drawing
}
