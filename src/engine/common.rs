//! What all queue pairs of a device share: memory, completion queues, windows, counters, events.
//!
//! Queue pairs are handed this beside themselves, so that a queue pair and the rest of the device can be
//! borrowed at the same time.

use std::collections::VecDeque;

use super::ah::AhTable;
use super::config::EngineConfig;
use super::counters::{Counter, Counters};
use super::elide::scatter_there;
use super::event::{AsyncEvent, MAX_EVENTS};
use super::index::SrqTable;
use super::qp::scatter_by;
use super::status::WcStatus;
use super::trace::NicEvent;
use super::watch::{Placed, Watch};
use super::window::{WindowId, Windows};
use crate::mem::{Access, AccessError, DmaSlice, MrTable, PdId, Sge};
use crate::net::PortCaps;
use crate::queue::{CqProducer, Cqe, CqeKind};
use crate::time::{Duration, Instant};
use crate::wire::num::{Qpn, Rkey};

/// A completion queue as the engine sees it.
#[derive(Debug)]
pub(crate) struct CqSlot {
    pub(crate) producer: CqProducer,
    /// Queue pairs that report to it (twice, if with both queues).
    pub(crate) users: u32,
    /// On the list of those with something to publish.
    dirty: bool,
    /// The event of its overrun was raised.
    pub(crate) dead: bool,
}

#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) config: EngineConfig,
    pub(crate) caps: PortCaps,
    pub(crate) mrs: MrTable,
    pub(crate) ahs: AhTable,
    pub(crate) cqs: Vec<Option<CqSlot>>,
    pub(crate) srqs: SrqTable,
    dirty: Vec<u32>,
    pub(crate) windows: Windows,
    pub(crate) counters: Counters,
    pub(crate) events: VecDeque<AsyncEvent>,
    /// Queue pairs whose turn it is in a window where there may be room.
    pub(crate) woken: Vec<(u32, WindowId)>,
    /// Completion queues that overran since the engine last looked.
    pub(crate) overrun: Vec<u32>,
    /// A receive completed since the driver last asked.
    pub(crate) received: bool,
    /// ACKs may wait for more, where peers go on without them.
    pub(crate) coalesce: bool,
    pub(crate) now: Instant,
    /// What FLUSHes may still write back at this instant, in bytes; and which instant.
    flush_left: u64,
    flush_at: Instant,
    /// Who is told of each thing that happens, if anybody is.
    pub(super) watch: Option<Box<Watch>>,
}

/// Bytes that FLUSHes for persistence write back at one instant of the engine's time, all together: a driver reads
/// its clock once for each pass, so this is what they make a pass longer by, some ten microseconds.
pub(crate) const FLUSH_BYTES: u64 = 64 << 10;

impl Common {
    /// `random`: where the numbers of shared receive queues start.
    pub(crate) fn new(config: EngineConfig, caps: PortCaps, mrs: MrTable, random: u32) -> Self {
        let max_srq = config.max_srq;
        let windows = Windows::new(config.window);
        Self {
            config,
            caps,
            mrs,
            ahs: AhTable::default(),
            cqs: Vec::new(),
            srqs: SrqTable::new(random, max_srq),
            dirty: Vec::new(),
            windows,
            counters: Counters::new(),
            events: VecDeque::new(),
            woken: Vec::new(),
            overrun: Vec::new(),
            received: false,
            coalesce: false,
            now: Instant::ZERO,
            flush_left: FLUSH_BYTES,
            flush_at: Instant::ZERO,
            watch: None,
        }
    }

    pub(crate) fn count(&mut self, c: Counter) {
        self.counters.count(c);
    }

    /// Tells the observer, if there is one: what `event` makes is made only then. `None`: nothing to tell.
    #[inline]
    pub(crate) fn observe<E: Into<Option<NicEvent>>>(&mut self, event: impl FnOnce() -> E) {
        if self.is_watched() {
            self.tell(event().into());
        }
    }

    /// Whether anybody stands beside the engine.
    #[inline]
    pub(crate) const fn is_watched(&self) -> bool {
        self.watch.is_some()
    }

    /// Changes who stands there.
    pub(super) fn watch(&mut self, change: impl FnOnce(&mut Watch)) {
        let mut watch = self.watch.take().unwrap_or_default();
        change(&mut watch);
        self.watch = (!watch.is_empty()).then_some(watch);
    }

    #[cold]
    fn tell(&mut self, event: Option<NicEvent>) {
        if let (Some(watch), Some(event)) = (&mut self.watch, event) {
            watch.tell(self.now, event, &self.mrs);
        }
    }

    /// The status that a completion gets instead of success, if somebody wants that.
    #[cold]
    pub(crate) fn judge(&mut self, qpn: u32, kind: CqeKind) -> Option<WcStatus> {
        self.watch.as_mut()?.judge.as_mut()?.judge(qpn, kind)
    }

    /// Has everything land that lands late.
    pub(crate) fn land_all(&mut self) {
        let Self { watch, mrs, .. } = self;
        if let Some(late) = watch.as_mut().and_then(|w| w.late.as_mut()) {
            late.land_all(mrs);
        }
    }

