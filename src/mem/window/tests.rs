//! Bind rules one by one, then random histories of regions and windows against a model.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::mem::{IovaChoice, Region, Registered, Sge};

const PD: PdId = PdId(1);
const OTHER_PD: PdId = PdId(2);
const QP: Qpn = Qpn::new(0x11);
const OTHER_QP: Qpn = Qpn::new(0x12);
const LEN: u64 = 256;

fn table() -> MrTable {
    MrTable::new(*b"a key for tests.", 0x10_0000)
}

fn register(t: &mut MrTable, access: Access) -> Registered {
    let region = Region::alloc(LEN as usize).unwrap();
    t.register(PD, region, IovaChoice::Allocate, access).unwrap()
}

fn bindable() -> Access {
    Access::LOCAL_WRITE | Access::MW_BIND
}

/// A bind of bytes 64 to 128 that works.
fn good(t: &mut MrTable, kind: MwKind) -> (Registered, Bind) {
    let r = register(t, bindable());
    let mw = t.alloc_mw(PD, kind).unwrap();
    let bind = Bind {
        pd: PD,
        qpn: QP,
        mw,
        new_rkey: Rkey(mw.0 ^ 0x55),
        mr: r.lkey,
        addr: r.iova + 64,
        len: 64,
        access: Access::REMOTE_WRITE | Access::REMOTE_READ,
        kind,
    };
    (r, bind)
}

fn reach(t: &MrTable, qpn: Qpn, rkey: Rkey, va: u64, len: u64) -> Result<usize, AccessError> {
    t.remote(PD, qpn, rkey, va, len, Access::REMOTE_WRITE).map(|s| s.len())
}

#[test]
fn a_bound_window_grants_its_part_and_no_more() {
    for kind in [MwKind::Type1, MwKind::Type2] {
        let mut t = table();
        let (r, b) = good(&mut t, kind);
        assert_eq!(reach(&t, QP, b.mw, b.addr, 1), Err(AccessError::NotBound));
        t.bind(&b).unwrap();
        assert_eq!(reach(&t, QP, b.new_rkey, b.addr, 64), Ok(64));
        assert_eq!(reach(&t, QP, b.new_rkey, b.addr + 63, 1), Ok(1));
        assert_eq!(reach(&t, QP, b.new_rkey, b.addr - 1, 1), Err(AccessError::OutOfRange));
        assert_eq!(reach(&t, QP, b.new_rkey, b.addr + 1, 64), Err(AccessError::OutOfRange));
        assert_eq!(reach(&t, QP, b.new_rkey, b.addr, u64::MAX), Err(AccessError::OutOfRange));
        assert_eq!(reach(&t, QP, b.mw, b.addr, 1), Err(AccessError::UnknownKey), "the old key");
        let need = Access::REMOTE_ATOMIC;
        let got = t.remote(PD, QP, b.new_rkey, b.addr, 8, need).map(|s| s.len());
        assert_eq!(got, Err(AccessError::NoRight { need, have: b.access }));
        let got = t.remote(OTHER_PD, QP, b.new_rkey, b.addr, 8, Access::empty()).map(|s| s.len());
        assert_eq!(got, Err(AccessError::WrongPd));
        assert_eq!(
            reach(&t, QP, r.rkey, r.iova, 1),
            Err(AccessError::NoRight { need: Access::REMOTE_WRITE, have: bindable() }),
            "the region itself grants nothing"
        );
        // The bytes are those of the region.
        let slice = t.remote(PD, QP, b.new_rkey, b.addr + 2, 3, Access::REMOTE_WRITE).unwrap();
        slice.write_from(0, b"abc");
        let mut got = [0; 3];
        let sge = Sge { addr: r.iova + 66, length: 3, lkey: r.lkey };
        t.local(PD, &sge, Access::empty()).unwrap().read_into(0, &mut got);
        assert_eq!(&got, b"abc");
    }
}

#[test]
fn only_type_2_belongs_to_a_queue_pair() {
    let mut t = table();
    let (_, b) = good(&mut t, MwKind::Type1);
    t.bind(&b).unwrap();
    assert_eq!(reach(&t, OTHER_QP, b.new_rkey, b.addr, 1), Ok(1));
    let (_, b) = good(&mut t, MwKind::Type2);
    t.bind(&b).unwrap();
    assert_eq!(reach(&t, OTHER_QP, b.new_rkey, b.addr, 1), Err(AccessError::WrongQp));
}

