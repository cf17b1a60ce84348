//! Reading capture files: pcap and pcapng.
//!
//! Reading is done here and not by `pcap-file`, with which captures are written: that crate refuses packets
//! that were cut by the snap length and options without an end mark, takes every time stamp of pcapng for
//! nanoseconds, and cannot say where a file is damaged. What a reader of packets needs of the two formats
//! is little.

use std::fmt;
use std::io::{self, Read};

use crate::time::Instant;
use crate::wire::frame::LinkType;

/// The most bytes of one packet or block that are believed. A file that claims more is damaged.
const MAX_LEN: u32 = 16 << 20;

/// A packet of a capture file.
#[derive(Clone, Copy, Debug)]
pub struct Record<'r> {
    /// Position in the file, from 1.
    pub number: u64,
    /// When it was captured: nanoseconds since 1970. `None` where the file does not say.
    pub time: Option<Instant>,
    /// What it begins with.
    pub link: LinkType,
    /// How many bytes it had. More than there are in `bytes` if the capture cut it.
    pub original_len: u32,
    /// The frame, as much of it as was captured.
    pub bytes: &'r [u8],
}

/// Why a capture file cannot be read, or not to its end. Reads on in a sentence that begins with the name
/// of the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The operating system says so.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// No bytes at all.
    #[error("is empty")]
    Empty,
    /// It begins with none of the magic numbers.
    #[error("is neither a pcap nor a pcapng file: it begins with {0}")]
    NotACapture(Beginning),
    /// A version of the format that is not understood.
    #[error("has version {major}.{minor} of its format, which is not understood")]
    Version {
        /// Major version.
        major: u16,
        /// Minor version.
        minor: u16,
    },
    /// It ends too early.
    #[error("ends in the middle of a packet or header, after {packets} whole packets")]
    Truncated {
        /// Packets that were read.
        packets: u64,
    },
    /// A length or number in it cannot be true.
    #[error("is damaged after {packets} packets: {what}")]
    Damaged {
        /// Packets that were read.
        packets: u64,
        /// What cannot be true.
        what: &'static str,
    },
}

/// The first bytes of something.
#[derive(Clone, Copy, Debug)]
pub struct Beginning([u8; 4]);

impl fmt::Display for Beginning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d] = self.0;
        write!(f, "{a:02x} {b:02x} {c:02x} {d:02x}")?;
        match self.0 {
            [0x1f, 0x8b, ..] => f.write_str(" (gzip: unpack it first)"),
            [0x28, 0xb5, 0x2f, 0xfd] => f.write_str(" (zstd: unpack it first)"),
            _ => Ok(()),
        }
    }
}

/// Reads a capture file packet by packet, pcap or pcapng, of either byte order.
///
/// Small reads are frequent: hand it a [`BufReader`](std::io::BufReader) or a slice.
pub struct Reader<R> {
    input: R,
    format: Format,
    buf: Vec<u8>,
    packets: u64,
}

enum Format {
    Pcap { order: Order, nanos: bool, link: LinkType },
    PcapNg { order: Order, interfaces: Vec<Interface> },
}

/// Byte order of a file or section.
#[derive(Clone, Copy)]
enum Order {
    Big,
    Little,
}

impl Order {
    fn u16(self, b: &[u8], at: usize) -> u16 {
        let b = [b[at], b[at + 1]];
        match self {
            Self::Big => u16::from_be_bytes(b),
            Self::Little => u16::from_le_bytes(b),
        }
    }

    fn u32(self, b: &[u8], at: usize) -> u32 {
        let b = [b[at], b[at + 1], b[at + 2], b[at + 3]];
        match self {
            Self::Big => u32::from_be_bytes(b),
            Self::Little => u32::from_le_bytes(b),
        }
    }
}

/// An interface description of pcapng: what its packets begin with, and what their time stamps count.
#[derive(Clone, Copy)]
struct Interface {
    link: LinkType,
    snap_len: u32,
    /// Option `if_tsresol`: a power of ten, or of two if bit 7 is set.
    resolution: u8,
    /// Option `if_tsoffset`: seconds to add.
    offset: i64,
}

