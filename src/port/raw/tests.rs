//! What needs no interface. The rest is in tests/verbs/raw.rs.

use super::*;
use crate::port::control::Control;
use crate::port::ether::Prefix;

/// `struct tpacket_auxdata`, of a frame whose tag and protocol are these.
fn auxdata(status: u32, tag: u16, protocol: u16) -> [u8; 20] {
    let mut data = [0xee; 20];
    data[..4].copy_from_slice(&status.to_ne_bytes());
    data[16..18].copy_from_slice(&tag.to_ne_bytes());
    data[18..].copy_from_slice(&protocol.to_ne_bytes());
    data
}

fn read(status: u32, tag: u16, protocol: u16) -> Aside {
    let mut control = Control::EMPTY;
    control.push(libc::SOL_PACKET, libc::PACKET_AUXDATA, &auxdata(status, tag, protocol));
    aside(control.as_bytes())
}

#[test]
fn what_is_kept_beside_a_frame_is_found() {
    let (valid, protocol) = (libc::TP_STATUS_VLAN_VALID, libc::TP_STATUS_VLAN_TPID_VALID);
    assert_eq!(read(libc::TP_STATUS_USER, 0x6005, 0x8100), Aside::default());
    let tagged = |protocol, tag| Aside { tag: Some((protocol, tag)), unsummed: false };
    assert_eq!(read(valid | protocol, 0x6005, 0x8100), tagged(0x8100, 0x6005));
    assert_eq!(read(valid | protocol, 5, 0x88a8), tagged(0x88a8, 5));
    // Kernels before 3.15 know one protocol.
    assert_eq!(read(valid, 5, 0), tagged(0x8100, 5));
    let unsummed = Aside { tag: None, unsummed: true };
    assert_eq!(read(libc::TP_STATUS_CSUMNOTREADY, 0, 0), unsummed);

    let mut short = Control::EMPTY;
    short.push(libc::SOL_PACKET, libc::PACKET_AUXDATA, &auxdata(valid, 5, 0)[..19]);
    assert_eq!(aside(short.as_bytes()), Aside::default());
    let mut other = Control::EMPTY;
    other.push(libc::SOL_SOCKET, libc::PACKET_AUXDATA, &auxdata(valid, 5, 0));
    assert_eq!(aside(other.as_bytes()), Aside::default());
    assert_eq!(aside(&[]), Aside::default());
}

#[test]
fn interfaces_that_will_not_do() {
    let station = StationConfig::new(vec![Prefix { ip: [10, 99, 0, 1].into(), len: 24 }]);
    let open = |interface: &str| {
        let config = RawConfig { interface: interface.into(), mtu: None, station: station.clone() };
        RawPort::open(config, || Instant::ZERO).map(drop).unwrap_err()
    };
    for name in ["no-such-one", "a name that is far too long", ""] {
        let e = open(name);
        assert!(matches!(e, RawError::NoInterface { .. }), "{name}: {e}");
        assert_eq!(e.errno(), libc::ENODEV);
    }
    let e = open("lo");
    assert!(matches!(e, RawError::NotEthernet { .. }), "{e}");
    assert!(e.to_string().contains("soft:lo"), "{e}");
}
