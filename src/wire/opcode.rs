//! Opcodes, and the one table of their properties.
//!
//! Everything that depends on an opcode reads it here: which headers follow the BTH (parsing and
//! building), where in a message the packet stands and what it asks for (requester, responder), and
//! what it is called (captures, `softroce decode`). IBTA 9.2, table 38; ATOMIC WRITE and FLUSH: annex A19.

use std::fmt;

bitflags::bitflags! {
    /// The headers that follow the BTH, in the order in which they stand in a packet.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Headers: u16 {
        /// Reliable datagram header, 4 bytes.
        const RDETH = 1 << 0;
        /// Datagram header, 8 bytes.
        const DETH = 1 << 1;
        /// XRC header, 4 bytes.
        const XRCETH = 1 << 2;
        /// FLUSH header, 4 bytes.
        const FETH = 1 << 3;
        /// RDMA header, 16 bytes.
        const RETH = 1 << 4;
        /// Atomic header, 28 bytes.
        const ATOMIC_ETH = 1 << 5;
        /// ACK header, 4 bytes.
        const AETH = 1 << 6;
        /// Atomic ACK header, 8 bytes.
        const ATOMIC_ACK_ETH = 1 << 7;
        /// Immediate data, 4 bytes.
        const IMMDT = 1 << 8;
        /// Invalidate header, 4 bytes.
        const IETH = 1 << 9;
        /// The 16 reserved bytes of a CNP.
        const CNP_PAD = 1 << 10;
    }
}

impl Headers {
    /// Sizes, in the order of the bits.
    const SIZES: [usize; 11] = [4, 8, 4, 4, 16, 28, 4, 8, 4, 4, 16];

    /// Bytes of one header (of a set: of all).
    #[expect(clippy::len_without_is_empty, reason = "`is_empty` is there, by reference")]
    pub const fn len(self) -> usize {
        let mut sum = 0;
        let mut i = 0;
        while i < Self::SIZES.len() {
            if self.bits() & (1 << i) != 0 {
                sum += Self::SIZES[i];
            }
            i += 1;
        }
        sum
    }

    /// For each bit, where that header begins in a packet that has this set; 0 for those it lacks.
    #[expect(clippy::cast_possible_truncation, reason = "all headers together have 112 bytes")]
    const fn offsets(self) -> [u8; 11] {
        let mut offsets = [0; 11];
        let mut at = super::bth::Bth::LEN;
        let mut i = 0;
        while i < Self::SIZES.len() {
            if self.bits() & (1 << i) != 0 {
                offsets[i] = at as u8;
                at += Self::SIZES[i];
            }
            i += 1;
        }
        offsets
    }
}

/// The upper three bits of an opcode: which service the packet belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Transport {
    /// Reliable connection.
    Rc = 0x00,
    /// Unreliable connection.
    Uc = 0x20,
    /// Reliable datagram (decoded only).
    Rd = 0x40,
    /// Unreliable datagram.
    Ud = 0x60,
    /// Congestion notification.
    Cnp = 0x80,
    /// Extended reliable connection (decoded only).
    Xrc = 0xa0,
}

/// What a packet is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// SEND, into a receive that the responder posted.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA READ request.
    Read,
    /// RDMA READ response; also answers FLUSH and ATOMIC WRITE.
    ReadResponse,
    /// ACK or NAK.
    Acknowledge,
    /// Answer to an atomic.
    AtomicAcknowledge,
    /// Compare and swap.
    CompareSwap,
    /// Fetch and add.
    FetchAdd,
    /// FLUSH (placement guarantee).
    Flush,
    /// ATOMIC WRITE of 8 bytes.
    AtomicWrite,
    /// RESYNC of RD.
    Resync,
    /// Congestion notification packet.
    Cnp,
}

/// Where in its message a packet stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Position {
    /// Opens a message of several packets; payload is exactly one path MTU.
    First,
    /// Neither first nor last; payload is exactly one path MTU.
    Middle,
    /// Closes a message of several packets; payload is 1 byte to one path MTU.
    Last,
    /// The whole message; payload is 0 bytes to one path MTU.
    Only,
}

