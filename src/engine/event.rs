//! What the engine tells its driver, and the asynchronous events among it.

/// Asynchronous events kept for who does not fetch them. The oldest are kept, which tell the cause; those that find no
/// place are counted (`events_lost`).
pub const MAX_EVENTS: usize = 4096;

/// An asynchronous event, as `ibv_get_async_event` gives it.
#[doc(alias("ibv_async_event", "ibv_event_type"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A completion queue overran. It takes no more completions; its queue pairs go to ERR.
    CqErr {
        /// Number of the completion queue.
        cq: u32,
    },
    /// A queue pair went to ERR for a reason that no completion can tell.
    QpFatal {
        /// Its number.
        qpn: u32,
    },
    /// A peer's request was invalid, and no receive was involved that could tell.
    QpReqErr {
        /// Number of the queue pair.
        qpn: u32,
    },
    /// A peer's request violated the rights of memory, and no receive was involved that could tell.
    QpAccessErr {
        /// Number of the queue pair.
        qpn: u32,
    },
    /// The first packet arrived while the queue pair was in RTR.
    CommEst {
        /// Its number.
        qpn: u32,
    },
    /// The send queue is drained (state SQD).
    SqDrained {
        /// Number of the queue pair.
        qpn: u32,
    },
    /// The last receive of a shared receive queue was taken by a queue pair in ERR.
    LastWqe {
        /// Number of the queue pair.
        qpn: u32,
    },
    /// A shared receive queue failed. Not raised here: what is wrong with a receive is told by its completion.
    SrqErr {
        /// Its number.
        srq: u32,
    },
    /// A shared receive queue fell below its limit.
    SrqLimit {
        /// Its number.
        srq: u32,
    },
    /// The port works again: its interface has a link, and one of the device's addresses.
    PortActive {
        /// Its number.
        port: u8,
    },
    /// The port does not work: no link, or no address is left. What is under way goes on being tried.
    PortErr {
        /// Its number.
        port: u8,
    },
    /// An address of the device is gone from its interface, or back.
    GidChange {
        /// Number of the port.
        port: u8,
    },
    /// The device failed.
    DeviceFatal,
    /// A path migrated. Not raised here: there are no alternate paths.
    PathMig {
        /// Number of the queue pair.
        qpn: u32,
    },
    /// Another event, by its number of `enum ibv_event_type`.
    Other(u32),
}

impl AsyncEvent {
    /// The queue pair that it is about, if it is about one.
    pub(crate) const fn qpn(&self) -> Option<u32> {
        match *self {
            Self::QpFatal { qpn }
            | Self::QpReqErr { qpn }
            | Self::QpAccessErr { qpn }
            | Self::CommEst { qpn }
            | Self::SqDrained { qpn }
            | Self::LastWqe { qpn }
            | Self::PathMig { qpn } => Some(qpn),
            _ => None,
        }
    }
}

/// Something that [`Engine::poll_event`](super::Engine::poll_event) hands out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Completions were published.
    Completions {
        /// Number of the completion queue.
        cq: u32,
        /// Its owner asked for an event, and this is it.
        notify: bool,
    },
    /// For the application's event queue.
    Async(AsyncEvent),
}
