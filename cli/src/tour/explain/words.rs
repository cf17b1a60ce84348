//! Steps in words: a sentence for each, and the values that it is about.

use softroce::sim::trace::{NicEvent, Passage, SendOp, Step as Happened, WqeBrief};
use softroce::time::Duration;
use softroce::wire::Syndrome;
use softroce::wire::aeth::rnr_timer;

use super::Topic;
use super::journey::{Journey, RECEIVE};
use super::steps::{Kind, Phase, Step, Who};
use crate::output::count;

/// `0.000 us`, `4.021 us`, `0.537 s`.
pub(super) fn time(t: Duration) -> String {
    let us = t.as_secs_f64() * 1e6;
    match us {
        ..1e3 => format!("{us:.3} us"),
        ..1e6 => format!("{:.3} ms", us / 1e3),
        _ => format!("{:.3} s", us / 1e6),
    }
}

/// What is special about an operation, for somebody who knows sockets.
pub(super) const fn lesson(topic: Topic) -> &'static str {
    match topic {
        Topic::Read => {
            "With sockets, B's program would receive a question, look the data up and send it. A READ asks B's \
             NIC instead: it takes the bytes from memory that B's program has lent, and B's program does not run."
        }
        Topic::Write => {
            "With sockets, B's program would call recv() to say where the bytes go. A WRITE brings the address \
             along: B's NIC puts the bytes into memory that B's program has lent, and B's program does not run."
        }
        Topic::Send => {
            "A SEND is what comes nearest to sockets, but the buffer comes first: B's program posts a receive, \
             B's NIC fills it when the message arrives, and both programs get a completion."
        }
        Topic::Atomic => {
            "With sockets, a counter that many clients change needs a program to own it. A FETCH & ADD lets B's \
             NIC add to a word of B's memory and return what was there before, as one act; B's program does not \
             run."
        }
        Topic::Rnr => {
            "A socket has a buffer of the kernel's for what nobody has asked for yet. A SEND has none: if B's \
             program has not posted a receive, B's NIC says \"receiver not ready\", and A's NIC tries again later. \
             A's program sees nothing of it but the time."
        }
        Topic::Loss => {
            "The network may lose packets, and RDMA has to look like a wire that does not. PSNs show what is \
             missing; A's NIC goes back to it and sends everything from there again (go-back-N). The programs see \
             nothing of it but the time."
        }
    }
}

/// What a chapter is called: a word, and what happens in it.
pub(super) const fn heading(
    topic: Topic,
    phase: Phase,
    attempt: u32,
) -> (&'static str, &'static str) {
    match phase {
        Phase::Request if attempt > 1 => ("REQUEST", "A's NIC makes the packets anew"),
        Phase::Post => ("POST", "A's application describes the work and rings the doorbell"),
        Phase::Request => ("REQUEST", "A's NIC makes packets of it"),
        Phase::Access => match topic {
            Topic::Read => ("ACCESS", "B's NIC checks the key and reads B's memory"),
            Topic::Write | Topic::Loss => {
                ("ACCESS", "B's NIC checks the key and writes B's memory")
            }
            Topic::Atomic => ("ACCESS", "B's NIC checks the key and changes a word of B's memory"),
            Topic::Rnr if attempt == 1 => ("ACCESS", "B's NIC looks for a posted receive"),
            Topic::Send | Topic::Rnr => ("ACCESS", "B's NIC takes a posted receive and fills it"),
        },
        Phase::Response => match topic {
            Topic::Read => {
                ("RESPONSE", "the bytes come back, and A's NIC puts them in their place")
            }
            Topic::Atomic => ("RESPONSE", "the value from before comes back"),
            _ => ("RESPONSE", "an acknowledgement comes back"),
        },
        Phase::Completion => ("COMPLETION", "A's application learns that it is done"),
        Phase::Recovery => match topic {
            Topic::Rnr => ("NOT READY", "A's NIC is told to wait, and tries again"),
            _ => ("RECOVERY", "the loss is noticed, and A's NIC goes back to it"),
        },
    }
}

