//! What an observer is told.

use std::sync::{Arc, Mutex};

use super::pair::{Pair, REGION, Setup};
use crate::engine::cc::Loss;
use crate::engine::status::WcStatus::Success;
use crate::engine::trace::{NicEvent, Observer};
use crate::mem::{Access, AccessError, IovaChoice};
use crate::queue::{SendOp, SendWqe};
use crate::time::Instant;
use crate::wire::num::Rkey;

pub(crate) type Told = Vec<(Instant, NicEvent)>;

#[derive(Debug)]
struct Notes(Arc<Mutex<Told>>);

impl Observer for Notes {
    fn observe(&mut self, at: Instant, event: NicEvent) {
        self.0.lock().unwrap().push((at, event));
    }
}

/// What an engine does from now on.
pub(crate) fn notes(engine: &mut crate::engine::Engine) -> Arc<Mutex<Told>> {
    let notes: Arc<Mutex<Told>> = Arc::default();
    engine.set_observer(Some(Box::new(Notes(Arc::clone(&notes)))));
    notes
}

#[test]
fn a_loss_is_told_as_it_is_repaired() {
    let setup = Setup::default();
    let mut p = Pair::new(&setup);
    let notes = notes(&mut p.sides[0].engine);
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

#[test]
fn keys_are_looked_up_for_atomic_writes_and_flushes() {
    let access = Access::REMOTE | Access::FLUSH_GLOBAL;
    let mut p = Pair::new(&Setup { access, ..Setup::default() });
    let s = &mut p.sides[1];
    let region = Arc::clone(&s.region);
    let mr = s.engine.register(s.pd, region, IovaChoice::Allocate, access).unwrap();
    let notes = notes(&mut s.engine);
    let all = u64::try_from(REGION).unwrap();
    let any = p.wqe(0, SendOp::Flush, 1, 0);
    let at = |op| SendWqe { op, remote_addr: mr.iova, rkey: mr.rkey, ..any };
    let flush =
        |sel: u32, len| SendWqe { compare_add: len, imm_or_inv: sel << 4 | 1, ..at(SendOp::Flush) };
    let wqes = [at(SendOp::AtomicWrite), flush(0, 5000), flush(1, 0)];
    let word = p.sge(0, 0, 8);
    for wqe in wqes {
        let local = if wqe.op == SendOp::Flush { &[][..] } else { &[word][..] };
        p.post(0, wqe, local);
    }
    // By a key that reaches nothing.
    p.post(0, SendWqe { rkey: Rkey(mr.rkey.0 ^ 1), ..flush(1, 0) }, &[]);
    p.run();
    let told = notes.lock().unwrap();
    let checked: Vec<_> = told
        .iter()
        .filter_map(|(_, event)| match event {
            NicEvent::Checked { va, len, need, refused, .. } => Some((*va, *len, *need, *refused)),
            _ => None,
        })
        .collect();
    assert_eq!(
        checked,
        [
            (mr.iova, 8, Access::REMOTE_WRITE, None),
            (mr.iova, 5000, Access::FLUSH_GLOBAL, None),
            (mr.iova, all, Access::FLUSH_GLOBAL, None),
            (mr.iova, 0, Access::FLUSH_GLOBAL, Some(AccessError::UnknownKey)),
        ]
    );
}
