//! Who may use whom: the picture of the layers as a table.

use super::source::Source;
use super::{Exception, Finding};

/// What each module may use besides itself. A row holds for everything below its module and adds to the
/// rows above; a new module needs a row.
pub(crate) const LAYERS: &[(&str, &[&str])] = &[
    ("time", &[]),
    ("wire", &[]),
    ("sync", &[]),
    ("seed", &[]),
    ("net", &["time", "wire::num"]),
    ("fork", &[]),
    ("mem", &["wire::num", "fork"]),
    ("queue", &["wire::num", "mem"]),
    ("engine", &["wire", "net", "time", "mem", "queue", "seed"]),
    // The simulated network knows datagrams, and no queue pairs.
    ("fabric", &["net", "time", "wire", "seed"]),
    ("fabric::port", &["port"]),
    ("port", &["net", "time", "wire"]),
    ("capture", &["wire", "net", "time"]),
    // A port around another one.
    ("capture::tap", &["port"]),
    // The only module that knows an engine and a port.
    (
        "nic",
        &["engine", "port", "fabric", "capture", "queue", "mem", "wire", "net", "time", "seed"],
    ),
    ("nic", &["fork"]),
    ("verbs", &["nic", "queue", "mem", "wire::num", "wire::grh", "net", "time"]),
    // Of the engine, what things are called, and handles to queue pairs; its workings are not seen.
    (
        "verbs",
        &[
            "engine::QpFace",
            "engine::QpHandle",
            "engine::QpInit",
            "engine::SrqAttr",
            "engine::cc",
            "engine::cause",
            "engine::errno",
            "engine::event",
            "engine::qp::attr",
            "engine::status",
        ],
    ),
    // The list of devices, and what opening one puts together.
    ("verbs", &["capture::Tap", "port::Port", "port::PortAddress", "port::netdev", "port::udp"]),
    ("verbs::device", &["port::ether", "port::frames", "port::raw", "wire::frame::Mac"]),
    ("verbs::device", &["engine::EngineConfig", "engine::config", "fork"]),
    ("sim", &["verbs", "nic", "fabric", "capture", "seed", "wire", "net", "time"]),
    ("sim", &["engine::EngineConfig", "engine::cause", "engine::config", "engine::watch"]),
    // A user of the simulation like any other, who knows what packets mean.
    ("swarm", &["sim", "verbs", "fabric", "seed", "wire", "net", "time"]),
    // What a NIC does, step by step, for whoever looks.
    ("sim::trace", &["engine::trace"]),
];

/// Modules that all may use: the standard library by another name, and what tests share.
const OPEN: &[&str] = &["sync", "skip"];

/// Modules without any outside world: bytes, times and seeds come in as arguments, and equal arguments give
/// equal results. `std` is theirs but for this.
const SANS_IO: &[&str] = &["time", "net", "wire", "mem", "queue", "seed", "engine", "fabric"];
const OUTSIDE_WORLD: &[&str] = &[
    "std::env",
    "std::fs",
    "std::os",
    "std::process",
    "std::thread",
    "std::net::TcpListener",
    "std::net::TcpStream",
    "std::net::ToSocketAddrs",
    "std::net::UdpSocket",
];

pub(crate) const OUTSIDE: &[Exception] = &[(
    "src/fabric/port.rs",
    "a port says what to sleep on; a simulated one that there is nothing",
)];

/// Everything that runs under a seed: here the order of iteration is part of the result.
const SEEDED: &[&str] =
    &["time", "net", "wire", "mem", "queue", "seed", "engine", "fabric", "capture", "sim", "swarm"];

/// Crates that stand for a part of the outside world, and the modules that speak to it.
const CRATES: &[(&str, &[&str])] = &[
    ("getrandom", &["nic"]),
    ("libc", &["fork", "mem::raw", "port"]),
    ("nix", &["port", "nic"]),
    ("pcap_file", &["capture"]),
    ("pnet_datalink", &["port::raw"]),
    ("smoltcp", &["port::ether", "wire::frame", "wire::grh"]),
    ("socket2", &["port"]),
];

/// Where the library reads the clock or starts threads, and where anybody sleeps.
pub(crate) const CLOCKS: &[Exception] = &[
    ("cli/src/tour/child.rs", "a process that starts or ends cannot be waited for otherwise"),
    ("cli/tests/tour.rs", "so does a file that another process writes"),
    ("src/nic/clock.rs", "the clock of real devices"),
    ("src/nic/progress.rs", "the thread that looks after a device while the program does not"),
    (
        "tests/interop/src/errors.rs",
        "looks again after a while whether the other side has answered",
    ),
    ("tests/interop/src/guest.rs", "looks again after a while whether the machine listens"),
    ("tests/interop/src/kernel.rs", "the kernel counts, and shows it later"),
];