impl Position {
    /// First or only.
    pub const fn starts(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Last or only.
    pub const fn ends(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Info {
    /// Name, as in our captures' summaries: `RC_SEND_ONLY`.
    pub name: &'static str,
    /// Service.
    pub transport: Transport,
    /// What it is part of.
    pub operation: Operation,
    /// Where in its message it stands.
    pub position: Position,
    /// Headers after the BTH.
    pub headers: Headers,
    /// Bytes of BTH and headers.
    pub header_len: usize,
    /// Whether payload may follow.
    pub payload: bool,
    offsets: [u8; 11],
}

impl Info {
    /// Goes from requester to responder.
    pub const fn is_request(&self) -> bool {
        !self.is_response() && !matches!(self.operation, Operation::Cnp)
    }

    /// Goes from responder to requester.
    pub const fn is_response(&self) -> bool {
        matches!(
            self.operation,
            Operation::ReadResponse | Operation::Acknowledge | Operation::AtomicAcknowledge
        )
    }

    /// What its last packet carries besides payload.
    pub const fn tail(&self) -> Tail {
        if self.headers.contains(Headers::IMMDT) {
            Tail::Imm
        } else if self.headers.contains(Headers::IETH) {
            Tail::Inv
        } else {
            Tail::Plain
        }
    }

    /// Bytes from the start of the BTH to the header `which` (a single one), if the opcode has it.
    pub(crate) const fn offset_of(&self, which: Headers) -> Option<usize> {
        match self.offsets[which.bits().trailing_zeros() as usize] {
            0 => None,
            at => Some(at as usize),
        }
    }

    /// Carries immediate data.
    pub const fn has_imm(&self) -> bool {
        self.headers.contains(Headers::IMMDT)
    }

    /// Takes a receive WQE at its end: SEND, and WRITE with immediate.
    pub const fn completes_receive(&self) -> bool {
        match self.operation {
            Operation::Send => self.position.ends(),
            Operation::Write => self.has_imm(),
            _ => false,
        }
    }
}

/// A known opcode.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Opcode(u8);

impl Opcode {
    /// The opcode of this byte, if it is one.
    pub const fn from_u8(byte: u8) -> Option<Self> {
        if TABLE[byte as usize].is_some() { Some(Self(byte)) } else { None }
    }

    /// The byte on the wire.
    pub const fn as_u8(self) -> u8 {
        self.0
    }

    /// Its row of the table.
    pub const fn info(self) -> &'static Info {
        match &TABLE[self.0 as usize] {
            Some(info) => info,
            None => unreachable!(),
        }
    }

    /// The opcode of `transport` for one packet of a message.
    ///
    /// `None` where the combination does not exist, such as a READ on UC.
    pub const fn compose(
        transport: Transport,
        operation: Operation,
        position: Position,
        tail: Tail,
    ) -> Option<Self> {
        COMPOSED[transport as usize >> 5][operation as usize][position as usize][tail as usize]
    }

    /// RC SEND in one packet.
    pub const RC_SEND_ONLY: Self = Self(0x04);
    /// RC ACKNOWLEDGE.
    pub const RC_ACK: Self = Self(0x11);
    /// RC READ request.
    pub const RC_READ_REQUEST: Self = Self(0x0c);
    /// RC ATOMIC ACKNOWLEDGE.
    pub const RC_ATOMIC_ACK: Self = Self(0x12);
    /// Congestion notification packet.
    pub const CNP: Self = Self(0x81);
}

/// What the last packet of a message carries beside its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// Nothing.
    Plain,
    /// Immediate data.
    Imm,
    /// A key to invalidate.
    Inv,
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.info().name)
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.info().name)
    }
}

/// Name of any opcode byte: that of the table, or `UNKNOWN_1E`.
pub fn name_of(byte: u8) -> String {
    match Opcode::from_u8(byte) {
        Some(op) => op.info().name.to_owned(),
        None => format!("UNKNOWN_{byte:02X}"),
    }
}

macro_rules! prefix {
    (Rc) => {
        "RC_"
    };
    (Uc) => {
        "UC_"
    };
    (Rd) => {
        "RD_"
    };
    (Ud) => {
        "UD_"
    };
    (Xrc) => {
        "XRC_"
    };
}

/// One row of the table, with the headers that the service adds to those of the operation.
const fn row(
    name: &'static str,
    transport: Transport,
    operation: Operation,
    position: Position,
    own: Headers,
    payload: bool,
) -> Option<Info> {
    let response = matches!(
        operation,
        Operation::ReadResponse | Operation::Acknowledge | Operation::AtomicAcknowledge
    );
    let headers = match transport {
        Transport::Rc | Transport::Uc | Transport::Cnp => own,
        Transport::Ud => own.union(Headers::DETH),
        Transport::Rd if response => own.union(Headers::RDETH),
        Transport::Rd => own.union(Headers::RDETH).union(Headers::DETH),
        Transport::Xrc if response => own,
        Transport::Xrc => own.union(Headers::XRCETH),
    };
    let header_len = super::bth::Bth::LEN + headers.len();
    let offsets = headers.offsets();
    Some(Info { name, transport, operation, position, headers, header_len, payload, offsets })
}