#[test]
fn a_bind_with_one_thing_wrong_changes_nothing() {
    use BindError as E;
    type Spoil = fn(&mut Bind);
    let cases: [(&str, Spoil, E); 14] = [
        ("no such window", |b| b.mw.0 ^= 1 << 8, E::UnknownWindow),
        ("a region's key", |b| b.mw = Rkey(b.mr.0), E::UnknownWindow),
        ("queue pair of another domain", |b| b.pd = OTHER_PD, E::WrongPd),
        ("another window's key", |b| b.new_rkey.0 ^= 1 << 8, E::ForeignKey),
        ("no such region", |b| b.mr.0 ^= 1 << 7, E::UnknownRegion),
        ("one byte too many", |b| b.len = LEN - 64 + 1, E::OutOfRange),
        ("in front of the region", |b| b.addr -= 65, E::OutOfRange),
        ("behind it", |b| b.addr += LEN, E::OutOfRange),
        ("wraps", |b| b.len = u64::MAX, E::OutOfRange),
        ("wraps to the inside", |b| b.len = u64::MAX - 63, E::OutOfRange),
        ("wraps from in front", |b| (b.addr, b.len) = (b.addr - 128, 192), E::OutOfRange),
        (
            "local write is no right of a window",
            |b| b.access |= Access::LOCAL_WRITE,
            E::BadAccess {
                access: Access::REMOTE_READ.union(Access::REMOTE_WRITE).union(Access::LOCAL_WRITE),
            },
        ),
        (
            "only local write",
            |b| b.access = Access::LOCAL_WRITE,
            E::BadAccess { access: Access::LOCAL_WRITE },
        ),
        (
            "flush where the region may not",
            |b| b.access = Access::FLUSH_GLOBAL,
            E::NoRight { access: Access::FLUSH_GLOBAL },
        ),
    ];
    for kind in [MwKind::Type1, MwKind::Type2] {
        for (what, spoil, error) in cases {
            let mut t = table();
            let (r, b) = good(&mut t, kind);
            let mut bad = b;
            spoil(&mut bad);
            assert_eq!(t.bind(&bad), Err(error), "{what}");
            assert_eq!(reach(&t, QP, b.mw, b.addr, 1), Err(AccessError::NotBound), "{what}");
            t.bind(&b).unwrap();
            assert_eq!(t.deregister(r.lkey).unwrap_err(), MemError::Busy { windows: 1 }, "{what}");
        }
    }
}

#[test]
fn region_window_and_queue_pair_are_of_one_domain() {
    let mut t = table();
    let (_, b) = good(&mut t, MwKind::Type2);
    let region = Region::alloc(LEN as usize).unwrap();
    let foreign = t.register(OTHER_PD, region, IovaChoice::At(b.addr), bindable()).unwrap();
    assert_eq!(t.bind(&Bind { mr: foreign.lkey, ..b }), Err(BindError::WrongPd));
    let window = t.alloc_mw(OTHER_PD, MwKind::Type2).unwrap();
    let bad = Bind { mw: window, new_rkey: window, ..b };
    assert_eq!(t.bind(&bad), Err(BindError::WrongPd));
}

#[test]
fn the_region_must_take_windows() {
    let mut t = table();
    let (_, b) = good(&mut t, MwKind::Type2);
    let plain = register(&mut t, Access::REMOTE);
    let bad = Bind { mr: plain.lkey, addr: plain.iova, ..b };
    assert_eq!(t.bind(&bad), Err(BindError::NoBindRight));
    let zero = register(&mut t, bindable() | Access::ZERO_BASED);
    let bad = Bind { mr: zero.lkey, addr: 0, ..b };
    assert_eq!(t.bind(&bad), Err(BindError::ZeroBased));
}

/// The rights that are looked at are those of the request, not those of an earlier bind.
#[test]
fn windows_that_write_need_a_region_that_may_be_written() {
    let mut t = table();
    let read_only = register(&mut t, Access::MW_BIND);
    let mw = t.alloc_mw(PD, MwKind::Type1).unwrap();
    let bind = Bind {
        pd: PD,
        qpn: QP,
        mw,
        new_rkey: mw,
        mr: read_only.lkey,
        addr: read_only.iova,
        len: LEN,
        access: Access::REMOTE_READ,
        kind: MwKind::Type1,
    };
    t.bind(&bind).unwrap();
    for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC | Access::REMOTE_READ] {
        assert_eq!(t.bind(&Bind { access, ..bind }), Err(BindError::NoRight { access }));
    }
    let got = t.remote(PD, QP, mw, read_only.iova, 1, Access::REMOTE_READ).map(|s| s.len());
    assert_eq!(got, Ok(1), "the refused binds left the old one");
}

