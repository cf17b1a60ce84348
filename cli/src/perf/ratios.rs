//! `softroce perf ratios`: the engine against bare sockets, in one run.
//!
//! How fast a machine is changes by the minute, so no figure here stands alone: what is judged is the ratio
//! of the engine to a loop that does the least an engine could do ([`raw`](crate::raw)), taken in the same
//! minute by the same two processes on the same two processors.
//!
//! Both contenders of a row take turns. A *pair* is a run of the one and, right after it, a run of the other;
//! it gives one ratio. Of at least nine pairs the median counts, and more pairs are made while the quartiles
//! are too far apart. A pair in which a process had to wait for its processor is thrown away.
//!
//! *The metric* of a stream is the time per data packet that a side spends inside calls, at the side that
//! spends more, as the median over groups of packets. Of the baseline that is building and sending, or
//! receiving, checking and copying; of the engine it is every `post_send` and every `poll` that moved
//! something, and so ACKs, completions and locks too. Calls that found nothing to do are waiting, and left
//! out. The metric of a ping-pong is half of a round trip.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use softroce::verbs::Context;

use super::control::{Control, Drops, Go, PATIENCE};
use super::report::print;
use super::side::{Tally, open};
use super::{Failure, Result, now};
use crate::raw::{Sample, Shape};

mod contender;

use contender::{ANY, Contender, LOOK, Op, Player, Stream};

/// Length of a run.
const RUN: Duration = Duration::from_millis(100);
/// Pairs of a row, at most, and how long they may take.
const MOST_PAIRS: usize = 80;
const LONGEST_ROW: Duration = Duration::from_secs(90);
/// Quartiles further apart than this part of the median ask for more pairs.
const SPREAD: f64 = 0.15;
/// A process that waited for its processor for more than this part of a run was disturbed.
const DISTURBED: f64 = 0.1;

/// Compare the engine with what the same sockets do without it
///
/// Prints the engine's figure divided by the baseline's: goodput in most rows (1 is as fast as bare sockets,
/// more is better), time in the rows whose name begins with lat (less is better). docs/performance.md says
/// what is measured and how.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Rows to measure, with commas between them [default: all]
    #[arg(long, value_enum, value_name = "ROW,...", value_delimiter = ',')]
    rows: Vec<Row>,
    /// Pairs of runs of each row, at least
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(3..=80))]
    pairs: u32,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    /// Be the other process of the one that listens there
    #[arg(long, hide = true, value_name = "ADDRESS")]
    peer: Option<SocketAddr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Row {
    /// WRITE of 1 MiB at a path MTU of 4096 against segmented sends of 15 packets
    #[value(name = "write_1m_4096")]
    Write1m4096,
    /// WRITE of 64 KiB: the first packet of a message is longer and goes alone, in the baseline too
    #[value(name = "write_64k_4096")]
    Write64k4096,
    /// WRITE of 1 MiB at a path MTU of 1024 against segmented sends of 62 packets
    #[value(name = "write_1m_1024")]
    Write1m1024,
    /// READ of 1 MiB against WRITE of 1 MiB, both by the engine
    #[value(name = "read_over_write")]
    ReadOverWrite,
    /// Ping-pong of 64 bytes, both sides looking all the time
    #[value(name = "lat_spin")]
    LatSpin,
    /// Ping-pong of 64 bytes, both sides asleep until the other's message comes
    #[value(name = "lat_block")]
    LatBlock,
    /// SEND of 64 bytes, 64 posted at once, against segmented sends of 64 packets
    #[value(name = "send64_batched")]
    Send64Batched,
    /// SEND of 64 bytes, each posted by itself, against single sends
    #[value(name = "send64_single")]
    Send64Single,
}

