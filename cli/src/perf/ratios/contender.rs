//! Who is compared: bare sockets and the engine, each with an end in both processes.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use softroce::verbs::{
    Access, CompChannel, CompletionQueue, Context, Error, MemoryRegion, Mtu, QpEndpoint, QpType,
    QueuePair, RecvWr, RemoteMr, SendWr, WcOpcode, WorkCompletion,
};

use crate::perf::control::{Control, Go, Offer, PATIENCE};
use crate::perf::{Failure, Result, now};
use crate::raw::{RAW_PATIENCE, RawPing, RawPong, RawRx, RawTx, Record, Sample, Shape};

/// How often a run looks at whether to go on.
pub(super) const LOOK: Duration = Duration::from_millis(1);
/// Any port of this machine.
pub(super) const ANY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// Messages posted and not complete.
const DEPTH: u32 = 128;
/// Receives posted.
const RECEIVES: u32 = 512;
/// With every how many small messages a completion is asked for.
const SIGNAL_EVERY: u64 = 16;

/// What a stream is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Op {
    Write,
    Read,
    Send,
}

/// A stream of messages through the engine.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Stream {
    pub(super) op: Op,
    pub(super) size: u32,
    pub(super) mtu: usize,
    /// Messages posted at once.
    pub(super) list: u32,
    /// Packets that make one entry of the record.
    pub(super) group: u64,
}

/// One of the two that take turns.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Contender {
    RawStream(Shape),
    RawPing { blocking: bool },
    Stream(Stream),
    Ping { blocking: bool },
}

/// One end of a contender.
pub(super) trait Player {
    /// Plays while `go_on` says so.
    fn run(&mut self, go_on: &mut dyn FnMut() -> bool) -> Result<Sample>;
}

impl Contender {
    /// The leading end, which sends (or asks).
    pub(super) fn open(self, ctx: &Context, control: &mut Control) -> Result<Box<dyn Player>> {
        Ok(match self {
            Self::RawStream(shape) => {
                let to: SocketAddr = control.receive(PATIENCE)?;
                Box::new(RawTx::open(ANY, to, shape)?)
            }
            Self::RawPing { blocking } => {
                let to: SocketAddr = control.receive(PATIENCE)?;
                Box::new(RawPing::open(ANY, to, blocking)?)
            }
            Self::Stream(stream) => {
                let mut objects = Objects::new(ctx, stream.size, false)?;
                objects.connect(stream.mtu, control)?;
                Box::new(Sender { objects, stream, posted: 0, completed: 0 })
            }
            Self::Ping { blocking } => {
                let mut objects = Objects::new(ctx, 64, blocking)?;
                objects.connect(4096, control)?;
                Box::new(EnginePing::new(objects, true))
            }
        })
    }

    /// The other end.
    pub(super) fn open_other(
        self,
        ctx: &Context,
        control: &mut Control,
    ) -> Result<Box<dyn Player>> {
        Ok(match self {
            Self::RawStream(shape) => {
                let rx = RawRx::open(ANY, shape)?;
                control.send(&rx.local_addr()?)?;
                Box::new(rx)
            }
            Self::RawPing { blocking } => {
                let pong = RawPong::open(ANY, blocking)?;
                control.send(&pong.local_addr()?)?;
                Box::new(pong)
            }
            Self::Stream(stream) => {
                let mut objects = Objects::new(ctx, stream.size, false)?;
                objects.connect(stream.mtu, control)?;
                Box::new(Receiver { objects, stream })
            }
            Self::Ping { blocking } => {
                let mut objects = Objects::new(ctx, 64, blocking)?;
                objects.connect(4096, control)?;
                Box::new(EnginePing::new(objects, false))
            }
        })
    }
}

impl Player for RawTx {
    fn run(&mut self, go_on: &mut dyn FnMut() -> bool) -> Result<Sample> {
        Ok(self.run_for(|_| go_on())?)
    }
}

impl Player for RawRx {
    fn run(&mut self, go_on: &mut dyn FnMut() -> bool) -> Result<Sample> {
        Ok(self.run_for(|_| go_on())?)
    }
}

impl Player for RawPing {
    fn run(&mut self, go_on: &mut dyn FnMut() -> bool) -> Result<Sample> {
        Ok(self.run_for(|_| go_on())?)
    }
}

