//! Runs the operation on a simulated network, and keeps what was recorded of it.

use std::path::PathBuf;
use std::sync::Arc;

use softroce::prelude::*;
use softroce::sim::trace::{Record, Trace};
use softroce::sim::{Action, Class, Link, Rule, SEED_VARIABLE, Sim};

use super::{Request, Topic};
use crate::tour::Failure;

/// Everything random follows from it: keys, numbers of queue pairs, PSNs.
const SEED: u64 = 1;
/// More records than the longest message makes.
const RECORDS: usize = 1 << 20;
/// Number of the request, and of the receive.
pub(super) const REQUEST: u64 = 7;
pub(super) const RECEIVE: u64 = 9;
/// How late the receiver is where that is the subject.
const LATE: Duration = Duration::from_micros(200);
/// The word that is added to, and what.
pub(super) const COUNTER: u64 = 41;
pub(super) const ADDED: u64 = 1;

/// Marks in the trace: what the applications do.
pub(super) mod mark {
    pub(in super::super) const POST: &str = "post";
    pub(in super::super) const POST_RECEIVE: &str = "post receive";
    pub(in super::super) const POLL: &str = "poll";
    pub(in super::super) const POLL_RECEIVE: &str = "poll receive";
}

/// One of the two sides.
#[derive(Clone, Debug)]
pub(super) struct Side {
    pub(super) address: String,
    pub(super) qpn: u32,
    /// Memory that takes part: where it begins, its bytes, and its keys.
    pub(super) iova: u64,
    pub(super) len: usize,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

/// An operation that was carried out.
#[derive(Debug)]
pub(super) struct Journey {
    pub(super) topic: Topic,
    pub(super) size: usize,
    pub(super) mtu: Mtu,
    pub(super) link: Link,
    pub(super) sides: [Side; 2],
    pub(super) records: Vec<Record>,
    pub(super) pcap: Option<PathBuf>,
}

/// What a side is made of.
struct Made {
    qp: QueuePair,
    cq: CompletionQueue,
    mr: MemoryRegion,
}

impl Made {
    fn new(host: &Context, bytes: usize, access: Access) -> Result<Self> {
        let (pd, cq) = (host.alloc_pd()?, host.create_cq(16)?);
        let qp = pd.create_qp(QpType::Rc, &cq).build()?;
        let mr = pd.alloc_mr(bytes.max(1), access)?;
        Ok(Self { qp, cq, mr })
    }

    fn address(&self) -> String {
        let gid = self.qp.endpoint().gid;
        gid.ip().map_or_else(|| gid.to_string(), |ip| ip.to_string())
    }