impl Row {
    const ALL: [Self; 8] = [
        Self::Write1m4096,
        Self::Write64k4096,
        Self::Write1m1024,
        Self::ReadOverWrite,
        Self::LatSpin,
        Self::LatBlock,
        Self::Send64Batched,
        Self::Send64Single,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Write1m4096 => "write_1m_4096",
            Self::Write64k4096 => "write_64k_4096",
            Self::Write1m1024 => "write_1m_1024",
            Self::ReadOverWrite => "read_over_write",
            Self::LatSpin => "lat_spin",
            Self::LatBlock => "lat_block",
            Self::Send64Batched => "send64_batched",
            Self::Send64Single => "send64_single",
        }
    }

    /// The baseline, and what is judged by it.
    fn contenders(self) -> [Contender; 2] {
        let write = |size, mtu, shape: Shape| {
            let stream = Stream { op: Op::Write, size, mtu, list: 1, group: shape.packets() };
            [Contender::RawStream(shape), Contender::Stream(stream)]
        };
        let send = |list, shape: Shape| {
            let stream = Stream { op: Op::Send, size: 64, mtu: 4096, list, group: shape.packets() };
            [Contender::RawStream(shape), Contender::Stream(stream)]
        };
        match self {
            Self::Write1m4096 => write(1 << 20, 4096, Shape::R1),
            Self::Write64k4096 => write(1 << 16, 4096, Shape::R1B),
            Self::Write1m1024 => write(1 << 20, 1024, Shape::R2),
            Self::ReadOverWrite => [Op::Write, Op::Read].map(|op| {
                Contender::Stream(Stream { op, size: 1 << 20, mtu: 4096, list: 1, group: 15 })
            }),
            Self::LatSpin => {
                [Contender::RawPing { blocking: false }, Contender::Ping { blocking: false }]
            }
            Self::LatBlock => {
                [Contender::RawPing { blocking: true }, Contender::Ping { blocking: true }]
            }
            Self::Send64Batched => send(64, Shape::R3),
            Self::Send64Single => send(1, Shape::R3_SINGLE),
        }
    }

    const fn is_latency(self) -> bool {
        matches!(self, Self::LatSpin | Self::LatBlock)
    }
}

/// What the leading process asks of the other one.
#[derive(Debug, Serialize, Deserialize)]
enum Order {
    /// Forget the contenders of the last row.
    NewRow,
    /// Make the other end of this one, and say where it is.
    Open(Contender),
    /// Run it (the first is number 0), until the next order.
    Run(usize),
    /// Stop, and say what you have measured.
    Stop,
    /// Good bye.
    Bye,
}

/// What a process measured in a run.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Outcome {
    /// No median where nothing was measured.
    ns_per_packet: Option<f64>,
    packets: u64,
    wall_ns: u64,
    /// Time that the process was ready to run and had no processor.
    delay_ns: u64,
    /// System calls of the engine's port, and datagrams that found its receive buffer full.
    calls: u64,
    drops: u64,
}

impl Outcome {
    fn new(sample: &Sample, delay_ns: u64, moved: Drops) -> Result<Self> {
        if sample.bad > 0 {
            return Err(Failure::run(format_args!("{} packets arrived damaged", sample.bad)));
        }
        let ns = sample.busy_ns_per_packet_median;
        Ok(Self {
            ns_per_packet: ns.is_finite().then_some(ns),
            packets: sample.packets,
            wall_ns: sample.wall_ns,
            delay_ns,
            calls: moved.calls,
            drops: moved.port_overruns,
        })
    }

    #[expect(clippy::cast_precision_loss, reason = "of nanoseconds below a day")]
    fn is_disturbed(&self) -> bool {
        self.delay_ns as f64 > DISTURBED * self.wall_ns as f64
    }
}

/// Measures, on whichever side.
pub(super) fn run(args: &Args) -> Result<()> {
    if let Some(address) = args.peer {
        pin(Cpu::Last)?;
        return follow(&mut Control::dial(address)?);
    }
    let listener = TcpListener::bind(ANY)?;
    let mut other = Other::start(listener.local_addr()?)?;
    // After that, for the other process inherits where this one may run.
    pin(Cpu::First)?;
    let mut control = Control::accept(&listener, PATIENCE, || other.is_well())?;
    let ctx = open(Some("soft:lo"))?;
    let mut results = Vec::new();
    if !args.json {
        print(
            "row              ratio  [  q1 ..   q3]   wall   base ns  engine ns  calls  drops  pairs  thrown away\n",
        )?;
    }
    let rows = if args.rows.is_empty() { &Row::ALL[..] } else { &args.rows };
    for &row in rows {
        let result = measure(row, args.pairs as usize, &ctx, &mut control)?;
        if !args.json {
            print(&result.line())?;
        }
        results.push(result);
    }
    control.send(&Order::Bye)?;
    if args.json {
        let mut line = serde_json::to_string(&Results { rows: results }).map_err(Failure::run)?;
        line.push('\n');
        print(&line)?;
    }
    Ok(())
}

