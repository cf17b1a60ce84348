//! Address handles, of datagram queue pairs.

use super::pd::ProtectionDomain;

/// Where datagrams go. Datagram queue pairs are not offered yet, so none can be made:
/// [`ProtectionDomain::create_ah`] refuses with `EOPNOTSUPP`.
#[doc(alias = "ibv_ah")]
#[derive(Debug)]
pub struct AddressHandle {
    _pd: ProtectionDomain,
}
