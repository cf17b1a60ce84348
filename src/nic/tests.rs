//! What a NIC tells of its port.

use std::io;
use std::net::IpAddr;
#[cfg(unix)]
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use parking_lot::Mutex;

use super::Nic;
use super::notify::EventQueue;
use super::progress::{Mode, ProgressConfig};
use crate::engine::AsyncEvent;
use crate::net::{Ident, PortCaps, SrcPort};
use crate::port::{Health, Port, PortAddress, PortStats, RxBatch, TxBatch};

/// What happens to the port of the test.
#[derive(Debug)]
struct Fortune {
    health: Health,
    mtu: u32,
    fails: bool,
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
        PortStats::default()
    }
}

/// A NIC on such a port, and the events of two who opened it.
fn nic() -> (Arc<Nic>, Arc<Mutex<Fortune>>, [Arc<EventQueue>; 2]) {
    let fortune = Fortune { health: Health::GOOD, mtu: 1500, fails: false };
    let fortune = Arc::new(Mutex::new(fortune));
    let port = Box::new(Idle(Arc::clone(&fortune)));
    let nic = Nic::real(port, ProgressConfig::new(Mode::Manual), |_| ()).expect("entropy");
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
    *fortune.lock() = Fortune { health: Health { up: false, missing: 0 }, mtu: 9000, fails: false };
    nic.poll().unwrap();
    assert_eq!(nic.control(|engine, _| engine.caps().mtu), 9000);
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
