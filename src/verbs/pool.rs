//! Buffers that come back by themselves, and what keeps them while a request has them.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use parking_lot::Mutex;

use crate::mem::Access;
use crate::nic::notify::{Place, Wakers};

use super::error::Result;
use super::mr::{MemoryRegion, Sge};
use super::pd::ProtectionDomain;

struct Inner {
    mr: MemoryRegion,
    buf_len: usize,
    state: Mutex<State>,
}

struct State {
    free: Vec<usize>,
    wakers: Wakers,
}

/// One registration, cut into buffers of one size that go back when dropped.
///
/// ```
/// use softroce::prelude::*;
/// # fn main() -> Result<()> {
/// # let [ctx] = softroce::sim::Sim::new(1).hosts(Default::default());
/// let pool = ctx.alloc_pd()?.pool(2048, 2)?;
/// let a = pool.try_get().unwrap();
/// let _b = pool.try_get().unwrap();
/// assert!(pool.try_get().is_none());
/// drop(a);
/// assert_eq!(pool.available(), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Pool(Arc<Inner>);

impl Pool {
    pub(crate) fn new(pd: &ProtectionDomain, buf_len: usize, count: usize) -> Result<Self> {
        // Whole words, so that neighbours share none.
        let step = buf_len.next_multiple_of(8);
        let mr = pd.alloc_mr(step.saturating_mul(count), Access::LOCAL)?;
        let free = (0..count).rev().map(|i| i * step).collect();
        let state = Mutex::new(State { free, wakers: Wakers::default() });
        Ok(Self(Arc::new(Inner { mr, buf_len, state })))
    }

    /// A buffer, if one is free.
    pub fn try_get(&self) -> Option<PoolBuf> {
        let at = self.0.state.lock().free.pop()?;
        Some(PoolBuf { pool: self.clone(), at })
    }

    /// A buffer, as soon as one is free.
    pub async fn get(&self) -> PoolBuf {
        let mut waits = Waits { pool: self, place: Place::default() };
        poll_fn(|cx| {
            let waker = cx.waker().clone();
            let mut state = self.0.state.lock();
            if let Some(at) = state.free.pop() {
                return Poll::Ready(PoolBuf { pool: self.clone(), at });
            }
            let before = state.wakers.put(&mut waits.place, waker);
            drop(state);
            drop(before);
            Poll::Pending
        })
        .await
    }

    /// Buffers that are free.
    pub fn available(&self) -> usize {
        self.0.state.lock().free.len()
    }
}

/// A future that waits for a buffer. Dropped, it leaves no waker behind.
struct Waits<'a> {
    pool: &'a Pool,
    place: Place,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let waker = self.pool.0.state.lock().wakers.remove(&mut self.place);
        // Not under the lock.
        drop(waker);
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("buf_len", &self.0.buf_len)
            .field("available", &self.available())
            .finish_non_exhaustive()
    }
}

/// A buffer of a [`Pool`]. Dropped, it goes back: keep it (see [`InFlight`]) while a request has it.
#[derive(Debug)]
pub struct PoolBuf {
    pool: Pool,
    at: usize,
}

impl PoolBuf {
    /// The whole buffer, for a request.
    pub fn sge(&self) -> Sge {
        self.pool.0.mr.sge(self.at..self.at + self.pool.0.buf_len)
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.pool.0.buf_len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes out.
    ///
    /// # Panics
    /// Out of range.
    pub fn read(&self, at: usize, dst: &mut [u8]) {
        self.check(at, dst.len());
        self.pool.0.mr.read(self.at + at, dst);
    }

    /// Copies bytes in.
    ///
    /// # Panics
    /// Out of range.
    pub fn write(&self, at: usize, src: &[u8]) {
        self.check(at, src.len());
        self.pool.0.mr.write(self.at + at, src);
    }
}

impl PoolBuf {
    /// Whether `n` bytes from `at` on are in it.
    #[track_caller]
    fn check(&self, at: usize, n: usize) {
        let len = self.len();
        assert!(at <= len && n <= len - at, "{n} bytes from {at} on, of {len}");
    }
}

impl Drop for PoolBuf {
    fn drop(&mut self) {
        let mut state = self.pool.0.state.lock();
        state.free.push(self.at);
        // All of them: some may have given up, and nobody knows which.
        let mut wakers = Vec::new();
        state.wakers.take(&mut wakers);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// Holds what a request needs until it completes: `let id = fl.put(buf)`, then `fl.take(wc.wr_id)`.
///
/// Ids are never 0 and are not reused soon.
///
/// ```
/// let mut fl = softroce::prelude::InFlight::new();
/// let id = fl.put("a buffer");
/// assert_eq!(fl.take(id), Some("a buffer"));
/// assert_eq!(fl.take(id), None);
/// ```
#[derive(Debug)]
pub struct InFlight<T> {
    slots: Vec<(u32, Option<T>)>,
    free: std::collections::VecDeque<u32>,
}

impl<T> Default for InFlight<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: std::collections::VecDeque::new() }
    }
}

impl<T> InFlight<T> {
    /// Holds nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps `t`; gives the number for the request.
    pub fn put(&mut self, t: T) -> u64 {
        let slot = match self.free.pop_front() {
            Some(slot) => slot,
            None => {
                self.slots.push((0, None));
                u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
            }
        };
        let (turn, value) = &mut self.slots[slot as usize];
        *turn = turn.wrapping_add(1).max(1);
        *value = Some(t);
        u64::from(*turn) << 32 | u64::from(slot)
    }

    /// Gives back what was kept under this number, once.
    pub fn take(&mut self, id: u64) -> Option<T> {
        let slot = (id & 0xffff_ffff) as u32;
        let (turn, value) = self.slots.get_mut(slot as usize)?;
        if u64::from(*turn) != id >> 32 {
            return None;
        }
        let taken = value.take()?;
        self.free.push_back(slot);
        Some(taken)
    }

    /// How many are kept.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether none is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
