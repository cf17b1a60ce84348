//! Packets with known ICRCs, as whole Ethernet frames.
//!
//! V1 to V15 were made for this test; their ICRCs were computed by three independent programs. H1 and H2
//! are published examples (scapy, `test/contrib/roce.uts`), H2 from a ConnectX-4 Lx: they anchor the
//! algorithm to hardware.

#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

use softroce::wire::frame::{self, Dissected, LinkType, Mac, UdpChecksum};
use softroce::wire::icrc;
use softroce::wire::num::{Msn, Pkey, Psn, Qkey, Qpn, Rkey};
use softroce::wire::{
    Aeth, AtomicEth, Deth, Ext, Feth, Ieth, ImmDt, NakCode, Packet, PacketBuilder, Reth, Syndrome,
};

struct Vector {
    id: &'static str,
    what: &'static str,
    opcode: &'static str,
    icrc: u32,
    frame: &'static str,
}

const VECTORS: [Vector; 17] = [
    Vector {
        id: "V1",
        what: "IPv4 RC SEND ONLY, 13 bytes and 3 of pad, solicited, asking for an ACK",
        opcode: "RC_SEND_ONLY",
        icrc: 0x9272_812c,
        frame: "\
            0200000000020200000000010800456a003c00004000401126450a0000010a000002c12312b70028\
            000004f0ffff000000128012345648656c6c6f2c20526f434576320000002c817292",
    },
    Vector {
        id: "V2",
        what: "the same with identification 0x1234",
        opcode: "RC_SEND_ONLY",
        icrc: 0xcb94_6660,
        frame: "\
            0200000000020200000000010800456a003c12344000401114110a0000010a000002c12312b70028\
            000004f0ffff000000128012345648656c6c6f2c20526f43457632000000606694cb",
    },
    Vector {
        id: "V3",
        what: "IPv4 RC RDMA WRITE FIRST at a path MTU of 256",
        opcode: "RC_WRITE_FIRST",
        icrc: 0x103d_d034,
        frame: "\
            0200000000020200000000010800456a013c00004000401125450a0000010a000002c12312b70128\
            00000640ffff0000001200fffffe00007f001122334400abcdef0000025800010203040506070809\
            0a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f3031\
            32333435363738393a3b3c3d3e3f404142434445464748494a4b4c4d4e4f50515253545556575859\
            5a5b5c5d5e5f606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f8081\
            82838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9fa0a1a2a3a4a5a6a7a8a9\
            aaabacadaeafb0b1b2b3b4b5b6b7b8b9babbbcbdbebfc0c1c2c3c4c5c6c7c8c9cacbcccdcecfd0d1\
            d2d3d4d5d6d7d8d9dadbdcdddedfe0e1e2e3e4e5e6e7e8e9eaebecedeeeff0f1f2f3f4f5f6f7f8f9\
            fafbfcfdfeff34d03d10",
    },
    Vector {
        id: "V4",
        what: "IPv4 RC RDMA READ request",
        opcode: "RC_READ_REQUEST",
        icrc: 0xe8ac_7389,
        frame: "\
            0200000000020200000000010800456a003c00004000401126450a0000010a000002c12312b70028\
            00000c40ffff000000128000000100007f001122334400abcdef000000108973ace8",
    },
    Vector {
        id: "V5",
        what: "IPv4 RC RDMA READ response only",
        opcode: "RC_READ_RESP_ONLY",
        icrc: 0x9886_2983,
        frame: "\
            0200000000010200000000020800456a004000004000401126410a0000020a000001c12312b7002c\
            00001040ffff00000011000000011f000007000102030405060708090a0b0c0d0e0f83298698",
    },
    Vector {
        id: "V6",
        what: "IPv4 RC ACK",
        opcode: "RC_ACK",
        icrc: 0x3e40_b0c4,
        frame: "\
            0200000000010200000000020800456a003000004000401126510a0000020a000001c12312b7001c\
            00001140ffff00000011001234561f000008c4b0403e",
    },
    Vector {
        id: "V7",
        what: "IPv4 RC NAK, PSN sequence error",
        opcode: "RC_ACK",
        icrc: 0x307c_29be,
        frame: "\
            0200000000010200000000020800456a003000004000401126510a0000020a000001c12312b7001c\
            00001140ffff000000110012345760000008be297c30",
    },
    Vector {
        id: "V8",
        what: "IPv4 RC compare and swap",
        opcode: "RC_CMP_SWAP",
        icrc: 0xfeda_aaeb,
        frame: "\
            0200000000020200000000010800456a004800004000401126390a0000010a000002c12312b70034\
            00001340ffff000000128000000200007f001122334000abcdef1111111111111111222222222222\
            2222ebaadafe",
    },
    Vector {
        id: "V9",
        what: "IPv4 UD SEND ONLY",
        opcode: "UD_SEND_ONLY",
        icrc: 0xbc0a_c850,
        frame: "\
            0200000000020200000000010800456a003c00004000401126450a0000010a000002c45612b70028\
            00006440ffff00000033000000051111111100000022000102030405060750c80abc",
    },
    Vector {
        id: "V10",
        what: "IPv4 CNP, DSCP 48",
        opcode: "CNP",
        icrc: 0x1eb8_0741,
        frame: "\
            020000000001020000000002080045c0003c00004000401125ef0a0000020a000001c12312b70028\
            00008100ffff4000001100000000000000000000000000000000000000004107b81e",
    },
    Vector {
        id: "V11",
        what: "IPv6 RC SEND ONLY with immediate",
        opcode: "RC_SEND_ONLY_IMM",
        icrc: 0xc82b_77ad,
        frame: "\
            02000000000202000000000186dd66a123450020114020010db80000000000000000000000012001\
            0db8000000000000000000000002c12312b7002000000540ffff0000001280000010deadbeef4142\
            4344ad772bc8",
    },
    Vector {
        id: "V12",
        what: "IPv6 UD SEND ONLY to QP 1",
        opcode: "UD_SEND_ONLY",
        icrc: 0x5444_6f9e,
        frame: "\
            02000000000202000000000186dd66a123450024114020010db80000000000000000000000012001\
            0db8000000000000000000000002c12312b7002400006440ffff0000000100000000800100000000\
            00014d4144219e6f4454",
    },
    Vector {
        id: "V13",
        what: "IPv4 RC SEND ONLY with invalidate, empty",
        opcode: "RC_SEND_ONLY_INV",
        icrc: 0x8f96_da95,
        frame: "\
            0200000000020200000000010800456a003000004000401126510a0000010a000002c12312b7001c\
            00001740ffff000000128000001100abcdef95da968f",
    },
    Vector {
        id: "V14",
        what: "IPv4 RC ATOMIC WRITE",
        opcode: "RC_ATOMIC_WRITE",
        icrc: 0x76ea_84f2,
        frame: "\
            0200000000020200000000010800456a0044000040004011263d0a0000010a000002c12312b70030\
            00001d40ffff000000128000001200007f001122334000abcdef000000080102030405060708f284\
            ea76",
    },
    Vector {
        id: "V15",
        what: "IPv4 RC FLUSH, by the book",
        opcode: "RC_FLUSH",
        icrc: 0x8d2f_811c,
        frame: "\
            0200000000020200000000010800456a004000004000401126410a0000010a000002c12312b7002c\
            00001c40ffff00000012800000130000000100007f001122300000abcdef000010001c812f8d",
    },
    Vector {
        id: "H1",
        what: "UC SEND ONLY, published in scapy's tests",
        opcode: "UC_SEND_ONLY",
        icrc: 0xf353_f378,
        frame: "\
            248a07a8fa22248a07a8fa22080045010040047840004011b4d5c0a80007c0a80007c00012b7002c\
            aca22460ffff000000d300cf17104630818be28935d90e9a95505401be885e50000078f353f3",
    },
    Vector {
        id: "H2",
        what: "CNP captured on a ConnectX-4 Lx, published in scapy's tests",
        opcode: "CNP",
        icrc: 0x2a00_fd82,
        frame: "\
            e41d2dab2bc27cfe90643b32080045c2003c718c4000401191610a0011010a001201000012b70028\
            00008100ffff40000118000000000000000000000000000000000000000082fd002a",
    },
];