    fn side(&self) -> Side {
        Side {
            address: self.address(),
            qpn: self.qp.number(),
            iova: self.mr.iova(),
            len: self.mr.len(),
            lkey: self.mr.lkey(),
            rkey: self.mr.rkey(),
        }
    }
}

/// Runs it.
pub(super) fn run(request: &Request) -> Result<Journey, Failure> {
    let topic = request.topic;
    let size = request.size.unwrap_or(topic.default_size());
    if topic == Topic::Atomic && size != 8 {
        return Err(Failure::new("an atomic is about 8 bytes, always: leave --size away"));
    }
    let seed = match std::env::var(SEED_VARIABLE) {
        Ok(text) if !text.is_empty() => text.trim().parse().map_err(|_| {
            Failure::new(format!("{SEED_VARIABLE} is {text:?}: it must be a number"))
        })?,
        _ => SEED,
    };
    let sim = Sim::exact(seed);
    let link = Link::default();
    let (here, there) = (sim.try_host(link)?, sim.try_host(link)?);
    let lends = match topic {
        Topic::Send | Topic::Rnr => Access::LOCAL,
        _ => Access::REMOTE,
    };
    let a = Made::new(&here, size, Access::LOCAL)?;
    let b = Made::new(&there, size, lends)?;
    let over = QpAttr::default().path_mtu(request.mtu);
    a.qp.connect_with(&b.qp.endpoint(), over.clone())?;
    b.qp.connect_with(&a.qp.endpoint(), over)?;

    // A period that is no packet's: bytes of the wrong packet would be wrong.
    let message: Vec<u8> = (0..251).cycle().take(size).collect();
    let source = if topic == Topic::Read { &b.mr } else { &a.mr };
    source.write(0, &message);
    if topic == Topic::Atomic {
        b.mr.write(0, &COUNTER.to_ne_bytes());
    }
    if topic == Topic::Loss {
        // The second packet: what follows it shows the gap. Of two, the first; the only one there is.
        let packets = size.div_ceil(request.mtu.bytes());
        let nth = if packets > 2 { 2 } else { 1 };
        sim.rule(Rule::new(Class::Request, Action::Drop).nth(nth))?;
    }
    if let Some(file) = &request.pcap {
        // Its own words say which file; those of a verb would say which errno.
        std::fs::File::create(file)
            .map_err(|e| Failure::new(format!("{}: {e}", file.display())))?;
        sim.pcap(file)?;
    }
    let sides = [a.side(), b.side()];
    let trace = Arc::new(sim.trace(RECORDS)?);
    let b = Arc::new(b);
    carry_out(&sim, topic, size, (&a, &b), &trace)?;
    sim.settle();
    if request.pcap.is_some() {
        sim.stop_pcap()?;
    }
    let records = trace.take();
    if trace.lost() > 0 {
        return Err(Failure::new("more happened than can be remembered"));
    }
    verify(topic, &message, &a, &b)?;
    let (mtu, pcap) = (request.mtu, request.pcap.clone());
    Ok(Journey { topic, size, mtu, link, sides, records, pcap })
}

/// Both applications, from posting to the last completion.
fn carry_out(
    sim: &Sim,
    topic: Topic,
    size: usize,
    (a, b): (&Made, &Arc<Made>),
    trace: &Arc<Trace>,
) -> Result<(), Failure> {
    if matches!(topic, Topic::Send | Topic::Rnr) {
        let post = {
            let (b, trace) = (Arc::clone(b), Arc::clone(trace));
            move || {
                trace.mark(mark::POST_RECEIVE);
                b.qp.post_recv(RecvWr::new(RECEIVE, b.mr.sge(..size)))
            }
        };
        if topic == Topic::Send {
            post()?;
        }
        let (time, b, trace) = (sim.clone(), Arc::clone(b), Arc::clone(trace));
        sim.spawn(async move {
            if topic == Topic::Rnr {
                time.sleep(LATE).await;
                post()?;
            }
            b.cq.next().await?.ok()?;
            trace.mark(mark::POLL_RECEIVE);
            Ok(())
        });
    }
    let (local, remote) = (a.mr.sge(..size), b.mr.remote());
    let wr = match topic {
        Topic::Read => SendWr::read(REQUEST, local, remote),
        Topic::Write | Topic::Loss => SendWr::write(REQUEST, local, remote),
        Topic::Send | Topic::Rnr => SendWr::send(REQUEST, local),
        Topic::Atomic => SendWr::fetch_add(REQUEST, local, remote, ADDED),
    };
    trace.mark(mark::POST);
    a.qp.post_send(wr)?;
    let completion = sim.block_on(a.cq.next())?;
    trace.mark(mark::POLL);
    completion.ok()?;
    Ok(())
}

/// Whether memory is as it should be afterwards.
fn verify(topic: Topic, message: &[u8], a: &Made, b: &Made) -> Result<(), Failure> {
    let word = |mr: &MemoryRegion| mr.load(0, std::sync::atomic::Ordering::Acquire);
    let right = match topic {
        Topic::Read => a.mr.to_vec(0..message.len()) == message,
        Topic::Atomic => word(&a.mr) == COUNTER && word(&b.mr) == COUNTER + ADDED,
        _ => b.mr.to_vec(0..message.len()) == message,
    };
    right
        .then_some(())
        .ok_or_else(|| Failure::new("the bytes that arrived are not those that were sent"))
}
