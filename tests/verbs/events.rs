//! Asynchronous events: what a program learns that no completion tells.

use softroce::prelude::*;

use super::Bed;
use crate::testbed::{LONG, Pair, Side, Testbed};

/// Nothing else has happened on this device.
#[track_caller]
fn nothing_more(side: &Side) {
    assert_eq!(side.ctx.wait_event(Duration::ZERO), Err(Error::Timeout));
}

#[test]
fn a_peer_that_violates_rights() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::new(&bed);
    let to = b.memory(8);
    let wrong = RemoteSlice { rkey: to.rkey() ^ 0x100, ..to.remote().at(0) };
    assert_eq!(a.outcome(SendWr::write(1, inline(b"x"), wrong)), WcStatus::RemAccess);
    assert_eq!(b.event(), Event::QpAccessErr { qpn: b.qp.number() });
    assert_eq!((a.state(), b.state()), (QpState::Err, QpState::Err));
    nothing_more(&b);
    nothing_more(&a);
}

#[test]
fn a_peer_that_asks_for_what_it_may_not() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::with(&bed, |qp| qp.access(Access::LOCAL));
    let to = b.memory(8);
    assert_eq!(a.outcome(SendWr::write(1, inline(b"x"), to.remote())), WcStatus::RemInvReq);
    assert_eq!(b.event(), Event::QpReqErr { qpn: b.qp.number() });
    assert_eq!(b.state(), QpState::Err);
    nothing_more(&b);
}

#[test]
fn the_first_message_of_a_connection() {
    let Some(bed) = Bed::start() else { return };
    let [a, b] = bed.hosts().map(Side::new);
    a.qp.connect(&b.qp.endpoint()).unwrap();
    // The other end stays one step behind, as when the last message of a handshake is lost.
    let theirs = a.qp.endpoint();
    b.qp.modify(
        &QpAttr::to(QpState::Rtr)
            .ah(theirs.ah())
            .path_mtu(theirs.mtu)
            .dest_qpn(theirs.qpn)
            .rq_psn(theirs.psn)
            .max_dest_rd_atomic(1)
            .min_rnr_timer(12),
    )
    .unwrap();
    b.qp.post_recv((0..2).map(|id| RecvWr::new(id, ()))).unwrap();
    a.done(SendWr::send(1, ()));
    assert_eq!(b.event(), Event::CommEst { qpn: b.qp.number() });
    a.done(SendWr::send(2, ()));
    b.received().ok().unwrap();
    b.received().ok().unwrap();
    nothing_more(&b);
}

#[test]
fn a_send_queue_that_has_drained() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::new(&bed);
    let to = b.memory(100_000);
    let from = a.memory(100_000);
    a.post(SendWr::write(1, from.sge(..), to.remote()));
    a.qp.modify(&QpAttr::to(QpState::Sqd).sqd_notify(true)).unwrap();
    assert_eq!(a.event(), Event::SqDrained { qpn: a.qp.number() });
    assert_eq!(a.sent().ok().unwrap().wr_id, 1, "what was begun is done");

    // What is posted now waits, while the other direction goes on.
    a.post(SendWr::write(2, inline(b"later"), to.remote()));
    a.qp.post_recv(RecvWr::new(3, ())).unwrap();
    b.done(SendWr::send(4, ()));
    a.received().ok().unwrap();
    assert_eq!(a.cq.poll(&mut [WorkCompletion::default()]), Ok(0));
    assert_eq!(to.to_vec(0..5), [0; 5]);
    nothing_more(&a);

    a.qp.modify(&QpAttr::to(QpState::Rts)).unwrap();
    assert_eq!(a.sent().ok().unwrap().wr_id, 2);
    assert_eq!(to.to_vec(0..5), b"later");

    // Nothing under way: drained at once. Not asked for: no event.
    a.qp.modify(&QpAttr::to(QpState::Sqd).sqd_notify(true)).unwrap();
    assert_eq!(a.event(), Event::SqDrained { qpn: a.qp.number() });
    a.qp.modify(&QpAttr::to(QpState::Rts)).unwrap();
    a.qp.modify(&QpAttr::to(QpState::Sqd).sqd_notify(false)).unwrap();
    nothing_more(&a);
}

#[cfg(all(feature = "udp", target_os = "linux"))]
#[test]
fn the_descriptor_is_readable_while_there_are_events() {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let Some(bed) = Bed::start() else { return };
    let Pair { a, .. } = Pair::new(&bed);
    let readable = || {
        let mut fds = [PollFd::new(a.ctx.events_fd().unwrap(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).unwrap() == 1
    };
    assert!(!readable());
    for _ in 0..2 {
        a.qp.modify(&QpAttr::to(QpState::Sqd).sqd_notify(true)).unwrap();
        a.qp.modify(&QpAttr::to(QpState::Rts)).unwrap();
    }
    assert!(readable());
    a.event();
    assert!(readable());
    a.event();
    assert!(!readable());
}

#[test]
fn waiting_for_an_event_ends() {
    let Some(bed) = Bed::start() else { return };
    let [a, _] = bed.hosts();
    assert_eq!(a.wait_event(Duration::ZERO), Err(Error::Timeout));
    assert_eq!(a.wait_event(Duration::from_micros(100)), Err(Error::Timeout));
    let _ = LONG;
}
