//! One packet: [`Packet`] reads it, [`PacketBuilder`] writes it.
//!
//! *Rules.* [`Packet::parse`] checks all lengths; after that no question can fail. It does not check the
//! ICRC (that needs the IP header, see [`icrc`]) and it knows no queue pairs: whether a pad
//! count fits the payload, or a payload the path MTU, is the responder's business, who answers it.

use std::fmt;

use super::aeth::Aeth;
use super::bth::{Bth, pad_len};
use super::error::Error;
use super::headers::{AtomicAckEth, AtomicEth, Deth, Ext, Feth, Ieth, ImmDt, Rdeth, Reth, Xrceth};
use super::icrc::{self, IpFields};
use super::num::{Pkey, Psn, Qpn};
use super::opcode::{Headers, Info, Opcode};

/// A received datagram whose lengths agree with its opcode.
///
/// ```
/// use softroce::wire::{Aeth, Bth, Ext, Opcode, Packet, PacketBuilder, Syndrome};
/// use softroce::wire::icrc::{self, IpFields};
/// use softroce::wire::num::{Msn, Pkey, Psn, Qpn};
///
/// let ip = IpFields::v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 0, true, 0xc123);
/// let bth = Bth {
///     opcode: Opcode::RC_ACK.as_u8(),
///     se: false, m: true, pad_count: 0, tver: 0, pkey: Pkey::DEFAULT, fecn: false, becn: false,
///     dest_qp: Qpn::new(0x11), ack_req: false, psn: Psn::new(0x123456),
/// };
/// let aeth = Aeth { syndrome: Syndrome::ACK, msn: Msn::new(8) };
/// let ext = Ext { aeth: Some(aeth), ..Ext::default() };
///
/// let mut buf = [0; 64];
/// let len = PacketBuilder::new(&mut buf, &bth, &ext, 0).finish(&ip);
/// assert_eq!(len, 20);
///
/// assert!(icrc::check(&ip, &buf[..len]));
/// let packet = Packet::parse(&buf[..len]).unwrap();
/// assert_eq!(packet.opcode(), Opcode::RC_ACK);
/// assert_eq!(packet.aeth(), Some(aeth));
/// assert_eq!(packet.reth(), None);
/// ```
#[derive(Clone, Copy)]
pub struct Packet<'a> {
    datagram: &'a [u8],
    info: &'static Info,
    opcode: Opcode,
}

impl<'a> Packet<'a> {
    /// The shortest packet: a BTH and an ICRC.
    pub const MIN_LEN: usize = Bth::LEN + icrc::LEN;

    /// Reads a datagram, from the BTH to the ICRC.
    ///
    /// # Errors
    /// Whatever is wrong first, in this order: [`Truncated`](Error::Truncated) below [`Self::MIN_LEN`];
    /// [`BadVersion`](Error::BadVersion); [`UnknownOpcode`](Error::UnknownOpcode);
    /// [`BadLength`](Error::BadLength) if headers, pad and ICRC do not fit; and
    /// [`UnexpectedPayload`](Error::UnexpectedPayload).
    pub fn parse(datagram: &'a [u8]) -> Result<Self, Error> {
        if datagram.len() < Self::MIN_LEN {
            return Err(Error::Truncated);
        }
        if datagram[1] & 0x0f != 0 {
            return Err(Error::BadVersion);
        }
        let opcode = Opcode::from_u8(datagram[0]).ok_or(Error::UnknownOpcode(datagram[0]))?;
        let packet = Self { datagram, info: opcode.info(), opcode };
        let overhead = packet.info.header_len + usize::from(packet.pad_count()) + icrc::LEN;
        match datagram.len().checked_sub(overhead) {
            None => Err(Error::BadLength),
            Some(payload) if payload > 0 && !packet.info.payload => Err(Error::UnexpectedPayload),
            Some(_) => Ok(packet),
        }
    }

    /// Reads a datagram that is [like](icrc::Alike) this one: as long, with the same bytes in front of the PSN. So
    /// what was checked of this one holds for it. `None` if it is not like it.
    pub(crate) fn another(&self, datagram: &'a [u8]) -> Option<Self> {
        const N: usize = icrc::Alike::BEGINNING;
        let alike = datagram.len() == self.datagram.len()
            && datagram.first_chunk::<N>() == self.datagram.first_chunk::<N>();
        alike.then_some(Self { datagram, ..*self })
    }

