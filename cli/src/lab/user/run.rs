//! Carries out what a file asks for.

use std::collections::BTreeSet;

use softroce::prelude::*;
use softroce::sim::{Link, PortCounters, SwitchConfig, Threshold};

use super::super::drawing::Drawing;
use super::super::net::{Net, pauses};
use super::super::plot::{Axis, Bar, Bars, Level, Lines, Plot, Series, What as Shown};
use super::super::report::{Report, Row, number};
use super::super::traffic::{Flow, Jitter, Mark, Spec, jain, until};
use super::super::{Failure, Progress, Result};
use super::measure::{Count, Measure, Rule, What};
use super::plan::{Plan, Wrong};

/// Looks at rates and at queues in a run.
const RATE_LOOKS: u32 = 100;
const QUEUE_LOOKS: u32 = 1000;
/// Flows, and queues, that a plot can show.
const LINES: usize = 8;
/// Flows whose rates get rows and bars without being asked for.
const FLOWS: usize = 32;
/// Nodes beside each other in a picture.
const WIDE: usize = 16;

/// Whose it is, and what is at the other end.
type Port = (String, String);

/// What was seen of a run.
#[derive(Debug)]
struct Seen {
    net: Net,
    flows: Vec<Flow>,
    starts: Vec<Duration>,
    /// Gbit/s of each flow in the window.
    rates: Vec<f64>,
    /// Middle of each part of the run in ms, and a rate for each flow.
    line: Vec<(f64, Vec<f64>)>,
    /// Ports that are watched, and (ms, bytes) of each.
    queues: Vec<(Port, Vec<(f64, f64)>)>,
}

/// What happens at a moment.
#[derive(Clone, Debug)]
enum Step {
    Link(String, String, bool),
    Slow(String, Option<softroce::sim::Receiver>),
    Loss(String, Link),
}

/// Runs a plan.
///
/// # Errors
/// The network refuses something.
pub(super) fn run(plan: &Plan, seed: u64, progress: &Progress) -> Result<Report> {
    progress.expect(RATE_LOOKS.into());
    let seen = watch(plan, seed, progress)?;
    let mut report = Report {
        name: "".into(),
        title: "".into(),
        question: "".into(),
        argument: None,
        lesson: Vec::new(),
        seed,
        short: false,
        rules: "those of the file".into(),
        rows: Vec::new(),
        plots: Vec::new(),
        drawing: None,
        notes: Vec::new(),
    };
    if plan.measures.is_empty() {
        unasked(&mut report, plan, &seen)?;
    }
    for measure in &plan.measures {
        rows(&mut report, plan, &seen, measure)?;
    }
    always(&mut report, plan, &seen);
    report.plots = plots(plan, &seen);
    report.drawing = drawing(plan, &seen);
    Ok(report)
}

/// Ports whose queues are looked at: those that are measured, else those to the receivers.
fn watched(plan: &Plan) -> Vec<Port> {
    let asked: BTreeSet<_> = plan
        .measures
        .iter()
        .filter_map(|m| match &m.what {
            What::QueuePeak(of, to) | What::QueueMean(of, to) => Some((of.clone(), to.clone())),
            _ => None,
        })
        .collect();
    if !asked.is_empty() {
        return asked.into_iter().collect();
    }
    let to: BTreeSet<&str> = plan.flows.iter().map(|f| f.to.as_str()).collect();
    let hosts = plan.network.hosts().filter(|(name, ..)| to.contains(name));
    hosts.map(|(name, on, _)| (on.to_owned(), name.to_owned())).take(LINES).collect()
}

/// The faults as single steps, in the order of their times.
fn steps(plan: &Plan) -> Vec<(Duration, Step)> {
    let mut steps = Vec::new();
    for fault in &plan.faults {
        let (begin, end) = match &fault.what {
            Wrong::Link(a, b) => {
                let link = |up| Step::Link(a.clone(), b.clone(), up);
                (link(false), link(true))
            }
            Wrong::Slow(host, receiver) => {
                (Step::Slow(host.clone(), Some(*receiver)), Step::Slow(host.clone(), None))
            }
            Wrong::Loss(host, loss) => {
                let usual = plan.network.host(host).map_or_else(Link::default, |h| h.link);
                let lossy = Link { loss: *loss, ..usual };
                (Step::Loss(host.clone(), lossy), Step::Loss(host.clone(), usual))
            }
        };
        steps.push((fault.at, true, begin));
        steps.extend(fault.until.map(|until| (until, false, end)));
    }
    // What ends at a moment does before the next begins there. Stable: of one moment in the order of the file.
    steps.sort_by_key(|(at, begins, _)| (*at, *begins));
    steps.into_iter().map(|(at, _, step)| (at, step)).collect()
}