impl Interface {
    fn time(&self, stamp: u64) -> Instant {
        let power = u32::from(self.resolution & 0x7f);
        let stamp = u128::from(stamp);
        let nanos = if self.resolution & 0x80 != 0 {
            (stamp * 1_000_000_000) >> power
        } else if power <= 9 {
            stamp * 10u128.pow(9 - power)
        } else {
            10u128.checked_pow(power - 9).map_or(0, |divisor| stamp / divisor)
        };
        let nanos = i128::try_from(nanos).unwrap_or(i128::MAX);
        let nanos = nanos.saturating_add(i128::from(self.offset) * 1_000_000_000);
        Instant::from_nanos(u64::try_from(nanos.max(0)).unwrap_or(u64::MAX))
    }
}

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;

impl<R: Read> Reader<R> {
    /// Reads the beginning of a file.
    ///
    /// # Errors
    /// If it is no capture file, or one of an unknown version.
    pub fn new(input: R) -> Result<Self, ReadError> {
        let pcap = |order, nanos| Format::Pcap { order, nanos, link: LinkType::Other(0) };
        let mut reader =
            Self { input, format: pcap(Order::Big, false), buf: Vec::new(), packets: 0 };
        match reader.fill(4)? {
            4 => {}
            0 => return Err(ReadError::Empty),
            _ => return Err(reader.truncated()),
        }
        let magic = [reader.buf[0], reader.buf[1], reader.buf[2], reader.buf[3]];
        reader.format = match magic {
            [0xa1, 0xb2, 0xc3, 0xd4] => pcap(Order::Big, false),
            [0xa1, 0xb2, 0x3c, 0x4d] => pcap(Order::Big, true),
            [0xd4, 0xc3, 0xb2, 0xa1] => pcap(Order::Little, false),
            [0x4d, 0x3c, 0xb2, 0xa1] => pcap(Order::Little, true),
            [0x0a, 0x0d, 0x0d, 0x0a] => {
                Format::PcapNg { order: Order::Big, interfaces: Vec::new() }
            }
            _ => return Err(ReadError::NotACapture(Beginning(magic))),
        };
        match reader.format {
            Format::Pcap { .. } => reader.pcap_header()?,
            Format::PcapNg { .. } => reader.section_header()?,
        }
        Ok(reader)
    }

