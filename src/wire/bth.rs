//! BTH, the base transport header (IBTA 9.2): the first 12 bytes of every packet.

use super::num::{Pkey, Psn, Qpn};

/// The base transport header.
///
/// Fields that this implementation always sends as zero (transport version, reserved bits) are read where
/// they decide something and are otherwise left alone; the ICRC covers them as they are on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// Opcode byte, known or not.
    pub opcode: u8,
    /// Solicited event: the receiver's completion may wake its owner.
    pub se: bool,
    /// MigReq: path migration state. Sent as 1 (migrated), as hardware does; ignored on receive.
    pub m: bool,
    /// Zero bytes behind the payload, 0 to 3.
    pub pad_count: u8,
    /// Transport version; 0.
    pub tver: u8,
    /// Partition.
    pub pkey: Pkey,
    /// Forward congestion notification. Not used by IP networks.
    pub fecn: bool,
    /// Backward congestion notification: set in a CNP.
    pub becn: bool,
    /// Queue pair at the receiver.
    pub dest_qp: Qpn,
    /// The requester asks for an ACK.
    pub ack_req: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

impl Bth {
    /// Bytes on the wire.
    pub const LEN: usize = 12;

    /// Reads the header.
    pub fn parse(b: &[u8; Self::LEN]) -> Self {
        Self {
            opcode: b[0],
            se: b[1] & 0x80 != 0,
            m: b[1] & 0x40 != 0,
            pad_count: b[1] >> 4 & 3,
            tver: b[1] & 0x0f,
            pkey: Pkey(u16::from_be_bytes([b[2], b[3]])),
            fecn: b[4] & 0x80 != 0,
            becn: b[4] & 0x40 != 0,
            dest_qp: Qpn::new(u32::from_be_bytes([0, b[5], b[6], b[7]])),
            ack_req: b[8] & 0x80 != 0,
            psn: Psn::new(u32::from_be_bytes([0, b[9], b[10], b[11]])),
        }
    }

    /// The same with the pad count that belongs to a payload of so many bytes.
    #[must_use]
    pub(crate) const fn with_pad_for(mut self, payload_len: usize) -> Self {
        self.pad_count = pad_len(payload_len);
        self
    }

    /// Writes the header, reserved bits zero.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let [p0, p1] = self.pkey.0.to_be_bytes();
        let [_, q0, q1, q2] = self.dest_qp.raw().to_be_bytes();
        let [_, s0, s1, s2] = self.psn.raw().to_be_bytes();
        let flags = u8::from(self.se) << 7
            | u8::from(self.m) << 6
            | (self.pad_count & 3) << 4
            | self.tver & 0xf;
        let ecn = u8::from(self.fecn) << 7 | u8::from(self.becn) << 6;
        [self.opcode, flags, p0, p1, ecn, q0, q1, q2, u8::from(self.ack_req) << 7, s0, s1, s2]
    }
}

/// Bytes of pad behind a payload: up to the next multiple of 4.
#[expect(clippy::cast_possible_truncation, reason = "two bits")]
pub(super) const fn pad_len(payload_len: usize) -> u8 {
    (payload_len.wrapping_neg() & 3) as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn round_trip(mut b: [u8; 12]) {
            // Reserved bits are not kept.
            b[4] &= 0xc0;
            b[8] &= 0x80;
            prop_assert_eq!(Bth::parse(&b).emit(), b);
        }
    }

    #[test]
    fn fields_lie_where_the_standard_puts_them() {
        let b = [0x04, 0xf0, 0xff, 0xff, 0xc0, 0, 0, 0x12, 0x80, 0x12, 0x34, 0x56];
        let h = Bth::parse(&b);
        assert!(h.se && h.m && h.fecn && h.becn && h.ack_req);
        assert_eq!((h.pad_count, h.tver), (3, 0));
        assert_eq!((h.dest_qp, h.psn), (Qpn::new(0x12), Psn::new(0x12_3456)));
    }
}
