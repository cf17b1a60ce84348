//! Shared receive queues, which are not offered yet.

use crate::engine::cause::Cause;

use super::error::{Error, Result};
use super::pd::ProtectionDomain;
use super::wr::RecvWr;

/// A receive queue shared by many queue pairs. Not offered yet, so none can be made:
/// [`ProtectionDomain::create_srq`] refuses with `EOPNOTSUPP`.
#[doc(alias = "ibv_srq")]
#[derive(Clone, Debug)]
pub struct SharedReceiveQueue {
    _pd: ProtectionDomain,
}

impl SharedReceiveQueue {
    /// Its number.
    pub fn number(&self) -> u32 {
        0
    }

    /// Posts receives.
    ///
    /// # Errors
    /// `EOPNOTSUPP`, for now.
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn post_recv<'a>(&self, wrs: impl IntoIterator<Item = RecvWr<'a>>) -> Result<()> {
        let _ = wrs;
        Err(Error::verb(
            "ibv_post_srq_recv",
            Cause::Unsupported { what: "shared receive queues are not offered yet" },
        ))
    }
}
