//! The records of a journey, in order, as steps: who did what, when, and how many bytes it moved.
//!
//! *Rules.* A step is made of records only. Records of one kind at one side are one step, as often as they
//! come (a READ of 256 responses looks memory up 256 times); after a retry they are a new one. A packet
//! belongs to the attempt in which it was sent. Nothing is left out: a record that belongs to no step is an
//! error.

use std::collections::VecDeque;

use softroce::sim::trace::{CqeKind, NicEvent, Passage, Record, Step as Happened};
use softroce::time::Duration;
use softroce::wire::Syndrome;
use softroce::wire::opcode::Operation;

use super::journey::{Journey, mark};
use crate::tour::Failure;

/// The chapters of the tale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Post,
    Request,
    Access,
    Response,
    Completion,
    /// What follows a loss, or a receiver that is not ready.
    Recovery,
}

impl Phase {
    /// The name in `--json`.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Post => "post",
            Self::Request => "request",
            Self::Access => "access",
            Self::Response => "response",
            Self::Completion => "completion",
            Self::Recovery => "recovery",
        }
    }
}

/// A kind of step. The names in `--json` do not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    PostReceive,
    Post,
    Doorbell,
    Fetch,
    Gather,
    RequestPackets,
    Accept,
    Check,
    Access,
    Place,
    ReceiveCqe,
    ReceivePoll,
    ResponsePackets,
    PlaceResponse,
    Ahead,
    Refuse,
    NakPackets,
    Duplicate,
    GoBack,
    Wait,
    WaitOver,
    Retire,
    Cqe,
    Poll,
}

/// Who acts in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    Requester,
    RequesterNic,
    Wire,
    ResponderNic,
    Responder,
}

impl Who {
    pub(super) const ALL: [Self; 5] =
        [Self::Requester, Self::RequesterNic, Self::Wire, Self::ResponderNic, Self::Responder];

    /// The name in `--json`.
    pub(super) const fn key(self) -> &'static str {
        match self {
            Self::Requester => "requester_application",
            Self::RequesterNic => "requester_nic",
            Self::Wire => "wire",
            Self::ResponderNic => "responder_nic",
            Self::Responder => "responder_application",
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Requester => "A's application",
            Self::RequesterNic => "A's NIC",
            Self::Wire => "the network",
            Self::ResponderNic => "B's NIC",
            Self::Responder => "B's application",
        }
    }
}

impl Kind {
    /// The name in `--json`, the phase, and who acts.
    const fn row(self) -> (&'static str, Phase, Who) {
        use Phase::{Access, Completion, Post, Recovery, Request, Response};
        use Who::{Requester, RequesterNic, Responder, ResponderNic, Wire};
        match self {
            Self::PostReceive => ("post_receive", Post, Responder),
            Self::Post => ("post", Post, Requester),
            Self::Doorbell => ("doorbell", Post, Requester),
            Self::Fetch => ("fetch", Request, RequesterNic),
            Self::Gather => ("gather", Request, RequesterNic),
            Self::RequestPackets => ("request_packets", Request, Wire),
            Self::Accept => ("accept", Access, ResponderNic),
            Self::Check => ("check", Access, ResponderNic),
            Self::Access => ("access", Access, ResponderNic),
            Self::Place => ("place", Access, ResponderNic),
            Self::ReceiveCqe => ("receive_cqe", Access, ResponderNic),
            Self::ReceivePoll => ("receive_poll", Access, Responder),
            Self::ResponsePackets => ("response_packets", Response, Wire),
            Self::PlaceResponse => ("place_response", Response, RequesterNic),
            Self::Ahead => ("ahead", Recovery, ResponderNic),
            Self::Refuse => ("refuse", Recovery, ResponderNic),
            Self::NakPackets => ("nak_packets", Recovery, Wire),
            Self::Duplicate => ("duplicate", Recovery, ResponderNic),
            Self::GoBack => ("go_back", Recovery, RequesterNic),
            Self::Wait => ("wait", Recovery, RequesterNic),
            Self::WaitOver => ("wait_over", Recovery, RequesterNic),
            Self::Retire => ("retire", Completion, RequesterNic),
            Self::Cqe => ("cqe", Completion, RequesterNic),
            Self::Poll => ("poll", Completion, Requester),
        }
    }

