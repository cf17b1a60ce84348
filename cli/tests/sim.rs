//! `softroce sim`, run as a program.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

use std::path::Path;
use std::process::{Command, Output};

fn sim(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_softroce")).arg("sim").args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn seeds_run_the_same_each_time() {
    let args = ["--seed", "10", "--seeds", "6", "--json"];
    let (first, second) = (sim(&args), sim(&args));
    assert!(first.status.success(), "{}", text(&first.stderr));
    assert_eq!(text(&first.stdout), text(&second.stdout));
    let report: serde_json::Value = serde_json::from_slice(&first.stdout).unwrap();
    assert_eq!((&report["seeds"], &report["failures"]), (&6.into(), &0.into()));
    assert_eq!(report["trace_hash"].as_str().map(str::len), Some(16));
    assert!(report["packets"].as_u64().is_some_and(|n| n > 100), "{report}");

    let other = sim(&["--seed", "11", "--seeds", "6", "--json"]);
    assert_ne!(text(&first.stdout), text(&other.stdout));
}

#[test]
fn the_seed_comes_first_and_files_can_be_kept() {
    let dir = std::env::temp_dir().join(format!("softroce-sim-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let said = sim(&["--seed", "21", "--keep", "--out", dir.to_str().unwrap()]);
    let plan = std::fs::read_to_string(dir.join("softroce-sim-21.txt")).unwrap();
    let pcap = dir.join("softroce-sim-21.pcapng");
    let decoded = Command::new(env!("CARGO_BIN_EXE_softroce"))
        .args([Path::new("decode"), Path::new("--json"), &pcap])
        .output()
        .unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    assert!(said.status.success(), "{}", text(&said.stderr));
    let said = text(&said.stdout);
    assert!(said.starts_with("seed 21\n"), "{said}");
    assert!(said.contains("1 seed, 0 failures"), "{said}");
    assert!(plan.starts_with("nothing failed") && plan.contains("seed: 21"), "{plan}");
    let decoded: serde_json::Value = serde_json::from_slice(&decoded.stdout).unwrap();
    assert!(decoded["rocev2"].as_u64().is_some_and(|n| n > 0), "{decoded}");
}

#[test]
fn where_nothing_can_be_written_it_says_so_at_once() {
    let said = sim(&["--seeds", "1000000", "--out", "/proc/nowhere"]);
    assert_eq!(said.status.code(), Some(2));
    let said = text(&said.stderr);
    assert!(said.starts_with("softroce: sim: cannot make /proc/nowhere: "), "{said}");
}

#[test]
fn no_seed_is_no_success() {
    for args in [&["--seeds", "0"][..], &["--seed", "18446744073709551615", "--seeds", "2"]] {
        let said = sim(args);
        assert_eq!(said.status.code(), Some(2), "{args:?}");
        assert!(text(&said.stderr).contains("--seeds"), "{}", text(&said.stderr));
    }
    let last = sim(&["--seed", "18446744073709551615"]);
    assert!(last.status.success(), "{}", text(&last.stderr));
}

#[test]
fn the_seed_of_the_command_line_is_the_one_that_runs() {
    let run = |value: Option<&str>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_softroce"));
        command.args(["sim", "--seed", "7", "--json"]).env_remove("SOFTROCE_SEED");
        if let Some(value) = value {
            command.env("SOFTROCE_SEED", value);
        }
        text(&command.output().unwrap().stdout)
    };
    let plain = run(None);
    assert!(plain.contains("\"seeds\":1"), "{plain}");
    for value in ["5", "abc", ""] {
        assert_eq!(run(Some(value)), plain, "SOFTROCE_SEED={value}");
    }
}
