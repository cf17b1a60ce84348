//! Why verbs refuse: each reason can be met, has its errno, and says in a sentence what is wrong and with
//! which values.

use softroce::prelude::*;
use softroce::verbs::{Cause, MemError};

use super::Bed;
use crate::testbed::{Pair, Side, Testbed};

const ENOMEM: i32 = 12;
const EBUSY: i32 = 16;
const EINVAL: i32 = 22;
const EOPNOTSUPP: i32 = 95;

/// The error names the verb, the errno, and all of `words`.
#[track_caller]
fn says<T: std::fmt::Debug>(
    result: Result<T>,
    verb: &str,
    errno: i32,
    is: impl FnOnce(&Cause) -> bool,
    words: &[&str],
) {
    let e = result.unwrap_err();
    assert_eq!(e.errno(), Some(errno), "{e}");
    assert!(is(e.cause().unwrap()), "{e:?}");
    let text = e.to_string();
    assert!(text.starts_with(verb), "{text}");
    assert!(text.contains(&format!("(errno {errno})")), "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text:?}");
    }
}

#[test]
fn of_changing_a_queue_pair() {
    let Some(bed) = Bed::start() else { return };
    let [a, b] = bed.hosts().map(Side::new);
    let verb = "ibv_modify_qp: ";
    let modify = |attr: QpAttr| a.qp.modify(&attr);
    let rtr = QpAttr::to(QpState::Rtr);
    let is = |c: &Cause| matches!(c, Cause::MissingAttr { .. });
    says(modify(rtr.clone()), verb, EINVAL, is, &["Init to Rtr needs", "ah", "QpAttr"]);
    let is = |c: &Cause| matches!(c, Cause::NoTransition { .. });
    says(modify(QpAttr::to(QpState::Sqd)), verb, EINVAL, is, &["Rc", "from Init to Sqd"]);
    let is = |c: &Cause| matches!(c, Cause::UnexpectedAttr { .. });
    let init = QpAttr::to(QpState::Init);
    says(modify(init.clone().timeout(1)), verb, EINVAL, is, &["Init to Init", "timeout"]);
    let is = |c: &Cause| matches!(c, Cause::AttrRange { .. });
    says(modify(init.clone().pkey_index(3_u16)), verb, EINVAL, is, &["pkey_index is 3", "0"]);
    let is = |c: &Cause| matches!(c, Cause::AttrValue { .. });
    says(modify(init.port(7)), verb, EINVAL, is, &["port is 7", "wanted 1"]);
    let peer = b.qp.endpoint();
    let strange =
        QpEndpoint { gid: "[2001:db8::1]/1/1".parse::<QpEndpoint>().unwrap().gid, ..peer };
    let is = |c: &Cause| *c == Cause::AddressFamily;
    says(a.qp.connect(&strange), verb, EINVAL, is, &["family", "sgid_index"]);
    let is = |c: &Cause| matches!(c, Cause::Unsupported { .. });
    let alt = QpAttr::default().alt(Box::default());
    says(a.qp.connect_with(&peer, alt), verb, EOPNOTSUPP, is, &["alternate path"]);
    let is = |c: &Cause| matches!(c, Cause::UnexpectedAttr { .. });
    for (over, attr) in [
        (QpAttr::to(QpState::Rts), "state"),
        (QpAttr::default().cur_state(QpState::Init), "cur_state"),
        (QpAttr::default().sqd_notify(true), "sqd_notify"),
        (QpAttr::default().qkey(1_u32).timeout(3), "qkey"),
        (QpAttr::default().cap(QpCap::default()), "cap"),
    ] {
        says(
            a.qp.connect_with(&peer, over),
            verb,
            EINVAL,
            is,
            &["Init to Rts", attr, "leave it out"],
        );
        assert_eq!(a.state(), QpState::Init, "nothing has changed");
    }
    let is = |c: &Cause| matches!(c, Cause::Invalid { .. });
    says(a.qp.activate(1), verb, EINVAL, is, &["connect"]);
    let many = "[::ffff:239.1.2.3]/1/1".parse::<QpEndpoint>().unwrap();
    let many = QpEndpoint { gid: many.gid, ..peer };
    if a.qp.endpoint().gid.ip().is_some_and(|ip| ip.is_ipv4()) {
        says(a.qp.connect(&many), verb, EINVAL, is, &["ah.dgid", "239.1.2.3", "datagrams"]);
    }
    let is = |c: &Cause| matches!(c, Cause::AttrRange { .. });
    let ah = AhAttr { sgid_index: 77, ..peer.ah() };
    let there = QpAttr::default().ah(ah);
    says(
        a.qp.connect_with(&peer, there),
        verb,
        EINVAL,
        is,
        &["ah.sgid_index is 77", "Context::gids"],
    );
    // An attribute of the first step, although that is behind it.
    let is = |c: &Cause| matches!(c, Cause::AttrRange { .. });
    let there = QpAttr::default().pkey_index(9_u16);
    says(a.qp.connect_with(&peer, there), verb, EINVAL, is, &["pkey_index is 9", "pkeys="]);
    assert_eq!(a.state(), QpState::Init);

    a.qp.connect_with(&peer, QpAttr::default().timeout(0)).unwrap();
    a.post(SendWr::send(1, ()));
    a.qp.modify(&QpAttr::to(QpState::Sqd)).unwrap();
    let is = |c: &Cause| matches!(c, Cause::Busy { .. });
    says(modify(QpAttr::to(QpState::Rts)), verb, EBUSY, is, &["in use", "draining"]);
}