fn take(net: &Net, plan: &Plan, step: &Step) -> Result<()> {
    match step {
        Step::Link(a, b, up) => {
            let host = [a, b].into_iter().find(|end| plan.network.has_host(end));
            match host {
                Some(host) => net.sim().set_up(&net.net.host(host)?, *up)?,
                None => net.net.set_cable_up(a, b, *up)?,
            }
        }
        Step::Slow(host, receiver) => net.net.set_receiver(host, *receiver)?,
        Step::Loss(host, link) => net.sim().set_link(&net.net.host(host)?, *link)?,
    }
    Ok(())
}

fn watch(plan: &Plan, seed: u64, progress: &Progress) -> Result<Seen> {
    let memory = plan.flows.iter().map(|f| f.message).max().unwrap_or(1);
    let net = Net::build_with(&plan.network.topology(), seed, memory)?;
    let mut jitter = Jitter::new(seed);
    let (mut flows, mut starts) = (Vec::new(), Vec::new());
    for flow in &plan.flows {
        let start = flow.start + jitter.below(flow.jitter);
        let mut spec = Spec::new(flow.mtu, start)
            .traffic_class(flow.dscp << 2)
            .message(flow.message)
            .cc(Some(flow.cc.clone()));
        spec.total = flow.size;
        let ends = (net.station(&flow.from), net.station(&flow.to));
        flows.push(Flow::start(net.sim(), &flow.name, ends.0, ends.1, &spec)?);
        starts.push(start);
    }
    let mut steps = steps(plan).into_iter().peekable();
    let mut queues: Vec<_> = watched(plan).into_iter().map(|port| (port, Vec::new())).collect();
    let mut line = Vec::new();
    let (mut part, mut window) = (Mark::new(net.sim(), &flows)?, None);
    let mut rates = Vec::new();
    let [rate_step, queue_step] =
        [RATE_LOOKS, QUEUE_LOOKS].map(|n| (plan.time / n).max(Duration::from_nanos(1)));
    // A window may be much shorter than the run.
    let fine_step = ((plan.window.1 - plan.window.0) / RATE_LOOKS).max(Duration::from_nanos(1));
    let fine_step = fine_step.min(queue_step);
    let (mut next_rate, mut next_queue) = (rate_step, Duration::ZERO);
    loop {
        let now = net.sim().now();
        while let Some((_, step)) = steps.next_if(|(at, _)| *at <= now) {
            take(&net, plan, &step)?;
        }
        if window.is_none() && now >= plan.window.0 {
            window = Some(Mark::new(net.sim(), &flows)?);
        }
        if let Some(mark) = window.as_ref().filter(|_| rates.is_empty() && now >= plan.window.1) {
            rates = mark.moved(net.sim(), &flows)?;
        }
        let (begin, end) = plan.window;
        if now >= next_queue || now == begin || now == end {
            let ms = now.as_secs_f64() * 1e3;
            for ((of, to), seen) in &mut queues {
                seen.push((ms, queued(&net, of, to)?));
            }
            let is_inside = (begin..end).contains(&now);
            next_queue = now + if is_inside { fine_step } else { queue_step };
        }
        if now >= next_rate {
            progress.step(format_args!("{} us", now.as_micros()));
            let middle = (now.as_secs_f64() - rate_step.as_secs_f64() / 2.0) * 1e3;
            line.push((middle, part.moved(net.sim(), &flows)?));
            part = Mark::new(net.sim(), &flows)?;
            next_rate = now + rate_step;
        }
        if now >= plan.time {
            break;
        }
        let mut next = plan.time.min(next_rate).min(next_queue);
        for other in [plan.window.0, plan.window.1].into_iter().chain(steps.peek().map(|s| s.0)) {
            if other > now {
                next = next.min(other);
            }
        }
        until(net.sim(), next);
    }
    Ok(Seen { net, flows, starts, rates, line, queues })
}

