//! What two sides tell each other before they connect.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use crate::engine::cause::Cause;
use crate::engine::qp::attr::Recovery;
use crate::wire::num::{Gid, Mtu};

use super::attr::AhAttr;
use super::error::Error;

/// Where a queue pair is and what it can do: what its peer needs to connect.
///
/// Printed and parsed as `[gid%scope]/qpn/psn/qkey/mtu/rd_atomic/rx_buffer`, all numbers but the MTU, the
/// READ depth and the buffer in hexadecimal, with `/sr` behind it for selective repeat, `/gb0` for go-back-0:
///
/// ```
/// use softroce::prelude::*;
/// let text = "[::ffff:10.0.0.1]/00001c/5a3f21/00000000/4096/16/8388608";
/// let peer: QpEndpoint = text.parse().unwrap();
/// assert_eq!((peer.qpn, peer.mtu), (0x1c, Mtu::B4096));
/// assert_eq!(peer.to_string(), text);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct QpEndpoint {
    /// Address.
    pub gid: Gid,
    /// Number of the queue pair.
    pub qpn: u32,
    /// First PSN that it sends.
    pub psn: u32,
    /// Queue key (datagrams).
    pub qkey: u32,
    /// LID (InfiniBand).
    pub lid: u16,
    /// Largest path MTU of its port.
    pub mtu: Mtu,
    /// READs and atomics in flight that it takes, and issues.
    pub rd_atomic: u8,
    /// Scope of a link-local address *at the side that reads this*; printed as `%scope`, not told to the
    /// peer.
    pub scope_id: u32,
    /// Bytes that its socket buffers before it drops; 0: unknown. A hint for flow control.
    pub rx_buffer: u32,
    /// How it would recover from losses, if its peer does so, too: see [`QpBuilder::recovery`](super::QpBuilder::recovery).
    #[cfg_attr(feature = "serde", serde(default))]
    pub recovery: Recovery,
}

impl QpEndpoint {
    /// The way to it.
    pub fn ah(&self) -> AhAttr {
        AhAttr {
            dgid: self.gid,
            dlid: self.lid,
            port: 1,
            scope_id: self.scope_id,
            ..AhAttr::default()
        }
    }
}

impl fmt::Display for QpEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}", self.gid)?;
        if self.scope_id != 0 {
            write!(f, "%{}", self.scope_id)?;
        }
        write!(
            f,
            "]/{:06x}/{:06x}/{:08x}/{}/{}/{}",
            self.qpn,
            self.psn,
            self.qkey,
            self.mtu.bytes(),
            self.rd_atomic,
            self.rx_buffer
        )?;
        match self.recovery {
            Recovery::GoBackN => Ok(()),
            Recovery::Selective => f.write_str("/sr"),
            Recovery::GoBack0 => f.write_str("/gb0"),
        }
    }
}

impl FromStr for QpEndpoint {
    type Err = Error;

