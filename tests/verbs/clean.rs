//! What is promised where the network loses nothing.

use softroce::prelude::*;

use super::Bed;
use crate::testbed::{Pair, Side, Testbed};

#[test]
fn what_a_queue_pair_owes_leaves_before_it_goes() {
    let Some(bed) = Bed::start() else { return };
    for _ in 0..50 {
        let Pair { a, b } = Pair::new(&bed);
        b.qp.post_recv(RecvWr::new(1, ())).unwrap();
        a.post(SendWr::send(1, ()));
        // Polled, so that the ACK may have been kept for an answer; and then everything is gone.
        let mut one = [WorkCompletion::default()];
        while b.rcq.poll(&mut one).unwrap() == 0 {}
        one[0].ok().unwrap();
        b.qp.destroy().unwrap();
        a.sent().ok().unwrap();
    }
}

#[cfg(all(feature = "udp", target_os = "linux"))]
#[test]
fn a_program_that_sleeps_on_the_descriptor_is_served() {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let Some(bed) = Bed::start() else { return };
    let [a, b] = bed.hosts();
    let channel = b.create_comp_channel().unwrap();
    let rcq = b.cq_builder(256).channel(&channel).build().unwrap();
    let b = Side::with(b, |qp| qp.recv_cq(&rcq));
    let Pair { a, b } = Pair::connect(Side::new(a), b, &QpAttr::default());
    for id in 0..50 {
        b.qp.post_recv(RecvWr::new(id, ())).unwrap();
        rcq.arm(false).unwrap();
        a.post(SendWr::send(1, ()));
        // In a simulation nothing happens unless somebody lets it.
        bed.pass_time();
        let mut fds = [PollFd::new(channel.fd().unwrap(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut fds, PollTimeout::from(60_000_u16)).unwrap(), 1);
        assert_eq!(channel.wait(Duration::ZERO).unwrap().number(), rcq.number());
        assert_eq!(rcq.drain().iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [id]);
        a.sent().ok().unwrap();
    }
}

#[test]
fn counters_of_both_ends_tell_the_same_story() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::new(&bed);
    let (from, to) = (a.memory(10_000), b.memory(10_000));
    b.qp.post_recv((0..3).map(|id| RecvWr::new(id, ()))).unwrap();
    for id in 0..3 {
        a.done(SendWr::send(id, ()));
        a.done(SendWr::write(id, from.sge(..), to.remote()));
        a.done(SendWr::read(id, from.sge(..), to.remote()));
        a.done(SendWr::fetch_add(id, from.sge(..8), to.remote(), 1));
    }
    assert_eq!((a.counter("rdma_sends"), b.counter("rdma_recvs")), (3, 3));
    assert_eq!(b.counter("rx_write_requests"), 3);
    assert_eq!(b.counter("rx_read_requests"), 3);
    assert_eq!(b.counter("rx_atomic_requests"), 3);
    assert_eq!(a.counter("sent_pkts"), b.counter("rcvd_pkts"));
    assert_eq!(a.counter("sent_bytes"), b.counter("rcvd_bytes"));
    assert_eq!(b.counter("sent_pkts"), a.counter("rcvd_pkts"));
    for side in [&a, &b] {
        for (name, n) in side.ctx.counters(1).unwrap() {
            let trouble = name.starts_with("drop_")
                || name.contains("err")
                || name.contains("retr")
                || name.contains("duplicate");
            assert!(!trouble || n == 0, "{name}: {n}");
        }
    }
}
