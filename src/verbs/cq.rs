//! Completion queues and completion channels.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use crate::engine::cause::Cause;
use crate::nic::notify::{Channel, CqNotify, Place};
use crate::time::Duration;

use super::context::Context;
use super::error::{Error, Named, Result};
use super::wc::WorkCompletion;

#[derive(Debug)]
struct Inner {
    ctx: Context,
    entry: Arc<CqNotify>,
    channel: Option<CompChannel>,
    timestamps: bool,
}

impl Drop for Inner {
    #[doc(alias = "ibv_destroy_cq")]
    fn drop(&mut self) {
        if !self.ctx.nic().is_here() {
            return;
        }
        if let Some(channel) = &self.channel {
            channel.0.queues.lock().retain(|(cq, _)| *cq != self.entry.cq);
        }
        // Its queue pairs hold references, so none is left.
        let _ = self.ctx.nic().destroy_cq(self.entry.cq);
    }
}

/// A completion queue. A cheap handle: clones are the same queue.
#[doc(alias = "ibv_cq")]
#[derive(Clone, Debug)]
pub struct CompletionQueue(Arc<Inner>);

/// Completions that [`CompletionQueue::drain`] takes from the ring in one go.
const BATCH: usize = 32;

impl CompletionQueue {
    pub(crate) fn context(&self) -> &Context {
        &self.0.ctx
    }

    /// Its number, as [`Event::CqErr`](super::Event::CqErr) names it.
    pub fn number(&self) -> u32 {
        self.0.entry.cq
    }

    /// Entries: at least as many as asked for.
    pub fn depth(&self) -> u32 {
        self.0.entry.shared.depth()
    }

    fn take(&self, out: &mut [WorkCompletion]) -> usize {
        let mut n = 0;
        let timestamps = self.0.timestamps;
        self.0.entry.shared.poll(out.len(), |cqe| {
            if let Some(slot) = out.get_mut(n) {
                *slot = WorkCompletion::from_cqe(cqe, timestamps);
                n += 1;
            }
        })
    }

    /// Moves up to `out.len()` completions into `out`; says how many. Never blocks.
    ///
    /// If there are none, it lets the device work a little and looks again. In a simulation that means
    /// everything that happens next, so a program that spins comes to an end.
    ///
    /// # Errors
    /// `EDEADLK` in a simulation that another thread drives. `ENODEV` in a child of the process that made it.
    #[doc(alias = "ibv_poll_cq")]
    pub fn poll(&self, out: &mut [WorkCompletion]) -> Result<usize> {
        self.0.ctx.nic().check_process().of("ibv_poll_cq")?;
        let n = self.take(out);
        if n > 0 || out.is_empty() {
            return Ok(n);
        }
        self.0.ctx.nic().poll().of("ibv_poll_cq")?;
        Ok(self.take(out))
    }

    /// The next completion: polls a little, then sleeps (in virtual time in a simulation).
    ///
    /// Other threads may wait too; each completion goes to one of them. It never touches a channel or what
    /// was armed.
    ///
    /// # Errors
    /// [`Error::Timeout`]. `EDEADLK` in a simulation where nothing is left to happen. `ENODEV` in a child of the
    /// process that made it.
    ///
    /// ```
    /// use softroce::prelude::*;
    /// # fn main() -> Result<()> {
    /// # let [ctx] = softroce::sim::Sim::new(1).hosts(Default::default());
    /// let cq = ctx.create_cq(16)?;
    /// assert_eq!(cq.wait(Duration::from_millis(1)), Err(Error::Timeout));
    /// # Ok(())
    /// # }
    /// ```
    pub fn wait(&self, timeout: Duration) -> Result<WorkCompletion> {
        let mut one = [WorkCompletion::default()];
        self.wait_many(&mut one, timeout)?;
        Ok(one[0])
    }

    /// At least one completion, at most `out.len()`.
    ///
    /// # Errors
    /// As [`wait`](Self::wait). `EINVAL`: no room for one.
    pub fn wait_many(&self, out: &mut [WorkCompletion], timeout: Duration) -> Result<usize> {
        if out.is_empty() {
            return Err(Error::verb(
                "ibv_poll_cq",
                Cause::Invalid { what: "there is no room for a completion: out is empty".into() },
            ));
        }
        self.0.ctx.nic().check_process().of("ibv_poll_cq")?;
        let mut n = self.take(out);
        if n > 0 {
            return Ok(n);
        }
        let entry = &self.0.entry;
        // Looking is lock-free; taking happens once something is there.
        let ready = || {
            if !entry.shared.is_empty() {
                n = self.take(out);
            }
            n > 0
        };
        let found = self.0.ctx.nic().wait(&entry.waiters, ready, timeout).of("ibv_poll_cq")?;
        if found && n > 0 { Ok(n) } else { Err(Error::Timeout) }
    }