#[expect(clippy::cast_precision_loss, reason = "bytes of a queue")]
fn queued(net: &Net, of: &str, to: &str) -> Result<f64> {
    Ok(net.net.queue(of, to)?.iter().sum::<usize>() as f64)
}

/// Bytes that were waiting on average in the window: straight lines between looks, which were at both its ends.
fn mean(samples: &[(f64, f64)], window: (Duration, Duration)) -> f64 {
    let (from, to) = (window.0.as_secs_f64() * 1e3, window.1.as_secs_f64() * 1e3);
    let inside = |pair: &&[(f64, f64)]| from <= pair[0].0 && pair[1].0 <= to;
    let area = |pair: &[(f64, f64)]| (pair[1].0 - pair[0].0) * f64::midpoint(pair[0].1, pair[1].1);
    samples.windows(2).filter(inside).map(area).sum::<f64>() / (to - from)
}

impl Seen {
    fn ports(&self) -> Vec<(String, String, PortCounters)> {
        self.net.net.ports()
    }

    fn failed(&self) -> Vec<String> {
        let said = |flow: &Flow| match flow.check() {
            Err(Failure::Run(what) | Failure::Usage(what)) => Some(what),
            Ok(()) => None,
        };
        self.flows.iter().filter_map(said).collect()
    }

    /// What ports have counted.
    fn count(&self, plan: &Plan, count: Count, port: Option<&Port>) -> u64 {
        let ports = self.ports();
        let is_asked = |of: &str, to: &str| port.is_none_or(|(a, b)| a == of && b == to);
        if count == Count::HeadroomDrops {
            let of_switch = |(name, config): (&str, &SwitchConfig)| {
                let most = self.headroom_drops(&ports, plan, name, config);
                let asked = ports.iter().filter(|(of, to, _)| of == name && is_asked(of, to));
                asked.map(|(.., c)| c.drops_over_share).sum::<u64>().min(most)
            };
            return plan.network.switches().map(of_switch).sum();
        }
        let of_port = |(_, _, c): &(String, String, PortCounters)| match count {
            Count::Pauses => pauses(c),
            Count::Marks => c.ecn_marked,
            Count::Drops => c.drops(),
            Count::HeadroomDrops => 0,
        };
        ports.iter().filter(|(of, to, _)| is_asked(of, to)).map(of_port).sum()
    }

    /// Packets, at most, of those above their port's share in a switch, that should not have been lost.
    ///
    /// Ports do not count such packets by priority, but all that come and go: what came to a switch in a priority, did
    /// not leave and does not wait was dropped. Where priorities of both kinds lost something, and there were other
    /// reasons too, those are taken for the reasons of the lossless ones as far as they go.
    fn headroom_drops(
        &self,
        ports: &[(String, String, PortCounters)],
        plan: &Plan,
        switch: &str,
        config: &SwitchConfig,
    ) -> u64 {
        let Some(pfc) = config.pfc else { return 0 };
        let (mut lossless, mut lossy, mut others) = (0, 0, 0);
        for (_, to, c) in ports.iter().filter(|(of, ..)| of == switch) {
            let waiting = self.net.net.queue(switch, to).unwrap_or_default();
            others += c.drops() - c.drops_over_share;
            for (priority, waits) in waiting.into_iter().enumerate() {
                let is_lossless = pfc.priorities & 1 << priority != 0;
                let lost = if is_lossless { &mut lossless } else { &mut lossy };
                *lost += i128::from(c.rx_bytes[priority])
                    - i128::from(c.tx_bytes[priority])
                    - waits as i128;
            }
        }
        if lossy <= 0 {
            return u64::MAX;
        }
        let longest = i128::from(longest_frame(plan)).max(1);
        let lost = (lossless - i128::from(others) * longest).max(0);
        u64::try_from((lost + longest - 1) / longest).unwrap_or(u64::MAX)
    }
}

/// Bytes of the longest frame of all flows: a full packet, which may begin a message, with a tag.
fn longest_frame(plan: &Plan) -> u64 {
    plan.flows.iter().map(|f| f.mtu.bytes() as u64 + 82).max().unwrap_or(0)
}

fn unit_of(count: Count) -> (&'static str, &'static str) {
    match count {
        Count::Pauses => ("pauses", "frames"),
        Count::Marks => ("marks", "packets"),
        Count::Drops => ("dropped", "packets"),
        Count::HeadroomDrops => ("dropped, headroom too small", "packets"),
    }
}