impl Vector {
    fn named(id: &str) -> &'static Self {
        VECTORS.iter().find(|v| v.id == id).expect("there is such a vector")
    }

    fn bytes(&self) -> Vec<u8> {
        let digits = self.frame.as_bytes().chunks(2);
        digits.map(|d| u8::from_str_radix(str::from_utf8(d).unwrap(), 16).unwrap()).collect()
    }
}

fn dissect(frame: &[u8]) -> Dissected<'_> {
    frame::dissect(LinkType::Ethernet, frame).unwrap()
}

#[test]
fn icrcs() {
    for v in &VECTORS {
        let bytes = v.bytes();
        let d = dissect(&bytes);
        let sealed = &d.datagram[..d.datagram.len() - icrc::LEN];
        assert_eq!(icrc::compute(&d.ip, sealed), v.icrc, "{}: {}", v.id, v.what);
        assert!(icrc::check(&d.ip, d.datagram), "{}: {}", v.id, v.what);
        let p = Packet::parse(d.datagram).unwrap();
        assert_eq!(p.icrc(), v.icrc);
        assert_eq!(p.opcode().info().name, v.opcode, "{}", v.id);
    }
}

#[test]
fn identifications_are_recovered() {
    for v in &VECTORS {
        let bytes = v.bytes();
        let d = dissect(&bytes);
        let expected = d.envelope.src.is_ipv4().then_some(d.envelope.ident);
        assert_eq!(icrc::recover_ident(&d.ip.with_ident(0), d.datagram), expected, "{}", v.id);
    }
}

