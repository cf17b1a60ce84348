//! Other processes: started, listened to, and never left behind.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

/// Much longer than anything here takes.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A process that ends with its handle, at the latest.
pub(crate) struct Running {
    pub(crate) child: Child,
    name: String,
    /// All it printed, by stream, once it has closed them.
    output: [Receiver<String>; 2],
}

/// What a process left.
pub(crate) struct Finished {
    /// Exit status; `None` if a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Running {
    /// Starts it.
    #[track_caller]
    pub(crate) fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let name = format!("{command:?}");
        let mut child = command.spawn().unwrap_or_else(|e| panic!("{name}: {e}"));
        let stdout = collect(child.stdout.take());
        let stderr = collect(child.stderr.take());
        Self { child, name, output: [stdout, stderr] }
    }

    /// Waits for its end.
    #[track_caller]
    pub(crate) fn finish(mut self) -> Finished {
        let [stdout, stderr] = [0, 1].map(|stream: usize| {
            self.output[stream].recv_timeout(LONG).unwrap_or_else(|_| {
                panic!("{} does not end", self.name);
            })
        });
        // It has closed its streams, so it is gone or about to be.
        let status = self.child.wait().unwrap_or_else(|e| panic!("{}: {e}", self.name));
        Finished { code: status.code(), stdout, stderr }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Fails where it has ended, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Finished {
    /// It went well; what it printed.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        let Self { code, stdout, stderr } = self;
        assert_eq!(code, Some(0), "stdout:\n{stdout}\nstderr:\n{stderr}");
        stdout
    }
}

/// Reads a stream to its end, in the background: a pipe that nobody reads fills up.
fn collect(stream: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (tx, rx) = channel();
    #[expect(clippy::disallowed_methods, reason = "it reads what a process prints")]
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut stream) = stream {
            // What can be read of it is what there is.
            let _ = stream.read_to_end(&mut bytes);
        }
        let _ = tx.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    rx
}
