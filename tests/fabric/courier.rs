//! A program that brings numbered parcels to another host, each verified there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use softroce::cc::Dcqcn;
use softroce::prelude::*;
use softroce::sim::Network;

/// Bytes of a parcel.
const PARCEL: usize = 64 << 10;
/// Places for parcels at either end.
const PLACES: u32 = 64;

/// Parcels on the way from one host to another, for ever: written into a free place there and announced by
/// immediate data; the receiver looks at every byte and gives the place back with a message of its own.
pub(crate) struct Courier {
    verified: Arc<AtomicU64>,
}

struct End {
    qp: QueuePair,
    cq: CompletionQueue,
    rcq: CompletionQueue,
    mr: MemoryRegion,
}

impl End {
    fn new(ctx: &Context, cc: Option<Dcqcn>) -> Self {
        let pd = ctx.alloc_pd().unwrap();
        let (cq, rcq) = (ctx.create_cq(4 * PLACES).unwrap(), ctx.create_cq(4 * PLACES).unwrap());
        let builder = pd.create_qp(QpType::Rc, &cq).recv_cq(&rcq).depth(2 * PLACES, 2 * PLACES);
        let builder = match cc {
            Some(cc) => builder.congestion_control(cc),
            None => builder,
        };
        let qp = builder.build().unwrap();
        let mr = pd.alloc_mr(PLACES as usize * PARCEL, Access::REMOTE).unwrap();
        Self { qp, cq, rcq, mr }
    }
}

fn place(n: u32) -> std::ops::Range<usize> {
    let at = (n % PLACES) as usize * PARCEL;
    at..at + PARCEL
}

/// The bytes of a parcel: its number in the first word, then words that follow from it.
fn fill(parcel: &mut [u8], n: u32, salt: u64) {
    let mut word = u64::from(n) ^ salt;
    for bytes in parcel.chunks_exact_mut(8) {
        bytes.copy_from_slice(&word.to_le_bytes());
        word = word.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23).wrapping_add(1);
    }
}

impl Courier {
    pub(crate) fn start(net: &Network, from: &str, to: &str, mtu: Mtu, cc: Option<Dcqcn>) -> Self {
        let (a, b) = (net.host(from).unwrap(), net.host(to).unwrap());
        let (here, there) = (End::new(&a, cc), End::new(&b, None));
        let over = QpAttr::default().path_mtu(mtu);
        here.qp.connect_with(&there.qp.endpoint(), over.clone()).unwrap();
        there.qp.connect_with(&here.qp.endpoint(), over).unwrap();
        for end in [&here, &there] {
            let receives = (0..2 * u64::from(PLACES)).map(|id| RecvWr::new(id, ()));
            end.qp.post_recv(receives).unwrap();
        }
        let verified = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&verified);
        let target = there.mr.remote();
        let salt = u64::from(here.qp.number());
        net.sim().spawn(async move {
            let mut parcel = vec![0; PARCEL];
            for n in 0.. {
                if n >= PLACES {
                    // A place that was given back, and the parcel before it has left.
                    here.rcq.next().await?.ok()?;
                    here.qp.post_recv(RecvWr::new(1, ()))?;
                    here.cq.next().await?.ok()?;
                }
                fill(&mut parcel, n, salt);
                here.mr.write(place(n).start, &parcel);
                let at = target.at(place(n).start as u64);
                here.qp.post_send(SendWr::write(1, here.mr.sge(place(n)), at).imm(n))?;
            }
            Ok(())
        });
        net.sim().spawn(async move {
            let mut want = vec![0; PARCEL];
            for n in 0.. {
                let wc = there.rcq.next().await?.ok()?;
                assert_eq!(wc.imm, Some(n), "in order");
                fill(&mut want, n, salt);
                assert!(there.mr.to_vec(place(n)) == want, "parcel {n} is damaged");
                count.fetch_add(PARCEL as u64, Ordering::Relaxed);
                there.qp.post_recv(RecvWr::new(1, ()))?;
                there.qp.post_send(SendWr::send(1, ()))?;
                // Its ACK may be a long time coming, by the very way that is full.
                if n >= PLACES {
                    there.cq.next().await?.ok()?;
                }
            }
            Ok(())
        });
        Self { verified }
    }

    /// Bytes that arrived and were looked at.
    pub(crate) fn verified(&self) -> u64 {
        self.verified.load(Ordering::Relaxed)
    }
}
