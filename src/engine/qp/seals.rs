//! The ICRCs of a queue pair's packets, in and out.
//!
//! *Owns.* What the last packets of each kind have shared with others like them ([`Alike`]): most packets are like the
//! one before, and then neither addresses nor ports are summed again.

use super::Qp;
use crate::engine::common::Common;
use crate::net::RxMeta;
use crate::wire::icrc::{Alike, IpFields};
use crate::wire::packet::PacketBuilder;

/// What the last packets have shared: of requests, and of responses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seals {
    left: [Alike; 2],
    came: [Came; 2],
}

/// The same of packets that came in, which tell more of themselves.
#[derive(Clone, Copy, Debug)]
struct Came {
    alike: Alike,
    src_port: u16,
    df: bool,
}

/// Indices into what [`Seals`] keeps.
pub(super) const REQUEST: usize = 0;
pub(super) const RESPONSE: usize = 1;

impl Seals {
    /// Nothing is known yet.
    pub(super) const NONE: Self = Self {
        left: [Alike::NONE; 2],
        came: [Came { alike: Alike::NONE, src_port: 0, df: false }; 2],
    };
}

impl Qp {
    /// Ends a packet that leaves for the peer; gives its size. `there`: whether it has its payload.
    #[inline(always)]
    pub(super) fn seal(
        &mut self,
        c: &Common,
        which: usize,
        builder: PacketBuilder<'_>,
        ident: u16,
        there: bool,
    ) -> usize {
        if c.config.elide {
            return c.seal(builder, &self.ip, there);
        }
        let alike = self.left_alike(which, builder.sealed());
        builder.finish_alike(&alike, ident)
    }

    /// Those that are like this packet, which leaves.
    #[inline(always)]
    pub(super) fn left_alike(&mut self, which: usize, sealed: &[u8]) -> Alike {
        let alike = &mut self.seals.left[which];
        if !alike.has(sealed) {
            *alike = Alike::new(&self.ip, sealed).unwrap_or(Alike::NONE);
        }
        *alike
    }

    /// Those that are like this packet, which came from the peer. `None`: addresses of two families.
    #[inline(always)]
    pub(crate) fn came_alike(
        &mut self,
        meta: &RxMeta,
        is_request: bool,
        sealed: &[u8],
    ) -> Option<Alike> {
        let came = &mut self.seals.came[if is_request { REQUEST } else { RESPONSE }];
        let (path, df) = (&meta.path, meta.df.unwrap_or(true));
        // From where and to where need not be compared: it is where the queue pair is connected to.
        if !came.alike.has(sealed) || came.src_port != path.src_port || came.df != df {
            let ip = IpFields::new(path.src, path.dst, 0, df, path.src_port)?;
            *came = Came { alike: Alike::new(&ip, sealed)?, src_port: path.src_port, df };
        }
        Some(came.alike)
    }
}
