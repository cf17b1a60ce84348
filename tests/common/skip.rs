//! How a test says that it cannot run here: in one way for all of them.
//!
//! It says so where everybody sees it, also when the test passes, and returns. Where nothing may be skipped,
//! as in CI, it fails: see `docs/testing.md`.

use std::fmt::Display;
use std::io::Write;

/// Set to anything, it makes every skip a failure.
const NO_SKIP: &str = "SOFTROCE_NO_SKIP";

/// Says why the test that calls this is skipped. It returns right after.
///
/// # Panics
/// Where nothing may be skipped.
#[track_caller]
pub(crate) fn skip(reason: impl Display) {
    assert!(std::env::var_os(NO_SKIP).is_none(), "{NO_SKIP} is set, and this is skipped: {reason}");
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    // Not by `println!`, which the test runner keeps to itself unless the test fails.
    let mut out = std::io::stderr();
    writeln!(out, "skipped: {test}: {reason}").expect("standard error is open");
}
