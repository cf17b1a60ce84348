//! The tale on the terminal, and as JSON.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::Serialize;
use softroce::sim::trace::{NicEvent, Passage, WqeBrief};
use softroce::time::Duration;
use softroce::wire::{NakCode, Syndrome, opcode};

use super::journey::Journey;
use super::steps::{Sent, Step, Who};
use super::words::{fields, heading, lesson, time, told};
use crate::output::count;
use crate::tour::plan::Size;

/// Columns of running text.
const WIDTH: usize = 100;

fn wqe(steps: &[Step]) -> Option<&WqeBrief> {
    steps.iter().find_map(|step| match &step.event {
        Some(NicEvent::Fetched { wqe, .. }) => Some(wqe),
        _ => None,
    })
}

/// Breaks text into lines, each indented.
fn wrapped(out: &mut dyn Write, indent: usize, text: &str) -> io::Result<()> {
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() && indent + line.chars().count() + 1 + word.chars().count() > WIDTH {
            writeln!(out, "{:indent$}{line}", "")?;
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    writeln!(out, "{:indent$}{line}", "")
}

pub(super) fn text(journey: &Journey, steps: &[Step], out: &mut dyn Write) -> io::Result<()> {
    let topic = journey.topic;
    let [a, b] = &journey.sides;
    writeln!(
        out,
        "{}: a {} of {}, path MTU {}",
        topic.name(),
        topic.operation(),
        Size(journey.size),
        journey.mtu.bytes()
    )?;
    writeln!(out)?;
    wrapped(out, 0, lesson(topic))?;
    writeln!(out)?;
    for (name, side) in [("A", a), ("B", b)] {
        writeln!(
            out,
            "  {name}: {}, queue pair {:06x}, memory {} at {:016x}, lkey {:08x}, rkey {:08x}",
            side.address,
            side.qpn,
            Size(side.len),
            side.iova,
            side.lkey,
            side.rkey
        )?;
    }
    wrapped(
        out,
        2,
        &format!(
            "Between them a simulated switch: {} Gbit/s, {} each way of a cable. Times are virtual and count \
             from the post. Programs and NICs take none, so what is seen is the network's and the timers'.",
            journey.link.bits_per_s / 1_000_000_000,
            time(journey.link.delay)
        ),
    )?;
    let zero = steps.first().map_or(Duration::ZERO, |step| step.begins);
    let wqe = wqe(steps);
    let chapters = steps.chunk_by(|a, b| a.phase == b.phase);
    for (n, chapter) in chapters.enumerate() {
        if let [first, ..] = chapter {
            let (word, what) = heading(topic, first.phase, first.attempt);
            writeln!(out, "\n{}. {word}: {what}", n + 1)?;
        }
        for step in chapter {
            tell(journey, step, wqe, zero, out)?;
        }
    }
    summary(journey, steps, out)
}

fn span(step: &Step, zero: Duration) -> String {
    let since = |t: Duration| t.saturating_sub(zero);
    if step.begins == step.ends {
        time(since(step.begins))
    } else {
        format!("{} to {}", time(since(step.begins)), time(since(step.ends)))
    }
}

fn tell(
    journey: &Journey,
    step: &Step,
    wqe: Option<&WqeBrief>,
    zero: Duration,
    out: &mut dyn Write,
) -> io::Result<()> {
    let moved = match step.bytes {
        0 => String::new(),
        n => format!(" [{}]", count(n, "byte")),
    };
    writeln!(out, "\n   {}", span(step, zero))?;
    wrapped(out, 3, &format!("{}{moved}", told(journey, step)))?;
    let fields = fields(journey, step, wqe);
    if !fields.is_empty() {
        let list: Vec<_> = fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
        wrapped(out, 6, &list.join(" "))?;
    }
    packets(&step.packets, zero, out)
}

/// What is the same in packets that are told as one.
fn likeness(Sent { passage: p, .. }: &Sent) -> (Option<u8>, Option<&'static str>) {
    (p.bth.map(|bth| bth.opcode), p.dropped)
}

/// Packets of one kind in a row: the first, the last, and how many there are between them.
fn packets(packets: &[Sent], zero: Duration, out: &mut dyn Write) -> io::Result<()> {
    for run in packets.chunk_by(|a, b| likeness(a) == likeness(b)) {
        match run {
            [first, middle @ .., last] if middle.len() > 1 => {
                packet(first, zero, out)?;
                let middle: Vec<_> = middle.iter().map(|sent| &sent.passage).collect();
                let bytes: usize = middle.iter().filter_map(|p| p.payload).sum();
                let asking = middle.iter().filter(|p| p.bth.is_some_and(|b| b.ack_req)).count();
                let asks = match asking {
                    0 => String::new(),
                    n => format!(", {n} of them with ack_req=1"),
                };
                let psn = |p: &Passage| p.bth.map(|b| b.psn.to_string()).unwrap_or_default();
                writeln!(
                    out,
                    "      #{} to #{}: {} more of the same, psn={} to {}, payload={bytes}{asks}",
                    middle[0].number,
                    middle[middle.len() - 1].number,
                    middle.len(),
                    psn(middle[0]),
                    psn(middle[middle.len() - 1]),
                )?;
                packet(last, zero, out)?;
            }
            few => {
                for p in few {
                    packet(p, zero, out)?;
                }
            }
        }
    }
    Ok(())
}

fn packet(sent: &Sent, zero: Duration, out: &mut dyn Write) -> io::Result<()> {
    let p = &sent.passage;
    let since = |t: Duration| time(t.saturating_sub(zero));
    let fate = match (p.dropped, p.arrival) {
        (Some(why), _) => format!("LOST at {}, {why}", since(p.at)),
        (None, Some(at)) => format!("arrives {}", since(at)),
        (None, None) => "on its way".to_owned(),
    };
    let (number, name, bytes) = (p.number, name(p), count(p.ip_len as u64, "byte"));
    writeln!(
        out,
        "      #{number} {name}, {bytes} with IP headers, leaves {}, {fate}",
        since(sent.at)
    )?;
    writeln!(out, "         {}", header(p))
}

fn name(p: &Passage) -> String {
    p.bth.map_or_else(|| "no packet".to_owned(), |bth| opcode::name_of(bth.opcode))
}

/// The header fields that say something.
fn header(p: &Passage) -> String {
    let mut list = Vec::new();
    if let Some(bth) = p.bth {
        list.push(format!(
            "dest_qp={} psn={} ack_req={}",
            bth.dest_qp,
            bth.psn,
            u8::from(bth.ack_req)
        ));
    }
    if let Some(reth) = p.ext.reth {
        list.push(format!("va={:016x} rkey={} dma_len={}", reth.va, reth.rkey, reth.dma_len));
    }
    if let Some(eth) = p.ext.atomic {
        list.push(format!("va={:016x} rkey={} add={}", eth.va, eth.rkey, eth.swap_add));
    }
    if let Some(aeth) = p.ext.aeth {
        let (syndrome, meaning) = (aeth.syndrome.as_u8(), meaning(aeth.syndrome));
        list.push(format!("syndrome={syndrome:02x} ({meaning}) msn={}", aeth.msn.raw()));
    }
    if let Some(ack) = p.ext.atomic_ack {
        list.push(format!("orig={}", ack.orig));
    }
    if let Some(bytes) = p.payload.filter(|&bytes| bytes > 0) {
        list.push(format!("payload={bytes}"));
    }
    list.join(" ")
}

/// What a syndrome says.
const fn meaning(syndrome: Syndrome) -> &'static str {
    match syndrome {
        Syndrome::Ack { .. } => "ACK",
        Syndrome::RnrNak { .. } => "RNR NAK",
        Syndrome::Nak(NakCode::SequenceError) => "NAK, PSN sequence error",
        Syndrome::Nak(_) => "NAK",
        Syndrome::Reserved(_) => "reserved",
    }
}

