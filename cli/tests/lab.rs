//! `softroce lab`, run as a program: what it prints, writes and refuses.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

#[path = "lab/dir.rs"]
mod dir;

use std::fs;
use std::process::{Command, Output};

use dir::Dir;
use serde_json::Value;

fn lab(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_softroce")).arg("lab").args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_list_says_when_each_passes() {
    let said = lab(&["list"]);
    assert!(said.status.success());
    let said = text(&said.stdout);
    assert!(said.contains("e10  overhead") && said.contains("passes if: "), "{said}");
    let json = lab(&["list", "--json"]);
    let all: Value = serde_json::from_slice(&json.stdout).unwrap();
    let all = all.as_array().unwrap();
    assert!(all.len() >= 5);
    for about in all {
        for key in ["id", "name", "title", "question", "full", "short"] {
            assert!(about[key].as_str().is_some_and(|t| !t.is_empty()), "{key} of {about}");
        }
    }
}

#[test]
fn a_run_prints_its_numbers_and_its_verdict() {
    let said = lab(&["run", "e10", "--short"]);
    assert_eq!(text(&said.stderr), "", "no progress where nobody looks");
    let (code, said) = (said.status.code(), text(&said.stdout));
    assert_eq!(code, Some(0), "{said}");
    for part in
        ["1106", "±0.01 %", "passed. Repeat with: softroce lab run overhead --seed 1 --short"]
    {
        assert!(said.contains(part), "no {part} in {said}");
    }
}

#[test]
fn equal_seeds_give_equal_bytes() {
    let args = ["run", "overhead", "collectives", "--short", "--json", "--seed", "3"];
    let (first, second) = (lab(&args), lab(&args));
    assert_eq!(text(&first.stdout), text(&second.stdout));
    let all: Value = serde_json::from_slice(&first.stdout).unwrap();
    let names: Vec<_> = all.as_array().unwrap().iter().map(|r| r["name"].as_str()).collect();
    assert_eq!(names, [Some("overhead"), Some("collectives")]);
    for report in all.as_array().unwrap() {
        assert_eq!((&report["ok"], &report["seed"]), (&true.into(), &3.into()), "{report}");
        for row in report["rows"].as_array().unwrap() {
            assert!(row["value"].is_number() && row["ok"] == true, "{row}");
            for key in ["metric", "unit", "expected", "tolerance", "source"] {
                assert!(row[key].is_string(), "{key} of {row}");
            }
        }
    }
}

#[test]
fn everything_is_written() {
    let dir = Dir::new("lab");
    let out = dir.path().join("below/it");
    let said = lab(&["run", "e10", "e8", "--short", "--out", out.to_str().unwrap()]);
    assert!(said.status.success(), "{}", text(&said.stderr));
    let read = |name: &str| fs::read_to_string(out.join(name)).unwrap();
    for name in ["overhead", "loss"] {
        let page = read(&format!("{name}/page.html"));
        // It needs nothing else: no file, no network.
        for outside in ["src=", "@import", "url(", "http://", "https://"] {
            let foreign = page.replace("http://www.w3.org/2000/svg", "");
            assert!(!foreign.contains(outside), "{outside} in {name}");
        }
        let result: Value = serde_json::from_str(&read(&format!("{name}/result.json"))).unwrap();
        assert_eq!(result["name"], name);
        assert!(read("index.html").contains(&format!("href=\"{name}/page.html\"")));
    }
    assert!(read("loss/loss.svg").starts_with("<svg "));
    let all: Value = serde_json::from_str(&read("result.json")).unwrap();
    assert_eq!(all.as_array().map(Vec::len), Some(2));
    // Of one experiment there is no index.
    let alone = dir.path().join("alone");
    assert!(lab(&["run", "e8", "--short", "--out", alone.to_str().unwrap()]).status.success());
    assert!(alone.join("page.html").is_file() && !alone.join("index.html").exists());
}

#[test]
fn what_cannot_be_is_refused() {
    for (args, says) in [
        (&["run", "overheads"][..], "there is no experiment overheads: "),
        (&["run"], "NAME"),
        (&["run", "e10", "--seed", "x"], "--seed"),
        (&["run", "e10", "--out", "/proc/nowhere"], "cannot write /proc/nowhere: "),
    ] {
        let said = lab(args);
        assert_eq!(said.status.code(), Some(2), "{args:?}");
        let error = text(&said.stderr);
        assert!(error.contains(says) && error.lines().count() == 1, "{args:?}: {error}");
        assert_eq!(text(&said.stdout), "");
    }
}
