//! Ping-pongs: ACKs wait for the next message where the peer's program goes on without them, and nowhere else.

use super::pair::{Fate, Pair, Setup};
use super::random::bad_network;
use crate::engine::config::EngineConfig;
use crate::engine::counters::Counter as C;
use crate::engine::qp::attr::{QpAttr, QpState};
use crate::engine::status::WcStatus::{self, Success};
use crate::engine::{Acks, Engine};
use crate::net::RxMeta;
use crate::queue::{CqeKind, SendFlags, SendOp, SendWqe};
use crate::time::{Duration, Instant};

/// Replies that take ACKs along before the first try.
const FIRST_TRY: usize = 4;

/// Two programs that poll all the time.
struct Players {
    p: Pair,
    /// With every how many messages they ask for a completion.
    signal_every: u64,
    /// Messages sent, and known to have arrived.
    sent: [u64; 2],
    done: [u64; 2],
}

impl Players {
    fn new(signal_every: u64) -> Self {
        // Timers would fire within what is tried here.
        Self::with(signal_every, &Setup { timeout: 0, ..Setup::default() })
    }

    fn with(signal_every: u64, setup: &Setup) -> Self {
        let p = Pair::new(setup);
        let mut players = Self { p, signal_every, sent: [0; 2], done: [0; 2] };
        players.p.acks = [Acks::Coalesce; 2];
        for side in 0..2 {
            players.p.post_recv(side, 0, &[players.p.sge(side, 0, 64)]);
        }
        players
    }

    fn play(&mut self, side: usize) {
        let p = &mut self.p;
        self.sent[side] += 1;
        let n = self.sent[side];
        let asks = n.is_multiple_of(self.signal_every);
        let flags = if asks { SendFlags::SIGNALED } else { SendFlags::empty() };
        p.post(side, SendWqe { flags, ..p.wqe(side, SendOp::Send, n, 0) }, &[p.sge(side, 0, 64)]);
        p.post_recv(side, 0, &[p.sge(side, 0, 64)]);
    }

    /// The program of a side looks until a message is there. The pass that finds it holds ACKs back.
    fn hear(&mut self, side: usize) {
        for looks in 0.. {
            if self.p.sides[side].engine.take_received() {
                break;
            }
            assert!(looks < 1000, "nothing that is awaited comes");
            let patience = std::mem::replace(&mut self.p.acks[side], Acks::Hold);
            assert!(self.p.step(), "nothing comes");
            self.p.acks[side] = patience;
        }
        self.poll(side);
    }

    fn poll(&mut self, side: usize) {
        for c in self.p.completions(side) {
            assert_eq!(WcStatus::from_raw(c.status.into()), Success);
            if c.kind == CqeKind::Send {
                self.done[side] = c.wr_id;
            }
        }
    }

    /// There and back. Whether the reply left alone.
    fn round(&mut self) -> bool {
        self.play(0);
        self.hear(1);
        let before = self.p.names(0).len();
        self.play(1);
        let alone = match self.p.names(0)[before..] {
            ["RC_SEND_ONLY"] => true,
            ["RC_SEND_ONLY", "RC_ACK"] => false,
            ref sent => panic!("{sent:?}"),
        };
        self.hear(0);
        alone
    }

    /// Rounds until a reply leaves alone.
    fn until_alone(&mut self) -> usize {
        (0..10_000).find(|_| self.round()).unwrap()
    }

    /// When side 1 sent the reply that side 0 has just heard.
    fn replied(&self) -> Instant {
        self.p.now.earlier(self.p.delay)
    }

    /// The last packet that side 1 sent, and when.
    fn last(&self) -> (&'static str, Instant) {
        self.p.log.iter().rfind(|f| f.to == 0).map(|f| (f.name, f.at)).unwrap()
    }

    /// ACKs of side 1.
    fn acks(&self) -> usize {
        self.p.names(0).iter().filter(|name| **name == "RC_ACK").count()
    }

    /// Nothing more is played, and all that was sent is known to have arrived, by itself. How many packets were repeated.
    fn finish(mut self) -> u64 {
        self.p.run();
        for side in 0..2 {
            self.poll(side);
            let asked = self.sent[side] - self.sent[side] % self.signal_every;
            assert_eq!(self.done[side], asked, "side {side}");
        }
        self.p.assert_quiet();
        (0..2).map(|side| self.p.counter(side, C::RetransmittedPkts)).sum()
    }
}

