//! Why a verb was refused: the attribute or argument at fault, the values, and what would do.

use std::borrow::Cow;
use std::fmt;

use super::errno::{EBUSY, EDEADLK, EINVAL, EIO, ENODEV, ENOMEM, EOPNOTSUPP};
use super::qp::attr::{QpState, QpType};
use crate::mem::{BindError, MemError};
use crate::wire::num::Mtu;

/// The reason behind an errno, with the values at fault.
///
/// Making one costs no allocation on the data path. `Display` is a sentence that says what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// A transition lacks an attribute that it requires.
    MissingAttr {
        /// State before.
        from: QpState,
        /// State asked for.
        to: QpState,
        /// Name of the attribute, as in `ibv_modify_qp(3)` without its prefix.
        attr: &'static str,
    },
    /// A transition carries an attribute that it does not take.
    UnexpectedAttr {
        /// State before.
        from: QpState,
        /// State asked for.
        to: QpState,
        /// Name of the attribute.
        attr: &'static str,
    },
    /// There is no such transition for this type of queue pair.
    NoTransition {
        /// Type of the queue pair.
        kind: QpType,
        /// State before.
        from: QpState,
        /// State asked for.
        to: QpState,
    },
    /// A number is out of its range.
    AttrRange {
        /// Name of the attribute or argument.
        attr: &'static str,
        /// What was given.
        got: u64,
        /// The largest value allowed.
        max: u64,
    },
    /// A value is not one of those that exist.
    AttrValue {
        /// Name of the attribute or argument.
        attr: &'static str,
        /// What was given.
        got: u64,
        /// What would do.
        want: &'static str,
    },
    /// The path MTU does not fit the port.
    PathMtu {
        /// What was asked for.
        asked: Mtu,
        /// What the port carries.
        port: Mtu,
    },
    /// Source and destination address are of different families, or the destination is none.
    AddressFamily,
    /// The queue pair is in the wrong state for this.
    State {
        /// The state it is in.
        state: QpState,
        /// The states in which it works.
        want: &'static str,
    },
    /// The queue is full: its slots come back when completions are polled.
    QueueFull {
        /// Slots of the queue.
        depth: u32,
    },
    /// A work request names more pieces of memory than the queue pair allows.
    TooManySge {
        /// Pieces named.
        got: usize,
        /// Pieces allowed.
        max: u32,
    },
    /// More inline bytes than the queue pair allows.
    InlineTooLong {
        /// Bytes given.
        got: usize,
        /// Bytes allowed.
        max: u32,
    },
    /// A message above 2^31 bytes.
    MessageTooLong {
        /// Bytes asked for.
        got: u64,
        /// Bytes allowed.
        max: u64,
    },
    /// An atomic, or ATOMIC WRITE, whose local side is not 8 bytes.
    AtomicLocal {
        /// Bytes given.
        got: u64,
    },
    /// A limit of the device is exceeded.
    Limit {
        /// What there would be too many of.
        what: &'static str,
        /// How many were asked for.
        got: u64,
        /// How many there may be.
        max: u64,
    },
    /// The object is still in use.
    Busy {
        /// By what.
        by: &'static str,
    },
    /// The objects belong to different protection domains, devices or simulations.
    Mismatch {
        /// Which objects, and what they should share.
        what: &'static str,
    },
    /// Not built, or not offered by this device.
    Unsupported {
        /// A sentence on what, and what to use instead.
        what: &'static str,
    },
    /// Registered memory: see the reason.
    Memory(MemError),
    /// A memory window: see the reason.
    Bind(BindError),
    /// An address cannot be used.
    Address {
        /// Errno of the socket.
        errno: i32,
        /// Who may be at fault, and the way out.
        why: Cow<'static, str>,
    },
    /// No such device.
    NoDevice {
        /// What was looked for, and what there is.
        why: Cow<'static, str>,
    },
    /// Waiting would never end, or the simulation belongs to another thread.
    Deadlock {
        /// What to do.
        why: &'static str,
    },
    /// The device failed.
    Io {
        /// Errno of the system.
        errno: i32,
        /// What failed.
        why: Cow<'static, str>,
    },
    /// An argument is wrong.
    Invalid {
        /// A sentence on which, and what would do.
        what: Cow<'static, str>,
    },
}