    /// The next packet; `None` at the end of the file. After an error there is nothing more to come.
    ///
    /// # Errors
    /// If the file ends too early, is damaged from here on, or cannot be read.
    pub fn next_record(&mut self) -> Result<Option<Record<'_>>, ReadError> {
        match self.format {
            Format::Pcap { order, nanos, link } => self.pcap_record(order, nanos, link),
            Format::PcapNg { .. } => self.pcapng_record(),
        }
    }

    /// Reads `n` bytes to the front of the buffer. Fewer at the end of the input.
    fn fill(&mut self, n: u32) -> Result<usize, ReadError> {
        self.buf.clear();
        // Memory grows with what is there, not with what a length claims.
        Ok(self.input.by_ref().take(u64::from(n)).read_to_end(&mut self.buf)?)
    }

    fn fill_all(&mut self, n: u32) -> Result<(), ReadError> {
        if self.fill(n)? == n as usize { Ok(()) } else { Err(self.truncated()) }
    }

    /// Reads `n` bytes, or sees that the input has ended.
    fn fill_or_end(&mut self, n: u32) -> Result<bool, ReadError> {
        match self.fill(n)? {
            0 => Ok(false),
            got if got == n as usize => Ok(true),
            _ => Err(self.truncated()),
        }
    }

    const fn truncated(&self) -> ReadError {
        ReadError::Truncated { packets: self.packets }
    }

    const fn damaged(&self, what: &'static str) -> ReadError {
        ReadError::Damaged { packets: self.packets, what }
    }

    /// The file header of pcap, behind the magic number.
    fn pcap_header(&mut self) -> Result<(), ReadError> {
        self.fill_all(20)?;
        let Format::Pcap { order, link, .. } = &mut self.format else { return Ok(()) };
        let (major, minor) = (order.u16(&self.buf, 0), order.u16(&self.buf, 2));
        if major != 2 {
            return Err(ReadError::Version { major, minor });
        }
        // The upper half says how long the frame check sequences are. They are trailers to us.
        let raw = order.u32(&self.buf, 16).to_be_bytes();
        *link = LinkType::from_raw(u16::from_be_bytes([raw[2], raw[3]]));
        Ok(())
    }

    fn pcap_record(
        &mut self,
        order: Order,
        nanos: bool,
        link: LinkType,
    ) -> Result<Option<Record<'_>>, ReadError> {
        if !self.fill_or_end(16)? {
            return Ok(None);
        }
        let [seconds, fraction, len, original_len] =
            [0, 4, 8, 12].map(|at| order.u32(&self.buf, at));
        if len > MAX_LEN {
            return Err(self.damaged("the next packet claims more than 16 MiB"));
        }
        self.fill_all(len)?;
        self.packets += 1;
        let fraction = u64::from(fraction) * if nanos { 1 } else { 1000 };
        let time = Instant::from_nanos(u64::from(seconds) * 1_000_000_000 + fraction);
        Ok(Some(Record {
            number: self.packets,
            time: Some(time),
            link,
            original_len,
            bytes: &self.buf,
        }))
    }

    /// A section header block of pcapng, behind its type: from here on another byte order may hold, and
    /// interfaces are counted anew.
    fn section_header(&mut self) -> Result<(), ReadError> {
        self.fill_all(8)?;
        let order = match self.buf[4..8] {
            [0x1a, 0x2b, 0x3c, 0x4d] => Order::Big,
            [0x4d, 0x3c, 0x2b, 0x1a] => Order::Little,
            _ => return Err(self.damaged("a section without a byte-order mark")),
        };
        let len = order.u32(&self.buf, 0);
        if len < 28 || !len.is_multiple_of(4) || len > MAX_LEN {
            return Err(self.damaged("a section header of an impossible length"));
        }
        self.fill_all(len - 12)?;
        let (major, minor) = (order.u16(&self.buf, 0), order.u16(&self.buf, 2));
        if major != 1 {
            return Err(ReadError::Version { major, minor });
        }
        self.check_trailer(order, len)?;
        self.format = Format::PcapNg { order, interfaces: Vec::new() };
        Ok(())
    }

    /// A block ends with its length once more. The buffer holds it to its end.
    fn check_trailer(&self, order: Order, len: u32) -> Result<(), ReadError> {
        if order.u32(&self.buf, self.buf.len() - 4) == len {
            Ok(())
        } else {
            Err(self.damaged("a block whose two lengths differ"))
        }
    }

    fn pcapng_record(&mut self) -> Result<Option<Record<'_>>, ReadError> {
        let (time, link, original_len, start, len) = loop {
            if !self.fill_or_end(4)? {
                return Ok(None);
            }
            let Format::PcapNg { order, .. } = self.format else { return Ok(None) };
            let block_type = order.u32(&self.buf, 0);
            if block_type == SECTION_HEADER {
                self.section_header()?;
                continue;
            }
            self.fill_all(4)?;
            let len = order.u32(&self.buf, 0);
            if len < 12 || !len.is_multiple_of(4) {
                return Err(self.damaged("a block of an impossible length"));
            }
            let fixed = match block_type {
                INTERFACE_DESCRIPTION => 8,
                PACKET | ENHANCED_PACKET => 20,
                SIMPLE_PACKET => 4,
                _ => {
                    let rest = u64::from(len) - 8;
                    let skipped = io::copy(&mut self.input.by_ref().take(rest), &mut io::sink())?;
                    if skipped < rest {
                        return Err(self.truncated());
                    }
                    continue;
                }
            };
            if len < 12 + fixed {
                return Err(self.damaged("a block too short for its kind"));
            }
            if len > MAX_LEN {
                return Err(self.damaged("the next block claims more than 16 MiB"));
            }
            self.fill_all(len - 8)?;
            self.check_trailer(order, len)?;
            let body = &self.buf[..self.buf.len() - 4];
            if block_type == INTERFACE_DESCRIPTION {
                let interface = interface_description(order, body);
                if let Format::PcapNg { interfaces, .. } = &mut self.format {
                    interfaces.push(interface);
                }
                continue;
            }
            let Format::PcapNg { interfaces, .. } = &self.format else { return Ok(None) };
            let index = match block_type {
                ENHANCED_PACKET => order.u32(body, 0),
                PACKET => u32::from(order.u16(body, 0)),
                _ => 0,
            };
            let Some(interface) = interfaces.get(index as usize) else {
                return Err(self.damaged("a packet of an interface that was not described"));
            };
            if block_type == SIMPLE_PACKET {
                let original_len = order.u32(body, 0);
                let snap_len = if interface.snap_len == 0 { u32::MAX } else { interface.snap_len };
                let len = (original_len.min(snap_len) as usize).min(body.len() - 4);
                break (None, interface.link, original_len, 4, len);
            }
            let stamp = u64::from(order.u32(body, 4)) << 32 | u64::from(order.u32(body, 8));
            let (len, original_len) = (order.u32(body, 12) as usize, order.u32(body, 16));
            if len > body.len() - 20 {
                return Err(self.damaged("a packet longer than its block"));
            }
            break (Some(interface.time(stamp)), interface.link, original_len, 20, len);
        };
        self.packets += 1;
        let bytes = &self.buf[start..start + len];
        Ok(Some(Record { number: self.packets, time, link, original_len, bytes }))
    }
}

