//! What a NIC tells of its port, and what becomes of what the port does not take.

use std::io;
use std::net::IpAddr;
#[cfg(unix)]
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::Nic;
use super::core::{ACK_SLACK, Core, Work};
use super::notify::EventQueue;
use super::progress::{Habit, Mode, ProgressConfig};
use crate::engine::event::MAX_EVENTS;
use crate::engine::tests::pair::{Pair, Setup};
use crate::engine::tests::pingpong::waiting;
use crate::engine::{Acks, AsyncEvent, Counter, EngineConfig, QpHandle};
use crate::net::{Ident, PortCaps, SrcPort};
use crate::port::{Health, Port, PortAddress, PortStats, RxBatch, TxBatch};
use crate::queue::SendOp;
use crate::time::{Duration, Instant};
use crate::wire::Opcode;

/// What happens to the port of the test.
#[derive(Debug)]
struct Fortune {
    health: Health,
    mtu: u32,
    fails: bool,
    send_errors: u64,
}

impl Fortune {
    const GOOD: Self = Self { health: Health::GOOD, mtu: 1500, fails: false, send_errors: 0 };
}

/// A port that nothing comes through.
#[derive(Debug)]
struct Idle(Arc<Mutex<Fortune>>);

impl Port for Idle {
    fn caps(&self) -> PortCaps {
        PortCaps {
            src_port: SrcPort::Fixed(4791),
            ident: Ident::ZeroThenIndex,
            gso_segments_v4: 1,
            gso_segments_v6: 1,
            max_transmit: 65_507,
            mtu: self.0.lock().mtu,
            rx_buffer: None,
        }
    }

    fn recv(&mut self, rx: &mut RxBatch) -> io::Result<()> {
        rx.clear();
        if self.0.lock().fails { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(()) }
    }

    fn send(&mut self, tx: &mut TxBatch) -> io::Result<()> {
        tx.consume(tx.entries().count());
        Ok(())
    }

    #[cfg(unix)]
    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn addresses(&self) -> &[PortAddress] {
        &[]
    }

    fn join(&mut self, _group: IpAddr) -> io::Result<()> {
        Ok(())
    }

    fn leave(&mut self, _group: IpAddr) -> io::Result<()> {
        Ok(())
    }

    fn health(&self) -> Health {
        self.0.lock().health
    }

    fn stats(&self) -> PortStats {
        PortStats { send_errors: self.0.lock().send_errors, ..PortStats::default() }
    }
}

/// A NIC on such a port, and the events of two who opened it.
fn nic() -> (Arc<Nic>, Arc<Mutex<Fortune>>, [Arc<EventQueue>; 2]) {
    nic_driven(Mode::Manual)
}

fn nic_driven(mode: Mode) -> (Arc<Nic>, Arc<Mutex<Fortune>>, [Arc<EventQueue>; 2]) {
    let fortune = Arc::new(Mutex::new(Fortune::GOOD));
    let port = Box::new(Idle(Arc::clone(&fortune)));
    let nic = Nic::real(port, ProgressConfig::new(mode), |_| ()).expect("entropy");
    let openers = [(); 2].map(|()| {
        let events = Arc::default();
        nic.add_opener(&events);
        events
    });
    (nic, fortune, openers)
}

fn told(queue: &EventQueue) -> Vec<AsyncEvent> {
    std::iter::from_fn(|| queue.take()).collect()
}

#[test]
fn a_link_and_addresses_that_come_and_go_are_told_to_all() {
    let (nic, fortune, openers) = nic();
    let (gid, active, err) = (
        AsyncEvent::GidChange { port: 1 },
        AsyncEvent::PortActive { port: 1 },
        AsyncEvent::PortErr { port: 1 },
    );
    let steps: [(bool, usize, &[AsyncEvent]); 6] = [
        (true, 0, &[]),
        (false, 0, &[err]),
        (true, 0, &[active]),
        (true, 1, &[gid]),
        (false, 2, &[gid, err]),
        (true, 0, &[gid, active]),
    ];
    for (up, missing, want) in steps {
        fortune.lock().health = Health { up, missing };
        for _ in 0..2 {
            nic.poll().unwrap();
        }
        for opener in &openers {
            assert_eq!(told(opener), want, "{up} {missing}");
        }
        assert_eq!(nic.is_up(), up);
    }
}