#[test]
fn a_window_may_keep_its_key() {
    for kind in [MwKind::Type1, MwKind::Type2] {
        let mut t = table();
        let (_, b) = good(&mut t, kind);
        t.bind(&Bind { new_rkey: b.mw, ..b }).unwrap();
        assert_eq!(reach(&t, QP, b.mw, b.addr, 1), Ok(1));
    }
}

#[test]
fn the_kinds_have_their_own_ways_to_be_bound() {
    let mut t = table();
    let (_, b) = good(&mut t, MwKind::Type1);
    assert_eq!(t.bind(&Bind { kind: MwKind::Type2, ..b }), Err(BindError::WrongKind));
    let (_, b) = good(&mut t, MwKind::Type2);
    assert_eq!(t.bind(&Bind { kind: MwKind::Type1, ..b }), Err(BindError::WrongKind));
}

#[test]
fn type_1_is_bound_again_at_will_and_unbound_by_length_0() {
    let mut t = table();
    let (first, b) = good(&mut t, MwKind::Type1);
    let second = register(&mut t, bindable());
    t.bind(&b).unwrap();
    let moved = Bind { mw: b.new_rkey, new_rkey: b.mw, mr: second.lkey, addr: second.iova, ..b };
    t.bind(&moved).unwrap();
    assert!(t.deregister(first.lkey).is_ok(), "no longer bound to the first");
    assert_eq!(reach(&t, QP, b.mw, second.iova, 64), Ok(64));
    // Neither region nor range is looked at.
    let gone = Bind { mw: b.mw, new_rkey: b.new_rkey, mr: first.lkey, addr: 1, len: 0, ..b };
    t.bind(&gone).unwrap();
    assert_eq!(reach(&t, QP, b.new_rkey, second.iova, 1), Err(AccessError::NotBound));
    assert!(t.deregister(second.lkey).is_ok());
}

#[test]
fn type_2_must_be_free_and_not_empty() {
    let mut t = table();
    let (_, b) = good(&mut t, MwKind::Type2);
    assert_eq!(t.bind(&Bind { len: 0, ..b }), Err(BindError::Empty));
    t.bind(&b).unwrap();
    let again = Bind { mw: b.new_rkey, new_rkey: b.mw, ..b };
    assert_eq!(t.bind(&again), Err(BindError::NotFree));
    assert_eq!(t.bind(&Bind { len: 0, ..again }), Err(BindError::NotFree), "no way to unbind");
    t.invalidate(PD, QP, b.new_rkey).unwrap();
    t.bind(&again).unwrap();
    assert_eq!(reach(&t, QP, b.mw, b.addr, 64), Ok(64));
}

#[test]
fn zero_based_windows_count_from_their_beginning() {
    let mut t = table();
    let (r, b) = good(&mut t, MwKind::Type2);
    let access = b.access | Access::ZERO_BASED;
    t.bind(&Bind { access, ..b }).unwrap();
    t.remote(PD, QP, b.new_rkey, 5, 1, Access::REMOTE_WRITE).unwrap().write_from(0, &[9]);
    let mut got = [0];
    let sge = Sge { addr: r.iova + 69, length: 1, lkey: r.lkey };
    t.local(PD, &sge, Access::empty()).unwrap().read_into(0, &mut got);
    assert_eq!(got, [9]);
    assert_eq!(reach(&t, QP, b.new_rkey, 1, 64), Err(AccessError::OutOfRange));
    assert_eq!(reach(&t, QP, b.new_rkey, b.addr, 1), Err(AccessError::OutOfRange));

    let (_, b) = good(&mut t, MwKind::Type1);
    assert_eq!(t.bind(&Bind { access, ..b }), Err(BindError::BadAccess { access }));
}

