//! `softroce lab bench`: how fast the simulator is here, and how much memory a host takes.

use std::fs;
use std::process::ExitCode;
use std::time::Instant;

use serde::Serialize;
use softroce::sim::{Cable, HostConfig, Payload, Sim, SwitchConfig, Topology};

use super::net::{DATA_CLASS, LINE, Net, Path, host};
use super::traffic::{Flow, Jitter, Spec, paper, until};
use super::worst::millis;
use super::{Failure, Result};
use crate::output::print;

#[expect(clippy::disallowed_methods, reason = "how long it takes is the question")]
fn now() -> Instant {
    Instant::now()
}

#[derive(Debug, clap::Args)]
pub(crate) struct BenchArgs {
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
    /// Only cases whose name contains this
    #[arg(value_name = "CASE")]
    only: Option<String>,
}

/// What a case came to.
#[derive(Debug, Serialize)]
struct Figure {
    name: String,
    hosts: usize,
    /// Packets that reached a host.
    packets: u64,
    events: u64,
    seconds: f64,
    events_per_s: f64,
    ns_per_event: f64,
}

/// Who sends to whom.
#[derive(Clone, Copy, Debug)]
enum Who {
    /// The first to the last.
    One,
    /// All to the last.
    Incast,
    /// Each to the one half of all further on.
    Across,
}

struct Case {
    name: &'static str,
    topology: Topology,
    who: Who,
    ms: u64,
}

fn star(hosts: usize, host: &HostConfig) -> Topology {
    Topology::star(hosts, Path::MTU_1024.marking(), host)
}

/// Leaves of 16 hosts, half as many ways up as hosts, each twice as fast.
fn leaf_spine(hosts: usize, host: &HostConfig) -> Topology {
    let config = SwitchConfig { buffer: 32_000_000, ..Path::MTU_1024.marking() };
    Topology::leaf_spine(hosts.div_ceil(16), 4, hosts.min(16), config, host, Cable::gbits(160))
}

fn cases() -> Vec<Case> {
    let bytes = HostConfig { payload: Payload::Carried, ..host() };
    let case = |name, topology, who, ms| Case { name, topology, who, ms };
    vec![
        case("pair", star(2, &host()), Who::One, 40),
        case("incast 16", star(17, &host()), Who::Incast, 40),
        case("leaf-spine 128", leaf_spine(128, &host()), Who::Across, 2),
        case("pair, with bytes", star(2, &bytes), Who::One, 40),
        case("incast 16, with bytes", star(17, &bytes), Who::Incast, 40),
        case("leaf-spine 16", leaf_spine(16, &host()), Who::Across, 16),
        case("leaf-spine 64", leaf_spine(64, &host()), Who::Across, 4),
        case("leaf-spine 256", leaf_spine(256, &host()), Who::Across, 1),
        case("leaf-spine 1024", leaf_spine(1024, &host()), Who::Across, 1),
    ]
}

fn run(case: &Case) -> Result<Figure> {
    let hosts: Vec<String> = case.topology.hosts().map(|(name, ..)| name.to_owned()).collect();
    let net = Net::build(&case.topology, 1)?;
    let mut jitter = Jitter::new(1);
    let n = hosts.len();
    let pairs: Vec<(usize, usize)> = match case.who {
        Who::One => vec![(0, n - 1)],
        Who::Incast => (0..n - 1).map(|from| (from, n - 1)).collect(),
        Who::Across => (0..n).map(|from| (from, (from + n / 2) % n)).collect(),
    };
    let path = Path::MTU_1024;
    let start = |_: &_| -> Result<Spec> {
        let spec = Spec::new(path.mtu, path.start(&mut jitter, 8)).traffic_class(DATA_CLASS);
        Ok(spec.cc(Some(paper(LINE)?)))
    };
    let specs = pairs.iter().map(start).collect::<Result<Vec<_>>>()?;
    let connect = |(&(from, to), spec): (&(usize, usize), &Spec)| -> Result<Flow> {
        net.flow(&hosts[from], &hosts[to], spec)
    };
    let flows = pairs.iter().zip(&specs).map(connect).collect::<Result<Vec<_>>>()?;
    // Warm: all buffers are as large as they will be.
    until(net.sim(), millis(1));
    let (events, packets) = (net.sim().events(), net.sim().total_counters().delivered);
    let begun = now();
    until(net.sim(), millis(1 + case.ms));
    let seconds = begun.elapsed().as_secs_f64();
    flows.iter().try_for_each(Flow::check)?;
    let events = net.sim().events() - events;
    #[expect(clippy::cast_precision_loss, reason = "of events in a second or two")]
    let count = events as f64;
    Ok(Figure {
        name: case.name.into(),
        hosts: n,
        packets: net.sim().total_counters().delivered - packets,
        events,
        seconds,
        events_per_s: count / seconds,
        ns_per_event: seconds * 1e9 / count,
    })
}

/// Bytes of memory that each of a thousand hosts takes which do nothing.
fn idle_host() -> Result<u64> {
    const HOSTS: u64 = 1000;
    let resident = || -> Result<u64> {
        let statm = fs::read_to_string("/proc/self/statm")
            .map_err(|e| Failure::Run(format!("/proc/self/statm: {e}")))?;
        let pages = statm.split(' ').nth(1).and_then(|n| n.parse::<u64>().ok());
        Ok(pages.unwrap_or(0) * 4096)
    };
    let config = SwitchConfig { buffer: 64_000_000, ..Path::MTU_1024.marking() };
    let topology = Topology::star(1000, config, &host());
    let before = resident()?;
    let net = topology.build_on(Sim::exact(1))?;
    let after = resident()?;
    drop(net);
    Ok(after.saturating_sub(before) / HOSTS)
}

pub(crate) fn bench(args: &BenchArgs) -> Result<ExitCode> {
    // Before anything has been freed that could be taken again.
    let wants = |name: &str| args.only.as_ref().is_none_or(|only| name.contains(only.as_str()));
    let memory = if wants("idle host") { Some(idle_host()?) } else { None };
    let mut figures = Vec::new();
    for case in cases().iter().filter(|case| wants(case.name)) {
        figures.push(run(case)?);
    }
    if figures.is_empty() && memory.is_none() {
        let all: Vec<_> = cases().iter().map(|case| case.name).collect();
        let all = all.join("\", \"");
        return Err(Failure::Usage(format!("no case is called so: there are \"{all}\"")));
    }
    Ok(print(0, |out| {
        if args.json {
            let all = serde_json::json!({ "cases": figures, "bytes_per_idle_host": memory });
            serde_json::to_writer_pretty(&mut *out, &all)?;
            return writeln!(out);
        }
        writeln!(
            out,
            "{:<24} {:>6} {:>10} {:>11} {:>9}",
            "case", "hosts", "packets", "M events/s", "ns/event"
        )?;
        for f in &figures {
            let millions = f.events_per_s / 1e6;
            writeln!(
                out,
                "{:<24} {:>6} {:>10} {:>11.2} {:>9.0}",
                f.name, f.hosts, f.packets, millions, f.ns_per_event
            )?;
        }
        match memory {
            Some(bytes) => writeln!(out, "an idle host takes {:.1} KiB", bytes as f64 / 1024.0),
            None => Ok(()),
        }
    }))
}
