//! The options of devices that are stations of their own on an Ethernet.

use std::net::IpAddr;

use crate::engine::cause::Cause;
use crate::port::ether::{MAX_MTU, MIN_MTU, Prefix, StationConfig};
use crate::verbs::error::{Error, Result};
use crate::wire::frame::Mac;

/// What is wrong with the name of a device.
pub(super) fn bad(what: String) -> Error {
    Error::verb("ibv_open_device", Cause::Invalid { what: what.into() })
}

/// Options of the station, as far as they have been read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Options {
    addresses: Vec<Prefix>,
    gateways: Vec<IpAddr>,
    mac: Option<Mac>,
    pub(super) mtu: Option<u32>,
    vlan: Option<u16>,
    priority: Option<u8>,
}

/// What [`Options::take`] and the device as such know.
pub(super) const WANTED: &str = "ip=ADDRESS/PREFIX, gw=ADDRESS, mac=AA:BB:CC:DD:EE:FF, mtu=BYTES, vlan=1..4094, pcp=0..7, \
                                 pkeys=KEYS, cc=ALGORITHM, retry=selective|go-back-n|go-back-0, quirk=rxe-flush or pcap=FILE";

impl Options {
    /// Takes `name=value`, or says that it is none of the station's.
    pub(super) fn take(&mut self, name: &str, value: &str) -> Result<bool> {
        let wrong = |what: &str| bad(format!("device option \"{name}={value}\": wanted {what}"));
        match name {
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
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// All together, once there are no more. `spec` is the device that they are of.
    pub(super) fn finish(self, spec: &str, interface: String) -> Result<StationConfig> {
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
        Ok(StationConfig {
            mac: self.mac.unwrap_or(defaults.mac),
            mtu: self.mtu.unwrap_or(defaults.mtu),
            gateways: self.gateways,
            vlan: self.vlan,
            priority: self.priority,
            interface,
            ..defaults
        })
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
