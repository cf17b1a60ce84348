//! Following flows through a capture: what was sent again, what is missing, what was refused.
//!
//! A *flow* is what goes from one address to one queue pair at another. It carries requests of one side's
//! requester and responses of its responder, each with a PSN of its own: responses repeat the PSNs of the
//! requests that come the other way. Responses do not say which queue pair they come from, so the flow of
//! their requests is the one whose PSNs fit, and whose UDP source port if several do.
//!
//! *Rules.* A capture shows one place of the network. What is missing here may have arrived elsewhere, and
//! what is seen here may be lost behind: notes say what was seen.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use super::inspect::{Icrc, Inspected, Millis, nak_name};
use crate::time::Duration;
use crate::wire::aeth::rnr_timer;
use crate::wire::num::{Mtu, Psn, Qpn};
use crate::wire::opcode::{Info, Operation, Position, Transport};
use crate::wire::{NakCode, Syndrome};

/// Something worth knowing about a packet, from the packets before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// A request whose PSN was passed before: it is sent again.
    Retransmission(Cause),
    /// A request that had been answered already: the responder has it twice.
    Duplicate,
    /// At least so many PSNs before this packet were not seen.
    Gap(u32),
    /// A response that had been given already.
    AnsweredAgain,
    /// A negative acknowledgement.
    Nak(NakCode),
    /// The responder had no receive posted and asks for patience.
    RnrNak(Duration),
    /// A switch marked the packet: congestion experienced.
    Marked,
}

/// Why a request is sent again, as far as the capture tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A NAK asked for this PSN.
    SequenceNak,
    /// The wait after an RNR NAK is over.
    RnrNak,
    /// Nothing that was seen: a timeout, or an answer that jumped over a READ or atomic.
    Unprompted,
}

impl Note {
    /// What kind of note it is, without the numbers: for counting.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Retransmission(_) => "retransmission",
            Self::Duplicate => "duplicate",
            Self::Gap(_) => "gap",
            Self::AnsweredAgain => "answered again",
            Self::Nak(NakCode::SequenceError) => "NAK, PSN sequence error",
            Self::Nak(NakCode::InvalidRequest) => "NAK, invalid request",
            Self::Nak(NakCode::RemoteAccess) => "NAK, remote access error",
            Self::Nak(NakCode::RemoteOperational) => "NAK, remote operational error",
            Self::Nak(NakCode::InvalidRd) => "NAK, invalid RD request",
            Self::RnrNak(_) => "RNR NAK",
            Self::Marked => "congestion experienced",
        }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Retransmission(Cause::SequenceNak) => {
                f.write_str("retransmission after a sequence NAK")
            }
            Self::Retransmission(Cause::RnrNak) => f.write_str("retransmission after an RNR NAK"),
            Self::Retransmission(Cause::Unprompted) => f.write_str("retransmission"),
            Self::Duplicate => f.write_str("duplicate: was answered already"),
            Self::Gap(1) => f.write_str("gap: at least 1 PSN missing"),
            Self::Gap(n) => write!(f, "gap: at least {n} PSNs missing"),
            Self::Nak(code) => write!(f, "NAK: {}", nak_name(*code)),
            Self::RnrNak(wait) => write!(f, "RNR NAK: wait {}", Millis(*wait)),
            Self::AnsweredAgain | Self::Marked => f.write_str(self.name()),
        }
    }
}

/// Follows the flows of a capture. Hand it every packet, in order.
///
/// Equal captures give equal notes.
#[derive(Clone, Debug, Default)]
pub struct Analysis {
    flows: BTreeMap<Key, Flow>,
}

/// Sender, receiver, queue pair at the receiver.
type Key = (IpAddr, IpAddr, Qpn);

#[derive(Clone, Debug, Default)]
struct Flow {
    src_port: u16,
    requests: Option<Requests>,
    responses: Option<Responses>,
    /// The flow in the other direction that the responses answer, once found.
    answers: Option<Key>,
}

/// The requests of a flow.
#[derive(Clone, Debug)]
struct Requests {
    /// The PSN that comes next if nothing is lost or repeated.
    next: Psn,
    /// Behind the highest PSN seen.
    end: Psn,
    /// How far answers were seen.
    answered: Option<Psn>,
    /// Where a NAK sent the requester back to.
    go_back: Option<(Psn, Cause)>,
    /// While old PSNs are sent again: why.
    repeating: Option<Cause>,
    /// The last packet, if it was a READ that takes an unknown number of PSNs: its PSN and length.
    open_read: Option<(Psn, u32)>,
    /// Path MTU, once a full packet was seen.
    mtu: Option<usize>,
}

