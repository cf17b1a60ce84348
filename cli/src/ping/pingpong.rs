//! The exchange of `ibv_rc_pingpong` (rdma-core, libibverbs/examples): who connects says its address first, who
//! listens answers with its own once its queue pair is connected, and hears "done".
//!
//! An address is text of 52 bytes, a zero behind it: LID, queue pair number, PSN and GID in hexadecimal, with colons
//! between. The GID is its 16 bytes in order. After that the one who connected sends a message of the length that
//! both were told, and each side answers a message with one, as often as it was told.

use std::fmt::Display;
use std::io::{Read, Write};
use std::net::TcpStream;

use softroce::verbs::{Gid, Mtu, QpEndpoint, Recovery};

use super::{Failure, Result, Step};
use crate::perf::control::PATIENCE;

/// Bytes of an address, with the zero.
const LEN: usize = 52;

/// What both sides take for granted unless they are told.
pub(super) const MTU: Mtu = Mtu::B1024;

/// Longest message that is expected: the other side sends as much as it was told, by default 4096 bytes.
pub(super) const LONGEST: usize = 1 << 20;

/// Tells our address, hears theirs.
pub(super) fn exchange(stream: &mut TcpStream, ours: &QpEndpoint) -> Result<QpEndpoint> {
    let failed = |e: &dyn Display| {
        Failure::new(
            Step::OutOfBand,
            format_args!("telling the addresses: {e}; is it ibv_rc_pingpong?"),
        )
    };
    stream.set_read_timeout(Some(PATIENCE)).map_err(|e| failed(&e))?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(|e| failed(&e))?;
    let mut theirs = [0; LEN];
    let told = stream.write_all(&emit(ours)).and_then(|()| stream.read_exact(&mut theirs));
    told.map_err(|e| failed(&e))?;
    let peer = parse(&theirs).map_err(|e| failed(&e))?;
    stream.write_all(b"done\0").map_err(|e| failed(&e))?;
    Ok(peer)
}

fn emit(e: &QpEndpoint) -> [u8; LEN] {
    let gid: String = e.gid.0.iter().map(|byte| format!("{byte:02x}")).collect();
    let text = format!("{:04x}:{:06x}:{:06x}:{gid}", e.lid, e.qpn, e.psn);
    let mut bytes = [0; LEN];
    // Each field has a fixed width.
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    bytes
}

fn parse(bytes: &[u8; LEN]) -> Result<QpEndpoint, String> {
    let text = bytes.split(|&b| b == 0).next().unwrap_or_default();
    let text = std::str::from_utf8(text).unwrap_or_default();
    let fields: Vec<_> = text.split(':').collect();
    let [lid, qpn, psn, gid] = fields[..] else { return Err(format!("{text:?} is no address")) };
    let number = |s: &str, max: u32| match u32::from_str_radix(s, 16) {
        Ok(n) if n <= max => Ok(n),
        _ => Err(format!("{s:?} in {text:?} is no number up to {max:x}")),
    };
    let gid = match u128::from_str_radix(gid, 16) {
        Ok(0) => {
            return Err(
                "its GID is zero: start it with -g and the index of a RoCE v2 address".to_owned()
            );
        }
        Ok(n) if gid.len() == 32 => Gid(n.to_be_bytes()),
        _ => return Err(format!("{gid:?} is no GID")),
    };
    Ok(QpEndpoint {
        gid,
        qpn: number(qpn, 0xff_ffff)?,
        psn: number(psn, 0xff_ffff)?,
        qkey: 0,
        lid: u16::try_from(number(lid, 0xffff)?).unwrap_or_default(),
        // What its port can do is not told.
        mtu: Mtu::B4096,
        rd_atomic: 1,
        scope_id: 0,
        rx_buffer: 0,
        recovery: Recovery::GoBackN,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_and_read() {
        let e = QpEndpoint {
            gid: Gid::from(std::net::IpAddr::from([10, 99, 0, 12])),
            qpn: 0x1b,
            psn: 0xab_cdef,
            ..parse(&emit(&"[10.0.0.1]/1/2".parse().unwrap())).unwrap()
        };
        let bytes = emit(&e);
        assert_eq!(&bytes[..], b"0000:00001b:abcdef:00000000000000000000ffff0a63000c\0");
        assert_eq!(parse(&bytes).unwrap(), e);
    }

    #[test]
    fn what_is_no_address_is_said() {
        for (text, part) in [
            (&b"GET / HTTP/1.1"[..], "no address"),
            (b"0000:00001b:abcdef:00000000000000000000000000000000", "start it with -g"),
            (b"0000:00001b:xbcdef:00000000000000000000ffff0a63000c", "\"xbcdef\""),
            (b"0000:100001b:bcdef:00000000000000000000ffff0a63000c", "100001b"),
            (b"0000:00001b:abcdef:ffff0a63000c", "no GID"),
        ] {
            let mut bytes = [0; LEN];
            bytes[..text.len()].copy_from_slice(text);
            let e = parse(&bytes).unwrap_err();
            assert!(e.contains(part), "{e}");
        }
    }
}
