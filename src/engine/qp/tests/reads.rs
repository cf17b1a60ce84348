//! READ responses: what is accepted, where it is placed, and what is asked for again.

use super::script::{In, SQ, Script, ack, pkt};
use crate::engine::counters::Counter as C;
use crate::engine::qp::attr::QpState;
use crate::engine::status::WcStatus::{BadResp, LocProt, Success, WrFlush};
use crate::engine::tests::pair::{Setup, pattern};
use crate::engine::window::WindowConfig;
use crate::mem::{Access, IovaChoice, Region, Sge};
use crate::queue::SendOp;
use crate::wire::num::Lkey;

/// A READ of four packets, the last of 100 bytes, and what is read.
fn reading() -> (Script, Vec<u8>) {
    let mut s = Script::new();
    s.post(SendOp::Read, 1, 3172);
    s.expect(&["READ_REQUEST 001000 va=5000 rkey=77 len=3172"]);
    (s, pattern(3172, 9))
}

/// Packet `i` of the answer, under this name.
fn answer(name: &str, data: &[u8], i: usize) -> In {
    let end = data.len().min((i + 1) * 1024);
    let packet = pkt(name, SQ + u32::try_from(i).unwrap()).data(&data[i * 1024..end]);
    if name.ends_with("MIDDLE") { packet } else { packet.syndrome(0x1f) }
}

fn whole(data: &[u8]) -> [In; 4] {
    [
        answer("READ_RESP_FIRST", data, 0),
        answer("READ_RESP_MIDDLE", data, 1),
        answer("READ_RESP_MIDDLE", data, 2),
        answer("READ_RESP_LAST", data, 3),
    ]
}

#[test]
fn a_read_is_placed_as_it_arrives_and_completes_at_its_end() {
    let (mut s, data) = reading();
    for (i, packet) in whole(&data).into_iter().enumerate() {
        assert_eq!(s.results(), []);
        s.recv(packet);
        let end = data.len().min((i + 1) * 1024);
        assert_eq!(s.bytes(0, end), data[..end]);
    }
    let got = s.completions();
    assert_eq!((got.len(), got[0].wr_id, got[0].opcode, got[0].byte_len), (1, 1, 2, 3172));
    assert_eq!((s.engine.poll_timeout(), s.engine.in_flight()), (None, (0, 0)));
}

#[test]
fn one_packet_and_none() {
    for len in [0, 1, 1024] {
        let mut s = Script::new();
        s.post(SendOp::Read, 1, len);
        s.recv(pkt("READ_RESP_ONLY", SQ).syndrome(0x1f).len(len));
        assert_eq!(s.results(), [(1, Success)], "{len}");
    }
}

#[test]
fn answers_that_do_not_fit_the_request() {
    let data = pattern(3172, 9);
    let f = |name: &str, i| answer(name, &data, i);
    let cut = |name: &str, i: usize, len: usize| f(name, i).data(&data[..len]);
    // Packets that arrive, the last of which does not fit.
    let wrong: Vec<Vec<In>> = vec![
        // Opcodes that cannot be there.
        vec![f("READ_RESP_MIDDLE", 0)],
        vec![f("READ_RESP_LAST", 0)],
        vec![f("READ_RESP_ONLY", 0)],
        vec![f("READ_RESP_FIRST", 0), f("READ_RESP_FIRST", 1)],
        vec![f("READ_RESP_FIRST", 0), f("READ_RESP_LAST", 1)],
        vec![f("READ_RESP_FIRST", 0), f("READ_RESP_ONLY", 1)],
        whole(&data)[..3].iter().cloned().chain([f("READ_RESP_MIDDLE", 3)]).collect(),
        whole(&data)[..3].iter().cloned().chain([f("READ_RESP_ONLY", 3)]).collect(),
        // Lengths that cannot be there.
        vec![cut("READ_RESP_FIRST", 0, 1023)],
        vec![cut("READ_RESP_FIRST", 0, 0)],
        vec![cut("READ_RESP_FIRST", 0, 1028)],
        vec![f("READ_RESP_FIRST", 0), cut("READ_RESP_MIDDLE", 1, 1020)],
        whole(&data)[..3].iter().cloned().chain([cut("READ_RESP_LAST", 3, 99)]).collect(),
        whole(&data)[..3].iter().cloned().chain([cut("READ_RESP_LAST", 3, 101)]).collect(),
        whole(&data)[..3].iter().cloned().chain([cut("READ_RESP_LAST", 3, 1024)]).collect(),
    ];
    for packets in wrong {
        let (mut s, _) = reading();
        s.post(SendOp::Write, 2, 8);
        let what = format!("{packets:?}");
        s.recv_all(packets);
        assert_eq!(s.results(), [(1, BadResp), (2, WrFlush)], "{what}");
        assert_eq!(s.state(), QpState::Err);
    }
    let mut s = Script::new();
    s.post(SendOp::Read, 1, 0);
    s.recv(pkt("READ_RESP_ONLY", SQ).syndrome(0x1f).len(1));
    assert_eq!(s.results(), [(1, BadResp)]);
}