#[test]
fn only_a_bound_window_of_type_2_is_invalidated_by_a_request() {
    use AccessError as E;
    let mut t = table();
    let (r, one) = good(&mut t, MwKind::Type1);
    t.bind(&one).unwrap();
    let (_, two) = good(&mut t, MwKind::Type2);
    assert_eq!(t.invalidate(PD, QP, r.rkey), Err(E::NotInvalidatable), "a region");
    assert_eq!(t.invalidate(PD, QP, one.new_rkey), Err(E::NotInvalidatable), "type 1");
    assert_eq!(t.invalidate(PD, QP, two.mw), Err(E::NotInvalidatable), "not bound");
    t.bind(&two).unwrap();
    assert_eq!(t.invalidate(PD, QP, two.mw), Err(E::UnknownKey), "the key it had before");
    assert_eq!(
        t.invalidate(PD, QP, Rkey(two.new_rkey.0 ^ 3)),
        Err(E::UnknownKey),
        "low bits count"
    );
    assert_eq!(t.invalidate(PD, QP, Rkey(r.lkey.0)), Err(E::UnknownKey), "an lkey");
    assert_eq!(t.invalidate(OTHER_PD, QP, two.new_rkey), Err(E::WrongPd));
    assert_eq!(t.invalidate(PD, OTHER_QP, two.new_rkey), Err(E::WrongQp));
    assert_eq!(reach(&t, QP, two.new_rkey, two.addr, 1), Ok(1), "none of that did anything");
    assert_eq!(t.invalidate(PD, QP, two.new_rkey), Ok(()));
    assert_eq!(reach(&t, QP, two.new_rkey, two.addr, 1), Err(E::NotBound));
    assert_eq!(reach(&t, QP, one.new_rkey, one.addr, 1), Ok(1));
}

#[test]
fn windows_go_bound_or_not() {
    let mut t = table();
    let (r, b) = good(&mut t, MwKind::Type2);
    t.bind(&b).unwrap();
    assert_eq!(t.dealloc_mw(Rkey(b.mw.0 ^ 1 << 8)), Err(MemError::UnknownKey), "another one");
    t.dealloc_mw(b.mw).unwrap();
    assert_eq!(reach(&t, QP, b.new_rkey, b.addr, 1), Err(AccessError::UnknownKey));
    assert_eq!(t.dealloc_mw(b.new_rkey), Err(MemError::UnknownKey));
    assert_eq!(t.dealloc_mw(r.rkey), Err(MemError::UnknownKey), "a region");
    assert!(t.deregister(r.lkey).is_ok());
}

#[test]
fn a_queue_pair_takes_its_windows_with_it() {
    let mut t = table();
    let (r, b) = good(&mut t, MwKind::Type2);
    let others: Vec<Rkey> = (0..3).map(|_| t.alloc_mw(PD, MwKind::Type2).unwrap()).collect();
    t.bind(&b).unwrap();
    t.bind(&Bind { mw: others[0], new_rkey: others[0], qpn: OTHER_QP, ..b }).unwrap();
    t.bind(&Bind { mw: others[1], new_rkey: others[1], ..b }).unwrap();
    t.unbind_qp(QP);
    assert_eq!(reach(&t, QP, b.new_rkey, b.addr, 1), Err(AccessError::NotBound));
    assert_eq!(reach(&t, QP, others[1], b.addr, 1), Err(AccessError::NotBound));
    assert_eq!(reach(&t, OTHER_QP, others[0], b.addr, 1), Ok(1));
    assert_eq!(t.deregister(r.lkey).unwrap_err(), MemError::Busy { windows: 1 });
    t.unbind_qp(OTHER_QP);
    assert!(t.deregister(r.lkey).is_ok());
}

// ------------------------------------------------------------------------------------------------------
// The model: two maps, sums instead of differences (in 128 bits, where nothing wraps), no slots.

#[derive(Clone, Debug)]
struct ModelMr {
    pd: PdId,
    rkey: Rkey,
    iova: u64,
    len: u64,
    access: Access,
    region: Arc<Region>,
}

#[derive(Clone, Debug)]
struct ModelMw {
    pd: PdId,
    kind: MwKind,
    bound: Option<Bind>,
}

#[derive(Default)]
struct Model {
    mrs: BTreeMap<Lkey, ModelMr>,
    mws: BTreeMap<Rkey, ModelMw>,
    /// Keys that were given out at any time.
    lkeys: Vec<Lkey>,
    rkeys: Vec<Rkey>,
}

