//! Cables that are plugged in, pulled, and misused.

use std::io::{Read, Write};
use std::net::IpAddr;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::*;
use crate::net;
use crate::port::ether::Prefix;
use crate::port::{Port, RxBatch, TxBatch};

/// A name that no other test has.
fn fresh() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("softroce-port-{}-{n}.sock", std::process::id()))
}

/// A clock that is set by hand.
#[derive(Clone, Default)]
struct Clock(Arc<AtomicU64>);

impl Clock {
    fn advance(&self, by: Duration) {
        self.0.fetch_add(u64::try_from(by.as_nanos()).unwrap(), Ordering::Relaxed);
    }
}

fn open(cable: Cable, ip: [u8; 4], clock: &Clock) -> Result<FramesPort, FramesError> {
    let clock = clock.clone();
    let station = StationConfig::new(vec![Prefix { ip: IpAddr::from(ip), len: 24 }]);
    FramesPort::open(cable, station, move || Instant::from_nanos(clock.0.load(Ordering::Relaxed)))
}

const A: [u8; 4] = [10, 99, 0, 1];
const B: [u8; 4] = [10, 99, 0, 2];

fn datagram(ours: &Path, peer: &Path) -> Cable {
    Cable::Dgram { ours: ours.to_owned(), peer: peer.to_owned() }
}

fn stage(tx: &mut TxBatch, from: [u8; 4], to: [u8; 4], bytes: &[u8], segment_size: Option<u16>) {
    let path = net::Path {
        src: from.into(),
        dst: to.into(),
        src_port: net::ROCE_PORT,
        traffic_class: 2,
        hop_limit: 64,
        flow_label: 0,
        scope_id: 0,
    };
    tx.spare()[..bytes.len()].copy_from_slice(bytes);
    tx.commit(net::Transmit { path, ident: 40, len: bytes.len(), segment_size }, 0);
}

fn send(port: &mut FramesPort, from: [u8; 4], to: [u8; 4], bytes: &[u8]) {
    let mut tx = TxBatch::default();
    stage(&mut tx, from, to, bytes, None);
    port.send(&mut tx).unwrap();
    assert!(tx.is_empty());
}

fn receive(port: &mut FramesPort) -> Vec<(Option<u16>, Vec<u8>)> {
    let mut rx = RxBatch::new(8, RxBatch::WHOLE);
    let mut all = Vec::new();
    loop {
        port.recv(&mut rx).unwrap();
        if rx.is_empty() {
            return all;
        }
        all.extend(rx.iter().map(|(meta, bytes)| (meta.ident, bytes.to_vec())));
    }
}

fn is_readable(port: &FramesPort) -> bool {
    let fd = port.readiness().unwrap();
    poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], PollTimeout::ZERO).unwrap() == 1
}

/// A datagram each way, with all that the stations have to find out first.
#[track_caller]
fn talk(a: &mut FramesPort, b: &mut FramesPort) {
    send(a, A, B, b"to b");
    // The question, its answer, and what waited for it.
    assert_eq!(receive(b), []);
    assert_eq!(receive(a), []);
    assert!(is_readable(b));
    assert_eq!(receive(b), [(Some(40), b"to b".to_vec())]);
    assert!(!is_readable(b));
    send(b, B, A, b"to a");
    assert_eq!(receive(a), [(Some(40), b"to a".to_vec())]);
}

#[test]
fn datagrams_cross_every_kind_of_cable() {
    let clock = Clock::default();
    let (x, y) = (fresh(), fresh());
    for [first, second] in [
        [datagram(&x, &y), datagram(&y, &x)],
        [Cable::Listen(x.clone()), Cable::Connect(x.clone())],
        [Cable::Connect(x.clone()), Cable::Listen(x.clone())],
    ] {
        let mut a = open(first, A, &clock).unwrap();
        assert!(!a.health().up);
        let mut b = open(second, B, &clock).unwrap();
        clock.advance(RETRY);
        for _ in 0..2 {
            assert_eq!(receive(&mut a), []);
            assert_eq!(receive(&mut b), []);
        }
        assert!(a.health().up && b.health().up);
        talk(&mut a, &mut b);

        // Segments are frames, and each has its own identification.
        let mut tx = TxBatch::default();
        stage(&mut tx, A, B, &[7; 250], Some(100));
        a.send(&mut tx).unwrap();
        let got = receive(&mut b);
        let got: Vec<_> = got.iter().map(|(ident, bytes)| (*ident, bytes.len())).collect();
        assert_eq!(got, [(Some(40), 100), (Some(41), 100), (Some(42), 50)]);
        assert_eq!(a.stats().sent_datagrams, 4);
    }
    assert!(!x.exists() && !y.exists(), "nothing is left behind");
}

