//! Files that are refused, and what a plan comes to.

use softroce::sim::MarkAt;

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
        (
            format!("{GOOD}[[hosts]]\nname = \"h1\"\n[[hosts]]\nname = \"h1\"\nrate = \"1G\"\n"),
            "f.toml:14: host h1 is there twice",
        ),
        (
            format!("{GOOD}[[switches]]\nname = \"sw\"\n[[switches]]\nname = \"sw\"\n"),
            "f.toml:14: switch sw is there twice",
        ),
        (
            format!(
                "{GOOD}[[switches]]\nname = \"u\"\n[[links]]\na = \"sw\"\nb = \"u\"\n[[links]]\na = \"u\"\nb = \"sw\"\n"
            ),
            "f.toml:16: cable u - sw is there twice",
        ),
        (
            format!(
                "{}[[switches]]\nname = \"sw\"\nkmin = \"6KB\"\n",
                switch("kmin = 1\nkmax = 5000")
            ),
            "marking begins at 6000 bytes and is complete at 5000",
        ),
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
        (with("[\"h1\", \"h2\"]", "[]"), "f.toml:9: `from`: a flow from nobody"),
        (
            with("[\"h1\", \"h2\"]\nto = \"h0\"", "[]\nto = \"h0\"\nsize = 1"),
            "f.toml:9: `from`: a flow from nobody",
        ),
        (format!("name = \"..\"\n{GOOD}"), "f.toml:1: `name` is not a name"),
        (format!("name = \"a/b\"\n{GOOD}"), "f.toml:1: `name` is not a name"),
        (format!("title = \"\\u001b[2J\"\n{GOOD}"), "f.toml:1: `title`: a text has no control"),
        (
            format!(
                "{}[[switches]]\nname = \"sw\"\ndscp = {{ 34 = 0, 35 = 0, 36 = 0, 37 = 0, 38 = 0, 39 = 0, 32 = 0, 33 = 0 }}\n",
                flow("priority = 4")
            ),
            "no DSCP that all switches on the way put into priority 4",
        ),
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
        (
            fault(
                "kind = \"slow\"\nhost = \"h0\"\nrate = 0\n[[faults]]\nkind = \"slow\"\nhost = \"h0\"\nrate = 1\nat = \"10us\"\nuntil = \"20us\"",
            ),
            "f.toml:15: host h0 is at fault in this way already, from 0ns for good",
        ),
        (
            fault(
                "kind = \"link\"\nlink = [\"h1\", \"sw\"]\nat = \"10us\"\nuntil = \"30us\"\n[[faults]]\nkind = \"link\"\nlink = [\"sw\", \"h1\"]\nuntil = \"11us\"",
            ),
            "the cable sw - h1 is at fault in this way already, from 10µs until 30µs",
        ),
        (
            fault(
                "kind = \"loss\"\nhost = \"h0\"\nprobability = 1\n[[faults]]\nkind = \"loss\"\nhost = \"h0\"\nprobability = 0",
            ),
            "host h0 is at fault in this way already",
        ),
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
        ("what = \"sum\"\nflows = [\"h1-h0\", \"h1-h0\"]", "flow h1-h0 is there twice"),
        (
            "what = \"counter\"\ncounter = \"nosuch\"",
            "f.toml:13: `counter`: a device has no counter \"nosuch\"",
        ),
        ("what = \"rate\"\nlabel = \"\\u009b31m\"", "`label`: a text has no control characters"),
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

#[track_caller]
fn value(report: &Report, metric: &str) -> f64 {
    let row = report.rows.iter().find(|r| r.metric == metric);
    row.unwrap_or_else(|| panic!("no {metric} in {:#?}", report.rows)).value
}

#[test]
fn short_messages_move_what_they_hold() {
    let pair = "time = \"200us\"\n[network]\nshape = \"pair\"\n[[flows]]\nfrom = \"h0\"\nto = \"h1\"\nmessage = 64\n";
    let rate = value(&done(pair, 1), "rate of h0-h1");
    // 64 messages of 64 bytes in a round trip: four times a delay of 1 us, and twice the time of a message of 162 bytes
    // and of an ACK of 86 on the wire.
    let round = 4000.0 + 2.0 * (162.0 + 86.0) * 8.0 / 40.0;
    let expected = 64.0 * 64.0 * 8.0 / round;
    assert!((rate / expected - 1.0).abs() < 0.02, "{rate} instead of {expected}");
}

