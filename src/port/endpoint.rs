//! The sockets of a UDP port, one for each address: what is known of each, and of all of them together.

use std::io;
use std::net::UdpSocket;
use std::os::fd::BorrowedFd;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use super::monitor::Monitor;
use super::netdev::NetDev;
use super::{Health, PortAddress, sys};

/// A socket of the port, and what is known of it.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) socket: UdpSocket,
    pub(super) address: PortAddress,
    /// What it is told apart by in events, as long as the port is open: its place in the list may change.
    pub(super) token: u64,
    pub(super) class: Habit,
    pub(super) hops: Habit,
    /// Buffers to offer in the next receive call.
    pub(super) wanted: usize,
}

/// A field that the socket fills in by itself, and when to change that.
///
/// Control data is copied and allocated for by the kernel with each send, which a small message notices
/// (2 % of a round trip for each field), and most programs use one traffic class and one hop limit. So what
/// a number of sends in a row ask for becomes the socket's own value, and needs no control data after that.
#[derive(Clone, Copy, Debug)]
pub(super) struct Habit {
    level: i32,
    option: i32,
    /// What the socket filled in when it was new.
    pub(super) initial: u8,
    /// What it fills in.
    pub(super) value: u8,
    /// What the last sends asked for, and how many they were.
    wanted: u8,
    streak: u8,
}

impl Habit {
    pub(super) const STREAK: u8 = 64;

    pub(super) fn new(level: i32, option: i32, value: u8) -> Self {
        Self { level, option, initial: value, value, wanted: value, streak: 0 }
    }

    /// Takes note of a send that asks for `wanted`.
    pub(super) fn see(&mut self, socket: BorrowedFd<'_>, wanted: u8) {
        if wanted != self.wanted {
            (self.wanted, self.streak) = (wanted, 0);
        }
        self.streak = self.streak.saturating_add(1);
        if self.streak == Self::STREAK
            && wanted != self.value
            && sys::set_option(socket, self.level, self.option, i32::from(wanted)).is_ok()
        {
            self.value = wanted;
        }
    }
}

/// Traffic class and hop limit that a new socket fills in.
pub(super) fn habits(socket: &UdpSocket, v4: bool) -> io::Result<(Habit, Habit)> {
    let socket = socket2::SockRef::from(socket);
    let hops = if v4 { socket.ttl_v4()? } else { socket.unicast_hops_v6()? };
    let hops = u8::try_from(hops).unwrap_or(u8::MAX);
    Ok(if v4 {
        let level = libc::IPPROTO_IP;
        (Habit::new(level, libc::IP_TOS, 0), Habit::new(level, libc::IP_TTL, hops))
    } else {
        let (level, option) = (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS);
        (Habit::new(level, libc::IPV6_TCLASS, 0), Habit::new(level, option, hops))
    })
}

/// Watches all of them, and the monitor by a token that none of them has.
pub(super) fn watch(endpoints: &[Endpoint], monitor: Option<&Monitor>) -> io::Result<Epoll> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    for e in endpoints {
        epoll.add(&e.socket, EpollEvent::new(EpollFlags::EPOLLIN, e.token))?;
    }
    if let Some(monitor) = monitor {
        epoll.add(monitor, EpollEvent::new(EpollFlags::EPOLLIN, u64::MAX))?;
    }
    Ok(epoll)
}

/// Whether an interface with one of these addresses works, and how many of them are gone.
pub(super) fn health(devices: &[NetDev], endpoints: &[Endpoint]) -> Health {
    let dev = |a: &PortAddress| devices.iter().find(|d| d.index == a.if_index);
    let there = |a: &PortAddress| {
        // All of 127.0.0.0/8 is there, listed or not.
        dev(a).is_some_and(|d| d.loopback || d.addresses.iter().any(|b| b.ip == a.ip))
    };
    let works = |a: &PortAddress| there(a) && dev(a).is_some_and(|d| d.running);
    let addresses = || endpoints.iter().map(|e| &e.address);
    Health { up: addresses().any(works), missing: addresses().filter(|a| !there(a)).count() }
}

/// The smallest MTU of their interfaces.
pub(super) fn smallest_mtu(devices: &[NetDev], endpoints: &[Endpoint]) -> Option<u32> {
    let of = |e: &Endpoint| devices.iter().find(|d| d.index == e.address.if_index).map(|d| d.mtu);
    endpoints.iter().filter_map(of).min()
}
