//! Rows: small requests that leave one behind the other, each in a packet like the one before.
//!
//! *Rules.* A row changes nothing but the time that it takes. Its first packet leaves as any other does; those behind
//! it are requests of the same kind and length that nobody has begun yet, and of which each would be begun, planned
//! and sent in the same way. What decides that is looked at once for all of them; where one is another case, the row
//! ends in front of it, and it takes the way that all others take. Rows that come in are the matter of
//! [`admission`](crate::engine::admission).

use super::packets::{Plan, TO_PEER, gather};
use super::requester::{MAX_SPAN, Track};
use super::seals::REQUEST;
use super::{Qp, REQUESTS, steps};
use crate::engine::batch::Batch;
use crate::engine::common::Common;
use crate::engine::qp::attr::QpState;
use crate::queue::SendFlags;
use crate::wire::opcode::{Headers, Operation};
use crate::wire::packet::PacketBuilder;

impl Qp {
    /// Sends more requests like that of `plan`, which fits one packet and has just left.
    #[inline]
    pub(super) fn send_row(
        &mut self,
        c: &mut Common,
        batch: &mut Batch<'_>,
        plan: &Plan,
        size: usize,
    ) {
        if self.sq.head() != self.req.fresh {
            self.send_more(c, batch, plan, size);
        }
    }

    #[inline(never)]
    fn send_more(&mut self, c: &mut Common, batch: &mut Batch<'_>, plan: &Plan, size: usize) {
        let most = self.row(c, plan).min(batch.more(size));
        if most == 0 {
            return;
        }
        let Some((first, _)) = self.sq.get(self.req.cur) else { return };
        // What of the flags decides how it is sent. One with a fence may have to wait.
        let deciding = SendFlags::FENCE | SendFlags::SOLICITED;
        let (op, length, flags) = (first.op, first.length, first.flags & SendFlags::SOLICITED);
        let Some(last) = batch.last(size) else { return };
        let alike = self.left_alike(REQUEST, last);
        let mut bth = self.bth(plan.opcode, plan.psn);
        (bth.ack_req, bth.se) = (plan.ack_req, plan.se);
        let mut bth = bth.with_pad_for(plan.payload).emit();
        let bare = plan.opcode.info().headers == Headers::empty();
        let (mut index, mut psn, mut sent, mut key) = (self.req.fresh, self.req.next_psn, 0, None);
        while sent < most {
            let Some((wqe, words)) = self.sq.get(index) else { break };
            if wqe.op != op || wqe.length != length || wqe.flags & deciding != flags {
                break;
            }
            let [_, rest @ ..] = psn.raw().to_be_bytes();
            bth[9..].copy_from_slice(&rest);
            let ident = batch.ident();
            let slot = batch.slot(size);
            let mut builder = PacketBuilder::behind(&bth, slot, plan.opcode, plan.payload);
            if !bare {
                builder.put_ext(plan.opcode, &plan.ext(wqe));
            }
            // Where it fails, it will fail again, and be told of.
            if plan.payload > 0
                && gather(c, &mut key, self.pd, wqe, words, 0, builder.payload_mut()).is_err()
            {
                break;
            }
            builder.finish_alike(&alike, ident);
            batch.commit_alike(size);
            *self.req.track_mut(index) = Track { first: psn, packets: 1, chunk: 1 };
            index = index.wrapping_add(1);
            psn = psn.offset(1);
            sent += 1;
        }
        if sent == 0 {
            return;
        }
        let (r, charge) = (&mut self.req, u64::from(sent) * plan.charge);
        self.budget[REQUESTS] -= sent;
        // The cursor is behind the last one, which is sent.
        (r.cur, r.cur_packet) = (index.wrapping_sub(1), 1);
        r.fresh = index;
        (r.next_psn, r.top_psn, r.asked) = (psn, psn, psn);
        r.charged[TO_PEER] += charge;
        r.flying += sent;
        if let Some((to_peer, _)) = self.windows {
            c.windows.charge(to_peer, charge);
        }
    }

    /// How many requests like that of `plan`, which has just left, would follow it without another thought.
    fn row(&self, c: &Common, plan: &Plan) -> u32 {
        let r = &self.req;
        let Some((to_peer, _)) = self.windows else { return 0 };
        let is_data = matches!(plan.opcode.info().operation, Operation::Send | Operation::Write);
        let is_newest = r.cur.wrapping_add(1) == r.fresh && r.top_psn == r.next_psn;
        let is_plain = self.state == QpState::Rts
            && r.failed.is_none()
            && !r.is_credited
            && !self.is_steered();
        let behind = !r.woken[TO_PEER] && c.windows.has_waiters(to_peer);
        if !is_data || !is_newest || !is_plain || behind || c.config.elide || c.is_watched() {
            return 0;
        }
        let room = c.windows.room(to_peer, self.unit()) / plan.charge;
        let room = u32::try_from(room).unwrap_or(u32::MAX);
        let span = MAX_SPAN.saturating_sub(steps(r.una_psn, r.next_psn));
        room.min(span).min(self.budget[REQUESTS])
    }
}
