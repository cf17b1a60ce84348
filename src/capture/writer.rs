//! Writing captures: pcapng, with nanoseconds, as whole Ethernet frames.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Write};

use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::section_header::{SectionHeaderBlock, SectionHeaderOption};
use pcap_file::{DataLink, Endianness, PcapError};

use crate::net::Path;
use crate::time::{Duration, Instant};
use crate::wire::frame::{self, Envelope, Mac, UdpChecksum};

/// Writes datagrams into a pcapng file that Wireshark reads.
///
/// Each datagram becomes an Ethernet frame with Ethernet addresses derived from the IP addresses
/// ([`Mac::of`]), and with a UDP checksum. The bytes depend on nothing but the arguments.
///
/// ```
/// use softroce::capture::{Reader, Writer};
/// use softroce::net::Path;
/// use softroce::time::Instant;
///
/// let path = Path {
///     src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into(), src_port: 0xc123,
///     traffic_class: 2, hop_limit: 64, flow_label: 0, scope_id: 0,
/// };
/// let mut writer = Writer::new(Vec::new())?;
/// writer.write(Instant::from_nanos(1_000_000_007), &path, 0, b"a datagram")?;
/// let file = writer.into_inner()?;
///
/// let mut reader = Reader::new(&file[..])?;
/// let record = reader.next_record()?.unwrap();
/// assert_eq!(record.time, Some(Instant::from_nanos(1_000_000_007)));
/// assert_eq!(&record.bytes[14 + 20 + 8..], b"a datagram");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Writer<W: Write> {
    file: PcapNgWriter<W>,
    /// The frame being written; kept to spare allocations.
    frame: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// Begins a file.
    ///
    /// Writes are small and many: hand it something buffered.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn new(out: W) -> io::Result<Self> {
        let section = SectionHeaderBlock {
            // Whatever the host, so that files can be compared.
            endianness: Endianness::Little,
            options: vec![SectionHeaderOption::UserApplication(Cow::Borrowed("softroce"))],
            ..SectionHeaderBlock::default()
        };
        let mut file = PcapNgWriter::with_section_header(out, section).map_err(io_error)?;
        let interface = InterfaceDescriptionBlock {
            linktype: DataLink::ETHERNET,
            snaplen: 0,
            options: vec![
                InterfaceDescriptionOption::IfName(Cow::Borrowed("softroce")),
                InterfaceDescriptionOption::IfTsResol(9),
            ],
        };
        file.write_pcapng_block(interface).map_err(io_error)?;
        Ok(Self { file, frame: Vec::new() })
    }

    /// Adds a datagram: when it was seen, where it goes, and the IPv4 identification that its ICRC was
    /// computed with (of no meaning over IPv6). "Don't fragment" is set.
    ///
    /// # Errors
    /// Those of the writer below; [`InvalidInput`](io::ErrorKind::InvalidInput) for what cannot be a frame:
    /// addresses of two families, or a datagram longer than 65,507 bytes.
    pub fn write(
        &mut self,
        time: Instant,
        path: &Path,
        ident: u16,
        datagram: &[u8],
    ) -> io::Result<()> {
        self.write_commented(time, path, ident, datagram, None)
    }

    /// The same, with a comment for the reader of the capture (at most 60,000 bytes of it).
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    pub fn write_commented(
        &mut self,
        time: Instant,
        path: &Path,
        ident: u16,
        datagram: &[u8],
        comment: Option<&str>,
    ) -> io::Result<()> {
        self.write_frame(time, &envelope(path, ident), datagram, comment)
    }

    /// Adds a datagram with all its IP fields given, and with a comment for the reader of the capture (at
    /// most 60,000 bytes of it).
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    pub fn write_frame(
        &mut self,
        time: Instant,
        envelope: &Envelope,
        datagram: &[u8],
        comment: Option<&str>,
    ) -> io::Result<()> {
        let (src, dst) = (Mac::of(envelope.src), Mac::of(envelope.dst));
        self.frame.resize(envelope.frame_len(datagram.len()), 0);
        let checksum = UdpChecksum::Computed;
        let len = frame::emit(&mut self.frame, src, dst, envelope, checksum, datagram)
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        self.put(time, len, comment)
    }

    /// Adds a frame that is no datagram of ours, such as a pause: Ethernet header and payload, without FCS.
    ///
    /// # Errors
    /// Those of the writer below.
    pub fn write_ethernet(&mut self, time: Instant, frame: &[u8]) -> io::Result<()> {
        self.frame.clear();
        self.frame.extend_from_slice(frame);
        self.put(time, frame.len(), None)
    }

    /// Writes out the frame that was made.
    fn put(&mut self, time: Instant, len: usize, comment: Option<&str>) -> io::Result<()> {
        let comment = comment.map(|c| &c[..c.floor_char_boundary(60_000)]);
        let block = EnhancedPacketBlock {
            interface_id: 0,
            timestamp: Duration::from_nanos(time.as_nanos()),
            original_len: u32::try_from(len).unwrap_or(u32::MAX),
            data: Cow::Borrowed(&self.frame[..len]),
            options: comment
                .map(|c| EnhancedPacketOption::Comment(Cow::Borrowed(c)))
                .into_iter()
                .collect(),
        };
        self.file.write_pcapng_block(block).map_err(io_error)?;
        Ok(())
    }

    /// Flushes what is below.
    ///
    /// # Errors
    /// Those of what is below.
    pub fn flush(&mut self) -> io::Result<()> {
        self.file.get_mut().flush()
    }

    /// Flushes, and gives back what is below.
    ///
    /// # Errors
    /// Those of what is below.
    pub fn into_inner(mut self) -> io::Result<W> {
        self.flush()?;
        Ok(self.file.into_inner())
    }
}