    /// Parses what `Display` prints. What follows the PSN may be left out, from the end: queue key 0, MTU
    /// 1024, READ depth 1, buffer unknown.
    ///
    /// # Errors
    /// `EINVAL` with the part at fault.
    fn from_str(s: &str) -> Result<Self, Error> {
        let bad = |what: String| Error::verb("parse", Cause::Invalid { what: what.into() });
        let form = "an endpoint looks like [10.0.0.1]/qpn/psn/qkey/mtu/rd_atomic/rx_buffer";
        let (address, rest) = s
            .trim()
            .strip_prefix('[')
            .and_then(|s| s.split_once("]/"))
            .ok_or_else(|| bad(form.to_owned()))?;
        let (ip, scope) = match address.split_once('%') {
            Some((ip, scope)) => (ip, scope),
            None => (address, "0"),
        };
        let ip: IpAddr = ip.parse().map_err(|_| bad(format!("{ip:?} is no address; {form}")))?;
        let gid = match ip {
            IpAddr::V6(v6) if v6 == Ipv6Addr::UNSPECIFIED => {
                return Err(bad(format!("the address is zero; {form}")));
            }
            ip => Gid::from(ip),
        };
        let scope_id = scope.parse().map_err(|_| bad(format!("{scope:?} is no scope number")))?;
        let mut parts = rest.split('/');
        let mut number = |name: &str, radix: u32, max: u32, default: Option<u32>| {
            let Some(text) = parts.next() else {
                return default.ok_or_else(|| bad(format!("{name} is missing; {form}")));
            };
            match u32::from_str_radix(text, radix) {
                Ok(n) if n <= max => Ok(n),
                Ok(n) => Err(bad(format!("{name} is {n:#x}, the largest value is {max:#x}"))),
                Err(_) => Err(bad(format!("{name} is {text:?}, which is no number; {form}"))),
            }
        };
        let qpn = number("qpn", 16, 0xff_ffff, None)?;
        let psn = number("psn", 16, 0xff_ffff, None)?;
        let qkey = number("qkey", 16, u32::MAX, Some(0))?;
        let mtu = number("mtu", 10, 4096, Some(1024))?;
        let rd_atomic = number("rd_atomic", 10, 255, Some(1))?;
        let rx_buffer = number("rx_buffer", 10, u32::MAX, Some(0))?;
        let flag = parts.next();
        let recovery = match flag {
            Some("sr") => Recovery::Selective,
            Some("gb0") => Recovery::GoBack0,
            _ => Recovery::GoBackN,
        };
        let unknown = flag.filter(|_| recovery == Recovery::GoBackN);
        if let Some(extra) = unknown.or_else(|| parts.next()) {
            return Err(bad(format!("{extra:?} at the end is too much; {form}")));
        }
        let mtu = Mtu::from_bytes(mtu as usize)
            .ok_or_else(|| bad(format!("mtu is {mtu}, wanted 256, 512, 1024, 2048 or 4096")))?;
        let rd_atomic = u8::try_from(rd_atomic).unwrap_or(u8::MAX);
        Ok(Self { gid, qpn, psn, qkey, lid: 0, mtu, rd_atomic, scope_id, rx_buffer, recovery })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn short_forms_and_errors() {
        let e: QpEndpoint = "[fe80::1%3]/11/abcdef".parse().unwrap();
        assert_eq!((e.scope_id, e.psn, e.mtu, e.rd_atomic), (3, 0xab_cdef, Mtu::B1024, 1));
        assert_eq!(
            "[10.0.0.1]/1/2".parse::<QpEndpoint>().unwrap().gid.to_string(),
            "::ffff:10.0.0.1"
        );
        for (text, part) in [
            ("", "looks like"),
            ("10.0.0.1/1/2", "looks like"),
            ("[10.0.0]/1/2", "no address"),
            ("[::]/1/2", "zero"),
            ("[10.0.0.1]/1", "psn is missing"),
            ("[10.0.0.1]/1000000/2", "qpn is 0x1000000"),
            ("[10.0.0.1]/x/2", "qpn is \"x\""),
            ("[10.0.0.1]/1/2/0/1000", "mtu is 1000"),
            ("[10.0.0.1]/1/2/0/1024/1/0/9", "too much"),
            ("[10.0.0.1]/1/2/0/1024/1/0/sr/sr", "too much"),
            ("[10.0.0.1%a]/1/2", "scope"),
        ] {
            let e = text.parse::<QpEndpoint>().unwrap_err();
            assert_eq!(e.errno(), Some(22));
            assert!(e.to_string().contains(part), "{text}: {e}");
        }
    }

    proptest! {
        #[test]
        fn prints_and_parses(
            gid in any::<[u8; 16]>(), qpn in 0u32..1 << 24, psn in 0u32..1 << 24, qkey: u32, mtu in 1u8..6,
            rd_atomic: u8, scope_id: u32, rx_buffer: u32, recovery in 0..3_usize,
        ) {
            prop_assume!(gid != [0; 16]);
            let mtu = Mtu::from_raw(mtu).unwrap();
            let recovery = [Recovery::GoBackN, Recovery::Selective, Recovery::GoBack0][recovery];
            let e = QpEndpoint { gid: Gid(gid), qpn, psn, qkey, lid: 0, mtu, rd_atomic, scope_id, rx_buffer, recovery };
            prop_assert_eq!(e.to_string().parse::<QpEndpoint>().unwrap(), e);
        }

        #[test]
        fn garbage_never_panics(text in ".{0,60}") {
            let _ = text.parse::<QpEndpoint>();
        }
    }
}