/// All packets, by kind.
#[derive(Debug, Default, Serialize)]
struct Totals {
    packets: u64,
    packets_lost: u64,
    requester_packets: u64,
    responder_packets: u64,
    /// With IP headers.
    ip_bytes: u64,
    payload_bytes: u64,
    elapsed_ns: u64,
    opcodes: BTreeMap<String, u64>,
}

fn nanos(t: Duration) -> u64 {
    u64::try_from(t.as_nanos()).unwrap_or(u64::MAX)
}

impl Totals {
    fn of(steps: &[Step]) -> Self {
        let mut totals = Self::default();
        for Sent { passage: p, .. } in steps.iter().flat_map(|step| &step.packets) {
            totals.packets += 1;
            totals.packets_lost += u64::from(p.dropped.is_some());
            let from = [&mut totals.requester_packets, &mut totals.responder_packets];
            *from[p.from.min(1)] += 1;
            totals.ip_bytes += p.ip_len as u64;
            totals.payload_bytes += p.payload.unwrap_or(0) as u64;
            *totals.opcodes.entry(name(p)).or_default() += 1;
        }
        let begin = steps.first().map_or(Duration::ZERO, |step| step.begins);
        let end = steps.iter().map(|step| step.ends).max().unwrap_or(begin);
        totals.elapsed_ns = nanos(end.saturating_sub(begin));
        totals
    }
}

fn summary(journey: &Journey, steps: &[Step], out: &mut dyn Write) -> io::Result<()> {
    let totals = Totals::of(steps);
    writeln!(out, "\nIn all")?;
    writeln!(
        out,
        "   {}, {} with IP headers, {} of them payload; {} from post to poll",
        count(totals.packets, "packet"),
        count(totals.ip_bytes, "byte"),
        count(totals.payload_bytes, "byte"),
        time(Duration::from_nanos(totals.elapsed_ns))
    )?;
    for (name, n) in &totals.opcodes {
        writeln!(out, "   {n:6} {name}")?;
    }
    writeln!(out, "\nWho took part")?;
    for who in Who::ALL {
        let parts: Vec<_> = steps.iter().filter(|step| step.kind.who() == who).collect();
        let mut names: Vec<&str> = Vec::new();
        for step in &parts {
            if !names.contains(&step.kind.name()) {
                names.push(step.kind.name());
            }
        }
        let what = if names.is_empty() { "nothing at all".to_owned() } else { names.join(", ") };
        writeln!(out, "   {:15} {what}", who.name())?;
    }
    if let Some(file) = &journey.pcap {
        writeln!(
            out,
            "\n{} has the packets under the same numbers: softroce decode {0}",
            file.display()
        )?;
    }
    Ok(())
}

