//! Tasks in virtual time.
//!
//! *Rules.* One queue of woken tasks, first come first served; a task is polled once per turn. Nothing
//! here depends on addresses, hashes or the clock, so equal seeds give equal schedules.

use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;

use crate::engine::cause::Cause;
use crate::nic::Nic;
use crate::nic::virtual_time::{Step, VirtualTime};
use crate::time::Instant;
use crate::verbs::{Error, Result};

type Task = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// The task that `block_on` was called with.
const MAIN: u64 = 0;

#[derive(Default)]
struct Queue {
    woken: VecDeque<u64>,
    sleepers: BTreeMap<(Instant, u64), Waker>,
    next: u64,
}

/// Runs tasks of a simulation.
pub(super) struct Executor {
    queue: Arc<Mutex<Queue>>,
    tasks: Mutex<BTreeMap<u64, Entry>>,
}

/// A task. It is taken out while it runs.
struct Entry {
    task: Option<Task>,
    /// What wakes it.
    ticket: Arc<Ticket>,
    /// The device that it dies with.
    host: Option<Weak<Nic>>,
}

/// What wakes a task: puts it into the queue, once. (Weak: sleepers in the queue hold it.)
struct Ticket {
    id: u64,
    queue: Weak<Mutex<Queue>>,
    queued: AtomicBool,
}

impl Wake for Ticket {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel)
            && let Some(queue) = self.queue.upgrade()
        {
            queue.lock().woken.push_back(self.id);
        }
    }
}

impl Executor {
    pub(super) fn new() -> Self {
        let queue = Queue { next: MAIN + 1, ..Queue::default() };
        Self { queue: Arc::new(Mutex::new(queue)), tasks: Mutex::default() }
    }

    fn ticket(&self, id: u64) -> Arc<Ticket> {
        Arc::new(Ticket { id, queue: Arc::downgrade(&self.queue), queued: AtomicBool::new(false) })
    }

    pub(super) fn spawn(
        &self,
        f: impl Future<Output = Result<()>> + Send + 'static,
        host: Option<&Arc<Nic>>,
    ) {
        let id = {
            let mut queue = self.queue.lock();
            queue.next += 1;
            queue.next
        };
        let ticket = self.ticket(id);
        let host = host.map(Arc::downgrade);
        let entry = Entry { task: Some(Box::pin(f)), ticket: Arc::clone(&ticket), host };
        self.tasks.lock().insert(id, entry);
        ticket.wake_by_ref();
    }

    /// Drops the tasks that die with a device. One that runs is dropped when it comes to rest.
    pub(super) fn bury(&self, nic: &Nic) {
        let is_of = |e: &Entry| e.host.as_ref().is_some_and(|w| std::ptr::eq(w.as_ptr(), nic));
        let mut dead = Vec::new();
        let mut tasks = self.tasks.lock();
        tasks.retain(|_, entry| {
            let dies = is_of(entry);
            dead.extend(entry.task.take_if(|_| dies));
            !dies
        });
        // Without the lock: what a task holds may lead back here.
        drop(tasks);
    }

    /// Drops all tasks. One that runs is dropped when it comes to rest.
    pub(super) fn clear(&self) {
        let tasks = std::mem::take(&mut *self.tasks.lock());
        // Without the lock: what a task holds may lead back here.
        drop(tasks);
    }

    pub(super) fn block_on<T>(&self, time: &VirtualTime, f: impl Future<Output = T>) -> Result<T> {
        let refused = |cause| Error::verb("block_on", cause);
        time.drive().map_err(refused)?;
        let mut main = pin!(f);
        let ticket = self.ticket(MAIN);
        let waker = Waker::from(Arc::clone(&ticket));
        ticket.wake_by_ref();
        loop {
            let woken = self.queue.lock().woken.pop_front();
            match woken {
                Some(MAIN) => {
                    ticket.queued.store(false, Ordering::Release);
                    if let Poll::Ready(value) = main.as_mut().poll(&mut Context::from_waker(&waker))
                    {
                        return Ok(value);
                    }
                }
                Some(id) => self.run(id)?,
                None => self.pass_time(time).map_err(refused)?,
            }
        }
    }

    /// Polls a task once.
    fn run(&self, id: u64) -> Result<()> {
        let taken = self.tasks.lock().get_mut(&id).map(|e| (e.task.take(), Arc::clone(&e.ticket)));
        let Some((Some(mut task), ticket)) = taken else { return Ok(()) };
        ticket.queued.store(false, Ordering::Release);
        let waker = Waker::from(ticket);
        match task.as_mut().poll(&mut Context::from_waker(&waker)) {
            // One that was to die with its host meanwhile has nothing to say.
            Poll::Ready(done) => match self.tasks.lock().remove(&id) {
                Some(_) => done,
                None => Ok(()),
            },
            Poll::Pending => {
                if let Some(entry) = self.tasks.lock().get_mut(&id) {
                    entry.task = Some(task);
                }
                Ok(())
            }
        }
    }

    /// Nobody can run: lets time pass to the next event or the next sleeper.
    fn pass_time(&self, time: &VirtualTime) -> std::result::Result<(), Cause> {
        let sleeper = self.queue.lock().sleepers.keys().next().map(|&(at, _)| at);
        match time.step(sleeper.unwrap_or(Instant::FAR_FUTURE)) {
            Step::Ran => {}
            Step::Beyond | Step::Idle => match sleeper {
                Some(at) => {
                    time.wait(|| false, at - time.now())?;
                }
                None => {
                    return Err(Cause::Deadlock {
                        why: "nothing is left to happen in the simulation, and the task is not done",
                    });
                }
            },
        }
        let now = time.now();
        let mut queue = self.queue.lock();
        let later = queue.sleepers.split_off(&(now, u64::MAX));
        let due = std::mem::replace(&mut queue.sleepers, later);
        drop(queue);
        due.into_values().for_each(Waker::wake);
        Ok(())
    }

    pub(super) async fn sleep_until(&self, until: Instant, time: &VirtualTime) {
        let mut key = None;
        poll_fn(|cx| {
            if time.now() >= until {
                return Poll::Ready(());
            }
            let mut queue = self.queue.lock();
            let key = *key.get_or_insert_with(|| {
                queue.next += 1;
                (until, queue.next)
            });
            queue.sleepers.insert(key, cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}
