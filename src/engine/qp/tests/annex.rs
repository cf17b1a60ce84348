//! ATOMIC WRITE and FLUSH (annex A19), at both ends.

use std::sync::Arc;

use super::script::{FAR, In, RQ, SQ, Script, ack, pkt};
use crate::engine::config::IcrcPolicy;
use crate::engine::counters::Counter as C;
use crate::engine::event::AsyncEvent::{QpAccessErr, QpReqErr};
use crate::engine::qp::attr::QpState;
use crate::engine::status::WcStatus::{BadResp, LocLen, LocQpOp, RemAccess, Success, WrFlush};
use crate::engine::tests::pair::Setup;
use crate::mem::{Access, IovaChoice, Registered};
use crate::net::RxMeta;
use crate::queue::{SendFlags, SendOp, SendWqe};
use crate::wire::icrc::{self, IpFields};
use crate::wire::num::Rkey;
use std::time::Duration;

const INVALID: &str = "ACK 002000 syn=61 msn=0";
const ACCESS: &str = "ACK 002000 syn=62 msn=0";
const DONE: &str = "READ_RESP_ONLY 002000 syn=1f msn=1";

/// A script in which the peer may do everything that its keys allow.
fn script() -> Script {
    Script::with(&open())
}

fn open() -> Setup {
    Setup { access: Access::REMOTE | Access::FLUSH_GLOBAL, ..Setup::default() }
}

/// Our region once more, to be flushed too.
fn flushable(s: &mut Script) -> Registered {
    let access = Access::REMOTE | Access::FLUSH_GLOBAL | Access::MW_BIND;
    s.engine.register(s.pd, Arc::clone(&s.region), IovaChoice::Allocate, access).unwrap()
}

fn flush(psn: u32, mr: &Registered, sel: u8, plt: u8, len: usize) -> In {
    pkt("FLUSH", psn).feth(sel, plt).reth(mr.iova, mr.rkey, len)
}

fn flush_wqe(wr_id: u64, len: u64, sel: u32, plt: u32) -> SendWqe {
    SendWqe { compare_add: len, imm_or_inv: sel << 4 | plt, ..Script::wqe(SendOp::Flush, wr_id) }
}

#[test]
fn an_atomic_write_stores_its_bytes_as_they_are() {
    let mut s = script();
    let va = s.va(16);
    s.recv(
        pkt("ATOMIC_WRITE", RQ)
            .reth(va, s.rkey(), 8)
            .data(b"\x01\x02\x03\x04\x05\x06\x07\x08")
            .ask(),
    );
    s.expect(&[DONE]);
    assert_eq!(
        s.bytes(8, 24),
        [0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0]
    );
    assert_eq!(s.counter(C::RxAtomicWriteRequests), 1);
    assert_eq!(s.counter(C::RxWriteRequests), 0);
}