#[test]
fn a_gap_asks_for_the_rest_once() {
    let (mut s, data) = reading();
    let [first, _, third, last] = whole(&data);
    s.recv(first);
    s.recv_all([third.clone(), last.clone(), last.clone()]);
    s.expect(&["READ_REQUEST 001001 va=5400 rkey=77 len=2148"]);
    assert_eq!((s.counter(C::ImpliedNakSeqErr), s.counter(C::DropStaleResponse)), (1, 2));
    assert_eq!(s.bytes(1024, 2148), vec![0; 2148], "nothing is placed out of order");
    // The answer to the rest begins with FIRST.
    s.recv_all([answer("READ_RESP_FIRST", &data, 1), third, last]);
    assert_eq!((s.results(), s.bytes(0, 3172)), (vec![(1, Success)], data));
    assert_eq!(s.engine.in_flight(), (0, 0));
}

#[test]
fn the_rest_may_begin_in_any_way() {
    // As rdma_rxe answers it: no FIRST. As the rest of the first answer, which was only late. As FIRST,
    // and, where one packet is missing, as ONLY.
    for name in ["READ_RESP_MIDDLE", "READ_RESP_FIRST"] {
        let (mut s, data) = reading();
        let [first, _, third, last] = whole(&data);
        s.recv_all([first, last.clone()]);
        s.recv_all([answer(name, &data, 1), third, last]);
        assert_eq!((s.results(), s.bytes(0, 3172)), (vec![(1, Success)], data), "{name}");
    }
    for name in ["READ_RESP_LAST", "READ_RESP_ONLY"] {
        let (mut s, data) = reading();
        let [first, second, third, _] = whole(&data);
        s.recv_all([first, second, third]);
        s.wait(crate::time::Duration::from_millis(5));
        s.expect(&["READ_REQUEST 001003 va=5c00 rkey=77 len=100"]);
        s.recv(answer(name, &data, 3));
        assert_eq!((s.results(), s.bytes(0, 3172)), (vec![(1, Success)], data), "{name}");
    }
}

#[test]
fn an_answer_may_be_cut_in_two_by_retries_more_than_once() {
    let (mut s, data) = reading();
    let [first, second, third, last] = whole(&data);
    s.recv_all([first.clone(), third.clone()]);
    s.expect(&["READ_REQUEST 001001 va=5400 rkey=77 len=2148"]);
    // The second answer loses a packet too.
    s.recv_all([answer("READ_RESP_FIRST", &data, 1), last.clone()]);
    s.expect(&["READ_REQUEST 001002 va=5800 rkey=77 len=1124"]);
    // Late packets of both earlier answers are ghosts.
    s.recv_all([first, second, answer("READ_RESP_FIRST", &data, 1)]);
    assert_eq!(s.counter(C::DropGhostResponse), 3);
    s.recv_all([third, last]);
    assert_eq!((s.results(), s.bytes(0, 3172)), (vec![(1, Success)], data));
    assert_eq!(s.counter(C::CompleterRetryErr), 2);
    // What comes after is held to the rules again.
    s.post(SendOp::Read, 2, 2000);
    s.recv(pkt("READ_RESP_LAST", SQ + 4).syndrome(0x1f).len(1024));
    assert_eq!(s.results(), [(2, BadResp)]);
}

#[test]
fn duplicates_of_responses_are_ghosts() {
    let (mut s, data) = reading();
    for packet in whole(&data) {
        s.recv_all([packet.clone(), packet]);
    }
    assert_eq!((s.results(), s.bytes(0, 3172)), (vec![(1, Success)], data));
    // The last one answers what is complete.
    assert_eq!(s.counter(C::DropGhostResponse) + s.counter(C::DropUnsentResponse), 4);
    s.silent();
}

