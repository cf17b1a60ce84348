//! The extended headers that follow the BTH, but for the AETH (IBTA 9.2 and annex A19).
//!
//! Each is a plain value with `LEN`, `parse` and `emit`. Which of them a packet carries, and in which
//! order, is a matter of its opcode ([`opcode`](super::opcode)). [`Ext`] holds those of one packet.

use super::aeth::Aeth;
use super::num::{Qkey, Qpn, Rkey};

/// Bytes `at..at + N` of a header.
const fn take<const N: usize>(b: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    let mut i = 0;
    while i < N {
        out[i] = b[at + i];
        i += 1;
    }
    out
}

const fn be64(b: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(take(b, at))
}

const fn be32(b: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(take(b, at))
}

const MASK_24: u32 = 0x00ff_ffff;

/// RETH, the RDMA header: which memory of the responder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reth {
    /// Virtual address in the region.
    pub va: u64,
    /// Key of the region.
    pub rkey: Rkey,
    /// Bytes of the whole message, at most 2^31.
    pub dma_len: u32,
}

impl Reth {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

    /// Reads the header.
    pub const fn parse(b: &[u8; Self::LEN]) -> Self {
        Self { va: be64(b, 0), rkey: Rkey(be32(b, 8)), dma_len: be32(b, 12) }
    }

    /// Writes the header.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[..8].copy_from_slice(&self.va.to_be_bytes());
        b[8..12].copy_from_slice(&self.rkey.0.to_be_bytes());
        b[12..].copy_from_slice(&self.dma_len.to_be_bytes());
        b
    }
}

/// AtomicETH: what an atomic does, and to which 8 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AtomicEth {
    /// Virtual address, a multiple of 8.
    pub va: u64,
    /// Key of the region.
    pub rkey: Rkey,
    /// The value to store (compare and swap) or to add (fetch and add).
    pub swap_add: u64,
    /// The value to compare with; of no meaning to fetch and add.
    pub compare: u64,
}

impl AtomicEth {
    /// Bytes on the wire.
    pub const LEN: usize = 28;

    /// Reads the header.
    pub const fn parse(b: &[u8; Self::LEN]) -> Self {
        Self { va: be64(b, 0), rkey: Rkey(be32(b, 8)), swap_add: be64(b, 12), compare: be64(b, 20) }
    }

    /// Writes the header.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[..8].copy_from_slice(&self.va.to_be_bytes());
        b[8..12].copy_from_slice(&self.rkey.0.to_be_bytes());
        b[12..20].copy_from_slice(&self.swap_add.to_be_bytes());
        b[20..].copy_from_slice(&self.compare.to_be_bytes());
        b
    }
}

/// AtomicAckETH: what the 8 bytes were before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AtomicAckEth {
    /// The original value, as a number.
    pub orig: u64,
}

impl AtomicAckEth {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// Reads the header.
    pub const fn parse(b: &[u8; Self::LEN]) -> Self {
        Self { orig: u64::from_be_bytes(*b) }
    }

    /// Writes the header.
    pub const fn emit(&self) -> [u8; Self::LEN] {
        self.orig.to_be_bytes()
    }
}

/// DETH, the datagram header: who sends, and the key that lets it in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deth {
    /// Queue key, which must be that of the receiving queue pair.
    pub qkey: Qkey,
    /// Queue pair of the sender.
    pub src_qp: Qpn,
}

impl Deth {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// Reads the header.
    pub const fn parse(b: &[u8; Self::LEN]) -> Self {
        Self { qkey: Qkey(be32(b, 0)), src_qp: Qpn::new(be32(b, 4)) }
    }

    /// Writes the header, the reserved byte zero.
    pub const fn emit(&self) -> [u8; Self::LEN] {
        let [k0, k1, k2, k3] = self.qkey.0.to_be_bytes();
        let [_, q0, q1, q2] = self.src_qp.raw().to_be_bytes();
        [k0, k1, k2, k3, 0, q0, q1, q2]
    }
}

/// ImmDt, immediate data: a number here, big-endian on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImmDt(pub u32);

impl ImmDt {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the header.
    pub const fn parse(b: &[u8; Self::LEN]) -> Self {
        Self(u32::from_be_bytes(*b))
    }

    /// Writes the header.
    pub const fn emit(&self) -> [u8; Self::LEN] {
        self.0.to_be_bytes()
    }
}

/// IETH, the invalidate header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ieth {
    /// The key that the responder invalidates.
    pub rkey: Rkey,
}

impl Ieth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the header.
    pub const fn parse(b: &[u8; Self::LEN]) -> Self {
        Self { rkey: Rkey(u32::from_be_bytes(*b)) }
    }

    /// Writes the header.
    pub const fn emit(&self) -> [u8; Self::LEN] {
        self.rkey.0.to_be_bytes()
    }
}

/// FETH, the FLUSH header (annex A19).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Feth {
    /// Selectivity level, 2 bits: 0 the range of the RETH, 1 the whole region; 2 and 3 are reserved.
    pub sel: u8,
    /// Placement type, 4 bits: bit 0 global visibility, bit 1 persistence.
    pub plt: u8,
}

