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
    let brief = text(&said.stdout);
    assert!(brief.contains("e10  overhead") && !brief.contains("passes if: "), "{brief}");
    let said = text(&lab(&["list", "-v"]).stdout);
    assert!(said.contains("e10  overhead") && said.contains("passes if: "), "{said}");
    let json = lab(&["list", "--json"]);
    let all: Value = serde_json::from_slice(&json.stdout).unwrap();
    let all = all.as_array().unwrap();
    assert_eq!(all.len(), 12);
    let page = include_str!("../../docs/lab.md");
    for about in all {
        let [id, name, title, question] =
            ["id", "name", "title", "question"].map(|key| about[key].as_str().unwrap());
        let line = format!("| {} | `{name}` | {title} | {question} |", &id[1..]);
        assert!(page.lines().any(|l| l == line), "docs/lab.md has no line {line}");
        assert!(brief.contains(question), "{brief}");
    }
    for about in all {
        for key in ["id", "name", "title", "question", "full", "short"] {
            assert!(about[key].as_str().is_some_and(|t| !t.is_empty()), "{key} of {about}");
        }
    }
}

#[test]
fn a_run_prints_its_numbers_and_its_verdict() {
    let said = lab(&["run", "10", "--short"]);
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

fn example(name: &str) -> String {
    format!("{}/../examples/lab/{name}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn files_of_ones_own_are_run() {
    let dir = Dir::new("lab-files");
    let files: Vec<_> = fs::read_dir(example("")).unwrap().map(|f| f.unwrap().path()).collect();
    assert!(files.len() >= 3);
    for file in &files {
        let stem = file.file_stem().unwrap().to_str().unwrap();
        let out = dir.path().join(stem);
        let args = ["run", file.to_str().unwrap(), "--out", out.to_str().unwrap()];
        let said = lab(&args);
        assert_eq!(said.status.code(), Some(0), "{}{}", text(&said.stdout), text(&said.stderr));
        let repeat = format!("Repeat with: softroce lab run {} --seed 1", file.display());
        assert!(text(&said.stdout).contains(&repeat), "{}", text(&said.stdout));
        let written = fs::read(out.join("result.json")).unwrap();
        let result: Value = serde_json::from_slice(&written).unwrap();
        assert_eq!((&result["name"], &result["ok"]), (&stem.into(), &true.into()));
        for name in ["page.html", "network.svg", "rates.svg", "over-time.svg", "queues.svg"] {
            assert!(out.join(name).is_file(), "no {name} of {stem}");
        }
        // From wherever it is run, byte for byte.
        let again = lab(&["run", file.to_str().unwrap(), "--json"]);
        assert_eq!(again.stdout, written, "{stem}");
    }
    let two: Vec<_> = files.iter().take(2).map(|f| f.to_str().unwrap()).collect();
    let said = lab(&["run", two[0], "e10", two[1], "--json", "--seed", "3"]);
    let all: Value = serde_json::from_slice(&said.stdout).unwrap();
    let seeds: Vec<_> = all.as_array().unwrap().iter().map(|r| r["seed"].as_u64()).collect();
    assert_eq!(seeds, [Some(3); 3]);
}

#[test]
fn a_file_that_makes_no_sense_is_refused_before_anything_runs() {
    let dir = Dir::new("lab-bad");
    let file = dir.path().join("bad.toml");
    let good = fs::read_to_string(example("victim.toml")).unwrap();
    let line = 1 + good.lines().position(|l| l.starts_with("rate = ")).unwrap();
    fs::write(&file, good.replacen("rate = ", "speed = ", 1)).unwrap();
    let name = file.to_str().unwrap();
    let said = lab(&["run", "e10", name]);
    assert_eq!((said.status.code(), text(&said.stdout)), (Some(2), String::new()));
    let error = text(&said.stderr);
    assert!(error.contains(&format!("{name}:")) && error.lines().count() == 1, "{error}");
    assert!(
        error.contains("`rate` is missing") || error.contains(&format!(":{line}: ")),
        "{error}"
    );
    let said = lab(&["run", dir.path().join("none.toml").to_str().unwrap()]);
    assert_eq!(said.status.code(), Some(2));
    assert!(text(&said.stderr).contains("cannot read "), "{}", text(&said.stderr));
}

#[test]
fn a_number_that_is_not_as_a_file_expects_is_told_by_the_status() {
    let dir = Dir::new("lab-fails");
    let file = dir.path().join("fails.toml");
    let good = fs::read_to_string(example("victim.toml")).unwrap();
    fs::write(&file, good.replacen("expected = 3.703", "expected = 18.5", 1)).unwrap();
    let said = lab(&["run", file.to_str().unwrap()]);
    assert_eq!(said.status.code(), Some(1), "{}", text(&said.stdout));
    assert!(text(&said.stdout).contains("FAILED: 1 of 3 rows"), "{}", text(&said.stdout));
}

#[test]
fn each_experiment_is_written_to_a_place_of_its_own() {
    let dir = Dir::new("lab-names");
    let good =
        "time = \"20us\"\n[network]\nshape = \"pair\"\n[[flows]]\nfrom = \"h0\"\nto = \"h1\"\n";
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let out = dir.path().join("out");
    let out = out.to_str().unwrap();
    let (a, b) = (file("x/a.toml", good), file("y/a.toml", good));
    let index = file("i.toml", &format!("name = \"index.html\"\n{good}"));
    let dots = file("...toml", good);
    let strange = file("say.toml", &good.replace("\"h1\"", "\"\\u001b[31m\\nh1\""));
    for (args, says) in [
        (&["run", &a, &b, "--out", out][..], "written to a there already"),
        (&["run", "e10", "overhead", "--out", out], "written to overhead there already"),
        (&["run", &a, &index, "--out", out], "written to index.html there already"),
        (&["run", &dots, "--out", out], "no name for a directory"),
        // What stands in a file does not act on the terminal.
        (&["run", &strange], "there is no host \u{fffd}[31m h1"),
    ] {
        let said = lab(args);
        let error = text(&said.stderr);
        assert_eq!(said.status.code(), Some(2), "{args:?}: {error}");
        assert!(error.contains(says) && error.lines().count() == 1, "{args:?}: {error}");
    }
    assert!(!dir.path().join("out").exists());
    // Without files they are in nobody's way, and any name of a file can be linked and repeated.
    assert!(lab(&["run", &a, &b]).status.success());
    let odd = file("x #1%'.toml", good);
    let said = lab(&["run", &a, &odd, "--out", out]);
    assert!(said.status.success(), "{}", text(&said.stderr));
    let page = fs::read_to_string(dir.path().join("out/index.html")).unwrap();
    assert!(
        page.contains("href=\"x%20%231%25%27/page.html\"") && page.contains("href=\"a/page.html\"")
    );
    assert!(dir.path().join("out/x #1%'/page.html").is_file());
    let repeat = text(&said.stdout);
    let command = repeat.rsplit_once("Repeat with: ").unwrap().1.trim_end();
    let command = command.replacen("softroce", env!("CARGO_BIN_EXE_softroce"), 1);
    let again = Command::new("sh").args(["-c", &command]).output().unwrap();
    assert!(again.status.success() && repeat.ends_with(&format!("{}\n", text(&again.stdout))));
}
