//! What the device counts: one enum, one array, names of rxe where it has one and of mlx5 where not.

/// Something that is counted. [`Counter::name`] is what users see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(usize)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the table below says what each counts")]
pub enum Counter {
    SentPkts,
    RcvdPkts,
    SentBytes,
    RcvdBytes,
    DuplicateRequest,
    OutOfSeqRequest,
    RcvdRnrErr,
    SendRnrErr,
    RcvdSeqErr,
    RetryExceededErr,
    RetryRnrExceededErr,
    CompleterRetryErr,
    SendErr,
    RdmaSends,
    RdmaRecvs,
    RxWriteRequests,
    RxReadRequests,
    RxAtomicRequests,
    RxAtomicWriteRequests,
    RxFlushRequests,
    OutOfBuffer,
    OutOfSequence,
    ImpliedNakSeqErr,
    LocalAckTimeoutErr,
    RespLocalLengthError,
    RespCqeError,
    ReqCqeError,
    ReqRemoteInvalidRequest,
    ReqRemoteAccessErrors,
    RespRemoteAccessErrors,
    RespCqeFlushError,
    ReqCqeFlushError,
    RpCnpHandled,
    RpCnpIgnored,
    NpEcnMarkedRocePackets,
    NpCnpSent,
    IcrcExact,
    IcrcRecovered,
    IcrcInferred,
    IcrcRxeFlush,
    RxIcrcEncapsulated,
    DuplicateSend,
    DuplicateWrite,
    DuplicateRead,
    DuplicateAtomic,
    DuplicateAtomicWrite,
    DuplicateFlush,
    RetransmittedPkts,
    RnrWaitNs,
    BadPkeyCntr,
    DropMalformed,
    DropVersion,
    DropUnknownOpcode,
    DropUnsupported,
    DropNoQp,
    DropTransport,
    DropState,
    DropAddress,
    DropRequestAhead,
    HeldRequests,
    DropDuplicate,
    DropGhostResponse,
    DropUnsentResponse,
    DropResponse,
    DropStaleResponse,
    DropReplay,
    DropFlush,
    DropDestroyed,
    DropRefused,
    DropRemainder,
    MessagesGivenUp,
    DropEcho,
    QkeyViolCntr,
    CqOverrun,
    EventsLost,
}

impl Counter {
    /// All of them, in order.
    pub const COUNT: usize = TABLE.len();

    /// Its name.
    pub const fn name(self) -> &'static str {
        TABLE[self as usize].1
    }

    /// What it counts, in a sentence.
    pub const fn meaning(self) -> &'static str {
        TABLE[self as usize].2
    }
}

use Counter as C;

