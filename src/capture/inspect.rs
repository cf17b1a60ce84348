//! What a captured datagram is, and whether its ICRC is right.

use std::fmt;
use std::net::IpAddr;

use crate::time::Duration;
use crate::wire::aeth::{self, rnr_timer};
use crate::wire::frame::{Dissected, Envelope};
use crate::wire::icrc::{self, IpFields};
use crate::wire::opcode::{self, Headers};
use crate::wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Error, Feth, Ieth, ImmDt, NakCode, Opcode, Packet,
    Rdeth, Reth, Syndrome, Xrceth,
};

/// The longest datagram there can be: the largest path MTU, and more than any headers take.
const MAX_DATAGRAM: usize = 4096 + 64;

/// A datagram of a capture, inspected.
///
/// Its [`Display`](fmt::Display) is one line: IP fields, all header fields under the standard's names,
/// payload length, and the verdict on the ICRC.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Inspected<'a> {
    /// The frame it was found in.
    pub frame: Dissected<'a>,
    /// Base transport header.
    pub bth: Bth,
    /// Verdict on the ICRC.
    pub icrc: Icrc,
    /// Why it is no packet, if it is none. Not looked for if the capture cut it.
    pub problem: Option<Error>,
}

/// Verdict on the ICRC of a captured datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Icrc {
    /// Right.
    Ok,
    /// Wrong.
    Bad {
        /// What it should be.
        computed: u32,
        /// An IPv4 identification with which it would be right: somebody may have rewritten that.
        ident: Option<u16>,
    },
    /// A FLUSH with the ICRC that Linux rdma_rxe computes for it, which is not by the book.
    RxeFlush,
    /// The capture cut the datagram, so its ICRC is not there.
    Cut,
    /// Several datagrams under one UDP header: captured where the sender's kernel had not split the send
    /// yet, or the receiver's had merged already (GSO, GRO), as always on a loopback interface.
    Unsplit {
        /// Bytes of each but the last, if all their ICRCs are right with identifications that count up.
        /// `None` if that could not be found out.
        segment_len: Option<usize>,
    },
}

/// Inspects a datagram that was found in a frame. `None` if not even its BTH is there, or could not be.
pub fn inspect<'a>(frame: &Dissected<'a>) -> Option<Inspected<'a>> {
    let bth = Bth::parse(frame.datagram.first_chunk()?);
    if frame.datagram_len < Packet::MIN_LEN {
        return None;
    }
    let icrc = verdict(frame);
    let whole = !matches!(icrc, Icrc::Cut | Icrc::Unsplit { .. });
    let problem = if whole { Packet::parse(frame.datagram).err() } else { None };
    Some(Inspected { frame: *frame, bth, icrc, problem })
}

fn verdict(frame: &Dissected<'_>) -> Icrc {
    let (ip, datagram) = (&frame.ip, frame.datagram);
    let too_long = frame.datagram_len > MAX_DATAGRAM;
    let Some((sealed, &received)) = datagram.split_last_chunk().filter(|_| !frame.is_cut()) else {
        return if too_long { Icrc::Unsplit { segment_len: None } } else { Icrc::Cut };
    };
    let received = u32::from_le_bytes(received);
    let computed = icrc::compute(ip, sealed);
    if received == computed {
        return Icrc::Ok;
    }
    let flush = Opcode::from_u8(datagram[0])
        .is_some_and(|o| o.info().operation == opcode::Operation::Flush);
    if flush && received == icrc::compute_rxe_flush(ip, sealed) {
        return Icrc::RxeFlush;
    }
    match segment_len(frame) {
        Some(Ok(len)) => Icrc::Unsplit { segment_len: Some(len) },
        None if too_long => Icrc::Unsplit { segment_len: None },
        Some(Err(OneIsBad)) | None => {
            Icrc::Bad { computed, ident: icrc::recover_ident(ip, datagram) }
        }
    }
}

/// The first segment is right, and a later one is not.
struct OneIsBad;

