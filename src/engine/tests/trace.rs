//! What an observer is told.

use std::sync::{Arc, Mutex};

use super::pair::{Pair, Setup};
use crate::engine::cc::Loss;
use crate::engine::status::WcStatus::Success;
use crate::engine::trace::{NicEvent, Observer};
use crate::queue::SendOp;
use crate::time::Instant;

type Told = Vec<(Instant, NicEvent)>;

#[derive(Debug)]
struct Notes(Arc<Mutex<Told>>);

impl Observer for Notes {
    fn observe(&mut self, at: Instant, event: NicEvent) {
        self.0.lock().unwrap().push((at, event));
    }
}

#[test]
fn a_loss_is_told_as_it_is_repaired() {
    let setup = Setup::default();
    let mut p = Pair::new(&setup);
    let notes: Arc<Mutex<Told>> = Arc::default();
    p.sides[0].engine.set_observer(Some(Box::new(Notes(Arc::clone(&notes)))));
    p.lose(1, "RC_WRITE_MIDDLE", 0);
    let (wqe, local) = (p.wqe(0, SendOp::Write, 5, 0), p.sge(0, 0, 3 * setup.mtu.bytes()));
    p.post(0, wqe, &[local]);
    p.run();
    assert_eq!(p.results(0), [(5, Success)]);

    let told = std::mem::take(&mut *notes.lock().unwrap());
    assert!(told.is_sorted_by_key(|(at, _)| *at));
    let first = told.iter().find_map(|(_, event)| match event {
        NicEvent::Fetched { first_psn, psns: 3, wqe, .. } if wqe.wr_id == 5 => Some(*first_psn),
        _ => None,
    });
    let second = (first.unwrap() + 1) & 0xff_ffff;
    let sent = told.iter().filter(|(_, event)| match event {
        NicEvent::Sent(brief) => brief.psn == second,
        _ => false,
    });
    assert_eq!(sent.count(), 2, "sent, and sent again");
    assert!(told.iter().any(|(_, event)| matches!(
        event,
        NicEvent::WentBack { loss: Loss::SequenceNak, psn, .. } if *psn == second
    )));
    assert!(matches!(told.last(), Some((_, NicEvent::Completed { wr_id: 5, .. }))));

    // Nobody is told any more.
    p.sides[0].engine.set_observer(None);
    let wqe = p.wqe(0, SendOp::Write, 6, 0);
    p.post(0, wqe, &[local]);
    p.run();
    assert!(notes.lock().unwrap().is_empty());
}
