//! AETH, the acknowledgement header (IBTA 9.5.5): a syndrome byte and a message sequence number.

use std::time::Duration;

use super::num::Msn;

/// The acknowledgement header: 4 bytes in ACK, ATOMIC ACK, and the first, last and only READ response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// What the responder says.
    pub syndrome: Syndrome,
    /// How many messages it has completed.
    pub msn: Msn,
}

impl Aeth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the header.
    pub const fn parse(b: &[u8; Self::LEN]) -> Self {
        Self {
            syndrome: Syndrome::from_u8(b[0]),
            msn: Msn::new(u32::from_be_bytes([0, b[1], b[2], b[3]])),
        }
    }

    /// Writes the header.
    pub const fn emit(&self) -> [u8; Self::LEN] {
        let [_, m0, m1, m2] = self.msn.raw().to_be_bytes();
        [self.syndrome.as_u8(), m0, m1, m2]
    }
}

impl Default for Aeth {
    /// A plain ACK of nothing, without credits.
    fn default() -> Self {
        Self { syndrome: Syndrome::ACK, msn: Msn::default() }
    }
}

/// The syndrome byte of an [`Aeth`], decoded totally: every byte is one of these, and comes back as it was.
///
/// ```
/// use softroce::wire::{NakCode, Syndrome};
/// assert_eq!(Syndrome::from_u8(0x60), Syndrome::Nak(NakCode::SequenceError));
/// assert_eq!(Syndrome::RnrNak { timer: 26 }.as_u8(), 0x3a);
/// assert_eq!(Syndrome::from_u8(0xff), Syndrome::Reserved(0xff));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// Acknowledged, everything up to this PSN.
    Ack {
        /// End-to-end credits, a 5-bit code for [`credits`]. 31 says that they are not used.
        credits: u8,
    },
    /// The responder has no receive posted: try again later.
    RnrNak {
        /// For how long to wait, a 5-bit code for [`rnr_timer`].
        timer: u8,
    },
    /// Refused.
    Nak(NakCode),
    /// A byte without meaning: bit 7 set, bits 6..5 `10`, or a NAK code from 5 on.
    Reserved(u8),
}

impl Syndrome {
    /// An ACK without credits: what NICs send.
    pub const ACK: Self = Self::Ack { credits: NO_CREDITS };

    /// Decodes the byte.
    pub const fn from_u8(byte: u8) -> Self {
        let low = byte & 0x1f;
        match byte >> 5 {
            0b000 => Self::Ack { credits: low },
            0b001 => Self::RnrNak { timer: low },
            0b011 => match NakCode::from_raw(low) {
                Some(code) => Self::Nak(code),
                None => Self::Reserved(byte),
            },
            _ => Self::Reserved(byte),
        }
    }

    /// The byte on the wire. Of the 5-bit codes, the low five bits.
    pub const fn as_u8(self) -> u8 {
        match self {
            Self::Ack { credits } => credits & 0x1f,
            Self::RnrNak { timer } => 0x20 | timer & 0x1f,
            Self::Nak(code) => 0x60 | code as u8,
            Self::Reserved(byte) => byte,
        }
    }
}

/// Why a request was refused (IBTA 9.7.5.2.8). Values are those on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum NakCode {
    /// A packet is missing: the PSN of the NAK is the one expected. The requester goes back to it.
    SequenceError = 0,
    /// The request cannot be valid: opcode, length, or order of packets.
    InvalidRequest = 1,
    /// Key, bounds or rights do not allow it.
    RemoteAccess = 2,
    /// The responder failed on its own side.
    RemoteOperational = 3,
    /// Invalid RD request (reliable datagram only).
    InvalidRd = 4,
}

impl NakCode {
    /// From the number on the wire; `None` from 5 on.
    pub const fn from_raw(raw: u8) -> Option<Self> {
        match raw {
            0 => Some(Self::SequenceError),
            1 => Some(Self::InvalidRequest),
            2 => Some(Self::RemoteAccess),
            3 => Some(Self::RemoteOperational),
            4 => Some(Self::InvalidRd),
            _ => None,
        }
    }
}

