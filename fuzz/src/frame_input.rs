//! Any frames, one after the other, at a station on an Ethernet.
//!
//! The first byte chooses what the station is. Then come frames, each behind two bytes: how much time passes before
//! it, and its length. Whatever they say, a datagram lies within its frame, every frame is counted for at most one
//! reason, and what the station says is bounded and made of whole frames.

use std::net::IpAddr;

use softroce::internals::port::ether::{Prefix, Route, Station, StationConfig};
use softroce::net::Path;
use softroce::time::{Duration, Instant};

/// How far the bytes got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// Datagrams that were found.
    pub datagrams: u64,
    /// Frames that the station sent.
    pub said: u64,
    /// Frames that were dropped, for any reason.
    pub dropped: u64,
    /// Whether a neighbour was learnt.
    pub learnt: bool,
}

const PEERS: [&str; 2] = ["10.99.0.2", "fd99::2"];
const OURS: [&str; 2] = ["10.99.0.1", "fd99::1"];

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn station(choice: u8) -> Station {
    let addresses = vec![Prefix { ip: ip(OURS[0]), len: 24 }, Prefix { ip: ip(OURS[1]), len: 64 }];
    let mut station = Station::new(StationConfig {
        vlan: (choice & 1 != 0).then_some(5),
        priority: (choice & 2 != 0).then_some(3),
        ..StationConfig::new(addresses)
    });
    if choice & 4 != 0 {
        station.join(ip("239.1.2.3"));
        station.join(ip("ff0e::1:2"));
    }
    station
}

/// Where the station would send a datagram for its peer of either family.
fn routes(station: &mut Station, now: Instant) -> [Route; 2] {
    [0, 1].map(|i| {
        let path = Path {
            src: ip(OURS[i]),
            dst: ip(PEERS[i]),
            src_port: 4791,
            traffic_class: 2,
            hop_limit: 64,
            flow_label: 0,
            scope_id: 0,
        };
        let route = station.route(now, &path, 16);
        if let Route::Wait(hop) = route {
            station.hold(hop, &path, 7, &[7; 16]);
        }
        route
    })
}

/// Hands all frames in `data` to a station.
pub fn run(data: &[u8]) -> Reached {
    let mut reached = Reached::default();
    let Some((&choice, mut rest)) = data.split_first() else { return reached };
    let mut station = station(choice);
    let mut now = Instant::ZERO;
    if choice & 8 != 0 {
        routes(&mut station, now);
    }
    let mut frames = 0;
    while let [wait, len, behind @ ..] = rest {
        let (frame, next) = behind.split_at(usize::from(*len).min(behind.len()));
        rest = next;
        now = now + Duration::from_millis(u64::from(*wait) * 20);
        frames += 1;
        station.handle_timeout(now);
        if let Some((meta, range)) = station.receive(now, frame) {
            assert!(range.end <= frame.len());
            assert_eq!(meta.path.src.is_ipv4(), meta.path.dst.is_ipv4());
            reached.datagrams += 1;
        }
        station.drain(|frame| {
            assert!(frame.len() >= 60);
            reached.said += 1;
        });
    }
    reached.learnt = routes(&mut station, now).iter().any(|r| matches!(r, Route::Link(_)));
    let s = station.stats();
    reached.dropped = s.other_station
        + s.wrong_vlan
        + s.wrong_address
        + s.fragments
        + s.bad_checksum
        + s.malformed
        + s.other_traffic;
    assert_eq!(s.received_datagrams, reached.datagrams);
    assert!(reached.dropped + reached.datagrams <= frames);
    // An answer for each, and what it set free; three questions for each neighbour; what waited from the beginning.
    assert!(reached.said <= 2 * frames + 8, "{reached:?}");
    reached
}
