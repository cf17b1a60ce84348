//! The transition table of queue pair states: which attributes each edge requires and which it takes.
//!
//! The table is that of Linux (`qp_state_table` in `drivers/infiniband/core/verbs.c`), which every verbs
//! program was written against; IBTA 11.2.5.2 has the same edges and allows a few more.

use super::attr::{AhAttr, Mask, QpAttr, QpState, QpType, attr_name};
use crate::engine::cause::Cause;

/// What an edge requires, and what it takes besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Edge {
    pub(crate) required: Mask,
    pub(crate) optional: Mask,
}

const NOTHING: Edge = Edge { required: Mask::empty(), optional: Mask::empty() };

macro_rules! mask {
    ($($bit:ident)*) => { Mask::empty()$(.union(Mask::$bit))* };
}

/// The edge from `from` to `to`, if there is one.
pub(crate) const fn edge(kind: QpType, from: QpState, to: QpState) -> Option<Edge> {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    let connected = !matches!(kind, QpType::Ud);
    let edge = match (from, to) {
        (_, Reset) => NOTHING,
        (Reset, Err) => return None,
        (_, Err) => NOTHING,
        (Reset, Init) if connected => {
            Edge { required: mask!(PKEY_INDEX PORT ACCESS), optional: mask!() }
        }
        (Reset, Init) => Edge { required: mask!(PKEY_INDEX PORT QKEY), optional: mask!() },
        (Init, Init) if connected => {
            Edge { required: mask!(), optional: mask!(PKEY_INDEX PORT ACCESS) }
        }
        (Init, Init) => Edge { required: mask!(), optional: mask!(PKEY_INDEX PORT QKEY) },
        (Init, Rtr) => match kind {
            QpType::Rc => Edge {
                required: mask!(AV PATH_MTU DEST_QPN RQ_PSN MAX_DEST_RD_ATOMIC MIN_RNR_TIMER),
                optional: mask!(ALT_PATH ACCESS PKEY_INDEX RATE_LIMIT),
            },
            QpType::Uc | QpType::XrcSend => Edge {
                required: mask!(AV PATH_MTU DEST_QPN RQ_PSN),
                optional: mask!(ALT_PATH ACCESS PKEY_INDEX),
            },
            QpType::XrcRecv => Edge {
                required: mask!(AV PATH_MTU DEST_QPN RQ_PSN MAX_DEST_RD_ATOMIC MIN_RNR_TIMER),
                optional: mask!(ALT_PATH ACCESS PKEY_INDEX),
            },
            QpType::Ud => Edge { required: mask!(), optional: mask!(PKEY_INDEX QKEY) },
        },
        (Rtr, Rts) => match kind {
            QpType::Rc => Edge {
                required: mask!(TIMEOUT RETRY_CNT RNR_RETRY SQ_PSN MAX_RD_ATOMIC),
                optional: mask!(CUR_STATE ALT_PATH ACCESS MIN_RNR_TIMER PATH_MIG RATE_LIMIT),
            },
            QpType::XrcSend => Edge {
                required: mask!(TIMEOUT RETRY_CNT RNR_RETRY SQ_PSN MAX_RD_ATOMIC),
                optional: mask!(CUR_STATE ALT_PATH ACCESS PATH_MIG),
            },
            QpType::XrcRecv => Edge {
                required: mask!(TIMEOUT SQ_PSN),
                optional: mask!(CUR_STATE ALT_PATH ACCESS MIN_RNR_TIMER PATH_MIG),
            },
            QpType::Uc => Edge {
                required: mask!(SQ_PSN),
                optional: mask!(CUR_STATE ALT_PATH ACCESS PATH_MIG),
            },
            QpType::Ud => Edge { required: mask!(SQ_PSN), optional: mask!(CUR_STATE QKEY) },
        },
        (Rts, Rts) | (Sqd, Rts) => Edge {
            required: mask!(),
            optional: match kind {
                QpType::Rc if matches!(from, Rts) => {
                    mask!(CUR_STATE ACCESS ALT_PATH PATH_MIG MIN_RNR_TIMER RATE_LIMIT)
                }
                QpType::Rc | QpType::XrcRecv => {
                    mask!(CUR_STATE ACCESS ALT_PATH PATH_MIG MIN_RNR_TIMER)
                }
                QpType::Uc | QpType::XrcSend => mask!(CUR_STATE ACCESS ALT_PATH PATH_MIG),
                QpType::Ud => mask!(CUR_STATE QKEY),
            },
        },
        (Rts, Sqd) => Edge { required: mask!(), optional: mask!(SQD_NOTIFY) },
        (Sqd, Sqd) => Edge {
            required: mask!(),
            optional: match kind {
                QpType::Rc => mask!(PORT AV TIMEOUT RETRY_CNT RNR_RETRY MAX_RD_ATOMIC
                    MAX_DEST_RD_ATOMIC ALT_PATH ACCESS PKEY_INDEX MIN_RNR_TIMER PATH_MIG),
                QpType::XrcSend => mask!(PORT AV TIMEOUT RETRY_CNT RNR_RETRY MAX_RD_ATOMIC ALT_PATH
                    ACCESS PKEY_INDEX PATH_MIG),
                QpType::XrcRecv => {
                    mask!(PORT AV TIMEOUT MAX_DEST_RD_ATOMIC ALT_PATH ACCESS PKEY_INDEX
                    MIN_RNR_TIMER PATH_MIG)
                }
                QpType::Uc => mask!(AV ALT_PATH ACCESS PKEY_INDEX PATH_MIG),
                QpType::Ud => mask!(PKEY_INDEX QKEY),
            },
        },
        (Sqe, Rts) => match kind {
            QpType::Ud => Edge { required: mask!(), optional: mask!(CUR_STATE QKEY) },
            QpType::Uc => Edge { required: mask!(), optional: mask!(CUR_STATE ACCESS) },
            QpType::Rc | QpType::XrcSend | QpType::XrcRecv => return None,
        },
        _ => return None,
    };
    Some(edge)
}

