//! Stations: queue pairs for datagrams, what they send, and what may arrive of it.
//!
//! What is asked: a datagram arrives as it was sent, at the queue pair that it is for or at members of its group
//! other than its sender, if the Q_Key is right there; at most once, unless the network has made copies; with the
//! header in front of it that it had on the network.

use std::net::IpAddr;
use std::sync::Arc;

use super::end::gather;
use super::inbox::Inbox;
use super::loose::Disorder;
use super::model::{Answer, Effect, Posted, Stream};
use super::plan::{self, Key, QKEYS, TOO_LONG, To};
use super::run::{Host, Run, Verdict, refused};
use crate::time::{Duration, Instant};
use crate::verbs::{
    AddressHandle, AhAttr, CompletionQueue, MemoryRegion, QpAttr, QpState, QpType, QueuePair,
    SendWr, Sge, Source, WcOpcode, WcStatus, WorkCompletion, inline,
};
use crate::wire::grh::Grh;
use crate::wire::num::Gid;

/// Time within which a station that has something to send gets on.
const PATIENCE: Duration = Duration::from_millis(20);
/// A Q_Key that stands for that of the sending queue pair.
const OWN_KEY: u32 = 1 << 31;

/// Address of a multicast group.
fn group(number: usize) -> IpAddr {
    match number {
        0 => IpAddr::from([239, 0, 0, 7]),
        _ => IpAddr::from([0xff0e, 0, 0, 0, 0, 0, 0, 7]),
    }
}

/// Where datagrams go.
#[derive(Debug)]
struct Way {
    ah: AddressHandle,
    src: IpAddr,
    dst: IpAddr,
}

/// The objects of a station. They go with its host.
#[derive(Debug)]
pub(super) struct Gear {
    pub(super) qp: QueuePair,
    pub(super) cq: CompletionQueue,
    pub(super) rcq: CompletionQueue,
    /// Its own receives, unless it takes them from a shared queue.
    inbox: Option<Inbox>,
    source: Arc<MemoryRegion>,
    stations: Vec<Way>,
    groups: Vec<Way>,
}

/// A datagram that was posted.
#[derive(Debug)]
struct Sent {
    to: To,
    key: u32,
    data: Vec<u8>,
    imm: Option<u32>,
    src: IpAddr,
    dst: IpAddr,
    /// It was handed over.
    left: bool,
    /// Where it has arrived: a bit for each station.
    seen: u32,
}

/// A station, while it runs.
#[derive(Debug)]
pub(super) struct Station {
    pub(super) gear: Option<Gear>,
    number: u32,
    qpns: Vec<u32>,
    pub(super) stream: Stream,
    sent: Vec<Sent>,
    next: usize,
    next_post: Instant,
    moved: Instant,
    pub(super) deaf: bool,
    last_shared: Option<u64>,
    last_told: u32,
    received: usize,
}

impl Station {
    /// A station that can receive.
    pub(super) fn new(
        host: &Host,
        plan: &plan::Station,
        queues: [&CompletionQueue; 2],
    ) -> Result<Self, String> {
        let mut qp = host.pd.create_qp(QpType::Ud, queues[0]).recv_cq(queues[1]);
        qp = qp.depth(plan.sends, plan.receives);
        let inbox = match host.shared.as_ref().filter(|_| plan.shared) {
            Some(shared) => {
                qp = qp.srq(&shared.srq);
                None
            }
            None => Some(Inbox::new(&host.pd, plan.receives, plan.room, false).map_err(refused)?),
        };
        let qp = qp.build().map_err(refused)?;
        qp.activate(QKEYS[plan.key]).map_err(refused)?;
        for (number, _) in plan.groups.iter().enumerate().filter(|&(_, &is_in)| is_in) {
            qp.attach_mcast(Gid::from(group(number))).map_err(refused)?;
        }
        let number = qp.number();
        let gear = Gear {
            qp,
            cq: queues[0].clone(),
            rcq: queues[1].clone(),
            inbox,
            source: Arc::clone(&host.source),
            stations: Vec::new(),
            groups: Vec::new(),
        };
        Ok(Self {
            gear: Some(gear),
            number,
            qpns: Vec::new(),
            stream: Stream::new(usize::MAX, Vec::new()),
            sent: Vec::new(),
            next: 0,
            next_post: Instant::ZERO,
            moved: Instant::ZERO,
            deaf: false,
            last_shared: None,
            last_told: 0,
            received: 0,
        })
    }

    fn state(&self) -> Option<QpState> {
        self.gear.as_ref().and_then(|g| g.qp.state().ok())
    }

    /// Whether it has nothing to do any more.
    pub(super) fn is_done(&self, plan: &plan::Station) -> bool {
        self.gear.is_none() || self.next == plan.datagrams.len() && self.stream.outstanding() == 0
    }