    pub(super) const fn name(self) -> &'static str {
        self.row().0
    }

    pub(super) const fn who(self) -> Who {
        self.row().2
    }
}

/// A step.
#[derive(Clone, Debug)]
pub(super) struct Step {
    /// 1 for the first attempt; each retry begins another.
    pub(super) attempt: u32,
    pub(super) phase: Phase,
    pub(super) kind: Kind,
    pub(super) begins: Duration,
    pub(super) ends: Duration,
    /// Records that it is made of.
    pub(super) times: u64,
    /// Bytes of the message that it moved; of packets, those that arrive.
    pub(super) bytes: u64,
    /// The first event.
    pub(super) event: Option<NicEvent>,
    /// Its packets, if it is one of packets.
    pub(super) packets: Vec<Sent>,
}

/// A packet, from where it was sent.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    /// When the NIC handed it to the network.
    pub(super) at: Duration,
    pub(super) passage: Passage,
}

impl Step {
    /// Where in its attempt it is told.
    const fn rank(&self) -> u8 {
        match self.phase {
            // What ends a wait begins the next attempt.
            Phase::Recovery if matches!(self.kind, Kind::PostReceive | Kind::WaitOver) => 0,
            Phase::Post => 1,
            Phase::Request => 2,
            Phase::Access => 3,
            Phase::Response => 4,
            Phase::Recovery => 5,
            Phase::Completion => 6,
        }
    }
}

fn is_refusal(syndrome: Option<Syndrome>) -> bool {
    matches!(syndrome, Some(Syndrome::Nak(_) | Syndrome::RnrNak { .. }))
}

/// Puts records into steps.
#[derive(Debug, Default)]
struct Fold {
    steps: Vec<Step>,
    /// The attempt that the requester is in, and that of the request that the responder saw last.
    attempt: [u32; 2],
    /// Packets handed to the network, by sender: attempt and time; and the attempts of those that will arrive, by
    /// receiver.
    sent: [VecDeque<(u32, Duration)>; 2],
    flying: [VecDeque<u32>; 2],
    /// The responder has accepted a packet that names memory, and has not looked it up yet.
    names_memory: bool,
}

impl Fold {
    fn step(&mut self, attempt: u32, kind: Kind, at: Duration) -> &mut Step {
        let phase = match kind.row().1 {
            // Posted when the other side waits for it already.
            Phase::Post if attempt > 1 => Phase::Recovery,
            phase => phase,
        };
        let same = |s: &Step| s.attempt == attempt && s.kind == kind;
        let place = self.steps.iter().position(same).unwrap_or_else(|| {
            self.steps.push(Step {
                attempt,
                phase,
                kind,
                begins: at,
                ends: at,
                times: 0,
                bytes: 0,
                event: None,
                packets: Vec::new(),
            });
            self.steps.len() - 1
        });
        let step = &mut self.steps[place];
        step.ends = step.ends.max(at);
        step.times += 1;
        step
    }

    fn mark(&mut self, label: &str, at: Duration) -> Result<(), Failure> {
        let (attempt, kind) = match label {
            mark::POST => (self.attempt[0], Kind::Post),
            mark::POST_RECEIVE => (self.attempt[0], Kind::PostReceive),
            mark::POLL => (self.attempt[0], Kind::Poll),
            mark::POLL_RECEIVE => (self.attempt[1], Kind::ReceivePoll),
            _ => return Err(Failure::new(format!("the trace has an unknown mark: {label}"))),
        };
        self.step(attempt, kind, at);
        Ok(())
    }

    fn passage(&mut self, p: &Passage, at: Duration) -> Result<(), Failure> {
        let misfit = || Failure::new("the trace has a packet that nobody sent");
        let sent = self.sent.get_mut(p.from).and_then(VecDeque::pop_front);
        let (attempt, sent) = sent.ok_or_else(misfit)?;
        if let (Some(to), Some(_)) = (p.to, p.arrival) {
            self.flying.get_mut(to).ok_or_else(misfit)?.push_back(attempt);
        }
        let kind = match (p.from, p.ext.aeth.map(|aeth| aeth.syndrome)) {
            (0, _) => Kind::RequestPackets,
            (_, syndrome) if is_refusal(syndrome) => Kind::NakPackets,
            _ => Kind::ResponsePackets,
        };
        let step = self.step(attempt, kind, at);
        step.begins = step.begins.min(sent);
        step.ends = step.ends.max(p.arrival.unwrap_or(at));
        if p.arrival.is_some() {
            step.bytes += p.payload.unwrap_or(0) as u64;
        }
        step.packets.push(Sent { at: sent, passage: p.clone() });
        Ok(())
    }

