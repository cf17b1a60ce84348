//! What the tour shows: operations and sizes, in an order that both processes know.

use std::fmt;

use softroce::prelude::Mtu;

/// An operation of the tour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Send,
    SendInline,
    SendSge,
    SendImm,
    SendInv,
    Write,
    WriteInline,
    WriteSge,
    WriteImm,
    Read,
    ReadSge,
    CompareSwap,
    FetchAdd,
    AtomicWrite,
    /// A WRITE, and a FLUSH of what it wrote.
    Flush,
    /// A WRITE, and a FLUSH of the whole region.
    FlushAll,
    /// SENDs on several connections, to one shared receive queue.
    SendSrq,
    UcSend,
    UcSendImm,
    UcWrite,
    UcWriteImm,
    UdSend,
    UdSendImm,
    /// Datagrams to a multicast group.
    UdMulticast,
    BindMw,
    /// Windows of type 1. Afterwards one of them is bound again, and its old key is denied.
    BindMw1,
    /// The last one: it ends with a request that is denied, after which the queue pair is of no more use.
    LocalInv,
}

impl Op {
    /// What the table calls it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Send => "SEND",
            Self::SendInline => "SEND inline",
            Self::SendSge => "SEND 4 to 2 SGEs",
            Self::SendImm => "SEND with immediate",
            Self::SendInv => "SEND with invalidate",
            Self::Write => "WRITE",
            Self::WriteInline => "WRITE inline",
            Self::WriteSge => "WRITE of 4 SGEs",
            Self::WriteImm => "WRITE with immediate",
            Self::Read => "READ",
            Self::ReadSge => "READ into 2 SGEs",
            Self::CompareSwap => "COMPARE & SWAP",
            Self::FetchAdd => "FETCH & ADD",
            Self::AtomicWrite => "ATOMIC WRITE",
            Self::Flush => "WRITE + FLUSH range",
            Self::FlushAll => "WRITE + FLUSH all",
            Self::SendSrq => "SEND to an SRQ",
            Self::UcSend => "UC SEND",
            Self::UcSendImm => "UC SEND with immediate",
            Self::UcWrite => "UC WRITE",
            Self::UcWriteImm => "UC WRITE with immediate",
            Self::UdSend => "UD SEND",
            Self::UdSendImm => "UD SEND with immediate",
            Self::UdMulticast => "UD SEND to a group",
            Self::BindMw => "BIND_MW, then WRITE",
            Self::BindMw1 => "MW type 1, then rebound",
            Self::LocalInv => "LOCAL_INV, then denied",
        }
    }

    /// The second process posts a receive for each request.
    pub(super) const fn is_received(self) -> bool {
        matches!(
            self,
            Self::Send
                | Self::SendInline
                | Self::SendSge
                | Self::SendImm
                | Self::SendInv
                | Self::WriteImm
                | Self::SendSrq
                | Self::UcSend
                | Self::UcSendImm
                | Self::UcWriteImm
                | Self::UdSend
                | Self::UdSendImm
                | Self::UdMulticast
        )
    }

    /// Datagrams: a header stands in front of what arrives.
    pub(super) const fn is_datagram(self) -> bool {
        matches!(self, Self::UdSend | Self::UdSendImm | Self::UdMulticast)
    }

    /// Nobody sends again what is lost.
    pub(super) const fn is_unreliable(self) -> bool {
        self.is_datagram()
            || matches!(self, Self::UcSend | Self::UcSendImm | Self::UcWrite | Self::UcWriteImm)
    }

    /// Brings its own address and takes a receive all the same.
    pub(super) const fn is_write_imm(self) -> bool {
        matches!(self, Self::WriteImm | Self::UcWriteImm)
    }

    /// Two requests, of which the second completes.
    pub(super) const fn is_flush(self) -> bool {
        matches!(self, Self::Flush | Self::FlushAll)
    }

    pub(super) const fn has_immediate(self) -> bool {
        matches!(self, Self::SendImm | Self::UcSendImm | Self::UdSendImm) || self.is_write_imm()
    }

    pub(super) const fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd)
    }

    /// Works on aligned words.
    pub(super) const fn is_aligned(self) -> bool {
        self.is_atomic() || matches!(self, Self::AtomicWrite)
    }

    /// A request that stays at home: nothing goes over the wire for it.
    pub(super) const fn is_local(self) -> bool {
        matches!(self, Self::BindMw | Self::BindMw1 | Self::LocalInv)
    }

    /// Gathers from four pieces of memory.
    pub(super) const fn gathers(self) -> bool {
        matches!(self, Self::SendSge | Self::WriteSge)
    }

    /// Scatters into two.
    pub(super) const fn scatters(self) -> bool {
        matches!(self, Self::SendSge | Self::ReadSge)
    }
}

/// A row of the table: an operation at a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) op: Op,
    /// Bytes of a message; of a window for binding and invalidation.
    pub(super) size: usize,
}