    /// Posts receives and datagrams. Whether it did.
    fn tend(&mut self, now: Instant, plan: &plan::Station) -> Result<bool, String> {
        let Some(gear) = &mut self.gear else { return Ok(false) };
        let mut moved = false;
        if let Some(inbox) = gear.inbox.as_mut().filter(|_| !self.deaf)
            && inbox.outstanding() <= plan.low as usize
        {
            moved |= inbox.refill(&gear.qp)? > 0;
        }
        if gear.qp.state() == Ok(QpState::Sqe) && self.stream.outstanding() == 0 {
            self.stream.go_on();
            gear.qp.modify(&QpAttr::to(QpState::Rts)).map_err(refused)?;
        }
        if self.next < plan.datagrams.len() && now >= self.next_post {
            self.next_post = now + plan.gap;
            moved |= self.post(plan)? > 0;
        }
        if moved {
            self.moved = now;
        }
        Ok(moved)
    }

    fn post(&mut self, plan: &plan::Station) -> Result<usize, String> {
        let Some(gear) = &self.gear else { return Ok(0) };
        let room = gear.qp.cap().send_wr as usize - self.stream.outstanding();
        let batch = &plan.datagrams[self.next..];
        let batch = &batch[..batch.len().min(room).min(plan.batch)];
        let mtu = gear.qp.endpoint().mtu.bytes();
        let mut ready: Vec<(Vec<Sge>, u32)> = Vec::with_capacity(batch.len());
        for datagram in batch {
            let len = if datagram.len == TOO_LONG { mtu + 1 } else { datagram.len };
            let (sges, data) = gather(&gear.source, datagram.src, datagram.pieces, len);
            let (said, key) = match datagram.key {
                Key::Number(i) => (QKEYS[i], QKEYS[i]),
                Key::Own => (OWN_KEY, QKEYS[plan.key]),
            };
            let way = way(gear, datagram.to);
            self.stream.post(Posted {
                id: self.stream.posted() as u64,
                opcode: WcOpcode::Send,
                signaled: datagram.signaled,
                fence: false,
                fails: (len > mtu).then_some(WcStatus::LocLen),
                effect: Effect::Nothing,
                answer: Answer::Nothing,
                message: None,
            });
            self.sent.push(Sent {
                to: datagram.to,
                key,
                data,
                imm: datagram.imm,
                src: way.src,
                dst: way.dst,
                left: true,
                seen: 0,
            });
            ready.push((sges, said));
        }
        let first = self.sent.len() - batch.len();
        let requests = batch.iter().zip(&ready).enumerate().map(|(i, (datagram, (sges, key)))| {
            let sent = &self.sent[first + i];
            let from = match datagram.inline {
                true => inline(&sent.data),
                false => Source::from(&sges[..]),
            };
            let mut wr = SendWr::send((first + i) as u64, from);
            if let Some(imm) = datagram.imm {
                wr = wr.imm(imm);
            }
            if !datagram.signaled {
                wr = wr.unsignaled();
            }
            let qpn = match datagram.to {
                To::Station(n) => self.qpns[n],
                To::Group(_) => 0,
            };
            wr.to(&way(gear, datagram.to).ah, qpn, *key)
        });
        let posted = gear.qp.post_send(requests);
        posted.map_err(|e| format!("{room} slots of the send queue are free, but: {e}"))?;
        self.next += batch.len();
        Ok(batch.len())
    }

    /// A completion of a datagram.
    fn completed(&mut self, wc: &WorkCompletion) -> Verdict {
        if wc.status != WcStatus::Success
            && let Some(sent) = usize::try_from(wc.wr_id).ok().and_then(|i| self.sent.get_mut(i))
        {
            sent.left = false;
        }
        self.stream.completed(wc, |_, _| false).map(drop)
    }

    /// Whether a datagram is for station `index` of the plan `receiver`, not looking at the Q_Key.
    fn is_for(&self, sent: &Sent, index: usize, receiver: &plan::Station, is_sender: bool) -> bool {
        sent.left
            && match sent.to {
                To::Station(to) => to == index,
                To::Group(n) => receiver.groups[n] && !is_sender,
            }
    }
}

fn way(gear: &Gear, to: To) -> &Way {
    match to {
        To::Station(n) => &gear.stations[n],
        To::Group(n) => &gear.groups[n],
    }
}

/// The bytes that must stand in front of a datagram.
fn front(sent: &Sent, traffic_class: u8) -> Option<[u8; Grh::LEN]> {
    let grh = Grh { src: sent.src, dst: sent.dst, traffic_class, hop_limit: 64, flow_label: 0 };
    // BTH, DETH, immediate data, payload with its pad, ICRC.
    let imm = if sent.imm.is_some() { 4 } else { 0 };
    grh.emit(12 + 8 + imm + sent.data.len().next_multiple_of(4) + 4)
}