/// The responses of a flow.
#[derive(Clone, Debug)]
struct Responses {
    /// The highest PSN acknowledged by an ACK.
    acked: Option<Psn>,
    /// The highest PSN of READ responses and atomic answers, and whether more of that READ must follow.
    data: Option<(Psn, bool)>,
}

/// PSNs further apart than this belong to different connections.
const FAR: u32 = 1 << 16;

impl Analysis {
    /// Knows nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Looks at the next packet and says what is to be said about it.
    ///
    /// Packets that a receiver drops (damaged, malformed) have no notes and leave no trace. Of an unsplit
    /// send, hand over the [`segments`](Inspected::segments) too; if there are none, its flow begins anew.
    pub fn observe(&mut self, packet: &Inspected<'_>) -> Vec<Note> {
        let mut notes = Vec::new();
        let Some(opcode) = packet.opcode() else { return notes };
        let envelope = &packet.frame.envelope;
        let key = (envelope.src, envelope.dst, packet.bth.dest_qp);
        match packet.icrc {
            Icrc::Ok | Icrc::RxeFlush | Icrc::Cut => {}
            Icrc::Bad { .. } | Icrc::Unsplit { segment_len: Some(_) } => return notes,
            Icrc::Unsplit { segment_len: None } => {
                // Nobody knows how many PSNs went by.
                self.flows.remove(&key);
                return notes;
            }
        }
        if packet.problem.is_some() {
            return notes;
        }
        if envelope.traffic_class & 3 == 3 {
            notes.push(Note::Marked);
        }
        let info = opcode.info();
        match info.transport {
            Transport::Rc | Transport::Uc | Transport::Xrc => {}
            // Datagrams go to anybody, so their PSNs do not count anything at one receiver.
            Transport::Ud | Transport::Rd | Transport::Cnp => return notes,
        }
        self.flows.entry(key).or_default().src_port = envelope.src_port;
        if info.is_request() {
            self.request(key, packet, info, &mut notes);
        } else {
            self.response(key, packet, info, &mut notes);
        }
        notes
    }

    fn request(&mut self, key: Key, packet: &Inspected<'_>, info: &Info, notes: &mut Vec<Note>) {
        let psn = packet.bth.psn;
        let flow = self.flows.entry(key).or_default();
        let known = flow.requests.take().filter(|r| near(psn, r.end));
        let requests = match known {
            Some(mut requests) => {
                requests.settle_read(psn, info.operation);
                let ahead = psn.distance_from(requests.end);
                if ahead >= 0 {
                    requests.repeating = None;
                    if ahead > 0 {
                        notes.push(Note::Gap(ahead.unsigned_abs()));
                    }
                } else if info.transport == Transport::Uc {
                    notes.push(Note::Duplicate);
                } else {
                    notes.push(Note::Retransmission(requests.cause(psn)));
                    if requests.answered.is_some_and(|a| psn.distance_from(a) <= 0) {
                        notes.push(Note::Duplicate);
                    }
                }
                requests
            }
            None => Requests::beginning_at(psn),
        };
        let requests = flow.requests.insert(requests);
        requests.pass(packet, info);
    }

    fn response(&mut self, key: Key, packet: &Inspected<'_>, info: &Info, notes: &mut Vec<Note>) {
        let psn = packet.bth.psn;
        let syndrome = packet.aeth().map(|h| h.syndrome);
        match syndrome {
            Some(Syndrome::RnrNak { timer }) => notes.push(Note::RnrNak(rnr_timer(timer))),
            Some(Syndrome::Nak(code)) => notes.push(Note::Nak(code)),
            _ => {}
        }
        let plain_ack = matches!(syndrome, Some(Syndrome::Ack { .. }));
        let flow = self.flows.entry(key).or_default();
        let responses = flow.responses.get_or_insert(Responses { acked: None, data: None });
        responses.pass(psn, info, plain_ack, notes);
        self.answered(key, packet, info, syndrome);
    }