/// The rows of one measure.
#[expect(clippy::cast_precision_loss, reason = "counts and bytes")]
fn rows(report: &mut Report, plan: &Plan, seen: &Seen, measure: &Measure) -> Result<()> {
    let name = |usual: String| measure.label.clone().unwrap_or(usual);
    let mut add = |metric: String, unit: &'static str, value: f64| {
        let row = measure.rule.row(metric, unit, value);
        // Of what is no number the reason is known.
        let why = measure
            .why
            .clone()
            .or_else(|| (!value.is_finite()).then(|| missing(&measure.what, plan, seen)));
        report.rows.push(match why {
            Some(why) => row.why(why),
            None => row,
        });
    };
    let some = |of: &[usize]| of.iter().map(|&i| seen.rates[i]).collect::<Vec<_>>();
    match &measure.what {
        What::Rate(of) => {
            for &i in of {
                let flow = format!("rate of {}", plan.flows[i].name);
                let metric = match &measure.label {
                    Some(label) if of.len() == 1 => label.clone(),
                    Some(label) => format!("{label}: {}", plan.flows[i].name),
                    None => flow,
                };
                add(metric, "Gbit/s", seen.rates[i]);
            }
        }
        What::Sum(of) => add(name("sum of rates".into()), "Gbit/s", some(of).iter().sum()),
        What::Jain(of) => add(name("Jain's index".into()), "", jain(&some(of))),
        What::Completion(of) => {
            let time = |&i: &usize| match seen.flows[i].ended() {
                Some(end) => end.saturating_sub(seen.starts[i]).as_secs_f64() * 1e6,
                None => f64::INFINITY,
            };
            let last = of.iter().map(time).fold(0.0, f64::max);
            let of = match &of[..] {
                [one] => plan.flows[*one].name.clone(),
                _ => "the slowest flow".into(),
            };
            add(name(format!("completion of {of}")), "us", last);
        }
        What::Failed => add(name("flows that failed".into()), "", seen.failed().len() as f64),
        What::Count(count, port) => {
            let (what, unit) = unit_of(*count);
            let at = port.as_ref().map_or(String::new(), |(of, to)| format!(" at {of} to {to}"));
            let value = seen.count(plan, *count, port.as_ref());
            add(name(format!("{what}{at}")), unit, value as f64);
        }
        What::QueuePeak(of, to) => {
            let peak: usize =
                seen.net.net.counters(of, to)?.queue_peak.into_iter().max().unwrap_or(0);
            add(name(format!("longest queue at {of} to {to}")), "bytes", peak as f64);
        }
        What::QueueMean(of, to) => {
            let samples = seen.queues.iter().find(|((a, b), _)| (a, b) == (of, to));
            let mean = samples.map_or(f64::NAN, |(_, samples)| mean(samples, plan.window));
            add(name(format!("mean queue at {of} to {to}")), "bytes", mean);
        }
        What::BufferPeak(switch) => {
            let (_, peak) = seen.net.net.buffered(switch)?;
            add(name(format!("most in the buffer of {switch}")), "bytes", peak as f64);
        }
        What::Counter(counter) => {
            let of = |(name, ..): (&str, _, _)| seen.net.station(name).counter(counter);
            let sum: u64 = plan.network.hosts().map(of).sum::<Result<_>>()?;
            add(name(counter.clone()), "", sum as f64);
        }
    }
    Ok(())
}

/// Why there is no number.
fn missing(what: &What, plan: &Plan, seen: &Seen) -> String {
    let What::Completion(of) = what else { return "nothing has arrived in the window".into() };
    let open = of.iter().filter(|&&i| seen.flows[i].ended().is_none());
    let open: Vec<_> = open.map(|&i| plan.flows[i].name.as_str()).collect();
    let (first, others) = (open.first().copied().unwrap_or_default(), open.len().saturating_sub(1));
    let others = if others == 0 { String::new() } else { format!(" (and {others} others)") };
    format!("flow {first}{others} has not come to its end in {:?}", plan.time)
}

