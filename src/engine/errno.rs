//! The errno numbers that verbs use, as Linux has them: part of the API on every platform.

/// Operation not permitted.
pub const EPERM: i32 = 1;
/// I/O error: the device failed.
pub const EIO: i32 = 5;
/// Try again.
pub const EAGAIN: i32 = 11;
/// A queue or a table is full.
pub const ENOMEM: i32 = 12;
/// Permission denied.
pub const EACCES: i32 = 13;
/// In use.
pub const EBUSY: i32 = 16;
/// No such device.
pub const ENODEV: i32 = 19;
/// An argument is wrong.
pub const EINVAL: i32 = 22;
/// Waiting here would never end.
pub const EDEADLK: i32 = 35;
/// The address is taken.
pub const EADDRINUSE: i32 = 98;
/// Not one of this machine's addresses.
pub const EADDRNOTAVAIL: i32 = 99;
/// Not supported.
pub const EOPNOTSUPP: i32 = 95;
/// Nothing came in time.
pub const ETIMEDOUT: i32 = 110;
/// The peer refused.
pub const ECONNREFUSED: i32 = 111;