    /// What kind of packet it is.
    pub const fn opcode(&self) -> Opcode {
        self.opcode
    }

    /// The row of the opcode table.
    pub const fn info(&self) -> &'static Info {
        self.info
    }

    /// The base transport header.
    pub fn bth(&self) -> Bth {
        Bth::parse(self.chunk(0))
    }

    /// Partition key.
    pub fn pkey(&self) -> Pkey {
        Pkey(u16::from_be_bytes(*self.chunk(2)))
    }

    /// Packet sequence number.
    pub fn psn(&self) -> Psn {
        let [_, b0, b1, b2] = *self.chunk(8);
        Psn::new(u32::from_be_bytes([0, b0, b1, b2]))
    }

    /// Queue pair at the receiver.
    pub fn dest_qp(&self) -> Qpn {
        let [_, b0, b1, b2] = *self.chunk(4);
        Qpn::new(u32::from_be_bytes([0, b0, b1, b2]))
    }

    /// Whether the requester asks for an ACK.
    pub const fn ack_req(&self) -> bool {
        self.datagram[8] & 0x80 != 0
    }

    /// Solicited event.
    pub const fn se(&self) -> bool {
        self.datagram[1] & 0x80 != 0
    }

    /// Bytes of pad, 0 to 3, as the header says. They need not fit the payload.
    pub const fn pad_count(&self) -> u8 {
        self.datagram[1] >> 4 & 3
    }

    /// RDMA header.
    pub fn reth(&self) -> Option<Reth> {
        self.header(Headers::RETH).map(Reth::parse)
    }

    /// Acknowledgement header.
    pub fn aeth(&self) -> Option<Aeth> {
        self.header(Headers::AETH).map(Aeth::parse)
    }

    /// Atomic header.
    pub fn atomic_eth(&self) -> Option<AtomicEth> {
        self.header(Headers::ATOMIC_ETH).map(AtomicEth::parse)
    }

    /// Atomic acknowledgement header.
    pub fn atomic_ack_eth(&self) -> Option<AtomicAckEth> {
        self.header(Headers::ATOMIC_ACK_ETH).map(AtomicAckEth::parse)
    }

    /// Datagram header.
    pub fn deth(&self) -> Option<Deth> {
        self.header(Headers::DETH).map(Deth::parse)
    }

    /// Immediate data.
    pub fn immdt(&self) -> Option<ImmDt> {
        self.header(Headers::IMMDT).map(ImmDt::parse)
    }

    /// Invalidate header.
    pub fn ieth(&self) -> Option<Ieth> {
        self.header(Headers::IETH).map(Ieth::parse)
    }

    /// FLUSH header.
    pub fn feth(&self) -> Option<Feth> {
        self.header(Headers::FETH).map(Feth::parse)
    }

    /// Reliable datagram header.
    pub fn rdeth(&self) -> Option<Rdeth> {
        self.header(Headers::RDETH).map(Rdeth::parse)
    }

    /// XRC header.
    pub fn xrceth(&self) -> Option<Xrceth> {
        self.header(Headers::XRCETH).map(Xrceth::parse)
    }

    /// All extended headers.
    pub fn ext(&self) -> Ext {
        Ext {
            rdeth: self.rdeth(),
            deth: self.deth(),
            xrceth: self.xrceth(),
            feth: self.feth(),
            reth: self.reth(),
            atomic: self.atomic_eth(),
            aeth: self.aeth(),
            atomic_ack: self.atomic_ack_eth(),
            immdt: self.immdt(),
            ieth: self.ieth(),
        }
    }

    /// The payload, without pad and ICRC.
    pub fn payload(&self) -> &'a [u8] {
        let end = self.datagram.len() - icrc::LEN - usize::from(self.pad_count());
        &self.datagram[self.info.header_len..end]
    }

    /// The ICRC as received.
    pub fn icrc(&self) -> u32 {
        u32::from_le_bytes(*self.chunk(self.datagram.len() - icrc::LEN))
    }

    /// What the ICRC covers: from the BTH to the pad.
    pub(crate) fn sealed(&self) -> &'a [u8] {
        &self.datagram[..self.datagram.len() - icrc::LEN]
    }

    /// The whole datagram.
    pub const fn datagram(&self) -> &'a [u8] {
        self.datagram
    }

    /// An extended header, if the opcode has it. It lies within the datagram: `parse` saw to that.
    fn header<const N: usize>(&self, which: Headers) -> Option<&'a [u8; N]> {
        debug_assert_eq!(which.len(), N);
        self.info.offset_of(which).map(|at| self.chunk(at))
    }

    fn chunk<const N: usize>(&self, at: usize) -> &'a [u8; N] {
        self.datagram[at..].first_chunk().expect("parse checked the length against the opcode")
    }
}