impl Run<'_> {
    /// Makes the ways between all stations.
    pub(super) fn find_ways(&mut self) -> Verdict {
        let qpns: Vec<u32> = self.stations.iter().map(|s| s.number).collect();
        for (index, plan) in self.plan.stations.iter().enumerate() {
            let to_station = |n: usize| (Some(self.plan.stations[n].host), plan.v6, None);
            let to_group = |n: usize| (None, group(n).is_ipv6(), Some(group(n)));
            let make = |(host, v6, dst): (Option<usize>, bool, Option<IpAddr>)| {
                let (_, src) = self.address(plan.host, v6)?;
                let dst = match host {
                    Some(host) => self.address(host, v6)?.1,
                    None => dst.ok_or("no destination")?,
                };
                let from = self.hosts[plan.host].as_ref().ok_or("no host")?;
                let ah = AhAttr {
                    dgid: Gid::from(dst),
                    sgid_index: self.address(plan.host, v6)?.0,
                    traffic_class: plan.traffic_class,
                    ..AhAttr::default()
                };
                let ah = from.pd.create_ah(&ah).map_err(refused)?;
                Ok::<_, String>(Way { ah, src, dst })
            };
            let stations = (0..qpns.len()).map(to_station).map(make).collect::<Result<_, _>>()?;
            let groups = (0..2).map(to_group).map(make).collect::<Result<_, _>>()?;
            let station = &mut self.stations[index];
            station.qpns.clone_from(&qpns);
            if let Some(gear) = &mut station.gear {
                (gear.stations, gear.groups) = (stations, groups);
            }
        }
        Ok(())
    }

    /// An address of a host, and its index.
    fn address(&self, host: usize, v6: bool) -> Result<(u16, IpAddr), String> {
        let host = self.hosts[host].as_ref().ok_or("no host")?;
        let gids = host.ctx.gids().map_err(refused)?;
        let found = gids
            .iter()
            .find_map(|g| g.gid.ip().filter(|ip| ip.is_ipv6() == v6).map(|ip| (g.index, ip)));
        found.ok_or_else(|| "a host has no address of a family".into())
    }

    /// Lets all stations get on.
    pub(super) fn tend_stations(&mut self) -> Result<bool, String> {
        let now = self.now();
        let mut moved = false;
        for (index, plan) in self.plan.stations.iter().enumerate() {
            let station = &mut self.stations[index];
            let tended = station.tend(now, plan);
            moved |= tended.map_err(|what| format!("station {index}: {what}"))?;
            if !station.is_done(plan) && now.saturating_since(station.moved) > PATIENCE {
                return Err(format!(
                    "station {index} stands still: {} in the queue, state {:?}",
                    station.stream.outstanding(),
                    station.state()
                ));
            }
        }
        Ok(moved)
    }

    /// The station of a host with this queue pair.
    pub(super) fn station_of(&self, host: usize, qpn: u32) -> Option<usize> {
        let plans = self.plan.stations.iter().zip(&self.stations);
        plans.into_iter().position(|(p, s)| p.host == host && s.number == qpn && s.gear.is_some())
    }

    /// A completion of a station.
    pub(super) fn station_takes(&mut self, index: usize, wc: &WorkCompletion) -> Verdict {
        let now = self.now();
        let station = &mut self.stations[index];
        station.moved = now;
        let taken = if wc.qpn != station.number {
            Err(format!("{wc:?}: it is not of queue pair {:#x}", station.number))
        } else if wc.wr_id & super::inbox::RECEIVE == 0 {
            self.requests += 1;
            station.completed(wc)
        } else {
            self.datagram_arrived(index, wc)
        };
        taken.map_err(|what| format!("station {index}: {what}"))
    }

    fn datagram_arrived(&mut self, index: usize, wc: &WorkCompletion) -> Verdict {
        let now = self.now();
        let plan = &self.plan.stations[index];
        let station = &mut self.stations[index];
        let is_err = station.state() == Some(QpState::Err);
        let own = station.gear.as_mut().and_then(|g| g.inbox.as_mut());
        let shared = self.hosts[plan.host].as_mut().and_then(|h| h.shared.as_mut());
        let is_shared = own.is_none();
        let shared = shared.filter(|_| plan.shared).map(|queue| {
            queue.moved = now;
            &mut queue.inbox
        });
        let inbox = own.or(shared).ok_or("no such receives")?;
        let receive = inbox.complete(wc)?;
        if is_shared && station.last_shared.replace(receive.0) >= Some(receive.0) {
            return Err(format!("{wc:?}: receives of one queue pair were not taken in order"));
        }
        if wc.status != WcStatus::Success {
            inbox.take(receive, 0, false)?;
            let flushed = is_err && wc.status == WcStatus::WrFlush;
            let what = || format!("{wc:?}: nothing that happened explains this status");
            return flushed.then_some(()).ok_or_else(what);
        }
        let len = wc.byte_len as usize;
        if len > inbox.room || len < Grh::LEN || !wc.has_grh || wc.opcode != WcOpcode::Recv {
            return Err(format!("{wc:?}: no datagram is like that"));
        }
        let bytes = inbox.take(receive, len, false)?;
        station.received += 1;
        self.find_sender(index, wc, &bytes)
    }

    /// Who has sent a datagram that has arrived at station `index`.
    fn find_sender(&mut self, index: usize, wc: &WorkCompletion, bytes: &[u8]) -> Verdict {
        let (head, data) = bytes.split_at(Grh::LEN);
        let receiver = &self.plan.stations[index];
        let Disorder { copies, .. } = self.disorder;
        let mut again = false;
        for (from, plan) in self.plan.stations.iter().enumerate() {
            let station = &self.stations[from];
            if station.number != wc.src_qpn {
                continue;
            }
            let is_it = |sent: &Sent| {
                station.is_for(sent, index, receiver, from == index)
                    && sent.key == QKEYS[receiver.key]
                    && (sent.data == data && sent.imm == wc.imm)
                    && front(sent, plan.traffic_class).is_some_and(|front| front == head)
            };
            let is_new = |sent: &Sent| sent.seen >> index & 1 == 0;
            let found = station.sent.iter().position(|sent| is_new(sent) && is_it(sent));
            if let Some(found) = found {
                self.stations[from].sent[found].seen |= 1 << index;
                return Ok(());
            }
            again |= station.sent.iter().any(is_it);
        }
        match (again, copies) {
            (true, true) => Ok(()),
            (true, false) => Err(format!("{wc:?}: a datagram that arrived twice")),
            (false, _) => Err(format!(
                "{wc:?}: nobody has sent this datagram here; in front of it {head:02x?}"
            )),
        }
    }

    /// A station in ERR has told that it takes no more receives from the shared queue.
    pub(super) fn station_left(&mut self, host: usize, qpn: u32) -> Verdict {
        let index = self.station_of(host, qpn);
        let index = index.ok_or_else(|| format!("queue pair {qpn:#x} does not exist"))?;
        let station = &mut self.stations[index];
        station.last_told += 1;
        if station.state() == Some(QpState::Err) && station.last_told == 1 {
            return Ok(());
        }
        Err(format!(
            "station {index}, in {:?}: the last receive was taken, told for time {}",
            station.state(),
            station.last_told
        ))
    }

    /// Sends all stations to ERR.
    pub(super) fn close_stations(&self) -> Verdict {
        for gear in self.stations.iter().filter_map(|s| s.gear.as_ref()) {
            gear.qp.modify(&QpAttr::to(QpState::Err)).map_err(refused)?;
        }
        Ok(())
    }

    /// Stations in ERR have given everything back.
    pub(super) fn check_closed_stations(&self) -> Verdict {
        for (index, station) in self.stations.iter().enumerate() {
            let Some(gear) = &station.gear else { continue };
            let left = match &gear.inbox {
                Some(inbox) => inbox.outstanding(),
                None => usize::from(station.last_told != 1),
            };
            if left + station.stream.outstanding() > 0 {
                return Err(format!("station {index} is in ERR, and {left} receives are missing"));
            }
        }
        Ok(())
    }

    /// Datagrams for stations of a host: how many must have found a receive or none, how many had another
    /// Q_Key, and how many came back to who had sent them to a group.
    pub(super) fn datagram_balance(&self, host: usize) -> [usize; 3] {
        let [mut missing, mut keys, mut echoes] = [0_usize; 3];
        for (from, sender) in self.stations.iter().enumerate() {
            let plan = &self.plan.stations[from];
            for sent in &sender.sent {
                for (to, receiver) in self.plan.stations.iter().enumerate() {
                    if receiver.host != host || !sender.is_for(sent, to, receiver, from == to) {
                        continue;
                    }
                    match sent.key == QKEYS[receiver.key] {
                        true => missing += 1,
                        false => keys += 1,
                    }
                }
                let is_echo = matches!(sent.to, To::Group(n) if plan.groups[n]);
                echoes += usize::from(sent.left && is_echo && plan.host == host);
            }
        }
        let there = self.plan.stations.iter().zip(&self.stations).filter(|(p, _)| p.host == host);
        let received: usize = there.map(|(_, s)| s.received).sum();
        [missing.saturating_sub(received), keys, echoes]
    }
}