impl Player for RawPong {
    fn run(&mut self, go_on: &mut dyn FnMut() -> bool) -> Result<Sample> {
        Ok(self.run_for(|_| go_on())?)
    }
}

/// What an end of the engine's contenders has.
struct Objects {
    qp: QueuePair,
    cq: CompletionQueue,
    mr: MemoryRegion,
    channel: Option<CompChannel>,
    peer: RemoteMr,
    ctx: Context,
    wcs: [WorkCompletion; 64],
}

impl Objects {
    fn new(ctx: &Context, size: u32, events: bool) -> Result<Self> {
        let pd = ctx.alloc_pd()?;
        let channel = events.then(|| ctx.create_comp_channel()).transpose()?;
        let builder = ctx.cq_builder(DEPTH + RECEIVES);
        let cq = match &channel {
            Some(channel) => builder.channel(channel).build()?,
            None => builder.build()?,
        };
        let mr = pd.alloc_mr(size as usize, Access::REMOTE)?;
        let qp = pd.create_qp(QpType::Rc, &cq).depth(DEPTH, RECEIVES).build()?;
        let peer = RemoteMr { addr: 0, len: 0, rkey: 0 };
        let wcs = [WorkCompletion::default(); 64];
        Ok(Self { qp, cq, mr, channel, peer, ctx: ctx.clone(), wcs })
    }

    fn connect(&mut self, mtu: usize, control: &mut Control) -> Result<()> {
        let RemoteMr { addr, len, rkey } = self.mr.remote();
        let endpoints = vec![self.qp.endpoint().to_string()];
        control.send(&Offer { endpoints, addr, len, rkey })?;
        let theirs: Offer = control.receive(PATIENCE)?;
        let [endpoint] = &theirs.endpoints[..] else {
            return Err(Failure::run("not one queue pair"));
        };
        let mut peer: QpEndpoint = endpoint.parse()?;
        peer.mtu = Mtu::from_bytes(mtu).unwrap_or(peer.mtu).min(peer.mtu);
        self.qp.connect(&peer)?;
        self.peer = RemoteMr { addr: theirs.addr, len: theirs.len, rkey: theirs.rkey };
        self.post_receives(RECEIVES)?;
        control.send(&Go {})?;
        let Go {} = control.receive(PATIENCE)?;
        Ok(())
    }

    fn post_receives(&self, n: u32) -> Result<()> {
        let sge = self.mr.sge(..);
        Ok(self.qp.post_recv((0..u64::from(n)).map(|id| RecvWr::new(id, sge)))?)
    }

    /// Looks once. Counts receives, and notes the last send that is complete.
    fn poll(&mut self, completed: &mut u64) -> Result<(usize, u32)> {
        let n = self.cq.poll(&mut self.wcs)?;
        let mut receives = 0;
        for wc in &self.wcs[..n] {
            wc.ok()?;
            if wc.opcode == WcOpcode::Recv {
                receives += 1;
            } else {
                *completed = wc.wr_id;
            }
        }
        Ok((n, receives))
    }

