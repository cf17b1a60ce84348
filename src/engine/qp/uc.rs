//! Unreliable connections: what they do otherwise than reliable ones.
//!
//! *Rules* (IBTA 9.8.2, 9.9.3, 10.3.1). Requester: nothing is acknowledged, so a request is done when its last
//! packet has been handed over; there are no windows, timers or retries. Responder: a message arrives whole
//! and in order, or not at all as far as its receive is concerned. A packet that is missing, or that cannot
//! be executed, ends the message in progress: its receive serves the next message, what a WRITE has placed
//! stays, the rest is dropped, and the next FIRST or ONLY starts afresh whatever its PSN. Nobody is told,
//! everything is counted. Only a receive whose own buffers are wrong completes with an error, and the queue
//! pair goes to ERR: that is a fault of this side, and the next message would meet it again.

use super::Qp;
use super::packets::Plan;
use super::responder::{Open, Refusal};
use crate::engine::common::Common;
use crate::engine::counters::Counter;
use crate::engine::status::WcStatus;
use crate::wire::NakCode;
use crate::wire::opcode::Operation;
use crate::wire::packet::Packet;

impl Qp {
    /// A packet at the cursor has left; with the last one of a request, the request is done.
    pub(super) fn left(&mut self, c: &mut Common, plan: &Plan, size: usize) {
        let r = &mut self.req;
        let end = plan.psn.offset(plan.psns);
        (r.una_psn, r.top_psn) = (end, end);
        r.cur_packet += plan.psns;
        let is_last = r.cur_packet == r.track(r.cur).packets;
        self.pace(c, size + self.path.header_len());
        if is_last {
            let length = self.sq.get(self.req.cur).map_or(0, |(wqe, _)| wqe.length);
            self.complete_oldest(c, length);
            self.retire_local(c);
            self.check_drained(c);
        }
    }

    /// A packet of the peer, its ICRC checked.
    pub(crate) fn handle_unreliable(&mut self, c: &mut Common, packet: &Packet<'_>) {
        self.establish(c);
        let info = packet.info();
        let psn = packet.psn();
        let distance = psn.distance_from(self.resp.epsn);
        match distance {
            0 => {}
            1.. => c.count(Counter::OutOfSequence),
            _ => c.count(Counter::DuplicateRequest),
        }
        let goes_on = distance == 0
            && match self.resp.open {
                Open::Nothing => false,
                Open::Send => info.operation == Operation::Send && !info.position.starts(),
                Open::Write => info.operation == Operation::Write && !info.position.starts(),
            };
        if !goes_on {
            self.give_up(c);
            if !info.position.starts() {
                return c.count(Counter::DropRemainder);
            }
        }
        self.resp.epsn = psn.offset(1);
        match self.execute(c, packet) {
            Ok(()) if info.position.ends() => {
                self.resp.open = Open::Nothing;
                if info.operation == Operation::Write {
                    c.count(Counter::RxWriteRequests);
                }
            }
            Ok(()) => {}
            Err(Refusal::NotReady) => {
                c.count(Counter::OutOfBuffer);
                self.give_up(c);
            }
            Err(Refusal::Fatal(NakCode::RemoteOperational, status)) => self.fail_here(c, status),
            Err(Refusal::Fatal(..) | Refusal::NoPlace) => {
                c.count(Counter::DropRefused);
                self.give_up(c);
            }
        }
    }

    /// The message in progress, if there is one, will not be completed. Its receive serves the next one.
    fn give_up(&mut self, c: &mut Common) {
        if self.resp.open != Open::Nothing {
            c.count(Counter::MessagesGivenUp);
        }
        self.resp.open = Open::Nothing;
        self.resp.taken = false;
    }

    /// The buffers of the receive in use are not what their keys stand for.
    pub(super) fn fail_here(&mut self, c: &mut Common, status: WcStatus) {
        self.fail_receive(c, status);
        self.enter_err(c);
    }
}