/// The credit code that says: credits are not used.
pub const NO_CREDITS: u8 = 31;

/// How many receives a credit code grants (IBTA 9.7.7.2, table 49); `None` for [`NO_CREDITS`]. Of `code`,
/// the low five bits count.
pub const fn credits(code: u8) -> Option<u32> {
    // Powers of two, and halfway between them.
    match code & 0x1f {
        NO_CREDITS => None,
        n @ 0..=1 => Some(n as u32),
        n if n % 2 == 0 => Some(1 << (n / 2)),
        n => Some(3 << (n / 2 - 1)),
    }
}

/// RNR timer codes in units of 10 microseconds (IBTA 9.7.5.2.8, table 45). Code 0 is the longest.
const RNR_TIMER_10US: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, //
    256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
    49152,
];

/// How long a requester waits after an RNR NAK with this timer code; also the meaning of a queue pair's
/// `min_rnr_timer`. Of `code`, the low five bits count.
///
/// ```
/// use softroce::wire::aeth::rnr_timer;
/// assert_eq!(rnr_timer(12).as_micros(), 640);
/// assert_eq!(rnr_timer(0).as_micros(), 655_360);
/// ```
pub const fn rnr_timer(code: u8) -> Duration {
    Duration::from_micros(RNR_TIMER_10US[(code & 0x1f) as usize] as u64 * 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_syndrome_byte_comes_back() {
        for byte in 0..=255 {
            assert_eq!(Syndrome::from_u8(byte).as_u8(), byte);
        }
    }

    #[test]
    fn syndromes_of_the_standard() {
        assert_eq!(Syndrome::from_u8(0x00), Syndrome::Ack { credits: 0 });
        assert_eq!(Syndrome::from_u8(0x1f), Syndrome::ACK);
        assert_eq!(Syndrome::from_u8(0x2c), Syndrome::RnrNak { timer: 12 });
        assert_eq!(Syndrome::from_u8(0x61), Syndrome::Nak(NakCode::InvalidRequest));
        assert_eq!(Syndrome::from_u8(0x62), Syndrome::Nak(NakCode::RemoteAccess));
        assert_eq!(Syndrome::from_u8(0x63), Syndrome::Nak(NakCode::RemoteOperational));
        assert_eq!(Syndrome::from_u8(0x64), Syndrome::Nak(NakCode::InvalidRd));
        for reserved in [0x40, 0x5f, 0x65, 0x7f, 0x80, 0x9f, 0xe0] {
            assert_eq!(Syndrome::from_u8(reserved), Syndrome::Reserved(reserved));
        }
    }

    #[test]
    fn layout() {
        let b = [0x60, 0x00, 0x01, 0x02];
        let h = Aeth::parse(&b);
        assert_eq!(h.syndrome, Syndrome::Nak(NakCode::SequenceError));
        assert_eq!(h.msn, Msn::new(0x102));
        assert_eq!(h.emit(), b);
    }

    #[test]
    fn rnr_timers() {
        for (code, micros) in [
            (0, 655_360),
            (1, 10),
            (5, 60),
            (7, 120),
            (8, 160),
            (15, 1_920),
            (16, 2_560),
            (24, 40_960),
            (25, 61_440),
            (26, 81_920),
            (31, 491_520),
        ] {
            assert_eq!(rnr_timer(code), Duration::from_micros(micros), "code {code}");
        }
        assert_eq!(rnr_timer(0x20 | 12), rnr_timer(12), "three bits too many are ignored");
        for code in 1..31 {
            assert!(rnr_timer(code) < rnr_timer(code + 1));
        }
    }

    #[test]
    fn credit_codes() {
        let table: Vec<u32> = (0..31).map(|c| credits(c).unwrap()).collect();
        assert_eq!(
            table,
            [
                0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768,
                1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768
            ]
        );
        assert_eq!(credits(31), None);
    }
}
