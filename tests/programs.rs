//! The example programs run, and do what they say. (Cargo builds them before the tests of the package; a
//! single test file is built without them.)

#![cfg(all(feature = "udp", target_os = "linux"))]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

#[path = "common/process.rs"]
mod process;
#[path = "common/skip.rs"]
mod skip;

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::thread;

use softroce::prelude::*;
use softroce::sim::{Link, Sim};

use process::Running;
use skip::skip;

/// The binary of an example, beside the directory of this test's.
fn example(name: &str) -> Option<Command> {
    let test = std::env::current_exe().unwrap();
    let target: PathBuf = test.ancestors().nth(2).unwrap().into();
    let program = target.join("examples").join(name);
    if !program.is_file() {
        skip(format!("{} is not built: cargo build --examples", program.display()));
        return None;
    }
    let mut command = Command::new(program);
    command.env_remove("SOFTROCE_DEVICE").env_remove("SOFTROCE_SEED");
    Some(command)
}

/// Runs an example to its good end; what it printed.
#[track_caller]
fn run(name: &str) -> Option<String> {
    Some(Running::start(&mut example(name)?).finish().ok())
}

#[test]
fn one_sided() {
    let Some(said) = run("one_sided") else { return };
    assert!(said.contains("memory that its owner never touched"), "{said}");
}

#[test]
fn without_privileges_and_without_locked_memory() {
    let Some(program) = example("one_sided") else { return };
    // In a user namespace that maps nobody, a process has no capability over anything outside, and the limit
    // of memory that it may lock holds.
    let confined = |program: &std::ffi::OsStr| {
        let mut command = Command::new("prlimit");
        command.args(["--memlock=0:0", "unshare", "--user"]).arg(program);
        command.env_remove("SOFTROCE_DEVICE");
        command
    };
    let trial = confined("true".as_ref()).output();
    if !trial.as_ref().is_ok_and(|trial| trial.status.success()) {
        return skip(format!("no prlimit(1), unshare(1) or user namespaces here: {trial:?}"));
    }
    let said = Running::start(&mut confined(program.get_program())).finish().ok();
    assert!(said.contains("memory that its owner never touched"), "{said}");
}

#[test]
fn kv_store() {
    let Some(mut command) = example("kv_store") else { return };
    // Ten thousand take a minute, optimised.
    command.args(["--seeds", if cfg!(debug_assertions) { "100" } else { "10000" }]);
    let said = Running::start(&mut command).finish().ok();
    assert!(said.contains("as it comes: seed") && said.contains("and another from byte"), "{said}");
    // What is needed to look at it: how to run it again, the packets, the capture.
    assert!(said.contains("repeat with: SOFTROCE_SEED="), "{said}");
    assert!(said.contains("RC_READ_RESP_MIDDLE") && said.contains("RC_WRITE_LAST"), "{said}");
    let capture = said.lines().find_map(|line| line.strip_prefix("packets: ")).unwrap();
    assert!(PathBuf::from(capture).is_file(), "{capture}");
    assert!(said.contains("seeds, and every entry was put by somebody"), "{said}");
}

#[test]
fn lossy_network() {
    let Some(said) = run("lossy_network") else { return };
    assert!(said.contains("1 MiB") && said.contains("the same again"), "{said}");
    // Another process has the same run.
    assert_eq!(run("lossy_network").unwrap(), said);
    let mut other = example("lossy_network").unwrap();
    other.env("SOFTROCE_SEED", "43");
    assert_ne!(Running::start(&mut other).finish().ok(), said);
}

#[test]
fn custom_cc() {
    let Some(said) = run("custom_cc") else { return };
    for name in ["fixed", "dcqcn", "ours"] {
        assert!(said.lines().any(|line| line.trim_start().starts_with(name)), "{said}");
    }
    assert_eq!(run("custom_cc").unwrap(), said, "the same every time");
}

#[test]
fn state_machine() {
    let Some(said) = run("state_machine") else { return };
    assert_eq!(said, "Rts, and \"it is me\" came back\n");
}

