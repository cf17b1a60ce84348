//! What a file asks for: a network, flows on it, what goes wrong with it, and what is to be found out.

use std::collections::BTreeSet;

use softroce::cc::{Algorithm, SwiftConfig, TimelyConfig};
use softroce::prelude::*;
use softroce::sim::Receiver;

use super::super::traffic::{Cc, MESSAGE};
use super::measure::{Measure, measures};
use super::network::{self, longest, path_mtu};
use super::read::{Bad, Read, Section, Val};

/// Flows that a file may have.
const FLOWS: usize = 4096;
/// Bytes of a message, at most.
const MESSAGE_MOST: usize = 1 << 30;

/// An experiment from a file.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) name: Option<String>,
    pub(super) title: Option<String>,
    pub(super) question: Option<String>,
    pub(super) lesson: Vec<String>,
    pub(super) seed: u64,
    /// How long it runs.
    pub(super) time: Duration,
    /// What of that counts for rates.
    pub(super) window: (Duration, Duration),
    pub(super) network: network::Plan,
    pub(super) flows: Vec<Flow>,
    pub(super) faults: Vec<Fault>,
    pub(super) measures: Vec<Measure>,
}

/// One flow.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    pub(super) name: String,
    pub(super) from: String,
    pub(super) to: String,
    pub(super) start: Duration,
    /// It begins within so much of that, by the seed.
    pub(super) jitter: Duration,
    pub(super) size: Option<usize>,
    pub(super) message: usize,
    pub(super) mtu: Mtu,
    pub(super) dscp: u8,
    pub(super) cc: Cc,
}

/// Something that goes wrong for a while.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    pub(super) at: Duration,
    /// `None`: for good.
    pub(super) until: Option<Duration>,
    pub(super) what: Wrong,
}

/// What goes wrong.
#[derive(Clone, Debug)]
pub(super) enum Wrong {
    /// A cable is pulled, of a host or between switches.
    Link(String, String),
    /// A host takes packets in slowly.
    Slow(String, Receiver),
    /// Packets to a host are lost.
    Loss(String, f64),
}

impl Fault {
    /// Whether it is of the same kind and of the same thing, and there is a time in both.
    fn overlaps(&self, other: &Self) -> bool {
        let begins_within = |a: &Self, b: &Self| b.until.is_none_or(|until| a.at < until);
        self.what.is_of_same(&other.what)
            && begins_within(self, other)
            && begins_within(other, self)
    }
}

impl Wrong {
    fn is_of_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Link(a, b), Self::Link(c, d)) => (a, b) == (c, d) || (a, b) == (d, c),
            (Self::Slow(a, _), Self::Slow(b, _)) | (Self::Loss(a, _), Self::Loss(b, _)) => a == b,
            _ => false,
        }
    }

    /// What it happens to.
    fn thing(&self) -> String {
        match self {
            Self::Link(a, b) => format!("the cable {a} - {b}"),
            Self::Slow(host, _) | Self::Loss(host, _) => format!("host {host}"),
        }
    }
}

impl Plan {
    /// Reads it.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub(super) fn read(text: &str) -> Read<Self> {
        let table = super::read::parse(text)?;
        let root = Section::root(&table);
        let name = root.maybe("name", |v| v.name())?;
        let title = root.maybe("title", Val::line)?;
        let question = root.maybe("question", Val::line)?;
        let lesson = match root.get("lesson") {
            Some(text) => text.list().iter().map(|v| v.line()).collect::<Read<_>>()?,
            None => Vec::new(),
        };
        let seed = root.or("seed", Val::whole, 1)?;
        let time = root.need("time")?;
        let (time_at, time) = (time.at, time.time()?);
        if time.is_zero() || time > Duration::from_secs(60) {
            return Err(Bad::new(time_at, "`time` is not within 1 ns to 60 s"));
        }
        let window = window(&root, time)?;
        let network = network::Plan::read(&root)?;
        let flows = flows(&root, &network)?;
        let faults = faults(&root, &network, time)?;
        let measures = measures(&root, &network, &flows)?;
        root.finish()?;
        Ok(Self {
            name,
            title,
            question,
            lesson,
            seed,
            time,
            window,
            network,
            flows,
            faults,
            measures,
        })
    }
}

