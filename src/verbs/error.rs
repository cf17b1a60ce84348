//! Errors: which verb, which errno, and what to do about it.

use crate::engine::cause::Cause;
use crate::engine::errno::{ECONNREFUSED, ENODEV, ETIMEDOUT};
use crate::engine::status::WcStatus;

use super::wc::WorkCompletion;

/// A result whose error is [`Error`] unless said otherwise.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, with the errno that C verbs would have given.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A verb was refused. Nothing has changed.
    #[error("{verb}: {cause} (errno {errno})")]
    Verb {
        /// Its name in C, so that logs of all backends read alike.
        verb: &'static str,
        /// What C verbs would return.
        errno: i32,
        /// Which attribute or argument is at fault, and what would do.
        cause: Cause,
    },
    /// A work request completed with an error.
    #[error("work request {} of queue pair {:#x} completed with {:?}", .0.wr_id, .0.qpn, .0.status)]
    Completion(WorkCompletion),
    /// Part of a batch was posted: the first `posted` requests are in the queue, the next one is not, and
    /// the rest was not looked at.
    #[error("{verb}: after {posted} requests: {cause} (errno {errno})")]
    Post {
        /// Its name in C.
        verb: &'static str,
        /// Requests that are in the queue.
        posted: usize,
        /// What C verbs would return.
        errno: i32,
        /// Why the next one is not.
        cause: Cause,
    },
    /// Nothing completed in time (virtual time in a simulation).
    #[error("nothing came in time")]
    Timeout,
    /// No such device, or the backend that has it cannot be used here.
    #[error("{0}")]
    NoDevice(String),
    /// The peer refused the connection.
    #[error("the peer refused the connection (reason {reason})")]
    Rejected {
        /// Reason code of the connection manager.
        reason: u16,
        /// What the peer said with it.
        private_data: Vec<u8>,
    },
}

impl Error {
    /// The errno that C verbs would have given, if one would.
    ///
    /// ```
    /// use softroce::prelude::*;
    /// assert_eq!(Error::Timeout.errno(), Some(110));
    /// ```
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Verb { errno, .. } | Self::Post { errno, .. } => Some(*errno),
            Self::Timeout => Some(ETIMEDOUT),
            Self::NoDevice(_) => Some(ENODEV),
            Self::Rejected { .. } => Some(ECONNREFUSED),
            Self::Completion(_) => None,
        }
    }

    /// The status, if a work request failed.
    pub fn wc_status(&self) -> Option<WcStatus> {
        match self {
            Self::Completion(wc) => Some(wc.status),
            _ => None,
        }
    }

    /// Why the verb was refused, if one was.
    pub fn cause(&self) -> Option<&Cause> {
        match self {
            Self::Verb { cause, .. } | Self::Post { cause, .. } => Some(cause),
            _ => None,
        }
    }

    /// A verb was refused.
    pub(crate) fn verb(verb: &'static str, cause: impl Into<Cause>) -> Self {
        let cause = cause.into();
        match cause {
            Cause::NoDevice { why } => Self::NoDevice(why.into_owned()),
            cause => Self::Verb { verb, errno: cause.errno(), cause },
        }
    }

    /// A batch was cut short.
    pub(crate) fn post(verb: &'static str, posted: usize, cause: Cause) -> Self {
        Self::Post { verb, posted, errno: cause.errno(), cause }
    }
}

/// Names the verb that a cause refused.
pub(crate) trait Named<T> {
    /// The error of `verb`.
    fn of(self, verb: &'static str) -> Result<T>;
}

impl<T, E: Into<Cause>> Named<T> for Result<T, E> {
    fn of(self, verb: &'static str) -> Result<T> {
        self.map_err(|cause| Error::verb(verb, cause))
    }
}

impl From<std::io::Error> for Error {
    fn from(e: std::io::Error) -> Self {
        Self::verb("io", Cause::io(&e, "input or output"))
    }
}

impl From<Error> for std::io::Error {
    fn from(e: Error) -> Self {
        let kind = match e {
            Error::Timeout => std::io::ErrorKind::TimedOut,
            Error::Rejected { .. } => std::io::ErrorKind::ConnectionRefused,
            _ => std::io::ErrorKind::Other,
        };
        Self::new(kind, e)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::qp::attr::QpState;

    #[test]
    fn sentences_name_the_verb_the_attribute_and_the_way_out() {
        let cause = Cause::MissingAttr { from: QpState::Init, to: QpState::Rtr, attr: "dest_qpn" };
        let e = Error::verb("ibv_modify_qp", cause);
        assert_eq!(e.errno(), Some(22));
        assert_eq!(
            e.to_string(),
            "ibv_modify_qp: Init to Rtr needs dest_qpn: set it in the QpAttr (errno 22)"
        );
        let e = Error::post("ibv_post_send", 3, Cause::QueueFull { depth: 16 });
        assert_eq!(e.errno(), Some(12));
        assert!(
            e.to_string().starts_with("ibv_post_send: after 3 requests: all 16 slots are taken")
        );
    }
}
