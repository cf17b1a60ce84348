//! A transfer over a bad network: the same every run, and finished before you look up.
#![expect(clippy::print_stdout, reason = "a program that says what it did")]
use softroce::prelude::*;
use softroce::sim::{Link, Sim};

const US: Duration = Duration::from_micros(1);
const SEC: Duration = Duration::from_secs(1);

type Side = (ProtectionDomain, CompletionQueue, QueuePair);

fn connected(a: &Context, b: &Context) -> Result<[Side; 2]> {
    let side = |c: &Context| -> Result<_> {
        let (pd, cq) = (c.alloc_pd()?, c.create_cq(64)?);
        let qp = pd.create_qp(QpType::Rc, &cq).build()?;
        Ok((pd, cq, qp))
    };
    let (x, y) = (side(a)?, side(b)?);
    x.2.connect(&y.2.endpoint())?;
    y.2.connect(&x.2.endpoint())?;
    Ok([x, y])
}

/// Writes 1 MiB. Says how long it took, how many losses were noticed, and a digest of all that happened.
fn transfer(seed: u64) -> Result<(Duration, u64, u64)> {
    let sim = Sim::new(seed);
    let [a, b] = sim.hosts(Link { delay: 5 * US, loss: 0.05, reorder: 0.01, ..Link::default() });
    let [(pa, cq, qp), (pb, _cq, _qp)] = connected(&a, &b)?;
    let src = pa.alloc_mr(1 << 20, Access::LOCAL)?;
    let dst = pb.alloc_mr(1 << 20, Access::REMOTE)?;
    src.write(0, &vec![0x5a; 1 << 20]);

    qp.post_send(SendWr::write(1, src.sge(..), dst.remote()))?;
    cq.wait(10 * SEC)?.ok()?; // virtual seconds
    assert_eq!(dst.to_vec(0..1 << 20), src.to_vec(0..1 << 20));
    Ok((sim.now(), a.counters(1)?["rcvd_seq_err"], sim.trace_hash()))
}

fn main() -> Result<()> {
    let first = transfer(42)?;
    let (took, losses, digest) = first;
    assert_eq!(first, transfer(42)?);
    println!(
        "1 MiB, {losses} losses noticed, {took:?} of virtual time, and the same again: {digest:016x}"
    );
    Ok(())
}
