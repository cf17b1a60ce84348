//! One side lends memory; the other writes, reads and counts in it, with nobody at home.
#![expect(clippy::print_stdout, reason = "a program that says what it did")]
#![expect(clippy::unwrap_used, reason = "a thread that panicked takes the program with it")]
use softroce::prelude::*;
use std::{
    io::{Read, Write},
    sync::atomic::Ordering::Acquire,
};

const SEC: Duration = Duration::from_secs(5);

/// Lends 1 MiB and waits until the peer raises the flag in its last word.
fn lend(ctx: &Context, tcp: &mut (impl Read + Write)) -> Result<Vec<u8>> {
    let (pd, cq) = (ctx.alloc_pd()?, ctx.create_cq(1)?);
    let mr = pd.alloc_mr(1 << 20, Access::REMOTE)?;
    let qp = pd.create_qp(QpType::Rc, &cq).build()?;
    let (peer, _) = oob::exchange(tcp, &(qp.endpoint(), mr.remote()))?;
    qp.connect(&peer)?;
    oob::exchange(tcp, &())?;
    while mr.load((1 << 20) - 8, Acquire) == 0 {
        std::thread::yield_now();
    }
    Ok(mr.to_vec(0..4096))
}

fn use_it(ctx: &Context, tcp: &mut (impl Read + Write)) -> Result<()> {
    let (pd, cq) = (ctx.alloc_pd()?, ctx.create_cq(16)?);
    let mr = pd.alloc_mr(8200, Access::LOCAL)?;
    let qp = pd.create_qp(QpType::Rc, &cq).build()?;
    let (peer, theirs) = oob::exchange(tcp, &(qp.endpoint(), mr.remote()))?;
    qp.connect(&peer)?;
    oob::exchange(tcp, &())?;

    mr.fill(0..4096, 0xab);
    qp.post_send([
        SendWr::write(1, mr.sge(..4096), theirs).unsignaled(),
        SendWr::read(2, mr.sge(4096..8192), theirs),
        SendWr::fetch_add(3, mr.sge(8192..), theirs.at(8192), 1),
        SendWr::write(4, inline(&1u64.to_ne_bytes()), theirs.at(theirs.len - 8)).fence(),
    ])?;
    for _ in 0..3 {
        cq.wait(SEC)?.ok()?;
    }
    assert_eq!(mr.to_vec(4096..8192), [0xab; 4096]);
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "a thread that ends with the process if we fail")]
fn main() -> Result<()> {
    let ctx = softroce::open()?;
    let (mut a, mut b) = std::os::unix::net::UnixStream::pair()?;
    let lender = std::thread::spawn({
        let ctx = ctx.clone();
        move || lend(&ctx, &mut a)
    });
    use_it(&ctx, &mut b)?;
    assert_eq!(lender.join().unwrap()?, [0xab; 4096]);
    println!("written, read and counted in memory that its owner never touched");
    Ok(())
}
