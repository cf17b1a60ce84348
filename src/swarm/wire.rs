//! What is looked at on the wire: that every packet is right by itself and follows those before it.

use std::collections::{BTreeMap, VecDeque};

use super::plan::{Plan, What};
use crate::sim::{Packet, Verdict};
use crate::time::{Duration, Instant};
use crate::wire::icrc::{self, IpFields};
use crate::wire::num::Psn;
use crate::wire::opcode::Operation;
use crate::wire::{Syndrome, aeth};

/// Lines of the record that are kept.
const LINES: usize = 2000;

/// One direction of requests.
#[derive(Debug)]
struct Flow {
    /// The PSN that a new request will have.
    next: Psn,
    /// No packet of a former life may still be under way.
    first: bool,
    mtu: usize,
    /// The receiver was not ready for this PSN: when it said so, and how long to wait.
    waits: Option<(Psn, Instant, Duration)>,
}

/// Looks at all packets.
pub(super) struct Watch {
    /// By sending host, receiving host, and queue pair at the receiver.
    flows: BTreeMap<(usize, usize, u32), Flow>,
    /// Whose requests the queue pair of a host answers: sender, and queue pair there.
    answers: BTreeMap<(usize, u32), (usize, usize, u32)>,
    in_order: bool,
    clean: bool,
    /// Longest time from the switch to a host and back, without waiting.
    round: Duration,
    lines: Option<VecDeque<String>>,
    failure: Option<String>,
}

impl Watch {
    pub(super) fn new(plan: &Plan, record: bool) -> Self {
        let down = |w: &What| matches!(w, What::Down { .. } | What::Death { .. });
        let delay = plan.links.iter().map(|l| l.delay).max().unwrap_or_default();
        Self {
            flows: BTreeMap::new(),
            answers: BTreeMap::new(),
            // What is lost before the switch is not seen.
            in_order: !plan.faults.iter().any(|f| down(&f.what)),
            clean: plan.is_clean(),
            round: delay * 2 + Duration::from_micros(2),
            lines: record.then(VecDeque::new),
            failure: None,
        }
    }

    /// Requests of a flow (sender, receiver, queue pair there) begin with `psn`.
    pub(super) fn expect(&mut self, flow: (usize, usize, u32), psn: u32, mtu: usize) {
        let first = !self.flows.contains_key(&flow);
        self.flows.insert(flow, Flow { next: Psn::new(psn), first, mtu, waits: None });
    }

    /// Queue pair `qpn` of `host` sends the requests of a flow, and gets their answers.
    pub(super) fn answered_to(&mut self, host: usize, qpn: u32, flow: (usize, usize, u32)) {
        self.answers.insert((host, qpn), flow);
    }

    pub(super) fn failure(&self) -> Option<String> {
        self.failure.clone()
    }

    pub(super) fn take_lines(&mut self) -> Vec<String> {
        self.lines.take().map(Vec::from).unwrap_or_default()
    }

    pub(super) fn packet(&mut self, packet: &Packet) -> Verdict {
        let seen = self.look(packet);
        if let Some(lines) = &mut self.lines {
            if lines.len() == LINES {
                lines.pop_front();
            }
            lines.push_back(format!("{packet:?}"));
            if let Err(what) = &seen {
                lines.push_back(what.clone());
            }
        }
        if let Err(what) = seen {
            self.failure.get_or_insert_with(|| format!("{packet:?}: {what}"));
        }
        Verdict::Pass
    }

    fn look(&mut self, packet: &Packet) -> Result<(), String> {
        let path = &packet.path;
        let ip = IpFields::new(path.src, path.dst, packet.ident, true, path.src_port);
        if !ip.is_some_and(|ip| icrc::check(&ip, &packet.bytes)) {
            return Err("its ICRC is wrong".into());
        }
        let parsed = crate::wire::Packet::parse(&packet.bytes)
            .map_err(|e| format!("it is malformed: {e}"))?;
        let info = parsed.info();
        let qpn = parsed.dest_qp().raw();
        if info.is_response() {
            self.answer(packet, qpn, &parsed);
            return Ok(());
        }
        let key = (packet.from, packet.to, qpn);
        let Some(flow) = self.flows.get_mut(&key) else { return Ok(()) };
        if parsed.payload().len() > flow.mtu {
            return Err(format!(
                "{} bytes of payload, and the path MTU is {}",
                parsed.payload().len(),
                flow.mtu
            ));
        }
        let psn = parsed.psn();
        if let Some((refused, at, wait)) = flow.waits
            && self.clean
            && psn == refused
        {
            let after = packet.at.saturating_since(at);
            if after > self.round && after < wait {
                return Err(format!("{after:?} after the receiver had asked for {wait:?}"));
            }
            if after >= wait {
                flow.waits = None;
            }
        }
        let ahead = psn.distance_from(flow.next);
        if ahead > 0 && self.in_order && flow.first {
            return Err(format!("{ahead} PSNs were left out before it"));
        }
        if ahead >= 0 && flow.first {
            let packets = match (info.operation, parsed.reth()) {
                (Operation::Read, Some(reth)) => (reth.dma_len as usize).div_ceil(flow.mtu).max(1),
                _ => 1,
            };
            flow.next = psn.offset(u32::try_from(packets).unwrap_or(1));
        }
        Ok(())
    }

    fn answer(&mut self, packet: &Packet, qpn: u32, parsed: &crate::wire::Packet<'_>) {
        let Some(key) = self.answers.get(&(packet.to, qpn)) else { return };
        let Some(flow) = self.flows.get_mut(key) else { return };
        if let Some(Syndrome::RnrNak { timer }) = parsed.aeth().map(|a| a.syndrome) {
            flow.waits = Some((parsed.psn(), packet.at, aeth::rnr_timer(timer)));
        }
    }
}