/// Looks for a length at which the datagram falls into several whose ICRCs are right. `None` if already the
/// first is wrong at any length.
fn segment_len(frame: &Dissected<'_>) -> Option<Result<usize, OneIsBad>> {
    let bytes = frame.datagram;
    let first: [u8; 4] = *bytes.first_chunk()?;
    let begins_here = |at: &usize| {
        bytes[*at..].first_chunk::<4>().is_some_and(|&[opcode, flags, pkey @ ..]| {
            Opcode::from_u8(opcode).is_some() && flags & 0x0f == 0 && pkey == first[2..]
        })
    };
    // Headers, payload and pad together are multiples of four bytes. In real captures hardly any place looks
    // like a BTH by chance; the limit is for made ones, full of zeros.
    let places = (Packet::MIN_LEN..bytes.len()).step_by(4).filter(begins_here).take(64);
    let mut found = places.filter(|&len| icrc::check(&frame.ip, &bytes[..len]));
    let len = found.next()?;
    let all = Segments::new(frame, len).all(|s| icrc::check(&s.ip, s.datagram));
    Some(if all { Ok(len) } else { Err(OneIsBad) })
}

/// The datagrams of an unsplit send, each as if it had come in a frame of its own.
#[derive(Clone, Debug)]
pub struct Segments<'a> {
    /// What is left.
    rest: Dissected<'a>,
    len: usize,
}

impl<'a> Segments<'a> {
    const fn new(frame: &Dissected<'a>, len: usize) -> Self {
        Self { rest: *frame, len }
    }
}

impl<'a> Iterator for Segments<'a> {
    type Item = Dissected<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.datagram.is_empty() {
            return None;
        }
        let at = self.len.min(self.rest.datagram.len());
        let (datagram, rest) = self.rest.datagram.split_at(at);
        let segment = Dissected { datagram, datagram_len: at, ..self.rest };
        let ident = self.rest.envelope.ident.wrapping_add(1);
        self.rest = Dissected {
            // Whoever splits the send counts the identification up.
            envelope: Envelope { ident, ..self.rest.envelope },
            ip: IpFields::with_ident(self.rest.ip, ident),
            datagram: rest,
            datagram_len: rest.len(),
            ..self.rest
        };
        Some(segment)
    }
}

impl<'a> Inspected<'a> {
    /// The opcode, if it is known.
    pub const fn opcode(&self) -> Option<Opcode> {
        Opcode::from_u8(self.bth.opcode)
    }

    /// The datagrams of an unsplit send whose ICRCs are right; none otherwise.
    pub const fn segments(&self) -> Segments<'a> {
        match self.icrc {
            Icrc::Unsplit { segment_len: Some(len) } => Segments::new(&self.frame, len),
            _ => Segments {
                rest: Dissected { datagram: &[], datagram_len: 0, ..self.frame },
                len: 0,
            },
        }
    }

    /// The acknowledgement header, if the opcode has one and it was captured.
    pub fn aeth(&self) -> Option<Aeth> {
        self.describe().header(Headers::AETH).map(Aeth::parse)
    }

    /// The RDMA header, if the opcode has one and it was captured.
    pub fn reth(&self) -> Option<Reth> {
        self.describe().header(Headers::RETH).map(Reth::parse)
    }

    /// Bytes of payload, whether captured or not. `None` if the opcode is unknown or the lengths are wrong.
    pub fn payload_len(&self) -> Option<usize> {
        self.describe().payload_len()
    }

    const fn describe(&self) -> Describe<'a> {
        Describe { bytes: self.frame.datagram, len: self.frame.datagram_len }
    }
}

impl fmt::Display for Inspected<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Envelope { src, dst, src_port, traffic_class, hop_limit, flow_label, ident, df } =
            self.frame.envelope;
        match dst {
            IpAddr::V4(_) => write!(
                f,
                "{src}:{src_port} > {dst} tos={traffic_class:02x} ttl={hop_limit} id={ident:04x} \
                 df={}",
                u8::from(df)
            )?,
            IpAddr::V6(_) => write!(
                f,
                "[{src}]:{src_port} > [{dst}] tc={traffic_class:02x} flow={flow_label:05x} \
                 hop={hop_limit}"
            )?,
        }
        if let Icrc::Unsplit { segment_len: Some(_) } = self.icrc {
            return write!(f, " {}", self.icrc);
        }
        write!(f, " {}", self.describe())?;
        if let Some(problem) = self.problem {
            write!(f, " malformed ({problem})")?;
        }
        if let Some(received) =
            self.frame.datagram.last_chunk::<4>().filter(|_| !self.frame.is_cut())
        {
            write!(f, " icrc={:08x}", u32::from_le_bytes(*received))?;
        }
        write!(f, " {}", self.icrc)
    }
}

