//! What each side makes: a device, memory, a completion queue, queue pairs.
//!
//! Each queue pair has two places in memory, one that goes out and one that comes in, [`Plan::slot`] bytes
//! each. A message ends where its place ends: its last byte is the last one of an aligned word, which is
//! what a program looks at that waits for a WRITE. That of a SEND begins where its place begins, so that
//! one receive takes every size.

use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use softroce::verbs::{
    Access, CompChannel, CompletionQueue, Context, Error, MemoryRegion, QpAttr, QpEndpoint, QpType,
    QueuePair, RecvWr, RemoteMr, SendWr, Sge, WcStatus, WorkCompletion,
};

use super::control::{Drops, Offer};
use super::options::{Kind, Plan};
use super::{Failure, Result, now};

/// Nothing has completed for so long: something is wrong.
const STALLED: Duration = Duration::from_secs(30);
/// How often to look whether packets still come.
const WATCH: Duration = Duration::from_secs(3);
/// Longest sleep before a look at whether the other side has said something.
const NAP: Duration = Duration::from_millis(5);
/// Fruitless looks after which the clock is read.
const LOOKS: u32 = 256;
/// Completions taken at once.
const BATCH: usize = 64;

/// Opens a device.
///
/// # Errors
/// [`Failure::Usage`] if there is no such one.
pub(crate) fn open(device: Option<&str>) -> Result<Context> {
    let opened = match device {
        Some(name) => Context::open(name),
        None => softroce::open(),
    };
    opened.map_err(|e| match &e {
        Error::NoDevice(_) => Failure::Usage(e.to_string()),
        // Nothing of it has begun: what is wrong is the name, or what else uses what it stands for.
        Error::Verb { .. } => Failure::Usage(e.to_string()),
        _ => Failure::run(e),
    })
}

/// The address by which queue pairs of this device are found: its first IPv4 one, else its first.
pub(super) fn address(ctx: &Context) -> Result<IpAddr> {
    let ips: Vec<IpAddr> = ctx.gids()?.iter().filter_map(|g| g.gid.ip()).collect();
    let v4 = ips.iter().find(|ip| ip.is_ipv4());
    v4.or(ips.first()).copied().ok_or_else(|| Failure::run("the device has no address"))
}

/// Counters of a device since they were last [taken](Tally::take).
#[derive(Debug)]
pub(super) struct Tally {
    before: Drops,
}

impl Tally {
    pub(super) fn start(ctx: &Context) -> Result<Self> {
        Ok(Self { before: drops(ctx)? })
    }

    pub(super) fn take(&self, ctx: &Context) -> Result<Drops> {
        let (now, was) = (drops(ctx)?, self.before);
        Ok(Drops {
            port_overruns: now.port_overruns - was.port_overruns,
            retransmitted: now.retransmitted - was.retransmitted,
            sent: now.sent - was.sent,
            calls: now.calls - was.calls,
        })
    }
}

fn drops(ctx: &Context) -> Result<Drops> {
    let all = ctx.counters(1)?;
    let of = |name: &str| all.get(name).copied().unwrap_or(0);
    Ok(Drops {
        port_overruns: of("port_overruns"),
        retransmitted: of("retransmitted_pkts"),
        sent: of("sent_pkts"),
        calls: of("port_send_calls") + of("port_receive_calls") - of("port_receive_calls_in_vain"),
    })
}

/// One side of a test. Dropped in this order: queue pairs before what they stand on.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) qps: Vec<QueuePair>,
    pub(super) cq: CompletionQueue,
    pub(super) mr: MemoryRegion,
    pub(super) peer: RemoteMr,
    pub(super) plan: Plan,
    channel: Option<CompChannel>,
    /// Reused by every poll.
    wcs: [WorkCompletion; BATCH],
    /// Numbers of the queue pairs with their index, sorted.
    numbers: Vec<(u32, usize)>,
}

impl Side {
    /// Makes everything, but for the connections.
    pub(super) fn new(ctx: &Context, plan: &Plan) -> Result<Self> {
        let pd = ctx.alloc_pd()?;
        let receives = if plan.kind.is_send() { plan.rx_depth } else { 1 };
        let channel = plan.events.then(|| ctx.create_comp_channel()).transpose()?;
        let builder = ctx.cq_builder(plan.qps * (plan.tx_depth + receives));
        let cq = match &channel {
            Some(channel) => builder.channel(channel).build()?,
            None => builder.build()?,
        };
        let bytes = usize::try_from(plan.memory()).map_err(Failure::run)?;
        let mr = pd.alloc_mr(bytes, Access::REMOTE)?;
        let qp = || pd.create_qp(QpType::Rc, &cq).depth(plan.tx_depth, receives).build();
        let qps: Vec<QueuePair> = (0..plan.qps).map(|_| qp()).collect::<Result<_, _>>()?;
        let mut numbers: Vec<_> = qps.iter().map(QueuePair::number).zip(0..).collect();
        numbers.sort_unstable();
        let peer = RemoteMr { addr: 0, len: 0, rkey: 0 };
        let wcs = [WorkCompletion::default(); BATCH];
        Ok(Self { qps, cq, mr, peer, plan: plan.clone(), channel, wcs, numbers })
    }