    /// Tells the flow of the requests what was answered.
    fn answered(
        &mut self,
        key: Key,
        packet: &Inspected<'_>,
        info: &Info,
        syndrome: Option<Syndrome>,
    ) {
        let psn = packet.bth.psn;
        let Some(requests) = self.answered_by(key, psn) else { return };
        match syndrome {
            Some(Syndrome::RnrNak { .. }) => requests.go_back = Some((psn, Cause::RnrNak)),
            Some(Syndrome::Nak(NakCode::SequenceError)) => {
                requests.go_back = Some((psn, Cause::SequenceNak));
            }
            _ => {}
        }
        // A NAK acknowledges what is before it. READ response MIDDLE has no syndrome, and means ACK.
        let upto = match syndrome {
            None | Some(Syndrome::Ack { .. }) => psn,
            Some(_) => psn.prev(),
        };
        if requests.answered.is_none_or(|a| upto.distance_from(a) > 0) {
            requests.answered = Some(upto);
        }
        let full = matches!(info.position, Position::First | Position::Middle);
        if full && info.operation == Operation::ReadResponse {
            requests.mtu = packet.payload_len().or(requests.mtu);
        }
    }

    /// The requests that a response in flow `key` answers.
    fn answered_by(&mut self, key: Key, psn: Psn) -> Option<&mut Requests> {
        let (src, dst, _) = key;
        let flow = self.flows.get(&key)?;
        let fits = |f: &Flow| f.requests.as_ref().is_some_and(|r| r.has_sent(psn));
        let known = flow.answers.filter(|k| self.flows.get(k).is_some_and(fits));
        let other = match known {
            Some(other) => other,
            None => {
                let back = (dst, src, Qpn::new(0))..=(dst, src, Qpn::MULTICAST);
                let fitting = self.flows.range(back).filter(|(_, f)| fits(f));
                let mut fitting: Vec<_> = fitting.map(|(k, f)| (*k, f.src_port)).collect();
                if fitting.len() > 1 {
                    fitting.retain(|(_, port)| *port == flow.src_port);
                }
                let [(other, _)] = fitting[..] else { return None };
                other
            }
        };
        self.flows.get_mut(&key)?.answers = Some(other);
        self.flows.get_mut(&other)?.requests.as_mut()
    }
}

impl Requests {
    fn beginning_at(psn: Psn) -> Self {
        Self {
            next: psn,
            end: psn,
            answered: None,
            go_back: None,
            repeating: None,
            open_read: None,
            mtu: None,
        }
    }

    /// Whether an answer to `psn` may come.
    fn has_sent(&self, psn: Psn) -> bool {
        let end = match self.open_read {
            Some((read, len)) => read.offset(packets(len, Mtu::B256.bytes())),
            None => self.end,
        };
        near(psn, end) && psn.distance_from(end) < 0
    }

    /// If the last packet was a READ that takes nobody knows how many PSNs, the packet behind it tells.
    fn settle_read(&mut self, psn: Psn, operation: Operation) {
        let Some((read, len)) = self.open_read.take() else { return };
        let fitting = Mtu::ALL.into_iter().find(|m| read.offset(packets(len, m.bytes())) == psn);
        let longest = read.offset(packets(len, Mtu::B256.bytes()));
        let next = match (self.mtu, fitting) {
            (Some(mtu), _) => read.offset(packets(len, mtu)),
            (None, Some(mtu)) => {
                self.mtu = Some(mtu.bytes());
                psn
            }
            // Another READ from the middle of it asks for the rest again.
            (None, None) if operation == Operation::Read && psn.distance_from(longest) < 0 => {
                longest
            }
            (None, None) => read.offset(1),
        };
        self.advance(next);
    }

    /// Why `psn`, which was passed before, comes again.
    fn cause(&mut self, psn: Psn) -> Cause {
        let cause = match (self.go_back, self.repeating) {
            (Some((at, cause)), _) if at == psn => {
                self.go_back = None;
                cause
            }
            (_, Some(cause)) if self.next == psn => cause,
            _ => Cause::Unprompted,
        };
        self.repeating = Some(cause);
        cause
    }