    fn nic(&mut self, host: usize, event: NicEvent, at: Duration) -> Result<(), Failure> {
        if host > 1 {
            return Err(Failure::new("the trace has a third host"));
        }
        let here = self.attempt[host];
        let (kind, bytes) = match event {
            NicEvent::Doorbell { .. } => (Kind::Doorbell, 0),
            NicEvent::Fetched { .. } => (Kind::Fetch, 0),
            NicEvent::Gathered { bytes, .. } => (Kind::Gather, bytes as u64),
            NicEvent::Sent(_) => {
                self.sent[host].push_back((here, at));
                return Ok(());
            }
            NicEvent::Arrived(brief) => {
                let attempt = self.flying[host].pop_front();
                let attempt = attempt.ok_or_else(|| {
                    Failure::new("the trace has an arrival of what is not under way")
                })?;
                if host == 0 {
                    return Ok(());
                }
                self.attempt[1] = attempt;
                let info = brief.opcode.info();
                self.names_memory = info.position.starts() && info.operation != Operation::Send;
                let step = self.step(attempt, Kind::Accept, at);
                step.event.get_or_insert(event);
                return Ok(());
            }
            NicEvent::Checked { refused, len, need, .. } => {
                let names_memory = std::mem::take(&mut self.names_memory);
                if names_memory {
                    let step = self.step(here, Kind::Check, at);
                    step.event.get_or_insert(event);
                }
                let is_atomic = need.contains(softroce::prelude::Access::REMOTE_ATOMIC);
                if refused.is_some() || names_memory && !is_atomic {
                    return Ok(());
                }
                (Kind::Access, len)
            }
            NicEvent::Scattered { bytes, .. } if host == 0 => (Kind::PlaceResponse, bytes as u64),
            NicEvent::Scattered { bytes, .. } => (Kind::Place, bytes as u64),
            NicEvent::Duplicate { .. } => (Kind::Duplicate, 0),
            NicEvent::Ahead { .. } => (Kind::Ahead, 0),
            NicEvent::Refused { .. } => (Kind::Refuse, 0),
            NicEvent::WentBack { .. } => (Kind::GoBack, 0),
            NicEvent::WaitsForReceiver { .. } => (Kind::Wait, 0),
            NicEvent::WaitOver { .. } => (Kind::WaitOver, 0),
            NicEvent::Retired { .. } => (Kind::Retire, 0),
            NicEvent::Completed { kind: CqeKind::Recv, byte_len, .. } => {
                (Kind::ReceiveCqe, u64::from(byte_len))
            }
            NicEvent::Completed { byte_len, .. } => (Kind::Cqe, u64::from(byte_len)),
            _ => return Err(Failure::new(format!("the trace has an event of no step: {event:?}"))),
        };
        // What is done from here on belongs to the next attempt.
        if matches!(kind, Kind::GoBack | Kind::Wait) {
            self.attempt[0] += 1;
        }
        let attempt = if matches!(kind, Kind::WaitOver) { self.attempt[0] } else { here };
        let step = self.step(attempt, kind, at);
        step.bytes += bytes;
        step.event.get_or_insert(event);
        Ok(())
    }
}

/// The steps of a journey, in the order in which they are told.
pub(super) fn of(journey: &Journey) -> Result<Vec<Step>, Failure> {
    let mut fold = Fold { attempt: [1; 2], ..Fold::default() };
    for Record { at, step, .. } in &journey.records {
        match step {
            Happened::Mark(label) => fold.mark(label, *at)?,
            Happened::Packet(passage) => fold.passage(passage, *at)?,
            Happened::Nic { host, event } => fold.nic(*host, *event, *at)?,
            _ => return Err(Failure::new("the trace has a record of an unknown kind")),
        }
    }
    // Packets of one attempt overlap in time: it is told chapter by chapter.
    fold.steps.sort_by_key(|step| (step.attempt, step.rank()));
    Ok(fold.steps)
}
