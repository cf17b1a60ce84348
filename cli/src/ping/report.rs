//! What is printed.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;

use super::{Failure, Result};
use crate::output::{self, complain};

/// Prints text now: somebody may be waiting for it.
pub(super) fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    // A reader who went away has seen enough.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    Ok(())
}

/// Between whom.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Ends {
    pub(super) device: String,
    pub(super) local: String,
    pub(super) remote: String,
    pub(super) mtu: usize,
}

/// A ping.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Ping {
    pub(super) seq: u32,
    /// Bytes that came back; `None`: nothing did.
    pub(super) bytes: Option<u32>,
    /// There and back, in microseconds.
    pub(super) time_us: Option<f64>,
}

/// All that came out.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) host: String,
    pub(super) ends: Option<Ends>,
    pub(super) size: u32,
    pub(super) pings: Vec<Ping>,
    /// What went wrong first.
    pub(super) failure: Option<Failure>,
}

/// Times of all that were answered, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Times {
    min: f64,
    avg: f64,
    max: f64,
}

impl Outcome {
    fn answered(&self) -> usize {
        self.pings.iter().filter(|p| p.time_us.is_some()).count()
    }

    fn times(&self) -> Option<Times> {
        let times: Vec<f64> = self.pings.iter().filter_map(|p| p.time_us).collect();
        let count = u32::try_from(times.len()).ok().filter(|&n| n > 0)?;
        Some(Times {
            min: times.iter().copied().fold(f64::INFINITY, f64::min),
            avg: times.iter().sum::<f64>() / f64::from(count),
            max: times.iter().copied().fold(0.0, f64::max),
        })
    }
}

/// Microseconds.
pub(super) fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Where it goes and how it looks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Printer {
    pub(super) json: bool,
}

impl Printer {
    pub(super) fn heading(self, outcome: &Outcome) -> Result<()> {
        let (Some(ends), false) = (&outcome.ends, self.json) else { return Ok(()) };
        let Ends { device, local, remote, mtu } = ends;
        let (host, size) = (&outcome.host, bytes(outcome.size));
        print(&format!("PING {host} ({remote}) from {local} ({device}): {size}, path MTU {mtu}\n"))
    }

    pub(super) fn ping(self, ends: &Ends, ping: &Ping) -> Result<()> {
        if self.json {
            return Ok(());
        }
        let (seq, from) = (ping.seq, &ends.remote);
        match (ping.bytes, ping.time_us) {
            (Some(n), Some(time)) => {
                print(&format!("{} from {from}: seq={seq} time={time:.1} us\n", bytes(n)))
            }
            _ => print(&format!("no answer from {from}: seq={seq}\n")),
        }
    }

    /// Prints the end of it; the exit status.
    pub(super) fn end(self, outcome: &Outcome) -> ExitCode {
        let answered = outcome.answered();
        let status = match &outcome.failure {
            Some(failure) => failure.status,
            None => 0,
        };
        if let Some(failure) = &outcome.failure {
            complain(format_args!("ping: {failure}"));
        }
        if self.json {
            return output::print(status, |out| {
                serde_json::to_writer(&mut *out, &Json::new(outcome))?;
                writeln!(out)
            });
        }
        if outcome.pings.is_empty() {
            return ExitCode::from(status);
        }
        output::print(status, |out| {
            let (host, sent) = (&outcome.host, outcome.pings.len());
            let lost = 100 * (sent - answered) / sent;
            writeln!(out, "\n--- {host} ping statistics ---")?;
            writeln!(out, "{sent} sent, {answered} answered, {lost}% lost")?;
            if let Some(Times { min, avg, max }) = outcome.times() {
                writeln!(out, "rtt min/avg/max = {min:.1}/{avg:.1}/{max:.1} us")?;
            }
            Ok(())
        })
    }
}

fn bytes(n: u32) -> String {
    if n == 1 { "1 byte".to_owned() } else { format!("{n} bytes") }
}

/// The same as one object.
#[derive(Debug, Serialize)]
struct Json<'o> {
    host: &'o str,
    #[serde(flatten)]
    ends: Option<&'o Ends>,
    size: u32,
    sent: usize,
    answered: usize,
    rtt_us: Option<Times>,
    pings: &'o [Ping],
    failure: Option<Failed<'o>>,
}

#[derive(Debug, Serialize)]
struct Failed<'o> {
    step: &'static str,
    what: &'o str,
}

impl<'o> Json<'o> {
    fn new(outcome: &'o Outcome) -> Self {
        Self {
            host: &outcome.host,
            ends: outcome.ends.as_ref(),
            size: outcome.size,
            sent: outcome.pings.len(),
            answered: outcome.answered(),
            rtt_us: outcome.times(),
            pings: &outcome.pings,
            failure: outcome
                .failure
                .as_ref()
                .map(|f| Failed { step: f.step.name(), what: &f.what }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_of_what_was_answered() {
        let ping = |seq, time_us: Option<f64>| Ping { seq, bytes: time_us.map(|_| 1), time_us };
        let pings = vec![ping(1, Some(4.0)), ping(2, None), ping(3, Some(8.0))];
        let outcome = Outcome { pings, ..Outcome::default() };
        assert_eq!(outcome.answered(), 2);
        assert_eq!(outcome.times(), Some(Times { min: 4.0, avg: 6.0, max: 8.0 }));
        assert_eq!(Outcome::default().times(), None);
    }
}