/// The other process, which ends with this value.
struct Other(Child);

impl Other {
    fn start(at: SocketAddr) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["perf", "ratios", "--peer", &at.to_string()]);
        Ok(Self(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?))
    }

    fn is_well(&mut self) -> Result<()> {
        match self.0.try_wait()? {
            None => Ok(()),
            Some(status) => Err(Failure::run(format_args!("the other process ended: {status}"))),
        }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // Where it has ended already there is nothing to kill.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

enum Cpu {
    First,
    Last,
}

/// Keeps this process, and the threads that it will start, on one processor.
fn pin(which: Cpu) -> Result<()> {
    let this = Pid::from_raw(0);
    let allowed = sched_getaffinity(this).map_err(std::io::Error::from)?;
    let mut cpus = (0..CpuSet::count()).filter(|&cpu| allowed.is_set(cpu).unwrap_or(false));
    let cpu = match which {
        Cpu::First => cpus.next(),
        Cpu::Last => cpus.next_back(),
    };
    let Some(cpu) = cpu else { return Ok(()) };
    let mut one = CpuSet::new();
    one.set(cpu).map_err(std::io::Error::from)?;
    sched_setaffinity(this, &one).map_err(std::io::Error::from)?;
    Ok(())
}

/// How long this thread has waited for a processor so far: the second number of `schedstat`. 0 where the
/// kernel does not say.
fn run_delay() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// What came out of a row.
#[derive(Debug, Serialize)]
struct RowResult {
    name: &'static str,
    /// The engine's figure divided by the baseline's.
    ratio: f64,
    q1: f64,
    q3: f64,
    /// The same of the time on the clock, waiting and all.
    wall: f64,
    /// Nanoseconds per packet, or of half a round trip.
    base_ns: f64,
    engine_ns: f64,
    /// The same of the side that posts and of the other one. Nothing where a side measures nothing.
    base_sides_ns: [Option<f64>; 2],
    engine_sides_ns: [Option<f64>; 2],
    /// The engine's system calls per packet, or per half of a round trip, of both sides together. Looks at an
    /// empty socket are not counted.
    calls: f64,
    /// Datagrams that found a receive buffer of the engine's full, in all runs together.
    drops: u64,
    pairs: usize,
    /// Pairs thrown away because a process had to wait for its processor.
    thrown_away: usize,
    /// The machine was too busy for undisturbed pairs: these are disturbed ones.
    disturbed: bool,
}

#[derive(Debug, Serialize)]
struct Results {
    rows: Vec<RowResult>,
}

impl RowResult {
    fn line(&self) -> String {
        let note = if self.disturbed { "  (disturbed: the machine is busy)" } else { "" };
        format!(
            "{:<15} {:>6.3}  [{:.3} .. {:.3}]  {:>5.2}  {:>8.0}  {:>9.0}  {:>5.2}  {:>5}  {:>5}  {:>11}{note}\n",
            self.name,
            self.ratio,
            self.q1,
            self.q3,
            self.wall,
            self.base_ns,
            self.engine_ns,
            self.calls,
            self.drops,
            self.pairs,
            self.thrown_away
        )
    }
}

/// A run of each contender: its figure in nanoseconds per packet, by work and by the clock.
#[derive(Clone, Copy, Debug)]
struct Pair {
    busy: [f64; 2],
    sides: [[Option<f64>; 2]; 2],
    wall: [f64; 2],
    /// Of the engine.
    calls: f64,
    drops: u64,
}

impl Pair {
    const NONE: Self =
        Self { busy: [0.0; 2], sides: [[None; 2]; 2], wall: [0.0; 2], calls: 0.0, drops: 0 };
}

/// Leads through a row.
fn measure(row: Row, pairs: usize, ctx: &Context, control: &mut Control) -> Result<RowResult> {
    control.send(&Order::NewRow)?;
    let mut players = Vec::new();
    for contender in row.contenders() {
        control.send(&Order::Open(contender))?;
        players.push(contender.open(ctx, control)?);
    }
    let until = now() + LONGEST_ROW;
    // Windows open, caches fill, tables grow.
    for (which, player) in players.iter_mut().enumerate() {
        lead(ctx, which, player.as_mut(), row, control)?;
    }
    let (mut calm, mut disturbed) = (Vec::new(), Vec::new());
    while calm.len() + disturbed.len() < MOST_PAIRS && now() < until {
        let mut pair = Pair::NONE;
        let mut is_disturbed = false;
        for (which, player) in players.iter_mut().enumerate() {
            let figure = lead(ctx, which, player.as_mut(), row, control)?;
            is_disturbed |= figure.disturbed;
            (pair.busy[which], pair.wall[which]) = (figure.busy, figure.wall);
            pair.sides[which] = figure.sides;
            // Where both contenders are the engine, the second one is judged.
            pair.calls = figure.calls;
            pair.drops += figure.drops;
        }
        if is_disturbed {
            disturbed.push(pair)
        } else {
            calm.push(pair)
        }
        if calm.len() >= pairs && Spread::of(row, &calm).is_narrow() {
            break;
        }
    }
    let is_disturbed = calm.len() < pairs;
    let (used, thrown_away) = if is_disturbed {
        calm.extend(disturbed);
        (calm, 0)
    } else {
        (calm, disturbed.len())
    };
    let spread = Spread::of(row, &used);
    let median = |figure: &dyn Fn(&Pair) -> f64| quantile(used.iter().map(figure), 0.5);
    Ok(RowResult {
        name: row.name(),
        ratio: spread.median,
        q1: spread.q1,
        q3: spread.q3,
        wall: median(&|p| ratio(row, p.wall)),
        base_ns: median(&|p| p.busy[0]),
        engine_ns: median(&|p| p.busy[1]),
        base_sides_ns: sides(&used, 0),
        engine_sides_ns: sides(&used, 1),
        calls: median(&|p| p.calls),
        drops: used.iter().map(|p| p.drops).sum(),
        pairs: used.len(),
        thrown_away,
        disturbed: is_disturbed,
    })
}

/// The median of each side of a contender.
fn sides(pairs: &[Pair], which: usize) -> [Option<f64>; 2] {
    [0, 1].map(|side| {
        let all = pairs.iter().filter_map(|p| p.sides[which][side]);
        Some(quantile(all, 0.5)).filter(|ns| ns.is_finite())
    })
}

/// The engine's time in terms of the baseline's; of goodput it is the other way round.
fn ratio(row: Row, [base, engine]: [f64; 2]) -> f64 {
    if row.is_latency() { engine / base } else { base / engine }
}

#[derive(Clone, Copy, Debug)]
struct Spread {
    q1: f64,
    median: f64,
    q3: f64,
}

impl Spread {
    fn of(row: Row, pairs: &[Pair]) -> Self {
        let at = |q| quantile(pairs.iter().map(|p| ratio(row, p.busy)), q);
        Self { q1: at(0.25), median: at(0.5), q3: at(0.75) }
    }

    fn is_narrow(&self) -> bool {
        self.q3 - self.q1 <= SPREAD * self.median
    }
}

/// Between the two nearest values where it falls between them; not a number of none.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "positions in a short list"
)]
fn quantile(values: impl Iterator<Item = f64>, q: f64) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let at = q * last as f64;
    let (low, high) = (at.floor() as usize, at.ceil() as usize);
    sorted[low] + (sorted[high] - sorted[low]) * (at - at.floor())
}