fn inside(va: u64, len: u64, base: u64, size: u64) -> bool {
    let [va, len, base, size] = [va, len, base, size].map(u128::from);
    va >= base && va + len <= base + size
}

impl Model {
    fn windows_of(&self, mr: Lkey) -> u32 {
        let bound = self.mws.values().filter_map(|mw| mw.bound);
        bound.filter(|b| b.mr == mr).count() as u32
    }

    /// Where in which region the access lands.
    fn remote(
        &self,
        pd: PdId,
        qpn: Qpn,
        rkey: Rkey,
        va: u64,
        len: u64,
        need: Access,
    ) -> Result<(Lkey, u64), AccessError> {
        let right = |have: Access| {
            if need & have == need { Ok(()) } else { Err(AccessError::NoRight { need, have }) }
        };
        if let Some((&lkey, mr)) = self.mrs.iter().find(|(_, mr)| mr.rkey == rkey) {
            if mr.pd != pd {
                return Err(AccessError::WrongPd);
            }
            right(mr.access)?;
            if !inside(va, len, mr.iova, mr.len) {
                return Err(AccessError::OutOfRange);
            }
            return Ok((lkey, va - mr.iova));
        }
        let mw = self.mws.get(&rkey).ok_or(AccessError::UnknownKey)?;
        let b = mw.bound.ok_or(AccessError::NotBound)?;
        if mw.pd != pd {
            return Err(AccessError::WrongPd);
        }
        if mw.kind == MwKind::Type2 && b.qpn != qpn {
            return Err(AccessError::WrongQp);
        }
        right(b.access)?;
        let base = if b.access.contains(Access::ZERO_BASED) { 0 } else { b.addr };
        if !inside(va, len, base, b.len) {
            return Err(AccessError::OutOfRange);
        }
        Ok((b.mr, va - base + b.addr - self.mrs[&b.mr].iova))
    }

    fn may_bind(&self, b: &Bind) -> bool {
        let Some(mw) = self.mws.get(&b.mw) else { return false };
        if mw.kind != b.kind || mw.pd != b.pd || mw_upper(b.mw) != mw_upper(b.new_rkey) {
            return false;
        }
        match b.kind {
            MwKind::Type1 if b.len == 0 => return true,
            MwKind::Type2 if b.len == 0 || mw.bound.is_some() => return false,
            _ => {}
        }
        let Some(mr) = self.mrs.get(&b.mr) else { return false };
        let writes = b.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let odd = Access::LOCAL_WRITE | Access::MW_BIND;
        mr.pd == b.pd
            && mr.access.contains(Access::MW_BIND)
            && !mr.access.contains(Access::ZERO_BASED)
            && (!writes || mr.access.contains(Access::LOCAL_WRITE))
            && !b.access.intersects(odd)
            && !(b.kind == MwKind::Type1 && b.access.contains(Access::ZERO_BASED))
            && inside(b.addr, b.len, mr.iova, mr.len)
    }
}

fn mw_upper(key: Rkey) -> u32 {
    key.0 >> 8
}

/// A step of a history. Numbers choose among what exists, or existed.
#[derive(Clone, Debug)]
enum Op {
    Register {
        pd: bool,
        access: Access,
        len: u64,
    },
    Deregister {
        which: usize,
    },
    AllocMw {
        pd: bool,
        two: bool,
    },
    DeallocMw {
        which: usize,
    },
    Bind {
        mw: usize,
        mr: usize,
        low: u8,
        foreign: bool,
        at: u64,
        len: u64,
        access: Access,
        right: bool,
        pd: bool,
        qp: bool,
    },
    Invalidate {
        which: usize,
        pd: bool,
        qp: bool,
    },
    UnbindQp {
        qp: bool,
    },
    Access {
        which: usize,
        pd: bool,
        qp: bool,
        at: i64,
        len: u64,
        need: Access,
    },
}

fn access() -> impl Strategy<Value = Access> {
    prop::sample::subsequence(
        vec![
            Access::LOCAL_WRITE,
            Access::REMOTE_WRITE,
            Access::REMOTE_READ,
            Access::REMOTE_ATOMIC,
            Access::MW_BIND,
            Access::ZERO_BASED,
        ],
        0..5,
    )
    .prop_map(|bits| bits.into_iter().collect())
}