impl fmt::Debug for Packet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packet")
            .field("opcode", &self.opcode)
            .field("bth", &self.bth())
            .field("ext", &self.ext())
            .field("payload_len", &self.payload().len())
            .finish_non_exhaustive()
    }
}

/// Writes one packet into the front of a buffer: headers at [`new`](Self::new), payload by the caller, pad
/// and ICRC at [`finish`](Self::finish).
#[must_use = "without `finish` there is no ICRC"]
pub struct PacketBuilder<'b> {
    /// Exactly the packet.
    buf: &'b mut [u8],
    header_len: usize,
    payload_len: usize,
}

impl<'b> PacketBuilder<'b> {
    /// Bytes the packet will take: headers, payload, pad, ICRC.
    pub const fn size(opcode: Opcode, payload_len: usize) -> usize {
        opcode.info().header_len + payload_len + pad_len(payload_len) as usize + icrc::LEN
    }

    /// Writes the headers. `bth.pad_count` is computed, not taken. Of `ext`, what the opcode does not have
    /// is ignored, and what it has but is missing is written as zeros; so are the reserved bytes of a CNP.
    ///
    /// The payload length is taken as it is, also where the opcode allows none or the path MTU less.
    ///
    /// # Panics
    /// If `buf` is shorter than [`size`](Self::size), or `bth.opcode` is none that is known.
    pub fn new(buf: &'b mut [u8], bth: &Bth, ext: &Ext, payload_len: usize) -> Self {
        let opcode = Opcode::from_u8(bth.opcode).expect("only packets of known opcodes are built");
        let bth = bth.with_pad_for(payload_len).emit();
        let mut builder = Self::behind(&bth, buf, opcode, payload_len);
        builder.put_ext(opcode, ext);
        builder
    }

    /// Writes a BTH that is complete, pad count and all; [`put_ext`](Self::put_ext) writes what stands between it
    /// and the payload, if the opcode has any of it.
    #[inline(always)]
    pub(crate) fn behind(
        bth: &[u8; Bth::LEN],
        buf: &'b mut [u8],
        opcode: Opcode,
        payload_len: usize,
    ) -> Self {
        let size = Self::size(opcode, payload_len);
        assert!(buf.len() >= size, "a buffer of {} bytes for a packet of {size}", buf.len());
        let buf = &mut buf[..size];
        let header_len = opcode.info().header_len;
        buf[..Bth::LEN].copy_from_slice(bth);
        Self { buf, header_len, payload_len }
    }

    /// Writes the extended headers that the opcode has. (An AETH alone: [`put_aeth`](Self::put_aeth).)
    pub(crate) fn put_ext(&mut self, opcode: Opcode, ext: &Ext) {
        let mut front = &mut self.buf[Bth::LEN..self.header_len];
        // The bits of the set are in the order of the headers on the wire.
        let mut left = opcode.info().headers.bits();
        while left != 0 {
            let which = Headers::from_bits_retain(1 << left.trailing_zeros());
            left &= left - 1;
            front = match which {
                Headers::RDETH => put(front, ext.rdeth.unwrap_or_default().emit()),
                Headers::DETH => put(front, ext.deth.unwrap_or_default().emit()),
                Headers::XRCETH => put(front, ext.xrceth.unwrap_or_default().emit()),
                Headers::FETH => put(front, ext.feth.unwrap_or_default().emit()),
                Headers::RETH => put(front, ext.reth.unwrap_or_default().emit()),
                Headers::ATOMIC_ETH => put(front, ext.atomic.unwrap_or_default().emit()),
                Headers::AETH => put(front, ext.aeth.map_or([0; Aeth::LEN], |h| h.emit())),
                Headers::ATOMIC_ACK_ETH => put(front, ext.atomic_ack.unwrap_or_default().emit()),
                Headers::IMMDT => put(front, ext.immdt.unwrap_or_default().emit()),
                Headers::IETH => put(front, ext.ieth.unwrap_or_default().emit()),
                _ => put(front, [0; 16]),
            };
        }
    }