impl<R> fmt::Debug for Reader<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("packets", &self.packets).finish_non_exhaustive()
    }
}

/// Reads the body of an interface description, at least 8 bytes. Options that make no sense end the list.
fn interface_description(order: Order, body: &[u8]) -> Interface {
    let mut interface = Interface {
        link: LinkType::from_raw(order.u16(body, 0)),
        snap_len: order.u32(body, 4),
        resolution: 6,
        offset: 0,
    };
    let mut options = &body[8..];
    while let Some((head, rest)) = options.split_at_checked(4) {
        let (code, len) = (order.u16(head, 0), usize::from(order.u16(head, 2)));
        let Some(value) = rest.get(..len) else { break };
        match (code, value) {
            (0, _) => break,
            (9, &[resolution]) => interface.resolution = resolution,
            (14, value) if len == 8 => {
                let (a, b) = (order.u32(value, 0), order.u32(value, 4));
                let (high, low) = match order {
                    Order::Big => (a, b),
                    Order::Little => (b, a),
                };
                interface.offset = (u64::from(high) << 32 | u64::from(low)).cast_signed();
            }
            _ => {}
        }
        let Some(next) = rest.get(len.next_multiple_of(4)..) else { break };
        options = next;
    }
    interface
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Packets = Vec<(Option<u64>, LinkType, u32, Vec<u8>)>;

    fn all(bytes: &[u8]) -> Result<Packets, String> {
        let mut packets = Vec::new();
        let mut reader = Reader::new(bytes).map_err(|e| e.to_string())?;
        while let Some(r) = reader.next_record().map_err(|e| e.to_string())? {
            packets.push((r.time.map(Instant::as_nanos), r.link, r.original_len, r.bytes.to_vec()));
            assert_eq!(r.number, packets.len() as u64);
        }
        Ok(packets)
    }

    /// Numbers in the byte order under test.
    struct File {
        big: bool,
        bytes: Vec<u8>,
    }

    impl File {
        fn u16(mut self, n: u16) -> Self {
            self.bytes.extend(if self.big { n.to_be_bytes() } else { n.to_le_bytes() });
            self
        }

        fn u32(mut self, n: u32) -> Self {
            self.bytes.extend(if self.big { n.to_be_bytes() } else { n.to_le_bytes() });
            self
        }

        fn raw(mut self, b: &[u8]) -> Self {
            self.bytes.extend(b);
            self
        }

        fn block(self, block_type: u32, body: impl FnOnce(Self) -> Self) -> Self {
            let body = body(Self { big: self.big, bytes: Vec::new() }).bytes;
            assert_eq!(body.len() % 4, 0);
            let len = u32::try_from(body.len() + 12).unwrap();
            self.u32(block_type).u32(len).raw(&body).u32(len)
        }

        fn section(self) -> Self {
            self.block(SECTION_HEADER, |b| {
                b.u32(0x1a2b_3c4d).u16(1).u16(0).u32(u32::MAX).u32(u32::MAX)
            })
        }

        fn interface(self, link: u16, options: &[u8]) -> Self {
            self.block(1, |b| b.u16(link).u16(0).u32(0).raw(options))
        }

        fn enhanced(self, interface: u32, stamp: u64, original: u32, data: &[u8]) -> Self {
            let (high, low) = ((stamp >> 32) as u32, (stamp & 0xffff_ffff) as u32);
            let pad = [0; 3];
            let len = u32::try_from(data.len()).unwrap();
            self.block(6, |b| {
                b.u32(interface)
                    .u32(high)
                    .u32(low)
                    .u32(len)
                    .u32(original)
                    .raw(data)
                    .raw(&pad[..data.len().wrapping_neg() % 4])
            })
        }
    }

    fn orders() -> [File; 2] {
        [true, false].map(|big| File { big, bytes: Vec::new() })
    }

    fn pcap(file: File, magic: u32) -> File {
        file.u32(magic).u16(2).u16(4).u32(0).u32(0).u32(96).u32(0x4000_0001)
    }

    #[test]
    fn pcap_of_all_kinds() {
        for (magic, nanos) in [(0xa1b2_c3d4, 7_000_005_000), (0xa1b2_3c4d, 7_000_000_005)] {
            for file in orders() {
                let file = pcap(file, magic).u32(7).u32(5).u32(3).u32(1500).raw(&[1, 2, 3]);
                let expected = (Some(nanos), LinkType::Ethernet, 1500, vec![1, 2, 3]);
                assert_eq!(all(&file.bytes), Ok(vec![expected]));
            }
        }
    }

    #[test]
    fn pcapng_with_two_interfaces_and_other_blocks() {
        for file in orders() {
            let nanos: &[u8] = if file.big { &[0, 9, 0, 1] } else { &[9, 0, 1, 0] };
            let file = file
                .section()
                .interface(1, &[])
                .interface(101, &[nanos, &[9, 0, 0, 0]].concat())
                .block(0xbad, |b| b.raw(b"skipped."))
                .enhanced(0, 1_000_001, 3, &[1, 2, 3])
                .enhanced(1, 1_000_001, 100, &[4])
                .block(3, |b| b.u32(2).raw(&[7, 8, 0, 0]))
                .block(2, |b| b.u16(1).u16(0).u32(0).u32(9).u32(1).u32(1).raw(&[5, 0, 0, 0]));
            let expected = vec![
                (Some(1_000_001_000), LinkType::Ethernet, 3, vec![1, 2, 3]),
                (Some(1_000_001), LinkType::RawIp, 100, vec![4]),
                (None, LinkType::Ethernet, 2, vec![7, 8]),
                (Some(9), LinkType::RawIp, 1, vec![5]),
            ];
            assert_eq!(all(&file.bytes), Ok(expected));
        }
    }

    #[test]
    fn sections_may_change_byte_order_and_interfaces() {
        let [big, little] = orders();
        let first = big.section().interface(1, &[]).enhanced(0, 1, 1, &[1]);
        let second = File { big: little.big, bytes: first.bytes };
        let second = second.section().interface(276, &[]).enhanced(0, 2, 1, &[2]);
        let links: Vec<_> = all(&second.bytes).unwrap().into_iter().map(|p| p.1).collect();
        assert_eq!(links, [LinkType::Ethernet, LinkType::LinuxSll2]);
        let [_, little] = orders();
        let forgotten = little.section().interface(1, &[]).section().enhanced(0, 2, 1, &[2]);
        assert_eq!(
            all(&forgotten.bytes).unwrap_err(),
            "is damaged after 0 packets: a packet of an interface that was not described"
        );
    }

    #[test]
    fn time_stamps() {
        let of = |resolution, offset, stamp| {
            let interface = Interface { link: LinkType::Ethernet, snap_len: 0, resolution, offset };
            interface.time(stamp).as_nanos()
        };
        assert_eq!(of(6, 0, 5), 5_000);
        assert_eq!(of(0, 0, 5), 5_000_000_000);
        assert_eq!(of(9, 3, 5), 3_000_000_005);
        assert_eq!(of(12, 0, 5_000), 5);
        assert_eq!(of(0x80 | 10, 0, 512), 500_000_000);
        assert_eq!(of(6, -1, 1_500_000), 500_000_000);
        assert_eq!(of(6, -9, 1_500_000), 0, "nothing is before 1970");
        for resolution in 0..=255 {
            of(resolution, i64::MAX, u64::MAX);
            of(resolution, i64::MIN, u64::MAX);
        }
    }

    #[test]
    fn an_end_in_the_middle_is_told_from_the_end() {
        let [big, _] = orders();
        let file = pcap(big, 0xa1b2_c3d4).u32(1).u32(1).u32(4).u32(4).raw(&[1, 2, 3, 4]);
        let file = file.u32(1).u32(1).u32(4).u32(4).raw(&[1, 2, 3, 4]).bytes;
        for len in 0..file.len() {
            match (len, all(&file[..len])) {
                (0, r) => assert_eq!(r.unwrap_err(), "is empty"),
                (24, r) => assert_eq!(r.unwrap().len(), 0),
                (44, r) => assert_eq!(r.unwrap().len(), 1),
                (_, r) => {
                    let packets = u8::from(len > 44);
                    let middle = "ends in the middle of a packet or header, after";
                    assert_eq!(r.unwrap_err(), format!("{middle} {packets} whole packets"));
                }
            }
        }
        assert_eq!(all(&file).unwrap().len(), 2);

        let [big, _] = orders();
        let file = big.section().interface(1, &[]).enhanced(0, 1, 1, &[1]).bytes;
        let ends = [28, 48, file.len()];
        for len in 4..file.len() {
            assert_eq!(all(&file[..len]).is_ok(), ends.contains(&len), "{len} bytes");
        }
    }

    #[test]
    fn what_is_no_capture() {
        let why = |b: &[u8]| all(b).unwrap_err();
        assert_eq!(
            why(b"#!/bin/sh"),
            "is neither a pcap nor a pcapng file: it begins with 23 21 2f 62"
        );
        assert!(why(&[0x1f, 0x8b, 8, 0, 0]).ends_with("(gzip: unpack it first)"));
        let [big, little] = orders();
        let old = big.u32(0xa1b2_c3d4).u16(1).u16(2).u32(0).u32(0).u32(0).u32(1);
        assert_eq!(why(&old.bytes), "has version 1.2 of its format, which is not understood");
        let lying = pcap(little, 0xa1b2_c3d4).u32(0).u32(0).u32(u32::MAX).u32(0);
        assert_eq!(
            why(&lying.bytes),
            "is damaged after 0 packets: the next packet claims more than 16 MiB"
        );
    }

    #[test]
    fn damaged_blocks() {
        let begin = || {
            let [big, _] = orders();
            big.section().interface(1, &[])
        };
        let why = |f: File| {
            let e = all(&f.bytes).unwrap_err();
            e.strip_prefix("is damaged after 0 packets: ").expect("damaged").to_owned()
        };
        assert_eq!(why(begin().u32(6).u32(13)), "a block of an impossible length");
        assert_eq!(why(begin().u32(6).u32(8)), "a block of an impossible length");
        assert_eq!(why(begin().u32(6).u32(28)), "a block too short for its kind");
        assert_eq!(why(begin().u32(6).u32(1 << 25)), "the next block claims more than 16 MiB");
        assert_eq!(
            why(begin().u32(1).u32(20).u32(0).u32(0).u32(24)),
            "a block whose two lengths differ"
        );
        assert_eq!(
            why(begin().block(6, |b| b.u32(0).u32(0).u32(0).u32(5).u32(5).raw(&[0; 4]))),
            "a packet longer than its block"
        );
        assert_eq!(
            why(begin().enhanced(1, 0, 1, &[0])),
            "a packet of an interface that was not described"
        );
    }

    proptest! {
        #[test]
        fn garbage_never_panics(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..400),
            start in 0usize..5,
        ) {
            let start: &[u8] = [
                &[0xa1, 0xb2, 0xc3, 0xd4, 0, 2, 0, 4][..],
                &[0x4d, 0x3c, 0xb2, 0xa1, 2, 0, 4, 0],
                &[0x0a, 0x0d, 0x0d, 0x0a, 0, 0, 0, 28, 0x1a, 0x2b, 0x3c, 0x4d, 0, 1],
                &[0x0a, 0x0d, 0x0d, 0x0a, 28, 0, 0, 0, 0x4d, 0x3c, 0x2b, 0x1a, 1, 0],
                &[],
            ][start];
            let n = start.len().min(bytes.len());
            bytes[..n].copy_from_slice(&start[..n]);
            let _ = all(&bytes);
        }

        #[test]
        fn damage_never_panics(at in 0usize..160, value: u8, cut in 0usize..200) {
            for big in [true, false] {
                let file = File { big, bytes: Vec::new() }
                    .section()
                    .interface(1, &[0, 9, 0, 1, 9, 0, 0, 0])
                    .enhanced(0, 1, 4, &[1, 2, 3, 4])
                    .block(3, |b| b.u32(2).raw(&[7, 8, 0, 0]));
                let mut bytes = file.bytes;
                let at = at % bytes.len();
                bytes[at] = value;
                bytes.truncate(cut);
                let _ = all(&bytes);
            }
        }
    }
}