    /// What the other side needs to know.
    pub(super) fn offer(&self) -> Offer {
        let RemoteMr { addr, len, rkey } = self.mr.remote();
        let endpoints = self.qps.iter().map(|qp| qp.endpoint().to_string()).collect();
        Offer { endpoints, addr, len, rkey }
    }

    /// Connects each queue pair with its partner.
    pub(super) fn connect(&mut self, theirs: &Offer) -> Result<()> {
        let (ours, others) = (self.qps.len(), theirs.endpoints.len());
        if ours != others || theirs.len != self.mr.len() as u64 {
            return Err(Failure::run("the other side offers something else than was agreed"));
        }
        for (qp, text) in self.qps.iter().zip(&theirs.endpoints) {
            let mut peer: QpEndpoint = text.parse()?;
            if let Some(mtu) = self.plan.mtu().map_err(Failure::Usage)? {
                let most = qp.endpoint().mtu.min(peer.mtu);
                if mtu > most {
                    let (asked, most) = (mtu.bytes(), most.bytes());
                    return Err(Failure::Usage(format!(
                        "-m {asked}: the path between both sides takes {most} at most"
                    )));
                }
                peer.mtu = mtu;
            }
            qp.connect_with(&peer, QpAttr::default())?;
        }
        self.peer = RemoteMr { addr: theirs.addr, len: theirs.len, rkey: theirs.rkey };
        Ok(())
    }

    /// Where in memory queue pair `q` sends from.
    pub(super) fn out(&self, q: usize, size: u32) -> usize {
        self.place(2 * q, size)
    }

    /// Where in memory queue pair `q` receives.
    pub(super) fn into(&self, q: usize, size: u32) -> usize {
        self.place(2 * q + 1, size)
    }

    fn place(&self, which: usize, size: u32) -> usize {
        let slot = self.mr.len() / (2 * self.qps.len());
        if self.plan.kind.is_send() { which * slot } else { (which + 1) * slot - size as usize }
    }

    /// A message of queue pair `q` in what goes out.
    pub(super) fn out_sge(&self, q: usize, size: u32) -> Sge {
        let at = self.out(q, size);
        self.mr.sge(at..at + size as usize)
    }

    /// A message of queue pair `q` in what comes in.
    pub(super) fn in_sge(&self, q: usize, size: u32) -> Sge {
        let at = self.into(q, size);
        self.mr.sge(at..at + size as usize)
    }

    /// Posts as many receives as the plan says, each for the largest message.
    pub(super) fn post_receives(&self) -> Result<()> {
        for q in 0..self.qps.len() {
            for _ in 0..self.plan.rx_depth {
                self.post_receive(q)?;
            }
        }
        Ok(())
    }

    /// Posts a receive.
    pub(super) fn post_receive(&self, q: usize) -> Result<()> {
        let sge = self.in_sge(q, self.plan.largest());
        Ok(self.qps[q].post_recv(RecvWr::new(0, sge))?)
    }

