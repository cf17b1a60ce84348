//! What stands behind `soft:frames=`: the cable, and the station at its end.

use std::net::IpAddr;
use std::path::PathBuf;

use crate::engine::cause::Cause;
use crate::port::ether::{MAX_MTU, MIN_MTU, Prefix, StationConfig};
use crate::port::frames::Cable;
use crate::verbs::error::{Error, Result};
use crate::wire::frame::Mac;

/// Options of a device on a UNIX socket, as far as they have been read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Options {
    path: PathBuf,
    peer: Option<PathBuf>,
    /// `stream=listen` or, if not, `stream=connect`.
    listen: Option<bool>,
    addresses: Vec<Prefix>,
    gateways: Vec<IpAddr>,
    mac: Option<Mac>,
    mtu: Option<u32>,
    vlan: Option<u16>,
    priority: Option<u8>,
}

const WANTED: &str = "peer=PATH, stream=connect, stream=listen, ip=ADDRESS/PREFIX, gw=ADDRESS, mac=AA:BB:CC:DD:EE:FF, \
                      mtu=BYTES, vlan=1..4094, pcp=0..7, pkeys=KEYS, quirk=rxe-flush or pcap=FILE";

fn bad(what: String) -> Error {
    Error::verb("ibv_open_device", Cause::Invalid { what: what.into() })
}

impl Options {
    /// A device whose socket is at `path`.
    pub(super) fn new(path: &str) -> Self {
        Self { path: path.into(), ..Self::default() }
    }

    /// Takes an option of its own.
    pub(super) fn take(&mut self, option: &str) -> Result<()> {
        let other = || bad(format!("device option {option:?}: wanted {WANTED}"));
        let (name, value) = option.split_once('=').ok_or_else(other)?;
        let wrong = |what: &str| bad(format!("device option {option:?}: wanted {what}"));
        match name {
            "peer" if value.is_empty() => return Err(wrong("the path of the other end's socket")),
            "peer" => self.peer = Some(value.into()),
            "stream" => {
                self.listen = Some(match value {
                    "listen" => true,
                    "connect" => false,
                    _ => return Err(wrong("stream=connect or stream=listen")),
                });
            }
            "ip" => {
                let what =
                    "an address of one host and its prefix, such as 10.99.0.1/24 or fd99::1/64";
                let prefix = prefix(value).ok_or_else(|| wrong(what))?;
                if self.addresses.iter().any(|p| p.ip == prefix.ip) {
                    return Err(wrong("each address once"));
                }
                self.addresses.push(prefix);
            }
            "gw" => {
                let ip = value.parse().ok().filter(is_host);
                self.gateways.push(ip.ok_or_else(|| wrong("the address of a gateway"))?);
            }
            "mac" => {
                let mac = value.parse().ok().filter(|m: &Mac| !m.is_group() && m.0 != [0; 6]);
                self.mac = Some(mac.ok_or_else(|| {
                    wrong("the address of one station, such as 02:00:0a:63:00:01")
                })?);
            }
            "mtu" => {
                let fits = |n: &u32| (MIN_MTU..=MAX_MTU).contains(n);
                let what = format!("{MIN_MTU} to {MAX_MTU} bytes");
                self.mtu = Some(value.parse().ok().filter(fits).ok_or_else(|| wrong(&what))?);
            }
            "vlan" => {
                let vlan = value.parse().ok().filter(|n| (1..4095).contains(n));
                self.vlan = Some(vlan.ok_or_else(|| wrong("the number of a VLAN, 1 to 4094"))?);
            }
            "pcp" => {
                let priority = value.parse().ok().filter(|n| *n < 8);
                self.priority = Some(priority.ok_or_else(|| wrong("a priority, 0 to 7"))?);
            }
            _ => return Err(other()),
        }
        Ok(())
    }