/// `low five bits, name, operation, position, headers on RC, payload => services`
macro_rules! table {
    ($($low:literal $name:literal $op:ident $pos:ident $headers:expr, $payload:literal
        => $($transport:ident)+;)+) => {{
        let mut table: [Option<Info>; 256] = [None; 256];
        $($(
            table[(Transport::$transport as u8 | $low) as usize] = row(
                concat!(prefix!($transport), $name),
                Transport::$transport,
                Operation::$op,
                Position::$pos,
                $headers,
                $payload,
            );
        )+)+
        table
    }};
}

const NONE: Headers = Headers::empty();
const RETH: Headers = Headers::RETH;
const AETH: Headers = Headers::AETH;
const IMM: Headers = Headers::IMMDT;
const INV: Headers = Headers::IETH;
const ATOMIC: Headers = Headers::ATOMIC_ETH;

#[rustfmt::skip]
static TABLE: [Option<Info>; 256] = make_table();

#[rustfmt::skip]
const fn make_table() -> [Option<Info>; 256] {
    let mut table = table! {
        0x00 "SEND_FIRST"       Send              First  NONE, true  => Rc Uc Rd Xrc;
        0x01 "SEND_MIDDLE"      Send              Middle NONE, true  => Rc Uc Rd Xrc;
        0x02 "SEND_LAST"        Send              Last   NONE, true  => Rc Uc Rd Xrc;
        0x03 "SEND_LAST_IMM"    Send              Last   IMM,  true  => Rc Uc Rd Xrc;
        0x04 "SEND_ONLY"        Send              Only   NONE, true  => Rc Uc Rd Ud Xrc;
        0x05 "SEND_ONLY_IMM"    Send              Only   IMM,  true  => Rc Uc Rd Ud Xrc;
        0x06 "WRITE_FIRST"      Write             First  RETH, true  => Rc Uc Rd Xrc;
        0x07 "WRITE_MIDDLE"     Write             Middle NONE, true  => Rc Uc Rd Xrc;
        0x08 "WRITE_LAST"       Write             Last   NONE, true  => Rc Uc Rd Xrc;
        0x09 "WRITE_LAST_IMM"   Write             Last   IMM,  true  => Rc Uc Rd Xrc;
        0x0a "WRITE_ONLY"       Write             Only   RETH, true  => Rc Uc Rd Xrc;
        0x0b "WRITE_ONLY_IMM"   Write             Only   RETH.union(IMM), true => Rc Uc Rd Xrc;
        0x0c "READ_REQUEST"     Read              Only   RETH, false => Rc Rd Xrc;
        0x0d "READ_RESP_FIRST"  ReadResponse      First  AETH, true  => Rc Rd Xrc;
        0x0e "READ_RESP_MIDDLE" ReadResponse      Middle NONE, true  => Rc Rd Xrc;
        0x0f "READ_RESP_LAST"   ReadResponse      Last   AETH, true  => Rc Rd Xrc;
        0x10 "READ_RESP_ONLY"   ReadResponse      Only   AETH, true  => Rc Rd Xrc;
        0x11 "ACK"              Acknowledge       Only   AETH, false => Rc Rd Xrc;
        0x12 "ATOMIC_ACK"       AtomicAcknowledge Only   AETH.union(Headers::ATOMIC_ACK_ETH), false => Rc Rd Xrc;
        0x13 "CMP_SWAP"         CompareSwap       Only   ATOMIC, false => Rc Rd Xrc;
        0x14 "FETCH_ADD"        FetchAdd          Only   ATOMIC, false => Rc Rd Xrc;
        0x15 "RESYNC"           Resync            Only   NONE, false => Rd;
        0x16 "SEND_LAST_INV"    Send              Last   INV,  true  => Rc Xrc;
        0x17 "SEND_ONLY_INV"    Send              Only   INV,  true  => Rc Xrc;
        0x1c "FLUSH"            Flush             Only   Headers::FETH.union(RETH), false => Rc Rd Xrc;
        0x1d "ATOMIC_WRITE"     AtomicWrite       Only   RETH, true  => Rc Xrc;
    };
    table[0x81] = row("CNP", Transport::Cnp, Operation::Cnp, Position::Only, Headers::CNP_PAD, false);
    table
}

/// Which opcode a combination of transport, operation, position and tail has.
type Composed = [[[[Option<Opcode>; 3]; 4]; Operation::Cnp as usize + 1]; 8];

/// The table, the other way round.
static COMPOSED: Composed = {
    let mut composed: Composed = [[[[None; 3]; 4]; Operation::Cnp as usize + 1]; 8];
    let mut byte = u8::MAX;
    while byte > 0 {
        byte -= 1;
        if let Some(row) = &TABLE[byte as usize] {
            let places = &mut composed[row.transport as usize >> 5][row.operation as usize];
            places[row.position as usize][row.tail() as usize] = Some(Opcode(byte));
        }
    }
    composed
};