    /// Asks for one event on the channel: at the next completion, or only at the next that is solicited or
    /// an error. Completions that are there already make none: poll once more after arming.
    ///
    /// # Errors
    /// `EINVAL`: the queue has no channel.
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn arm(&self, solicited_only: bool) -> Result<()> {
        self.0.ctx.nic().check_process().of("ibv_req_notify_cq")?;
        let Some(channel) = &self.0.channel else {
            return Err(Error::verb(
                "ibv_req_notify_cq",
                Cause::Invalid {
                    what: "the queue has no completion channel: give it one with cq_builder".into(),
                },
            ));
        };
        self.0.entry.shared.arm(solicited_only);
        // Whoever waits for the event in `CompChannel::wait` looks after the port there. Whoever sleeps on the
        // descriptor relies on somebody else for that.
        if channel.0.channel.signal.is_watched() {
            self.0.ctx.nic().hand_over();
        }
        Ok(())
    }

    /// Changes the number of entries; what is in it stays.
    ///
    /// # Errors
    /// `EINVAL`: too many, or fewer than there are completions.
    #[doc(alias = "ibv_resize_cq")]
    pub fn resize(&self, depth: u32) -> Result<()> {
        let nic = self.0.ctx.nic();
        nic.enter().of("ibv_resize_cq")?;
        let cq = self.number();
        nic.control(|engine, _| engine.resize_cq(cq, depth)).of("ibv_resize_cq")
    }

    /// The next completion, as a future. It is woken by whoever drives the device: the simulation, or on a
    /// real port the background thread. Dropping the future loses nothing.
    ///
    /// # Errors
    /// `EIO`: the device is one of a simulated host that was killed.
    pub async fn next(&self) -> Result<WorkCompletion> {
        let mut waits = Waits { queue: self, place: Place::default() };
        poll_fn(|cx| self.poll_next(&mut waits.place, cx)).await
    }

    fn poll_next(&self, place: &mut Place, cx: &TaskContext<'_>) -> Poll<Result<WorkCompletion>> {
        self.0.ctx.nic().check_process().of("ibv_poll_cq")?;
        let mut one = [WorkCompletion::default()];
        if self.take(&mut one) > 0 {
            return Poll::Ready(Ok(one[0]));
        }
        self.0.ctx.nic().living().of("ibv_poll_cq")?;
        self.0.entry.register(place, cx.waker());
        self.0.ctx.nic().hand_over();
        // Once more: it may have come before we registered.
        if self.take(&mut one) > 0 { Poll::Ready(Ok(one[0])) } else { Poll::Pending }
    }

    /// Takes everything that is there, without letting the device work. In a child of the process that made the queue
    /// nothing is.
    pub fn drain(&self) -> Vec<WorkCompletion> {
        let mut all = Vec::new();
        if !self.0.ctx.nic().is_here() {
            return all;
        }
        let mut some = [WorkCompletion::default(); BATCH];
        loop {
            match self.take(&mut some) {
                0 => return all,
                n => all.extend_from_slice(&some[..n]),
            }
        }
    }
}

/// A future that waits for a completion. Dropped, it leaves no waker behind.
struct Waits<'a> {
    queue: &'a CompletionQueue,
    place: Place,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        // In a child of the process others may hold the lock for ever.
        if self.queue.0.ctx.nic().is_here() {
            self.queue.0.entry.unregister(&mut self.place);
        }
    }
}

/// Makes a completion queue with more than a depth.
#[derive(Debug)]
#[must_use = "nothing is made before `build`"]
pub struct CqBuilder {
    ctx: Context,
    depth: u32,
    channel: Option<CompChannel>,
    timestamps: bool,
    vector: u32,
}

impl CqBuilder {
    pub(crate) fn new(ctx: &Context, depth: u32) -> Self {
        Self { ctx: ctx.clone(), depth, channel: None, timestamps: false, vector: 0 }
    }

    /// Events of the queue go to this channel.
    pub fn channel(mut self, c: &CompChannel) -> Self {
        self.channel = Some(c.clone());
        self
    }

    /// Completion vector, 0: there is one.
    pub fn vector(mut self, v: u32) -> Self {
        self.vector = v;
        self
    }

    /// Completions carry the time.
    pub fn timestamps(mut self) -> Self {
        self.timestamps = true;
        self
    }

