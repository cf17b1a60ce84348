//! Packets of one transmission: equal in size and destination, the last may be shorter.

use std::num::NonZeroU16;

use crate::net::{Path, PortCaps, Transmit};
use crate::wire::icrc;

/// The transmission being filled, in the driver's buffer.
#[derive(Debug)]
pub(crate) struct Batch<'b> {
    buf: &'b mut [u8],
    len: usize,
    segment: usize,
    count: usize,
    path: Option<Path>,
    max_v4: usize,
    max_v6: usize,
    closed: bool,
    /// Identification of the first packet (ports that choose it).
    first_ident: u16,
    /// Queue pair of the first packet.
    owner: u64,
}

impl<'b> Batch<'b> {
    /// `first_ident`: what segment `k` is sealed with is this plus `k`.
    pub(crate) fn new(buf: &'b mut [u8], caps: &PortCaps, first_ident: u16) -> Self {
        let room = buf.len().min(caps.max_transmit);
        Self {
            buf: &mut buf[..room],
            len: 0,
            segment: 0,
            count: 0,
            path: None,
            max_v4: caps.gso_segments_v4.max(1),
            max_v6: caps.gso_segments_v6.max(1),
            closed: false,
            first_ident,
            owner: 0,
        }
    }

    /// Whether a packet of `size` bytes to `path` may join.
    pub(crate) fn takes(&self, path: &Path, size: usize) -> bool {
        match &self.path {
            None => size <= self.buf.len(),
            Some(p) => {
                let max = if path.dst.is_ipv4() { self.max_v4 } else { self.max_v6 };
                !self.closed
                    && self.count < max
                    && size <= self.segment
                    && self.len + size <= self.buf.len()
                    && p == path
            }
        }
    }

    /// How many more packets like the last one may join.
    pub(crate) fn more(&self, size: usize) -> u32 {
        let Some(path) = &self.path else { return 0 };
        if self.closed || size != self.segment {
            return 0;
        }
        let max = if path.dst.is_ipv4() { self.max_v4 } else { self.max_v6 };
        let room = (self.buf.len() - self.len) / size.max(1);
        u32::try_from(room.min(max.saturating_sub(self.count))).unwrap_or(u32::MAX)
    }

    /// Identification of the next packet.
    pub(crate) fn ident(&self) -> u16 {
        // At most 128 segments.
        self.first_ident.wrapping_add(u16::try_from(self.count).unwrap_or(0))
    }

    /// Where the next packet goes. Only after [`takes`](Self::takes).
    pub(crate) fn slot(&mut self, size: usize) -> &mut [u8] {
        &mut self.buf[self.len..self.len + size]
    }

    /// The packet in the slot is complete.
    pub(crate) fn commit(&mut self, path: &Path, size: usize, owner: u64) {
        if self.count == 0 {
            self.path = Some(*path);
            self.segment = size;
            self.owner = owner;
        }
        self.closed |= size < self.segment;
        self.count += 1;
        self.len += size;
    }

    /// The same for one of the same size and way as the last one.
    #[inline]
    pub(crate) fn commit_alike(&mut self, size: usize) {
        debug_assert!(self.count > 0 && size == self.segment && !self.closed);
        self.count += 1;
        self.len += size;
    }

    /// The last packet, which has `size` bytes, without its ICRC.
    pub(crate) fn last(&self, size: usize) -> Option<&[u8]> {
        let from = self.len.checked_sub(size)?;
        self.buf.get(from..self.len - icrc::LEN)
    }

    /// Packets in it.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// The finished transmission and the queue pair that made its first packet.
    pub(crate) fn finish(self) -> Option<(Transmit, u64)> {
        let path = self.path?;
        let segment_size = if self.count > 1 {
            u16::try_from(self.segment).ok().and_then(NonZeroU16::new)
        } else {
            None
        };
        let transmit = Transmit {
            path,
            ident: self.first_ident,
            len: self.len,
            segment_size: segment_size.map(NonZeroU16::get),
        };
        Some((transmit, self.owner))
    }
}
