//! What needs a look into the port.

use super::*;
use crate::net::RxMeta;
use crate::port::endpoint::Habit;
use crate::skip::skip;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// A port that can talk to itself at `ip`, at any free UDP port, so that it is in nobody's way. `None`
/// where the address does not exist.
fn open(ip: &str) -> Option<UdpPort> {
    let ip: IpAddr = ip.parse().unwrap();
    let address = netdev::address(ip, 0).unwrap()?;
    for _ in 0..100 {
        let any = UdpSocket::bind((ip, 0)).unwrap().local_addr().unwrap().port();
        match UdpPort::open(UdpConfig { port: any, ..UdpConfig::new(vec![address.clone()]) }) {
            Ok(port) => return Some(port),
            Err(OpenError::InUse { .. }) => {}
            Err(e) => panic!("{e}"),
        }
    }
    panic!("no free port in 100 attempts");
}

fn to_itself(port: &UdpPort) -> Path {
    let ip = port.addresses[0].ip;
    Path {
        src: ip,
        dst: ip,
        src_port: port.port,
        traffic_class: 2,
        hop_limit: 64,
        flow_label: 0,
        scope_id: 0,
    }
}

fn send(port: &mut UdpPort, payload: &[u8], segment_size: Option<u16>) {
    let mut tx = TxBatch::default();
    tx.spare()[..payload.len()].copy_from_slice(payload);
    let path = to_itself(port);
    tx.commit(Transmit { path, ident: 0, len: payload.len(), segment_size }, 0);
    port.send(&mut tx).unwrap();
    assert!(tx.is_empty());
}

