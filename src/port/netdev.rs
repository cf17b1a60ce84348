//! The network interfaces of this host: what devices are made of.
//!
//! *Rules.* Everything is asked from the kernel for the caller's network namespace, with no privilege, and
//! only when called: nothing is kept. What cannot be found out is left open and is not an error.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::AsFd;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;

use super::{PortAddress, sys};

/// What kind of interface it is, as far as segmented sending cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetDevKind {
    /// The loopback interface.
    Loopback,
    /// One end of a virtual pair, as containers have.
    Veth,
    /// A tunnel into a process (TUN or TAP).
    Tun,
    /// Anything else: hardware, or what stands in front of it (bridge, bond, VLAN, virtio).
    Physical,
}

impl NetDevKind {
    /// Whether segments of a send are made by the kernel's own code, if at all, which numbers them 0, 1,
    /// 2...; hardware may number them otherwise.
    pub const fn segments_in_software(self) -> bool {
        matches!(self, Self::Loopback | Self::Veth | Self::Tun)
    }
}

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NetDev {
    /// Name, such as `eth0`.
    pub name: String,
    /// Index, unique in its network namespace.
    pub index: u32,
    /// Largest IP packet, in bytes; 0 where the kernel does not say.
    pub mtu: u32,
    /// Ethernet address, if it has one.
    pub mac: Option<[u8; 6]>,
    /// Whether it is administratively up.
    pub up: bool,
    /// Whether it can carry packets: up, with a link.
    pub running: bool,
    /// Whether it is the loopback interface.
    pub loopback: bool,
    /// What kind it is.
    pub kind: NetDevKind,
    /// Its addresses in the order of a GID table: IPv4, global IPv6, link-local IPv6.
    pub addresses: Vec<PortAddress>,
}

/// Order of an address in a GID table.
fn rank(ip: &IpAddr) -> u8 {
    match ip {
        IpAddr::V4(_) => 0,
        IpAddr::V6(v6) if v6.is_unicast_link_local() => 2,
        IpAddr::V6(_) => 1,
    }
}

/// All interfaces, by index.
///
/// # Errors
/// When the kernel does not list them.
pub fn interfaces() -> io::Result<Vec<NetDev>> {
    // Any socket will do to ask about interfaces. Where IPv4 is missing, MTU and driver stay unknown.
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok();
    let mut found: BTreeMap<String, NetDev> = BTreeMap::new();
    for entry in getifaddrs()? {
        // An IPv4 address with a label is listed as `eth0:label`.
        let name = entry.interface_name.split(':').next().unwrap_or_default();
        let dev = found.entry(name.to_owned()).or_insert_with(|| {
            let loopback = entry.flags.contains(InterfaceFlags::IFF_LOOPBACK);
            let socket = socket.as_ref().map(AsFd::as_fd);
            let driver = socket.and_then(|s| sys::interface_driver(s, name).ok());
            NetDev {
                name: name.to_owned(),
                index: nix::net::if_::if_nametoindex(name).unwrap_or(0),
                mtu: socket.and_then(|s| sys::interface_mtu(s, name).ok()).unwrap_or(0),
                mac: None,
                up: entry.flags.contains(InterfaceFlags::IFF_UP),
                running: entry.flags.contains(InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING),
                loopback,
                kind: match driver.as_deref() {
                    _ if loopback => NetDevKind::Loopback,
                    Some("veth") => NetDevKind::Veth,
                    Some("tun") => NetDevKind::Tun,
                    _ => NetDevKind::Physical,
                },
                addresses: Vec::new(),
            }
        });
        let Some(address) = entry.address else { continue };
        if let Some(link) = address.as_link_addr() {
            dev.mac = link.addr().filter(|mac| *mac != [0; 6]);
            continue;
        }
        let (ip, scope_id) = if let Some(v4) = address.as_sockaddr_in() {
            (v4.ip().into(), 0)
        } else if let Some(v6) = address.as_sockaddr_in6() {
            (v6.ip().into(), v6.scope_id())
        } else {
            continue;
        };
        let (interface, if_index) = (dev.name.clone(), dev.index);
        dev.addresses.push(PortAddress { ip, scope_id, interface, if_index });
    }
    let mut devices: Vec<NetDev> = found.into_values().collect();
    for dev in &mut devices {
        dev.addresses.sort_by_key(|a| rank(&a.ip));
    }
    devices.sort_by_key(|d| d.index);
    Ok(devices)
}

/// The interface of this name; `None` when there is none.
///
/// # Errors
/// When the kernel does not list the interfaces.
pub fn interface(name: &str) -> io::Result<Option<NetDev>> {
    Ok(interfaces()?.into_iter().find(|d| d.name == name))
}

/// The address `ip` with the interface that has it; `None` when no interface has it.
///
/// All of 127.0.0.0/8 belongs to the loopback interface, listed or not. `scope_id` (an interface index) is
/// needed only for a link-local address that several interfaces have; 0 takes the first.
///
/// # Errors
/// When the kernel does not list the interfaces.
pub fn address(ip: IpAddr, scope_id: u32) -> io::Result<Option<PortAddress>> {
    let devices = interfaces()?;
    let listed = devices
        .iter()
        .flat_map(|d| &d.addresses)
        .find(|a| a.ip == ip && (scope_id == 0 || a.scope_id == scope_id));
    if let Some(address) = listed {
        return Ok(Some(address.clone()));
    }
    let loopback = devices.iter().find(|d| d.loopback && ip.is_ipv4() && ip.is_loopback());
    Ok(loopback.map(|d| PortAddress {
        ip,
        scope_id: 0,
        interface: d.name.clone(),
        if_index: d.index,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_found() {
        let lo = interfaces().unwrap().into_iter().find(|d| d.loopback).expect("lo");
        assert_eq!((lo.kind, lo.mac), (NetDevKind::Loopback, None));
        assert!(lo.index > 0 && lo.mtu >= 1280);
        assert_eq!(interface(&lo.name).unwrap(), Some(lo));
        assert_eq!(interface("no such name").unwrap(), None);
    }

    #[test]
    fn any_address_of_the_loopback_net_is_on_it() {
        let far = address([127, 9, 8, 7].into(), 0).unwrap().expect("all of 127.0.0.0/8");
        let lo = interfaces().unwrap().into_iter().find(|d| d.loopback).expect("lo");
        assert_eq!((far.interface, far.if_index), (lo.name, lo.index));
        // TEST-NET-3: nobody has it.
        assert_eq!(address([203, 0, 113, 77].into(), 0).unwrap(), None);
    }

    #[test]
    fn addresses_are_in_gid_order() {
        for dev in interfaces().unwrap() {
            assert!(dev.addresses.is_sorted_by_key(|a| rank(&a.ip)), "{dev:?}");
            assert!(dev.addresses.iter().all(|a| a.if_index == dev.index));
        }
        let order = ["fe80::1", "10.0.0.1", "fd00::1"].map(|ip| rank(&ip.parse().unwrap()));
        assert_eq!(order, [2, 0, 1]);
    }
}