/// Mostly true, so that most of what is tried is allowed.
fn mostly() -> impl Strategy<Value = bool> {
    prop::bool::weighted(0.9)
}

fn op() -> impl Strategy<Value = Op> {
    let pick = 0usize..1000;
    prop_oneof![
        3 => (mostly(), access(), mostly(), 1u64..200).prop_map(|(pd, access, bindable, len)| {
            let more = Access::MW_BIND | Access::LOCAL_WRITE;
            let access = if bindable { (access | more) - Access::ZERO_BASED } else { access };
            Op::Register { pd, access, len }
        }),
        1 => pick.clone().prop_map(|which| Op::Deregister { which }),
        2 => (mostly(), any::<bool>()).prop_map(|(pd, two)| Op::AllocMw { pd, two }),
        1 => pick.clone().prop_map(|which| Op::DeallocMw { which }),
        6 => (
            (pick.clone(), pick.clone(), any::<u8>(), mostly(), mostly()),
            (0u64..40, 0u64..60, access(), mostly(), mostly(), mostly()),
        ).prop_map(|((mw, mr, low, own, right), (at, len, access, clean, pd, qp))| {
            let odd = Access::LOCAL_WRITE | Access::MW_BIND | Access::ZERO_BASED;
            let access = if clean { access - odd } else { access };
            let access = if low % 4 == 0 { access | Access::ZERO_BASED } else { access };
            Op::Bind { mw, mr, low, foreign: !own, at, len, access, right, pd, qp }
        }),
        2 => (pick.clone(), mostly(), mostly()).prop_map(|(which, pd, qp)| Op::Invalidate { which, pd, qp }),
        1 => any::<bool>().prop_map(|qp| Op::UnbindQp { qp }),
        8 => (pick, mostly(), mostly(), -3i64..60, 0u64..40, access())
            .prop_map(|(which, pd, qp, at, len, need)| {
                let need = need & (Access::REMOTE_READ | Access::REMOTE_WRITE);
                Op::Access { which, pd, qp, at, len, need }
            }),
    ]
}

fn pd(first: bool) -> PdId {
    if first { PD } else { OTHER_PD }
}

fn qp(first: bool) -> Qpn {
    if first { QP } else { OTHER_QP }
}

