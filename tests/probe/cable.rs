//! The other end of an Ethernet cable: a host that writes its frames by hand, and reads those that come.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::Duration;

use crate::seal::{self, Outer};

pub(crate) const OUR_MAC: [u8; 6] = [0x52, 0x54, 0x00, 0x99, 0x00, 0x01];
pub(crate) const NIC_MAC: [u8; 6] = [0x52, 0x54, 0x00, 0x99, 0x00, 0x0b];
/// Addresses of the host and of the NIC, over IPv4 and IPv6.
pub(crate) const V4: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 99, 0, 1)), IpAddr::V4(Ipv4Addr::new(10, 99, 0, 11))];
pub(crate) const V6: [IpAddr; 2] = [
    IpAddr::V6(Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, 1)),
    IpAddr::V6(Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, 0x11)),
];
/// UDP port of RoCEv2.
const ROCE: u16 = 4791;
/// Far longer than any answer takes.
const LONG: Duration = Duration::from_secs(60);

/// What is odd about the headers around a datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Around {
    pub(crate) src_port: u16,
    pub(crate) ident: u16,
    pub(crate) df: bool,
    pub(crate) tos: u8,
    pub(crate) ttl: u8,
    pub(crate) flow: u32,
    pub(crate) checksum: Checksum,
    /// Turned over in the ICRC.
    pub(crate) spoil: u32,
    /// The ICRC is that of rdma_rxe for a FLUSH.
    pub(crate) twice: bool,
    /// Behind the IP packet.
    pub(crate) trailer: &'static [u8],
}