    /// Goes on behind a packet.
    fn pass(&mut self, packet: &Inspected<'_>, info: &Info) {
        let psn = packet.bth.psn;
        if matches!(info.position, Position::First | Position::Middle) {
            self.mtu = packet.payload_len().filter(|&len| len > 0).or(self.mtu);
        }
        let read = packet.reth().filter(|_| info.operation == Operation::Read);
        let span = match (read, self.mtu) {
            (None, _) => 1,
            (Some(reth), Some(mtu)) => packets(reth.dma_len, mtu),
            (Some(reth), None) if reth.dma_len as usize <= Mtu::B256.bytes() => 1,
            (Some(reth), None) => {
                self.open_read = Some((psn, reth.dma_len));
                1
            }
        };
        self.advance(psn.offset(span));
    }

    fn advance(&mut self, next: Psn) {
        self.next = next;
        if next.distance_from(self.end) > 0 {
            self.end = next;
        }
    }
}

impl Responses {
    fn pass(&mut self, psn: Psn, info: &Info, plain_ack: bool, notes: &mut Vec<Note>) {
        if info.operation == Operation::Acknowledge {
            if !plain_ack {
                return;
            }
            match self.acked.filter(|a| near(psn, *a)) {
                Some(acked) if psn.distance_from(acked) <= 0 => notes.push(Note::AnsweredAgain),
                _ => self.acked = Some(psn),
            }
            return;
        }
        let more = !info.position.ends();
        match self.data.filter(|(last, _)| near(psn, *last)) {
            Some((last, _)) if psn.distance_from(last) <= 0 => {
                notes.push(Note::AnsweredAgain);
                if psn == last {
                    self.data = Some((psn, more));
                }
                return;
            }
            Some((last, true)) if psn != last.offset(1) => {
                notes.push(Note::Gap(psn.distance_from(last).unsigned_abs() - 1));
            }
            // How many are missing before a MIDDLE or LAST that opens a READ cannot be told from here.
            Some((_, false)) if !info.position.starts() => notes.push(Note::Gap(1)),
            _ => {}
        }
        self.data = Some((psn, more));
    }
}

/// Whether two PSNs can belong to one connection.
const fn near(a: Psn, b: Psn) -> bool {
    a.distance_from(b).unsigned_abs() < FAR
}