/// Bytes of all requests of one kind of a row, about.
const BYTES: usize = 2 << 20;
/// Bytes that an unreliable row has in flight, unless one message has more: no socket is too small for them.
const IN_FLIGHT: usize = 32 << 10;
/// Messages that it has in flight.
const MESSAGES: usize = 16;

impl Row {
    /// Requests made one by one.
    pub(super) fn singles(self) -> usize {
        match self.op {
            op if op.is_local() => 32,
            _ => (BYTES / self.size.max(1)).clamp(3, 64),
        }
    }

    /// Requests posted together after that.
    pub(super) fn burst(self) -> usize {
        if self.op.is_local() { 0 } else { (BYTES / self.size.max(1)).clamp(2, 64) }
    }

    /// Requests that may be on their way together.
    pub(super) fn in_flight(self) -> usize {
        match self.op.is_unreliable() {
            true => (IN_FLIGHT / self.size.max(1)).clamp(1, MESSAGES),
            false => usize::MAX,
        }
    }

    /// All requests.
    pub(super) fn requests(self) -> usize {
        self.singles() + self.burst()
    }

    /// Bytes of payload of all requests.
    pub(super) fn bytes(self) -> usize {
        if self.op.is_local() { 0 } else { self.requests() * self.size }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.op.name(), Size(self.size))
    }
}

/// A number of bytes: `64`, `1 KiB`, `64 KiB + 3`.
pub(super) struct Size(pub(super) usize);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = match self.0 {
            0..0x400 => return write!(f, "{} B", self.0),
            0x400..0x10_0000 => (0x400, "KiB"),
            _ => (0x10_0000, "MiB"),
        };
        write!(f, "{} {name}", self.0 / unit)?;
        match self.0 % unit {
            0 => Ok(()),
            rest => write!(f, " + {rest}"),
        }
    }
}

const ODD: usize = (64 << 10) + 3;

/// Nothing, a byte, a cache line, a packet or less, several packets with an odd rest, many.
const LADDER: &[usize] = &[0, 1, 64, 1 << 10, 4 << 10, ODD, 1 << 20, 4 << 20];

/// All rows, in order. A datagram is as long as the path MTU allows, at most. Those to a multicast group are
/// left out unless there is a `group`.
pub(super) fn plan(mtu: Mtu, group: bool) -> Vec<Row> {
    let datagrams = &[0, 1, mtu.bytes()];
    let grouped = if group { &datagrams[..] } else { &[] };
    let table: &[(Op, &[usize])] = &[
        (Op::Send, LADDER),
        (Op::SendInline, &[1, 64]),
        (Op::SendSge, &[ODD]),
        (Op::SendImm, &[0, 4 << 10]),
        (Op::SendInv, &[0, 64]),
        (Op::Write, LADDER),
        (Op::WriteInline, &[1, 64]),
        (Op::WriteSge, &[ODD]),
        (Op::WriteImm, &[0, 64, ODD]),
        (Op::Read, LADDER),
        (Op::ReadSge, &[ODD]),
        (Op::CompareSwap, &[8]),
        (Op::FetchAdd, &[8]),
        (Op::AtomicWrite, &[8]),
        (Op::Flush, &[64, 4 << 10]),
        (Op::FlushAll, &[4 << 10]),
        (Op::SendSrq, &[0, 64, 1 << 10]),
        (Op::UcSend, &[0, 1, 64, 4 << 10, ODD]),
        (Op::UcSendImm, &[0, 4 << 10]),
        (Op::UcWrite, &[0, 1, 64, 4 << 10, ODD]),
        (Op::UcWriteImm, &[0, 64, ODD]),
        (Op::UdSend, datagrams),
        (Op::UdSendImm, datagrams),
        (Op::UdMulticast, grouped),
        (Op::BindMw, &[4 << 10]),
        (Op::BindMw1, &[4 << 10]),
        (Op::LocalInv, &[4 << 10]),
    ];
    table.iter().flat_map(|&(op, sizes)| sizes.iter().map(move |&size| Row { op, size })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_well() {
        for (n, text) in
            [(0, "0 B"), (64, "64 B"), (4096, "4 KiB"), (ODD, "64 KiB + 3"), (4 << 20, "4 MiB")]
        {
            assert_eq!(Size(n).to_string(), text);
        }
    }

    #[test]
    fn the_last_row_is_the_one_that_breaks_the_queue_pair() {
        let rows = plan(Mtu::B4096, true);
        let places: Vec<_> = rows.iter().map(|r| r.op == Op::LocalInv).collect();
        assert_eq!(places.iter().position(|&p| p), Some(rows.len() - 1));
        assert!(rows.iter().all(|r| r.bytes() <= 5 * r.size.max(BYTES) && r.requests() <= 128));
        let lots = rows.iter().filter(|r| r.op.is_unreliable()).map(|r| r.in_flight());
        assert!(lots.clone().all(|lot| lot <= MESSAGES) && lots.min() == Some(1));
        assert!(rows.iter().any(|r| r.size == 0) && rows.iter().any(|r| r.size == 4 << 20));
    }
}