/// Checks a `modify` against the table. Returns the state it leads to.
///
/// # Errors
/// The first thing that is wrong: a stale `cur_state`, an edge that does not exist, a missing attribute,
/// an attribute that the edge does not take, a value out of range.
pub(crate) fn check(kind: QpType, state: QpState, attr: &QpAttr) -> Result<QpState, Cause> {
    let mask = attr.mask();
    if let Some(assumed) = attr.cur_state
        && assumed != state
    {
        return Err(Cause::AttrValue {
            attr: "cur_state",
            got: assumed as u64,
            want: "the state that the queue pair is in",
        });
    }
    let to = attr.state.unwrap_or(state);
    let edge = edge(kind, state, to).ok_or(Cause::NoTransition { kind, from: state, to })?;
    let missing = edge.required - mask;
    if let Some(bit) = missing.iter().next() {
        return Err(Cause::MissingAttr { from: state, to, attr: attr_name(bit) });
    }
    let extra = mask - edge.required - edge.optional;
    if let Some(bit) = extra.iter().next() {
        return Err(Cause::UnexpectedAttr { from: state, to, attr: attr_name(bit) });
    }
    check_ranges(attr)?;
    Ok(to)
}

fn check_ranges(attr: &QpAttr) -> Result<(), Cause> {
    let ranges: [(&'static str, Option<u64>, u64); 9] = [
        ("timeout", attr.timeout.map(u64::from), 31),
        ("retry_cnt", attr.retry_cnt.map(u64::from), 7),
        ("rnr_retry", attr.rnr_retry.map(u64::from), 7),
        ("min_rnr_timer", attr.min_rnr_timer.map(u64::from), 31),
        ("max_rd_atomic", attr.max_rd_atomic.map(u64::from), u64::from(super::MAX_RD_ATOMIC)),
        (
            "max_dest_rd_atomic",
            attr.max_dest_rd_atomic.map(u64::from),
            u64::from(super::MAX_RD_ATOMIC),
        ),
        ("rq_psn", attr.rq_psn.map(u64::from), 0xff_ffff),
        ("sq_psn", attr.sq_psn.map(u64::from), 0xff_ffff),
        ("dest_qpn", attr.dest_qpn.map(u64::from), 0xff_ffff),
    ];
    for (name, got, max) in ranges {
        if let Some(got) = got
            && got > max
        {
            return Err(Cause::AttrRange { attr: name, got, max });
        }
    }
    if let Some(port) = attr.port
        && port != 1
    {
        return Err(Cause::AttrValue { attr: "port", got: u64::from(port), want: "1" });
    }
    if let Some(ah) = &attr.ah {
        check_ah(ah)?;
    }
    if attr.alt.is_some() || attr.path_mig.is_some_and(|m| m != super::attr::MigState::Migrated) {
        return Err(Cause::Unsupported {
            what: "there is no alternate path: leave alt and path_mig out",
        });
    }
    Ok(())
}

/// Checks the values of an address.
pub(crate) fn check_ah(ah: &AhAttr) -> Result<(), Cause> {
    let (got, max) = (u64::from(ah.flow_label), 0xf_ffff);
    if got > max {
        return Err(Cause::AttrRange { attr: "ah.flow_label", got, max });
    }
    if ah.port > 1 {
        return Err(Cause::AttrValue { attr: "ah.port", got: u64::from(ah.port), want: "1" });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::Access;
    use crate::wire::num::Mtu;

    fn full() -> QpAttr {
        QpAttr::default()
            .port(1)
            .pkey_index(0)
            .access(Access::REMOTE)
            .qkey(1)
            .ah(AhAttr::default())
            .path_mtu(Mtu::B1024)
            .dest_qpn(7)
            .rq_psn(1)
            .max_dest_rd_atomic(1)
            .min_rnr_timer(12)
            .timeout(14)
            .retry_cnt(7)
            .rnr_retry(7)
            .sq_psn(1)
            .max_rd_atomic(1)
            .sqd_notify(true)
    }

    /// Each edge with exactly what it requires passes; without any one of them, or with any one that it
    /// does not take, it fails and names that one.
    #[test]
    fn every_edge_with_every_attribute() {
        for kind in [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcSend, QpType::XrcRecv] {
            for from in QpState::ALL {
                for to in QpState::ALL {
                    let Some(edge) = edge(kind, from, to) else {
                        assert_eq!(
                            check(kind, from, &QpAttr::to(to)),
                            Err(Cause::NoTransition { kind, from, to })
                        );
                        continue;
                    };
                    let with = |mask: Mask| QpAttr::to(to).overridden(&full(), mask);
                    assert_eq!(
                        check(kind, from, &with(edge.required)),
                        Ok(to),
                        "{kind:?} {from:?} {to:?}"
                    );
                    for bit in full().mask().iter() {
                        let attr = attr_name(bit);
                        if edge.required.contains(bit) {
                            let got = check(kind, from, &with(edge.required - bit));
                            assert_eq!(got, Err(Cause::MissingAttr { from, to, attr }));
                        } else if edge.optional.contains(bit) {
                            assert_eq!(check(kind, from, &with(edge.required | bit)), Ok(to));
                        } else {
                            let got = check(kind, from, &with(edge.required | bit));
                            assert_eq!(got, Err(Cause::UnexpectedAttr { from, to, attr }));
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn the_edges_of_rc() {
        let to = |from: QpState| -> Vec<QpState> {
            QpState::ALL.into_iter().filter(|&to| edge(QpType::Rc, from, to).is_some()).collect()
        };
        use QpState::*;
        assert_eq!(to(Reset), [Reset, Init]);
        assert_eq!(to(Init), [Reset, Init, Rtr, Err]);
        assert_eq!(to(Rtr), [Reset, Rts, Err]);
        assert_eq!(to(Rts), [Reset, Rts, Sqd, Err]);
        assert_eq!(to(Sqd), [Reset, Rts, Sqd, Err]);
        assert_eq!(to(Sqe), [Reset, Err]);
        assert_eq!(to(Err), [Reset, Err]);
    }

    #[test]
    fn values_out_of_range_are_named() {
        let init = QpAttr::to(QpState::Init).port(2).pkey_index(0).access(Access::REMOTE);
        assert_eq!(
            check(QpType::Rc, QpState::Reset, &init),
            Err(Cause::AttrValue { attr: "port", got: 2, want: "1" })
        );
        let rts = QpAttr::to(QpState::Rts)
            .timeout(32)
            .retry_cnt(7)
            .rnr_retry(7)
            .sq_psn(0)
            .max_rd_atomic(1);
        assert_eq!(
            check(QpType::Rc, QpState::Rtr, &rts),
            Err(Cause::AttrRange { attr: "timeout", got: 32, max: 31 })
        );
        let stale = QpAttr::to(QpState::Rts).cur_state(QpState::Sqd);
        assert!(matches!(
            check(QpType::Rc, QpState::Rts, &stale),
            Err(Cause::AttrValue { attr: "cur_state", .. })
        ));
    }
}
