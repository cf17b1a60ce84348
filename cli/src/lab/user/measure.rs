//! What is to be found out, and what it should be.

use std::collections::BTreeSet;

use softroce::sim::{Link, Sim};

use super::super::report::{Row, Source};
use super::network;
use super::plan::{Flow, ends};
use super::read::{Bad, Read, Section, Val};

/// One number, or one for each of some flows.
#[derive(Clone, Debug)]
pub(super) struct Measure {
    pub(super) what: What,
    pub(super) label: Option<String>,
    pub(super) rule: Rule,
    pub(super) why: Option<String>,
}

/// What is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// Payload per second of each of these flows, in the window.
    Rate(Vec<usize>),
    /// Of all of them together.
    Sum(Vec<usize>),
    /// Jain's index of them.
    Jain(Vec<usize>),
    /// From the start of each of these flows until its last message has completed.
    Completion(Vec<usize>),
    /// Flows whose queue pair gave up.
    Failed,
    Count(Count, Option<(String, String)>),
    /// Most bytes that waited for a line.
    QueuePeak(String, String),
    /// Bytes that waited for it, on average over the window.
    QueueMean(String, String),
    /// Most bytes in a switch.
    BufferPeak(String),
    /// Of all hosts, by its name.
    Counter(String),
}

/// Something that ports count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Count {
    Pauses,
    Marks,
    Drops,
    HeadroomDrops,
}

/// What a number should be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Rule {
    /// Nobody has said it.
    None,
    Exact(u64),
    Within(f64, f64),
    Near(f64, f64),
    AtLeast(f64),
    AtMost(f64),
    Between(f64, f64),
}

/// What can be measured, by its name in a file.
const NAMES: &str = "rate, sum, jain, completion, failed, pauses, marks, drops, headroom-drops, queue-peak, queue-mean, \
                     buffer-peak, counter";

impl Rule {
    /// A row of it.
    pub(super) fn row(self, metric: String, unit: &'static str, value: f64) -> Row {
        let row = match self {
            Self::None => return Row::plain(metric, unit, value),
            Self::Exact(expected) => Row::whole(metric, unit, value, expected),
            Self::Within(expected, part) => Row::within(metric, unit, value, expected, part),
            Self::Near(expected, off) => Row::near(metric, unit, value, expected, off),
            Self::AtLeast(least) => Row::at_least(metric, unit, value, least),
            Self::AtMost(most) => Row::at_most(metric, unit, value, most),
            Self::Between(least, most) => Row::between(metric, unit, value, least, most),
        };
        row.from(Source::Given)
    }
}

/// The measures of a file.
pub(super) fn measures(
    root: &Section<'_>,
    network: &network::Plan,
    flows: &[Flow],
) -> Read<Vec<Measure>> {
    let mut measures = Vec::new();
    for section in root.sections("measure")? {
        let name = section.need("what")?;
        let is_count = matches!(
            name.text()?,
            "failed" | "pauses" | "marks" | "drops" | "headroom-drops" | "counter"
        );
        let what = what(&section, &name, network, flows)?;
        let measure = Measure {
            what,
            label: section.maybe("label", Val::line)?,
            rule: rule(&section, is_count)?,
            why: section.maybe("why", Val::line)?,
        };
        section.finish()?;
        measures.push(measure);
    }
    Ok(measures)
}

