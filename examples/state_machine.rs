//! The state machine by hand, for those who want every attribute.
#![expect(clippy::print_stdout, reason = "a program that says what it did")]
use softroce::prelude::*;

fn bring_up(qp: &QueuePair, peer: &QpEndpoint) -> Result<()> {
    qp.modify(&QpAttr::to(QpState::Init).port(1).pkey_index(0).access(Access::REMOTE))?;
    qp.modify(
        &QpAttr::to(QpState::Rtr)
            .ah(peer.ah())
            .path_mtu(peer.mtu)
            .dest_qpn(peer.qpn)
            .rq_psn(peer.psn)
            .max_dest_rd_atomic(16)
            .min_rnr_timer(12),
    )?;
    qp.modify(
        &QpAttr::to(QpState::Rts)
            .sq_psn(qp.endpoint().psn)
            .timeout(17)
            .retry_cnt(7)
            .rnr_retry(7)
            .max_rd_atomic(16),
    )
}

fn main() -> Result<()> {
    let ctx = softroce::open()?;
    let (pd, cq) = (ctx.alloc_pd()?, ctx.create_cq(2)?);
    let qp = pd.create_qp(QpType::Rc, &cq).build_reset()?;
    bring_up(&qp, &qp.endpoint())?; // talk to myself
    let mr = pd.alloc_mr(64, Access::LOCAL)?;
    qp.post_recv(RecvWr::new(1, mr.sge(..)))?;
    qp.post_send(SendWr::send(2, inline(b"it is me")).unsignaled())?;
    let wc = cq.wait(Duration::from_secs(5))?.ok()?;
    let text = mr.to_vec(0..wc.byte_len as usize);
    println!("{:?}, and {:?} came back", qp.state()?, String::from_utf8_lossy(&text));
    Ok(())
}