impl fmt::Display for Icrc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ok => f.write_str("ok"),
            Self::Bad { computed, ident: None } => write!(f, "BAD (computed {computed:08x})"),
            Self::Bad { computed, ident: Some(ident) } => {
                write!(f, "BAD (computed {computed:08x}; right for an IPv4 id of {ident:04x})")
            }
            Self::RxeFlush => f.write_str("as rdma_rxe computes it for FLUSH"),
            Self::Cut => f.write_str("icrc not captured"),
            Self::Unsplit { segment_len: Some(len) } => {
                write!(f, "unsplit send: datagrams of {len} bytes, icrc of all ok")
            }
            Self::Unsplit { segment_len: None } => {
                f.write_str("(longer than any packet: an unsplit send that was not taken apart)")
            }
        }
    }
}

/// Describes a datagram, from the BTH to the ICRC: all header fields under the standard's names.
///
/// ```
/// use softroce::capture::describe;
/// let ack = [0x11, 0x40, 0xff, 0xff, 0, 0, 0, 0x11, 0, 0x12, 0x34, 0x56, 0x1f, 0, 0, 8, 1, 2, 3, 4];
/// assert_eq!(
///     describe(&ack).to_string(),
///     "RC_ACK se=0 m=1 pad_count=0 tver=0 pkey=ffff fecn=0 becn=0 dest_qp=000011 ack_req=0 \
///      psn=123456 syndrome=1f (ACK) msn=8 payload=0"
/// );
/// ```
pub const fn describe(datagram: &[u8]) -> Describe<'_> {
    Describe { bytes: datagram, len: datagram.len() }
}

/// What [`describe`] says.
#[derive(Clone, Copy, Debug)]
pub struct Describe<'a> {
    /// What there is of the datagram.
    bytes: &'a [u8],
    /// How long it was.
    len: usize,
}

impl<'a> Describe<'a> {
    fn opcode(&self) -> Option<Opcode> {
        Opcode::from_u8(*self.bytes.first()?)
    }

    /// A header that the opcode has and that is there, in front of the ICRC.
    fn header<const N: usize>(&self, which: Headers) -> Option<&'a [u8; N]> {
        let at = self.opcode()?.info().offset_of(which)?;
        if at + N + icrc::LEN > self.len {
            return None;
        }
        self.bytes.get(at..)?.first_chunk()
    }

    fn payload_len(&self) -> Option<usize> {
        let info = self.opcode()?.info();
        let pad_count = self.bytes.get(1)? >> 4 & 3;
        self.len.checked_sub(info.header_len + usize::from(pad_count) + icrc::LEN)
    }
}

