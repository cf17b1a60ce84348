//! Where our packets differ from the recorded ones, field by field, and why.

use softroce::wire::frame::Envelope;
use softroce::wire::opcode::{Operation, Position};
use softroce::wire::{Aeth, Bth, Packet};

use crate::end::Sent;
use crate::record::{Capture, Recorded};
use crate::seal;

/// A packet that is compared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case<'a> {
    pub(crate) capture: &'a Capture,
    pub(crate) recorded: &'a Recorded,
    /// Its packet.
    theirs: Packet<'a>,
}

impl<'a> Case<'a> {
    pub(crate) fn new(capture: &'a Capture, recorded: &'a Recorded) -> Self {
        Self { capture, recorded, theirs: recorded.packet() }
    }

    /// Sent by queue pair 1, which management has on every device of theirs.
    fn is_management(&self) -> bool {
        self.theirs.deth().is_some_and(|deth| deth.src_qp.raw() == 1)
    }

    fn is(&self, operation: Operation) -> bool {
        self.theirs.info().operation == operation
    }
}

/// Where a field is.
#[derive(Clone, Copy)]
enum Place {
    /// From this byte of the datagram on, these bits.
    At(usize, &'static [u8]),
    /// In the UDP header.
    SourcePort,
    /// In the IP header.
    HopLimit,
    /// In the IPv6 header.
    FlowLabel,
    /// The ICRC of rdma_rxe for a FLUSH.
    FlushIcrc,
    /// The opcode of the first answer to what is asked for again of a READ, and its AETH.
    Resumed,
}

/// A field in which we differ on purpose.
pub(crate) struct Difference {
    pub(crate) field: &'static str,
    place: Place,
    /// Packets in which it may differ.
    applies: fn(&Case<'_>) -> bool,
    /// Packets in which it does.
    pub(crate) count: usize,
    /// Why.
    pub(crate) reason: &'static str,
}

/// All of them. In nothing else do we differ, and in each of these as often as it says.
pub(crate) const DIFFERENCES: &[Difference] = &[
    Difference {
        field: "BTH.MigReq",
        place: Place::At(1, &[0x40]),
        applies: |_| true,
        count: 1000,
        reason: "the bit tells the migration state, which is `migrated` where there is no other path: 1, as \
                 hardware has it. rdma_rxe sends 0. Neither looks at it.",
    },
    Difference {
        field: "DETH.SrcQP",
        place: Place::At(17, &[0xff; 3]),
        applies: |c| c.is_management(),
        count: 44,
        reason: "there is no queue pair 1: connections are made without rdma_cm. Its datagrams are replayed as those \
                 of an ordinary queue pair.",
    },
    Difference {
        field: "UDP source port",
        place: Place::SourcePort,
        applies: |c| c.is_management(),
        count: 44,
        reason: "it is made of the number of the queue pair that sends a datagram.",
    },
    Difference {
        field: "BTH.AckReq",
        place: Place::At(8, &[0x80]),
        applies: |c| c.is_management(),
        count: 44,
        reason: "nobody acknowledges a datagram: the bit is 0. rdma_rxe sets it in those of queue pair 1, and only \
                 there.",
    },
    Difference {
        field: "AETH.Syndrome",
        place: Place::At(12, &[0xff]),
        applies: |c| c.capture.name == "nak-invalid-request-v6" && c.is(Operation::Acknowledge),
        count: 2,
        reason: "a SEND that is longer than the receive is an invalid request, 0x61 (IBTA 9.9.3). rdma_rxe calls it \
                 a remote operational error, 0x63.",
    },
    Difference {
        field: "RC_READ_RESP_FIRST",
        place: Place::Resumed,
        applies: |c| c.is(Operation::ReadResponse) && c.capture.name.contains("loss-"),
        count: 5,
        reason: "what is asked for again of a READ is a request of its own, whose answer begins with FIRST or ONLY \
                 (IBTA 9.7.5), and with an AETH. rdma_rxe goes on with MIDDLE or LAST. As requester we take both.",
    },
    Difference {
        field: "IP hop limit",
        place: Place::HopLimit,
        applies: |c| c.recorded.envelope.hop_limit == 64 && c.capture.asked_for_hop_limit(),
        count: 9,
        reason: "the hop limit of the address handle is written. rdma_rxe always writes 64.",
    },
    Difference {
        field: "IPv6 flow label",
        place: Place::FlowLabel,
        applies: |c| c.recorded.envelope.flow_label == 0 && c.capture.asked_for_flow_label(),
        count: 61,
        reason: "the flow label of the address handle is written. rdma_rxe always writes 0, and makes the UDP source \
                 port of it, as we do.",
    },
    Difference {
        field: "ICRC of a FLUSH",
        place: Place::FlushIcrc,
        applies: |c| c.is(Operation::Flush),
        count: 4,
        reason: "that of the standard. rdma_rxe runs its CRC over a FLUSH twice.",
    },
];

impl Difference {
    /// Makes the field of `ours` theirs. `true`: it was another.
    pub(crate) fn adopt(&self, case: &Case<'_>, ours: &mut Sent) -> bool {
        if !(self.applies)(case) {
            return false;
        }
        let theirs = case.recorded;
        let Envelope { src_port, hop_limit, flow_label, .. } = theirs.envelope;
        match self.place {
            Place::At(at, bits) => {
                let mut differed = false;
                for (i, bits) in (at..).zip(bits) {
                    let (our, their) = (ours.datagram[i], theirs.datagram[i]);
                    differed |= (our ^ their) & bits != 0;
                    ours.datagram[i] = our & !bits | their & bits;
                }
                differed
            }
            Place::SourcePort => std::mem::replace(&mut ours.path.src_port, src_port) != src_port,
            Place::HopLimit => std::mem::replace(&mut ours.path.hop_limit, hop_limit) != hop_limit,
            Place::FlowLabel => {
                std::mem::replace(&mut ours.path.flow_label, flow_label) != flow_label
            }
            Place::Resumed => {
                let position = |p: &Packet<'_>| p.info().position;
                match (position(&ours.packet()), position(&case.theirs)) {
                    (Position::First, Position::Middle) => {
                        ours.datagram.drain(Bth::LEN..Bth::LEN + Aeth::LEN);
                    }
                    (Position::Only, Position::Last) => {}
                    _ => return false,
                }
                ours.datagram[0] = case.theirs.opcode().as_u8();
                true
            }
            Place::FlushIcrc => {
                let (sealed, icrc) = theirs.datagram.split_last_chunk().unwrap();
                *icrc == seal::icrc_of_rxe_flush(&theirs.outer(), sealed)
            }
        }
    }

    /// Whether it is in how the packet is sealed.
    pub(crate) fn is_of_the_seal(&self) -> bool {
        matches!(self.place, Place::FlushIcrc)
    }
}