#[test]
fn nobody_there_is_loss_and_no_error() {
    let clock = Clock::default();
    let (x, y) = (fresh(), fresh());
    for cable in [datagram(&x, &y), Cable::Connect(y.clone()), Cable::Listen(x.clone())] {
        let mut a = open(cable, A, &clock).unwrap();
        send(&mut a, A, [239, 1, 1, 1], b"lost");
        assert!(!a.health().up);
        assert_eq!((a.stats().send_errors, a.stats().sent_datagrams), (1, 0));
        assert!(a.last_error().unwrap().to_string().contains("4 bytes to 239.1.1.1 not sent"));
    }
}

#[test]
fn a_peer_may_be_started_anew() {
    let clock = Clock::default();
    let (x, y) = (fresh(), fresh());
    for [first, second] in [
        [datagram(&x, &y), datagram(&y, &x)],
        [Cable::Listen(x.clone()), Cable::Connect(x.clone())],
        [Cable::Connect(y.clone()), Cable::Listen(y.clone())],
    ] {
        let mut a = open(first, A, &clock).unwrap();
        for _ in 0..3 {
            let mut b = open(second.clone(), B, &clock).unwrap();
            clock.advance(RETRY);
            receive(&mut a);
            receive(&mut b);
            // It speaks first: who listens need not have noticed that the old one is gone.
            send(&mut b, B, A, b"hello");
            for port in [&mut a, &mut b] {
                receive(port);
            }
            assert_eq!(receive(&mut a), [(Some(40), b"hello".to_vec())]);
            send(&mut a, A, B, b"and you");
            assert_eq!(receive(&mut b), [(Some(40), b"and you".to_vec())]);
        }
    }
}

#[test]
fn a_full_cable_keeps_what_it_does_not_take() {
    let clock = Clock::default();
    let (x, y) = (fresh(), fresh());
    for [first, second] in [
        [datagram(&x, &y), datagram(&y, &x)],
        [Cable::Listen(x.clone()), Cable::Connect(x.clone())],
    ] {
        let mut a = open(first, A, &clock).unwrap();
        let mut b = open(second, B, &clock).unwrap();
        clock.advance(RETRY);
        receive(&mut a);
        talk(&mut a, &mut b);
        let mut sent = 0u32;
        let mut tx = TxBatch::default();
        while a.blocked_on().is_none() {
            let bytes = [&sent.to_be_bytes()[..], &[1; 4000]].concat();
            stage(&mut tx, A, B, &bytes, None);
            sent += 1;
            a.send(&mut tx).unwrap();
            assert!(sent < 1_000_000, "never full");
        }
        assert!(!tx.is_empty() && a.stats().send_busy > 0);
        let mut got = Vec::new();
        while got.len() < sent as usize {
            let before = got.len();
            got.extend(receive(&mut b));
            a.send(&mut tx).unwrap();
            // What the link has taken over leaves in a pass.
            receive(&mut a);
            assert!(got.len() > before, "{before} of {sent}");
        }
        let order = got.iter().map(|(_, b)| u32::from_be_bytes(b[..4].try_into().unwrap()));
        assert!(order.eq(0..sent), "each once, in order");
    }
}

#[test]
fn a_file_has_one_owner() {
    let clock = Clock::default();
    let (x, y) = (fresh(), fresh());
    for cable in [datagram(&x, &y), Cable::Listen(x.clone())] {
        let first = open(cable.clone(), A, &clock).unwrap();
        let e = open(cable.clone(), A, &clock).map(drop).unwrap_err();
        assert_eq!(e.errno(), libc::EADDRINUSE);
        assert!(e.to_string().contains(&x.display().to_string()), "{e}");
        drop(first);
        assert!(!x.exists());
        // What a program that was killed leaves behind.
        drop(UnixDatagram::bind(&x).unwrap());
        drop(open(datagram(&x, &y), A, &clock).unwrap());
        drop(UnixListener::bind(&x).unwrap());
        drop(open(Cable::Listen(x.clone()), A, &clock).unwrap());
        fs::write(&x, "a text").unwrap();
        let e = open(cable, A, &clock).map(drop).unwrap_err();
        assert_eq!(e.errno(), libc::EADDRINUSE);
        assert!(e.to_string().contains("no socket"), "{e}");
        fs::remove_file(&x).unwrap();
    }
    let long = PathBuf::from(format!("/tmp/{}", "x".repeat(120)));
    for cable in [datagram(&long, &y), datagram(&x, &long), Cable::Connect(long.clone())] {
        let e = open(cable, A, &clock).map(drop).unwrap_err();
        assert_eq!(e.errno(), libc::EINVAL);
        assert!(e.to_string().contains("1 to 107 bytes"), "{e}");
    }
    let nowhere = PathBuf::from("/no/such/folder/sock");
    let e = open(Cable::Listen(nowhere), A, &clock).map(drop).unwrap_err();
    assert_eq!(e.errno(), libc::ENOENT);
}

/// A question of 10.99.0.2 for 10.99.0.1.
fn question() -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 9, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 9, 10, 99, 0, 2]);
    frame.extend([0, 0, 0, 0, 0, 0, 10, 99, 0, 1]);
    frame.resize(60, 0);
    frame
}