impl fmt::Display for Describe<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(bth) = self.bytes.first_chunk() else {
            return write!(f, "{} bytes, no BTH", self.len);
        };
        let Bth { opcode, se, m, pad_count, tver, pkey, fecn, becn, dest_qp, ack_req, psn } =
            Bth::parse(bth);
        let [se, m, fecn, becn, ack_req] = [se, m, fecn, becn, ack_req].map(u8::from);
        write!(
            f,
            "{} se={se} m={m} pad_count={pad_count} tver={tver} pkey={pkey} fecn={fecn} \
             becn={becn} dest_qp={dest_qp} ack_req={ack_req} psn={psn}",
            opcode::name_of(opcode)
        )?;
        if let Some(Rdeth { eec }) = self.header(Headers::RDETH).map(Rdeth::parse) {
            write!(f, " eec={eec:06x}")?;
        }
        if let Some(Deth { qkey, src_qp }) = self.header(Headers::DETH).map(Deth::parse) {
            write!(f, " qkey={qkey} src_qp={src_qp}")?;
        }
        if let Some(Xrceth { srqn }) = self.header(Headers::XRCETH).map(Xrceth::parse) {
            write!(f, " srqn={srqn:06x}")?;
        }
        if let Some(Feth { sel, plt }) = self.header(Headers::FETH).map(Feth::parse) {
            write!(f, " sel={sel} plt={plt}")?;
        }
        if let Some(Reth { va, rkey, dma_len }) = self.header(Headers::RETH).map(Reth::parse) {
            write!(f, " va={va:016x} rkey={rkey} dma_len={dma_len}")?;
        }
        if let Some(AtomicEth { va, rkey, swap_add, compare }) =
            self.header(Headers::ATOMIC_ETH).map(AtomicEth::parse)
        {
            write!(f, " va={va:016x} rkey={rkey} swap_add={swap_add:016x} compare={compare:016x}")?;
        }
        if let Some(Aeth { syndrome, msn }) = self.header(Headers::AETH).map(Aeth::parse) {
            write!(
                f,
                " syndrome={:02x} ({}) msn={}",
                syndrome.as_u8(),
                Meaning(syndrome),
                msn.raw()
            )?;
        }
        if let Some(AtomicAckEth { orig }) =
            self.header(Headers::ATOMIC_ACK_ETH).map(AtomicAckEth::parse)
        {
            write!(f, " orig={orig:016x}")?;
        }
        if let Some(ImmDt(immdt)) = self.header(Headers::IMMDT).map(ImmDt::parse) {
            write!(f, " immdt={immdt:08x}")?;
        }
        if let Some(Ieth { rkey }) = self.header(Headers::IETH).map(Ieth::parse) {
            write!(f, " rkey={rkey}")?;
        }
        match self.payload_len() {
            Some(len) => write!(f, " payload={len}"),
            None => Ok(()),
        }
    }
}

/// An AETH syndrome in words.
struct Meaning(Syndrome);

impl fmt::Display for Meaning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Syndrome::Ack { credits } => match aeth::credits(credits) {
                Some(credits) => write!(f, "ACK, {credits} credits"),
                None => f.write_str("ACK"),
            },
            Syndrome::RnrNak { timer } => write!(f, "RNR NAK, {}", Millis(rnr_timer(timer))),
            Syndrome::Nak(code) => write!(f, "NAK, {}", nak_name(code)),
            Syndrome::Reserved(_) => f.write_str("reserved"),
        }
    }
}

/// The standard's words for a NAK.
pub(super) const fn nak_name(code: NakCode) -> &'static str {
    match code {
        NakCode::SequenceError => "PSN sequence error",
        NakCode::InvalidRequest => "invalid request",
        NakCode::RemoteAccess => "remote access error",
        NakCode::RemoteOperational => "remote operational error",
        NakCode::InvalidRd => "invalid RD request",
    }
}