fn window(root: &Section<'_>, time: Duration) -> Read<(Duration, Duration)> {
    let Some(window) = root.get("window") else { return Ok((time / 4, time)) };
    let [from, to] = &window.list()[..] else {
        return Err(window.bad("two times, from and to"));
    };
    let (begin, end) = (from.time()?, to.time()?);
    if begin >= end || end > time {
        return Err(window.bad("it begins before it ends, and ends within `time`"));
    }
    Ok((begin, end))
}

fn flows(root: &Section<'_>, network: &network::Plan) -> Read<Vec<Flow>> {
    let sections = root.sections("flows")?;
    if sections.is_empty() {
        return Err(Bad::new(0, "there is no flow: `[[flows]]` with `from` and `to`"));
    }
    let mut flows: Vec<Flow> = Vec::new();
    let mut names = BTreeSet::new();
    for section in sections {
        let known = |value: &Val<'_>| {
            let name = value.text()?;
            if network.has_host(name) {
                return Ok(name.to_owned());
            }
            Err(value.bad(format_args!("there is no host {name}")))
        };
        let senders = section.need("from")?;
        let from = senders.list();
        if from.is_empty() {
            return Err(senders.bad("a flow from nobody"));
        }
        let to = known(&section.need("to")?)?;
        let name = section.maybe("name", |v| v.name())?;
        let all = from.len();
        for one in from {
            let from = known(&one)?;
            if from == to {
                return Err(one.bad(format_args!("{from} to itself is no way through a network")));
            }
            let name = match &name {
                Some(name) if all == 1 => name.clone(),
                Some(name) => format!("{name}.{from}"),
                None => format!("{from}-{to}"),
            };
            if !names.insert(name.clone()) {
                return Err(Bad::new(
                    section.at,
                    format_args!("flow {name} is there twice: give one another `name`"),
                ));
            }
            flows.push(flow(&section, network, name, from, to.clone())?);
        }
        if flows.len() > FLOWS {
            return Err(Bad::new(section.at, format_args!("more than {FLOWS} flows")));
        }
        section.finish()?;
    }
    Ok(flows)
}

fn flow(
    section: &Section<'_>,
    network: &network::Plan,
    name: String,
    from: String,
    to: String,
) -> Read<Flow> {
    let some = |v: &Val<'_>| match v.bytes()? {
        0 => Err(v.bad("a flow of nothing")),
        bytes => Ok(bytes),
    };
    let size = section.maybe("size", some)?;
    let message = section.maybe("message", |v| match some(v)? {
        bytes if bytes > MESSAGE_MOST => Err(v.bad("a message has at most 1 GiB")),
        bytes => Ok(bytes),
    })?;
    let mtu = section.or("mtu", path_mtu, network.mtu)?;
    network.check_flow(section.at, &from, &to, mtu)?;
    let (dscp, priority) = (section.get("dscp"), section.get("priority"));
    let dscp = match (&dscp, &priority) {
        (Some(_), Some(priority)) => {
            return Err(priority.bad("a flow has a `dscp` or a `priority`, not both"));
        }
        (Some(dscp), None) => u8::try_from(dscp.within(0, 63)?).unwrap_or(0),
        (None, Some(priority)) => {
            let of = priority.within(0, 7)?;
            let dscp = network.dscp_of(&from, &to, u8::try_from(of).unwrap_or(0));
            dscp.ok_or_else(|| {
                priority.bad(format_args!(
                    "there is no DSCP that all switches on the way put into priority {of}"
                ))
            })?
        }
        (None, None) => network::DSCP,
    };
    let line = network.host(&from).map_or(1, |host| host.link.bits_per_s);
    Ok(Flow {
        start: section.or("start", Val::time, Duration::ZERO)?,
        jitter: section.or("jitter", Val::time, Duration::ZERO)?,
        size,
        message: message.unwrap_or_else(|| size.unwrap_or(MESSAGE).min(MESSAGE)),
        mtu,
        dscp,
        cc: control(section, line)?,
        name,
        from,
        to,
    })
}