    /// All together, once there are no more.
    pub(super) fn finish(self) -> Result<(Cable, StationConfig)> {
        let path = self.path;
        let spec = format!("soft:frames={}", path.display());
        if path.as_os_str().is_empty() {
            return Err(bad(format!("{spec}: wanted the path of a socket")));
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let cable = match (self.peer, self.listen) {
            (Some(peer), None) if peer == path => {
                return Err(bad(format!("{spec}: peer= is the same socket")));
            }
            (Some(peer), None) => Cable::Dgram { ours: path, peer },
            (None, Some(true)) => Cable::Listen(path),
            (None, Some(false)) => Cable::Connect(path),
            (None, None) | (Some(_), Some(_)) => {
                return Err(bad(format!(
                    "{spec}: wanted either peer=PATH (frames as datagrams) or stream=connect|listen"
                )));
            }
        };
        if self.addresses.is_empty() {
            return Err(bad(format!("{spec}: wanted an address, such as ip=10.99.0.1/24")));
        }
        for gateway in &self.gateways {
            let on_link = |p: &Prefix| p.contains(*gateway) && p.ip != *gateway;
            let local = matches!(gateway, IpAddr::V6(v6) if v6.is_unicast_link_local());
            if !local && !self.addresses.iter().any(on_link) {
                return Err(bad(format!("{spec}: gw={gateway} is not on the link of any ip=")));
            }
        }
        let defaults = StationConfig::new(self.addresses);
        Ok((
            cable,
            StationConfig {
                mac: self.mac.unwrap_or(defaults.mac),
                mtu: self.mtu.unwrap_or(defaults.mtu),
                gateways: self.gateways,
                vlan: self.vlan,
                priority: self.priority,
                interface: name,
                ..defaults
            },
        ))
    }
}

/// Whether it can be the address of one host.
fn is_host(ip: &IpAddr) -> bool {
    let this = match ip {
        IpAddr::V4(v4) => v4.is_broadcast(),
        IpAddr::V6(v6) => v6.to_ipv4_mapped().is_some(),
    };
    !this && !ip.is_unspecified() && !ip.is_multicast() && !ip.is_loopback()
}

/// `10.99.0.1/24`.
fn prefix(text: &str) -> Option<Prefix> {
    let (ip, len) = text.split_once('/')?;
    let ip = ip.parse().ok().filter(is_host)?;
    let most = if ip.is_ipv4() { 32 } else { 128 };
    let len = len.parse().ok().filter(|len| (1..=most).contains(len))?;
    Some(Prefix { ip, len })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(path: &str, options: &str) -> Result<(Cable, StationConfig)> {
        let mut all = Options::new(path);
        for option in options.split(',').filter(|o| !o.is_empty()) {
            all.take(option)?;
        }
        all.finish()
    }

    #[test]
    fn a_cable_and_a_station() {
        let (cable, station) = read("/a/x.sock", "peer=/b,ip=10.99.0.1/24").unwrap();
        assert_eq!(cable, Cable::Dgram { ours: "/a/x.sock".into(), peer: "/b".into() });
        assert_eq!(station.mac, Mac([2, 0, 10, 99, 0, 1]));
        assert_eq!((station.mtu, station.vlan, station.priority), (9000, None, None));
        assert_eq!(station.interface, "x.sock");

        let rest = "stream=listen,ip=10.99.0.1/24,ip=fd99::1/64,mac=02:00:00:00:00:07,mtu=1500,gw=10.99.0.254,vlan=5,pcp=3";
        let (cable, station) = read("/a", rest).unwrap();
        assert_eq!(cable, Cable::Listen("/a".into()));
        assert_eq!(station.addresses[1], Prefix { ip: "fd99::1".parse().unwrap(), len: 64 });
        assert_eq!(station.gateways, [IpAddr::from([10, 99, 0, 254])]);
        assert_eq!(station.mac, Mac([2, 0, 0, 0, 0, 7]));
        assert_eq!((station.mtu, station.vlan, station.priority), (1500, Some(5), Some(3)));
        let (cable, _) = read("/a", "stream=connect,ip=fe80::1/64,gw=fe80::2").unwrap();
        assert_eq!(cable, Cable::Connect("/a".into()));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (path, options, word) in [
            ("", "peer=/b,ip=10.0.0.1/24", "path of a socket"),
            ("/a", "ip=10.0.0.1/24", "either peer=PATH"),
            ("/a", "peer=/b,stream=listen,ip=10.0.0.1/24", "either peer=PATH"),
            ("/a", "peer=/a,ip=10.0.0.1/24", "the same socket"),
            ("/a", "peer=,ip=10.0.0.1/24", "\"peer=\""),
            ("/a", "peer=/b", "wanted an address"),
            ("/a", "stream=maybe,ip=10.0.0.1/24", "stream=maybe"),
            ("/a", "peer=/b,ip=10.0.0.1", "ip=10.0.0.1"),
            ("/a", "peer=/b,ip=10.0.0.1/33", "ip=10.0.0.1/33"),
            ("/a", "peer=/b,ip=10.0.0.1/0", "ip=10.0.0.1/0"),
            ("/a", "peer=/b,ip=224.0.0.1/24", "ip=224.0.0.1/24"),
            ("/a", "peer=/b,ip=10.0.0.1/24,ip=10.0.0.1/8", "each address once"),
            ("/a", "peer=/b,ip=10.0.0.1/24,gw=10.0.1.1", "gw=10.0.1.1"),
            ("/a", "peer=/b,ip=10.0.0.1/24,gw=here", "gw=here"),
            ("/a", "peer=/b,ip=10.0.0.1/24,mac=01:00:5e:00:00:01", "one station"),
            ("/a", "peer=/b,ip=10.0.0.1/24,mac=02:00:00:00:00", "mac=02"),
            ("/a", "peer=/b,ip=10.0.0.1/24,mtu=351", "352 to 65500"),
            ("/a", "peer=/b,ip=10.0.0.1/24,vlan=4095", "vlan=4095"),
            ("/a", "peer=/b,ip=10.0.0.1/24,pcp=8", "pcp=8"),
            ("/a", "peer=/b,ip=10.0.0.1/24,gso=on", "gso=on"),
            ("/a", "peer=/b,ip=10.0.0.1/24,colour", "colour"),
        ] {
            let e = read(path, options).unwrap_err();
            assert_eq!(e.errno(), Some(22), "{options}");
            assert!(e.to_string().contains(word), "{word:?} is not in \"{e}\"");
        }
    }
}