    /// Makes it.
    ///
    /// # Errors
    /// `EINVAL`: no entries, too many, a vector that does not exist, or a channel of another device.
    #[doc(alias = "ibv_create_cq")]
    pub fn build(self) -> Result<CompletionQueue> {
        let verb = "ibv_create_cq";
        if self.vector > 0 {
            let cause = Cause::AttrRange { attr: "comp_vector", got: self.vector.into(), max: 0 };
            return Err(Error::verb(verb, cause));
        }
        if let Some(channel) = &self.channel
            && !channel.context().is(&self.ctx)
        {
            let what = "the completion channel belongs to another device";
            return Err(Error::verb(verb, Cause::Mismatch { what }));
        }
        let nic = self.ctx.nic();
        nic.enter().of(verb)?;
        let raw = self.channel.as_ref().map(|c| Arc::clone(&c.0.channel));
        let entry = nic.create_cq(self.depth, raw, self.ctx.events()).of(verb)?;
        let inner = Arc::new(Inner {
            ctx: self.ctx,
            entry,
            channel: self.channel,
            timestamps: self.timestamps,
        });
        if let Some(channel) = &inner.channel {
            channel.0.queues.lock().push((inner.entry.cq, Arc::downgrade(&inner)));
        }
        Ok(CompletionQueue(inner))
    }
}

#[derive(Debug)]
struct ChannelInner {
    ctx: Context,
    channel: Arc<Channel>,
    /// Queues that report to it, by number.
    queues: parking_lot::Mutex<Vec<(u32, std::sync::Weak<Inner>)>>,
}

/// A completion channel: a place where completion queues that were armed say that something came.
///
/// A cheap handle: clones are the same channel. Its file descriptor is readable while it has events.
#[doc(alias = "ibv_comp_channel")]
#[derive(Clone, Debug)]
pub struct CompChannel(Arc<ChannelInner>);

impl CompChannel {
    pub(crate) fn new(ctx: &Context) -> Self {
        Self(Arc::new(ChannelInner {
            ctx: ctx.clone(),
            channel: Arc::default(),
            queues: parking_lot::Mutex::default(),
        }))
    }

    fn context(&self) -> &Context {
        &self.0.ctx
    }

    /// The next event: the queue that something came to, acknowledged already.
    ///
    /// # Errors
    /// [`Error::Timeout`]. `EDEADLK` in a simulation where nothing is left to happen.
    #[doc(alias("ibv_get_cq_event", "ibv_ack_cq_events"))]
    pub fn wait(&self, timeout: Duration) -> Result<CompletionQueue> {
        Ok(self.get_event(timeout)?.cq().clone())
    }

    /// The next event, to be acknowledged by dropping it.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    #[doc(alias = "ibv_get_cq_event")]
    pub fn get_event(&self, timeout: Duration) -> Result<CqEvent> {
        let channel = &self.0.channel;
        let mut event = None;
        loop {
            let ready = || {
                event = channel.take();
                event.is_some()
            };
            let found =
                self.0.ctx.nic().wait(&channel.waiters, ready, timeout).of("ibv_get_cq_event")?;
            let Some(cq) = event.take().filter(|_| found) else { return Err(Error::Timeout) };
            let queues = self.0.queues.lock();
            let queue = queues.iter().find(|(n, _)| *n == cq).and_then(|(_, weak)| weak.upgrade());
            // A queue that was destroyed meanwhile has no event any more.
            if let Some(inner) = queue {
                return Ok(CqEvent { cq: CompletionQueue(inner) });
            }
        }
    }
}

#[cfg(all(feature = "udp", target_os = "linux"))]
impl CompChannel {
    /// The file descriptor: readable while there are events.
    ///
    /// # Errors
    /// The process has no descriptors left (`EMFILE`).
    pub fn fd(&self) -> Result<std::os::fd::BorrowedFd<'_>> {
        self.0.ctx.nic().check_process().of("ibv_create_comp_channel")?;
        self.0.ctx.nic().hand_over();
        Ok(self.0.channel.signal.fd()?)
    }
}

#[cfg(all(feature = "udp", target_os = "linux"))]
impl std::os::fd::AsFd for CompChannel {
    /// The file descriptor: readable while there are events.
    ///
    /// # Panics
    /// The process has no descriptors left. [`CompChannel::fd`] gives an error instead.
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fd().expect("a file descriptor for the completion channel")
    }
}

/// An event of a completion channel. Dropped, it is acknowledged.
#[derive(Debug)]
pub struct CqEvent {
    cq: CompletionQueue,
}

impl CqEvent {
    /// The queue that something came to. It is disarmed: arm it again, then poll it.
    pub fn cq(&self) -> &CompletionQueue {
        &self.cq
    }
}
