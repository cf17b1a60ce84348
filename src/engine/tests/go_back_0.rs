//! Go-back-0 between two engines: a message that has lost a packet begins anew.

use super::pair::{Fate, Pair, Setup};
use super::selective::{random, setup, told_of};
use crate::engine::EngineConfig;
use crate::engine::counters::Counter as C;
use crate::engine::qp::attr::QpState;
use crate::engine::qp::attr::Recovery::{GoBack0, GoBackN, Selective};
use crate::engine::status::WcStatus::Success;
use crate::queue::SendOp;
use crate::time::Duration;
use crate::wire::num::Psn;

/// PSNs that sequence NAKs have named.
fn naked(p: &Pair) -> Vec<u32> {
    p.log.iter().filter(|f| f.syndrome == Some(0x60)).map(|f| f.psn).collect()
}

#[test]
fn a_message_begins_anew_and_has_its_effect_once() {
    for (op, name, at) in [
        (SendOp::Write, "RC_WRITE_FIRST", 0),
        (SendOp::Write, "RC_WRITE_MIDDLE", 15),
        (SendOp::Write, "RC_WRITE_LAST", 29),
        (SendOp::WriteImm, "RC_WRITE_LAST_IMM", 29),
        (SendOp::Send, "RC_SEND_FIRST", 0),
        (SendOp::Send, "RC_SEND_MIDDLE", 15),
        (SendOp::Send, "RC_SEND_LAST", 29),
        (SendOp::SendImm, "RC_SEND_LAST_IMM", 29),
    ] {
        // With what came before the gap acknowledged, and not.
        for (psn, config) in [
            (0x1000, setup().config),
            (0xff_fffe, setup().config),
            (0xff_fffe, |c| c.ack_every = 3),
        ] {
            let mut p = told_of(GoBack0, &Setup { psn, config, ..setup() }, [true; 2]);
            p.lose(1, name, usize::from(at == 15) * 14);
            let data = p.fill(0, 0, 30_000, 9);
            p.post_recv_on(1, 1, 7, &[p.sge(1, 500_000, 40_000)]);
            p.stage_on(0, 1, p.wqe(0, op, 1, 100_000), &[p.sge(0, 0, 30_000)]);
            // There is always something behind it that shows the gap.
            p.stage_on(0, 1, p.wqe(0, SendOp::Write, 2, 200_000), &[p.sge(0, 0, 30_000)]);
            p.ring(0, 1);
            p.run();
            assert_eq!(p.results(0), [(1, Success), (2, Success)], "{name}");
            // The first packet of the message, and all that was under way is sent again: both messages.
            assert_eq!(naked(&p), [psn], "{name}");
            assert_eq!(p.counter(0, C::RetransmittedPkts), 60, "{name}");
            assert_eq!(p.counter(0, C::LocalAckTimeoutErr), 0, "{name}");
            assert_eq!(p.bytes(1, 200_000, 30_000), data, "{name}");
            let received = p.completions(1);
            match op {
                SendOp::Write => assert!(received.is_empty(), "{name}"),
                _ => assert_eq!(received.len(), 1, "{name}: once"),
            }
            let at = if matches!(op, SendOp::Send | SendOp::SendImm) { 500_000 } else { 100_000 };
            assert_eq!(p.bytes(1, at, 30_000), data, "{name}");
            p.assert_quiet();
        }
    }
}

#[test]
fn between_two_messages_it_is_go_back_n() {
    let mut p = told_of(GoBack0, &setup(), [true; 2]);
    p.lose(1, "RC_WRITE_FIRST", 1);
    for id in 0..3 {
        p.stage_on(0, 1, p.wqe(0, SendOp::Write, id, 0), &[p.sge(0, 0, 30_000)]);
    }
    p.ring(0, 1);
    p.run();
    assert_eq!(p.results(0), [(0, Success), (1, Success), (2, Success)]);
    assert_eq!((naked(&p), p.counter(0, C::RetransmittedPkts)), (vec![0x1000 + 30], 60));
    p.assert_quiet();
}

