//! How commands talk to the terminal, a file or a pipe.

use std::fmt::Arguments;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

/// Exit status of what could not be begun or written: bad arguments, bad input.
pub(crate) const BAD_INPUT: u8 = 2;

/// One line on the standard error. If that is closed there is nobody to tell.
pub(crate) fn complain(what: Arguments<'_>) {
    let _ = writeln!(io::stderr(), "softroce: {what}");
}

/// Prints, and makes an exit status of how that and everything before it went.
pub(crate) fn print(status: u8, text: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> ExitCode {
    let mut out = BufWriter::new(io::stdout().lock());
    printed(text(&mut out).and_then(|()| out.flush()), status)
}

/// The exit status of something whose output went so. Somebody who stops reading (`| head`) has seen enough.
pub(crate) fn printed(how: io::Result<()>, status: u8) -> ExitCode {
    match how {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            complain(format_args!("cannot write: {e}"));
            ExitCode::from(BAD_INPUT)
        }
        _ => ExitCode::from(status),
    }
}

/// `1 packet`, `3 packets`, `3 queries`.
pub(crate) fn count(n: u64, what: &str) -> String {
    match what.strip_suffix('y') {
        _ if n == 1 => format!("1 {what}"),
        Some(stem) => format!("{n} {stem}ies"),
        None => format!("{n} {what}s"),
    }
}

/// One line for wrong usage: what clap has to say, without the usage that it adds.
pub(crate) fn usage(e: &clap::Error) -> String {
    let text = e.render().to_string();
    let joined = |p: &str| p.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut paragraphs = text.split("\n\n").map(joined);
    let what = paragraphs.next().unwrap_or_default();
    let tip =
        paragraphs.find(|p| p.starts_with("tip: ")).map_or(String::new(), |t| format!("; {t}"));
    format!("{}{tip} (--help says more)", what.trim_start_matches("error: "))
}