/// A time in milliseconds with two decimals, as in the standard's table.
pub(super) struct Millis(pub(super) Duration);

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0.as_micros();
        write!(f, "{}.{:02} ms", micros / 1000, micros % 1000 / 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::num::{Pkey, Psn, Qpn};
    use crate::wire::{Ext, PacketBuilder};
    use proptest::prelude::*;

    fn envelope() -> Envelope {
        Envelope {
            src: [127, 0, 0, 2].into(),
            dst: [127, 0, 0, 3].into(),
            src_port: 4791,
            traffic_class: 2,
            hop_limit: 64,
            flow_label: 0,
            ident: 0,
            df: true,
        }
    }

    fn frame(datagram: &[u8]) -> Dissected<'_> {
        let envelope = envelope();
        Dissected {
            envelope,
            ip: envelope.ip_fields().unwrap(),
            udp_checksum: 0,
            datagram,
            datagram_len: datagram.len(),
        }
    }

    fn build(opcode: u8, psn: u32, ident: u16, payload: usize) -> Vec<u8> {
        let bth = Bth {
            opcode,
            se: false,
            m: true,
            pad_count: 0,
            tver: 0,
            pkey: Pkey::DEFAULT,
            fecn: false,
            becn: false,
            dest_qp: Qpn::new(0x11),
            ack_req: false,
            psn: Psn::new(psn),
        };
        let mut b = vec![0; PacketBuilder::size(Opcode::from_u8(opcode).unwrap(), payload)];
        let mut builder = PacketBuilder::new(&mut b, &bth, &Ext::default(), payload);
        builder.payload_mut().fill(0x5a);
        builder.finish(&envelope().ip_fields().unwrap().with_ident(ident));
        b
    }

    #[test]
    fn verdicts() {
        let verdict = |b: &[u8]| inspect(&frame(b)).unwrap().icrc;
        let good = build(0x04, 1, 0, 100);
        assert_eq!(verdict(&good), Icrc::Ok);

        let mut bad = good.clone();
        bad[50] ^= 1;
        let computed = icrc::compute(&frame(&bad).ip, &bad[..bad.len() - 4]);
        assert_eq!(verdict(&bad), Icrc::Bad { computed, ident: None });

        let rewritten = build(0x04, 1, 77, 100);
        assert!(matches!(verdict(&rewritten), Icrc::Bad { ident: Some(77), .. }));

        let mut flush = build(0x1c, 1, 0, 0);
        let at = flush.len() - 4;
        let doubled = icrc::compute_rxe_flush(&frame(&flush).ip, &flush[..at]);
        flush[at..].copy_from_slice(&doubled.to_le_bytes());
        assert_eq!(verdict(&flush), Icrc::RxeFlush);

        let cut = Dissected { datagram: &good[..50], ..frame(&good) };
        assert_eq!(inspect(&cut).unwrap().icrc, Icrc::Cut);
        let cut = Dissected { datagram: &good[..12], ..frame(&good) };
        assert_eq!(inspect(&cut).unwrap().icrc, Icrc::Cut);
        let cut = Dissected { datagram: &good[..11], ..frame(&good) };
        assert!(inspect(&cut).is_none());
        let cut = Dissected { datagram_len: 5000, ..frame(&good) };
        assert_eq!(inspect(&cut).unwrap().icrc, Icrc::Unsplit { segment_len: None });
        assert!(inspect(&frame(&good[..15])).is_none());
    }

    /// A FIRST with `middle` MIDDLEs and a LAST as one send.
    fn unsplit(payload: usize, middle: u16) -> Vec<u8> {
        let mut b = build(0x00, 0, 0, payload);
        for i in 1..=middle {
            b.extend(build(0x01, u32::from(i), i, payload));
        }
        b.extend(build(0x02, u32::from(middle) + 1, middle + 1, 10));
        b
    }

    #[test]
    fn unsplit_sends_are_seen_and_taken_apart() {
        for (payload, middle) in [(4096, 3), (256, 0), (1024, 60)] {
            let b = unsplit(payload, middle);
            let inspected = inspect(&frame(&b)).unwrap();
            let segment_len = Some(12 + payload + 4);
            assert_eq!(inspected.icrc, Icrc::Unsplit { segment_len });
            let line = inspected.to_string();
            let end = format!("unsplit send: datagrams of {} bytes, icrc of all ok", payload + 16);
            assert!(line.ends_with(&end), "{line}");
            let inner: Vec<_> =
                inspected.segments().map(|s| inspect(&s).expect("a packet")).collect();
            assert_eq!(inner.len(), usize::from(middle) + 2);
            assert!(inner.iter().all(|i| i.icrc == Icrc::Ok));
            let idents: Vec<u16> = inner.iter().map(|i| i.frame.envelope.ident).collect();
            assert_eq!(idents, (0..middle + 2).collect::<Vec<_>>());
            assert_eq!(inner.last().unwrap().payload_len(), Some(10));
        }
    }

    #[test]
    fn damage_in_an_unsplit_send_is_bad() {
        let mut b = unsplit(256, 3);
        *b.last_mut().unwrap() ^= 1;
        assert!(matches!(inspect(&frame(&b)).unwrap().icrc, Icrc::Bad { .. }));
        // In the first one, nothing tells where it ends; but so long a datagram cannot be one.
        let mut b = unsplit(1024, 10);
        b[20] ^= 1;
        let inspected = inspect(&frame(&b)).unwrap();
        assert_eq!(inspected.icrc, Icrc::Unsplit { segment_len: None });
        assert_eq!(inspected.segments().count(), 0);
    }

    #[test]
    fn a_line() {
        let b = build(0x0a, 0x77, 0, 3);
        assert_eq!(
            inspect(&frame(&b)).unwrap().to_string(),
            format!(
                "127.0.0.2:4791 > 127.0.0.3 tos=02 ttl=64 id=0000 df=1 RC_WRITE_ONLY se=0 m=1 \
                 pad_count=1 tver=0 pkey=ffff fecn=0 becn=0 dest_qp=000011 ack_req=0 psn=000077 \
                 va=0000000000000000 rkey=00000000 dma_len=0 payload=3 icrc={:08x} ok",
                Packet::parse(&b).unwrap().icrc()
            )
        );
        // Cut in the middle of the RETH: what is there is shown, and what is known of the rest.
        let cut = Dissected { datagram: &b[..20], ..frame(&b) };
        let line = inspect(&cut).unwrap().to_string();
        assert!(line.ends_with("psn=000077 payload=3 icrc not captured"), "{line}");
    }

    #[test]
    fn malformed_packets_are_lines_too() {
        let line = |b: &[u8]| inspect(&frame(b)).unwrap().to_string();
        let mut b = build(0x04, 1, 0, 4);
        b[0] = 0x1e;
        assert!(line(&b).contains(" UNKNOWN_1E se=0 "));
        assert!(line(&b).contains(" malformed (unknown opcode 0x1e) icrc="));
        b[0] = 0x0c;
        assert!(line(&b).contains(" malformed (too short for the headers"));
        assert!(!line(&b).contains("va="), "the RETH would reach into the ICRC");
    }

    #[test]
    fn every_header_is_described() {
        for byte in (0..=255).filter(|&b| Opcode::from_u8(b).is_some()) {
            let b = build(byte, 1, 0, 0);
            let text = describe(&b).to_string();
            for (header, field) in [
                (Headers::RDETH, " eec="),
                (Headers::DETH, " qkey="),
                (Headers::XRCETH, " srqn="),
                (Headers::FETH, " plt="),
                (Headers::RETH, " dma_len="),
                (Headers::ATOMIC_ETH, " swap_add="),
                (Headers::AETH, " syndrome="),
                (Headers::ATOMIC_ACK_ETH, " orig="),
                (Headers::IMMDT, " immdt="),
            ] {
                let has = Opcode::from_u8(byte).unwrap().info().headers.contains(header);
                assert_eq!(text.contains(field), has, "{text}");
            }
        }
        assert_eq!(describe(&[1, 2]).to_string(), "2 bytes, no BTH");
    }

    #[test]
    fn syndromes_in_words() {
        let words = |b| Meaning(Syndrome::from_u8(b)).to_string();
        assert_eq!(words(0x1f), "ACK");
        assert_eq!(words(0x05), "ACK, 6 credits");
        assert_eq!(words(0x3a), "RNR NAK, 81.92 ms");
        assert_eq!(words(0x21), "RNR NAK, 0.01 ms");
        assert_eq!(words(0x60), "NAK, PSN sequence error");
        assert_eq!(words(0x80), "reserved");
    }

    proptest! {
        #[test]
        fn nothing_panics(
            mut b in proptest::collection::vec(any::<u8>(), 0..200), opcode: u8, cut in 0usize..200,
        ) {
            if let [byte, flags, ..] = &mut b[..] {
                *byte = opcode;
                *flags &= 0xf0;
            }
            let whole = frame(&b);
            let cut = Dissected { datagram: &b[..cut.min(b.len())], ..whole };
            for f in [whole, cut] {
                if let Some(inspected) = inspect(&f) {
                    let _ = (inspected.to_string(), inspected.segments().count());
                    let _ = (inspected.aeth(), inspected.reth(), inspected.payload_len());
                }
            }
        }
    }

    #[test]
    fn a_datagram_of_zeros_does_not_take_long() {
        let b = vec![0; 65_000];
        assert_eq!(inspect(&frame(&b)).unwrap().icrc, Icrc::Unsplit { segment_len: None });
    }
}
