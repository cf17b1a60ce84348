//! The project's own rules, checked over its source tree.
//!
//! Each rule is a function from a file to what is wrong with it, one test that the tree obeys it, and one
//! that it finds a planted violation. What may deviate stands in a table with its reason, and a row that
//! excuses nothing is itself a violation. The rules in words are in CONTRIBUTING.md.

#[path = "tidy/conformance.rs"]
mod conformance;
#[path = "tidy/layers.rs"]
mod layers;
#[path = "tidy/source.rs"]
mod source;
#[path = "tidy/text.rs"]
mod text;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use source::{Source, tree};

/// A file (or a thing in it), and why a rule does not hold for it.
pub(crate) type Exception = (&'static str, &'static str);

/// Something that is not as it should be.
#[derive(Debug)]
pub(crate) struct Finding {
    path: String,
    line: usize,
    what: String,
    /// What an exception would name.
    key: String,
}

impl Finding {
    fn new(source: &Source, line: usize, what: String) -> Self {
        Self { path: source.path.clone(), line, what, key: source.path.clone() }
    }
}

/// Fails with the findings that no exception excuses, and with the exceptions that excuse none.
#[track_caller]
fn report(findings: Vec<Finding>, exceptions: &[Exception]) {
    let (excused, found): (Vec<_>, Vec<_>) =
        findings.into_iter().partition(|f| exceptions.iter().any(|(key, _)| *key == f.key));
    let mut text = String::new();
    for f in &found {
        writeln!(text, "{}:{}: {}", f.path, f.line, f.what).expect("strings take all");
    }
    let used: BTreeSet<&str> = excused.iter().map(|f| f.key.as_str()).collect();
    for (key, reason) in exceptions.iter().filter(|(key, _)| !used.contains(key)) {
        writeln!(text, "{key}: nothing to excuse here: {reason}").expect("strings take all");
    }
    assert!(text.is_empty(), "\n{text}");
}

/// Checks all files against a rule.
#[track_caller]
fn obeyed(rule: impl Fn(&Source) -> Vec<Finding>, exceptions: &[Exception]) {
    report(tree().iter().flat_map(rule).collect(), exceptions);
}

/// Lines on which a rule finds something in `text`, were it the file `path`.
fn found(rule: impl Fn(&Source) -> Vec<Finding>, path: &str, text: &str) -> Vec<usize> {
    rule(&Source::new(path, text)).iter().map(|f| f.line).collect()
}

#[test]
fn layers_use_what_is_below_them() {
    obeyed(layers::layers, &[]);
}

#[test]
fn a_use_of_a_higher_layer_is_found() {
    let found = |path, text| found(layers::layers, path, text);
    assert_eq!(found("src/engine/qp/mod.rs", "use crate::wire;\nuse crate::nic::Nic;"), [2]);
    assert_eq!(found("src/engine/mod.rs", "\n\nuse super::port::Port;"), [3]);
    assert_eq!(found("src/wire/bth.rs", "use crate::{time::Instant, wire::num};"), [1]);
    assert_eq!(found("src/mem/table.rs", "use crate::wire::{num::Psn, opcode};"), [1]);
    assert_eq!(found("src/mem/table.rs", "use crate::wire::{num::Psn};\nuse crate::sync;"), []);
    assert_eq!(found("src/queue/ring.rs", "fn f() { crate::engine::f() }"), [1]);
    assert_eq!(found("src/fabric/link.rs", "use crate::port::Port;"), [1]);
    assert_eq!(found("src/fabric/port.rs", "use crate::port::Port;"), []);
    assert_eq!(found("src/verbs/qp.rs", "use crate::engine::qp::responder::Responder;"), [1]);
    assert_eq!(found("src/verbs/qp.rs", "use crate::engine::qp::attr::QpState;"), []);
    assert_eq!(found("src/capture/reader.rs", "use crate::port::Port;"), [1]);
    assert_eq!(found("src/nic/mod.rs", "use crate::verbs::Context;"), [1]);
    assert_eq!(found("src/newcomer.rs", ""), [1], "no row in the table");
    assert_eq!(found("src/lib.rs", "use crate::anything;"), []);
}