    /// Writes an AETH, which is all that the opcode has behind the BTH: that of an ACK, or of a READ response.
    #[inline]
    pub(crate) fn put_aeth(&mut self, aeth: Aeth) {
        self.buf[Bth::LEN..self.header_len].copy_from_slice(&aeth.emit());
    }

    /// Where the payload goes. Its bytes are what the buffer held; the caller writes all of them.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        &mut self.buf[self.header_len..self.header_len + self.payload_len]
    }

    /// What the ICRC covers. Headers are written already.
    #[inline]
    pub(crate) fn sealed(&self) -> &[u8] {
        &self.buf[..self.buf.len() - icrc::LEN]
    }

    /// Zeroes the pad, writes the ICRC, and returns the size of the packet.
    pub fn finish(self, ip: &IpFields) -> usize {
        let (sealed, icrc) = self.buf.split_at_mut(self.buf.len() - icrc::LEN);
        sealed[self.header_len + self.payload_len..].fill(0);
        icrc.copy_from_slice(&icrc::compute(ip, sealed).to_le_bytes());
        self.buf.len()
    }

    /// As [`finish`](Self::finish), for one of several that are alike.
    #[inline]
    pub(crate) fn finish_alike(self, alike: &icrc::Alike, ident: u16) -> usize {
        let (sealed, icrc) = self.buf.split_at_mut(self.buf.len() - icrc::LEN);
        sealed[self.header_len + self.payload_len..].fill(0);
        icrc.copy_from_slice(&alike.compute(ident, sealed).to_le_bytes());
        self.buf.len()
    }

    /// As [`finish`](Self::finish), with these bytes in place of the ICRC: for a network in which nothing is looked at.
    pub(crate) fn finish_unsealed(self, mark: u32) -> usize {
        let (sealed, icrc) = self.buf.split_at_mut(self.buf.len() - icrc::LEN);
        sealed[self.header_len + self.payload_len..].fill(0);
        icrc.copy_from_slice(&mark.to_le_bytes());
        self.buf.len()
    }

    /// As [`finish`](Self::finish), for a FLUSH to Linux rdma_rxe: see [`icrc::compute_rxe_flush`].
    pub fn finish_rxe_flush(self, ip: &IpFields) -> usize {
        let (sealed, icrc) = self.buf.split_at_mut(self.buf.len() - icrc::LEN);
        sealed[self.header_len + self.payload_len..].fill(0);
        icrc.copy_from_slice(&icrc::compute_rxe_flush(ip, sealed).to_le_bytes());
        self.buf.len()
    }
}

impl fmt::Debug for PacketBuilder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PacketBuilder")
            .field("opcode", &Opcode::from_u8(self.buf[0]))
            .field("payload_len", &self.payload_len)
            .finish_non_exhaustive()
    }
}