#[test]
fn with_the_link_comes_its_mtu() {
    let (nic, fortune, _) = nic();
    fortune.lock().health.up = false;
    fortune.lock().mtu = 9000;
    nic.poll().unwrap();
    assert_eq!(nic.control(|engine, _| engine.caps().mtu), 9000);
}

#[test]
fn an_mtu_that_changes_alone_is_followed() {
    let (nic, fortune, openers) = nic();
    for mtu in [9000, 1500, 4200] {
        fortune.lock().mtu = mtu;
        nic.poll().unwrap();
        assert_eq!(nic.control(|engine, _| engine.caps().mtu), mtu);
    }
    assert!(openers.iter().all(|opener| opener.is_empty()), "that is no event");
}

/// Nobody makes passes, and there are no queue pairs: the NIC's thread looks after the port.
#[cfg(all(feature = "udp", target_os = "linux"))]
#[test]
fn a_device_without_queue_pairs_follows_its_port() {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    let (nic, fortune, openers) = nic_driven(Mode::Hybrid);
    let open = super::OpenNic::new(Arc::clone(&nic));
    nic.follow_port().unwrap();
    for (up, event) in
        [(false, AsyncEvent::PortErr { port: 1 }), (true, AsyncEvent::PortActive { port: 1 })]
    {
        fortune.lock().health.up = up;
        let mut fds = [PollFd::new(openers[0].signal.fd().unwrap(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut fds, PollTimeout::from(20_000_u16)), Ok(1), "nobody has looked");
        assert_eq!(openers[0].take(), Some(event));
    }
    drop(open);
}

#[test]
fn events_that_nobody_fetches_are_kept_up_to_a_bound_and_then_counted() {
    let (nic, fortune, openers) = nic();
    let more = 3;
    for n in 0..MAX_EVENTS + more {
        fortune.lock().health.up = n % 2 == 1;
        nic.poll().unwrap();
    }
    let lost = |nic: &Nic| nic.counters().0.get(Counter::EventsLost);
    assert_eq!(lost(&nic), 2 * more as u64, "for each opener");
    // The oldest are kept.
    let kept = told(&openers[0]);
    assert_eq!(kept.len(), MAX_EVENTS);
    assert_eq!(kept[0], AsyncEvent::PortErr { port: 1 });
    let up = fortune.lock().health.up;
    fortune.lock().health.up = !up;
    nic.poll().unwrap();
    assert_eq!((told(&openers[0]).len(), lost(&nic)), (1, 2 * more as u64 + 1));
}

#[test]
fn what_the_port_refuses_is_counted_as_send_err() {
    let (nic, fortune, _) = nic();
    for n in [3, 5] {
        fortune.lock().send_errors = n;
        assert_eq!(nic.counters().0.get(Counter::SendErr), n);
    }
}

#[test]
fn a_port_that_fails_is_told_once() {
    let (nic, fortune, openers) = nic();
    fortune.lock().fails = true;
    for _ in 0..3 {
        nic.poll().unwrap();
    }
    for opener in &openers {
        assert_eq!(told(opener), [AsyncEvent::DeviceFatal]);
    }
    assert!(!nic.is_up());
}

/// A port that takes nothing for a while, and remembers the opcodes of what it took.
#[derive(Debug, Default)]
struct Full {
    is_full: Arc<AtomicBool>,
    took: Arc<Mutex<Vec<u8>>>,
}

impl Port for Full {
    fn caps(&self) -> PortCaps {
        Idle(Arc::new(Mutex::new(Fortune::GOOD))).caps()
    }

    fn recv(&mut self, rx: &mut RxBatch) -> io::Result<()> {
        rx.clear();
        Ok(())
    }

    fn send(&mut self, tx: &mut TxBatch) -> io::Result<()> {
        if !self.is_full.load(Ordering::Relaxed) {
            self.took.lock().extend(tx.entries().map(|(_, bytes)| bytes[0]));
            tx.consume(tx.entries().count());
        }
        Ok(())
    }

    #[cfg(unix)]
    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn addresses(&self) -> &[PortAddress] {
        &[]
    }

    fn join(&mut self, _group: IpAddr) -> io::Result<()> {
        Ok(())
    }

    fn leave(&mut self, _group: IpAddr) -> io::Result<()> {
        Ok(())
    }

    fn health(&self) -> Health {
        Health::GOOD
    }

    fn stats(&self) -> PortStats {
        PortStats::default()
    }
}

/// A device with a message received, and its ACK still to be made; another queue pair has much to send.
fn owing(config: fn(&mut EngineConfig)) -> (Core, Full, [QpHandle; 2], Instant) {
    let setup = Setup { gso: 1, config, ..Setup::default() };
    let mut p = Pair::new(&setup);
    p.add_qp(&setup);
    p.acks[1] = Acks::Hold;
    for k in 0..2 {
        p.post_recv_on(1, k, 7, &[p.sge(1, 0, 64)]);
        p.post_on(0, k, p.wqe(0, SendOp::Send, 1, 0), &[p.sge(0, 0, 64)]);
    }
    p.deliver_without_sending();
    let (now, [_, side]) = (p.now, p.sides);
    let port = Full::default();
    port.is_full.store(true, Ordering::Relaxed);
    let (is_full, took) = (Arc::clone(&port.is_full), Arc::clone(&port.took));
    let qps = [side.qps[0].0, side.qps[1].0];
    let core = Core::new(side.engine, Box::new(port), RxBatch::new(1, 1 << 16));
    (core, Full { is_full, took }, qps, now)
}

#[test]
fn an_ack_leaves_though_the_network_was_full_when_its_queue_pair_went() {
    // Made when it goes, or staged before.
    for staged in [false, true] {
        let (mut core, port, qps, now) = owing(|_| {});
        if staged {
            core.pass(now, Work::Serve, None);
        }
        for qp in qps {
            core.farewell(now, qp);
            core.engine.destroy_qp(qp).unwrap();
        }
        assert_eq!(*port.took.lock(), []);
        port.is_full.store(false, Ordering::Relaxed);
        core.pass(now, Work::Send, None);
        assert_eq!(*port.took.lock(), [Opcode::RC_ACK.as_u8(); 2], "staged before: {staged}");
    }
}

#[test]
fn an_ack_waits_for_the_next_message_only_while_the_program_will_look_again() {
    let (looks, sleeps) = (Some(Habit::Looks), Some(Habit::Sleeps));
    for (work, habit, leaves) in [
        (Work::Poll, looks, false),
        (Work::Send, looks, false),
        (Work::Poll, sleeps, true),
        (Work::Send, sleeps, false),
        (Work::Poll, None, true),
        (Work::Send, None, true),
        (Work::Serve, looks, true),
    ] {
        let ((engine, now, due), port) = (waiting(), Full::default());
        let took = Arc::clone(&port.took);
        let mut core = Core::new(engine, Box::new(port), RxBatch::new(1, 1 << 16));
        let passed = core.pass(now, work, habit);
        let expected: &[u8] = if leaves { &[Opcode::RC_ACK.as_u8()] } else { &[] };
        assert_eq!(*took.lock(), expected, "{work:?}, {habit:?}");
        // Nobody is woken for it at once.
        let next = if leaves { Instant::FAR_FUTURE } else { due + ACK_SLACK };
        assert_eq!(passed.next, next, "{work:?}, {habit:?}");
    }
}

#[test]
fn nobody_is_woken_for_an_ack_that_waits_at_a_port_that_failed() {
    let (engine, now, _) = waiting();
    let mut core = Core::new(engine, Box::new(Full::default()), RxBatch::new(1, 1 << 16));
    core.halt();
    let passed = core.pass(now, Work::Serve, None);
    assert_eq!((passed.progress, passed.next), (false, Instant::FAR_FUTURE));
}

#[test]
fn time_passes_while_the_network_takes_nothing() {
    let (mut core, _port, _qps, now) = owing(|c| c.ack_delay = Duration::ZERO);
    core.pass(now, Work::Serve, None);
    assert!(core.next_exact() > now, "called again and again at one instant");
}