#[test]
fn a_local_buffer_that_cannot_be_written_fails_the_read() {
    for case in 0..3 {
        let mut s = Script::new();
        let region = Region::alloc(4096).unwrap();
        let read_only =
            s.engine.register(s.pd, region, IovaChoice::Allocate, Access::empty()).unwrap();
        let sge = match case {
            0 => Sge { lkey: Lkey(0x77), ..s.sge(0, 2000) },
            1 => Sge { addr: read_only.iova, length: 2000, lkey: read_only.lkey },
            _ => Sge { addr: s.va(super::script::REGION) - 1000, ..s.sge(0, 2000) },
        };
        s.post_wqe(Script::wqe(SendOp::Read, 1), &[sge]);
        s.post(SendOp::Send, 2, 0);
        assert_eq!(s.sent().len(), 2, "the buffer is looked at when something arrives");
        s.recv(pkt("READ_RESP_FIRST", SQ).syndrome(0x1f).len(1024));
        assert_eq!(s.results(), [(1, LocProt), (2, WrFlush)]);
        s.silent();
    }
    // An atomic likewise.
    let mut s = Script::new();
    let sge = Sge { lkey: Lkey(0x77), ..s.sge(0, 8) };
    s.post_wqe(Script::wqe(SendOp::FetchAdd, 1), &[sge]);
    s.recv(pkt("ATOMIC_ACK", SQ).syndrome(0x1f));
    assert_eq!(s.results(), [(1, LocProt)]);
}

/// A window of 20 000 bytes: five packets to a request of a READ.
fn small_window() -> Script {
    let config: fn(&mut crate::engine::EngineConfig) = |c| {
        c.window = WindowConfig { initial: 20_000, max: 20_000, enabled: true };
    };
    Script::with(&Setup { config, rd_atomic: 2, ..Setup::default() })
}

#[test]
fn a_read_that_our_socket_can_hold_is_one_request() {
    // 64 KiB are 64 packets of 1856 bytes by the kernel's count; a quarter of the buffer may be in flight.
    let exactly = Setup { rx_buffer: Some(4 * 64 * 1856), ..Setup::default() };
    let mut s = Script::with(&exactly);
    s.post(SendOp::Read, 1, 1 << 16);
    s.expect(&["READ_REQUEST 001000 va=5000 rkey=77 len=65536"]);
    let mut s = Script::with(&Setup { rx_buffer: exactly.rx_buffer.map(|b| b - 4), ..exactly });
    s.post(SendOp::Read, 1, 1 << 16);
    // Two halves: 31 packets each, and what is left when there is room.
    s.expect(&[
        "READ_REQUEST 001000 va=5000 rkey=77 len=31744",
        "READ_REQUEST 00101f va=cc00 rkey=77 len=31744",
    ]);
}

#[test]
fn a_read_in_pieces() {
    let mut s = small_window();
    let data = pattern(12 * 1024 + 10, 3);
    s.post(SendOp::Read, 1, data.len());
    // Two pieces fit the window; the third follows when there is room, which each response makes.
    s.expect(&[
        "READ_REQUEST 001000 va=5000 rkey=77 len=5120",
        "READ_REQUEST 001005 va=6400 rkey=77 len=5120",
    ]);
    for i in 0..13 {
        let name = match i {
            0 | 5 | 10 => "READ_RESP_FIRST",
            4 | 9 | 12 => "READ_RESP_LAST",
            _ => "READ_RESP_MIDDLE",
        };
        s.recv(answer(name, &data, i));
        if i == 4 {
            s.expect(&["READ_REQUEST 00100a va=7800 rkey=77 len=2058"]);
        } else {
            s.silent();
        }
    }
    assert_eq!((s.results(), s.bytes(0, data.len())), (vec![(1, Success)], data));
    assert_eq!(s.engine.in_flight(), (0, 0));
}