/// What is told of an experiment that does not say what it wants to know.
fn unasked(report: &mut Report, plan: &Plan, seen: &Seen) -> Result<()> {
    let all: Vec<usize> = (0..plan.flows.len()).collect();
    let mut what = vec![What::Rate(all.iter().copied().take(FLOWS).collect())];
    what.push(What::Sum(all.clone()));
    // Of flows that were over before there is no index.
    if seen.rates.iter().any(|rate| *rate > 0.0) {
        what.push(What::Jain(all));
    }
    let ended = |&i: &usize| seen.flows[i].ended().is_some();
    for i in (0..plan.flows.len()).filter(ended).take(FLOWS) {
        what.push(What::Completion(vec![i]));
    }
    let unended = plan.flows.iter().enumerate().filter(|(i, f)| f.size.is_some() && !ended(i));
    let unended = unended.count();
    if unended > 0 {
        report.note(format!("{unended} flows have not come to their end in this time."));
    }
    what.extend([Count::Pauses, Count::Marks, Count::Drops].map(|c| What::Count(c, None)));
    what.extend(seen.queues.iter().map(|((of, to), _)| What::QueuePeak(of.clone(), to.clone())));
    for what in what {
        let measure = Measure { what, label: None, rule: Rule::None, why: None };
        rows(report, plan, seen, &measure)?;
    }
    Ok(())
}

/// What is told whether it was asked for or not: losses that should not be, and flows that failed.
fn always(report: &mut Report, plan: &Plan, seen: &Seen) {
    let asked = |what: &What| plan.measures.iter().any(|m| m.what == *what);
    let lost = seen.count(plan, Count::HeadroomDrops, None);
    let what = What::Count(Count::HeadroomDrops, None);
    if lost > 0 {
        let mut why = String::from(
            "the switch had asked for a pause, and what was already on its way did not fit into the headroom of the port that \
             it came by",
        );
        for (switch, has, needs) in headroom(plan) {
            why += &format!("; switch {switch} keeps {has} bytes for a port and needs {needs}");
        }
        if asked(&what) {
            report.note(format!("{lost} packets were dropped: {why}."));
        } else {
            let (metric, unit) = unit_of(Count::HeadroomDrops);
            report.rows.push(Row::count(metric, unit, lost, 0).why(why));
        }
    }
    let failed = seen.failed();
    if !failed.is_empty() && !asked(&What::Failed) {
        let row = Row::count("flows that failed", "", failed.len() as u64, 0);
        report.rows.push(row.why(failed[..failed.len().min(4)].join("; ")));
    }
}

/// Switches whose headroom is smaller than their cables need, what it is, and what it should be: what a line carries in
/// twice its delay, and two of the longest frames.
fn headroom(plan: &Plan) -> Vec<(String, usize, u64)> {
    let longest = longest_frame(plan);
    let needs = |link: &Link| {
        let bits = u128::from(link.bits_per_s) * 2 * link.delay.as_nanos() / 1_000_000_000;
        u64::try_from(bits / 8).unwrap_or(u64::MAX).saturating_add(2 * longest)
    };
    let small = |(name, config): (&str, &SwitchConfig)| {
        let hosts = plan.network.hosts().filter(|(_, on, _)| *on == name);
        let trunks = plan.network.cables().filter(|(a, b, _)| *a == name || *b == name);
        let links = hosts.map(|(.., h)| h.link).chain(trunks.map(|(.., c)| c.link));
        let needs = links.map(|link| needs(&link)).max()?;
        let small = config.pfc.is_some() && (config.headroom as u64) < needs;
        small.then(|| (name.to_owned(), config.headroom, needs))
    };
    plan.network.switches().filter_map(small).collect()
}

fn plots(plan: &Plan, seen: &Seen) -> Vec<Plot> {
    let window = Some((plan.window.0.as_secs_f64() * 1e3, plan.window.1.as_secs_f64() * 1e3));
    let rate = |i: usize| {
        let points = seen.line.iter().map(|(at, rates)| (*at, rates[i])).collect();
        Series::new(plan.flows[i].name.clone(), points)
    };
    let bars = plan.flows.iter().zip(&seen.rates).take(FLOWS);
    let bars = bars.map(|(flow, rate)| Bar::new(flow.name.clone(), *rate)).collect();
    let mut plots = vec![
        Plot {
            id: "rates".into(),
            title: "Payload of each flow in the window".into(),
            what: Shown::Bars(Bars { unit: "Gbit/s", bars }),
        },
        Plot {
            id: "over-time".into(),
            title: "Payload of flows over time".into(),
            what: Shown::Lines(Lines {
                x: Axis::new("time", "ms"),
                y: Axis::new("rate", "Gbit/s"),
                series: (0..plan.flows.len().min(LINES)).map(rate).collect(),
                levels: Vec::new(),
                window,
            }),
        },
    ];
    if !seen.queues.is_empty() {
        let series = seen.queues.iter().take(LINES).map(|((of, to), samples)| {
            let points = samples.iter().map(|(at, bytes)| (*at, bytes / 1000.0)).collect();
            Series::new(format!("{of} to {to}"), points)
        });
        plots.push(Plot {
            id: "queues".into(),
            title: "Bytes that wait for a line".into(),
            what: Shown::Lines(Lines {
                x: Axis::new("time", "ms"),
                y: Axis::new("queue", "KB"),
                series: series.collect(),
                levels: levels(plan, seen),
                window,
            }),
        });
    }
    plots
}