/// How many packets carry `len` bytes: at least one.
fn packets(len: u32, mtu: usize) -> u32 {
    let mtu = u32::try_from(mtu).unwrap_or(u32::MAX).max(1);
    len.div_ceil(mtu).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::inspect;
    use crate::wire::frame::{Dissected, Envelope};
    use crate::wire::num::{Msn, Pkey, Rkey};
    use crate::wire::{Aeth, Bth, Ext, Opcode, PacketBuilder, Reth};

    const A: [u8; 4] = [10, 0, 0, 1];
    const B: [u8; 4] = [10, 0, 0, 2];

    /// A packet from A to B, or back.
    #[derive(Clone, Copy)]
    struct Sent {
        from: [u8; 4],
        to: [u8; 4],
        port: u16,
        traffic_class: u8,
        opcode: u8,
        dest_qp: u32,
        psn: u32,
        syndrome: u8,
        dma_len: u32,
        payload: usize,
    }

    fn request(opcode: u8, psn: u32) -> Sent {
        Sent {
            from: A,
            to: B,
            port: 0xc000,
            traffic_class: 0,
            opcode,
            dest_qp: 0x12,
            psn,
            syndrome: 0,
            dma_len: 0,
            payload: 0,
        }
    }

    fn send(psn: u32) -> Sent {
        request(0x04, psn)
    }

    fn read(psn: u32, dma_len: u32) -> Sent {
        Sent { dma_len, ..request(0x0c, psn) }
    }

    fn response(opcode: u8, psn: u32, syndrome: u8) -> Sent {
        Sent { from: B, to: A, dest_qp: 0x21, syndrome, ..request(opcode, psn) }
    }

    fn ack(psn: u32) -> Sent {
        response(0x11, psn, 0x1f)
    }

    struct Tap(Analysis);

    impl Tap {
        fn new() -> Self {
            Self(Analysis::new())
        }

        fn see(&mut self, sent: Sent) -> Vec<Note> {
            let envelope = Envelope {
                src: sent.from.into(),
                dst: sent.to.into(),
                src_port: sent.port,
                traffic_class: sent.traffic_class,
                hop_limit: 64,
                flow_label: 0,
                ident: 0,
                df: true,
            };
            let ip = envelope.ip_fields().unwrap();
            let bth = Bth {
                opcode: sent.opcode,
                se: false,
                m: true,
                pad_count: 0,
                tver: 0,
                pkey: Pkey::DEFAULT,
                fecn: false,
                becn: false,
                dest_qp: Qpn::new(sent.dest_qp),
                ack_req: true,
                psn: Psn::new(sent.psn),
            };
            let ext = Ext {
                reth: Some(Reth { va: 0, rkey: Rkey(1), dma_len: sent.dma_len }),
                aeth: Some(Aeth {
                    syndrome: Syndrome::from_u8(sent.syndrome),
                    msn: Msn::default(),
                }),
                ..Ext::default()
            };
            let opcode = Opcode::from_u8(sent.opcode).unwrap();
            let mut b = vec![0; PacketBuilder::size(opcode, sent.payload)];
            PacketBuilder::new(&mut b, &bth, &ext, sent.payload).finish(&ip);
            let frame =
                Dissected { envelope, ip, udp_checksum: 0, datagram: &b, datagram_len: b.len() };
            self.0.observe(&inspect(&frame).unwrap())
        }

        #[track_caller]
        fn quiet(&mut self, packets: impl IntoIterator<Item = Sent>) {
            for (i, packet) in packets.into_iter().enumerate() {
                assert_eq!(self.see(packet), [], "packet {i}");
            }
        }
    }

    const AGAIN: Note = Note::Retransmission(Cause::Unprompted);
    const AFTER_NAK: Note = Note::Retransmission(Cause::SequenceNak);

    #[test]
    fn holes_and_repetitions_across_the_wrap() {
        let mut tap = Tap::new();
        tap.quiet([send(0xff_fffe), send(0xff_ffff), send(0)]);
        assert_eq!(tap.see(send(3)), [Note::Gap(2)]);
        assert_eq!(tap.see(send(0xff_ffff)), [AGAIN]);
        assert_eq!(tap.see(send(0)), [AGAIN]);
        // Not seen before, but passed.
        assert_eq!(tap.see(send(1)), [AGAIN]);
        assert_eq!(tap.see(send(2)), [AGAIN]);
        assert_eq!(tap.see(send(3)), [AGAIN]);
        tap.quiet([send(4)]);
    }

    #[test]
    fn the_cause_of_a_repetition() {
        let mut tap = Tap::new();
        tap.quiet([send(1), send(2), send(3), send(4), ack(1)]);
        let nak = response(0x11, 2, 0x60);
        assert_eq!(tap.see(nak), [Note::Nak(NakCode::SequenceError)]);
        assert_eq!(tap.see(send(2)), [AFTER_NAK]);
        assert_eq!(tap.see(send(3)), [AFTER_NAK]);
        assert_eq!(tap.see(send(4)), [AFTER_NAK]);
        tap.quiet([send(5)]);
        // Nobody asked this time.
        assert_eq!(tap.see(send(4)), [AGAIN]);
        // A NAK for 2 says that 1 has arrived.
        assert_eq!(tap.see(send(1)), [AGAIN, Note::Duplicate]);
        let rnr_nak = response(0x11, 5, 0x20 | 12);
        assert_eq!(tap.see(rnr_nak), [Note::RnrNak(Duration::from_micros(640))]);
        assert_eq!(tap.see(send(5)), [Note::Retransmission(Cause::RnrNak)]);
    }

    #[test]
    fn a_read_takes_psns_for_its_answers() {
        for (mtu, count) in [(256, 16), (512, 8), (1024, 4), (2048, 2), (4096, 1)] {
            // Known from a full packet.
            let mut tap = Tap::new();
            let first = Sent { payload: mtu, ..request(0x00, 1) };
            tap.quiet([first, request(0x02, 2), read(3, 4096), send(3 + count)]);
            assert_eq!(tap.see(send(3)), [AGAIN]);
            // Known from the answer, which only then can be told from other flows.
            let mut tap = Tap::new();
            tap.quiet([read(3, 8192)]);
            tap.quiet([Sent { payload: mtu, ..response(0x0d, 3, 0x1f) }]);
            tap.quiet([send(3 + 2 * count)]);
            // Known from the packet behind it.
            let mut tap = Tap::new();
            tap.quiet([read(3, 4096), send(3 + count), read(4 + count, 4096)]);
            tap.quiet([send(4 + 2 * count)]);
            assert_eq!(tap.see(send(6 + 2 * count)), [Note::Gap(1)]);
        }
        let mut tap = Tap::new();
        tap.quiet([read(3, 0), send(4), read(5, 256), send(6)]);
    }

    #[test]
    fn a_read_of_the_rest_is_a_repetition() {
        let mut tap = Tap::new();
        tap.quiet([read(0x100, 5000)]);
        assert_eq!(tap.see(read(0x104, 904)), [AGAIN]);
    }

    #[test]
    fn answers_to_a_read() {
        let first = |psn| Sent { payload: 256, ..response(0x0d, psn, 0x1f) };
        let middle = |psn| Sent { payload: 256, ..response(0x0e, psn, 0) };
        let last = |psn| Sent { payload: 8, ..response(0x0f, psn, 0x1f) };
        let mut tap = Tap::new();
        tap.quiet([read(1, 1000), first(1), middle(2)]);
        assert_eq!(tap.see(last(4)), [Note::Gap(1)]);
        assert_eq!(tap.see(read(3, 488)), [AGAIN, Note::Duplicate]);
        assert_eq!(tap.see(middle(3)), [Note::AnsweredAgain]);
        assert_eq!(tap.see(last(4)), [Note::AnsweredAgain]);
        tap.quiet([read(5, 1000)]);
        assert_eq!(tap.see(middle(6)), [Note::Gap(1)]);
        tap.quiet([middle(7), last(8)]);
    }

    #[test]
    fn acknowledgements() {
        let mut tap = Tap::new();
        tap.quiet([send(1), send(2), send(3), ack(2), ack(3)]);
        assert_eq!(tap.see(ack(3)), [Note::AnsweredAgain]);
        assert_eq!(tap.see(ack(2)), [Note::AnsweredAgain]);
    }

    #[test]
    fn flows_with_equal_psns_are_told_apart_by_port() {
        let other = |s: Sent| Sent { port: 0xc001, ..s };
        let second_qp = |s: Sent| Sent { dest_qp: s.dest_qp + 1, ..other(s) };
        let mut tap = Tap::new();
        tap.quiet([send(1), second_qp(send(1)), second_qp(ack(1))]);
        // The second one's was answered, not the first one's.
        assert_eq!(tap.see(send(1)), [AGAIN]);
        assert_eq!(tap.see(second_qp(send(1))), [AGAIN, Note::Duplicate]);

        // With one port for all, nobody can say.
        let third_qp = |s: Sent| Sent { dest_qp: s.dest_qp + 1, ..s };
        let mut tap = Tap::new();
        tap.quiet([send(1), third_qp(send(1)), ack(1)]);
        assert_eq!(tap.see(send(1)), [AGAIN]);
    }

    #[test]
    fn a_new_connection_may_use_the_number_again() {
        let mut tap = Tap::new();
        tap.quiet([send(1), ack(1), send(0x80_0000), ack(0x80_0000), send(0x80_0001)]);
        tap.quiet([send(0x40_0000), ack(0x40_0000)]);
    }

    #[test]
    fn unreliable_services() {
        let uc = |psn| request(0x24, psn);
        let mut tap = Tap::new();
        tap.quiet([uc(1), uc(2)]);
        assert_eq!(tap.see(uc(5)), [Note::Gap(2)]);
        assert_eq!(tap.see(uc(2)), [Note::Duplicate]);
        let ud = |psn| request(0x64, psn);
        tap.quiet([ud(1), ud(1), ud(9), ud(3)]);
    }

    #[test]
    fn congestion_marks() {
        let mut tap = Tap::new();
        tap.quiet([Sent { traffic_class: 2, ..send(1) }]);
        assert_eq!(tap.see(Sent { traffic_class: 3, ..send(2) }), [Note::Marked]);
        tap.quiet([Sent { from: B, to: A, ..request(0x81, 0) }]);
    }

    #[test]
    fn every_note_is_a_text() {
        for code in (0..5).filter_map(NakCode::from_raw) {
            assert_eq!(Note::Nak(code).to_string().replace(':', ","), Note::Nak(code).name());
        }
        assert_eq!(Note::Gap(3).to_string(), "gap: at least 3 PSNs missing");
        assert_eq!(Note::Marked.to_string(), "congestion experienced");
    }
}