impl<W: Write> fmt::Debug for Writer<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").finish_non_exhaustive()
    }
}

/// The fields of a frame along `path`, not to be fragmented.
pub(super) const fn envelope(path: &Path, ident: u16) -> Envelope {
    Envelope {
        src: path.src,
        dst: path.dst,
        src_port: path.src_port,
        traffic_class: path.traffic_class,
        hop_limit: path.hop_limit,
        flow_label: path.flow_label,
        ident,
        df: true,
    }
}

fn io_error(e: PcapError) -> io::Error {
    match e {
        PcapError::IoError(e) => e,
        other => io::Error::other(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::Reader;
    use crate::wire::frame::{LinkType, dissect};

    fn path() -> Path {
        Path {
            src: [10, 0, 0, 1].into(),
            dst: [10, 0, 0, 2].into(),
            src_port: 0xc123,
            traffic_class: 0x6a,
            hop_limit: 63,
            flow_label: 0,
            scope_id: 0,
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let v6 = Path {
            src: "fe80::1".parse().unwrap(),
            dst: "fe80::2".parse().unwrap(),
            flow_label: 0xf_ffff,
            scope_id: 3,
            ..path()
        };
        let mut writer = Writer::new(Vec::new()).unwrap();
        for len in 0..9 {
            let time = Instant::from_nanos(5_000_000_000 + len);
            let datagram = vec![7; usize::try_from(len).unwrap()];
            writer.write(time, &path(), 0x4321, &datagram).unwrap();
            let seen = envelope(&v6, 0);
            writer.write_frame(time, &seen, &datagram, Some("dröpped")).unwrap();
        }
        let file = writer.into_inner().unwrap();
        let mut reader = Reader::new(&file[..]).unwrap();
        for len in 0..9 {
            for (path, ident) in [(path(), 0x4321), (v6, 0)] {
                let record = reader.next_record().unwrap().unwrap();
                assert_eq!(record.time, Some(Instant::from_nanos(5_000_000_000 + len)));
                assert_eq!(record.link, LinkType::Ethernet);
                assert_eq!(record.original_len as usize, record.bytes.len());
                let d = dissect(record.link, record.bytes).unwrap();
                assert_eq!(d.envelope, envelope(&path, ident));
                assert_eq!(d.datagram, vec![7; usize::try_from(len).unwrap()]);
                assert_ne!(d.udp_checksum, 0);
            }
        }
        assert!(reader.next_record().unwrap().is_none());
    }

    #[test]
    fn what_cannot_be_a_frame_is_refused_and_the_file_stays_whole() {
        let mut writer = Writer::new(Vec::new()).unwrap();
        let mixed = Path { dst: "::1".parse().unwrap(), ..path() };
        let e = writer.write(Instant::ZERO, &mixed, 0, &[]).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::InvalidInput);
        let e = writer.write(Instant::ZERO, &path(), 0, &[0; 65_508]).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::InvalidInput);
        writer.write(Instant::ZERO, &path(), 0, &[0; 65_507]).unwrap();
        let long = "ö".repeat(60_000);
        let seen = envelope(&path(), 0);
        writer.write_frame(Instant::ZERO, &seen, &[1], Some(&long)).unwrap();
        let file = writer.into_inner().unwrap();
        let mut reader = Reader::new(&file[..]).unwrap();
        assert_eq!(reader.next_record().unwrap().unwrap().bytes.len(), 65_535 + 14);
        assert_eq!(reader.next_record().unwrap().unwrap().bytes.len(), 14 + 28 + 1);
        assert!(reader.next_record().unwrap().is_none());
    }

    #[test]
    fn errors_of_the_file_come_through() {
        struct Full(usize);
        impl Write for Full {
            fn write(&mut self, b: &[u8]) -> io::Result<usize> {
                self.0 = self.0.checked_sub(b.len()).ok_or(io::ErrorKind::StorageFull)?;
                Ok(b.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        assert_eq!(Writer::new(Full(3)).unwrap_err().kind(), io::ErrorKind::StorageFull);
        let mut writer = Writer::new(Full(150)).unwrap();
        let e = writer.write(Instant::ZERO, &path(), 0, &[0; 200]).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::StorageFull);
    }
}