#[test]
fn the_table_of_layers_has_no_circle() {
    // Whoever may use a row's module, itself or through others.
    for (module, _) in layers::LAYERS {
        let mut reached: BTreeSet<&str> = BTreeSet::new();
        let mut next = vec![*module];
        while let Some(at) = next.pop() {
            for may in layers::LAYERS.iter().filter(|(m, _)| *m == at).flat_map(|(_, may)| *may) {
                let top = may.split("::").next().expect("never empty");
                if reached.insert(top) {
                    next.push(top);
                }
            }
        }
        assert!(!reached.contains(module), "{module} may use itself through others");
    }
}

#[test]
fn the_core_has_no_outside_world() {
    obeyed(layers::outside_world, layers::OUTSIDE);
}

#[test]
fn a_use_of_the_outside_world_is_found() {
    let found = |path, text| found(layers::outside_world, path, text);
    assert_eq!(found("src/engine/mod.rs", "use std::net::{IpAddr, UdpSocket};"), [1]);
    assert_eq!(found("src/fabric/mod.rs", "\nfn f() { std::thread::yield_now(); }"), [2]);
    assert_eq!(found("src/fabric/mod.rs", "#[cfg(test)] mod t { use std::thread; }"), []);
    assert_eq!(found("src/port/udp.rs", "use std::os::fd::AsFd; use nix::poll::poll;"), []);
    assert_eq!(found("src/engine/mod.rs", "use nix::poll::poll;"), [1]);
}

#[test]
fn no_order_comes_from_a_hash() {
    obeyed(layers::hash_order, &[]);
}

#[test]
fn a_hash_table_is_found() {
    let found = |path| found(layers::hash_order, path, "// HashMap\nlet a = HashMap::new();");
    assert_eq!(found("src/engine/index.rs"), [2]);
    assert_eq!(found("src/nic/mod.rs"), []);
}

#[test]
fn time_comes_in_as_an_argument() {
    obeyed(layers::clocks, layers::CLOCKS);
}

#[test]
fn a_clock_is_found() {
    let found = |path, text| found(layers::clocks, path, text);
    assert_eq!(found("src/nic/mod.rs", "use std::time::{Duration, Instant};"), [1]);
    assert_eq!(found("src/verbs/cq.rs", "let t = SystemTime::now();"), [1]);
    assert_eq!(found("src/verbs/cq.rs", "std::thread::spawn(f); thread::Builder::new()"), [1, 1]);
    assert_eq!(found("src/verbs/cq.rs", "#[cfg(test)] mod t { fn f() { thread::spawn(g) } }"), []);
    assert_eq!(found("tests/verbs.rs", "thread::sleep(a_while)"), [1]);
    assert_eq!(found("cli/src/raw.rs", "let start = std::time::Instant::now();"), []);
}

#[test]
fn programs_use_the_public_api() {
    let swarm = ("cli/src/sim.rs", "a test of the device as a command; what it runs is no API");
    obeyed(layers::public_only, &[swarm]);
}

#[test]
fn a_use_of_internals_is_found() {
    let text = "use softroce::{wire, internals::engine::Engine};";
    assert_eq!(found(layers::public_only, "examples/a.rs", text), [1]);
    assert_eq!(found(layers::public_only, "tests/a.rs", text), []);
}

#[test]
fn unsafe_code_has_its_places() {
    obeyed(text::unsafe_code, text::UNSAFE);
}

#[test]
fn unsafe_code_is_found() {
    let text = "// unsafe\nlet a = \"unsafe\";\nunsafe { b() }";
    assert_eq!(found(text::unsafe_code, "src/engine/mod.rs", text), [3]);
}

#[test]
fn files_are_short() {
    obeyed(text::file_length, &[]);
}

#[test]
fn a_long_file_is_found() {
    assert_eq!(found(text::file_length, "src/a.rs", &"\n".repeat(800)), []);
    assert_eq!(found(text::file_length, "src/a.rs", &"\n".repeat(801)), [801]);
    for (path, lines, _) in text::LONG_FILES {
        assert_eq!(found(text::file_length, path, &"\n".repeat(lines + 1)), [lines + 1]);
        assert_eq!(found(text::file_length, path, "\n"), [1], "an exception without need");
        assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join(path).is_file(), "{path} is gone");
    }
}

#[test]
fn functions_are_short() {
    obeyed(text::function_length, text::LONG_FUNCTIONS);
}