impl Cause {
    /// The errno that C verbs would give.
    pub fn errno(&self) -> i32 {
        match self {
            Self::MissingAttr { .. }
            | Self::UnexpectedAttr { .. }
            | Self::NoTransition { .. }
            | Self::AttrRange { .. }
            | Self::AttrValue { .. }
            | Self::PathMtu { .. }
            | Self::AddressFamily
            | Self::State { .. }
            | Self::TooManySge { .. }
            | Self::InlineTooLong { .. }
            | Self::MessageTooLong { .. }
            | Self::AtomicLocal { .. }
            | Self::Limit { .. }
            | Self::Mismatch { .. }
            | Self::Bind(_)
            | Self::Invalid { .. } => EINVAL,
            Self::QueueFull { .. } => ENOMEM,
            Self::Busy { .. } => EBUSY,
            Self::Unsupported { .. } => EOPNOTSUPP,
            Self::Memory(e) => e.errno(),
            Self::Address { errno, .. } | Self::Io { errno, .. } => *errno,
            Self::NoDevice { .. } => ENODEV,
            Self::Deadlock { .. } => EDEADLK,
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MissingAttr { from, to, attr } => {
                write!(f, "{from:?} to {to:?} needs {attr}: set it in the QpAttr")
            }
            Self::UnexpectedAttr { from, to, attr } => {
                write!(f, "{from:?} to {to:?} does not take {attr}: leave it out of the QpAttr")
            }
            Self::NoTransition { kind, from, to } => {
                write!(f, "a queue pair of type {kind:?} does not go from {from:?} to {to:?}")
            }
            Self::AttrRange { attr, got, max } => {
                write!(f, "{attr} is {got}, the largest value is {max}{}", hint(attr))
            }
            Self::AttrValue { attr, got, want } => write!(f, "{attr} is {got}, wanted {want}"),
            Self::PathMtu { asked, port } => write!(
                f,
                "path_mtu {} is above the {} bytes that the port carries: use the smaller, on both sides",
                asked.bytes(),
                port.bytes()
            ),
            Self::AddressFamily => f.write_str(
                "the destination GID must be of the family of the source GID: choose another sgid_index",
            ),
            Self::State { state, want } => write!(f, "the queue pair is in {state:?}, wanted {want}"),
            Self::QueueFull { depth } => write!(
                f,
                "all {depth} slots are taken; one is free again when its completion, or that of a later \
                 request, was polled"
            ),
            Self::TooManySge { got, max } => {
                write!(f, "{got} pieces of memory, the queue pair allows {max}: see QpCap")
            }
            Self::InlineTooLong { got, max } => {
                write!(f, "{got} inline bytes, the queue pair allows {max}: see QpCap::inline")
            }
            Self::MessageTooLong { got, max } => write!(f, "a message of {got} bytes is above {max}"),
            Self::AtomicLocal { got } => {
                write!(f, "the local side of an atomic or ATOMIC WRITE is 8 bytes, not {got}")
            }
            Self::Limit { what, got, max } => {
                write!(f, "{what}: {got} asked for, the device allows {max}")
            }
            Self::Busy { by } => write!(f, "still in use by {by}"),
            Self::Mismatch { what } | Self::Unsupported { what } => f.write_str(what),
            Self::Memory(e) => e.fmt(f),
            Self::Bind(e) => e.fmt(f),
            Self::Address { why, .. } | Self::NoDevice { why } | Self::Io { why, .. } => f.write_str(why),
            Self::Deadlock { why } => f.write_str(why),
            Self::Invalid { what } => f.write_str(what),
        }
    }
}

/// Where to look for values of an attribute.
fn hint(attr: &str) -> &'static str {
    match attr {
        "sgid_index" | "ah.sgid_index" => ": Context::gids lists the addresses of the device",
        "pkey_index" => ": the device option pkeys= adds entries to the partition table",
        _ => "",
    }
}

impl From<MemError> for Cause {
    fn from(e: MemError) -> Self {
        Self::Memory(e)
    }
}

impl From<BindError> for Cause {
    fn from(e: BindError) -> Self {
        Self::Bind(e)
    }
}

impl Cause {
    /// An error of the system.
    pub(crate) fn io(e: &std::io::Error, what: &str) -> Self {
        Self::Io { errno: e.raw_os_error().unwrap_or(EIO), why: format!("{what}: {e}").into() }
    }

    /// A full table.
    pub(crate) fn table_full(what: &'static str, max: u64) -> Self {
        Self::Limit { what, got: max + 1, max }
    }

    /// Whether it is a shortage that may pass.
    pub fn is_shortage(&self) -> bool {
        self.errno() == ENOMEM
    }
}
