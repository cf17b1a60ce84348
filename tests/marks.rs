//! Congestion control over real sockets: a hop marks packets, the receiver notifies, the sender slows down and
//! recovers when the marks stop.
//!
//! The hop is the kernel's packet filter in a network namespace of the test's own (`tests/netns.sh`): `nft(8)` writes
//! "congestion experienced" into packets that say they may be marked, as a switch with a full queue does.

#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

#[path = "common/skip.rs"]
mod skip;

use std::process::Command;

use skip::skip;
use softroce::capture::{Icrc, Reader, inspect};
use softroce::cc::{Dcqcn, DcqcnConfig};
use softroce::prelude::*;
use softroce::wire::frame::dissect;

const NETNS: &str = "SOFTROCE_NETNS";
const LINE: u64 = 1_000_000_000;
const LONG: Duration = Duration::from_secs(60);
const LEN: usize = 64 << 10;

#[test]
fn marks_cause_notifications_and_those_slow_the_sender() {
    if std::env::var_os(NETNS).is_some() {
        for family in [
            Family { nft: "ip", hosts: ["127.0.0.2", "127.0.0.3"] },
            Family { nft: "ip6", hosts: ["fd00::1", "fd00::2"] },
        ] {
            scenario(&family);
        }
        return;
    }
    if Command::new("nft").arg("--version").output().is_err() {
        return skip("no nft(8) here (package nftables)");
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/netns.sh");
    let this = std::env::current_exe().unwrap();
    let test = "marks_cause_notifications_and_those_slow_the_sender";
    let end =
        Command::new(script).arg(this).args(["--exact", test, "--nocapture"]).output().unwrap();
    match end.status.code() {
        Some(77) => skip(String::from_utf8_lossy(&end.stderr).trim()),
        Some(0) => {}
        _ => panic!(
            "{}{}",
            String::from_utf8_lossy(&end.stdout),
            String::from_utf8_lossy(&end.stderr)
        ),
    }
}

struct Family {
    nft: &'static str,
    hosts: [&'static str; 2],
}

/// A hop that marks each packet that may be marked, as long as it lives.
struct Hop(&'static str);

impl Hop {
    fn marking(family: &'static str) -> Self {
        let rules = format!(
            "table {family} hop {{ chain way {{ type filter hook output priority -150; \
             udp dport 4791 {family} ecn ect0 {family} ecn set ce; }}; }}"
        );
        let status = Command::new("nft").arg(&rules).status().unwrap();
        assert!(status.success(), "{rules}");
        Self(family)
    }
}

impl Drop for Hop {
    fn drop(&mut self) {
        let _ = Command::new("nft").args(["delete", "table", self.0, "hop"]).status();
    }
}

fn scenario(family: &Family) {
    let dir = std::env::temp_dir().join(format!("softroce-marks-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let capture = dir.join(format!("{}.pcapng", family.nft));
    // What the receiver sends is captured: its notifications.
    let a = Context::open(&format!("soft:udp={}", family.hosts[0])).unwrap();
    let b =
        Context::open(&format!("soft:udp={},pcap={}", family.hosts[1], capture.display())).unwrap();
    let (pa, pb) = (a.alloc_pd().unwrap(), b.alloc_pd().unwrap());
    let (cq, theirs) = (a.create_cq(16).unwrap(), b.create_cq(16).unwrap());
    let mut config = DcqcnConfig::preset("paper", LINE).unwrap();
    // A cut is seen however late we look, on a machine that has much else to do; then the target grows fast.
    for (name, value) in
        [("rpg_time_reset", "20000"), ("rpg_byte_reset", "0"), ("rpg_ai_rate", "1000")]
    {
        config.set(name, value).unwrap();
    }
    let cc = Dcqcn::new(config).unwrap();
    let x = pa.create_qp(QpType::Rc, &cq).congestion_control(cc).build().unwrap();
    let y = pb.create_qp(QpType::Rc, &theirs).build().unwrap();
    x.connect(&y.endpoint()).unwrap();
    y.connect(&x.endpoint()).unwrap();
    let src = pa.alloc_mr(LEN, Access::LOCAL).unwrap();
    let dst = pb.alloc_mr(LEN, Access::REMOTE).unwrap();
    src.fill(0..LEN, 7);
    let write = || {
        x.post_send(SendWr::write(1, src.sge(..), dst.remote())).unwrap();
        cq.wait(LONG).unwrap().ok().unwrap();
    };
    let counter = |ctx: &Context, name: &str| ctx.counters(1).unwrap()[name];
    let rate = || x.congestion().unwrap().rate.unwrap();

    // Nobody marks: line rate, and not one notification.
    write();
    assert_eq!((rate(), counter(&b, "np_ecn_marked_roce_packets")), (LINE, 0));

    let hop = Hop::marking(family.nft);
    let slowed = (0..1000).any(|_| {
        write();
        counter(&b, "np_cnp_sent") >= 3 && rate() < LINE / 2
    });
    assert!(slowed, "{:?}", x.congestion());
    drop(hop);
    let (marked, sent) = (counter(&b, "np_ecn_marked_roce_packets"), counter(&b, "np_cnp_sent"));
    assert!(marked >= sent, "{marked} marks, {sent} notifications");
    // They cannot be marked: nobody notified the receiver, whose packets went the same way.
    assert_eq!(counter(&a, "np_cnp_sent"), 0);

    // The marks have stopped: the rate comes back with time.
    let recovered = (0..6000).any(|_| {
        let _nothing = cq.wait(Duration::from_millis(10));
        rate() == LINE
    });
    assert!(recovered, "{:?}", x.congestion());
    write();
    assert_eq!(counter(&a, "rp_cnp_handled"), counter(&b, "np_cnp_sent"), "each was heard");
    assert_eq!(counter(&a, "rp_cnp_ignored"), 0);
    assert_eq!(dst.to_vec(0..LEN), vec![7; LEN]);
    let peer = x.number();
    drop((x, y));
    drop(b);
    assert_eq!(captured_notifications(&capture, peer), sent);
    std::fs::remove_dir_all(dir).unwrap();
}

/// How many notifications a capture holds, each of them looked at.
fn captured_notifications(path: &std::path::Path, peer: u32) -> u64 {
    let bytes = std::fs::read(path).unwrap();
    let mut reader = Reader::new(&bytes[..]).unwrap();
    let mut n = 0;
    while let Some(record) = reader.next_record().unwrap() {
        let frame = dissect(record.link, record.bytes).unwrap();
        let packet = inspect(&frame).unwrap();
        if packet.bth.opcode != 0x81 {
            continue;
        }
        n += 1;
        let (bth, envelope) = (packet.bth, &frame.envelope);
        assert_eq!(bth.dest_qp.raw(), peer, "to the queue pair that is to slow down");
        assert!(bth.becn && !bth.fecn && !bth.m && !bth.ack_req && !bth.se, "{bth:?}");
        assert_eq!((bth.psn.raw(), bth.pkey.0, bth.pad_count), (0, 0xffff, 0));
        assert_eq!(envelope.traffic_class, 48 << 2, "DSCP 48, not ECN-capable");
        assert_eq!(frame.datagram.len(), 32);
        assert_eq!(frame.datagram[12..28], [0; 16]);
        assert_eq!(packet.icrc, Icrc::Ok);
    }
    n
}