fn what(
    section: &Section<'_>,
    name: &Val<'_>,
    network: &network::Plan,
    flows: &[Flow],
) -> Read<What> {
    let some = || some_flows(section, flows);
    let port = || ends(section, "port", network);
    Ok(match name.text()? {
        "rate" => What::Rate(some()?),
        "sum" => What::Sum(some()?),
        "jain" => What::Jain(some()?),
        "completion" => {
            let some = some()?;
            if let Some(endless) = some.iter().find(|&&i| flows[i].size.is_none()) {
                return Err(name.bad(format_args!(
                    "flow {} has no `size` and never ends",
                    flows[*endless].name
                )));
            }
            What::Completion(some)
        }
        "failed" => What::Failed,
        "queue-peak" => {
            let (of, to) = port()?;
            What::QueuePeak(of, to)
        }
        "queue-mean" => {
            let (of, to) = port()?;
            What::QueueMean(of, to)
        }
        "buffer-peak" => {
            let switch = section.need("switch")?;
            let text = switch.text()?;
            if !network.has_switch(text) {
                return Err(switch.bad(format_args!("there is no switch {text}")));
            }
            What::BufferPeak(text.into())
        }
        "counter" => {
            let counter = section.need("counter")?;
            let text = counter.text()?;
            if !counters().contains(text) {
                return Err(counter.bad(format_args!(
                    "a device has no counter {text:?}; docs/counters.md says which there are"
                )));
            }
            What::Counter(text.into())
        }
        other => {
            let count = match other {
                "pauses" => Count::Pauses,
                "marks" => Count::Marks,
                "drops" => Count::Drops,
                "headroom-drops" => Count::HeadroomDrops,
                _ => {
                    let what = format!("there is no {other:?} to be measured; there are: {NAMES}");
                    return Err(name.bad(what));
                }
            };
            let port = section.get("port").is_some().then(|| ends(section, "port", network));
            What::Count(count, port.transpose()?)
        }
    })
}

/// What a device counts, by name.
fn counters() -> BTreeSet<String> {
    let host = Sim::exact(1).try_host(Link::default());
    host.and_then(|host| host.counters(1)).map(|all| all.into_keys().collect()).unwrap_or_default()
}

/// The flows that a measure is of: all of them, if it does not say.
fn some_flows(section: &Section<'_>, flows: &[Flow]) -> Read<Vec<usize>> {
    let Some(names) = section.get("flows") else { return Ok((0..flows.len()).collect()) };
    let list = names.list();
    if list.is_empty() {
        return Err(names.bad("of no flow"));
    }
    let find = |name: &Val<'_>| {
        let text = name.text()?;
        let known = flows.iter().position(|f| f.name == text);
        known.ok_or_else(|| name.bad(format_args!("there is no flow {text}")))
    };
    let mut all = Vec::new();
    for name in &list {
        let flow = find(name)?;
        if all.contains(&flow) {
            return Err(name.bad(format_args!("flow {} is there twice", flows[flow].name)));
        }
        all.push(flow);
    }
    Ok(all)
}

fn rule(section: &Section<'_>, is_count: bool) -> Read<Rule> {
    let (expected, tolerance) = (section.get("expected"), section.get("tolerance"));
    let (min, max) = (section.maybe("min", Val::number)?, section.maybe("max", Val::number)?);
    let Some(expected) = expected else {
        if let Some(tolerance) = tolerance {
            return Err(tolerance.bad("how far from what? `expected` is missing"));
        }
        return match (min, max) {
            (None, None) => Ok(Rule::None),
            (Some(least), None) => Ok(Rule::AtLeast(least)),
            (None, Some(most)) => Ok(Rule::AtMost(most)),
            (Some(least), Some(most)) if least <= most => Ok(Rule::Between(least, most)),
            (Some(least), Some(most)) => Err(Bad::new(
                section.at,
                format_args!("`min` is {least} and `max` is {most}: nothing is within"),
            )),
        };
    };
    if min.is_some() || max.is_some() {
        return Err(expected.bad("`expected` with `tolerance`, or `min` and `max`, not both"));
    }
    match tolerance {
        Some(tolerance) if tolerance.is_text() => {
            Ok(Rule::Within(expected.number()?, percent(&tolerance)?))
        }
        Some(tolerance) => match tolerance.number()? {
            off if off >= 0.0 => Ok(Rule::Near(expected.number()?, off)),
            _ => Err(tolerance.bad("it is below 0")),
        },
        None if is_count => Ok(Rule::Exact(expected.whole()?)),
        None => Err(expected.bad(
            "a `tolerance` belongs to it: \"3%\" of it, or a number in the unit of what is measured",
        )),
    }
}

/// `"3%"`.
fn percent(value: &Val<'_>) -> Read<f64> {
    let text = value.text()?;
    let number = text.trim().strip_suffix('%').and_then(|n| n.trim().parse::<f64>().ok());
    match number {
        Some(number) if number.is_finite() && number >= 0.0 => Ok(number / 100.0),
        _ => Err(value.bad(format_args!("{text:?} is not a part in percent: \"3%\""))),
    }
}