#[test]
fn a_long_function_is_found() {
    let of = |lines: usize| format!("\nfn f() {{{}}}\n", "\n".repeat(lines - 1));
    assert_eq!(found(text::function_length, "src/a.rs", &of(100)), []);
    assert_eq!(found(text::function_length, "src/a.rs", &of(101)), [2]);
}

#[test]
fn files_say_what_they_are() {
    obeyed(text::module_docs, &[]);
}

#[test]
fn a_file_without_docs_is_found() {
    assert_eq!(found(text::module_docs, "src/a.rs", "\n//! An a.\n"), []);
    assert_eq!(found(text::module_docs, "src/a.rs", "// An a.\n"), [1]);
    assert_eq!(found(text::module_docs, "src/a.rs", ""), [1]);
}

#[test]
fn lints_are_expected_not_allowed() {
    obeyed(text::allows, text::ALLOWS);
}

#[test]
fn an_allowed_lint_is_found() {
    let found = |text| found(text::allows, "src/a.rs", text);
    assert_eq!(found("#[expect(dead_code, reason = \"x\")] fn allow() {} fn b() { allow(1) }"), []);
    assert_eq!(found("#![allow(unsafe_code, reason = \"x\")]"), []);
    assert_eq!(found("\n#[allow(a, clippy::b, reason = \"x\")]"), [2, 2]);
    assert_eq!(found("#![cfg_attr(loom, allow(dead_code))]"), [1]);
}

#[test]
fn nothing_is_unfinished() {
    obeyed(text::unfinished, &[]);
}

#[test]
fn the_unfinished_is_found() {
    // Texts for the rule to find something in: none of this is said of this file.
    let found = |text| found(text::unfinished, "src/a.rs", text);
    assert_eq!(found("a();\ntodo!(\"b\")"), [2]);
    assert_eq!(found("fn a() { unimplemented!() }\n// FIXME: b\nlet c = dbg!(d);"), [2, 1, 3]);
    assert_eq!(found("/* one\n TODO */"), [2]);
    assert_eq!(found("let a = \"TODO\"; // METHODOLOGY\nlet todo = !(true);"), []);
    assert_eq!(found("#[test]\n#[ignore]\nfn a() {}"), [2]);
    assert_eq!(found("#[test]\n#[ignore = \"takes an hour\"]\nfn a() {}"), []);
}

#[test]
fn tests_skip_in_one_way() {
    obeyed(text::own_skips, &[]);
}

#[test]
fn an_own_way_to_skip_is_found() {
    let text = "// \"skipped: \nprintln!(\"skipped: no ::1\");\nvar_os(\"SOFTROCE_NO_SKIP\");";
    assert_eq!(found(text::own_skips, "tests/a.rs", text), [1, 2, 3]);
    assert_eq!(found(text::own_skips, "tests/common/skip.rs", text), []);
}

#[test]
fn the_project_speaks_of_itself() {
    obeyed(text::strange_words, &[]);
}

#[test]
fn strange_words_are_found() {
    let found = |text| found(text::strange_words, "docs/a.md", text);
    let [work, root, farm] = ["work", "root", "farm"].map(|dir| format!("/{dir}/"));
    let spike = ["x-", "spike"].concat();
    let text = format!("see {work}a\nor {root}.cargo\n{farm}\nor {spike}");
    assert_eq!(found(&text), [1, 2, 3, 4]);
    assert_eq!(found("A Helper.\nthis session\nin brief\nfixes issue #3"), [1, 2, 3, 4]);
    assert_eq!(found("briefly, an obsession with issues; framework/"), []);
}

#[test]
fn links_lead_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    obeyed(|source| text::dead_links(source, |path| root.join(path).exists()), &[]);
    report(text::lost_pages(&tree()), &[]);
}

#[test]
fn a_dead_link_and_a_lost_page_are_found() {
    let page = "[a](b.md#c) [d](../e.rs)\n[f](https://g) [h](#i)\n```\n[j](k.md)\n```\n[l](m.md)";
    let found = |exists: fn(&str) -> bool| {
        found(|source| text::dead_links(source, exists), "docs/x.md", page)
    };
    assert_eq!(found(|path| ["docs/b.md", "e.rs"].contains(&path)), [6]);
    assert_eq!(found(|_| false), [1, 1, 6]);

    let pages = [
        Source::new("README.md", "[a](docs/a.md)"),
        Source::new("docs/a.md", ""),
        Source::new("docs/b.md", ""),
    ];
    let lost: Vec<_> = text::lost_pages(&pages).into_iter().map(|f| f.path).collect();
    assert_eq!(lost, ["docs/b.md"]);
}