#[rustfmt::skip]
static TABLE: [(Counter, &str, &str); C::EventsLost as usize + 1] = [
    (C::SentPkts, "sent_pkts", "packets handed to the port"),
    (C::RcvdPkts, "rcvd_pkts", "packets that passed all header checks and the ICRC"),
    (C::SentBytes, "sent_bytes", "bytes of those packets, BTH to ICRC"),
    (C::RcvdBytes, "rcvd_bytes", "bytes of those packets, BTH to ICRC"),
    (C::DuplicateRequest, "duplicate_request", "responder: PSN behind the expected one"),
    (C::OutOfSeqRequest, "out_of_seq_request", "responder: sequence NAKs that left (for the first packet ahead of a gap)"),
    (C::RcvdRnrErr, "rcvd_rnr_err", "requester: RNR NAKs received"),
    (C::SendRnrErr, "send_rnr_err", "responder: RNR NAKs that left"),
    (C::RcvdSeqErr, "rcvd_seq_err", "requester: sequence NAKs that started a retry"),
    (C::RetryExceededErr, "retry_exceeded_err", "requests that ended with RETRY_EXC_ERR"),
    (C::RetryRnrExceededErr, "retry_rnr_exceeded_err", "requests that ended with RNR_RETRY_EXC_ERR"),
    (C::CompleterRetryErr, "completer_retry_err", "retries started, whatever the reason"),
    (C::SendErr, "send_err", "packets that the port refused for good: too long, no route, forbidden"),
    (C::RdmaSends, "rdma_sends", "SENDs completed"),
    (C::RdmaRecvs, "rdma_recvs", "receives completed"),
    (C::RxWriteRequests, "rx_write_requests", "WRITE messages executed"),
    (C::RxReadRequests, "rx_read_requests", "READ requests accepted"),
    (C::RxAtomicRequests, "rx_atomic_requests", "atomics executed"),
    (C::RxAtomicWriteRequests, "rx_atomic_write_requests", "ATOMIC WRITEs executed"),
    (C::RxFlushRequests, "rx_flush_requests", "FLUSHes executed"),
    (C::OutOfBuffer, "out_of_buffer", "requests that found no receive posted"),
    (C::OutOfSequence, "out_of_sequence", "responder: packets ahead of the expected PSN"),
    (C::ImpliedNakSeqErr, "implied_nak_seq_err", "requester: responses beyond an unanswered READ or atomic that started a retry"),
    (C::LocalAckTimeoutErr, "local_ack_timeout_err", "requester: ACK timeouts"),
    (C::RespLocalLengthError, "resp_local_length_error", "responder: SENDs longer than the receive"),
    (C::RespCqeError, "resp_cqe_error", "receives completed with an error"),
    (C::ReqCqeError, "req_cqe_error", "send requests completed with an error"),
    (C::ReqRemoteInvalidRequest, "req_remote_invalid_request", "requester: invalid request NAKs received"),
    (C::ReqRemoteAccessErrors, "req_remote_access_errors", "requester: remote access NAKs received"),
    (C::RespRemoteAccessErrors, "resp_remote_access_errors", "responder: remote access NAKs sent"),
    (C::RespCqeFlushError, "resp_cqe_flush_error", "receives flushed"),
    (C::ReqCqeFlushError, "req_cqe_flush_error", "send requests flushed"),
    (C::RpCnpHandled, "rp_cnp_handled", "CNPs given to congestion control"),
    (C::RpCnpIgnored, "rp_cnp_ignored", "CNPs for a queue pair that does not send"),
    (C::NpEcnMarkedRocePackets, "np_ecn_marked_roce_packets", "packets that arrived with congestion experienced"),
    (C::NpCnpSent, "np_cnp_sent", "CNPs sent"),
    (C::IcrcExact, "icrc_exact", "packets whose ICRC was right with all fields known"),
    (C::IcrcRecovered, "icrc_recovered", "packets whose ICRC was right with a likely IPv4 identification"),
    (C::IcrcInferred, "icrc_inferred", "packets whose ICRC was right with some IPv4 identification"),
    (C::IcrcRxeFlush, "icrc_rxe_flush", "FLUSHes accepted with the ICRC of rdma_rxe, also counted above"),
    (C::RxIcrcEncapsulated, "rx_icrc_encapsulated", "packets dropped for a wrong ICRC"),
    (C::DuplicateSend, "duplicate_send", "responder: duplicate packets of SENDs, acknowledged again"),
    (C::DuplicateWrite, "duplicate_write", "responder: duplicate packets of WRITEs, acknowledged again"),
    (C::DuplicateRead, "duplicate_read", "responder: READs executed again"),
    (C::DuplicateAtomic, "duplicate_atomic", "responder: atomics answered again from the saved result"),
    (C::DuplicateAtomicWrite, "duplicate_atomic_write", "responder: ATOMIC WRITEs answered again, not executed"),
    (C::DuplicateFlush, "duplicate_flush", "responder: FLUSHes answered again, not executed"),
    (C::RetransmittedPkts, "retransmitted_pkts", "request packets sent again"),
    (C::RnrWaitNs, "rnr_wait_ns", "nanoseconds asked for by RNR NAKs"),
    (C::BadPkeyCntr, "bad_pkey_cntr", "packets dropped for their partition key"),
    (C::DropMalformed, "drop_malformed", "packets dropped: lengths do not fit the opcode"),
    (C::DropVersion, "drop_version", "packets dropped: transport version"),
    (C::DropUnknownOpcode, "drop_unknown_opcode", "packets dropped: no such opcode"),
    (C::DropUnsupported, "drop_unsupported", "packets dropped: a service that is not offered"),
    (C::DropNoQp, "drop_no_qp", "packets dropped: no such queue pair"),
    (C::DropTransport, "drop_transport", "packets dropped: opcode of another type of queue pair"),
    (C::DropState, "drop_state", "packets dropped: the queue pair is not in a state to take them"),
    (C::DropAddress, "drop_address", "packets dropped: not from the queue pair's peer"),
    (C::DropRequestAhead, "drop_request_ahead", "requests dropped: behind a gap that was NAKed already"),
    (C::HeldRequests, "held_requests", "requests ahead of a gap that were kept until it closed"),
    (C::DropDuplicate, "drop_duplicate", "duplicate requests dropped: their answer is no longer known"),
    (C::DropGhostResponse, "drop_ghost_response", "responses dropped: already acknowledged"),
    (C::DropUnsentResponse, "drop_unsent_response", "responses dropped: they answer what was never sent"),
    (C::DropResponse, "drop_response", "responses dropped: reserved syndrome, or none expected"),
    (C::DropStaleResponse, "drop_stale_response", "responses dropped: of a loss for which a retry is under way"),
    (C::DropReplay, "drop_replay", "duplicate READs dropped: not the same request or a tail of it"),
    (C::DropFlush, "drop_flush", "FLUSHes dropped: more at a time than the peer may have under way"),
    (C::DropDestroyed, "drop_destroyed", "staged packets dropped: their queue pair is gone"),
    (C::DropRefused, "drop_refused", "unreliable requests dropped: without right, out of bounds, or of a wrong length"),
    (C::DropRemainder, "drop_remainder", "unreliable requests dropped: the beginning of their message is missing, or was dropped"),
    (C::MessagesGivenUp, "messages_given_up", "unreliable messages that began to arrive and did not end"),
    (C::DropEcho, "drop_echo", "multicast datagrams that came back to the queue pair that sent them"),
    (C::QkeyViolCntr, "qkey_viol_cntr", "datagrams dropped for their queue key"),
    (C::CqOverrun, "cq_overrun", "completions that found their queue full"),
    (C::EventsLost, "events_lost", "asynchronous events that found 4096 others not fetched; with several openers, one for each"),
];