#[test]
fn hosts_know_the_priorities_of_their_switch() {
    let add = |text: &str| format!("{GOOD}{text}");
    let of = |text: &str, host: &str, dscp: u8| {
        let plan = plan(text);
        let config = plan.network.host(host).unwrap();
        (config.priorities.of(dscp << 2), config.tag.map(|tag| tag.of(dscp << 2)))
    };
    let switch = "[[switches]]\nname = \"sw\"\ndscp = { 26 = 4 }\n";
    assert_eq!(of(&add(""), "h1", 26), (3, None));
    assert_eq!(of(&add(switch), "h1", 26), (4, None));
    // What a host says itself comes on top of that, and tags are by all of it.
    let hosts = format!(
        "{switch}[host]\ndscp = {{ 10 = 5 }}\npcp = {{}}\n[[hosts]]\nname = \"h2\"\ndscp = {{ 26 = 2 }}\n"
    );
    for (host, dscp, priority) in [("h1", 26, 4), ("h1", 10, 5), ("h2", 26, 2), ("h2", 10, 5)] {
        assert_eq!(of(&add(&hosts), host, dscp), (priority, Some(priority)), "{host} {dscp}");
    }
    let tags = format!("{switch}[host]\npcp = {{ 26 = 5 }}\n");
    assert_eq!(of(&add(&tags), "h1", 26), (4, Some(5)));
}

#[test]
fn a_priority_is_one_of_all_switches_on_the_way() {
    let text = "time = \"50us\"\n[network]\nshape = \"dumbbell\"\nhosts = 2\n[[switches]]\nname = \"right\"\ndscp = { 24 = 5, 26 = 4 }\n\
                [[flows]]\nname = \"across\"\nfrom = \"l0\"\nto = \"r0\"\npriority = 3\n\
                [[flows]]\nname = \"left\"\nfrom = \"l0\"\nto = \"l1\"\npriority = 3\n\
                [[flows]]\nname = \"right\"\nfrom = \"r0\"\nto = \"r1\"\npriority = 4\n";
    let dscps: Vec<_> = plan(text).flows.iter().map(|f| f.dscp).collect();
    assert_eq!(dscps, [25, 26, 26]);
    // Where switches go by tags, it is what the sender writes into them.
    let tags = with("xoff", "trust = \"pcp\"\nxoff");
    let tags = tags.replace("[switch]", "[host]\npcp = { 26 = 5 }\n[switch]") + "priority = 5\n";
    assert_eq!(plan(&tags).flows[0].dscp, 26);
}

#[test]
fn what_is_not_said_again_stays() {
    let hosts = format!(
        "{GOOD}[host]\nnic_queue = 5000\n[[hosts]]\nname = \"h1\"\nrate = \"1G\"\n\
        [[hosts]]\nname = \"h2\"\nexact = false\n"
    );
    let plan_of_hosts = plan(&hosts);
    let queue = |host: &str| plan_of_hosts.network.host(host).map(|h| (h.nic_queue, h.exact));
    assert_eq!(
        ["h0", "h1", "h2"].map(queue),
        [Some((5000, true)), Some((5000, true)), Some((65536, false))]
    );
    let socket =
        format!("{GOOD}[host]\nexact = false\nnic_queue = 5000\n[[hosts]]\nname = \"h1\"\n");
    assert_eq!(
        plan(&socket).network.host("h1").map(|h| (h.nic_queue, h.exact)),
        Some((5000, false))
    );

    let marks = "kmin = 1000\nkmax = 2000\npmax = 0.1\nmark_at = \"enqueue\"\nmarked = [3]";
    let marking = |own: &str| {
        let text = with("xoff", &format!("{marks}\nxoff"));
        let plan = plan(&format!("{text}[[switches]]\nname = \"sw\"\n{own}\n"));
        let ecn = plan.network.switches().next().and_then(|(_, config)| config.ecn).unwrap();
        (ecn.kmin, ecn.kmax, ecn.pmax, ecn.at, ecn.priorities)
    };
    let at = MarkAt::Enqueue;
    assert_eq!(marking(""), (1000, 2000, 0.1, at, 8));
    assert_eq!(marking("kmin = 3000\nkmax = 4000"), (3000, 4000, 0.1, at, 8));
    assert_eq!(marking("kmax = 4000"), (1000, 4000, 0.1, at, 8));
    assert_eq!(marking("pmax = 0.5"), (1000, 2000, 0.5, at, 8));
}