/// One run's figure.
#[derive(Clone, Copy, Debug)]
struct Figure {
    busy: f64,
    sides: [Option<f64>; 2],
    wall: f64,
    calls: f64,
    drops: u64,
    disturbed: bool,
}

/// One run of one contender, both sides.
fn lead(
    ctx: &Context,
    which: usize,
    player: &mut dyn Player,
    row: Row,
    control: &mut Control,
) -> Result<Figure> {
    control.send(&Order::Run(which))?;
    let Go {} = control.receive(PATIENCE)?;
    let tally = Tally::start(ctx)?;
    let before = run_delay();
    let end = now() + RUN;
    let sample = player.run(&mut || now() < end)?;
    let delay = run_delay() - before;
    let mine = Outcome::new(&sample, delay, tally.take(ctx)?)?;
    control.send(&Order::Stop)?;
    let theirs: Outcome = control.receive(PATIENCE)?;
    // The busier side decides. In a ping-pong there is one figure, the leader's.
    let both = [mine.ns_per_packet, theirs.ns_per_packet.filter(|_| !row.is_latency())];
    let busy = both.into_iter().flatten().fold(f64::NAN, f64::max);
    if busy.is_nan() {
        return Err(Failure::run(format_args!("{}: nothing was measured in a run", row.name())));
    }
    #[expect(clippy::cast_precision_loss, reason = "of nanoseconds below a day")]
    let per_packet = |n: u64| n as f64 / mine.packets.max(1) as f64;
    Ok(Figure {
        busy,
        sides: both,
        wall: per_packet(mine.wall_ns),
        calls: per_packet(mine.calls + theirs.calls),
        drops: mine.drops + theirs.drops,
        disturbed: mine.is_disturbed() || theirs.is_disturbed(),
    })
}