fn is_in(module: &[String], place: &str) -> bool {
    let place: Vec<&str> = place.split("::").collect();
    module.len() >= place.len() && module.iter().zip(&place).all(|(a, b)| a == b)
}

/// The module of a file of the library.
fn module(source: &Source) -> Option<Vec<String>> {
    let module = source.module()?;
    // The root only lists its modules.
    if module.is_empty() { None } else { Some(module.into_iter().map(String::from).collect()) }
}

/// Uses of a module that the table does not allow, and modules that it does not know.
pub(crate) fn layers(source: &Source) -> Vec<Finding> {
    let Some(module) = module(source) else { return Vec::new() };
    let rows: Vec<_> = LAYERS.iter().filter(|(place, _)| is_in(&module, place)).collect();
    if rows.is_empty() {
        let what = format!("module {} has no row in the table of layers", module.join("::"));
        return vec![Finding::new(source, 1, what)];
    }
    let mut findings = Vec::new();
    for named in source.named() {
        let [root, used @ ..] = &named.segments[..] else { continue };
        if root != "crate"
            || used.first() == Some(&module[0])
            || OPEN.iter().any(|m| is_in(used, m))
        {
            continue;
        }
        let allowed = rows.iter().flat_map(|(_, may)| may.iter()).any(|may| is_in(used, may));
        if !allowed {
            let what = format!("{} may not use {}", module.join("::"), used.join("::"));
            findings.push(Finding::new(source, named.line, what));
        }
    }
    findings
}

/// Uses of the outside world by modules that have none.
pub(crate) fn outside_world(source: &Source) -> Vec<Finding> {
    let Some(module) = module(source) else { return Vec::new() };
    let is_one_of = |places: &[&str]| places.iter().any(|place| is_in(&module, place));
    let mut findings = Vec::new();
    for named in source.named().iter().filter(|n| !n.test) {
        let path = named.segments.join("::");
        let outside =
            is_one_of(SANS_IO) && OUTSIDE_WORLD.iter().any(|banned| is_in(&named.segments, banned));
        let foreign =
            CRATES.iter().any(|(name, places)| *name == named.segments[0] && !is_one_of(places));
        if outside || foreign {
            let what = format!("{} may not use {path}", module.join("::"));
            findings.push(Finding::new(source, named.line, what));
        }
    }
    findings
}

/// Hash tables where their order would show. Also in tests, which are repeated from seeds.
pub(crate) fn hash_order(source: &Source) -> Vec<Finding> {
    let Some(module) = module(source) else { return Vec::new() };
    if !SEEDED.iter().any(|place| is_in(&module, place)) {
        return Vec::new();
    }
    let tokens = source.tokens();
    let hashed = tokens.iter().filter(|t| matches!(t.text, "HashMap" | "HashSet" | "RandomState"));
    hashed
        .map(|t| Finding::new(source, t.line, format!("{} has no stable order", t.text)))
        .collect()
}

/// Clocks, sleep and threads in the library and in what users copy from. Tests may start threads; like
/// everybody, they wait for something to happen, never for time to pass.
pub(crate) fn clocks(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for named in source.named() {
        let segments: Vec<&str> = named.segments.iter().map(String::as_str).collect();
        let (what, is_excused) = match segments[..] {
            [.., "thread", "sleep"] => ("sleeps", false),
            [.., "thread", "spawn" | "Builder"] | [.., "thread", "Builder", "new"] => {
                ("starts a thread", named.test)
            }
            ["std", "time", "Instant" | "SystemTime", ..] | ["Instant" | "SystemTime", "now"] => {
                ("has a clock in hand", !source.is_under(&["src/", "examples/"]))
            }
            _ => continue,
        };
        if !is_excused {
            let what = format!("{} {what}", named.segments.join("::"));
            findings.push(Finding::new(source, named.line, what));
        }
    }
    findings
}

/// Programs and examples that reach below the public API.
pub(crate) fn public_only(source: &Source) -> Vec<Finding> {
    if !source.is_under(&["cli/", "capi/", "examples/"]) {
        return Vec::new();
    }
    let below = |segments: &[String]| is_in(segments, "softroce::internals");
    let named = source.named().into_iter().filter(|n| below(&n.segments));
    let what = "what a program needs belongs into the public API";
    named.map(|n| Finding::new(source, n.line, what.into())).collect()
}