fn receive(port: &mut UdpPort, bytes: usize) -> Vec<(RxMeta, Vec<u8>)> {
    let mut rx = RxBatch::new(4, RxBatch::WHOLE);
    let mut got = Vec::new();
    while got.iter().map(|(_, b): &(RxMeta, Vec<u8>)| b.len()).sum::<usize>() < bytes {
        let mut fds = [PollFd::new(port.readiness().unwrap(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut fds, PollTimeout::from(20_000u16)), Ok(1));
        port.recv(&mut rx).unwrap();
        got.extend(rx.iter().map(|(meta, bytes)| (meta, bytes.to_vec())));
    }
    got
}

/// Makes the kernel refuse segmented sends, which need checksums: in IPv4 by leaving them out in all
/// sends of the socket, in IPv6 likewise.
fn forbid_checksums(port: &UdpPort) {
    let fd = port.endpoints[0].socket.as_fd();
    if port.addresses[0].ip.is_ipv4() {
        sys::set_option(fd, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap();
    } else {
        sys::set_option(fd, libc::SOL_UDP, libc::UDP_NO_CHECK6_TX, 1).unwrap();
    }
}

#[test]
fn a_kernel_that_refuses_to_segment_over_ipv4() {
    let mut port = open("127.0.0.1").unwrap();
    forbid_checksums(&port);
    assert!(port.caps().gso_segments_v4 > 1);
    send(&mut port, &[1; 300], Some(100));
    assert_eq!(port.caps().gso_segments_v4, 1, "the engine is told");
    let s = port.stats();
    assert_eq!((s.gso_refused, s.send_errors, s.sent_datagrams), (1, 3, 0));
    assert_eq!(port.last_error().map(|e| e.errno), Some(libc::EIO));
    // Nothing of it was sent: the identifications would be wrong.
    send(&mut port, &[2; 100], None);
    let got = receive(&mut port, 100);
    assert_eq!(got[0].1, [2; 100]);
    // What had been staged before the engine knew is dropped without asking the kernel.
    send(&mut port, &[3; 300], Some(100));
    assert_eq!((port.stats().gso_refused, port.stats().send_errors), (1, 6));
}

#[test]
fn a_kernel_that_refuses_to_segment_over_ipv6() {
    let Some(mut port) = open("::1") else { return skip("no ::1 here") };
    forbid_checksums(&port);
    assert!(port.caps().gso_segments_v6 > 1);
    let payload: Vec<u8> = (0..250).collect();
    send(&mut port, &payload, Some(100));
    assert_eq!(port.caps().gso_segments_v6, 1);
    let s = port.stats();
    assert_eq!((s.gso_refused, s.send_errors, s.sent_datagrams), (1, 0, 3));
    // They arrive one by one, and without a checksum, as many RoCEv2 senders send them.
    let got = receive(&mut port, 250);
    assert_eq!(got.iter().map(|(_, b)| b.len()).collect::<Vec<_>>(), [100, 100, 50]);
    assert!(got.iter().all(|(meta, _)| meta.path == to_itself(&port) && meta.gro_index == 0));
    assert_eq!(got.concat_bytes(), payload);
    send(&mut port, &payload, Some(100));
    assert_eq!(port.stats().gso_refused, 1);
    assert_eq!(receive(&mut port, 250).concat_bytes(), payload);
}

trait ConcatBytes {
    fn concat_bytes(&self) -> Vec<u8>;
}

impl ConcatBytes for Vec<(RxMeta, Vec<u8>)> {
    fn concat_bytes(&self) -> Vec<u8> {
        self.iter().flat_map(|(_, b)| b.clone()).collect()
    }
}

const GROUPS: [[u8; 4]; 3] = [[239, 193, 7, 1], [239, 193, 7, 2], [239, 193, 7, 3]];

/// From the port to a group that it is in.
fn send_to_group(port: &mut UdpPort, group: [u8; 4], payload: &[u8]) {
    let mut tx = TxBatch::default();
    tx.spare()[..payload.len()].copy_from_slice(payload);
    let path = Path { dst: group.into(), ..to_itself(port) };
    let len = payload.len();
    tx.commit(Transmit { path, ident: 0, len, segment_size: None }, 0);
    port.send(&mut tx).unwrap();
}

#[test]
fn what_was_lost_at_the_socket_of_a_group_stays_counted() {
    let mut port = open("127.0.0.1").unwrap();
    port.config.rcvbuf = 8192;
    port.join(GROUPS[0].into()).unwrap();
    while port.stats().overruns == 0 {
        send_to_group(&mut port, GROUPS[0], &[1; 1000]);
    }
    let before = port.stats().overruns;
    port.leave(GROUPS[0].into()).unwrap();
    assert_eq!(port.stats().overruns, before);
}

#[test]
fn a_socket_that_epoll_does_not_give_up_takes_no_other_along() {
    let mut port = open("127.0.0.1").unwrap();
    for group in GROUPS {
        port.join(group.into()).unwrap();
    }
    // Somebody else has taken it off the list.
    let epoll = port.epoll.as_ref().unwrap();
    epoll.delete(&port.endpoints[1].socket).unwrap();
    let error = port.leave(GROUPS[0].into()).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
    assert_eq!(port.endpoints.len(), 3, "it is gone all the same");
    for (group, byte) in [(GROUPS[2], 2), (GROUPS[1], 1)] {
        send_to_group(&mut port, group, &[byte]);
        assert_eq!(receive(&mut port, 1)[0].1, [byte]);
    }
    // And its successor is another one.
    port.join(GROUPS[0].into()).unwrap();
    send_to_group(&mut port, GROUPS[0], &[7]);
    assert_eq!(receive(&mut port, 1)[0].1, [7]);
}

#[test]
fn frequent_values_need_no_control_data() {
    let mut port = open("127.0.0.1").unwrap();
    let control = |port: &UdpPort| {
        let t = Transmit { path: to_itself(port), ident: 0, len: 1, segment_size: None };
        let (mut name, mut control) = (Name::EMPTY, Control::EMPTY);
        port.endpoints[0].address(&t, port.port, &mut name, &mut control);
        control.as_bytes().len()
    };
    assert_eq!(control(&port), super::super::control::space(4));
    for _ in 0..u32::from(Habit::STREAK) {
        send(&mut port, &[1], None);
    }
    assert_eq!(control(&port), 0);
    assert!(receive(&mut port, 64).iter().all(|(meta, _)| meta.path.traffic_class == 2));
}