/// Thresholds that all watched queues have in common, as far as they are near what was seen.
#[expect(clippy::cast_precision_loss, reason = "bytes of a queue")]
fn levels(plan: &Plan, seen: &Seen) -> Vec<Level> {
    let of: BTreeSet<&str> = seen.queues.iter().map(|((of, _), _)| of.as_str()).collect();
    let mut configs = plan.network.switches().filter(|(name, _)| of.contains(name));
    let Some((_, first)) = configs.next() else { return Vec::new() };
    if configs.any(|(_, c)| c.ecn != first.ecn || c.threshold != first.threshold) {
        return Vec::new();
    }
    let most = seen.queues.iter().flat_map(|(_, s)| s.iter().map(|s| s.1)).fold(0.0, f64::max);
    let mut levels = Vec::new();
    if let Some(ecn) = first.ecn {
        levels.extend([("Kmin", ecn.kmin), ("Kmax", ecn.kmax)]);
    }
    if let (Threshold::Fixed(xoff), Some(_)) = (first.threshold, first.pfc) {
        levels.push(("Xoff", xoff));
    }
    levels.retain(|(_, at)| (*at as f64) <= 1.5 * most);
    let level = |(name, at): (&str, usize)| {
        Level::new(at as f64 / 1000.0, format!("{name} {} KB", number(at as f64 / 1000.0)))
    };
    levels.into_iter().map(level).collect()
}

/// The network, if it is not too wide for a picture.
#[expect(clippy::cast_precision_loss, reason = "of rates")]
fn drawing(plan: &Plan, seen: &Seen) -> Option<Drawing> {
    let heights = plan.network.heights();
    let top = heights.values().copied().max().unwrap_or(0);
    let links: Vec<Link> = plan
        .network
        .hosts()
        .map(|(.., h)| h.link)
        .chain(plan.network.cables().map(|(.., c)| c.link))
        .collect();
    let first = links.first()?;
    let alike = links.iter().all(|l| l.bits_per_s == first.bits_per_s && l.delay == first.delay);
    let caption = if alike {
        let (rate, delay) = (first.bits_per_s as f64 / 1e9, first.delay.as_secs_f64() * 1e6);
        format!("all cables {} Gbit/s, {} us", number(rate), number(delay))
    } else {
        format!("{}, cables of several kinds", plan.network.shape)
    };
    let mut drawing = Drawing::new(caption);
    for layer in 0..=top {
        let names: Vec<&str> = plan
            .network
            .switches()
            .map(|(name, _)| name)
            .filter(|name| top - heights.get(name).copied().unwrap_or(top) == layer)
            .collect();
        if names.len() > WIDE {
            return None;
        }
        drawing = drawing.switches(layer, &names);
    }
    let hosts: Vec<&str> = plan.network.hosts().map(|(name, ..)| name).collect();
    if hosts.len() > WIDE {
        return None;
    }
    drawing = drawing.hosts(top + 1, &hosts);
    for (name, on, _) in plan.network.hosts() {
        drawing = drawing.cable(name, on);
    }
    for (a, b, _) in plan.network.cables() {
        drawing = drawing.cable(a, b);
    }
    for host in hosts {
        let (from, to) =
            (plan.flows.iter().any(|f| f.from == host), plan.flows.iter().any(|f| f.to == host));
        let tag = match (from, to) {
            (true, true) => "both",
            (true, false) => "sends",
            (false, true) => "receives",
            (false, false) => "",
        };
        drawing = drawing.tag(host, tag);
    }
    seen.net.show_pauses(&mut drawing);
    Some(drawing)
}
