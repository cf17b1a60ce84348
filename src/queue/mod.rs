//! The queues between the application and the engine.
//!
//! *Owns.* [`ring`] is the one mechanism: a bounded queue with one producer and one consumer. [`send`] and
//! [`recv`] are the application's ends of the send and receive queues, [`completion`] both ends of a completion
//! queue. [`wqe`] and [`cqe`] say what lies in them.
//!
//! *Rules.*
//! - The application's ends stand behind a short lock, because any thread may post or poll. The engine's
//!   ends take no lock: the engine runs under its own. A queue's lock is a leaf: who holds it takes no other.
//! - Everything is allocated when a queue is made. Posting, completing and polling do not allocate.
//! - Nothing that is read from a slot is trusted to fit: counts are bounded by the slot.
//!
//! This module knows no packets.

pub mod completion;
pub mod cqe;
pub mod recv;
pub mod ring;
pub mod send;
pub mod wqe;

pub use completion::{CqProducer, CqShared, Overrun, QpCounters, QpTag, completion_queue};
pub use cqe::{Cqe, CqeFlags, CqeKind};
pub use recv::{RecvProducer, RecvQueue, recv_queue};
pub use ring::{Consumer, Producer};
pub use send::{SendCaps, SendProducer, SendQueue, send_queue};
pub use wqe::{BindWqe, PostError, RecvWqe, SendFlags, SendOp, SendWqe};
