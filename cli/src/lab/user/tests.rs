//! Files that are refused, and what a plan comes to.

use super::plan::Plan;
use super::run;
use crate::lab::Progress;
use crate::lab::report::Report;

/// A file that is in order; tests change lines of it.
const GOOD: &str = "\
time = \"200us\"
[network]
shape = \"star\"
hosts = 3
mtu = 1024
[switch]
xoff = \"100KB\"
[[flows]]
from = [\"h1\", \"h2\"]
to = \"h0\"
";

#[track_caller]
fn plan(text: &str) -> Plan {
    Plan::read(text).unwrap_or_else(|bad| panic!("{}", bad.in_file("good", text)))
}

#[track_caller]
fn done(text: &str, seed: u64) -> Report {
    run::run(&plan(text), seed, &Progress::new("test")).unwrap()
}

/// The same with one part replaced.
fn with(old: &str, new: &str) -> String {
    assert!(GOOD.contains(old), "{old}");
    GOOD.replacen(old, new, 1)
}

#[track_caller]
fn refused(text: &str, says: &str) {
    let Err(bad) = Plan::read(text) else { panic!("not refused: {says}\n{text}") };
    let said = bad.in_file("f.toml", text);
    assert!(said.starts_with("f.toml:") && said.contains(says), "{said}\ninstead of {says}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn what_makes_no_sense_about_a_network_is_refused() {
    let switch = |line: &str| with("xoff = \"100KB\"", line);
    for (text, says) in [
        (with("star", "ring"), "f.toml:3: `shape`: there is no \"ring\"; there are: pair, star"),
        (with("hosts = 3", "hosts = 1"), "f.toml:4: `hosts`: 1 is not within 2 to 1024"),
        (with("hosts = 3", "leaves = 3"), "`hosts` is missing"),
        (
            with("hosts = 3", "hosts = 3\nspeed = 1"),
            "f.toml:5: there is no key `speed` in [network]",
        ),
        (with("mtu = 1024", "mtu = 1500"), "f.toml:5: `mtu`: 1500 is no path MTU"),
        (with("mtu = 1024", "mtu = 1024\nrate = \"0G\""), "f.toml:6: `rate`: a rate of 0"),
        (with("mtu = 1024", "mtu = 4096\nlink_mtu = 1500"), "need cables with an MTU of 4192"),
        (with("mtu = 1024", "loss = 1.5"), "1.5 is not a probability"),
        (
            switch("buffer = \"50KB\""),
            "f.toml:6: switch sw: a buffer of 50000 bytes leaves nothing",
        ),
        (switch("buffer = \"1MB\"\nxoff = \"2MB\""), "the threshold is 2000000 bytes, but only"),
        (switch("xoff = 1000"), "pauses end 2172 bytes below the threshold, which is only 1000"),
        (switch("xoff = 1000\nalpha = 1"), "f.toml:8: `alpha`: the threshold is `xoff` bytes or"),
        (switch("alpha = 0"), "alpha of the dynamic threshold is 0"),
        (switch("kmin = \"9KB\"\nkmax = \"5KB\""), "kmin must not be above kmax"),
        (switch("kmin = \"9KB\""), "`kmin` and `kmax` belong together"),
        (switch("pmax = 0.1"), "which `kmin` and `kmax` switch on"),
        (switch("kmin = 1\nkmax = 2\npmax = 2"), "2 is not a probability"),
        (switch("pfc = false\nlossless = [3]"), "and there is no `pfc`"),
        (switch("weights = [1, 2]"), "a weight for each of the eight"),
        (
            switch("weights = [1, 1, 1, 0, 1, 1, 1, 1]"),
            "priority 3 is not strict and has a quantum of 0",
        ),
        (switch("dscp = { 64 = 1 }"), "not a DSCP"),
        (switch("dscp = { 26 = 8 }"), "8 is not within 0 to 7"),
        (switch("trust = \"pcp\""), "host h0 writes none"),
        (switch("watchdog = \"10ns\""), "at least 1 us"),
        (
            switch("xofff = 1"),
            "there is no key `xofff` in [switch]; there are: buffer, headroom, xoff",
        ),
        (format!("{GOOD}[[links]]\na = \"sw\"\nb = \"h1\"\n"), "h1 is a host"),
        (format!("{GOOD}[[links]]\na = \"sw\"\nb = \"tw\"\n"), "there is no switch tw"),
        (format!("{GOOD}[[links]]\na = \"sw\"\nb = \"sw\"\n"), "a cable from a switch to itself"),
        (format!("{GOOD}[[hosts]]\nname = \"x\"\non = \"tw\"\n"), "there is no switch tw"),
        (format!("{GOOD}[[hosts]]\nname = \"sw\"\n"), "sw is something else already"),
        (with("\"star\"\nhosts = 3", "\"fat-tree\"\nports = 3"), "an even number of ports"),
        (with("\"star\"\nhosts = 3", "\"explicit\""), "a network has at least two hosts"),
    ] {
        refused(&text, says);
    }
    // Two switches, and no cable between them.
    let apart = format!(
        "{GOOD}[[switches]]\nname = \"other\"\n[[hosts]]\nname = \"far\"\non = \"other\"\n"
    );
    refused(&apart, "there is no way from host");
    refused(&apart.replace("to = \"h0\"", "to = \"far\""), "there is no way from");
}

#[test]
fn what_makes_no_sense_about_flows_and_faults_is_refused() {
    let flow = |line: &str| with("to = \"h0\"", &format!("to = \"h0\"\n{line}"));
    let fault = |lines: &str| format!("{GOOD}[[faults]]\n{lines}\n");
    for (text, says) in [
        ("time = \"1ms\"\n[network]\nshape = \"pair\"\n".into(), "f.toml:1: there is no flow"),
        (with("\"200us\"", "\"0s\""), "f.toml:1: `time` is not within"),
        (with("\"200us\"", "200"), "f.toml:1: `time` is not a time"),
        (
            with("\"200us\"", "\"1ms\"\nwindow = [\"2ms\", \"1ms\"]"),
            "f.toml:2: `window`: it begins",
        ),
        (with("\"200us\"", "\"1ms"), "f.toml:1: "),
        (with("to = \"h0\"", "to = \"h9\""), "f.toml:10: `to`: there is no host h9"),
        (with("to = \"h0\"", "to = \"h1\""), "h1 to itself"),
        (with("to = \"h0\"", ""), "f.toml:8: [[flows]]: `to` is missing"),
        (with("\"h1\", \"h2\"", "\"h1\", \"h1\""), "flow h1-h0 is there twice"),
        (flow("colour = 1"), "f.toml:11: there is no key `colour` in [[flows]]"),
        (flow("size = 0"), "a flow of nothing"),
        (flow("message = \"2GiB\""), "at most 1 GiB"),
        (flow("priority = 8"), "8 is not within 0 to 7"),
        (flow("priority = 3\ndscp = 26"), "not both"),
        (flow("cc = \"cubic\""), "there is no congestion control `cubic`"),
        (flow("cc = \"dcqcn:mine\""), "there is no preset `mine`"),
        (
            flow("cc = \"dcqcn\"\nparameters = { rpg_speed = 1 }"),
            "f.toml:12: DCQCN has no parameter `rpg_speed`",
        ),
        (flow("cc = \"dcqcn\"\nparameters = { rpg_gd = \"x\" }"), "is no value of `rpg_gd`"),
        (
            flow("cc = \"swift\"\nparameters = { g = 1 }"),
            "Swift has no such parameter; it has: base_target",
        ),
        (
            flow("cc = \"timely\"\nparameters = { g = 1 }"),
            "TIMELY has no such parameter; it has: initial_rate",
        ),
        (flow("parameters = { g = 1 }"), "nothing that has parameters"),
        (flow("cc = \"dcqcn\"\nrate = \"1G\""), "the pace of a flow without"),
        (
            fault("kind = \"fire\""),
            "f.toml:12: `kind`: there is no \"fire\"; there are: link, slow, loss",
        ),
        (fault("kind = \"link\"\nlink = [\"h1\", \"h2\"]"), "no cable connects h1 and h2"),
        (fault("kind = \"link\"\nlink = \"h1\""), "the two ends of a cable"),
        (
            fault("kind = \"link\"\nlink = [\"h1\", \"sw\"]\nat = \"1ms\""),
            "a fault begins within `time`",
        ),
        (fault("kind = \"slow\"\nhost = \"sw\"\nrate = 0"), "there is no host sw"),
        (fault("kind = \"slow\"\nhost = \"h0\"\nrate = 0\nbuffer = 5"), "xon <= xoff < buffer"),
        (fault("kind = \"loss\"\nhost = \"h0\"\nprobability = 2"), "2 is not a probability"),
    ] {
        refused(&text, says);
    }
}

#[test]
fn what_makes_no_sense_about_measures_is_refused() {
    let measure = |lines: &str| format!("{GOOD}[[measure]]\n{lines}\n");
    for (lines, says) in [
        (
            "what = \"luck\"",
            "f.toml:12: `what`: there is no \"luck\" to be measured; there are: rate, sum",
        ),
        ("what = \"rate\"\nflows = \"h3-h0\"", "there is no flow h3-h0"),
        ("what = \"rate\"\nflows = []", "of no flow"),
        ("what = \"rate\"\nexpected = 1", "a `tolerance` belongs to it"),
        ("what = \"rate\"\ntolerance = 1", "`expected` is missing"),
        ("what = \"rate\"\nexpected = 1\nmin = 1", "not both"),
        ("what = \"rate\"\nmin = 2\nmax = 1", "nothing is within"),
        ("what = \"rate\"\nexpected = 1\ntolerance = \"x\"", "not a part in percent"),
        ("what = \"rate\"\nexpected = 1\ntolerance = -1", "below 0"),
        ("what = \"pauses\"\nexpected = 1.5", "not a whole number"),
        ("what = \"pauses\"\nport = [\"sw\", \"h7\"]", "no cable connects sw and h7"),
        ("what = \"completion\"", "flow h1-h0 has no `size` and never ends"),
        ("what = \"queue-peak\"", "`port` is missing"),
        ("what = \"buffer-peak\"\nswitch = \"h0\"", "there is no switch h0"),
    ] {
        refused(&measure(lines), says);
    }
}

#[test]
fn two_senders_share_a_line() {
    let text = with("\"200us\"", "\"2ms\"\nwindow = [\"1ms\", \"2ms\"]");
    let text = format!(
        "{text}jitter = \"1us\"\n[[measure]]\nwhat = \"sum\"\nexpected = 37.034\ntolerance = \"1%\"\n\
         [[measure]]\nwhat = \"rate\"\nflows = \"h1-h0\"\nexpected = 18.517\ntolerance = 0.5\n\
         [[measure]]\nwhat = \"pauses\"\nmin = 10\n[[measure]]\nwhat = \"queue-mean\"\nport = [\"sw\", \"h0\"]\nmax = 250000\n\
         [[measure]]\nwhat = \"pauses\"\nexpected = 0\nlabel = \"no pause\"\nwhy = \"there are some\"\n"
    );
    let report = done(&text, 1);
    let ok: Vec<bool> = report.rows.iter().map(|r| r.ok).collect();
    assert_eq!(ok, [true, true, true, true, false], "{:#?}", report.rows);
    assert_eq!(report.rows[4].why.as_deref(), Some("there are some"));
    assert!(!report.ok() && report.drawing.is_some() && report.plots.len() == 3);
    assert_eq!(report.json().unwrap(), done(&text, 1).json().unwrap());
    assert_ne!(report.json().unwrap(), done(&text, 2).json().unwrap());
}

#[test]
fn flows_that_end_are_timed_and_need_no_rule() {
    let text = with("to = \"h0\"", "to = \"h0\"\nsize = \"64KiB\"");
    let report = done(&text, 1);
    assert!(report.ok(), "{:#?}", report.rows);
    let of = |metric: &str| report.rows.iter().find(|r| r.metric == metric).map(|r| r.value);
    // 128 packets one behind the other, two cables there, the switch, and two cables back for the ACK.
    let last = of("completion of h1-h0").unwrap().max(of("completion of h2-h0").unwrap());
    assert!((last - (128.0 * 0.2212 + 4.25)).abs() < 0.2, "{last}");
    assert_eq!(of("dropped"), Some(0.0));
}

#[test]
fn faults_begin_and_end() {
    let two = "time = \"3ms\"\nwindow = [\"1ms\", \"2ms\"]\n[network]\nshape = \"dumbbell\"\nhosts = 1\n[[flows]]\nfrom = \"l0\"\nto = \"r0\"\n";
    let rate = |fault: &str| {
        let report = done(&format!("{two}[[faults]]\nat = \"1ms\"\nuntil = \"2ms\"\n{fault}\n"), 1);
        let row = report.rows.iter().find(|r| r.metric == "rate of l0-r0").unwrap();
        (row.value, report)
    };
    assert!(rate("kind = \"link\"\nlink = [\"right\", \"left\"]").0 < 0.1);
    assert!(rate("kind = \"link\"\nlink = [\"left\", \"l0\"]").0 < 0.1);
    let (slow, _) = rate("kind = \"slow\"\nhost = \"r0\"\nrate = \"4G\"");
    assert!((slow / 3.703 - 1.0).abs() < 0.05, "{slow}");
    let (lossy, report) = rate("kind = \"loss\"\nhost = \"r0\"\nprobability = 0.01");
    assert!((1.0..36.0).contains(&lossy), "{lossy}");
    assert!(report.rows.iter().any(|r| r.metric == "dropped" && r.value > 0.0));
}

#[test]
fn losses_for_want_of_headroom_are_told_apart() {
    let text = with("mtu = 1024", "mtu = 1024\ndelay = \"20us\"");
    let text = text.replace("200us", "500us");
    let report = done(&text, 1);
    let row = report.rows.last().unwrap();
    assert_eq!((row.metric.as_str(), row.ok), ("dropped, headroom too small", false));
    let why = row.why.as_deref().unwrap();
    assert!(why.contains("switch sw keeps 25000 bytes for a port and needs 202212"), "{why}");
    let enough = text.replace("[switch]", "[switch]\nheadroom = \"210KB\"");
    let report = done(&enough, 1);
    assert!(report.ok() && report.rows.iter().all(|r| !r.metric.contains("headroom")));
    // Who asks for it gets a row of his own rule.
    let asked = format!("{text}[[measure]]\nwhat = \"headroom-drops\"\nmin = 1\n");
    let report = done(&asked, 1);
    assert!(report.ok() && report.rows.len() == 1 && report.notes.len() == 1);
}

#[test]
fn all_shapes_and_changes_to_them() {
    for (shape, from, to) in [
        ("shape = \"pair\"", "h0", "h1"),
        ("shape = \"dumbbell\"\nhosts = 2", "l0", "r1"),
        ("shape = \"parking-lot\"\nswitches = 3", "h0", "h2"),
        ("shape = \"leaf-spine\"\nleaves = 2\nspines = 2\nhosts = 2", "h0", "h3"),
        ("shape = \"fat-tree\"\nports = 4", "h0", "h15"),
        ("shape = \"explicit\"", "a", "b"),
    ] {
        let flow = format!("[[flows]]\nfrom = \"{from}\"\nto = \"{to}\"\nsize = 4096\n");
        let own = if from == "a" {
            "[[switches]]\nname = \"s\"\n[[switches]]\nname = \"t\"\nxoff = \"50KB\"\n[[links]]\na = \"s\"\nb = \"t\"\nrate = \"100G\"\n\
             [[hosts]]\nname = \"a\"\non = \"s\"\n[[hosts]]\nname = \"b\"\non = \"t\"\nrate = \"10G\"\ndelay = \"2us\"\n"
        } else {
            ""
        };
        let report = done(
            &format!("time = \"50us\"\n[network]\n{shape}\n[trunks]\ndelay = \"2us\"\n{own}{flow}"),
            1,
        );
        assert!(report.ok(), "{shape}: {:#?}", report.rows);
        let ended = report.rows.iter().any(|r| r.metric == format!("completion of {from}-{to}"));
        assert!(ended, "{shape}: {:#?}", report.rows);
    }
}

#[test]
fn priorities_weights_and_algorithms() {
    let text = "time = \"2ms\"\n[network]\nshape = \"star\"\nhosts = 3\n[switch]\nweights = [1, 1, 3, 1, 1, 1, 1, 1]\nxoff = \"400KB\"\n\
                [[flows]]\nname = \"heavy\"\nfrom = \"h1\"\nto = \"h0\"\npriority = 2\n[[flows]]\nname = \"light\"\nfrom = \"h2\"\nto = \"h0\"\n\
                [[measure]]\nwhat = \"rate\"\nflows = \"heavy\"\nexpected = 27.775\ntolerance = \"2%\"\n";
    let report = done(text, 1);
    assert!(report.ok(), "{:#?}", report.rows);
    // The same by the tags of the hosts.
    let tagged = text
        .replace("xoff", "trust = \"pcp\"\nxoff")
        .replace("[switch]", "[host]\npcp = {}\n[switch]");
    assert!(done(&tagged, 1).ok());
    for cc in [
        "cc = \"dcqcn:nvidia-fw\"\nparameters = { rpg_ai_rate = 100, dce_tcp_g = 1019 }",
        "cc = \"swift\"\nparameters = { base_target = \"25us\", hops = 2, beta = 0.5 }",
        "cc = \"timely:patched\"\nparameters = { t_low = \"30us\", step = \"20M\", hyper = 5 }",
        "rate = \"5G\"",
    ] {
        let report = done(&with("to = \"h0\"", &format!("to = \"h0\"\n{cc}")), 1);
        let sum = report.rows.iter().find(|r| r.metric == "sum of rates").unwrap().value;
        assert!(sum > 1.0 && (!cc.starts_with("rate") || (sum - 9.26).abs() < 0.2), "{cc}: {sum}");
    }
}