#[test]
fn of_posting() {
    let Some(bed) = Bed::start() else { return };
    let fresh = Side::new(bed.hosts()[0]);
    let verb = "ibv_post_send: after ";
    let is = |c: &Cause| matches!(c, Cause::State { .. });
    says(fresh.qp.post_send(SendWr::send(1, ())), verb, EINVAL, is, &["Init", "RTS"]);

    let small = QpCap { send_wr: 2, recv_wr: 2, send_sge: 1, recv_sge: 1, inline: 8 };
    let Pair { a, .. } = Pair::with(&bed, |qp| qp.cap(small));
    let mr = a.pd.alloc_mr((1 << 31) + 8, Access::LOCAL).unwrap();
    let piece = mr.sge(..4);
    let nowhere = RemoteSlice { addr: 0, rkey: 0 };
    let pieces = [mr.sge(..4), mr.sge(..4)];
    let post = |wr: SendWr<'_>| a.qp.post_send(wr);
    let is = |c: &Cause| matches!(c, Cause::TooManySge { .. });
    says(post(SendWr::send(1, &pieces)), verb, EINVAL, is, &["2 pieces", "allows 1"]);
    let is = |c: &Cause| matches!(c, Cause::InlineTooLong { .. });
    says(post(SendWr::send(1, inline(&[0; 9]))), verb, EINVAL, is, &["9 inline", "allows 8"]);
    let is = |c: &Cause| matches!(c, Cause::MessageTooLong { .. });
    let huge = SendWr::write(1, mr.sge(..(1 << 31) + 1), nowhere);
    says(post(huge), verb, EINVAL, is, &["2147483649", "2147483648"]);
    let halves = [mr.sge(..1 << 31); 2];
    let b = Pair::with(&bed, |qp| qp.cap(QpCap { recv_sge: 2, ..small })).b;
    let long = b.qp.post_recv(RecvWr::new(1, &halves));
    says(long, "ibv_post_recv: after ", EINVAL, is, &["4294967296", "4294967295"]);
    let is = |c: &Cause| matches!(c, Cause::AtomicLocal { .. });
    says(post(SendWr::fetch_add(1, piece, nowhere, 1)), verb, EINVAL, is, &["8 bytes", "not 4"]);
    let is = |c: &Cause| matches!(c, Cause::Invalid { .. });
    let nothing = SendWr::flush(1, nowhere, 8, Placement::empty());
    says(post(nothing), verb, EINVAL, is, &["FLUSH", "visibility", "persistence"]);
    says(post(SendWr::read(1, (), nowhere).imm(1)), verb, EINVAL, is, &["immediate data"]);

    a.qp.modify(&QpAttr::to(QpState::Sqd)).unwrap();
    let is = |c: &Cause| matches!(c, Cause::QueueFull { .. });
    let many = (0..5).map(|id| SendWr::send(id, ()));
    says(a.qp.post_send(many), "ibv_post_send: after 2 requests: ", ENOMEM, is, &["all 2 slots"]);
    let many = (0..5).map(|id| RecvWr::new(id, ()));
    says(a.qp.post_recv(many), "ibv_post_recv: after 2 requests: ", ENOMEM, is, &["all 2 slots"]);
}