/// One answers for ever; the other asks once.
#[test]
fn datagrams() {
    use std::io::{BufRead, BufReader};
    struct Killed(std::process::Child);
    impl Drop for Killed {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
    let Some(mut answerer) = example("datagrams") else { return };
    let mut answerer = Killed(answerer.stdout(std::process::Stdio::piped()).spawn().unwrap());
    let mut said = String::new();
    BufReader::new(answerer.0.stdout.take().unwrap()).read_line(&mut said).unwrap();
    let endpoint = said.trim().strip_prefix("ask me with: cargo run --example datagrams ").unwrap();
    for _ in 0..2 {
        let mut asker = example("datagrams").unwrap();
        let said = Running::start(asker.arg(endpoint)).finish().ok();
        assert_eq!(said, "the answer: \"who?\"\n");
    }
}

#[test]
fn devices() {
    let Some(said) = run("devices") else { return };
    for part in ["soft:lo", "no real devices", "max_qp_wr", "state: Active", "0 RoceV2 Some(127.0"]
    {
        assert!(said.contains(part), "{part:?} is not in:\n{said}");
    }
}

#[test]
fn devices_chosen_by_argument_and_by_environment() {
    let Some(mut by_argument) = example("devices") else { return };
    let end = Running::start(by_argument.arg("soft:udp=203.0.113.77")).finish();
    assert_eq!(end.code, Some(1));
    assert!(end.stderr.contains("203.0.113.77"), "{}", end.stderr);
    let mut by_environment = example("devices").unwrap();
    by_environment.env("SOFTROCE_DEVICE", "soft:no-such-interface");
    let end = Running::start(&mut by_environment).finish();
    assert_eq!(end.code, Some(1));
    assert!(end.stderr.contains("no-such-interface"), "{}", end.stderr);
}

/// Set inside a network namespace of `tests/netns.sh`.
const NETNS: &str = "SOFTROCE_NETNS";

/// Runs `f` where nobody else uses the TCP port at which the two programs meet: in a network of our own, or here
/// if that cannot be had and the port is free. `test` is the name of the calling test.
fn meeting_at(port: u16, test: &str, f: impl FnOnce()) {
    if std::env::var_os(NETNS).is_some() {
        return f();
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/netns.sh");
    let this = std::env::current_exe().unwrap();
    let mut inner = Command::new(script);
    inner.arg(this).args(["--exact", test, "--nocapture"]);
    let end = Running::start(&mut inner).finish();
    if end.code != Some(77) {
        assert!(end.ok().contains("1 passed"));
    } else if is_listening(port) {
        skip(format!("TCP port {port} is taken, and {}", end.stderr.trim()));
    } else {
        f();
    }
}

/// Whether somebody listens at the port, by what the kernel lists.
fn is_listening(port: u16) -> bool {
    let port = format!(":{port:04X}");
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|list| {
        let list = std::fs::read_to_string(list).unwrap_or_default();
        list.lines().any(|line| {
            let mut fields = line.split_ascii_whitespace().skip(1);
            let local = fields.next().unwrap_or_default();
            local.ends_with(&port) && fields.nth(1) == Some("0A")
        })
    })
}

/// Runs an example as a server, and again as its client. What both said.
fn two_processes(name: &str, port: u16) -> [String; 2] {
    let mut server = Running::start(&mut example(name).unwrap());
    while !is_listening(port) {
        assert!(server.child.try_wait().unwrap().is_none(), "{}", server.finish().stderr);
        thread::yield_now();
    }
    let client = Running::start(example(name).unwrap().arg("127.0.0.1"));
    assert_ne!(client.child.id(), server.child.id());
    [client.finish().ok(), server.finish().ok()]
}

#[test]
fn rc_pingpong() {
    if example("rc_pingpong").is_none() {
        return;
    }
    meeting_at(18515, "rc_pingpong", || {
        let [client, server] = two_processes("rc_pingpong", 18515);
        assert_eq!(client, "1000 round trips with the server\n");
        assert_eq!(server, "1000 round trips with a client\n");
    });
}

#[test]
fn server() {
    if example("server").is_none() {
        return;
    }
    meeting_at(18516, "server", || {
        let [client, server] = two_processes("server", 18516);
        assert_eq!(client, "1000 connections, each with its answer\n");
        assert_eq!(server, "1000 messages answered, all 512 buffers are back in the queue\n");
    });
}

/// The program of `one_sided`, as two tasks in virtual time: the lender looks at a word of its memory from
/// time to time, and calls nothing else.
#[test]
fn one_sided_as_two_tasks() {
    let sim = Sim::new(3);
    let [lender, user] = sim.hosts(Link { loss: 0.02, ..Link::default() });
    let (pd, cq) = (lender.alloc_pd().unwrap(), lender.create_cq(1).unwrap());
    let lent = pd.alloc_mr(1 << 20, Access::REMOTE).unwrap();
    let theirs = lent.remote();
    let qp = pd.create_qp(QpType::Rc, &cq).build().unwrap();

    let (my_pd, my_cq) = (user.alloc_pd().unwrap(), user.create_cq(16).unwrap());
    let mr = my_pd.alloc_mr(8200, Access::LOCAL).unwrap();
    let my_qp = my_pd.create_qp(QpType::Rc, &my_cq).build().unwrap();
    qp.connect(&my_qp.endpoint()).unwrap();
    my_qp.connect(&qp.endpoint()).unwrap();

    let done = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&done);
    sim.spawn(async move {
        mr.fill(0..4096, 0xab);
        my_qp.post_send([
            SendWr::write(1, mr.sge(..4096), theirs).unsignaled(),
            SendWr::read(2, mr.sge(4096..8192), theirs),
            SendWr::fetch_add(3, mr.sge(8192..), theirs.at(8192), 1),
            SendWr::write(4, inline(&1_u64.to_ne_bytes()), theirs.at(theirs.len - 8)).fence(),
        ])?;
        for id in 2..5 {
            assert_eq!(my_cq.next().await?.ok()?.wr_id, id);
        }
        assert_eq!(mr.to_vec(4096..8192), [0xab; 4096]);
        assert_eq!(mr.to_vec(8192..8200), [0; 8]);
        told.store(true, Relaxed);
        Ok(())
    });
    let looker = sim.clone();
    let looks = sim.block_on(async move {
        let mut looks = 0;
        while lent.load((1 << 20) - 8, Acquire) == 0 {
            looker.sleep(Duration::from_micros(1)).await;
            looks += 1;
        }
        assert_eq!(lent.to_vec(0..4096), [0xab; 4096]);
        assert_eq!(lent.load(8192, Acquire), 1);
        looks
    });
    assert!(looks > 4, "{looks}");
    sim.block_on(sim.sleep(Duration::from_secs(10)));
    assert!(done.load(Relaxed), "the user's task came to its end");
}