#[test]
fn frames_are_rebuilt_from_their_fields() {
    for v in &VECTORS {
        let bytes = v.bytes();
        let d = dissect(&bytes);
        let p = Packet::parse(d.datagram).unwrap();
        let mut datagram = vec![0; PacketBuilder::size(p.opcode(), p.payload().len())];
        let mut builder = PacketBuilder::new(&mut datagram, &p.bth(), &p.ext(), p.payload().len());
        builder.payload_mut().copy_from_slice(p.payload());
        assert_eq!(builder.finish(&d.ip), d.datagram.len());
        assert_eq!(datagram, d.datagram, "{}", v.id);

        let mut rebuilt = vec![0; bytes.len()];
        let mac = |at: usize| Mac(bytes[at..at + 6].try_into().unwrap());
        let checksum = if d.udp_checksum == 0 { UdpChecksum::Zero } else { UdpChecksum::Computed };
        frame::emit(&mut rebuilt, mac(6), mac(0), &d.envelope, checksum, &datagram).unwrap();
        assert_eq!(rebuilt, bytes, "{}", v.id);
    }
}

#[track_caller]
fn fields(id: &str, ext: Ext, payload: &[u8]) {
    let bytes = Vector::named(id).bytes();
    let p = Packet::parse(dissect(&bytes).datagram).unwrap();
    assert_eq!(p.ext(), ext, "{id}");
    assert_eq!(p.payload(), payload, "{id}");
    assert_eq!(p.bth().pkey, Pkey::DEFAULT);
}

#[test]
fn headers() {
    let none = Ext::default();
    let to_16: Vec<u8> = (0..16).collect();
    let all: Vec<u8> = (0..=255).collect();
    let reth = |va, dma_len| Some(Reth { va, rkey: Rkey(0x00ab_cdef), dma_len });
    let aeth = |syndrome, msn| Some(Aeth { syndrome, msn: Msn::new(msn) });
    let deth = |qkey, src_qp| Some(Deth { qkey: Qkey(qkey), src_qp: Qpn::new(src_qp) });

    fields("V1", none, b"Hello, RoCEv2");
    fields("V3", Ext { reth: reth(0x7f00_1122_3344, 600), ..none }, &all);
    fields("V4", Ext { reth: reth(0x7f00_1122_3344, 16), ..none }, &[]);
    fields("V5", Ext { aeth: aeth(Syndrome::ACK, 7), ..none }, &to_16);
    fields("V6", Ext { aeth: aeth(Syndrome::ACK, 8), ..none }, &[]);
    let nak = Syndrome::Nak(NakCode::SequenceError);
    fields("V7", Ext { aeth: aeth(nak, 8), ..none }, &[]);
    let atomic = AtomicEth {
        va: 0x7f00_1122_3340,
        rkey: Rkey(0x00ab_cdef),
        swap_add: 0x1111_1111_1111_1111,
        compare: 0x2222_2222_2222_2222,
    };
    fields("V8", Ext { atomic: Some(atomic), ..none }, &[]);
    fields("V9", Ext { deth: deth(0x1111_1111, 0x22), ..none }, &to_16[..8]);
    fields("V10", none, &[]);
    fields("V11", Ext { immdt: Some(ImmDt(0xdead_beef)), ..none }, b"ABCD");
    fields("V12", Ext { deth: deth(0x8001_0000, 1), ..none }, b"MAD!");
    fields("V13", Ext { ieth: Some(Ieth { rkey: Rkey(0x00ab_cdef) }), ..none }, &[]);
    let eight = [1, 2, 3, 4, 5, 6, 7, 8];
    fields("V14", Ext { reth: reth(0x7f00_1122_3340, 8), ..none }, &eight);
    let feth = Some(Feth { sel: 0, plt: 1 });
    fields("V15", Ext { feth, reth: reth(0x7f00_1122_3000, 4096), ..none }, &[]);
}

