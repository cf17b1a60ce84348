//! Any bytes as a packet, and as a frame around one.
//!
//! The first byte chooses a link layer. What can be parsed can be built again and says the same; its ICRC
//! is right with the IP fields that it was built for and with no others; the frame around it is found again.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use softroce::capture::inspect;
use softroce::wire::frame::{self, Envelope, LinkType, Mac, UdpChecksum};
use softroce::wire::icrc::{self, IpFields};
use softroce::wire::{Packet, PacketBuilder};

/// How far the bytes got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// They are a packet.
    pub packet: bool,
    /// There is a datagram in them, below the link layer that the first byte chose.
    pub frame: bool,
}

/// Parses `data`, builds what it found, parses that.
pub fn run(data: &[u8]) -> Reached {
    let Some((&link, bytes)) = data.split_first() else { return Reached::default() };
    Reached {
        packet: packet(bytes),
        frame: in_frame(LinkType::from_raw(LINKS[usize::from(link) % 8]), bytes),
    }
}

/// Numbers of link types; the last is none.
const LINKS: [u16; 8] = [1, 12, 101, 113, 228, 229, 276, 147];

fn packet(bytes: &[u8]) -> bool {
    let Ok(packet) = Packet::parse(bytes) else { return false };
    let info = packet.info();
    let len =
        info.header_len + packet.payload().len() + usize::from(packet.pad_count()) + icrc::LEN;
    assert_eq!(len, bytes.len());
    assert_eq!(packet.datagram(), bytes);

    // The pad is computed from the length when it is built.
    let bth = packet.bth();
    let ident = u16::from_be_bytes([bytes[10], bytes[11]]) ^ 0x5aa5;
    let v4 =
        IpFields::v4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2), ident, true, 49152);
    let v6 = IpFields::v6(Ipv6Addr::LOCALHOST, Ipv6Addr::UNSPECIFIED, 49152);
    for ip in [v4, v6] {
        let mut built = vec![0xee; PacketBuilder::size(packet.opcode(), packet.payload().len())];
        let mut builder =
            PacketBuilder::new(&mut built, &bth, &packet.ext(), packet.payload().len());
        builder.payload_mut().copy_from_slice(packet.payload());
        let len = builder.finish(&ip);
        assert_eq!(len, built.len());
        let again = Packet::parse(&built).expect("what is built can be parsed");
        assert_eq!(again.bth(), softroce::wire::Bth { pad_count: again.pad_count(), ..bth });
        assert_eq!(again.ext(), packet.ext());
        assert_eq!(again.payload(), packet.payload());
        assert!(icrc::check(&ip, &built));
        if ip == v4 {
            assert_eq!(icrc::recover_ident(&ip.with_ident(0), &built), Some(ident));
            assert!(!icrc::check(&ip.with_ident(ident ^ 1), &built));
        }
        let last = built.len() - icrc::LEN - 1;
        built[last] ^= 0x10;
        assert!(!icrc::check(&ip, &built), "one bit is always noticed");
    }
    true
}

fn in_frame(link: LinkType, bytes: &[u8]) -> bool {
    let Ok(found) = frame::dissect(link, bytes) else { return false };
    assert!(found.datagram.len() <= found.datagram_len);
    if let Some(inspected) = inspect(&found) {
        assert!(!inspected.to_string().is_empty());
        for segment in inspected.segments() {
            assert!(segment.datagram.len() <= found.datagram.len());
        }
    }
    if found.is_cut() {
        return true;
    }
    let envelope = found.envelope;
    assert_eq!(envelope.ip_fields(), Some(found.ip));
    assert!(matches!(
        (envelope.src, envelope.dst),
        (IpAddr::V4(_), IpAddr::V4(_)) | (IpAddr::V6(_), IpAddr::V6(_))
    ));
    rebuilt(&envelope, found.datagram);
    true
}

/// A frame made from what was found in one has the same in it.
fn rebuilt(envelope: &Envelope, datagram: &[u8]) {
    let mut buf = vec![0xee; envelope.frame_len(datagram.len())];
    let (from, to) = (Mac::of(envelope.src), Mac::of(envelope.dst));
    let len = frame::emit(&mut buf, from, to, envelope, UdpChecksum::Computed, datagram)
        .expect("lengths and families were those of a frame");
    assert_eq!(len, buf.len());
    let again = frame::dissect(LinkType::Ethernet, &buf).expect("what is built is found");
    assert_eq!(again.envelope, *envelope);
    assert_eq!(again.datagram, datagram);
    assert!(!again.is_cut());
}
