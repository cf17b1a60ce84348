//! What is asked for, and what both sides agree on.

use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use softroce::verbs::Mtu;

use super::{Failure, Result};
use crate::args;

/// perftest's port.
pub(crate) const PORT: u16 = 18515;
/// Sizes of `--all`: powers of two up to this.
const LARGEST: u32 = 8 << 20;
/// Completions are asked for with each message above this size, with some of the smaller ones (as perftest).
const SIGNAL_ALL_ABOVE: u32 = 8192;
/// Memory that a side may register for a test: what a stranger can make a server allocate.
const MOST_MEMORY: u64 = 4 << 30;

#[derive(Clone, Debug, clap::Args)]
pub(super) struct Options {
    /// Where the server is; without HOST this side is the server
    #[arg(value_name = "HOST", conflicts_with = "local")]
    pub(super) host: Option<String>,
    /// Start both sides here: server and client on this machine
    #[arg(long)]
    pub(super) local: bool,
    /// Device, such as soft:eth0 or soft:udp=fd00::1 [default: $SOFTROCE_DEVICE, else soft:lo]
    #[arg(short = 'd', long = "ib-dev", value_name = "DEVICE")]
    pub(super) device: Option<String>,
    /// TCP port on which the two sides find each other
    #[arg(short, long, default_value_t = PORT)]
    pub(super) port: u16,
    /// Bytes of a message: 4096, 64K, 1M [default: 65536 for bandwidth, 2 for latency]
    #[arg(short, long, value_name = "BYTES", conflicts_with = "all", value_parser = args::message)]
    size: Option<u32>,
    /// All sizes: powers of two from 2 bytes to 8 MiB
    #[arg(short, long)]
    all: bool,
    /// Messages of each queue pair and size [default: 5000 for bandwidth, 1000 for latency]
    #[arg(short = 'n', long, value_name = "N")]
    iters: Option<u32>,
    /// Measure for so long instead of a number of messages
    #[arg(short = 'D', long, value_name = "SECONDS", conflicts_with = "iters")]
    duration: Option<u32>,
    /// Queue pairs [default: 1; bandwidth only]
    #[arg(short, long = "qp", value_name = "N")]
    qps: Option<u32>,
    /// Messages of a queue pair that are posted and not complete, at most [default: 128; bandwidth only]
    #[arg(short, long, value_name = "N")]
    tx_depth: Option<u32>,
    /// Receives that are posted for a queue pair [default: 512; send_bw only]
    #[arg(short, long, value_name = "N")]
    rx_depth: Option<u32>,
    /// Messages that are posted at once [default: 1; bandwidth only]
    #[arg(short = 'l', long = "post_list", value_name = "N")]
    post_list: Option<u32>,
    /// Path MTU: 256, 512, 1024, 2048 or 4096 [default: the smaller one of both ports]
    #[arg(short, long)]
    mtu: Option<u32>,
    /// Sleep for completions instead of looking for them (not with write_lat)
    #[arg(short, long)]
    events: bool,
    /// Bandwidth in Gbit/s instead of MiB/s
    #[arg(long = "report_gbits")]
    pub(super) report_gbits: bool,
    /// Print one JSON object instead of text (bandwidth in Gbit/s, times in microseconds)
    #[arg(long)]
    pub(super) json: bool,
    /// Be the server of the client that listens there
    #[arg(long, hide = true, value_name = "ADDRESS")]
    pub(super) serve_at: Option<SocketAddr>,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    WriteBw,
    ReadBw,
    SendBw,
    AtomicBw,
    WriteLat,
    ReadLat,
    SendLat,
    AtomicLat,
}

impl Kind {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::WriteBw => "write_bw",
            Self::ReadBw => "read_bw",
            Self::SendBw => "send_bw",
            Self::AtomicBw => "atomic_bw",
            Self::WriteLat => "write_lat",
            Self::ReadLat => "read_lat",
            Self::SendLat => "send_lat",
            Self::AtomicLat => "atomic_lat",
        }
    }

    pub(super) const fn is_latency(self) -> bool {
        matches!(self, Self::WriteLat | Self::ReadLat | Self::SendLat | Self::AtomicLat)
    }

    pub(super) const fn is_atomic(self) -> bool {
        matches!(self, Self::AtomicBw | Self::AtomicLat)
    }

    pub(super) const fn is_send(self) -> bool {
        matches!(self, Self::SendBw | Self::SendLat)
    }

    pub(super) const fn is_read(self) -> bool {
        matches!(self, Self::ReadBw | Self::ReadLat)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// When a test of one size is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Until {
    /// So many messages of each queue pair.
    Iterations(u32),
    /// So many seconds.
    Seconds(u32),
}

