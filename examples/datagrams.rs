//! datagrams [endpoint]: one queue pair, many peers; an answer goes to whoever asked.
//!
//! In two shells: `cargo run --example datagrams`, then what that says to ask it with.
#![expect(clippy::print_stdout, reason = "a program that says what it did")]
use softroce::prelude::*;

const QKEY: u32 = 0x1ee7;
const GRH: usize = 40; // every datagram arrives behind room for this header

fn answer(ctx: &Context) -> Result<()> {
    let (pd, cq) = (ctx.alloc_pd()?, ctx.create_cq(64)?);
    let qp = pd.create_qp(QpType::Ud, &cq).build()?;
    qp.activate(QKEY)?;
    println!("ask me with: cargo run --example datagrams {}", qp.endpoint());

    let mr = pd.alloc_mr(GRH + 1024, Access::LOCAL)?;
    loop {
        qp.post_recv(RecvWr::new(0, mr.sge(..)))?;
        let wc = cq.wait(Duration::MAX)?.ok()?;
        let mut grh = [0; GRH];
        mr.read(0, &mut grh);
        let back = pd.create_ah_from_wc(&wc, &grh)?;
        let echo = mr.sge(GRH..wc.byte_len as usize);
        qp.post_send(SendWr::send(1, echo).to(&back, wc.src_qpn, QKEY))?;
        cq.wait(Duration::MAX)?.ok()?;
    }
}

fn ask(ctx: &Context, peer: &QpEndpoint, question: &[u8]) -> Result<Vec<u8>> {
    let (pd, cq) = (ctx.alloc_pd()?, ctx.create_cq(64)?);
    let qp = pd.create_qp(QpType::Ud, &cq).build()?;
    qp.activate(QKEY)?;
    let (ah, mr) = (pd.create_ah(&peer.ah())?, pd.alloc_mr(GRH + 1024, Access::LOCAL)?);
    for _ in 0..20 {
        qp.post_recv(RecvWr::new(0, mr.sge(..)))?;
        let wr = SendWr::send(1, inline(question)).to(&ah, peer.qpn, peer.qkey);
        qp.post_send(wr.unsignaled())?;
        match cq.wait(Duration::from_millis(250)) {
            Ok(wc) => return Ok(mr.to_vec(GRH..wc.ok()?.byte_len as usize)),
            Err(Error::Timeout) => {} // datagrams get lost
            Err(e) => return Err(e),
        }
    }
    Err(Error::Timeout)
}

fn main() -> Result<()> {
    let ctx = softroce::open()?;
    match std::env::args().nth(1) {
        None => answer(&ctx),
        Some(peer) => {
            let said = ask(&ctx, &peer.parse()?, b"who?")?;
            println!("the answer: {:?}", String::from_utf8_lossy(&said));
            Ok(())
        }
    }
}