/// The JSON object, in this order.
#[derive(Serialize)]
struct Json<'a> {
    explain: &'static str,
    operation: &'static str,
    size: usize,
    mtu: usize,
    verified: bool,
    hosts: Vec<JsonHost<'a>>,
    link: JsonLink,
    totals: Totals,
    involved: BTreeMap<&'static str, bool>,
    pcap: Option<String>,
    steps: Vec<JsonStep<'a>>,
}

#[derive(Serialize)]
struct JsonHost<'a> {
    name: &'static str,
    role: &'static str,
    address: &'a str,
    qpn: u32,
    iova: u64,
    length: usize,
    lkey: u32,
    rkey: u32,
}

#[derive(Serialize)]
struct JsonLink {
    bits_per_s: u64,
    delay_ns: u64,
}

#[derive(Serialize)]
struct JsonStep<'a> {
    step: &'static str,
    phase: &'static str,
    attempt: u32,
    who: &'static str,
    begin_ns: u64,
    end_ns: u64,
    times: u64,
    bytes: u64,
    text: String,
    fields: BTreeMap<&'static str, String>,
    packets: Vec<JsonPacket<'a>>,
}

#[derive(Serialize)]
struct JsonPacket<'a> {
    number: u64,
    opcode: String,
    from: &'static str,
    psn: u32,
    dest_qp: u32,
    ack_req: bool,
    header: String,
    payload: usize,
    ip_bytes: usize,
    sent_ns: u64,
    switch_ns: u64,
    arrival_ns: Option<u64>,
    lost: Option<&'a str>,
}

impl<'a> JsonPacket<'a> {
    fn new(Sent { at, passage: p }: &'a Sent, zero: Duration) -> Self {
        Self {
            number: p.number,
            opcode: name(p),
            from: if p.from == 0 { "A" } else { "B" },
            psn: p.bth.map_or(0, |bth| bth.psn.raw()),
            dest_qp: p.bth.map_or(0, |bth| bth.dest_qp.raw()),
            ack_req: p.bth.is_some_and(|bth| bth.ack_req),
            header: header(p),
            payload: p.payload.unwrap_or(0),
            ip_bytes: p.ip_len,
            sent_ns: nanos(at.saturating_sub(zero)),
            switch_ns: nanos(p.at.saturating_sub(zero)),
            arrival_ns: p.arrival.map(|at| nanos(at.saturating_sub(zero))),
            lost: p.dropped,
        }
    }
}

pub(super) fn json(journey: &Journey, steps: &[Step], out: &mut dyn Write) -> io::Result<()> {
    let topic = journey.topic;
    let zero = steps.first().map_or(Duration::ZERO, |step| step.begins);
    let since = |t: Duration| nanos(t.saturating_sub(zero));
    let wqe = wqe(steps);
    let hosts = [("A", "requester"), ("B", "responder")];
    let object = Json {
        explain: topic.name(),
        operation: topic.operation(),
        size: journey.size,
        mtu: journey.mtu.bytes(),
        verified: true,
        hosts: hosts
            .iter()
            .zip(&journey.sides)
            .map(|(&(name, role), side)| JsonHost {
                name,
                role,
                address: &side.address,
                qpn: side.qpn,
                iova: side.iova,
                length: side.len,
                lkey: side.lkey,
                rkey: side.rkey,
            })
            .collect(),
        link: JsonLink { bits_per_s: journey.link.bits_per_s, delay_ns: nanos(journey.link.delay) },
        totals: Totals::of(steps),
        involved: Who::ALL
            .into_iter()
            .map(|who| (who.key(), steps.iter().any(|step| step.kind.who() == who)))
            .collect(),
        pcap: journey.pcap.as_ref().map(|p| p.display().to_string()),
        steps: steps
            .iter()
            .map(|step| JsonStep {
                step: step.kind.name(),
                phase: step.phase.name(),
                attempt: step.attempt,
                who: step.kind.who().key(),
                begin_ns: since(step.begins),
                end_ns: since(step.ends),
                times: step.times,
                bytes: step.bytes,
                text: told(journey, step),
                fields: fields(journey, step, wqe).into_iter().collect(),
                packets: step.packets.iter().map(|sent| JsonPacket::new(sent, zero)).collect(),
            })
            .collect(),
    };
    serde_json::to_writer(&mut *out, &object)?;
    writeln!(out)
}
