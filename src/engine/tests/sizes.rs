//! What a queue pair costs when it does nothing.

use crate::engine::qp::{Qp, QpFace};

#[test]
fn an_idle_queue_pair_is_small() {
    let [qp, requester, responder, settings, resource] = Qp::sizes();
    let face = size_of::<QpFace>();
    // A snapshot: change it knowingly.
    assert_eq!([qp, requester, responder, settings, resource, face], [672, 224, 104, 64, 56, 160]);
    // Without its rings: of requests, of receives, and of the READs that may be asked for again.
    assert!(qp + settings + face <= 1024);
}
