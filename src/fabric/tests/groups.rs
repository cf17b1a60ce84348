//! Multicast: who gets a copy, and what is counted.

use super::*;

fn group() -> IpAddr {
    [239, 0, 0, 9].into()
}

fn send_to_group(net: &mut Fabric, from: HostId, bytes: &[u8]) {
    let path = Path { dst: group(), ..path(from, from) };
    let t = Transmit { path, ident: 0, len: bytes.len(), segment_size: None };
    net.send(net.now(), from, &t, bytes);
}

/// Who received, each with the destination that it saw.
fn receivers(net: &mut Fabric) -> Vec<(u32, IpAddr)> {
    settle(net).iter().map(|(_, host, meta, _)| (host.0, meta.path.dst)).collect()
}

#[test]
fn members_get_a_copy_each_the_sender_too() {
    let (mut net, [a, b, c, d]) = network(1, [FORTY; 4]);
    for host in [d, a, b, b] {
        net.join(host, group()).unwrap();
    }
    send_to_group(&mut net, a, &datagram(0x64, 1, &[7; 100]));
    let mut got = receivers(&mut net);
    got.sort_unstable();
    assert_eq!(got, [(a.0, group()), (b.0, group()), (d.0, group())]);
    let counted = net.counters(a);
    assert_eq!((counted.sent, counted.replicated, counted.duplicated), (1, 2, 0));
    balance(&net);

    net.leave(d, group()).unwrap();
    net.leave(c, group()).unwrap();
    send_to_group(&mut net, c, &datagram(0x64, 2, &[]));
    assert_eq!(receivers(&mut net).len(), 2);
    for host in [a, b] {
        net.leave(host, group()).unwrap();
    }
    send_to_group(&mut net, c, &datagram(0x64, 3, &[]));
    assert_eq!(receivers(&mut net), []);
    assert_eq!(net.counters(c).no_route, 1);
    balance(&net);
}

#[test]
fn each_copy_has_a_fate_of_its_own() {
    let (mut net, [a, b, c]) = network(1, [FORTY; 3]);
    for host in [b, c] {
        net.join(host, group()).unwrap();
    }
    net.add_rule(Rule::new(Class::Any, Action::Drop).to(b)).unwrap();
    send_to_group(&mut net, a, &datagram(0x64, 1, &[7; 100]));
    assert_eq!(receivers(&mut net), [(c.0, group())]);
    assert_eq!(net.counters(b).rule_drops, 1);
    balance(&net);
}

#[test]
fn what_cannot_be_joined() {
    let (mut net, [a]) = network(1, [FORTY]);
    let unicast = ip(a);
    assert_eq!(net.join(a, unicast), Err(FabricError::NotMulticast(unicast)));
    let nobody = HostId(5);
    assert_eq!(net.join(nobody, group()), Err(FabricError::NoSuchHost(nobody)));
    assert_eq!(net.leave(nobody, group()), Err(FabricError::NoSuchHost(nobody)));
    net.join(a, "ff02::9".parse().unwrap()).unwrap();
}
