//! Who talks with whom in a capture.

use std::collections::BTreeSet;
use std::net::IpAddr;

use softroce::internals::engine::qp::attr::QpType;
use softroce::net::flow_port;
use softroce::wire::opcode::Transport;

use crate::record::{Capture, Recorded};

/// One end of a conversation, and the other one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peers {
    pub(crate) kind: QpType,
    pub(crate) ip: IpAddr,
    pub(crate) qpn: u32,
    /// Not of datagrams, which go to anybody.
    pub(crate) peer: IpAddr,
    pub(crate) dest_qpn: u32,
    /// Flow label of its path.
    pub(crate) flow_label: u32,
    /// Which of the programs at this end it was.
    pub(crate) run: usize,
}

impl Peers {
    /// Packets of the conversation, in order, and whether this end sent them.
    pub(crate) fn script<'c>(&self, capture: &'c Capture) -> Vec<(&'c Recorded, bool)> {
        let who = |r: &Recorded| {
            let (p, e) = (r.packet(), &r.envelope);
            let (to, between) = (p.dest_qp().raw(), |a, b| e.src == a && e.dst == b);
            if self.kind == QpType::Ud {
                let ours = p.deth().is_some_and(|deth| deth.src_qp.raw() == self.qpn);
                return (ours && e.src == self.ip).then_some(true);
            }
            if p.info().transport == Transport::Ud {
                None
            } else if between(self.ip, self.peer) && to == self.dest_qpn {
                Some(true)
            } else {
                (between(self.peer, self.ip) && to == self.qpn).then_some(false)
            }
        };
        capture.packets.iter().filter_map(|r| Some((r, who(r)?))).collect()
    }
}

/// All ends in a capture, in the order in which they are heard of.
pub(crate) fn ends(capture: &Capture) -> Vec<Peers> {
    let mut ends = Vec::<Peers>::new();
    for recorded in &capture.packets {
        let (packet, e) = (recorded.packet(), &recorded.envelope);
        let kind = match packet.info().transport {
            Transport::Rc => QpType::Rc,
            Transport::Uc => QpType::Uc,
            Transport::Ud => QpType::Ud,
            other => panic!("{other:?} was not recorded"),
        };
        let said = capture.option(e.src, 0, "--flow").unwrap_or(0);
        let (qpn, dest_qpn, flow_label) = match packet.deth() {
            Some(deth) => (deth.src_qp.raw(), 0, said),
            None => {
                let (qpn, flow_label) = sender(capture, recorded, said);
                (qpn, packet.dest_qp().raw(), flow_label)
            }
        };
        let is_known = |end: &Peers| {
            let (from, to) = ((end.ip, end.qpn), (end.peer, end.dest_qpn));
            end.kind == kind && (from == (e.src, qpn) || kind != QpType::Ud && to == (e.src, qpn))
        };
        if ends.iter().any(is_known) {
            continue;
        }
        let run = ends.iter().filter(|end| end.kind == kind && end.ip == e.src).count();
        let end = Peers { kind, ip: e.src, qpn, peer: e.dst, dest_qpn, flow_label, run };
        ends.push(end.clone());
        if kind != QpType::Ud {
            ends.push(Peers { ip: e.dst, qpn: dest_qpn, peer: e.src, dest_qpn: qpn, ..end });
        }
    }
    ends
}

/// The queue pair that sent a packet of a connection, and the flow label of its path. The UDP source port tells
/// them: it comes from the label, or from the numbers of both queue pairs where there is none.
fn sender(capture: &Capture, recorded: &Recorded, said: u32) -> (u32, u32) {
    let (to, e) = (recorded.packet().dest_qp().raw(), &recorded.envelope);
    let back = capture.packets.iter().filter(|r| {
        let their = &r.envelope;
        r.packet().deth().is_none()
            && (their.src, their.dst, their.src_port) == (e.dst, e.src, e.src_port)
    });
    let answered: BTreeSet<_> = back.map(|r| r.packet().dest_qp().raw()).collect();
    // rdma_cm makes a label of the ports of its ids, which is seen nowhere else: one of those that fit.
    let label = if capture.is_by_cm() { u32::from(e.src_port & 0x3fff) } else { said };
    let fits = |qpn: &u32| flow_port(label, *qpn, to) == e.src_port;
    let candidates: Vec<_> = match answered.is_empty() {
        // Nobody answered. rdma_rxe counts from 17.
        true => (0x11..0x40).filter(fits).collect(),
        false => answered.into_iter().filter(fits).collect(),
    };
    assert_eq!(candidates.len(), 1, "{}: who sends to {to:#x}?", capture.name);
    (candidates[0], label)
}