#[test]
fn a_read_in_pieces_keeps_them_through_a_retry() {
    let mut s = small_window();
    let data = pattern(12 * 1024 + 10, 3);
    s.post(SendOp::Read, 1, data.len());
    s.sent();
    s.recv_all([
        answer("READ_RESP_FIRST", &data, 0),
        answer("READ_RESP_MIDDLE", &data, 1),
        answer("READ_RESP_MIDDLE", &data, 3),
    ]);
    // The rest of the first piece, then the second: the boundaries are those of before. The window was
    // halved by the loss, but one request goes in any case.
    s.expect(&["READ_REQUEST 001002 va=5800 rkey=77 len=3072"]);
    s.recv_all([
        answer("READ_RESP_FIRST", &data, 2),
        answer("READ_RESP_MIDDLE", &data, 3),
        answer("READ_RESP_LAST", &data, 4),
    ]);
    s.expect(&["READ_REQUEST 001005 va=6400 rkey=77 len=5120"]);
    // Lost altogether.
    s.wait(crate::time::Duration::from_millis(5));
    s.expect(&["READ_REQUEST 001005 va=6400 rkey=77 len=5120"]);
    // An answer to the first attempt and one to the second.
    for i in 5..10 {
        let name = match i {
            5 => "READ_RESP_FIRST",
            9 => "READ_RESP_LAST",
            _ => "READ_RESP_MIDDLE",
        };
        s.recv_all([answer(name, &data, i), answer(name, &data, i)]);
    }
    s.expect(&["READ_REQUEST 00100a va=7800 rkey=77 len=2058"]);
    s.recv(answer("READ_RESP_FIRST", &data, 10));
    s.recv(answer("READ_RESP_MIDDLE", &data, 11));
    s.recv(answer("READ_RESP_LAST", &data, 12));
    assert_eq!((s.results(), s.bytes(0, data.len())), (vec![(1, Success)], data));
    assert_eq!(s.engine.in_flight(), (0, 0));
}

#[test]
fn a_late_answer_opens_a_piece_that_was_not_asked_for_again() {
    let mut s = small_window();
    let data = pattern(12 * 1024 + 10, 3);
    s.post(SendOp::Read, 1, data.len());
    s.sent();
    s.recv_all([
        answer("READ_RESP_FIRST", &data, 0),
        answer("READ_RESP_MIDDLE", &data, 1),
        answer("READ_RESP_MIDDLE", &data, 3),
    ]);
    s.expect(&["READ_REQUEST 001002 va=5800 rkey=77 len=3072"]);
    // What was held back comes, and the first packet of the second piece with it: both of the first attempt.
    s.recv_all([
        answer("READ_RESP_MIDDLE", &data, 2),
        answer("READ_RESP_MIDDLE", &data, 3),
        answer("READ_RESP_LAST", &data, 4),
        answer("READ_RESP_FIRST", &data, 5),
    ]);
    s.expect(&["READ_REQUEST 001006 va=6800 rkey=77 len=4096"]);
    // The answer to the rest of the second piece begins with FIRST, too.
    s.recv_all([
        answer("READ_RESP_FIRST", &data, 6),
        answer("READ_RESP_MIDDLE", &data, 7),
        answer("READ_RESP_MIDDLE", &data, 8),
        answer("READ_RESP_LAST", &data, 9),
    ]);
    s.expect(&["READ_REQUEST 00100a va=7800 rkey=77 len=2058"]);
    s.recv_all([
        answer("READ_RESP_FIRST", &data, 10),
        answer("READ_RESP_MIDDLE", &data, 11),
        answer("READ_RESP_LAST", &data, 12),
    ]);
    assert_eq!((s.results(), s.bytes(0, data.len())), (vec![(1, Success)], data));
    assert_eq!(s.engine.in_flight(), (0, 0));
}

#[test]
fn each_piece_counts_as_a_read_in_flight() {
    let mut s = small_window();
    // One piece fits the window four times; two may be in flight.
    for id in 0..4 {
        s.post(SendOp::Read, id, 8);
    }
    s.expect(&[
        "READ_REQUEST 001000 va=5000 rkey=77 len=8",
        "READ_REQUEST 001001 va=5000 rkey=77 len=8",
    ]);
    s.recv(pkt("READ_RESP_ONLY", SQ).syndrome(0x1f).len(8));
    s.expect(&["READ_REQUEST 001002 va=5000 rkey=77 len=8"]);
    // A retry takes no more of them.
    s.recv(ack(SQ + 1, 0x60));
    s.expect(&[
        "READ_REQUEST 001001 va=5000 rkey=77 len=8",
        "READ_REQUEST 001002 va=5000 rkey=77 len=8",
    ]);
    for psn in 1..4 {
        s.recv(pkt("READ_RESP_ONLY", SQ + psn).syndrome(0x1f).len(8));
    }
    assert_eq!(s.results(), [0, 1, 2, 3].map(|id| (id, Success)));
}