proptest! {
    #[test]
    fn regions_and_windows_follow_the_model(ops in prop::collection::vec(op(), 1..120)) {
        let mut t = table();
        let mut m = Model::default();
        for op in ops {
            match op {
                Op::Register { pd: first, access, len } => {
                    let region = Region::alloc(len as usize).unwrap();
                    // Contents tell where one is.
                    let stamp = m.lkeys.len() as u8;
                    let fill: Vec<u8> = (0..len as u8).map(|i| i.wrapping_mul(3) ^ stamp).collect();
                    region.write(0, &fill);
                    let got = t.register(pd(first), Arc::clone(&region), IovaChoice::Allocate, access);
                    let writes = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
                    if writes && !access.contains(Access::LOCAL_WRITE) {
                        prop_assert_eq!(got, Err(MemError::NeedsLocalWrite { access }));
                        continue;
                    }
                    let r = got.unwrap();
                    prop_assert!(!m.lkeys.contains(&r.lkey) && !m.rkeys.contains(&r.rkey));
                    m.lkeys.push(r.lkey);
                    m.rkeys.push(r.rkey);
                    let mr = ModelMr { pd: pd(first), rkey: r.rkey, iova: r.iova, len, access, region };
                    m.mrs.insert(r.lkey, mr);
                }
                Op::Deregister { which } => {
                    let Some(&lkey) = m.lkeys.get(which % m.lkeys.len().max(1)) else { continue };
                    let windows = m.windows_of(lkey);
                    let got = t.deregister(lkey);
                    match m.mrs.get(&lkey) {
                        None => prop_assert_eq!(got.unwrap_err(), MemError::UnknownKey),
                        Some(_) if windows > 0 => prop_assert_eq!(got.unwrap_err(), MemError::Busy { windows }),
                        Some(mr) => {
                            prop_assert!(Arc::ptr_eq(&got.unwrap(), &mr.region));
                            m.mrs.remove(&lkey);
                        }
                    }
                }
                Op::AllocMw { pd: first, two } => {
                    let kind = if two { MwKind::Type2 } else { MwKind::Type1 };
                    let rkey = t.alloc_mw(pd(first), kind).unwrap();
                    m.rkeys.push(rkey);
                    m.mws.insert(rkey, ModelMw { pd: pd(first), kind, bound: None });
                }
                Op::DeallocMw { which } => {
                    let Some(&rkey) = m.rkeys.get(which % m.rkeys.len().max(1)) else { continue };
                    let named = m.mws.keys().copied().find(|mw| mw.0 >> 8 == rkey.0 >> 8);
                    prop_assert_eq!(t.dealloc_mw(rkey).is_ok(), named.is_some());
                    named.map(|mw| m.mws.remove(&mw));
                }
                Op::Bind { mw, mr, low, foreign, at, len, access, right, pd: first, qp: one } => {
                    let mws: Vec<Rkey> = m.mws.keys().copied().collect();
                    let mrs: Vec<Lkey> = m.mrs.keys().copied().collect();
                    let (Some(&mw), Some(&mr)) =
                        (mws.get(mw % mws.len().max(1)), mrs.get(mr % mrs.len().max(1))) else { continue };
                    let kind = match (m.mws[&mw].kind, right) {
                        (MwKind::Type1, true) | (MwKind::Type2, false) => MwKind::Type1,
                        _ => MwKind::Type2,
                    };
                    let new_rkey = Rkey((mw.0 & !0xff | u32::from(low)) ^ u32::from(foreign) << 9);
                    let addr = m.mrs[&mr].iova + at;
                    let b = Bind { pd: pd(first), qpn: qp(one), mw, new_rkey, mr, addr, len, access, kind };
                    let may = m.may_bind(&b);
                    let got = t.bind(&b);
                    prop_assert_eq!(got.is_ok(), may, "{:?} {:?}", b, got);
                    if may && let Some(mut window) = m.mws.remove(&mw) {
                        window.bound = (len > 0).then_some(b);
                        m.mws.insert(new_rkey, window);
                        m.rkeys.push(new_rkey);
                    }
                }
                Op::Invalidate { which, pd: first, qp: one } => {
                    let Some(&rkey) = m.rkeys.get(which % m.rkeys.len().max(1)) else { continue };
                    let may = m.mws.get(&rkey).is_some_and(|mw| {
                        mw.kind == MwKind::Type2 && mw.pd == pd(first)
                            && mw.bound.is_some_and(|b| b.qpn == qp(one))
                    });
                    prop_assert_eq!(t.invalidate(pd(first), qp(one), rkey).is_ok(), may);
                    if may && let Some(mw) = m.mws.get_mut(&rkey) {
                        mw.bound = None;
                    }
                }
                Op::UnbindQp { qp: one } => {
                    t.unbind_qp(qp(one));
                    for mw in m.mws.values_mut() {
                        mw.bound = mw.bound.filter(|b| mw.kind == MwKind::Type1 || b.qpn != qp(one));
                    }
                }
                Op::Access { which, pd: first, qp: one, at, len, need } => {
                    let Some(&rkey) = m.rkeys.get(which % m.rkeys.len().max(1)) else { continue };
                    let window = m.mws.get(&rkey).and_then(|mw| mw.bound);
                    let region = m.mrs.values().find(|mr| mr.rkey == rkey);
                    let base = match (window, region) {
                        (Some(b), _) if b.access.contains(Access::ZERO_BASED) => 0,
                        (Some(b), _) => b.addr,
                        (None, Some(mr)) => mr.iova,
                        (None, None) => 0x10_0000,
                    };
                    let va = base.wrapping_add_signed(at);
                    let want = m.remote(pd(first), qp(one), rkey, va, len, need);
                    match (t.remote(pd(first), qp(one), rkey, va, len, need), want) {
                        (Ok(slice), Ok((lkey, offset))) => {
                            prop_assert_eq!(slice.len() as u64, len);
                            let (mut got, mut want) = (vec![0; len as usize], vec![0; len as usize]);
                            slice.read_into(0, &mut got);
                            m.mrs[&lkey].region.read(offset as usize, &mut want);
                            prop_assert_eq!(got, want);
                        }
                        (got, want) => prop_assert_eq!(got.map(|s| s.len()), want.map(|_| 0)),
                    }
                }
            }
            prop_assert_eq!(t.windows(), m.mws.len());
            prop_assert_eq!(t.regions() as usize, m.mrs.len());
        }
    }
}
