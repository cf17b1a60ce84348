//! The virtual machine: starting it, talking to the peer in it, and that it is gone in the end.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Res;

/// How long the guest may take to boot under emulation on a busy machine.
const BOOT: Duration = Duration::from_secs(120);
/// How long an answer may take beyond what the question itself waits for.
const ANSWER: Duration = Duration::from_secs(20);

/// Its addresses.
pub(crate) const IP4: &str = "10.99.0.11/24";
pub(crate) const IP6: &str = "fd99::11/64";

/// An answer of the peer: `name=value`.
#[derive(Debug, Default)]
pub(crate) struct Answer(BTreeMap<String, String>);

impl Answer {
    fn parse(line: &str) -> Self {
        let pairs = line.split_ascii_whitespace().filter_map(|word| word.split_once('='));
        Self(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    /// A value as it was written.
    pub(crate) fn text(&self, name: &str) -> Res<&str> {
        self.0
            .get(name)
            .map(String::as_str)
            .ok_or_else(|| format!("the peer's answer has no {name}"))
    }

    /// A number, decimal or with `0x`.
    pub(crate) fn number(&self, name: &str) -> Res<u64> {
        let text = self.text(name)?;
        let parsed = match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => text.parse(),
        };
        parsed.map_err(|_| format!("the peer's answer has {name}={text}, which is no number"))
    }

    /// A number of 32 bits.
    pub(crate) fn short(&self, name: &str) -> Res<u32> {
        u32::try_from(self.number(name)?).map_err(|e| format!("{name}: {e}"))
    }

    /// All numbers.
    pub(crate) fn numbers(&self) -> BTreeMap<String, u64> {
        self.0.iter().filter_map(|(name, v)| Some((name.clone(), v.parse().ok()?))).collect()
    }
}

/// A running guest. Dropped, it is gone.
#[derive(Debug)]
pub(crate) struct Guest {
    child: Child,
    ctl: BufReader<UnixStream>,
    console: PathBuf,
    /// Version of its kernel.
    pub(crate) version: String,
}

impl Guest {
    /// Boots one. Its network is the socket `guest` in `dir`, which sends to the socket `relay-guest`. With `extra`,
    /// the files in that directory are in its root.
    pub(crate) fn start(cache: &Path, kernel: &str, dir: &Path, extra: Option<&Path>) -> Res<Self> {
        let built = cache.join(kernel);
        let version = fs::read_to_string(built.join("version"))
            .map_err(|e| format!("no guest {kernel} in {}: {e}", cache.display()))?;
        let initrd = dir.join("initrd");
        let mut out = File::create(&initrd).map_err(|e| format!("{}: {e}", initrd.display()))?;
        let mut append = |from: &mut dyn Read| std::io::copy(from, &mut out);
        let base = built.join("base.cpio");
        File::open(&base)
            .and_then(|mut file| append(&mut file))
            .map_err(|e| format!("{}: {e}", base.display()))?;
        if let Some(extra) = extra {
            // A second archive behind the first is laid over it.
            let archive = archive(extra)?;
            append(&mut &archive[..]).map_err(|e| format!("{}: {e}", initrd.display()))?;
        }
        for name in ["ctl", "guest"] {
            let _ = fs::remove_file(dir.join(name));
        }
        let child = launch(&built, dir)?;
        // From here on, dropping it ends it.
        let began = Instant::now();
        let mut starting = Starting(Some(child));
        let stream = loop {
            match UnixStream::connect(dir.join("ctl")) {
                Ok(stream) => break stream,
                Err(_) if began.elapsed() < Duration::from_secs(20) && starting.runs() => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(e) => {
                    let log = fs::read_to_string(dir.join("qemu.log")).unwrap_or_default();
                    return Err(format!("QEMU does not listen: {e}: {}", log.trim()));
                }
            }
        };
        let Some(child) = starting.0.take() else { return Err("QEMU has ended".into()) };
        let mut guest = Self {
            child,
            ctl: BufReader::new(stream),
            console: dir.join("console"),
            version: version.trim().to_owned(),
        };
        guest.ready(BOOT)?;
        Ok(guest)
    }

    /// Waits until a peer says that it is there.
    pub(crate) fn ready(&mut self, limit: Duration) -> Res<()> {
        let line = self.line(limit)?;
        if line == "ready" {
            Ok(())
        } else {
            Err(format!("the peer says {line:?} and not that it is ready"))
        }
    }

    fn line(&mut self, limit: Duration) -> Res<String> {
        let mut line = String::new();
        let timeout = limit.max(Duration::from_millis(1));
        self.ctl.get_ref().set_read_timeout(Some(timeout)).map_err(|e| e.to_string())?;
        match self.ctl.read_line(&mut line) {
            Ok(n) if n > 0 => Ok(line.trim_end().to_owned()),
            Ok(_) => Err(self.lost("the guest has ended")),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Err(self.lost(&format!("the guest has not answered for {} s", limit.as_secs())))
            }
            Err(e) => Err(self.lost(&e.to_string())),
        }
    }

