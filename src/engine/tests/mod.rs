//! Two engines talking to each other, in virtual time.

pub(crate) mod pair;
mod rc;