    /// Message `n` of queue pair `q`, counted from 1.
    pub(super) fn request(&self, q: usize, size: u32, n: u64) -> SendWr<'static> {
        let far = |at: usize| self.peer.at(at as u64);
        match self.plan.kind {
            Kind::ReadBw | Kind::ReadLat => {
                SendWr::read(n, self.in_sge(q, size), far(self.out(q, size)))
            }
            Kind::SendBw | Kind::SendLat => SendWr::send(n, self.out_sge(q, size)),
            Kind::AtomicBw | Kind::AtomicLat => {
                SendWr::fetch_add(n, self.out_sge(q, size), far(self.into(q, size)), 1)
            }
            Kind::WriteBw | Kind::WriteLat => {
                SendWr::write(n, self.out_sge(q, size), far(self.into(q, size)))
            }
        }
    }

    /// Puts the pattern of this size into what goes out, and zeros where something will come in.
    pub(super) fn fill(&self, size: u32) {
        let mut some = [0; 4096];
        for q in 0..self.qps.len() {
            let (out, into) = (self.out(q, size), self.into(q, size));
            for at in (0..size as usize).step_by(some.len()) {
                let n = some.len().min(size as usize - at);
                pattern(q, size, at, &mut some[..n]);
                self.mr.write(out + at, &some[..n]);
            }
            self.mr.fill(into..into + size as usize, 0);
        }
    }

    /// Compares what has come in with the pattern, but for the last `except` bytes of each message. Says
    /// what is wrong.
    pub(super) fn verify(&self, size: u32, except: usize) -> Option<String> {
        let (mut got, mut want) = ([0; 4096], [0; 4096]);
        let size_checked = (size as usize).saturating_sub(except);
        for q in 0..self.qps.len() {
            let into = self.into(q, size);
            for at in (0..size_checked).step_by(got.len()) {
                let n = got.len().min(size_checked - at);
                pattern(q, size, at, &mut want[..n]);
                self.mr.read(into + at, &mut got[..n]);
                if let Some(i) = (0..n).find(|&i| got[i] != want[i]) {
                    let (at, got, want) = (at + i, got[i], want[i]);
                    return Some(format!(
                        "byte {at} of a message of {size} over queue pair {q} is {got:#04x} instead of \
                         {want:#04x}"
                    ));
                }
            }
        }
        None
    }

    /// The word at which a message that came in ends.
    pub(super) fn last_word(&self, q: usize) -> u64 {
        self.mr.load(self.into(q, 8), Ordering::Acquire)
    }

    /// Takes completions and gives each, with the index of its queue pair, to `each`. Says how many. Looks
    /// once; an empty look lets the device work.
    pub(super) fn poll(&mut self, mut each: impl FnMut(usize, &WorkCompletion)) -> Result<usize> {
        let n = self.cq.poll(&mut self.wcs)?;
        for wc in &self.wcs[..n] {
            check(wc)?;
            each(index(&self.numbers, wc.qpn), wc);
        }
        Ok(n)
    }

    /// Sleeps until there are completions, at most a few milliseconds.
    fn sleep(&self) -> Result<()> {
        let Some(channel) = &self.channel else { return Ok(()) };
        self.cq.arm(false)?;
        // What came before arming makes no event.
        match channel.wait(NAP) {
            Ok(_) | Err(Error::Timeout) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Looks once, or with `-e` arms, looks, and sleeps if nothing is there.
    pub(super) fn look(&mut self, mut each: impl FnMut(usize, &WorkCompletion)) -> Result<usize> {
        if self.channel.is_none() {
            return self.poll(each);
        }
        self.cq.arm(false)?;
        match self.poll(&mut each)? {
            0 => {
                self.sleep()?;
                self.poll(each)
            }
            n => Ok(n),
        }
    }

    /// Whether looking sleeps by itself.
    pub(super) fn sleeps(&self) -> bool {
        self.channel.is_some()
    }
}

/// The queue pair with this number.
fn index(numbers: &[(u32, usize)], number: u32) -> usize {
    let at = numbers.binary_search_by_key(&number, |&(n, _)| n).unwrap_or(0);
    numbers.get(at).map_or(0, |&(_, q)| q)
}

/// A completion that is none of success ends the test.
fn check(wc: &WorkCompletion) -> Result<()> {
    match wc.status {
        WcStatus::Success => Ok(()),
        WcStatus::RetryExc => Err(Failure::run(
            "the other side does not answer (RETRY_EXC_ERR): its process has ended, or packets to UDP port \
             4791 are lost on the way",
        )),
        status => Err(Failure::run(format_args!(
            "a work request of queue pair {:#x} completed with {status:?}",
            wc.qpn
        ))),
    }
}

/// Fruitless looks in a row, and for how long already.
#[derive(Debug)]
pub(super) struct Idle {
    looks: u32,
    since: Option<std::time::Instant>,
    alone: bool,
}

impl Idle {
    /// Reads what the machine has: not to be made for each message.
    pub(super) fn new() -> Self {
        let alone = std::thread::available_parallelism().is_ok_and(|n| n.get() == 1);
        Self { looks: 0, since: None, alone }
    }

    /// Something came.
    pub(super) fn reset(&mut self) {
        self.looks = 0;
        self.since = None;
    }

    /// Nothing came. `true` now and then: time to look at other things.
    pub(super) fn again(&mut self) -> bool {
        self.looks = self.looks.wrapping_add(1);
        if self.alone {
            // On a single processor the other side cannot run while we look.
            std::thread::yield_now();
        }
        self.looks.is_multiple_of(LOOKS)
    }

    /// Fails if nothing has come for long.
    pub(super) fn check(&mut self) -> Result<()> {
        let since = *self.since.get_or_insert_with(now);
        if now() - since > STALLED {
            let s = STALLED.as_secs();
            return Err(Failure::run(format_args!("nothing has completed for {s} seconds")));
        }
        Ok(())
    }
}

/// Looks whether packets still come, where the device alone has to do with them.
#[derive(Debug)]
pub(super) struct Watch {
    next: std::time::Instant,
    packets: u64,
    since: std::time::Instant,
}

impl Watch {
    pub(super) fn new() -> Self {
        let now = now();
        Self { next: now + WATCH, packets: 0, since: now }
    }

    /// Fails if no packet has come for long.
    pub(super) fn look(&mut self, side: &Side) -> Result<()> {
        let now = now();
        if now < self.next {
            return Ok(());
        }
        self.next = now + WATCH;
        let counters = side.mr.pd().context().counters(1)?;
        let packets = counters.get("rcvd_pkts").copied().unwrap_or(0);
        if packets != self.packets {
            (self.packets, self.since) = (packets, now);
        } else if now - self.since > STALLED {
            let s = STALLED.as_secs();
            return Err(Failure::run(format_args!(
                "no packet has come for {s} seconds, and the client says nothing"
            )));
        }
        Ok(())
    }
}

/// Bytes `at..` of the message of `size` bytes that queue pair `q` sends: different for each of the three.
fn pattern(q: usize, size: u32, at: usize, out: &mut [u8]) {
    for (block, bytes) in out.chunks_mut(8).enumerate() {
        // A multiplicative hash of everything that could be mixed up.
        let word = (at / 8 + block) as u64 ^ (q as u64) << 32 ^ u64::from(size) << 40;
        let hash = (word + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let hash = (hash ^ hash >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bytes.copy_from_slice(&hash.to_be_bytes()[..bytes.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use softroce::sim::Sim;

    fn plan(qps: &str) -> Plan {
        use super::super::options::{Kind, Options};
        use clap::Parser;
        #[derive(Debug, Parser)]
        struct Line {
            #[command(flatten)]
            options: Options,
        }
        let line = Line::try_parse_from(["perf", "-q", qps, "-s", "5000"]).unwrap();
        line.options.plan(Kind::WriteBw).unwrap()
    }

    #[test]
    fn a_wrong_byte_is_found_wherever_it_is() {
        let [ctx] = Sim::new(1).hosts(Default::default());
        let side = Side::new(&ctx, &plan("2")).unwrap();
        for (q, size) in [(0, 5000), (1, 5000), (1, 4097), (0, 1)] {
            side.fill(size);
            assert!(side.verify(size, 0).is_some(), "nothing has come yet");
            for q in 0..2 {
                let bytes = side.mr.to_vec(side.out(q, size)..side.out(q, size) + size as usize);
                side.mr.write(Side::into(&side, q, size), &bytes);
            }
            assert_eq!(side.verify(size, 0), None);
            let at = Side::into(&side, q, size) + size as usize - 1;
            let byte = side.mr.to_vec(at..at + 1)[0];
            side.mr.write(at, &[byte ^ 1]);
            let wrong = side.verify(size, 0).unwrap();
            assert!(wrong.contains(&format!("byte {} of", size - 1)), "{wrong}");
            assert_eq!(side.verify(size, 1), None, "the last byte may be a counter");
            assert_eq!(side.last_word(q).to_ne_bytes()[7], byte ^ 1);
        }
    }

    #[test]
    fn messages_of_different_queue_pairs_and_sizes_differ() {
        let of = |q, size| {
            let mut bytes = [0; 64];
            pattern(q, size, 0, &mut bytes);
            bytes
        };
        assert_ne!(of(0, 64), of(1, 64));
        assert_ne!(of(0, 64), of(0, 128));
        // What is made in pieces is what is made at once.
        let (mut whole, mut parts) = ([0; 64], [0; 64]);
        pattern(3, 64, 0, &mut whole);
        pattern(3, 64, 0, &mut parts[..24]);
        pattern(3, 64, 24, &mut parts[24..]);
        assert_eq!(whole, parts);
    }

    #[test]
    fn completions_find_their_queue_pair() {
        let [ctx] = Sim::new(1).hosts(Default::default());
        let side = Side::new(&ctx, &plan("5")).unwrap();
        for (q, qp) in side.qps.iter().enumerate() {
            assert_eq!(index(&side.numbers, qp.number()), q);
        }
    }
}