    fn lost(&self, what: &str) -> String {
        let console = fs::read_to_string(&self.console).unwrap_or_default();
        let last: Vec<&str> = console.lines().rev().take(12).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        format!("{what}; its console ends with: {}", last.join(" | "))
    }

    /// Says something that has no answer.
    pub(crate) fn tell(&mut self, line: &str) -> Res<()> {
        let mut stream = self.ctl.get_ref();
        stream.write_all(format!("{line}\n").as_bytes()).map_err(|e| format!("control line: {e}"))
    }

    /// Asks the peer, which waits up to `waits` itself.
    pub(crate) fn ask_within(&mut self, line: &str, waits: Duration) -> Res<Answer> {
        self.tell(line)?;
        let answer = self.line(waits + ANSWER)?;
        match answer.split_once(' ').unwrap_or((&answer, "")) {
            ("ok", rest) => Ok(Answer::parse(rest)),
            ("err", why) => Err(format!("kernel: {why}")),
            _ => Err(format!("the peer answers {answer:?}")),
        }
    }

    /// Asks the peer.
    pub(crate) fn ask(&mut self, line: &str) -> Res<Answer> {
        self.ask_within(line, Duration::ZERO)
    }

    /// Runs a command of the guest's shell: its status and output.
    pub(crate) fn shell(&mut self, command: &str) -> Res<(u64, String)> {
        let answer = self.ask_within(&format!("sh cmd={command}"), Duration::from_secs(60))?;
        let mut out = String::new();
        let mut chars = answer.text("out")?.chars();
        while let Some(c) = chars.next() {
            let code: String =
                if c == '%' { chars.by_ref().take(2).collect() } else { String::new() };
            out.push(u8::from_str_radix(&code, 16).map_or(c, char::from));
        }
        Ok((answer.number("rc")?, out))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts QEMU, with what is built there and its sockets here.
fn launch(built: &Path, dir: &Path) -> Res<Child> {
    let at = |name: &str| dir.join(name).display().to_string();
    let options = "csum=off,gso=off,guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ufo=off,guest_ecn=off,\
                   host_tso4=off,host_tso6=off,host_ufo=off,host_ecn=off,mrg_rxbuf=on,host_mtu=9000";
    let log = File::create(dir.join("qemu.log")).map_err(|e| e.to_string())?;
    Command::new("setpriv")
        // However this program ends, the machine does not outlive it.
        .args(["--pdeathsig", "KILL", "qemu-system-x86_64"])
        .args(["-machine", "q35,accel=tcg,usb=off,smm=off,hpet=off", "-cpu", "max", "-m", "384"])
        .args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"])
        .args(["-kernel", &built.join("vmlinux").display().to_string(), "-initrd", &at("initrd")])
        .args([
            "-append",
            &format!(
                "console=ttyS0 quiet panic=-1 mitigations=off nokaslr random.trust_cpu=on tsc=reliable \
                 interop.mtu=9000 interop.ip4={IP4} interop.ip6={IP6}"
            ),
        ])
        .args(["-serial", &format!("file:{}", at("console"))])
        .args(["-device", "virtio-rng-pci", "-device", "virtio-serial-pci"])
        .args(["-chardev", &format!("socket,id=ctl,server=on,wait=off,path={}", at("ctl"))])
        .args(["-device", "virtserialport,chardev=ctl,name=softroce.ctl"])
        .args([
            "-netdev",
            &format!(
                "dgram,id=n0,local.type=unix,local.path={},remote.type=unix,remote.path={}",
                at("guest"),
                at("relay-guest")
            ),
        ])
        // No offloads: what goes over the link is byte for byte what the driver made.
        .args(["-device", &format!("virtio-net-pci,netdev=n0,romfile=,{options},mac=52:54:00:99:00:0b")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .map_err(|e| format!("setpriv qemu-system-x86_64: {e}"))
}

struct Starting(Option<Child>);

impl Starting {
    fn runs(&mut self) -> bool {
        self.0.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A directory as the kernel unpacks it.
fn archive(dir: &Path) -> Res<Vec<u8>> {
    let out = Command::new("sh")
        .args(["-c", "find . -mindepth 1 -print0 | cpio --null -o -H newc --quiet -R 0:0"])
        .current_dir(dir)
        .output()
        .map_err(|e| format!("cpio: {e}"))?;
    if out.status.success() {
        Ok(out.stdout)
    } else {
        Err(format!("cpio: {}", String::from_utf8_lossy(&out.stderr)))
    }
}