/// The names of the standard.
const fn operation(op: SendOp) -> &'static str {
    match op {
        SendOp::Write => "RDMA_WRITE",
        SendOp::Read => "RDMA_READ",
        SendOp::Send => "SEND",
        SendOp::FetchAdd => "ATOMIC_FETCH_AND_ADD",
        SendOp::CompareSwap => "ATOMIC_CMP_AND_SWP",
        _ => "OTHER",
    }
}

/// A list of names and values.
pub(super) type Fields = Vec<(&'static str, String)>;

fn wqe_fields(wqe: &WqeBrief) -> Fields {
    let mut fields = vec![
        ("wr_id", wqe.wr_id.to_string()),
        ("opcode", operation(wqe.op).to_owned()),
        ("length", wqe.length.to_string()),
        ("local_addr", format!("{:016x}", wqe.local_addr)),
        ("lkey", format!("{:08x}", wqe.lkey)),
    ];
    if wqe.op != SendOp::Send {
        fields.push(("remote_addr", format!("{:016x}", wqe.remote_addr)));
        fields.push(("rkey", format!("{:08x}", wqe.rkey)));
    }
    if wqe.op == SendOp::FetchAdd {
        fields.push(("add", wqe.compare_add.to_string()));
    }
    fields.push(("signaled", wqe.signaled.to_string()));
    fields
}

/// The values that a step is about.
pub(super) fn fields(journey: &Journey, step: &Step, wqe: Option<&WqeBrief>) -> Fields {
    let [_, b] = &journey.sides;
    match (step.kind, step.event) {
        (Kind::Post, _) => wqe.map(wqe_fields).unwrap_or_default(),
        (Kind::PostReceive, _) => vec![
            ("wr_id", RECEIVE.to_string()),
            ("length", journey.size.to_string()),
            ("local_addr", format!("{:016x}", b.iova)),
            ("lkey", format!("{:08x}", b.lkey)),
        ],
        (Kind::Fetch, Some(NicEvent::Fetched { first_psn, psns, per_request, .. })) => {
            let last = first_psn.wrapping_add(psns).wrapping_sub(1) & 0xff_ffff;
            vec![
                ("first_psn", format!("{first_psn:06x}")),
                ("last_psn", format!("{last:06x}")),
                ("psns", psns.to_string()),
                ("psns_per_request", per_request.to_string()),
            ]
        }
        (Kind::Check, Some(NicEvent::Checked { pd, rkey, va, len, need, refused, .. })) => vec![
            ("rkey", format!("{rkey:08x}")),
            ("pd", pd.to_string()),
            ("first", format!("{va:016x}")),
            ("bytes", len.to_string()),
            (
                "right",
                format!("{need:?}").trim_start_matches("Access(").trim_end_matches(')').into(),
            ),
            ("region_first", format!("{:016x}", b.iova)),
            ("region_bytes", b.len.to_string()),
            ("result", refused.map_or_else(|| "granted".to_owned(), |why| why.to_string())),
        ],
        (
            Kind::Cqe | Kind::ReceiveCqe,
            Some(NicEvent::Completed { wr_id, status, byte_len, cq, qpn, .. }),
        ) => {
            vec![
                ("wr_id", wr_id.to_string()),
                ("status", format!("{status:?}")),
                ("byte_len", byte_len.to_string()),
                ("qp", format!("{qpn:06x}")),
                ("cq", cq.to_string()),
            ]
        }
        (Kind::GoBack, Some(NicEvent::WentBack { loss, psn, .. })) => {
            vec![("cause", format!("{loss:?}")), ("psn", format!("{psn:06x}"))]
        }
        (Kind::Wait, Some(NicEvent::WaitsForReceiver { psn, wait, .. })) => {
            vec![("psn", format!("{psn:06x}")), ("wait_ns", wait.as_nanos().to_string())]
        }
        (Kind::Refuse, Some(NicEvent::Refused { psn, syndrome, .. })) => {
            vec![("psn", format!("{psn:06x}")), ("syndrome", format!("{:02x}", syndrome.as_u8()))]
        }
        (Kind::Ahead | Kind::Duplicate, Some(event)) => match event {
            NicEvent::Ahead { psn, expected, .. } | NicEvent::Duplicate { psn, expected, .. } => {
                vec![("psn", format!("{psn:06x}")), ("expected", format!("{expected:06x}"))]
            }
            _ => Vec::new(),
        },
        _ => Vec::new(),
    }
}

/// Who does what in a step: a sentence.
pub(super) fn told(journey: &Journey, step: &Step) -> String {
    let who = match step.kind.who() {
        Who::Wire => "The network",
        who => who.name(),
    };
    format!("{who} {}.", sentence(journey, step))
}

/// What happens in a step.
fn sentence(journey: &Journey, step: &Step) -> String {
    let n = step.times;
    let again = if step.attempt > 1 { " again" } else { "" };
    match step.kind {
        Kind::PostReceive if step.phase == Phase::Recovery => {
            "posts a receive, late: it had other things to do".to_owned()
        }
        Kind::PostReceive => {
            "has posted a receive: a WQE in the receive queue that says where a message may go".to_owned()
        }
        Kind::Post => "writes a WQE (work queue element) into the send queue: no system call, no copy of the \
                       data"
            .to_owned(),
        Kind::Doorbell => {
            "rings the doorbell: \"there is something in the queue\". From here on the program is free to do \
             something else"
                .to_owned()
        }
        Kind::Fetch => fetch(step),
        Kind::Gather => {
            format!("reads the payload from A's memory by its lkey{again}, into {}", count(n, "packet"))
        }
        Kind::RequestPackets => packets(step, "from A to B"),
        Kind::Accept => {
            let no_key = match journey.topic {
                Topic::Send | Topic::Rnr => "",
                _ if journey.size == 0 => ". Nothing is moved, so no key is checked",
                _ => "",
            };
            format!(
                "accepts {}: lengths, opcode, queue pair, addresses, partition and ICRC are right{no_key}",
                count(n, "packet")
            )
        }
        Kind::Check => check(journey, step),
        Kind::Access => access(journey, step),
        Kind::Place => format!(
            "takes the oldest posted receive and writes the payload to its buffer, {}. The sender does not \
             know where that is",
            times(n)
        ),
        Kind::ReceiveCqe => "writes a CQE for the receive: a whole message is there".to_owned(),
        Kind::ReceivePoll => {
            "polls its completion queue and finds it: this is how it learns of the message".to_owned()
        }
        Kind::ResponsePackets => packets(step, "from B to A"),
        Kind::PlaceResponse => match journey.topic {
            Topic::Atomic => "writes the value from before to the address of the WQE".to_owned(),
            _ => format!(
                "writes the payload straight to its place in A's memory, checked by lkey, {}",
                times(n)
            ),
        },
        Kind::Ahead => format!(
            "finds a gap: {} of a later PSN than the one that is expected, and does not execute {}",
            count(n, "packet"),
            if n == 1 { "it" } else { "them" }
        ),
        Kind::Refuse => match step.event {
            Some(NicEvent::Refused { syndrome: Syndrome::RnrNak { timer }, .. }) => format!(
                "has no receive to put the message into, and decides on an RNR NAK (receiver not ready): \
                 \"come back in {}\"",
                time(rnr_timer(timer))
            ),
            _ => "decides on a NAK that names the PSN it expects: one for the gap, however many packets follow \
                  it"
                .to_owned(),
        },
        Kind::NakPackets => packets(step, "from B to A"),
        Kind::Duplicate => {
            format!("has executed {} already: acknowledges again, changes nothing", count(n, "packet"))
        }
        Kind::GoBack => go_back(step),
        Kind::Wait => match step.event {
            Some(NicEvent::WaitsForReceiver { wait, .. }) => {
                format!("sets a timer of {} and sends nothing for this queue pair until it ends", time(wait))
            }
            _ => "waits".to_owned(),
        },
        Kind::WaitOver => "has waited long enough, and tries again".to_owned(),
        Kind::Retire => "retires the WQE: everything that it asked for is done".to_owned(),
        Kind::Cqe => {
            "writes a CQE (completion queue element) with the number of the request and how it ended".to_owned()
        }
        Kind::Poll => "polls its completion queue and finds it. The buffer is its own again".to_owned(),
    }
}

/// How often.
fn times(n: u64) -> String {
    match n {
        1 => "once".to_owned(),
        n => format!("{n} times"),
    }
}

fn fetch(step: &Step) -> String {
    let Some(NicEvent::Fetched { wqe, psns, per_request, .. }) = step.event else {
        return "fetches the WQE".to_owned();
    };
    let what = match wqe.op {
        SendOp::Read if per_request < psns => format!(
            "fetches the WQE and gives it {}, one for each response. It asks for {per_request} at a time, so \
             that its receive buffer can hold what comes: {}",
            count(psns.into(), "PSN"),
            count(psns.div_ceil(per_request.max(1)).into(), "request packet")
        ),
        SendOp::Read => format!(
            "fetches the WQE and gives it {}, one for each response that it expects; the request itself is one \
             packet",
            count(psns.into(), "PSN")
        ),
        _ if psns == 1 => "fetches the WQE and gives it 1 PSN, for its one packet".to_owned(),
        _ => format!(
            "fetches the WQE and gives it {}, one for each packet",
            count(psns.into(), "PSN")
        ),
    };
    format!("{what}. A retry uses the same ones")
}

fn packets(step: &Step, way: &str) -> String {
    let n = step.packets.len() as u64;
    let lost = step.packets.iter().filter(|p| p.passage.dropped.is_some()).count() as u64;
    let again = if step.attempt > 1 { ", after the retry" } else { "" };
    let lost = match (lost, n) {
        (0, _) => String::new(),
        (1, 1) => "; it is lost on the way".to_owned(),
        (lost, _) => format!("; {lost} of them lost on the way"),
    };
    format!("carries {} {way}{again}{lost}", count(n, "packet"))
}

fn check(journey: &Journey, step: &Step) -> String {
    let Some(NicEvent::Checked { pd, rkey, len, need, refused, .. }) = step.event else {
        return "looks the key up".to_owned();
    };
    let need = format!("{need:?}");
    let need = need.trim_start_matches("Access(").trim_end_matches(')');
    let checks = count(step.times, "request");
    if let Some(why) = refused {
        return format!("looks the key {rkey:08x} up, for {need} of {len} bytes: refused, {why}");
    }
    format!(
        "looks the key {rkey:08x} up, for {checks}: it is that of B's region of {}; its protection domain is \
         the queue pair's (pd {pd}); the {} asked for lie inside; it grants {need}",
        count(journey.sides[1].len as u64, "byte"),
        count(len, "byte"),
    )
}

fn access(journey: &Journey, step: &Step) -> String {
    match journey.topic {
        Topic::Atomic => {
            let orig = header(journey, |p| p.ext.atomic_ack.map(|ack| ack.orig));
            let add = header(journey, |p| p.ext.atomic.map(|eth| eth.swap_add));
            format!(
                "reads the word, {orig}, and writes {orig} + {add} in one act: nobody sees it in between. It \
                 remembers the {orig}, in case the answer is lost"
            )
        }
        Topic::Read => format!(
            "reads B's memory, a packet's worth {} as each response leaves, and checks the key each time. B's \
             application is not asked, and not told",
            times(step.times)
        ),
        _ => format!(
            "writes the payload to its place in B's memory, {}, and checks the key each time. B's application \
             is not asked, and not told",
            times(step.times)
        ),
    }
}

/// A value in a header of some packet.
fn header(journey: &Journey, of: impl Fn(&Passage) -> Option<u64>) -> u64 {
    let values = journey.records.iter().filter_map(|record| match &record.step {
        Happened::Packet(passage) => of(passage),
        _ => None,
    });
    values.last().unwrap_or_default()
}

fn go_back(step: &Step) -> String {
    use softroce::cc::Loss;
    let Some(NicEvent::WentBack { loss, psn, .. }) = step.event else {
        return "goes back".to_owned();
    };
    let why = match loss {
        Loss::SequenceNak => "a sequence NAK says what is missing",
        Loss::ImpliedNak => "an answer beyond one that did not come says that it is missing",
        Loss::Timeout => {
            "nothing has come for the time of the ACK timer: nothing behind the loss could show the gap"
        }
        _ => "something is missing",
    };
    format!("goes back to PSN {psn:06x} and sends everything from there again: {why}")
}