#[test]
fn losses_that_may_be_are_not_for_want_of_headroom() {
    let lossy = with("xoff", "lossless = [4]\nxoff").replace("200us", "500us");
    let report = done(&lossy, 1);
    assert!(report.ok() && value(&report, "dropped") > 0.0, "{:#?}", report.rows);
    assert!(report.rows.iter().all(|r| !r.metric.contains("headroom")), "{:#?}", report.rows);
    // Beside such flows those of a lossless priority lose nothing, or what the headroom is too small for.
    let both = lossy.replace("hosts = 3", "hosts = 5")
        + "[[flows]]\nname = \"safe\"\nfrom = [\"h3\", \"h4\"]\nto = \"h0\"\npriority = 4\n";
    let report = done(&both, 1);
    assert!(report.ok() && value(&report, "dropped") > 0.0, "{:#?}", report.rows);
    let far = both.replace("mtu = 1024", "mtu = 1024\ndelay = \"20us\"");
    let report = done(&far, 1);
    let row = report.rows.last().unwrap();
    assert_eq!((row.metric.as_str(), row.ok), ("dropped, headroom too small", false));
    let all = value(&report, "dropped");
    assert!(row.value > 0.0 && row.value < all, "{} of {all}", row.value);
    // All that a lossless network loses above the shares is, to the packet.
    let alone = with("mtu = 1024", "mtu = 1024\ndelay = \"20us\"").replace("200us", "500us");
    let report = done(&alone, 1);
    assert_eq!(value(&report, "dropped, headroom too small"), value(&report, "dropped"));
    // By port.
    let port = |to: &str| {
        let text =
            format!("{alone}[[measure]]\nwhat = \"headroom-drops\"\nport = [\"sw\", \"{to}\"]\n");
        done(&text, 1).rows[0].value
    };
    assert!(port("h0") > 0.0);
    assert_eq!((port("h0"), port("h1")), (value(&report, "dropped"), 0.0));
}

#[test]
fn a_short_window_has_a_mean_queue() {
    let mean = |window: &str| {
        let text = with("\"200us\"", &format!("\"1ms\"\nwindow = {window}"));
        let text = format!("{text}[[measure]]\nwhat = \"queue-mean\"\nport = [\"sw\", \"h0\"]\n");
        let report = done(&text, 1);
        assert!(report.ok(), "{:#?}", report.rows);
        report.rows[0].value
    };
    let (short, tiny, long) = (
        mean("[\"500.2us\", \"500.7us\"]"),
        mean("[\"500ns\", \"501ns\"]"),
        mean("[\"400us\", \"1ms\"]"),
    );
    // Two senders at up to 100 KB each, or somewhat less.
    assert!(
        (50_000.0..250_000.0).contains(&short) && (50_000.0..250_000.0).contains(&long),
        "{short} {long}"
    );
    assert!(tiny.abs() < 1e-9, "nothing has arrived yet: {tiny}");
}

#[test]
fn one_fault_may_end_when_the_next_begins() {
    let text = |first: &str, second: &str| {
        let fault = |lines: &str| format!("[[faults]]\nkind = \"slow\"\nhost = \"h1\"\n{lines}\n");
        let head = "time = \"3ms\"\nwindow = [\"2ms\", \"3ms\"]\n[network]\nshape = \"pair\"\n[[flows]]\nfrom = \"h0\"\nto = \"h1\"\n";
        format!("{head}{}{}", fault(first), fault(second))
    };
    let (one, two) = ("rate = 0\nuntil = \"1ms\"", "rate = \"4G\"\nat = \"1ms\"");
    // Whichever stands first in the file.
    for text in [text(one, two), text(two, one)] {
        let rate = value(&done(&text, 1), "rate of h0-h1");
        assert!((rate / 3.703 - 1.0).abs() < 0.05, "{rate}");
    }
}

#[test]
fn what_has_not_ended_says_so() {
    let text = with("to = \"h0\"", "to = \"h0\"\nsize = \"64MB\"");
    let text = format!(
        "{text}[[measure]]\nwhat = \"completion\"\n[[measure]]\nwhat = \"completion\"\nflows = \"h2-h0\"\nmax = 1e9\nwhy = \"mine\"\n"
    );
    let report = done(&text, 1);
    let said: Vec<_> = report
        .rows
        .iter()
        .map(|r| (r.ok, r.expected.as_str(), r.why.as_deref().unwrap_or_default()))
        .collect();
    let why = "flow h1-h0 (and 1 others) has not come to its end in 200µs";
    assert_eq!(said, [(false, "a number", why), (false, "≤ 1000000000", "mine")]);
}