/// Writes a header to the front, which has room for all headers of the opcode; gives what is left of it.
fn put<const N: usize>(front: &mut [u8], header: [u8; N]) -> &mut [u8] {
    let (place, rest) = front.split_at_mut(N);
    place.copy_from_slice(&header);
    rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::aeth::Syndrome;
    use crate::wire::num::{Msn, Qkey, Rkey};
    use proptest::prelude::*;

    fn ip() -> IpFields {
        IpFields::v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 0, true, 0xc123)
    }

    fn bth(opcode: u8) -> Bth {
        Bth {
            opcode,
            se: false,
            m: true,
            pad_count: 0,
            tver: 0,
            pkey: Pkey::DEFAULT,
            fecn: false,
            becn: false,
            dest_qp: Qpn::new(0x12),
            ack_req: true,
            psn: Psn::new(0x12_3456),
        }
    }

    fn build(bth: &Bth, ext: &Ext, payload: &[u8]) -> Vec<u8> {
        let size = PacketBuilder::size(Opcode::from_u8(bth.opcode).unwrap(), payload.len());
        let mut buf = vec![0xaa; size + 3];
        let mut builder = PacketBuilder::new(&mut buf, bth, ext, payload.len());
        builder.payload_mut().copy_from_slice(payload);
        assert_eq!(builder.finish(&ip()), size);
        assert_eq!(buf[size..], [0xaa; 3], "nothing is written behind the packet");
        buf.truncate(size);
        buf
    }

    #[test]
    fn lengths() {
        assert_eq!(Packet::parse(&[0; 15]).unwrap_err(), Error::Truncated);
        // An empty RC SEND ONLY is the shortest packet.
        let mut b = build(&bth(0x04), &Ext::default(), &[]);
        assert_eq!(b.len(), 16);
        assert_eq!(Packet::parse(&b).unwrap().payload(), []);
        // Its header claims a pad that is not there.
        b[1] |= 0x10;
        assert_eq!(Packet::parse(&b).unwrap_err(), Error::BadLength);
    }

    #[test]
    fn headers_must_fit() {
        for byte in 0..=255 {
            let Some(op) = Opcode::from_u8(byte) else {
                let mut b = [0; 64];
                b[0] = byte;
                assert_eq!(Packet::parse(&b).unwrap_err(), Error::UnknownOpcode(byte));
                continue;
            };
            let whole = build(&bth(byte), &Ext::default(), &[]);
            assert_eq!(whole.len(), op.info().header_len + 4);
            assert!(Packet::parse(&whole).is_ok());
            let cut = Packet::parse(&whole[..whole.len() - 1]).unwrap_err();
            let shortest = whole.len() == Packet::MIN_LEN;
            assert_eq!(cut, if shortest { Error::Truncated } else { Error::BadLength }, "{op}");
        }
    }

    #[test]
    fn payload_only_where_the_opcode_allows_it() {
        for byte in (0..=255).filter(|&b| Opcode::from_u8(b).is_some()) {
            let b = build(&bth(byte), &Ext::default(), &[1, 2, 3, 4]);
            let parsed = Packet::parse(&b).map(|p| p.payload().to_vec());
            if Opcode::from_u8(byte).unwrap().info().payload {
                assert_eq!(parsed, Ok(vec![1, 2, 3, 4]));
            } else {
                assert_eq!(parsed, Err(Error::UnexpectedPayload));
            }
        }
    }

    #[test]
    fn transport_version() {
        let b = build(&Bth { tver: 1, ..bth(0x04) }, &Ext::default(), &[]);
        assert_eq!(Packet::parse(&b).unwrap_err(), Error::BadVersion);
    }

    #[test]
    fn a_cnp_has_16_zero_bytes() {
        let b = build(&Bth { becn: true, ..bth(0x81) }, &Ext::default(), &[]);
        assert_eq!(b.len(), 32);
        assert_eq!(b[12..28], [0; 16]);
        assert!(Packet::parse(&b).unwrap().bth().becn);
    }

    #[test]
    #[should_panic(expected = "a buffer of 19 bytes for a packet of 20")]
    fn a_short_buffer_is_a_bug() {
        let _ = PacketBuilder::new(&mut [0; 19], &bth(0x11), &Ext::default(), 0);
    }

    #[test]
    fn missing_headers_are_zeros() {
        let b = build(&bth(0x0b), &Ext::default(), &[]);
        assert_eq!(b[12..32], [0; 20]);
        let p = Packet::parse(&b).unwrap();
        assert_eq!((p.reth(), p.immdt()), (Some(Reth::default()), Some(ImmDt(0))));
    }

    /// Any headers at all; those that an opcode lacks are to be ignored.
    fn any_ext() -> impl Strategy<Value = Ext> {
        let numbers = (any::<[u64; 4]>(), any::<[u32; 8]>(), any::<[u8; 3]>());
        numbers.prop_map(|([va, swap_add, compare, orig], w, [sel, plt, syndrome])| Ext {
            rdeth: Some(Rdeth { eec: w[0] & 0xff_ffff }),
            deth: Some(Deth { qkey: Qkey(w[1]), src_qp: Qpn::new(w[2]) }),
            xrceth: Some(Xrceth { srqn: w[3] & 0xff_ffff }),
            feth: Some(Feth { sel: sel & 3, plt: plt & 15 }),
            reth: Some(Reth { va, rkey: Rkey(w[4]), dma_len: w[5] }),
            atomic: Some(AtomicEth { va, rkey: Rkey(w[4]), swap_add, compare }),
            aeth: Some(Aeth { syndrome: Syndrome::from_u8(syndrome), msn: Msn::new(w[6]) }),
            atomic_ack: Some(AtomicAckEth { orig }),
            immdt: Some(ImmDt(w[7])),
            ieth: Some(Ieth { rkey: Rkey(w[6]) }),
        })
    }

    fn any_bth() -> impl Strategy<Value = Bth> {
        any::<[u8; 12]>().prop_map(|b| Bth { tver: 0, ..Bth::parse(&b) })
    }

    /// Keeps of `ext` what the opcode has.
    fn only(ext: Ext, has: Headers) -> Ext {
        Ext {
            rdeth: ext.rdeth.filter(|_| has.contains(Headers::RDETH)),
            deth: ext.deth.filter(|_| has.contains(Headers::DETH)),
            xrceth: ext.xrceth.filter(|_| has.contains(Headers::XRCETH)),
            feth: ext.feth.filter(|_| has.contains(Headers::FETH)),
            reth: ext.reth.filter(|_| has.contains(Headers::RETH)),
            atomic: ext.atomic.filter(|_| has.contains(Headers::ATOMIC_ETH)),
            aeth: ext.aeth.filter(|_| has.contains(Headers::AETH)),
            atomic_ack: ext.atomic_ack.filter(|_| has.contains(Headers::ATOMIC_ACK_ETH)),
            immdt: ext.immdt.filter(|_| has.contains(Headers::IMMDT)),
            ieth: ext.ieth.filter(|_| has.contains(Headers::IETH)),
        }
    }

    proptest! {
        #[test]
        fn what_is_built_is_parsed(
            bth in any_bth(),
            ext in any_ext(),
            payload in proptest::collection::vec(any::<u8>(), 0..5000),
        ) {
            for opcode in (0..=255).filter_map(Opcode::from_u8) {
                let info = opcode.info();
                let payload = if info.payload { &payload[..] } else { &[] };
                let bth = Bth { opcode: opcode.as_u8(), ..bth };
                let b = build(&bth, &ext, payload);
                prop_assert!(icrc::check(&ip(), &b));
                prop_assert_eq!(b.len() % 4, 0);

                let p = Packet::parse(&b).unwrap();
                let pad_count = p.pad_count();
                prop_assert_eq!((payload.len() + usize::from(pad_count)) % 4, 0);
                prop_assert_eq!(p.bth(), Bth { pad_count, ..bth });
                prop_assert_eq!(p.ext(), only(ext, info.headers));
                prop_assert_eq!(p.payload(), payload);
                prop_assert_eq!(p.opcode(), opcode);
                prop_assert_eq!((p.psn(), p.dest_qp()), (bth.psn, bth.dest_qp));
                prop_assert_eq!((p.ack_req(), p.se()), (bth.ack_req, bth.se));
                prop_assert_eq!(p.icrc(), icrc::compute(&ip(), &b[..b.len() - 4]));
            }
        }

        #[test]
        fn parsing_never_panics(mut b in proptest::collection::vec(any::<u8>(), 0..100), known: u8) {
            if let Ok(p) = Packet::parse(&b) {
                let _ = (format!("{p:?}"), p.icrc());
            }
            // Most opcodes are unknown and most versions wrong: help it further.
            if b.len() > 1 {
                b[0] = known;
                b[1] &= 0xf0;
            }
            if let Ok(p) = Packet::parse(&b) {
                let _ = (format!("{p:?}"), p.icrc());
                let pad = usize::from(p.pad_count());
                prop_assert_eq!(p.info().header_len + p.payload().len() + pad + 4, b.len());
            }
        }
    }
}
