//! Partitions: which packets a queue pair sends and takes, by the table and its index into it.

use super::script::{In, RQ, SQ, Script, pkt};
use crate::engine::EngineConfig;
use crate::engine::cause::Cause;
use crate::engine::counters::Counter as C;
use crate::engine::qp::attr::{QpAttr, QpState};
use crate::engine::tests::pair::Setup;
use crate::mem::Access;
use crate::queue::SendOp;
use crate::wire::num::Pkey;

/// 0xffff, and a full and a limited membership.
fn table() -> Setup {
    let config: fn(&mut EngineConfig) = |c| c.pkeys.extend([Pkey(0x8123), Pkey(0x0456)]);
    Setup { config, ..Setup::default() }
}

/// A script whose queue pair is in the partition at `index`.
fn member(index: u16, key: u16) -> Script {
    let setup = table();
    let mut s = Script::idle(&setup);
    s.pkey = key;
    s.modify(&QpAttr::to(QpState::Init).port(1).pkey_index(index).access(Access::REMOTE));
    s.rtr(RQ, &setup);
    s.rts(SQ, &setup);
    s
}

#[test]
fn requests_and_answers_carry_the_key_of_the_index() {
    for (index, key) in [(0, 0xffff), (1, 0x8123), (2, 0x0456)] {
        let mut s = member(index, key);
        // The script checks the key of whatever leaves.
        s.post(SendOp::Send, 1, 4);
        s.recv(pkt("READ_REQUEST", RQ).reth(s.va(0), s.rkey(), 8).pkey(key | 0x8000));
        s.expect(&["SEND_ONLY 001000 A +4", "READ_RESP_ONLY 002000 syn=1f msn=1 +8"]);
        let attr = s.engine.query_qp(s.qp).unwrap();
        assert_eq!(attr.pkey_index, Some(index));
    }
}

#[test]
fn one_side_at_least_is_a_full_member() {
    let cases = [
        (0, 0xffff, 0xffff, true),
        (0, 0xffff, 0x7fff, true),
        (0, 0xffff, 0x8123, false),
        (1, 0x8123, 0x8123, true),
        (1, 0x8123, 0x0123, true),
        (1, 0x8123, 0xffff, false),
        (1, 0x8123, 0x8122, false),
        (1, 0x8123, 0x8000, false),
        (2, 0x0456, 0x8456, true),
        // Two limited members do not talk.
        (2, 0x0456, 0x0456, false),
        (2, 0x0456, 0xffff, false),
        (2, 0x0456, 0, false),
    ];
    for (index, key, theirs, taken) in cases {
        let mut s = member(index, key);
        s.recv(pkt("WRITE_ONLY", RQ).reth(s.va(0), s.rkey(), 0).ask().pkey(theirs));
        assert_eq!(s.sent().len(), usize::from(taken), "{key:x} {theirs:x}");
        assert_eq!(s.counter(C::BadPkeyCntr), u64::from(!taken));
        // No effect: the packet that is expected is still expected.
        s.recv(pkt("WRITE_ONLY", RQ).reth(s.va(0), s.rkey(), 0).ask().pkey(key | 0x8000));
        s.expect(&["ACK 002000 syn=1f msn=1"]);
    }
}

#[test]
fn a_congestion_notification_is_of_any_partition_of_the_device() {
    for (theirs, heard) in [
        (0x8123, true),
        (0xffff, true),
        (0x7fff, true),
        (0x8456, true),
        (0x0456, false),
        (0x8999, false),
    ] {
        let mut s = member(1, 0x8123);
        s.recv(In::cnp().pkey(theirs));
        let counters = (s.counter(C::RpCnpHandled), s.counter(C::BadPkeyCntr));
        assert_eq!(counters, (u64::from(heard), u64::from(!heard)), "{theirs:x}");
    }
}

#[test]
fn an_index_beyond_the_table_is_refused_and_another_may_be_chosen_later() {
    let setup = table();
    let mut s = Script::idle(&setup);
    let init = |index| QpAttr::to(QpState::Init).port(1).pkey_index(index).access(Access::REMOTE);
    let beyond = s.engine.modify_qp(s.now, s.qp, &init(3));
    assert_eq!(beyond, Err(Cause::AttrRange { attr: "pkey_index", got: 3, max: 2 }));
    assert_eq!(s.state(), QpState::Reset);
    s.modify(&init(1));
    s.modify(&init(2));
    s.rtr(RQ, &setup);
    s.rts(SQ, &setup);
    s.modify(&QpAttr::to(QpState::Sqd));
    s.modify(&QpAttr::to(QpState::Sqd).pkey_index(1));
    s.modify(&QpAttr::to(QpState::Rts));
    s.pkey = 0x8123;
    s.post(SendOp::Send, 1, 4);
    s.expect(&["SEND_ONLY 001000 A +4"]);
    // What is wrong first is told first, as without a table.
    let missing = s.engine.modify_qp(s.now, s.qp, &QpAttr::to(QpState::Init).pkey_index(9));
    assert!(matches!(missing, Err(Cause::NoTransition { .. })), "{missing:?}");
    assert_eq!(s.engine.pkeys(), [Pkey(0xffff), Pkey(0x8123), Pkey(0x0456)]);
    // The next life begins in the default partition.
    s.modify(&QpAttr::to(QpState::Reset));
    assert_eq!(s.engine.query_qp(s.qp).unwrap().pkey_index, Some(0));
}