/// Who has offered it, and was not told that its peer has heard of that, goes back as far as it is asked to.
#[test]
fn a_message_that_begins_anew_is_understood_by_who_has_offered_it() {
    for retry_cnt in [0, 7] {
        let setup = Setup { config: often_acked, retry_cnt, ..setup() };
        let mut p = told_of(GoBack0, &setup, [false, true]);
        p.lose(1, "RC_WRITE_MIDDLE", 20);
        let data = p.fill(0, 0, 60_000, 4);
        p.post_on(0, 1, p.wqe(0, SendOp::Write, 1, 0), &[p.sge(0, 0, 60_000)]);
        p.run();
        assert_eq!((p.results(0), p.bytes(1, 0, 60_000)), (vec![(1, Success)], data));
        assert_eq!(naked(&p), [0x1000]);
        assert_eq!((p.counter(0, C::RcvdSeqErr), p.counter(0, C::LocalAckTimeoutErr)), (1, 0));
        assert_eq!(p.counter(0, C::RetransmittedPkts), 59, "all of it, once");
        p.assert_quiet();
    }
}

fn rarely_acked(config: &mut EngineConfig) {
    (setup().config)(config);
    config.ack_every = u32::MAX;
}

fn often_acked(config: &mut EngineConfig) {
    (setup().config)(config);
    config.ack_every = 2;
}

/// What it is shown for.
#[test]
fn of_long_messages_none_completes_and_nothing_fails() {
    for recovery in [GoBackN, GoBack0, Selective] {
        for config in [rarely_acked as fn(&mut EngineConfig), often_acked] {
            let mut p = told_of(recovery, &Setup { config, ..setup() }, [true; 2]);
            let mut data = 0_u32;
            p.rule(move |f| {
                data += u32::from(f.to == 1);
                if f.to == 1 && data % 50 == 25 { Fate::Drop } else { Fate::Pass }
            });
            p.post_on(0, 1, p.wqe(0, SendOp::Write, 1, 0), &[p.sge(0, 0, 200 << 10)]);
            p.run_for(Duration::from_micros(200));
            let again = p.counter(0, C::RetransmittedPkts);
            if recovery == GoBack0 {
                assert_eq!(p.results(0), []);
                // More than its retries, each of all that there is.
                assert!(again > 20 * 200, "{again}");
                assert_eq!(p.sides[0].qps[1].1.state(), QpState::Rts);
            } else {
                assert_eq!(p.results(0), [(1, Success)], "{recovery:?}: {again}");
            }
        }
    }
}

#[test]
fn random_losses_lose_no_byte() {
    for (seed, psn) in [(1, 0x1000), (2, 0xff_ff00), (3, 0)] {
        for loss in [0, 10, 100, 300] {
            let p = random(GoBack0, seed, loss, psn);
            let again = p.counter(0, C::RetransmittedPkts);
            assert!(loss < 100 || again > 0, "seed {seed}, loss {loss}");
        }
    }
}

#[test]
fn who_was_not_told_sees_nothing_of_it() {
    let go = |recovery, sides| {
        let mut p = told_of(recovery, &setup(), sides);
        p.lose(1, "RC_WRITE_MIDDLE", 9);
        let data = p.fill(0, 0, 60_000, 4);
        p.post_on(0, 1, p.wqe(0, SendOp::Write, 1, 0), &[p.sge(0, 0, 60_000)]);
        p.run();
        assert_eq!((p.results(0), p.bytes(1, 0, 60_000)), (vec![(1, Success)], data));
        p.assert_quiet();
        (naked(&p), p.counter(0, C::RetransmittedPkts))
    };
    let go_back_n = go(GoBackN, [true; 2]);
    assert_eq!(go_back_n.0, [Psn::new(0x1000).offset(10).raw()]);
    assert_eq!(go(GoBack0, [false; 2]), go_back_n);
    // One that has agreed to it alone starts nothing over, and takes the NAK for what it is.
    assert_eq!(go(GoBack0, [true, false]).0, go_back_n.0);
    let (naks, again) = go(GoBack0, [true; 2]);
    assert!(naks == [0x1000] && again > go_back_n.1);
}