#[cfg(test)]
mod tests {
    use super::*;

    fn info(byte: u8) -> &'static Info {
        Opcode::from_u8(byte).expect("known").info()
    }

    #[test]
    fn header_lengths_of_the_protocol_sheet() {
        for (byte, len) in [
            (0x00, 12),
            (0x03, 16),
            (0x05, 16),
            (0x06, 28),
            (0x0a, 28),
            (0x0b, 32),
            (0x0c, 28),
            (0x0d, 16),
            (0x0e, 12),
            (0x11, 16),
            (0x12, 24),
            (0x13, 40),
            (0x14, 40),
            (0x16, 16),
            (0x1c, 32),
            (0x1d, 28),
            (0x64, 20),
            (0x65, 24),
            (0x81, 28),
            (0xa4, 16),
            (0xb1, 16),
            (0x4c, 40),
            (0x51, 20),
        ] {
            assert_eq!(info(byte).header_len, len, "{byte:#04x}");
        }
    }

    #[test]
    fn headers_lie_behind_each_other() {
        for byte in 0..=255 {
            let Some(op) = Opcode::from_u8(byte) else { continue };
            let mut at = crate::wire::Bth::LEN;
            for which in Headers::all().iter() {
                let expected = op.info().headers.contains(which).then_some(at);
                assert_eq!(op.info().offset_of(which), expected, "{op} {which:?}");
                at += expected.map_or(0, |_| which.len());
            }
            assert_eq!(at, op.info().header_len);
        }
        // The RETH of a FLUSH stands behind its FETH.
        assert_eq!(info(0x1c).offset_of(Headers::RETH), Some(16));
        assert_eq!(info(0x65).offset_of(Headers::IMMDT), Some(20));
    }

    #[test]
    fn what_does_not_exist_has_no_row() {
        // READ, atomics and invalidation on UC; multi-packet UD; CNP neighbours; manufacturer range.
        for byte in
            [0x2c, 0x33, 0x36, 0x37, 0x60, 0x62, 0x66, 0x80, 0x82, 0x18, 0x1e, 0x1f, 0xc0, 0xff]
        {
            assert_eq!(Opcode::from_u8(byte), None, "{byte:#04x}");
        }
    }

    #[test]
    fn compose_is_the_inverse_of_the_table() {
        use {Operation as O, Position as P, Tail as T, Transport as X};
        let mut found = 0;
        for transport in [X::Rc, X::Uc, X::Rd, X::Ud, X::Cnp, X::Xrc] {
            for operation in [
                O::Send,
                O::Write,
                O::Read,
                O::ReadResponse,
                O::Acknowledge,
                O::AtomicAcknowledge,
                O::CompareSwap,
                O::FetchAdd,
                O::Flush,
                O::AtomicWrite,
                O::Resync,
                O::Cnp,
            ] {
                for position in [P::First, P::Middle, P::Last, P::Only] {
                    for tail in [T::Plain, T::Imm, T::Inv] {
                        let Some(op) = Opcode::compose(transport, operation, position, tail) else {
                            continue;
                        };
                        let i = op.info();
                        assert_eq!((i.transport, i.operation), (transport, operation), "{op}");
                        assert_eq!((i.position, i.tail()), (position, tail), "{op}");
                        found += 1;
                    }
                }
            }
        }
        assert_eq!(found, TABLE.iter().flatten().count(), "each opcode has one combination");
        assert_eq!(Opcode::compose(X::Uc, O::Read, P::Only, T::Plain), None);
        assert_eq!(Opcode::compose(X::Rc, O::Cnp, P::Only, T::Plain), None);
        let write = Opcode::compose(X::Rc, O::Write, P::Last, T::Imm).map(Opcode::as_u8);
        assert_eq!(write, Some(0x09));
    }

    #[test]
    fn names() {
        assert_eq!(name_of(0x04), "RC_SEND_ONLY");
        assert_eq!(name_of(0x0d), "RC_READ_RESP_FIRST");
        assert_eq!(name_of(0x81), "CNP");
        assert_eq!(name_of(0x1e), "UNKNOWN_1E");
    }

    #[test]
    fn receives_are_completed_by_sends_and_immediates() {
        let completing: Vec<u8> = (0..0x20)
            .filter(|&b| Opcode::from_u8(b).is_some_and(|o| o.info().completes_receive()))
            .collect();
        assert_eq!(completing, [0x02, 0x03, 0x04, 0x05, 0x09, 0x0b, 0x16, 0x17]);
    }
}