/// The answer to it, from the station's side.
fn answer_at(peer: &mut UnixStream) -> Vec<u8> {
    let mut bytes = vec![0; 64];
    peer.read_exact(&mut bytes).unwrap();
    assert_eq!(bytes[..4], 60u32.to_be_bytes());
    bytes.split_off(4)
}

#[test]
fn a_stream_in_pieces_is_the_same_stream() {
    let clock = Clock::default();
    let x = fresh();
    let mut a = open(Cable::Listen(x.clone()), A, &clock).unwrap();
    let mut peer = UnixStream::connect(&x).unwrap();
    let bytes = [&60u32.to_be_bytes()[..], &question()].concat();
    for byte in &bytes {
        peer.write_all(&[*byte]).unwrap();
        assert_eq!(receive(&mut a), []);
    }
    assert_eq!(answer_at(&mut peer)[20..22], [0, 2]);
    // Many at once, more than there are buffers.
    peer.write_all(&bytes.repeat(50)).unwrap();
    let mut rx = RxBatch::new(8, RxBatch::WHOLE);
    let mut passes = 0;
    while is_readable(&a) {
        a.recv(&mut rx).unwrap();
        passes += 1;
    }
    assert!(passes >= 50 / 8);
    for _ in 0..50 {
        assert_eq!(answer_at(&mut peer)[20..22], [0, 2]);
    }
}

#[test]
fn lengths_that_cannot_be_end_a_connection() {
    let clock = Clock::default();
    let x = fresh();
    let mut a = open(Cable::Listen(x.clone()), A, &clock).unwrap();
    for (n, bad) in [0u32, 69_633, u32::MAX].into_iter().enumerate() {
        let mut peer = UnixStream::connect(&x).unwrap();
        let good = [&60u32.to_be_bytes()[..], &question()].concat();
        peer.write_all(&[&good[..], &bad.to_be_bytes(), &good].concat()).unwrap();
        receive(&mut a);
        assert_eq!(a.stats().bad_framing, n as u64 + 1);
        assert!(!a.health().up);
        assert!(peer.write_all(&good).is_err(), "closed");
        // The next one is welcome.
        let mut next = UnixStream::connect(&x).unwrap();
        assert!(is_readable(&a));
        next.write_all(&good).unwrap();
        receive(&mut a);
        assert!(a.health().up);
        assert_eq!(answer_at(&mut next)[20..22], [0, 2]);
        drop(next);
        receive(&mut a);
        assert!(!a.health().up);
    }
    // The largest frame that there may be is no reason to close; it has nothing to tell.
    let mut peer = UnixStream::connect(&x).unwrap();
    receive(&mut a);
    let largest = u32::try_from(stream::LARGEST).unwrap();
    let bytes = [&largest.to_be_bytes()[..], &vec![0; stream::LARGEST]].concat();
    let writer = std::thread::scope(|scope| {
        let writer = scope.spawn(|| peer.write_all(&bytes).is_ok());
        while a.stats().truncated == 0 {
            receive(&mut a);
        }
        writer.join().unwrap()
    });
    assert!(writer && a.health().up);
}

#[test]
fn sleepers_wake_when_a_neighbour_is_to_be_asked_again() {
    let clock = Clock::default();
    let (x, y) = (fresh(), fresh());
    let peer = UnixDatagram::bind(&y).unwrap();
    peer.set_nonblocking(true).unwrap();
    let mut a = open(datagram(&x, &y), A, &clock).unwrap();
    send(&mut a, A, B, b"wait");
    let mut buf = [0; 2048];
    let mut questions = 0;
    loop {
        while peer.recv(&mut buf).is_ok() {
            questions += 1;
        }
        if a.stats().unresolved == 1 {
            break;
        }
        let fd = a.readiness().unwrap();
        // The kernel's clock goes on by itself; ours is set to what it shows.
        let woken = poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], 10_000u16).unwrap();
        assert_eq!(woken, 1, "nothing in ten seconds");
        clock.advance(Duration::from_secs(1));
        receive(&mut a);
    }
    assert_eq!(questions, 3);
    fs::remove_file(&y).unwrap();
}

#[test]
fn what_is_sent_to_oneself_wakes_too() {
    let clock = Clock::default();
    let (x, y) = (fresh(), fresh());
    let mut a = open(datagram(&x, &y), A, &clock).unwrap();
    assert!(!is_readable(&a));
    send(&mut a, A, A, b"me");
    let fd = a.readiness().unwrap();
    assert_eq!(poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], 10_000u16).unwrap(), 1);
    assert_eq!(receive(&mut a), [(Some(40), b"me".to_vec())]);
    let group = IpAddr::from([239, 1, 1, 1]);
    a.join(group).unwrap();
    a.join(group).unwrap();
    send(&mut a, A, [239, 1, 1, 1], b"us");
    assert_eq!(receive(&mut a), [(Some(40), b"us".to_vec())]);
    a.leave(group).unwrap();
    send(&mut a, A, [239, 1, 1, 1], b"us");
    assert_eq!(receive(&mut a), []);
    assert!(a.join("ff0e::1".parse().unwrap()).is_err(), "no address of this family");
}