/// What both sides do. The client makes it and the server follows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Plan {
    pub(super) kind: Kind,
    pub(super) sizes: Vec<u32>,
    pub(super) until: Until,
    pub(super) qps: u32,
    pub(super) tx_depth: u32,
    pub(super) rx_depth: u32,
    pub(super) post_list: u32,
    pub(super) mtu: Option<u32>,
    pub(super) events: bool,
}

impl Options {
    /// What these options ask a test of `kind` to do.
    ///
    /// # Errors
    /// [`Failure::Usage`] with the option at fault.
    pub(super) fn plan(&self, kind: Kind) -> Result<Plan> {
        let latency = kind.is_latency();
        for (given, name, fits, whose) in [
            (self.qps.is_some(), "-q", !latency, "the bandwidth tests"),
            (self.tx_depth.is_some(), "-t", !latency, "the bandwidth tests"),
            (self.post_list.is_some(), "-l", !latency, "the bandwidth tests"),
            (self.rx_depth.is_some(), "-r", kind == Kind::SendBw, "send_bw"),
            (self.size.is_some(), "-s", !kind.is_atomic(), "tests other than atomics of 8 bytes"),
            (self.all, "-a", !kind.is_atomic(), "tests other than atomics of 8 bytes"),
            (self.events, "-e", kind != Kind::WriteLat, "tests with completions at both sides"),
        ] {
            if given && !fits {
                return Err(Failure::Usage(format!(
                    "{kind} takes no {name}: it belongs to {whose}"
                )));
            }
        }
        let sizes = match self.size {
            _ if kind.is_atomic() => vec![8],
            _ if self.all => (1..).map(|n| 1 << n).take_while(|&s| s <= LARGEST).collect(),
            Some(size) => vec![size],
            None => vec![if latency { 2 } else { 1 << 16 }],
        };
        let until = match (self.duration, self.iters) {
            (Some(seconds), _) => Until::Seconds(seconds),
            (None, Some(n)) => Until::Iterations(n),
            (None, None) => Until::Iterations(if latency { 1000 } else { 5000 }),
        };
        let plan = Plan {
            kind,
            sizes,
            until,
            qps: self.qps.unwrap_or(1),
            tx_depth: self.tx_depth.unwrap_or(if latency { 64 } else { 128 }),
            rx_depth: self.rx_depth.unwrap_or(512),
            post_list: self.post_list.unwrap_or(1),
            mtu: self.mtu,
            events: self.events,
        };
        plan.check().map_err(Failure::Usage)?;
        Ok(plan)
    }
}

impl Plan {
    /// Messages of each of these sizes through queues of one depth.
    ///
    /// # Errors
    /// [`Failure::Usage`] with what is out of range, by the name of its option.
    pub(super) fn swept(
        kind: Kind,
        sizes: &[u32],
        qps: u32,
        tx_depth: u32,
        until: Until,
    ) -> Result<Self> {
        let plan = Self {
            kind,
            sizes: sizes.to_vec(),
            until,
            qps,
            tx_depth,
            rx_depth: 512,
            post_list: 1,
            mtu: None,
            events: false,
        };
        plan.check().map_err(Failure::Usage)?;
        Ok(plan)
    }

    /// Whether it can be followed: a server asks this of what a client wants.
    ///
    /// # Errors
    /// What is out of range.
    pub(super) fn check(&self) -> Result<(), String> {
        let (n, what) = match self.until {
            Until::Iterations(n) => (n, "-n"),
            Until::Seconds(n) => (n, "-D"),
        };
        for (what, n, max) in [
            (what, n, u32::MAX),
            ("-q", self.qps, 1024),
            ("-t", self.tx_depth, 16_384),
            ("-r", self.rx_depth, 16_384),
            ("-l", self.post_list, 16_384),
        ] {
            if n == 0 || n > max {
                return Err(format!("{what} {n}: wanted 1 to {max}"));
            }
        }
        if self.post_list > self.tx_depth {
            let (list, depth) = (self.post_list, self.tx_depth);
            return Err(format!("-l {list} is more than -t {depth}: so many never fit the queue"));
        }
        self.mtu()?;
        if self.sizes.is_empty() || self.sizes.len() > 64 {
            return Err("no size, or too many".into());
        }
        for &size in &self.sizes {
            if size == 0 || size > 1 << 30 {
                return Err(format!("-s {size}: wanted 1 to {} bytes", 1 << 30));
            }
        }
        if self.memory() > MOST_MEMORY {
            let (qps, size) = (self.qps, self.largest());
            return Err(format!("-q {qps} with messages of {size} bytes needs more than 4 GiB"));
        }
        Ok(())
    }