/// All counters of a device.
#[derive(Clone, Debug)]
pub struct Counters([u64; Counter::COUNT]);

impl Counters {
    pub(crate) const fn new() -> Self {
        Self([0; Counter::COUNT])
    }

    /// The value of one.
    pub const fn get(&self, c: Counter) -> u64 {
        self.0[c as usize]
    }

    /// Names and values, in the order of the table.
    pub fn iter(&self) -> impl Iterator<Item = (Counter, u64)> + '_ {
        TABLE.iter().map(|&(c, ..)| (c, self.get(c)))
    }

    pub(crate) const fn count(&mut self, c: Counter) {
        self.add(c, 1);
    }

    pub(crate) const fn set(&mut self, c: Counter, n: u64) {
        self.0[c as usize] = n;
    }

    pub(crate) const fn add(&mut self, c: Counter, n: u64) {
        self.0[c as usize] = self.0[c as usize].wrapping_add(n);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page for users says what each counts, in the same words.
    #[test]
    fn each_has_its_line_on_the_page() {
        let page = include_str!("../../docs/counters.md");
        for &(c, ..) in &TABLE {
            let line = format!("| `{}` | {} |", c.name(), c.meaning());
            assert!(page.lines().any(|l| l == line), "docs/counters.md has no line {line}");
        }
    }

    #[test]
    fn the_table_is_in_the_order_of_the_enum_and_names_are_unique() {
        let mut names: Vec<_> = TABLE.iter().map(|row| row.1).collect();
        for (i, row) in TABLE.iter().enumerate() {
            assert_eq!(row.0 as usize, i, "{}", row.1);
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Counter::COUNT);
    }
}