    /// Places what a peer's WRITE brings, if it is there; late if bytes land late.
    #[cold]
    pub(crate) fn place(
        &mut self,
        (pd, qpn): (PdId, Qpn),
        rkey: Rkey,
        va: u64,
        payload: &[u8],
        there: bool,
    ) -> Placed {
        let (len, need) = (payload.len() as u64, Access::REMOTE_WRITE);
        self.remote((pd, qpn), rkey, va, len, need)?;
        if !there {
            return Ok(());
        }
        let Self { watch, mrs, now, .. } = self;
        match watch.as_mut().and_then(|w| w.late.as_mut()) {
            Some(late) => {
                let place = mrs.remote_place((pd, qpn), rkey, va, len, need)?;
                late.hold(*now, mrs, place, payload);
            }
            None => mrs.remote(pd, qpn, rkey, va, len, need)?.write_from(0, payload),
        }
        Ok(())
    }

    /// Distributes what answers a READ into a list of buffers, from `offset` on, if it is there; late if bytes land late.
    #[cold]
    pub(crate) fn scatter(
        &mut self,
        pd: PdId,
        list: impl Iterator<Item = Sge>,
        offset: usize,
        src: &[u8],
        there: bool,
    ) -> Placed {
        let Self { watch, mrs, now, .. } = self;
        let late = watch.as_mut().and_then(|w| w.late.as_mut()).filter(|_| there);
        let Some(late) = late else {
            return scatter_there(there, mrs, pd, list, offset, src);
        };
        scatter_by(list, offset, src, |sge, skip, bytes| {
            let place = mrs.local_place(pd, sge, Access::LOCAL_WRITE)?;
            late.hold(*now, mrs, place.skip(skip), bytes);
            Ok(())
        })
    }

    /// What a peer's request reaches, as [`MrTable::remote`] says it.
    #[inline]
    pub(crate) fn remote(
        &mut self,
        (pd, qpn): (PdId, Qpn),
        rkey: Rkey,
        va: u64,
        len: u64,
        need: Access,
    ) -> Result<DmaSlice<'_>, AccessError> {
        if self.is_watched() {
            let refused = self.mrs.remote(pd, qpn, rkey, va, len, need).err();
            let (qpn, pd, rkey) = (qpn.raw(), pd.0, rkey.0);
            self.tell(Some(NicEvent::Checked { qpn, pd, rkey, va, len, need, refused }));
        }
        self.mrs.remote(pd, qpn, rkey, va, len, need)
    }

    pub(crate) fn event(&mut self, e: AsyncEvent) {
        if self.events.len() < MAX_EVENTS {
            self.events.push_back(e);
        } else {
            self.count(Counter::EventsLost);
        }
    }

    /// Takes of what may be written back at this instant, at most `want` bytes.
    pub(crate) fn take_flush_budget(&mut self, want: u64) -> u64 {
        if self.flush_at != self.now {
            (self.flush_at, self.flush_left) = (self.now, FLUSH_BYTES);
        }
        let bytes = want.min(self.flush_left);
        self.flush_left -= bytes;
        bytes
    }

    /// The instant after that in which the budget was spent.
    pub(crate) fn next_instant(&self) -> Instant {
        self.flush_at + Duration::from_nanos(1)
    }

    /// Enters a completion queue.
    pub(crate) fn add_cq(&mut self, producer: CqProducer) -> u32 {
        let slot = CqSlot { producer, users: 0, dirty: false, dead: false };
        let index = match self.cqs.iter().position(Option::is_none) {
            Some(free) => {
                self.cqs[free] = Some(slot);
                free
            }
            None => {
                self.cqs.push(Some(slot));
                self.cqs.len() - 1
            }
        };
        self.dirty.reserve(self.cqs.len());
        self.overrun.reserve(self.cqs.len());
        u32::try_from(index).unwrap_or(u32::MAX)
    }

    pub(crate) fn cq(&mut self, cq: u32) -> Option<&mut CqSlot> {
        self.cqs.get_mut(cq as usize).and_then(Option::as_mut)
    }

    /// Writes a completion; it is published with the others of the pass.
    #[inline]
    pub(crate) fn complete(&mut self, cq: u32, cqe: Cqe, solicited: bool) {
        self.observe(|| NicEvent::Completed {
            qpn: cqe.qpn,
            cq,
            kind: cqe.kind,
            wr_id: cqe.wr_id,
            status: WcStatus::from_raw(cqe.status.into()),
            byte_len: cqe.byte_len,
        });
        let timestamp = self.now.as_nanos();
        let Some(slot) = self.cqs.get_mut(cq as usize).and_then(Option::as_mut) else { return };
        if slot.producer.stage(Cqe { timestamp, ..cqe }, solicited).is_err() {
            self.counters.count(Counter::CqOverrun);
            // Queue pairs that were brought up again fail again; those that are flushed have failed.
            let flushed = cqe.status == WcStatus::WrFlush as u8;
            if (!slot.dead || !flushed) && !self.overrun.contains(&cq) {
                self.overrun.push(cq);
            }
        } else if !slot.dirty {
            slot.dirty = true;
            self.dirty.push(cq);
        }
    }

    /// Publishes the completions of one queue. `None` when there are no more such queues.
    pub(crate) fn publish_next(&mut self) -> Option<(u32, bool)> {
        while let Some(cq) = self.dirty.pop() {
            if let Some(slot) = self.cqs.get_mut(cq as usize).and_then(Option::as_mut) {
                slot.dirty = false;
                return Some((cq, slot.producer.publish()));
            }
        }
        None
    }

    /// Whether something follows from what happened, for others than the queue pair that it happened to.
    #[inline]
    pub(crate) fn is_unsettled(&self) -> bool {
        !self.overrun.is_empty() || !self.woken.is_empty()
    }

    /// Lets the next one that waits for room in a window try.
    pub(crate) fn wake_window(&mut self, id: WindowId) {
        if let Some(slot) = self.windows.wake(id) {
            self.woken.push((slot, id));
        }
    }
}
