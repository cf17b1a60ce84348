//! What the engine tells its driver, and the asynchronous events among it.

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
    /// A shared receive queue failed.
    SrqErr {
        /// Its number.
        srq: u32,
    },
    /// A shared receive queue fell below its limit.
    SrqLimit {
        /// Its number.
        srq: u32,
    },
    /// The port works.
    PortActive {
        /// Its number.
        port: u8,
    },
    /// The port does not work.
    PortErr {
        /// Its number.
        port: u8,
    },
    /// The table of addresses changed.
    GidChange {
        /// Number of the port.
        port: u8,
    },
    /// The device failed.
    DeviceFatal,
    /// A path migrated.
    PathMig {
        /// Number of the queue pair.
        qpn: u32,
    },
    /// Another event, by its number of `enum ibv_event_type`.
    Other(u32),
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