#[test]
fn replies_leave_alone_once_the_peer_has_shown_that_it_goes_on() {
    let mut game = Players::new(8);
    assert_eq!(game.until_alone(), FIRST_TRY);
    let with_ack: Vec<_> = (1..64).filter(|_| !game.round()).collect();
    assert_eq!(with_ack, [7, 15, 23, 31, 39, 47, 55, 63]);
    assert_eq!(game.finish(), 0);
}

#[test]
fn a_peer_that_waits_for_its_completion_is_not_kept_waiting_for_long() {
    let mut game = Players::new(8);
    game.until_alone();
    // Its program has the reply, and looks for the completion of its own message.
    let (due, acks) = (game.replied() + EngineConfig::new([0; 32]).ack_coalesce, game.acks());
    game.p.run();
    assert_eq!((game.last(), game.acks()), (("RC_ACK", due), acks + 1));
    assert_eq!(game.until_alone(), 2 * FIRST_TRY, "the next try is later");
    assert_eq!(game.finish(), 0);
}

#[test]
fn an_ack_that_has_waited_is_not_held_back_after_it() {
    let mut game = Players::new(8);
    game.until_alone();
    let due = game.replied() + EngineConfig::new([0; 32]).ack_coalesce;
    // Messages for others come all the time, and each pass holds ACKs back.
    game.p.acks[1] = Acks::Hold;
    game.p.run();
    assert_eq!(game.last(), ("RC_ACK", due));
    assert_eq!(game.finish(), 0);
}

/// A device that has an ACK to send, which waits for another message; what time it is, and when the ACK leaves by itself.
pub(crate) fn waiting() -> (Engine, Instant, Instant) {
    let mut game = Players::new(8);
    game.until_alone();
    let due = game.replied() + EngineConfig::new([0; 32]).ack_coalesce;
    let [_, side] = game.p.sides;
    (side.engine, game.p.now, due)
}

#[test]
fn an_ack_that_waits_leaves_when_the_program_looks_no_more() {
    let mut game = Players::new(8);
    game.until_alone();
    let acks = game.acks();
    // Somebody else makes a pass, or the program does on its way to sleep.
    game.p.acks[1] = Acks::Send;
    game.p.pump(1);
    assert_eq!(game.acks(), acks + 1);
    game.p.pump(1);
    game.p.acks[1] = Acks::Coalesce;
    game.p.pump(1);
    assert_eq!(game.acks(), acks + 1, "once");
    // That was nobody's fault.
    assert_eq!(game.until_alone(), 0);
    assert_eq!(game.finish(), 0);
}

#[test]
fn a_program_that_stops_looking_after_its_reply_keeps_no_peer_waiting_in_every_round() {
    let mut game = Players::new(1);
    let mut late = 0;
    for _ in 0..2000 {
        let alone = game.round();
        if alone {
            // It computes, and somebody looks in its stead, or itself, when the ACK should have left already.
            late += 1;
            game.p.now += Duration::from_micros(200);
            game.p.acks[1] = Acks::Send;
            game.p.pump(1);
            game.p.acks[1] = Acks::Coalesce;
        }
        // The peer waits for its request to complete.
        game.p.run();
        game.poll(0);
        assert_eq!(game.done[0], game.sent[0]);
    }
    // After 4, 8, 16 and so on up to 512, and then every 512.
    assert_eq!(late, 9);
}

#[test]
fn a_message_without_an_answer_is_acknowledged_at_once_though_an_ack_waits() {
    let mut game = Players::new(1);
    game.until_alone();
    let acks = game.acks();
    game.play(0);
    game.hear(1);
    // The program has nothing to answer and looks again.
    game.p.pump(1);
    assert_eq!((game.last().1, game.acks()), (game.p.now, acks + 1));
    game.p.run();
    game.poll(0);
    assert_eq!(game.done[0], game.sent[0]);
}

#[test]
fn a_peer_that_waits_after_every_few_messages_is_tried_ever_more_rarely() {
    let mut game = Players::new(4);
    let mut waits = 0;
    for _ in 0..1000 {
        let mut alone = false;
        for _ in 0..4 {
            alone = game.round();
        }
        waits += usize::from(alone);
        game.p.run();
        game.poll(0);
        assert_eq!(game.done[0], game.sent[0]);
    }
    // Of 1000. It would be every fifth if going on for four messages were enough to be trusted again.
    assert!((10..20).contains(&waits), "{waits}");
}