    /// Sleeps until something completes; not for longer than the baseline does.
    fn sleep(&self) -> Result<()> {
        let Some(channel) = &self.channel else { return Ok(()) };
        match channel.wait(RAW_PATIENCE) {
            Ok(_) | Err(Error::Timeout) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}

/// The end of a stream that posts: it sends the data, or asks for it.
struct Sender {
    objects: Objects,
    stream: Stream,
    posted: u64,
    completed: u64,
}

impl Sender {
    fn post(&mut self) -> Result<()> {
        let Stream { op, list, .. } = self.stream;
        let Objects { qp, mr, peer, .. } = &self.objects;
        let (first, here, there) = (self.posted, mr.sge(..), peer.at(0));
        qp.post_send((1..=u64::from(list)).map(|i| {
            let n = first + i;
            let wr = match op {
                Op::Write => SendWr::write(n, here, there),
                Op::Read => SendWr::read(n, here, there),
                Op::Send => SendWr::send(n, here),
            };
            if op != Op::Send || n.is_multiple_of(SIGNAL_EVERY) { wr } else { wr.unsignaled() }
        }))?;
        self.posted += u64::from(list);
        Ok(())
    }
}

impl Player for Sender {
    fn run(&mut self, go_on: &mut dyn FnMut() -> bool) -> Result<Sample> {
        let data = |ctx: &Context, op| {
            let (sent, received) = ctx.moved();
            if op == Op::Read { received } else { sent }
        };
        let op = self.stream.op;
        let mut record = Record::new(self.stream.group);
        let mut before = self.objects.ctx.moved();
        let mut packets = data(&self.objects.ctx, op);
        while go_on() {
            let since = now();
            let after_it = self.posted - self.completed + u64::from(self.stream.list);
            let worked = if after_it <= u64::from(DEPTH) {
                self.post()?;
                true
            } else {
                self.objects.poll(&mut self.completed)?.0 > 0
            };
            let after = self.objects.ctx.moved();
            if worked || after != before {
                let (was, is) = (packets, data(&self.objects.ctx, op));
                record.step(since, is - was, false);
                (before, packets) = (after, is);
            }
        }
        let sample = record.finish();
        // The next run of the other contender is to find the line empty.
        let until = now() + PATIENCE;
        while self.posted - self.completed >= SIGNAL_EVERY
            || op != Op::Send && self.posted > self.completed
        {
            self.objects.poll(&mut self.completed)?;
            if now() > until {
                return Err(Failure::run("the other process does not answer"));
            }
        }
        Ok(sample)
    }
}

/// The end of a stream whose device answers, or that receives SENDs.
struct Receiver {
    objects: Objects,
    stream: Stream,
}

impl Player for Receiver {
    fn run(&mut self, go_on: &mut dyn FnMut() -> bool) -> Result<Sample> {
        let op = self.stream.op;
        let data = |(sent, received): (u64, u64)| if op == Op::Read { sent } else { received };
        let mut record = Record::new(self.stream.group);
        let mut before = self.objects.ctx.moved();
        while go_on() {
            let since = now();
            let (n, receives) = self.objects.poll(&mut 0)?;
            if receives > 0 {
                self.objects.post_receives(receives)?;
            }
            let after = self.objects.ctx.moved();
            if n > 0 || after != before {
                record.step(since, data(after) - data(before), false);
                before = after;
            }
        }
        Ok(record.finish())
    }
}

/// An end of a ping-pong of SENDs.
struct EnginePing {
    objects: Objects,
    first: bool,
    posted: u64,
    completed: u64,
    /// Receives that were used, and are not replaced yet.
    used: u32,
}

impl EnginePing {
    fn new(objects: Objects, first: bool) -> Self {
        Self { objects, first, posted: 0, completed: 0, used: 0 }
    }

    /// Sends a message, and replaces receives while it is on its way: there are plenty.
    fn play(&mut self) -> Result<()> {
        self.posted += 1;
        let wr = SendWr::send(self.posted, self.objects.mr.sge(..));
        let signaled = self.posted.is_multiple_of(SIGNAL_EVERY);
        self.objects.qp.post_send(if signaled { wr } else { wr.unsignaled() })?;
        self.objects.post_receives(std::mem::take(&mut self.used))
    }

    /// Waits for a message. `false`: it is over.
    fn hear(&mut self, go_on: &mut dyn FnMut() -> bool) -> Result<bool> {
        loop {
            if self.objects.channel.is_some() {
                self.objects.cq.arm(false)?;
            }
            for _ in 0..if self.objects.channel.is_some() { 1 } else { 64 } {
                let (_, receives) = self.objects.poll(&mut self.completed)?;
                self.used += receives;
                if receives > 0 {
                    return Ok(true);
                }
            }
            if !go_on() {
                return Ok(false);
            }
            self.objects.sleep()?;
        }
    }
}

impl Player for EnginePing {
    fn run(&mut self, go_on: &mut dyn FnMut() -> bool) -> Result<Sample> {
        let mut record = Record::new(2);
        let until = now() + PATIENCE;
        if self.first {
            while go_on() {
                // As the baseline does it: what the run itself costs is not part of a round.
                let since = now();
                self.play()?;
                // A round that was begun is finished, so that the next run begins with a clean table.
                if !self.hear(&mut || now() < until)? {
                    return Err(Failure::run("the other process does not answer"));
                }
                record.step(since, 2, false);
            }
        } else {
            let mut since = now();
            while self.hear(go_on)? {
                self.play()?;
                record.step(since, 1, false);
                since = now();
            }
        }
        Ok(record.finish())
    }
}