impl Default for Around {
    fn default() -> Self {
        Self {
            src_port: 50_000,
            ident: 0,
            df: true,
            tos: 0,
            ttl: 64,
            flow: 0,
            checksum: Checksum::None,
            spoil: 0,
            twice: false,
            trailer: &[],
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checksum {
    None,
    Right,
    Wrong,
}

/// The sum of the Internet checksum, before it is turned over (RFC 1071).
fn sum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0u32;
    for part in parts {
        for pair in part.chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).unwrap()
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

/// The bytes in front of a UDP header that its checksum covers; all parts have an even length.
fn pseudo([src, dst]: [IpAddr; 2], protocol: u8, len: usize) -> Vec<u8> {
    let mut b = [octets(src), octets(dst)].concat();
    b.extend(u32::try_from(len).unwrap().to_be_bytes());
    b.extend([0, 0, 0, protocol]);
    b
}

/// A frame around what stands between the UDP header and the ICRC.
pub(crate) fn frame(ends: [IpAddr; 2], sealed: &[u8], around: &Around) -> Vec<u8> {
    let &Around { src_port, ident, df, tos, ttl, flow, .. } = around;
    let outer = Outer { src: ends[0], dst: ends[1], src_port, ident, df };
    let seal = if around.twice { seal::icrc_of_rxe_flush } else { seal::icrc };
    let icrc = u32::from_le_bytes(seal(&outer, sealed)) ^ around.spoil;
    let len = u16::try_from(8 + sealed.len() + 4).unwrap();
    let mut udp = Vec::new();
    udp.extend(src_port.to_be_bytes());
    udp.extend(ROCE.to_be_bytes());
    udp.extend(len.to_be_bytes());
    udp.extend([0, 0]);
    udp.extend(sealed);
    udp.extend(icrc.to_le_bytes());
    if around.checksum != Checksum::None {
        let right = !sum(&[&pseudo(ends, 17, udp.len()), &udp]);
        let right = if right == 0 { 0xffff } else { right };
        let written = if around.checksum == Checksum::Right { right } else { right ^ 0x5555 };
        udp[6..8].copy_from_slice(&written.to_be_bytes());
    }
    let mut f = [NIC_MAC, OUR_MAC].concat();
    if ends[0].is_ipv4() {
        f.extend([0x08, 0x00]);
        let mut ip = vec![0x45, tos];
        ip.extend((20 + len).to_be_bytes());
        ip.extend(ident.to_be_bytes());
        ip.extend([u8::from(df) << 6, 0, ttl, 17, 0, 0]);
        ip.extend([octets(ends[0]), octets(ends[1])].concat());
        let checksum = !sum(&[&ip]);
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        f.extend(ip);
    } else {
        f.extend([0x86, 0xdd]);
        f.extend((6 << 28 | u32::from(tos) << 20 | flow).to_be_bytes());
        f.extend(len.to_be_bytes());
        f.extend([17, ttl]);
        f.extend([octets(ends[0]), octets(ends[1])].concat());
    }
    f.extend(udp);
    f.extend(around.trailer);
    f
}

/// A datagram that came.
#[derive(Debug)]
pub(crate) struct Came {
    pub(crate) src_port: u16,
    /// What the headers say, as the kernel's answers are written down: TOS, TTL and so on.
    pub(crate) around: String,
    /// The UDP checksum is right, or there is none.
    pub(crate) checksum_fits: bool,
    /// From the BTH to the ICRC.
    pub(crate) datagram: Vec<u8>,
    pub(crate) outer: Outer,
}

/// The host's end of the cable, with its file.
pub(crate) struct Cable {
    socket: UnixDatagram,
    files: [PathBuf; 2],
}

impl Cable {
    /// Ready for a NIC to be plugged in; the name of that NIC's device.
    pub(crate) fn new(name: &str) -> (Self, String) {
        let dir = std::env::temp_dir();
        let file =
            |what: &str| dir.join(format!("softroce-probe-{}-{name}.{what}", std::process::id()));
        let files = [file("host"), file("nic")];
        let socket = UnixDatagram::bind(&files[0]).unwrap();
        socket.set_read_timeout(Some(LONG)).unwrap();
        let mac = NIC_MAC.map(|byte| format!("{byte:02x}")).join(":");
        let [host, nic] = [&files[0], &files[1]].map(|path| path.display());
        let device =
            format!("soft:frames={nic},peer={host},ip=10.99.0.11/24,ip=fd99::11/64,mac={mac}");
        (Self { socket, files }, device)
    }

    /// Puts a frame on the cable, padded as Ethernet does.
    pub(crate) fn send(&self, frame: &[u8]) {
        let mut padded = frame.to_vec();
        padded.resize(frame.len().max(60), 0);
        self.socket.send_to(&padded, &self.files[1]).unwrap();
    }

    /// The next RoCEv2 datagram. Who asks for our hardware address on the way is told.
    pub(crate) fn next(&self) -> Came {
        let mut buf = vec![0; 1 << 16];
        loop {
            let len = match self.socket.recv(&mut buf) {
                Ok(len) => len,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => panic!("nothing comes: {e}"),
            };
            let frame = &buf[..len];
            if let Some(answer) = arp(frame).or_else(|| neighbour(frame)) {
                self.send(&answer);
            } else if let Some(came) = dissect(frame) {
                return came;
            }
        }
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        // That of the NIC is removed by it.
        let _ = std::fs::remove_file(&self.files[0]);
    }
}

/// An answer to "who has our IPv4 address?" (RFC 826).
fn arp(f: &[u8]) -> Option<Vec<u8>> {
    let us = octets(V4[0]);
    let asks = f.get(12..14)? == [0x08, 0x06] && f.get(20..22)? == [0, 1] && f.get(38..42)? == us;
    asks.then(|| {
        let from = &f[6..12];
        [from, &OUR_MAC, &f[12..20], &[0, 2], &OUR_MAC, &us, &f[22..32]].concat()
    })
}

/// An answer to "who has our IPv6 address?" (RFC 4861).
fn neighbour(f: &[u8]) -> Option<Vec<u8>> {
    let us = octets(V6[0]);
    let asks = f.get(12..14)? == [0x86, 0xdd]
        && f.get(20)? == &58
        && f.get(54)? == &135
        && f.get(62..78)? == us;
    if !asks || f[22..38] == [0; 16] {
        return None;
    }
    let mut body = [&[136, 0, 0, 0, 0x60, 0, 0, 0][..], &us, &[2, 1], &OUR_MAC].concat();
    let asker: [u8; 16] = f[22..38].try_into().unwrap();
    let pseudo = pseudo([V6[0], Ipv6Addr::from(asker).into()], 58, body.len());
    let checksum = !sum(&[&pseudo, &body]);
    body[2..4].copy_from_slice(&checksum.to_be_bytes());
    let mut ip = (6u32 << 28).to_be_bytes().to_vec();
    ip.extend(u16::try_from(body.len()).unwrap().to_be_bytes());
    ip.extend([58, 255]);
    Some([&f[6..12], &OUR_MAC, &f[12..14], &ip, &us, &asker, &body].concat())
}

/// The RoCEv2 datagram in a frame, if there is one.
fn dissect(f: &[u8]) -> Option<Came> {
    let half = |at: usize| f.get(at..at + 2).map(|b| u16::from_be_bytes([b[0], b[1]]));
    let (ends, udp, around, ident, df): ([IpAddr; 2], &[u8], _, _, _) = match half(12)? {
        0x0800 if f[14] == 0x45 && f[23] == 17 => {
            let ip = |at: usize| IpAddr::from(<[u8; 4]>::try_from(&f[at..at + 4]).unwrap());
            let around = format!("v4 tos={:02x} frag={:04x} ttl={}", f[15], half(20)?, f[22]);
            let end = 14 + usize::from(half(16)?);
            ([ip(26), ip(30)], f.get(34..end)?, around, half(18)?, f[20] & 0x40 != 0)
        }
        0x86dd if f[20] == 17 => {
            let ip = |at: usize| IpAddr::from(<[u8; 16]>::try_from(&f[at..at + 16]).unwrap());
            let first = u32::from_be_bytes(f[14..18].try_into().unwrap());
            let (tc, flow) = (first >> 20 & 0xff, first & 0xf_ffff);
            let around = format!("v6 tc={tc:02x} flow={flow:05x} hop={}", f[21]);
            let end = 54 + usize::from(half(18)?);
            ([ip(22), ip(38)], f.get(54..end)?, around, 0, true)
        }
        _ => return None,
    };
    let half = |at: usize| u16::from_be_bytes([udp[at], udp[at + 1]]);
    if half(2) != ROCE {
        return None;
    }
    let checksum_fits = half(6) == 0 || sum(&[&pseudo(ends, 17, udp.len()), udp]) == 0xffff;
    let around = format!("{around} csum={:04x} payload+hdr={}", half(6), udp.len() - 8);
    let outer = Outer { src: ends[0], dst: ends[1], src_port: half(0), ident, df };
    Some(Came { src_port: half(0), around, checksum_fits, datagram: udp[8..].to_vec(), outer })
}