#[test]
fn the_table_of_places_is_true() {
    let tree = tree();
    let page = tree.iter().find(|s| s.path == "docs/architecture.md").expect("the page is there");
    report(text::lost_places(page, &tree), &[]);
}

#[test]
fn a_lost_place_is_found() {
    let tree = [
        Source::new("src/a/b.rs", "fn one() {}\nstruct Two;"),
        Source::new("cli/src/c/d.rs", "fn three() {}"),
    ];
    let found = |cell: &str| {
        let page = Source::new("docs/x.md", &format!("`nowhere.rs`\n| is it there | {cell} |\n"));
        text::lost_places(&page, &tree).len()
    };
    for cell in
        ["`a/b.rs`: `one`", "`b.rs`: `Two::one`", "`cli/src/c/`: `three`", "`a/`", "`port_...`"]
    {
        assert_eq!(found(cell), 0, "{cell}");
    }
    for cell in ["`a/c.rs`", "`c.rs`", "`b/`", "`four`", "`Two::four`", "`on`"] {
        assert_eq!(found(cell), 1, "{cell}");
    }
}

#[test]
fn known_mistakes_have_their_tests() {
    let tree = tree();
    let page = tree.iter().find(|s| s.path == conformance::PAGE).expect("the page is there");
    report(conformance::rows(page, &tree, conformance::TABLES), &[]);
}

#[test]
fn a_mistake_without_a_test_is_found() {
    let tree = [
        Source::new("src/a/b.rs", "mod tests { #[test] #[x(y)] fn one() {} fn no_test() {} }"),
        Source::new("src/a/mod.rs", "mod tests;"),
        Source::new("src/a/tests/mod.rs", "#[test] fn two() {}"),
        Source::new("tests/c/d.rs", "#[test]\nfn three() {}\n// #[test] fn four() {}"),
    ];
    let found = |rows: &[(&str, &str)], tables: &[usize]| -> Vec<usize> {
        let row = |(number, tests): &(&str, &str)| format!("| {number} | x | y | {tests} |\n");
        let text = format!(
            "| # | a | b | c |\n|--:|---|---|---|\n{}",
            rows.iter().map(row).collect::<String>()
        );
        let page = Source::new(conformance::PAGE, &text);
        conformance::rows(&page, &tree, tables).iter().map(|f| f.line).collect()
    };
    let good = [
        ("1", "`a::b::tests::one`, `a::tests::two`"),
        ("2", "`tests/c/d.rs::three`"),
        ("3", "later: a thing"),
        ("4", "`a::tests::two`; later: more"),
    ];
    assert_eq!(found(&good, &[4]), []);
    assert_eq!(found(&good, &[5]), [1]);
    assert_eq!(found(&good, &[4, 4]), [1]);
    for names in [
        "`a::b::tests::gone`",
        "`a::b::tests::no_test`",
        "`a::b::one`, `a::b::other::one`",
        "`a::tests::two`, `one`",
        "`tests/c/d.rs::four`",
        "`tests/c/gone.rs::three`",
        "`b::tests::one`",
        "",
        "three",
        "later: ",
    ] {
        let [_, rest @ ..] = good;
        let rows = [&[("1", names)][..], &rest].concat();
        assert_eq!(found(&rows, &[4])[..1], [3], "{names}");
    }
    let numbers = |numbers: [&'static str; 3]| numbers.map(|n| (n, "later: x"));
    assert_eq!(found(&numbers(["1", "3", "2"]), &[3]), [4, 5]);
    assert_eq!(found(&numbers(["1", "2", "2"]), &[3]), [5]);
    assert_eq!(found(&[("1", "later: x | y")], &[1]), [3]);
}

#[test]
#[should_panic(expected = "src/gone.rs: nothing to excuse here: it was long")]
fn an_exception_without_need_is_found() {
    report(Vec::new(), &[("src/gone.rs", "it was long")]);
}