#[test]
fn base_headers() {
    let bth = |id: &str| Packet::parse(dissect(&Vector::named(id).bytes()).datagram).unwrap().bth();
    let v1 = bth("V1");
    assert!(v1.se && v1.m && v1.ack_req && !v1.fecn && !v1.becn);
    assert_eq!((v1.dest_qp, v1.psn, v1.pad_count), (Qpn::new(0x12), Psn::new(0x12_3456), 3));
    let v10 = bth("V10");
    assert!(v10.becn && !v10.fecn && !v10.m && !v10.ack_req);
    assert_eq!((v10.dest_qp, v10.psn), (Qpn::new(0x11), Psn::new(0)));
    let h1 = bth("H1");
    assert_eq!((h1.dest_qp, h1.psn, h1.pad_count), (Qpn::new(0xd3), Psn::new(0xcf_1710), 2));
    assert!(bth("H2").becn);
}

/// Inverts one bit of V1 and checks whether the ICRC notices.
fn notices(at: usize, bit: u8) -> bool {
    let mut bytes = Vector::named("V1").bytes();
    bytes[at] ^= 1 << bit;
    // What makes it another kind of packet is noticed before anybody looks at the ICRC.
    frame::dissect(LinkType::Ethernet, &bytes).map_or(true, |d| !icrc::check(&d.ip, d.datagram))
}

#[test]
fn what_may_change_on_the_way_is_not_covered_and_all_else_is() {
    const ETHERNET: usize = 14;
    const IP: usize = ETHERNET;
    const UDP: usize = IP + 20;
    const BTH: usize = UDP + 8;
    let len = Vector::named("V1").bytes().len();
    for at in IP..len {
        let free = [
            IP + 1,  // TOS
            IP + 8,  // TTL
            IP + 10, // header checksum
            IP + 11,
            UDP + 6, // UDP checksum
            UDP + 7,
            BTH + 4, // FECN, BECN, reserved
        ]
        .contains(&at);
        for bit in 0..8 {
            assert_eq!(notices(at, bit), !free, "bit {bit} of byte {at}");
        }
    }
    for at in 0..12 {
        assert!(!notices(at, 0), "Ethernet addresses are not covered");
    }
}

#[test]
fn every_covered_ip_field_changes_the_value() {
    // The same one level down, where nothing is refused before the computation.
    let bytes = Vector::named("V1").bytes();
    let d = dissect(&bytes);
    let sealed = &d.datagram[..d.datagram.len() - icrc::LEN];
    let value = |e: frame::Envelope| icrc::compute(&e.ip_fields().unwrap(), sealed);
    let e = d.envelope;
    let right = value(e);
    assert_eq!(
        value(frame::Envelope { traffic_class: 0, hop_limit: 1, flow_label: 7, ..e }),
        right
    );
    for other in [
        frame::Envelope { ident: 1, ..e },
        frame::Envelope { df: false, ..e },
        frame::Envelope { src_port: e.src_port + 1, ..e },
        frame::Envelope { src: [10, 0, 0, 3].into(), ..e },
        frame::Envelope { dst: [10, 0, 0, 3].into(), ..e },
    ] {
        assert_ne!(value(other), right);
    }
    let shorter = icrc::compute(&d.ip, &sealed[..sealed.len() - 4]);
    assert_ne!(shorter, right);
}
