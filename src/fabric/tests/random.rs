//! Random users of the network, against what must hold for all of them.

use proptest::prelude::*;

use super::*;

/// A random step of a user.
#[derive(Clone, Debug)]
enum Step {
    Send { from: usize, to: usize, size: usize, segment: Option<u16> },
    Wait(u64),
    Recv(usize),
    Up(usize, bool),
    Rate(usize, u64),
}

fn steps(faults: bool) -> impl Strategy<Value = Vec<Step>> {
    let send = (0usize..3, 0usize..3, 0usize..3000, prop::option::of(40u16..1200))
        .prop_map(|(from, to, size, segment)| Step::Send { from, to, size, segment });
    let calm = prop_oneof![
        6 => send,
        3 => (0u64..3000).prop_map(Step::Wait),
        1 => (0usize..3).prop_map(Step::Recv),
        1 => (0usize..3, 1u64..200).prop_map(|(h, gbit)| Step::Rate(h, gbit)),
    ];
    if !faults {
        return prop::collection::vec(calm.boxed(), 0..150);
    }
    let any = prop_oneof![
        12 => calm,
        1 => (0usize..3, any::<bool>()).prop_map(|(h, up)| Step::Up(h, up)),
    ];
    prop::collection::vec(any.boxed(), 0..150)
}

/// Runs the steps; what each host received, and what was sent to it, as (sender, bytes).
type Log = Vec<Vec<(usize, Vec<u8>)>>;

fn run(seed: u64, link: Link, steps: &[Step]) -> (Fabric, Log, Log) {
    let (mut net, hosts) = network(seed, [link; 3]);
    let (mut sent, mut received): (Log, Log) = (vec![Vec::new(); 3], vec![Vec::new(); 3]);
    let mut buf = vec![0; 1 << 16];
    let mut drain = |net: &mut Fabric, host: HostId, received: &mut Log| {
        while let Some((meta, len)) = net.recv(host, &mut buf) {
            let from = hosts.iter().position(|&h| ip(h) == meta.path.src).unwrap();
            received[host.index()].push((from, buf[..len].to_vec()));
        }
    };
    let mut counter = 0u32;
    for step in steps {
        match *step {
            Step::Send { from, to, size, segment } => {
                counter += 1;
                let mut bytes = vec![0; size];
                for (i, b) in bytes.iter_mut().enumerate() {
                    *b = counter
                        .wrapping_mul(31)
                        .wrapping_add(u32::try_from(i).unwrap())
                        .to_le_bytes()[0];
                }
                let path = path(hosts[from], hosts[to]);
                let t = Transmit { path, ident: 0, len: size, segment_size: segment };
                net.send(net.now(), hosts[from], &t, &bytes);
                if size == 0 && segment.is_none() {
                    sent[to].push((from, Vec::new()));
                }
                let segment = segment.map_or(size, usize::from).max(1);
                sent[to].extend(bytes.chunks(segment).map(|c| (from, c.to_vec())));
            }
            Step::Wait(ns) => net.advance(net.now() + Duration::from_nanos(ns)),
            Step::Recv(host) => drain(&mut net, hosts[host], &mut received),
            Step::Up(host, up) => net.set_up(hosts[host], up).unwrap(),
            Step::Rate(host, gbit) => {
                let link = Link { bits_per_s: gbit * 1_000_000_000, ..link };
                net.set_link(hosts[host], link).unwrap();
            }
        }
        balance(&net);
    }
    while let Some(at) = net.next_event() {
        net.advance(at);
    }
    for host in hosts {
        drain(&mut net, host, &mut received);
    }
    (net, sent, received)
}

proptest! {
    #[test]
    fn without_faults_everything_arrives_once_and_in_order(steps in steps(false), seed: u64) {
        let jitter = Duration::from_nanos(seed % 3000);
        let link = Link { queue: usize::MAX, jitter, ..FORTY };
        let (net, sent, received) = run(seed, link, &steps);
        for (to, (sent, received)) in sent.iter().zip(&received).enumerate() {
            for from in 0..3 {
                let of = |log: &[(usize, Vec<u8>)]| -> Vec<Vec<u8>> {
                    log.iter().filter(|(f, _)| *f == from).map(|(_, b)| b.clone()).collect()
                };
                prop_assert_eq!(of(sent), of(received), "{} to {}", from, to);
            }
        }
        prop_assert_eq!(net.in_flight(), 0);
        prop_assert_eq!(net.totals().dropped(), 0);
    }

    #[test]
    fn with_faults_every_packet_is_accounted_for(
        steps in steps(true),
        seed: u64,
        chances in prop::array::uniform4(0.0f64..0.4),
        queue in 0usize..20_000,
    ) {
        let [loss, reorder, duplicate, corrupt] = chances;
        let link = Link { loss, reorder, duplicate, corrupt, queue, mtu: 1500, ..FORTY };
        let (net, _, received) = run(seed, link, &steps);
        prop_assert_eq!(net.in_flight(), 0);
        let arrived: usize = received.iter().map(Vec::len).sum();
        prop_assert_eq!(net.totals().delivered, arrived as u64);
        let (again, _, same) = run(seed, link, &steps);
        prop_assert_eq!(again.trace_hash(), net.trace_hash());
        prop_assert_eq!(same, received);
    }
}
