//! softroce

#[cfg(target_os = "linux")]
#[cfg_attr(not(test), expect(dead_code, reason = "the baselines of `perf ratios`, which follows"))]
mod raw;

fn main() {}