/// What sets the pace of a flow.
fn control(section: &Section<'_>, line: u64) -> Read<Cc> {
    let cc = section.get("cc");
    let rate = section.maybe("rate", Val::some_rate)?;
    let parameters = section.get("parameters");
    let named = match &cc {
        Some(cc) => Algorithm::parse(cc.text()?, line).map_err(|e| cc.bad(e))?,
        None => Algorithm::None,
    };
    if let (Some(_), Some(cc), false) = (rate, &cc, matches!(named, Algorithm::None)) {
        return Err(cc.bad("`rate` is the pace of a flow without congestion control"));
    }
    let Some(parameters) = parameters else {
        let at = cc.as_ref().map_or(section.at, |v| v.at);
        return Cc::of(&named, rate.unwrap_or(line)).map_err(|e| Bad::new(at, said(e)));
    };
    let entries = parameters.entries()?;
    let tuned = match named {
        Algorithm::Dcqcn(mut config) => {
            for (key, value) in entries {
                config.set(&key, &value.plain()?).map_err(|e| Bad::new(value.at, e))?;
            }
            Algorithm::Dcqcn(config)
        }
        Algorithm::Swift(mut config) => {
            entries.iter().try_for_each(|(key, value)| swift(&mut config, key, value))?;
            Algorithm::Swift(config)
        }
        Algorithm::Timely(mut config) => {
            entries.iter().try_for_each(|(key, value)| timely(&mut config, key, value))?;
            Algorithm::Timely(config)
        }
        _ => return Err(parameters.bad("without `cc` there is nothing that has parameters")),
    };
    Cc::of(&tuned, line).map_err(|e| Bad::new(parameters.at, said(e)))
}

fn said(failure: super::super::Failure) -> String {
    match failure {
        super::super::Failure::Usage(what) | super::super::Failure::Run(what) => what,
    }
}

fn swift(config: &mut SwiftConfig, key: &str, value: &Val<'_>) -> Read<()> {
    match key {
        "base_target" => config.base_target = value.time()?,
        "hop_target" => config.hop_target = value.time()?,
        "hops" => config.hops = u32::try_from(value.within(0, 1000)?).unwrap_or(0),
        "flow_range" => config.flow_range = value.time()?,
        "flow_min" => config.flow_min = value.number()?,
        "flow_max" => config.flow_max = value.number()?,
        "additive" => config.additive = value.number()?,
        "beta" => config.beta = value.number()?,
        "max_cut" => config.max_cut = value.number()?,
        "min_window" => config.min_window = value.number()?,
        "max_window" => config.max_window = value.number()?,
        "timeouts" => config.timeouts = u32::try_from(value.within(1, 1000)?).unwrap_or(1),
        _ => {
            return Err(value.bad(
                "Swift has no such parameter; it has: base_target, hop_target, hops, flow_range, flow_min, flow_max, \
                 additive, beta, max_cut, min_window, max_window, timeouts",
            ));
        }
    }
    Ok(())
}

