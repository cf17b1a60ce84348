//! `softroce devinfo`, and what all commands have in common, run as a program.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "helpers of tests, where a panic is the report")]

use std::process::{Command, Output};

use serde_json::Value;

const SOFTROCE: &str = env!("CARGO_BIN_EXE_softroce");

fn softroce(args: &[&str]) -> Output {
    Command::new(SOFTROCE).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn status(output: &Output) -> Option<i32> {
    output.status.code()
}

#[test]
fn the_layout_is_that_of_ibv_devinfo() {
    let output = softroce(&["devinfo", "soft:lo"]);
    assert_eq!((status(&output), text(&output.stderr)), (Some(0), ""));
    let out = text(&output.stdout);
    let lines: Vec<_> = out.lines().collect();
    // An EUI-64 made of the address, whose last part is whatever was free.
    let guid = lines[3].rsplit('\t').next().unwrap();
    assert!(guid.starts_with("0252:7fff:fe00:00"), "{out}");
    let expected = format!(
        "hca_id:\tsoft:lo\n\
         \ttransport:\t\t\tInfiniBand (0)\n\
         \tfw_ver:\t\t\t\t{}\n\
         \tnode_guid:\t\t\t{guid}\n\
         \tsys_image_guid:\t\t\t{guid}\n\
         \tvendor_id:\t\t\t0xffffff\n\
         \tvendor_part_id:\t\t\t0\n\
         \thw_ver:\t\t\t\t0x0\n\
         \tphys_port_cnt:\t\t\t1\n\
         \t\tport:\t1\n\
         \t\t\tstate:\t\t\tPORT_ACTIVE (4)\n\
         \t\t\tmax_mtu:\t\t4096 (5)\n\
         \t\t\tactive_mtu:\t\t4096 (5)\n\
         \t\t\tsm_lid:\t\t\t0\n\
         \t\t\tport_lid:\t\t0\n\
         \t\t\tport_lmc:\t\t0x00\n\
         \t\t\tlink_layer:\t\tEthernet\n\n",
        env!("CARGO_PKG_VERSION")
    );
    assert_eq!(out, expected);
}

#[test]
fn verbose_adds_limits_and_addresses() {
    let output = softroce(&["devinfo", "-v", "soft:lo"]);
    assert_eq!(status(&output), Some(0));
    let out = text(&output.stdout);
    for part in
        ["\tmax_qp:\t\t\t\t", "\tatomic_cap:\t\t\tATOMIC_GLOB\n", "\t\t\tgid_tbl_len:\t\t1\n"]
    {
        assert!(out.contains(part), "{part:?}: {out}");
    }
    let gid = out.lines().find(|line| line.contains("GID[  0]:")).unwrap();
    assert!(gid.starts_with("\t\t\tGID[  0]:\t\t::ffff:127.0.0."), "{gid}");
    assert!(gid.ends_with(", RoCE v2, lo"), "{gid}");
}

#[test]
fn json_has_the_same_names() {
    for (args, verbose) in [
        (&["devinfo", "--json", "soft:lo"][..], false),
        (&["devinfo", "--json", "-v", "soft:lo"], true),
    ] {
        let output = softroce(args);
        assert_eq!(status(&output), Some(0));
        let object: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(
            (&object["hca_id"], &object["vendor_id"]),
            (&"soft:lo".into(), &0xff_ffff.into())
        );
        let port = &object["ports"][0];
        assert_eq!((&port["state"], &port["active_mtu"]), (&"PORT_ACTIVE".into(), &4096.into()));
        assert_eq!(object["max_qp_wr"].is_u64(), verbose);
        assert_eq!(port["gids"][0]["kind"] == "RoCE v2", verbose);
    }
}

#[test]
fn without_a_name_all_devices_are_shown() {
    let output = softroce(&["devinfo", "--json"]);
    // Another device may be in use, which is not this command's failure.
    assert_eq!(status(&output), Some(0));
    let first: Value = serde_json::from_str(text(&output.stdout).lines().next().unwrap()).unwrap();
    assert_eq!(first["hca_id"], "soft:lo");
}

#[test]
fn a_named_device_that_cannot_be_opened_is_status_2_and_the_rest_is_shown() {
    let output = softroce(&["devinfo", "soft:nonsense", "soft:lo", "soft:udp=192.0.2.1"]);
    assert_eq!(status(&output), Some(2));
    let complaints: Vec<_> = text(&output.stderr).lines().collect();
    assert_eq!(complaints.len(), 2, "{complaints:?}");
    let begin = "softroce: soft:nonsense: there is no device \"nonsense\"; there is soft:lo";
    assert!(complaints[0].starts_with(begin), "{complaints:?}");
    assert!(complaints[1].starts_with("softroce: soft:udp=192.0.2.1: "), "{complaints:?}");
    assert!(text(&output.stdout).starts_with("hca_id:\tsoft:lo\n"));
}

#[test]
fn wrong_usage_is_status_2_and_one_line() {
    for (args, part) in [
        (&["devinfo", "--no-such-option"][..], "unexpected argument '--no-such-option' found"),
        (&["tuor"], "unrecognized subcommand 'tuor'; tip: a similar subcommand exists: 'tour'"),
        (&["decode"], "the following required arguments were not provided: <FILE>..."),
    ] {
        let output = softroce(args);
        let complaint = text(&output.stderr);
        assert_eq!((status(&output), text(&output.stdout)), (Some(2), ""), "{complaint}");
        assert!(complaint.starts_with("softroce: ") && complaint.contains(part), "{complaint}");
        assert!(complaint.ends_with(" (--help says more)\n"), "{complaint}");
        assert_eq!(complaint.lines().count(), 1, "{complaint}");
    }
    let nothing = softroce(&[]);
    assert_eq!(status(&nothing), Some(2));
    assert!(text(&nothing.stderr).contains("Usage: softroce <COMMAND>"));
    let help = softroce(&["tour", "--help"]);
    assert_eq!(status(&help), Some(0));
    assert!(text(&help.stdout).contains("Exit status: 0 if every row was verified"));
    assert!(!text(&help.stdout).contains("--second"));
}