#[test]
fn an_atomic_write_is_8_aligned_bytes_or_nothing() {
    let good = |s: &Script| pkt("ATOMIC_WRITE", RQ).reth(s.va(16), s.rkey(), 8);
    type Make = fn(&Script) -> (u64, Rkey, usize, usize, &'static str);
    let cases: [Make; 6] = [
        |s| (s.va(16), s.rkey(), 4, 8, INVALID),
        |s| (s.va(16), s.rkey(), 16, 8, INVALID),
        |s| (s.va(16), s.rkey(), 8, 4, INVALID),
        |s| (s.va(16), s.rkey(), 8, 16, INVALID),
        |s| (s.va(20), s.rkey(), 8, 8, INVALID),
        |s| (s.va(16), Rkey(s.rkey().0 ^ 1), 8, 8, ACCESS),
    ];
    for case in cases {
        let mut s = script();
        let (va, rkey, dma_len, len, nak) = case(&s);
        s.recv(pkt("ATOMIC_WRITE", RQ).reth(va, rkey, dma_len).len(len).ask());
        s.expect(&[nak]);
        assert_eq!(s.state(), QpState::Err);
        assert_eq!(s.bytes(0, 64), [0; 64]);
        let qpn = s.qpn();
        let event = if nak == INVALID { QpReqErr { qpn } } else { QpAccessErr { qpn } };
        assert_eq!(s.events(), [event]);
    }
    // No bytes at all.
    let mut s = script();
    let packet = good(&s);
    s.recv(packet.ask());
    s.expect(&[INVALID]);
    // A queue pair that takes no WRITEs, or no READs and atomics.
    for setup in [
        Setup { access: Access::LOCAL, ..Setup::default() },
        Setup { dest_rd_atomic: 0, ..Setup::default() },
    ] {
        let mut s = Script::with(&setup);
        let packet = good(&s);
        s.recv(packet.len(8).ask());
        s.expect(&[INVALID]);
    }
}

#[test]
fn a_duplicate_atomic_write_is_answered_and_does_not_undo_what_came_later() {
    let mut s = script();
    let (va, rkey) = (s.va(0), s.rkey());
    let first = pkt("ATOMIC_WRITE", RQ).reth(va, rkey, 8).data(b"firstone").ask();
    s.recv(first.clone());
    s.recv(pkt("ATOMIC_WRITE", RQ + 1).reth(va, rkey, 8).data(b"then two").ask());
    s.sent();
    s.recv(first);
    s.expect(&[DONE]);
    assert_eq!(s.bytes(0, 8), b"then two");
    assert_eq!((s.counter(C::DuplicateAtomicWrite), s.counter(C::RxAtomicWriteRequests)), (1, 2));
}

#[test]
fn a_flush_is_answered_in_its_turn() {
    let mut s = script();
    let mr = flushable(&mut s);
    s.recv_all([
        pkt("READ_REQUEST", RQ).reth(mr.iova, mr.rkey, 2000),
        pkt("WRITE_ONLY", RQ + 2).reth(mr.iova, mr.rkey, 4).len(4),
        flush(RQ + 3, &mr, 0, 1, 4).ask(),
        pkt("WRITE_ONLY", RQ + 4).reth(mr.iova, mr.rkey, 4).len(4).ask(),
    ]);
    s.expect(&[
        "READ_RESP_FIRST 002000 syn=1f msn=1 +1024",
        "READ_RESP_LAST 002001 syn=1f msn=1 +976",
        "READ_RESP_ONLY 002003 syn=1f msn=3",
        "ACK 002004 syn=1f msn=4",
    ]);
    assert_eq!(s.counter(C::RxFlushRequests), 1);
    // Again: answered, not counted as executed.
    s.recv(flush(RQ + 3, &mr, 0, 1, 4).ask());
    s.expect(&["READ_RESP_ONLY 002003 syn=1f msn=3"]);
    assert_eq!((s.counter(C::RxFlushRequests), s.counter(C::DuplicateFlush)), (1, 1));
}

#[test]
fn a_flush_needs_the_rights_and_the_range_that_it_names() {
    // Selectivity, placement, offset, length, answer.
    let cases = [
        (0, 1, 0, 1 << 16, DONE),
        (0, 1, 0, 0, DONE),
        (0, 1, (1 << 16) - 1, 1, DONE),
        (0, 1, 1, 1 << 16, ACCESS),
        // Of everything: where and how much does not matter.
        (1, 1, 1 << 20, 1 << 31, DONE),
        (2, 1, 0, 4, INVALID),
        (3, 1, 0, 4, INVALID),
        (0, 0, 0, 4, INVALID),
        (0, 4, 0, 4, INVALID),
        (0, 1, 0, (1 << 31) + 1, INVALID),
        // The queue pair may be asked for global visibility only.
        (0, 2, 0, 4, INVALID),
        (0, 3, 0, 4, INVALID),
    ];
    for (sel, plt, at, len, answer) in cases {
        let mut s = script();
        let mr = flushable(&mut s);
        let packet = pkt("FLUSH", RQ).feth(sel, plt).reth(mr.iova + at, mr.rkey, len);
        s.recv(packet.ask());
        s.expect(&[answer]);
    }
    // A region that was not registered for it.
    for sel in [0, 1] {
        let mut s = script();
        let mr = s.mr;
        s.recv(flush(RQ, &mr, sel, 1, 4).ask());
        s.expect(&[ACCESS]);
    }
    // No such key.
    for sel in [0, 1] {
        let mut s = script();
        let mr = flushable(&mut s);
        let nobody = Registered { rkey: Rkey(mr.rkey.0 ^ 1), ..mr };
        s.recv(flush(RQ, &nobody, sel, 1, 4).ask());
        s.expect(&[ACCESS]);
    }
    // A queue pair that takes no READs and atomics.
    let mut s = Script::with(&Setup { dest_rd_atomic: 0, ..open() });
    let mr = flushable(&mut s);
    s.recv(flush(RQ, &mr, 0, 1, 4).ask());
    s.expect(&[INVALID]);
}

#[test]
fn more_flushes_than_places_wait_with_their_sender() {
    let mut s = Script::with(&Setup { dest_rd_atomic: 1, ..open() });
    let mr = flushable(&mut s);
    s.recv_all([
        pkt("READ_REQUEST", RQ).reth(mr.iova, mr.rkey, 8),
        flush(RQ + 1, &mr, 0, 1, 4).ask(),
        pkt("SEND_ONLY", RQ + 2).ask(),
    ]);
    // The gap that the FLUSH has left is NAKed.
    s.expect(&["READ_RESP_ONLY 002000 syn=1f msn=1 +8", "ACK 002001 syn=60 msn=1"]);
    assert_eq!(s.counter(C::DropFlush), 1);
    s.recv(flush(RQ + 1, &mr, 0, 1, 4).ask());
    s.expect(&["READ_RESP_ONLY 002001 syn=1f msn=2"]);
}

/// What found no place is as good as lost: it is a gap like any other.
#[test]
fn a_flush_without_a_place_takes_nothing_from_selective_repeat() {
    let setup = Setup { dest_rd_atomic: 1, ..open() };
    let read = |mr: &Registered| pkt("READ_REQUEST", RQ).reth(mr.iova, mr.rkey, 8);
    // It comes again by timeout; the next gap is told of as ever.
    let mut s = Script::selective(SQ, RQ, &setup);
    let mr = flushable(&mut s);
    s.recv_all([read(&mr), flush(RQ + 1, &mr, 0, 1, 4).ask()]);
    s.expect(&["READ_RESP_ONLY 002000 syn=1f msn=1 +8"]);
    s.recv(flush(RQ + 1, &mr, 0, 1, 4).ask());
    s.expect(&["READ_RESP_ONLY 002001 syn=1f msn=2"]);
    s.recv(pkt("WRITE_ONLY", RQ + 3).ask());
    s.expect(&["ATOMIC_ACK 002002 syn=7f msn=8195 orig=1"]);
    assert_eq!((s.counter(C::DropFlush), s.counter(C::HeldRequests)), (1, 1));
    // What is held behind it stays so.
    let mut s = Script::selective(SQ, RQ, &setup);
    let mr = flushable(&mut s);
    let behind = pkt("WRITE_ONLY", RQ + 2).ask();
    s.recv_all([read(&mr), behind, flush(RQ + 1, &mr, 0, 1, 4).ask()]);
    let told = "ATOMIC_ACK 002001 syn=7f msn=8194 orig=1";
    s.expect(&["READ_RESP_ONLY 002000 syn=1f msn=1 +8", told]);
    s.recv(flush(RQ + 1, &mr, 0, 1, 4).ask());
    s.expect(&["READ_RESP_ONLY 002001 syn=1f msn=2", "ACK 002002 syn=1f msn=3"]);
    // The same where it was held itself.
    let mut s = Script::selective(SQ, RQ, &setup);
    let mr = flushable(&mut s);
    let flushes = [1, 2].map(|n| flush(RQ + n, &mr, 0, 1, 4).ask());
    s.recv_all(flushes.into_iter().chain([3, 0].map(|n| pkt("WRITE_ONLY", RQ + n).ask())));
    let told = "ATOMIC_ACK 002002 syn=7f msn=8195 orig=1";
    s.expect(&["READ_RESP_ONLY 002001 syn=1f msn=2", told]);
    s.recv(flush(RQ + 2, &mr, 0, 1, 4).ask());
    s.expect(&["READ_RESP_ONLY 002002 syn=1f msn=3", "ACK 002003 syn=1f msn=4"]);
}

#[test]
fn what_leaves_and_what_completes_it() {
    let mut s = script();
    s.fill(0, 8);
    s.post(SendOp::AtomicWrite, 1, 8);
    s.post_wqe(flush_wqe(2, 5000, 0, 1), &[]);
    s.post_wqe(flush_wqe(3, 0, 1, 3), &[]);
    let (va, rkey) = FAR;
    assert_eq!((va, rkey), (0x5000, 0x77));
    s.expect(&[
        "ATOMIC_WRITE 001000 va=5000 rkey=77 len=8 +8",
        "FLUSH 001001 sel=0 plt=1 va=5000 rkey=77 len=5000",
        "FLUSH 001002 sel=1 plt=3 va=5000 rkey=77 len=0",
    ]);
    s.recv(pkt("READ_RESP_ONLY", SQ).syndrome(0x1f));
    s.recv(pkt("READ_RESP_ONLY", SQ + 1).syndrome(0x1f));
    s.recv(pkt("READ_RESP_ONLY", SQ + 2).syndrome(0x1f));
    let done: Vec<_> = s.completions().iter().map(|c| (c.wr_id, c.status, c.opcode)).collect();
    assert_eq!(done, [(1, 0, 9), (2, 0, 8), (3, 0, 8)]);
    assert_eq!(s.engine.poll_timeout(), None);
    assert_eq!(s.engine.in_flight(), (0, 0), "nothing is charged any more");
}

#[test]
fn inline_bytes_of_an_atomic_write() {
    let mut s = script();
    let mut sq = s.face.sq.lock();
    sq.stage_inline(Script::wqe(SendOp::AtomicWrite, 1), [&b"8 bytes."[..]]).unwrap();
    sq.publish();
    drop(sq);
    s.engine.handle_doorbell(s.now, s.qp);
    s.pump();
    assert_eq!(s.sent()[0].payload, b"8 bytes.");
}

#[test]
fn an_ack_is_no_answer_and_bytes_are_none() {
    // An ACK beyond it says that the answer was lost: it is asked for again, unchanged.
    let mut s = script();
    s.post(SendOp::AtomicWrite, 1, 8);
    s.post(SendOp::Send, 2, 0);
    s.sent();
    s.recv(ack(SQ + 1, 0x1f));
    assert_eq!(s.counter(C::ImpliedNakSeqErr), 1);
    s.expect(&["ATOMIC_WRITE 001000 va=5000 rkey=77 len=8 +8", "SEND_ONLY 001001 A"]);
    s.recv(pkt("READ_RESP_ONLY", SQ).syndrome(0x1f));
    s.recv(ack(SQ + 1, 0x1f));
    assert_eq!(s.results(), [(1, Success), (2, Success)]);
    // With bytes it is not the answer to this.
    let mut s = script();
    s.post_wqe(flush_wqe(1, 4, 0, 1), &[]);
    s.recv(pkt("READ_RESP_ONLY", SQ).syndrome(0x1f).len(4));
    assert_eq!(s.results(), [(1, BadResp)]);
    let mut s = script();
    s.post_wqe(flush_wqe(1, 4, 0, 1), &[]);
    s.recv(pkt("ATOMIC_ACK", SQ).syndrome(0x1f));
    assert_eq!(s.results(), [(1, BadResp)]);
}

#[test]
fn a_lost_answer_is_asked_for_again() {
    let mut s = script();
    s.post_wqe(flush_wqe(1, 4, 0, 1), &[]);
    s.expect(&["FLUSH 001000 sel=0 plt=1 va=5000 rkey=77 len=4"]);
    s.wait(Duration::from_millis(10));
    assert_eq!(s.sent()[0].line, "FLUSH 001000 sel=0 plt=1 va=5000 rkey=77 len=4");
    s.recv(pkt("READ_RESP_ONLY", SQ).syndrome(0x1f));
    assert_eq!(s.results(), [(1, Success)]);
}

#[test]
fn a_refused_flush_ends_with_its_status() {
    let mut s = script();
    s.post_wqe(flush_wqe(1, 4, 0, 1), &[]);
    s.post(SendOp::Send, 2, 0);
    s.recv(ack(SQ, 0x62));
    assert_eq!(s.results(), [(1, RemAccess), (2, WrFlush)]);
}

#[test]
fn they_count_as_reads_in_flight_and_a_fence_waits_for_them() {
    let mut s = Script::with(&Setup { rd_atomic: 1, ..open() });
    s.post(SendOp::AtomicWrite, 1, 8);
    s.post_wqe(flush_wqe(2, 4, 0, 1), &[]);
    assert_eq!(s.sent().len(), 1);
    let fenced = Script::wqe(SendOp::Send, 3);
    s.post_wqe(SendWqe { flags: fenced.flags | SendFlags::FENCE, ..fenced }, &[]);
    s.recv(pkt("READ_RESP_ONLY", SQ).syndrome(0x1f));
    s.expect(&["FLUSH 001001 sel=0 plt=1 va=5000 rkey=77 len=4"]);
    s.recv(pkt("READ_RESP_ONLY", SQ + 1).syndrome(0x1f));
    s.expect(&["SEND_ONLY 001002 A"]);
    // None allowed, and the wrong length.
    for (rd_atomic, len, status) in [(0, 8, LocQpOp), (1, 4, LocLen), (1, 16, LocLen)] {
        let mut s = Script::with(&Setup { rd_atomic, ..open() });
        s.post(SendOp::AtomicWrite, 1, len);
        assert_eq!(s.results(), [(1, status)]);
        s.silent();
    }
}

/// What rdma_rxe seals a FLUSH with, and no other packet.
#[test]
fn the_icrc_of_rdma_rxe_is_accepted_for_flush_alone() {
    let reseal = |s: &Script, packet: In, ident| {
        let path = s.path();
        let mut bytes = packet.bytes(s.face.qpn(), &path, ident);
        let at = bytes.len() - icrc::LEN;
        let ip = IpFields::new(path.src, path.dst, ident, true, path.src_port).unwrap();
        let odd = icrc::compute_rxe_flush(&ip, &bytes[..at]);
        bytes[at..].copy_from_slice(&odd.to_le_bytes());
        bytes
    };
    let mut s = script();
    let mr = flushable(&mut s);
    let path = s.path();
    let write = pkt("WRITE_ONLY", RQ).reth(mr.iova, mr.rkey, 4).len(4).ask();
    let bytes = reseal(&s, write, 7);
    s.datagram(&path, 7, &bytes);
    s.pump();
    s.silent();
    assert_eq!(s.counter(C::RxIcrcEncapsulated), 1);
    let mut bytes = reseal(&s, flush(RQ, &mr, 0, 1, 4).ask(), 7);
    s.datagram(&path, 7, &bytes);
    s.pump();
    s.expect(&[DONE]);
    assert_eq!((s.counter(C::IcrcRxeFlush), s.counter(C::IcrcExact)), (1, 1));
    // One bit of it changed on the way.
    bytes[20] ^= 1;
    s.datagram(&path, 7, &bytes);
    assert_eq!(s.counter(C::RxIcrcEncapsulated), 2);
    // Through a socket that does not show the identification.
    let bytes = reseal(&s, flush(RQ + 1, &mr, 0, 1, 4).ask(), 100);
    let meta = RxMeta { path, ident: None, df: Some(true), gro_index: 0 };
    s.engine.handle_datagram(s.now, &meta, &bytes);
    s.pump();
    s.expect(&["READ_RESP_ONLY 002001 syn=1f msn=2"]);
    assert_eq!((s.counter(C::IcrcRxeFlush), s.counter(C::IcrcRecovered)), (2, 1));
    // By the book as well, of course, which is what we send.
    s.recv(flush(RQ + 2, &mr, 0, 1, 4).ask());
    s.expect(&["READ_RESP_ONLY 002002 syn=1f msn=3"]);
    assert_eq!(s.counter(C::IcrcRxeFlush), 2);

    let exact: fn(&mut crate::engine::EngineConfig) = |c| c.icrc = IcrcPolicy::Exact;
    let mut s = Script::with(&Setup { config: exact, ..open() });
    let mr = flushable(&mut s);
    let bytes = reseal(&s, flush(RQ, &mr, 0, 1, 4).ask(), 100);
    s.engine.handle_datagram(s.now, &meta, &bytes);
    s.pump();
    s.silent();
}

/// Caches that can be written back: FLUSH for persistence.
#[cfg(target_arch = "x86_64")]
mod persistence {
    use super::*;
    use crate::engine::common::FLUSH_BYTES;
    use crate::mem::Region;

    const LONG: usize = 1 << 20;
    const INSTANTS: u64 = LONG as u64 / FLUSH_BYTES;

    fn script() -> Script {
        let access = Access::REMOTE | Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT;
        Script::with(&Setup { access, ..Setup::default() })
    }

    /// 1 MiB that its owner calls persistent.
    fn lent(s: &mut Script) -> (Arc<Region>, Registered) {
        let region = Region::lent(LONG);
        let access = Access::REMOTE | Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT;
        let mr = s.engine.register(s.pd, Arc::clone(&region), IovaChoice::Allocate, access);
        (region, mr.unwrap())
    }

    fn word(region: &Region, at: usize) -> u64 {
        region.load(at, std::sync::atomic::Ordering::Relaxed)
    }

    /// Until the engine wants nothing more; how many instants that took.
    fn instants(s: &mut Script) -> u64 {
        let mut n = 0;
        while let Some(next) = s.engine.poll_timeout() {
            assert!(next > s.now, "the next instant is another one");
            s.now = next;
            s.pump();
            n += 1;
        }
        n
    }

    #[test]
    fn a_long_flush_takes_many_instants_and_is_executed_once() {
        for (sel, plt, len) in [(0, 2, LONG), (1, 3, 0)] {
            let mut s = script();
            let (_, mr) = lent(&mut s);
            s.recv(flush(RQ, &mr, sel, plt, len).ask());
            s.silent();
            // It comes again meanwhile, and does not begin again.
            s.now = s.engine.poll_timeout().unwrap();
            s.recv(flush(RQ, &mr, sel, plt, len).ask());
            s.silent();
            assert_eq!(s.counter(C::RxFlushRequests), 0);
            assert_eq!(instants(&mut s), INSTANTS - 2);
            s.expect(&[DONE]);
            assert_eq!((s.counter(C::RxFlushRequests), s.counter(C::DuplicateFlush)), (1, 1));
            s.recv(flush(RQ, &mr, sel, plt, len).ask());
            s.expect(&[DONE]);
            assert_eq!((s.counter(C::RxFlushRequests), s.counter(C::DuplicateFlush)), (1, 2));
            assert_eq!(s.engine.poll_timeout(), None);
        }
    }

    #[test]
    fn a_flush_of_nothing_and_a_short_one_are_answered_at_once() {
        let mut s = script();
        let (_, mr) = lent(&mut s);
        s.recv(flush(RQ, &mr, 0, 2, 0).ask());
        s.recv(flush(RQ + 1, &mr, 0, 2, 40_000).ask());
        s.expect(&[DONE, "READ_RESP_ONLY 002001 syn=1f msn=2"]);
        assert_eq!(s.engine.poll_timeout(), None);
    }

    #[test]
    fn what_the_queue_pair_sends_itself_does_not_wait_for_a_flush() {
        let mut s = script();
        let (_, mr) = lent(&mut s);
        s.recv(flush(RQ, &mr, 0, 2, LONG).ask());
        s.post(SendOp::Send, 1, 4);
        s.expect(&["SEND_ONLY 001000 A +4"]);
        s.recv(ack(SQ, 0x1f));
        assert_eq!(instants(&mut s), INSTANTS - 1);
        s.expect(&[DONE]);
    }

    #[test]
    fn atomics_wait_for_the_flush_before_them_and_writes_do_not() {
        let mut s = script();
        let (region, mr) = lent(&mut s);
        let own = s.mr;
        s.recv_all([
            flush(RQ, &mr, 0, 2, LONG).ask(),
            pkt("ATOMIC_WRITE", RQ + 1).reth(mr.iova, mr.rkey, 8).data(&7_u64.to_ne_bytes()),
            pkt("FETCH_ADD", RQ + 2).atomic(mr.iova, mr.rkey, 5, 0),
            pkt("CMP_SWAP", RQ + 3).atomic(mr.iova, mr.rkey, 100, 12),
            pkt("WRITE_ONLY", RQ + 4).reth(own.iova, own.rkey, 4).len(4).ask(),
        ]);
        s.silent();
        assert_eq!(word(&region, 0), 0);
        assert_eq!(s.bytes(0, 4), crate::engine::tests::pair::pattern(4, 0));
        // They come again meanwhile.
        s.recv_all([
            pkt("ATOMIC_WRITE", RQ + 1).reth(mr.iova, mr.rkey, 8).data(&7_u64.to_ne_bytes()),
            pkt("FETCH_ADD", RQ + 2).atomic(mr.iova, mr.rkey, 5, 0),
        ]);
        assert_eq!(s.counter(C::RxAtomicRequests) + s.counter(C::RxAtomicWriteRequests), 0);
        instants(&mut s);
        s.expect(&[
            DONE,
            "READ_RESP_ONLY 002001 syn=1f msn=2",
            "ATOMIC_ACK 002002 syn=1f msn=3 orig=7",
            "ATOMIC_ACK 002003 syn=1f msn=4 orig=c",
            "ACK 002004 syn=1f msn=5",
        ]);
        assert_eq!(word(&region, 0), 100);
        assert_eq!((s.counter(C::RxAtomicRequests), s.counter(C::RxAtomicWriteRequests)), (2, 1));
        assert_eq!((s.counter(C::DuplicateAtomic), s.counter(C::DuplicateAtomicWrite)), (1, 1));
        // An answered one again: from what it came to.
        s.recv(pkt("FETCH_ADD", RQ + 2).atomic(mr.iova, mr.rkey, 5, 0));
        s.expect(&["ATOMIC_ACK 002002 syn=1f msn=3 orig=7"]);
        assert_eq!(word(&region, 0), 100);
    }

    #[test]
    fn what_waits_behind_a_flush_is_checked_when_it_comes_and_when_it_is_done() {
        let late = |mr: &Registered, at| {
            pkt("ATOMIC_WRITE", RQ + 1).reth(mr.iova + at, mr.rkey, 8).len(8).ask()
        };
        // An address that is no word, and a key that opens nothing: told behind the FLUSH.
        for (at, key, nak) in [(4, 0, "ACK 002001 syn=61 msn=1"), (0, 1, "ACK 002001 syn=62 msn=1")]
        {
            let mut s = script();
            let (_, mr) = lent(&mut s);
            let wrong = Registered { rkey: Rkey(mr.rkey.0 ^ key), ..mr };
            let packet = late(&wrong, at);
            s.recv_all([flush(RQ, &mr, 0, 2, LONG).ask(), packet]);
            s.silent();
            instants(&mut s);
            s.expect(&[DONE, nak]);
            assert_eq!(s.state(), QpState::Err);
        }
        // A region that goes while the FLUSH of another is under way.
        let mut s = script();
        let (_, mr) = lent(&mut s);
        let other = flushable(&mut s);
        let packet = late(&other, 0);
        s.recv_all([flush(RQ, &mr, 0, 2, LONG).ask(), packet]);
        s.engine.deregister(s.pd, other.lkey).unwrap();
        instants(&mut s);
        s.expect(&[DONE, "ACK 002001 syn=62 msn=2"]);
        let qpn = s.qpn();
        assert_eq!(s.events(), [QpAccessErr { qpn }]);
    }

    #[test]
    fn memory_that_goes_while_it_is_flushed_is_refused() {
        let mut s = script();
        let (_, mr) = lent(&mut s);
        s.recv(flush(RQ, &mr, 1, 2, 0).ask());
        s.engine.deregister(s.pd, mr.lkey).unwrap();
        assert_eq!(instants(&mut s), 1, "nothing is touched any more");
        s.expect(&["ACK 002000 syn=62 msn=1"]);
        assert_eq!((s.state(), s.counter(C::RxFlushRequests)), (QpState::Err, 0));
    }

    #[test]
    fn a_queue_pair_that_fails_forgets_its_flush() {
        for to in [QpState::Err, QpState::Reset] {
            let mut s = script();
            let (_, mr) = lent(&mut s);
            s.recv(flush(RQ, &mr, 0, 2, LONG).ask());
            s.modify(&crate::engine::qp::attr::QpAttr::to(to));
            instants(&mut s);
            s.silent();
            assert_eq!((s.engine.poll_timeout(), s.engine.has_transmit()), (None, false));
        }
    }
}