#[test]
fn the_ack_of_a_program_that_goes_to_sleep_follows_its_reply() {
    let mut game = Players::new(1);
    game.until_alone();
    for _ in 0..100 {
        // Whoever goes to sleep makes a pass before.
        let acks = game.acks();
        game.p.acks[1] = Acks::Send;
        game.p.pump(1);
        assert_eq!((game.last(), game.acks()), (("RC_ACK", game.p.now), acks + 1));
        game.p.acks[1] = Acks::Coalesce;
        game.p.run();
        game.poll(0);
        assert_eq!(game.done[0], game.sent[0]);
        assert!(game.round(), "nobody had to wait, so the next reply leaves alone too");
    }
}

#[test]
fn acks_leave_in_the_order_of_their_times() {
    let mut game = Players::new(8);
    game.until_alone();
    let (first, coalesce) = (game.replied(), EngineConfig::new([0; 32]).ack_coalesce);
    let (engine, other) = (&mut game.p.sides[1].engine, 999);
    // Another queue pair's has begun to wait a little later, and then the peer of the first one goes on.
    engine.enlist(first + coalesce + Duration::from_micros(2), other);
    game.round();
    let due = game.replied() + coalesce;
    assert!(due > first + coalesce + Duration::from_micros(2));
    game.p.run();
    assert_eq!(game.last(), ("RC_ACK", due));
}

#[test]
fn an_ack_that_waits_is_not_lost_with_its_queue_pair() {
    for how in [QpState::Err, QpState::Reset] {
        let mut game = Players::new(1);
        game.until_alone();
        let p = &mut game.p;
        if how == QpState::Reset {
            // Its driver settles what is owed first.
            let (qp, mut buf) = (p.sides[1].qp, vec![0; 4096]);
            let (t, _) = p.sides[1].engine.poll_owed(p.now, qp, &mut buf).unwrap();
            let meta = RxMeta { path: t.path, ident: Some(t.ident), df: Some(true), gro_index: 0 };
            p.sides[0].engine.handle_datagram(p.now, &meta, &buf[..t.len]);
        }
        p.modify(1, &QpAttr::to(how));
        p.run();
        game.poll(0);
        assert_eq!(game.done[0], game.sent[0], "{how:?}");
    }
}

#[test]
fn a_message_that_comes_again_is_acknowledged_at_once() {
    let mut game = Players::new(8);
    (0..FIRST_TRY).for_each(|_| assert!(!game.round()));
    // The first of the two is answered, and then the second one comes.
    game.p.rule(|f| if f.to == 1 { Fate::Twice } else { Fate::Pass });
    let acks = game.acks();
    assert!(game.round());
    assert_eq!((game.p.counter(1, C::DuplicateSend), game.acks()), (1, acks + 1));
    assert_eq!(game.last(), ("RC_ACK", game.replied()));
    // A peer that asks twice, as one with a short timeout does, is not kept waiting again soon.
    game.p.rule(|_| Fate::Pass);
    assert_eq!(game.until_alone(), 2 * FIRST_TRY);
    assert_eq!(game.finish(), 0);
}

#[test]
fn rounds_that_take_longer_than_an_ack_waits_are_acknowledged_all_the_same() {
    // The next message is there a little before the ACK would leave by itself, at that moment, and after it.
    for delay in 8..13 {
        let mut game = Players::new(8);
        game.until_alone();
        game.p.delay = Duration::from_micros(delay);
        for _ in 0..200 {
            game.p.now += Duration::from_nanos(500);
            game.round();
            assert!(game.sent[0] - game.done[0] <= 8 + 8, "delay {delay}");
        }
        assert_eq!(game.finish(), 0);
    }
}

#[test]
fn a_bad_network_keeps_nobody_from_being_acknowledged() {
    let mut repeated = 0;
    for seed in 0..4 {
        let mut game = Players::with(8, &Setup { timeout: 6, ..Setup::default() });
        // One packet in 10 crosses it: where hardly any run is undisturbed, no ACK is made to wait.
        let (mut bad, mut packets) = (bad_network(seed, 1), 0);
        game.p.rule(move |f| {
            packets += 1;
            if packets % 10 == 0 { bad(f) } else { Fate::Pass }
        });
        for _ in 0..2000 {
            for side in [0, 1] {
                game.play(side);
                game.hear(1 - side);
            }
        }
        let acks = game.acks();
        assert!(acks < 1500, "{acks} for 2000 messages: hardly any waited");
        repeated += game.finish();
    }
    assert!(repeated > 5, "{repeated}");
}
