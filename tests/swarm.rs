//! A part of the swarm, with every `cargo test`: random programs on random networks, against a reference model.
//! `softroce sim` runs as many seeds as anybody likes.

#![cfg(not(loom))]

use std::collections::BTreeMap;

use softroce::internals::swarm::{Options, Outcome, Plan, run};

fn quietly(seed: u64) -> Outcome {
    run(&Plan::new(seed), &Options::default())
}

#[test]
fn many_seeds_and_every_kind_of_recovery() {
    let mut counters = BTreeMap::<String, u64>::new();
    for seed in 1..=300 {
        let outcome = quietly(seed);
        if let Some(what) = outcome.failure {
            panic!("seed {seed}: {what}\nrepeat with: softroce sim --seed {seed}");
        }
        for (name, n) in outcome.counters {
            *counters.entry(name).or_default() += n;
        }
    }
    for name in [
        "rcvd_seq_err",
        "local_ack_timeout_err",
        "implied_nak_seq_err",
        "rcvd_rnr_err",
        "duplicate_send",
        "duplicate_write",
        "duplicate_read",
        "duplicate_atomic",
        "duplicate_atomic_write",
        "duplicate_flush",
        "drop_ghost_response",
        "rx_icrc_encapsulated",
        "req_remote_access_errors",
        "req_remote_invalid_request",
        "retry_exceeded_err",
        "req_cqe_flush_error",
        "resp_cqe_flush_error",
        "drop_remainder",
        "messages_given_up",
        "drop_refused",
        "drop_echo",
        "qkey_viol_cntr",
        "resp_local_length_error",
        "swarm_limit_events",
        "swarm_last_wqe_events",
        "swarm_balanced_hosts",
    ] {
        assert!(counters.get(name).is_some_and(|&n| n > 0), "{name} never happened: {counters:?}");
    }
}

#[test]
fn a_seed_is_a_run() {
    let hashes: Vec<u64> = (1..8).map(|seed| quietly(seed).trace_hash).collect();
    let again: Vec<u64> = (1..8).map(|seed| quietly(seed).trace_hash).collect();
    assert_eq!(hashes, again);
    let mut unique = hashes.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), hashes.len(), "{hashes:x?}");
}

#[test]
fn what_is_recorded_changes_nothing() {
    let dir = std::env::temp_dir().join(format!("softroce-swarm-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let pcap = dir.join("run.pcapng");
    let plan = Plan::new(5);
    let options = Options { trace: true, pcap: Some(pcap.clone()) };
    let (plain, recorded) = (run(&plan, &Options::default()), run(&plan, &options));
    let written = std::fs::metadata(&pcap).unwrap().len();
    std::fs::remove_dir_all(&dir).unwrap();
    assert_eq!(recorded.trace_hash, plain.trace_hash);
    assert!(plain.trace.is_empty() || plan.watched);
    assert!(recorded.trace.len() > 20 && written > 2000, "{} {written}", recorded.trace.len());
}