    /// The path MTU asked for.
    ///
    /// # Errors
    /// There is no such one.
    pub(super) fn mtu(&self) -> Result<Option<Mtu>, String> {
        let Some(n) = self.mtu else { return Ok(None) };
        match usize::try_from(n).ok().and_then(Mtu::from_bytes) {
            Some(mtu) => Ok(Some(mtu)),
            None => Err(format!("-m {n}: wanted 256, 512, 1024, 2048 or 4096")),
        }
    }

    /// Bytes of the largest message.
    pub(super) fn largest(&self) -> u32 {
        self.sizes.iter().copied().max().unwrap_or(0)
    }

    /// Bytes set aside for a message: whole cache lines.
    pub(super) fn slot(&self) -> u64 {
        u64::from(self.largest()).next_multiple_of(64)
    }

    /// Bytes that each side registers: of each queue pair, what goes out and what comes in.
    pub(super) fn memory(&self) -> u64 {
        2 * self.slot() * u64::from(self.qps)
    }

    /// With every how many messages of this size a completion is asked for.
    pub(super) fn signal_every(&self, size: u32) -> u32 {
        if size > SIGNAL_ALL_ABOVE { 1 } else { (self.tx_depth / 2).clamp(1, 100) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn plan(kind: Kind, line: &[&str]) -> Result<Plan, String> {
        let line = Line::try_parse_from([&["perf"], line].concat()).unwrap();
        line.options.plan(kind).map_err(|e| match e {
            Failure::Usage(what) => what,
            Failure::Run(what) => panic!("not the user's fault? {what}"),
        })
    }

    #[test]
    fn defaults_are_those_of_perftest() {
        let bw = plan(Kind::WriteBw, &[]).unwrap();
        assert_eq!((&bw.sizes[..], bw.until), (&[65_536][..], Until::Iterations(5000)));
        assert_eq!((bw.qps, bw.tx_depth, bw.rx_depth, bw.post_list), (1, 128, 512, 1));
        let lat = plan(Kind::SendLat, &[]).unwrap();
        assert_eq!((&lat.sizes[..], lat.until), (&[2][..], Until::Iterations(1000)));
        assert_eq!(plan(Kind::AtomicBw, &[]).unwrap().sizes, [8]);
        let all = plan(Kind::ReadBw, &["-a", "-D", "2"]).unwrap();
        assert_eq!((all.sizes.len(), all.sizes[0], all.largest()), (23, 2, 8 << 20));
        assert_eq!(all.until, Until::Seconds(2));
    }

    #[test]
    fn what_cannot_be_is_said_in_a_line() {
        for (kind, line, part) in [
            (Kind::WriteLat, &["-q", "2"][..], "write_lat takes no -q"),
            (Kind::WriteBw, &["-r", "9"], "belongs to send_bw"),
            (Kind::AtomicLat, &["-s", "16"], "atomics of 8 bytes"),
            (Kind::WriteLat, &["-e"], "takes no -e"),
            (Kind::WriteBw, &["-q", "0"], "-q 0"),
            (Kind::WriteBw, &["-q", "1025"], "1 to 1024"),
            (Kind::WriteBw, &["-s", "0"], "-s 0"),
            (Kind::WriteBw, &["-s", "1073741825"], "1 to 1073741824 bytes"),
            (Kind::WriteBw, &["-q", "64", "-s", "1073741824"], "4 GiB"),
            (Kind::WriteBw, &["-m", "1500"], "-m 1500: wanted 256"),
            (Kind::WriteBw, &["-l", "129"], "more than -t 128"),
            (Kind::SendLat, &["-n", "0"], "-n 0"),
            (Kind::SendLat, &["-D", "0"], "-D 0"),
        ] {
            let e = plan(kind, line).unwrap_err();
            assert!(e.contains(part) && !e.contains('\n'), "{line:?}: {e}");
        }
    }

    #[test]
    fn completions_are_asked_for_before_the_queue_is_full() {
        for depth in [1, 2, 3, 128, 16_384] {
            let plan = plan(Kind::WriteBw, &["-t", &depth.to_string()]).unwrap();
            assert!((1..=depth).contains(&plan.signal_every(2)));
            assert_eq!(plan.signal_every(8193), 1);
        }
    }
}