impl Feth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the header.
    pub const fn parse(b: &[u8; Self::LEN]) -> Self {
        Self { sel: b[3] >> 4 & 3, plt: b[3] & 0xf }
    }

    /// Writes the header, reserved bits zero.
    pub const fn emit(&self) -> [u8; Self::LEN] {
        [0, 0, 0, (self.sel & 3) << 4 | self.plt & 0xf]
    }
}

/// RDETH, the reliable datagram header. RoCE has no such service; captures may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rdeth {
    /// End-to-end context, 24 bits.
    pub eec: u32,
}

impl Rdeth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the header.
    pub const fn parse(b: &[u8; Self::LEN]) -> Self {
        Self { eec: u32::from_be_bytes(*b) & MASK_24 }
    }

    /// Writes the header, the reserved byte zero.
    pub const fn emit(&self) -> [u8; Self::LEN] {
        (self.eec & MASK_24).to_be_bytes()
    }
}

/// XRCETH, the extended reliable connection header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Xrceth {
    /// Shared receive queue, 24 bits.
    pub srqn: u32,
}

impl Xrceth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the header.
    pub const fn parse(b: &[u8; Self::LEN]) -> Self {
        Self { srqn: u32::from_be_bytes(*b) & MASK_24 }
    }

    /// Writes the header, the reserved byte zero.
    pub const fn emit(&self) -> [u8; Self::LEN] {
        (self.srqn & MASK_24).to_be_bytes()
    }
}

/// The extended headers of one packet. A builder ignores those that the opcode does not have, and writes
/// zeros for those that it has and that are missing here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ext {
    /// Reliable datagram header.
    pub rdeth: Option<Rdeth>,
    /// Datagram header.
    pub deth: Option<Deth>,
    /// XRC header.
    pub xrceth: Option<Xrceth>,
    /// FLUSH header.
    pub feth: Option<Feth>,
    /// RDMA header.
    pub reth: Option<Reth>,
    /// Atomic header.
    pub atomic: Option<AtomicEth>,
    /// Acknowledgement header.
    pub aeth: Option<Aeth>,
    /// Atomic acknowledgement header.
    pub atomic_ack: Option<AtomicAckEth>,
    /// Immediate data.
    pub immdt: Option<ImmDt>,
    /// Invalidate header.
    pub ieth: Option<Ieth>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn round_trips(b: [u8; 28]) {
            let b16: [u8; 16] = take(&b, 0);
            let b8: [u8; 8] = take(&b, 0);
            let b4: [u8; 4] = take(&b, 0);
            prop_assert_eq!(Reth::parse(&b16).emit(), b16);
            prop_assert_eq!(AtomicEth::parse(&b).emit(), b);
            prop_assert_eq!(AtomicAckEth::parse(&b8).emit(), b8);
            prop_assert_eq!(ImmDt::parse(&b4).emit(), b4);
            prop_assert_eq!(Ieth::parse(&b4).emit(), b4);
            // Reserved bits are not kept.
            prop_assert_eq!(Deth::parse(&b8).emit(), {
                let mut e = b8;
                e[4] = 0;
                e
            });
            prop_assert_eq!(Feth::parse(&b4).emit(), [0, 0, 0, b4[3] & 0x3f]);
            prop_assert_eq!(Rdeth::parse(&b4).emit(), [0, b4[1], b4[2], b4[3]]);
            prop_assert_eq!(Xrceth::parse(&b4).emit(), [0, b4[1], b4[2], b4[3]]);
        }
    }

    #[test]
    fn fields_lie_where_the_standard_puts_them() {
        let b: [u8; 28] = std::array::from_fn(|i| u8::try_from(i).unwrap());
        let reth = Reth::parse(&take(&b, 0));
        assert_eq!(reth.va, 0x0001_0203_0405_0607);
        assert_eq!(reth.rkey, Rkey(0x0809_0a0b));
        assert_eq!(reth.dma_len, 0x0c0d_0e0f);
        let atomic = AtomicEth::parse(&b);
        assert_eq!((atomic.va, atomic.rkey), (reth.va, reth.rkey));
        assert_eq!(atomic.swap_add, 0x0c0d_0e0f_1011_1213);
        assert_eq!(atomic.compare, 0x1415_1617_1819_1a1b);
        assert_eq!(AtomicAckEth::parse(&take(&b, 0)).orig, 0x0001_0203_0405_0607);
        let deth = Deth::parse(&take(&b, 0));
        assert_eq!((deth.qkey, deth.src_qp), (Qkey(0x0001_0203), Qpn::new(0x05_0607)));
        assert_eq!(ImmDt::parse(&take(&b, 0)), ImmDt(0x0001_0203));
        assert_eq!(Ieth::parse(&take(&b, 4)).rkey, Rkey(0x0405_0607));
        assert_eq!(Feth::parse(&[0xff, 0xff, 0xff, 0x12]), Feth { sel: 1, plt: 2 });
        assert_eq!(Rdeth::parse(&take(&b, 1)).eec, 0x02_0304);
        assert_eq!(Xrceth::parse(&take(&b, 1)).srqn, 0x02_0304);
    }
}