#[test]
fn of_making_objects() {
    let Some(bed) = Bed::start() else { return };
    let [host, other] = bed.hosts();
    let side = Side::new(host);
    let memory = |c: &Cause| matches!(c, Cause::Memory(_));
    let pd = &side.pd;
    says(pd.alloc_mr(0, Access::LOCAL), "ibv_reg_mr: ", EINVAL, memory, &["at least one byte"]);
    let narrow = pd.alloc_mr(8, Access::REMOTE_WRITE);
    says(narrow, "ibv_reg_mr: ", EINVAL, memory, &["need LOCAL_WRITE", "REMOTE_WRITE"]);
    let huge = pd.alloc_mr(1 << 62, Access::LOCAL);
    says(huge, "ibv_reg_mr: ", ENOMEM, memory, &["4611686018427387904 bytes"]);
    let mismatch = |c: &Cause| matches!(c, Cause::Mismatch { .. });
    let foreign = pd.create_qp(QpType::Rc, &other.create_cq(1).unwrap()).build();
    says(foreign, "ibv_create_qp: ", EINVAL, mismatch, &["another device"]);
    let unsupported = |c: &Cause| matches!(c, Cause::Unsupported { .. });
    let xrc = pd.create_qp(QpType::XrcSend, &side.cq).build();
    says(xrc, "ibv_create_qp: ", EOPNOTSUPP, unsupported, &["XRC", "use RC"]);
    let value = |c: &Cause| matches!(c, Cause::AttrValue { .. });
    says(host.create_cq(0), "ibv_create_cq: ", EINVAL, value, &["cqe is 0", "at least 1"]);
    let range = |c: &Cause| matches!(c, Cause::AttrRange { .. });
    let big = host.create_cq(u32::MAX);
    says(big, "ibv_create_cq: ", EINVAL, range, &["cqe is 4294967295", "4194304"]);

    let Pair { b, .. } = Pair::new(&bed);
    let (mr, mw) = (b.memory(64), b.pd.alloc_mw(MwType::Type2).unwrap());
    b.done(SendWr::bind_mw(1, &mw, &mr, 0..8, Access::REMOTE_READ));
    let busy = |c: &Cause| *c == Cause::Memory(MemError::Busy { windows: 1 });
    says(mr.deregister(), "ibv_dereg_mr: ", EBUSY, busy, &["1 memory windows", "first"]);
}

#[test]
fn of_queues_that_are_too_full_to_shrink() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::new(&bed);
    let srq = a.pd.create_srq(8, 1).unwrap();
    srq.post_recv((0..5).map(|id| RecvWr::new(id, ()))).unwrap();
    let is = |c: &Cause| matches!(c, Cause::Invalid { .. });
    let verb = "ibv_modify_srq: ";
    says(
        srq.resize(4),
        verb,
        EINVAL,
        is,
        &["max_wr is 4", "5 receives", "wait until some are taken"],
    );
    srq.resize(5).unwrap();
    b.qp.post_recv((0..3).map(|id| RecvWr::new(id, ()))).unwrap();
    a.qp.post_send((0..3).map(|id| SendWr::send(id, ()))).unwrap();
    bed.until("all three are done", || a.counter("rdma_sends") == 3);
    let verb = "ibv_resize_cq: ";
    says(a.cq.resize(2), verb, EINVAL, is, &["cqe is 2", "3 completions", "poll some first"]);
    a.sent().ok().unwrap();
    a.cq.resize(2).unwrap();
}

#[test]
fn of_operations_that_a_service_does_not_have() {
    let Some(bed) = Bed::start() else { return };
    let a = Side::with(bed.hosts()[0], |qp| qp);
    let is = |c: &Cause| matches!(c, Cause::Invalid { .. });
    let nowhere = RemoteSlice { addr: 0, rkey: 0 };
    let uc = a.pd.create_qp(QpType::Uc, &a.cq).build().unwrap();
    uc.connect(&uc.endpoint()).unwrap();
    let verb = "ibv_post_send: after ";
    says(uc.post_send(SendWr::read(1, (), nowhere)), verb, EINVAL, is, &["Read", "needs RC"]);
    let ud = a.pd.create_qp(QpType::Ud, &a.cq).build().unwrap();
    ud.activate(1).unwrap();
    let ah = a.pd.create_ah(&ud.endpoint().ah()).unwrap();
    let write = SendWr::write(1, (), nowhere).to(&ah, ud.number(), 1);
    says(ud.post_send(write), verb, EINVAL, is, &["Write", "SEND"]);
}

#[test]
fn of_completions_and_timeouts() {
    let Some(bed) = Bed::start() else { return };
    let Pair { a, b } = Pair::new(&bed);
    let to = b.memory(8);
    let wrong = RemoteSlice { addr: to.iova(), rkey: 0 };
    a.post(SendWr::write(77, inline(b"x"), wrong));
    let e = a.sent().ok().unwrap_err();
    assert_eq!((e.errno(), e.wc_status()), (None, Some(WcStatus::RemAccess)));
    let text = e.to_string();
    let qpn = format!("{:#x}", a.qp.number());
    for word in ["77", "RemAccess", &qpn] {
        assert!(text.contains(word), "{word:?} is not in {text:?}");
    }
    let e = a.cq.wait(Duration::ZERO).unwrap_err();
    assert_eq!((e.errno(), e.wc_status(), e.cause()), (Some(110), None, None));
    let e = std::io::Error::from(e);
    assert_eq!(e.kind(), std::io::ErrorKind::TimedOut);
}