fn timely(config: &mut TimelyConfig, key: &str, value: &Val<'_>) -> Read<()> {
    match key {
        "initial_rate" => config.initial_rate = value.some_rate()?,
        "min_rate" => config.min_rate = value.some_rate()?,
        "t_low" => config.t_low = value.time()?,
        "t_high" => config.t_high = value.time()?,
        "min_rtt" => config.min_rtt = value.time()?,
        "alpha" => config.alpha = value.number()?,
        "beta" => config.beta = value.number()?,
        "step" => config.step = value.some_rate()?,
        "hyper" => config.hyper = u32::try_from(value.within(1, 1000)?).unwrap_or(1),
        "segment" => {
            let bytes = value.within(1, 1 << 30)?;
            config.segment = u32::try_from(bytes).unwrap_or(u32::MAX);
        }
        _ => {
            return Err(value.bad(
                "TIMELY has no such parameter; it has: initial_rate, min_rate, t_low, t_high, min_rtt, alpha, beta, \
                 step, hyper, segment",
            ));
        }
    }
    Ok(())
}

fn faults(root: &Section<'_>, network: &network::Plan, time: Duration) -> Read<Vec<Fault>> {
    let mut faults: Vec<Fault> = Vec::new();
    for section in root.sections("faults")? {
        let at = section.or("at", Val::time, Duration::ZERO)?;
        let until = section.maybe("until", Val::time)?;
        if at >= time || until.is_some_and(|until| until <= at) {
            return Err(Bad::new(section.at, "a fault begins within `time`, and ends after that"));
        }
        let kind = section.need("kind")?;
        let host = |section: &Section<'_>| {
            let host = section.need("host")?;
            if network.has_host(host.text()?) {
                return Ok(host.text()?.to_owned());
            }
            Err(host.bad(format_args!("there is no host {}", host.text()?)))
        };
        let what = match kind.text()? {
            "link" => {
                let (a, b) = ends(&section, "link", network)?;
                Wrong::Link(a, b)
            }
            "slow" => {
                let host = host(&section)?;
                Wrong::Slow(host, receiver(&section, network.mtu)?)
            }
            "loss" => {
                let host = host(&section)?;
                Wrong::Loss(host, section.need("probability")?.chance()?)
            }
            other => {
                return Err(
                    kind.bad(format_args!("there is no {other:?}; there are: link, slow, loss"))
                );
            }
        };
        let fault = Fault { at, until, what };
        if let Some(other) = faults.iter().find(|other| other.overlaps(&fault)) {
            let (thing, from) = (fault.what.thing(), other.at);
            let end = other.until.map_or_else(|| "for good".into(), |end| format!("until {end:?}"));
            return Err(Bad::new(
                section.at,
                format_args!("{thing} is at fault in this way already, from {from:?} {end}"),
            ));
        }
        section.finish()?;
        faults.push(fault);
    }
    Ok(faults)
}

/// The two ends of a cable: `["a", "b"]`.
pub(super) fn ends(
    section: &Section<'_>,
    key: &'static str,
    network: &network::Plan,
) -> Read<(String, String)> {
    let value = section.need(key)?;
    let list = value.list();
    let [a, b] = &list[..] else {
        return Err(value.bad("the two ends of a cable: [\"a\", \"b\"]"));
    };
    let (a, b) = (a.text()?, b.text()?);
    if !network.joined(a, b) {
        return Err(value.bad(format_args!("no cable connects {a} and {b}")));
    }
    Ok((a.into(), b.into()))
}

/// How a slow host takes packets in.
fn receiver(section: &Section<'_>, mtu: Mtu) -> Read<Receiver> {
    let packet = longest(mtu) as usize;
    let xoff = section.or("xoff", Val::bytes, 100_000)?;
    let xon = section.or("xon", Val::bytes, xoff.saturating_sub(2 * packet))?;
    let buffer = section.or("buffer", Val::bytes, xoff + 50_000)?;
    let bits_per_s = section.need("rate")?.rate()?;
    if !(xon <= xoff && xoff < buffer) {
        let what = format!(
            "a receiver with {buffer} bytes that pauses at {xoff} and goes on at {xon}: xon <= xoff < buffer"
        );
        return Err(Bad::new(section.at, what));
    }
    Ok(Receiver { bits_per_s, buffer, xoff, xon })
}