/// The other process: does as it is told.
fn follow(control: &mut Control) -> Result<()> {
    let ctx = open(Some("soft:lo"))?;
    let mut players: Vec<Box<dyn Player>> = Vec::new();
    loop {
        match control.receive(PATIENCE)? {
            Order::NewRow => players.clear(),
            Order::Open(contender) => players.push(contender.open_other(&ctx, control)?),
            Order::Run(which) => {
                let Some(player) = players.get_mut(which) else {
                    return Err(Failure::run("asked to run what was not opened"));
                };
                control.send(&Go {})?;
                let tally = Tally::start(&ctx)?;
                let before = run_delay();
                let mut next = now() + LOOK;
                let sample = player.run(&mut || {
                    if now() < next {
                        return true;
                    }
                    next = now() + LOOK;
                    matches!(control.is_ready(), Ok(false))
                })?;
                let delay = run_delay() - before;
                let outcome = Outcome::new(&sample, delay, tally.take(&ctx)?)?;
                let Order::Stop = control.receive(PATIENCE)? else {
                    return Err(Failure::run("a run was not stopped"));
                };
                control.send(&outcome)?;
            }
            Order::Stop => return Err(Failure::run("stopped what did not run")),
            Order::Bye => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles() {
        let of = |q| quantile([4.0, 1.0, 3.0, 2.0].into_iter(), q);
        assert_eq!(
            [of(0.0), of(0.5), of(1.0)].map(f64::to_bits),
            [1.0, 2.5, 4.0].map(f64::to_bits)
        );
        assert!((of(0.25) - 1.75).abs() < 1e-12);
        assert!(quantile(std::iter::empty(), 0.5).is_nan());
    }

    #[test]
    fn ratios_say_goodput_or_time() {
        // The engine takes 20 ns where the baseline takes 10.
        let busy = [10.0, 20.0];
        assert!((ratio(Row::Write1m4096, busy) - 0.5).abs() < 1e-12);
        assert!((ratio(Row::LatSpin, busy) - 2.0).abs() < 1e-12);
        let pairs = [1.0, 1.1, 1.2].map(|x| Pair { busy: [1.0, x], ..Pair::NONE });
        let spread = Spread::of(Row::LatSpin, &pairs);
        assert!((spread.median - 1.1).abs() < 1e-12);
        assert!(spread.is_narrow());
        assert!(!Spread { q1: 1.0, median: 1.0, q3: 1.2 }.is_narrow());
    }

    #[test]
    fn every_row_has_a_name_of_its_own() {
        use clap::ValueEnum;
        for row in Row::ALL {
            let value = row.to_possible_value().unwrap();
            assert_eq!(value.get_name(), row.name());
            assert_eq!(Row::from_str(row.name(), false), Ok(row));
        }
        assert_eq!(Row::value_variants(), Row::ALL);
    }
}
