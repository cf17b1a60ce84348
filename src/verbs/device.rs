//! Devices: which there are, and opening one.

use super::context::Context;
use super::error::{Error, Result};

/// What makes a device work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backend {
    /// This crate's engine.
    Soft,
    /// Real hardware, through the system's libibverbs.
    Ibverbs,
}

/// A device that can be opened.
#[doc(alias = "ibv_device")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Device {
    /// `soft:eth0`.
    pub name: String,
    /// What makes it work.
    pub backend: Backend,
    /// Its identifier; 0 where it is only known once the device is open.
    pub guid: u64,
    /// Speed of its interface, where the system says.
    pub speed_mbps: Option<u64>,
}

impl Device {
    /// Opens it.
    ///
    /// # Errors
    /// As [`Context::open`].
    #[doc(alias = "ibv_open_device")]
    pub fn open(&self) -> Result<Context> {
        Context::open(&self.name)
    }
}

/// The environment variable that names the device of [`open`].
pub const DEVICE_VARIABLE: &str = "SOFTROCE_DEVICE";

/// Every device of every backend: `soft:lo`, and one for each interface that is up and has an address. A
/// backend that cannot be used has none; [`backend_status`] says why.
///
/// # Errors
/// The system does not list its interfaces.
#[doc(alias("ibv_get_device_list", "ibv_free_device_list"))]
pub fn devices() -> Result<Vec<Device>> {
    soft::devices()
}

/// Whether a backend can be used.
///
/// # Errors
/// [`Error::NoDevice`] with the reason.
pub fn backend_status(b: Backend) -> Result<()> {
    match b {
        Backend::Soft => soft::status(),
        Backend::Ibverbs => Err(Error::NoDevice(
            "the pass-through to real devices is not part of this version: use soft:lo or soft:IFACE".into(),
        )),
    }
}

/// Opens the device that `SOFTROCE_DEVICE` names; unset, `soft:lo`. (`auto`: the first real one that is up,
/// else `soft:lo`.)
///
/// # Errors
/// As [`Context::open`].
pub fn open() -> Result<Context> {
    match std::env::var(DEVICE_VARIABLE) {
        Ok(spec) if spec == "auto" || spec.is_empty() => Context::open("soft:lo"),
        Ok(spec) => Context::open(&spec),
        Err(_) => Context::open("soft:lo"),
    }
}

pub(super) fn open_spec(spec: &str) -> Result<Context> {
    match spec.split_once(':') {
        Some(("soft", name)) => soft::open(name),
        Some(("ibverbs", _)) => {
            backend_status(Backend::Ibverbs)?;
            Err(no_device(spec))
        }
        // A bare name; an IPv6 address has colons too, but needs its prefix.
        _ => soft::open(spec),
    }
}

fn no_device(spec: &str) -> Error {
    let mut known: Vec<String> =
        devices().map(|list| list.into_iter().map(|d| d.name).collect()).unwrap_or_default();
    known.extend(["soft:udp=ADDRESS".into(), "soft:frames=SOCKET,...".into()]);
    if cfg!(feature = "raw") {
        known.push("soft:raw=INTERFACE,...".into());
    }
    Error::NoDevice(format!("there is no device {spec:?}; there is {}", known.join(", ")))
}

#[cfg(all(feature = "udp", target_os = "linux"))]
mod frames;
#[cfg(all(feature = "raw", target_os = "linux"))]
mod raw;
#[cfg(all(feature = "udp", target_os = "linux"))]
mod station;

#[cfg(all(feature = "udp", target_os = "linux"))]
mod soft {
    use std::collections::BTreeMap;
    use std::net::IpAddr;
    use std::path::{Path, PathBuf};
    use std::sync::{Arc, Weak};

    use parking_lot::Mutex;

    #[cfg(feature = "raw")]
    use super::raw;
    use super::{Backend, Context, Device, Error, Result, frames};
    use crate::capture::Tap;
    use crate::engine::EngineConfig;
    use crate::engine::cause::Cause;
    use crate::engine::cc::Algorithm;
    use crate::engine::config;
    use crate::engine::errno::{EBUSY, EIO};
    use crate::engine::qp::attr::Recovery;
    use crate::fork::Origin;
    use crate::nic::clock::{MonotonicClock, WallClock};
    use crate::nic::device::guid;
    use crate::nic::progress::{Mode, ProgressConfig};
    use crate::nic::{Nic, OpenNic};
    use crate::port::Port;
    use crate::port::frames::FramesPort;
    use crate::port::netdev::{self, NetDevKind};
    #[cfg(feature = "raw")]
    use crate::port::raw::{RawError, RawPort};
    use crate::port::udp::{GsoPolicy, OpenError, UdpConfig, UdpPort};
    use crate::time::Duration;
    use crate::verbs::error::Named;
    use crate::wire::num::Pkey;

    /// How long a child of a process with devices waits for its turn to open one.
    const IN_CHILD: Duration = Duration::from_secs(10);

    /// Devices that are open in this process, by the name that opens them.
    static OPEN: Mutex<BTreeMap<String, Weak<OpenNic>>> = Mutex::new(BTreeMap::new());

    pub(super) fn status() -> Result<()> {
        Ok(())
    }

    pub(super) fn devices() -> Result<Vec<Device>> {
        let mut list = vec![Device {
            name: "soft:lo".into(),
            backend: Backend::Soft,
            guid: 0,
            speed_mbps: None,
        }];
        for dev in netdev::interfaces()? {
            if dev.up && dev.kind != NetDevKind::Loopback && !dev.addresses.is_empty() {
                list.push(Device {
                    name: format!("soft:{}", dev.name),
                    backend: Backend::Soft,
                    guid: guid(&dev.addresses),
                    speed_mbps: None,
                });
            }
        }
        Ok(list)
    }

    /// What stands behind a name.
    #[derive(Clone, Debug, PartialEq)]
    struct Options {
        gso: GsoPolicy,
        /// Receive buffer to ask for, in bytes.
        rcvbuf: Option<usize>,
        pcap: Option<PathBuf>,
        /// Partitions beside the default one.
        pkeys: Vec<Pkey>,
        /// FLUSHes are sealed as rdma_rxe does it.
        rxe_flush: bool,
        /// Congestion control of queue pairs that have none of their own.
        cc: Algorithm,
        /// How queue pairs recover from losses where their peers do so, too.
        recovery: Recovery,
        /// The device has frames, and no socket of the kernel's network.
        ether: Option<Ether>,
    }

    /// What carries the frames of a device.
    #[derive(Clone, Debug, PartialEq, Eq)]
    enum Ether {
        /// A UNIX socket.
        Frames(frames::Options),
        /// An interface.
        #[cfg(feature = "raw")]
        Raw(raw::Options),
    }

    impl Ether {
        /// That of a device with this name, if it has frames.
        fn new(base: &str) -> Result<Option<Self>> {
            if let Some(path) = base.strip_prefix("frames=") {
                return Ok(Some(Self::Frames(frames::Options::new(path))));
            }
            base.strip_prefix("raw=").map(Self::raw).transpose()
        }

        #[cfg(feature = "raw")]
        fn raw(interface: &str) -> Result<Self> {
            Ok(Self::Raw(raw::Options::new(interface)))
        }

        #[cfg(not(feature = "raw"))]
        fn raw(_interface: &str) -> Result<Self> {
            let what = "soft:raw= needs the feature \"raw\" of softroce, which this program was built without (the command: cargo install --path cli --features raw)";
            Err(Error::verb("ibv_open_device", Cause::Unsupported { what }))
        }

        fn take(&mut self, option: &str) -> Result<()> {
            match self {
                Self::Frames(options) => options.take(option),
                #[cfg(feature = "raw")]
                Self::Raw(options) => options.take(option),
            }
        }
    }

    impl Options {
        fn apply(&self, config: UdpConfig) -> UdpConfig {
            UdpConfig { gso: self.gso, rcvbuf: self.rcvbuf.unwrap_or(config.rcvbuf), ..config }
        }
    }

    /// A name and its options: `eth0,gso=on,pcap=a.pcapng`.
    fn parse(spec: &str) -> Result<(String, Options)> {
        let mut parts = split(spec).into_iter();
        let base = parts.next().unwrap_or_default();
        let mut options = Options {
            gso: GsoPolicy::Auto,
            rcvbuf: None,
            pcap: None,
            pkeys: Vec::new(),
            rxe_flush: false,
            cc: Algorithm::None,
            recovery: Recovery::GoBackN,
            ether: Ether::new(&base)?,
        };
        for option in parts {
            let common = ["pcap=", "pkeys=", "quirk=", "cc=", "retry="]
                .iter()
                .any(|name| option.starts_with(name));
            if let Some(ether) = options.ether.as_mut().filter(|_| !common) {
                ether.take(&option)?;
                continue;
            }
            let wrong = |wanted: &str| {
                let what = format!("device option {option:?}: wanted {wanted}");
                Err(Error::verb("ibv_open_device", Cause::Invalid { what: what.into() }))
            };
            let bytes = option.strip_prefix("rcvbuf=").and_then(|n| n.parse::<usize>().ok());
            match (option.as_str(), option.strip_prefix("pcap=")) {
                ("gso=on", _) => options.gso = GsoPolicy::On,
                ("gso=off", _) => options.gso = GsoPolicy::Off,
                ("gso=auto", _) => options.gso = GsoPolicy::Auto,
                ("quirk=rxe-flush", _) => options.rxe_flush = true,
                ("retry=selective", _) => options.recovery = Recovery::Selective,
                ("retry=go-back-n", _) => options.recovery = Recovery::GoBackN,
                ("retry=go-back-0", _) => options.recovery = Recovery::GoBack0,
                _ if option.starts_with("pkeys=") => options.pkeys = partitions(&option)?,
                _ if option.starts_with("cc=") => options.cc = algorithm(&option, &base)?,
                (_, Some(file)) if !file.is_empty() => options.pcap = Some(file.into()),
                // The kernel takes no more than an int.
                _ if bytes.is_some_and(|n| n > 0 && i32::try_from(n).is_ok()) => {
                    options.rcvbuf = bytes
                }
                _ if option.starts_with("gso=") => return wrong("gso=on, gso=off or gso=auto"),
                _ if option.starts_with("rcvbuf=") => {
                    return wrong("a number of bytes from 1 to 2147483647");
                }
                _ if option.starts_with("retry=") => {
                    return wrong("retry=selective, retry=go-back-n or retry=go-back-0");
                }
                _ if option.starts_with("quirk=") => return wrong("quirk=rxe-flush"),
                _ if option.starts_with("pcap=") => return wrong("pcap=FILE"),
                _ => {
                    return wrong(
                        "gso=on|off|auto, rcvbuf=BYTES, pkeys=KEYS, cc=ALGORITHM, retry=selective|go-back-n|go-back-0, quirk=rxe-flush or pcap=FILE",
                    );
                }
            }
        }
        Ok((base, options))
    }

    /// `cc=dcqcn:paper:25g`.
    fn algorithm(option: &str, base: &str) -> Result<Algorithm> {
        let name = option.strip_prefix("cc=").unwrap_or_default();
        Algorithm::parse(name, speed(base).unwrap_or(SPEED)).map_err(|e| {
            let what = format!("device option {option:?}: {e}");
            Error::verb("ibv_open_device", Cause::Invalid { what: what.into() })
        })
    }

    /// Speed that an interface is taken to have of which none is known, in bits per second.
    const SPEED: u64 = 100_000_000_000;

    /// Speed of the interface that a device stands for, where the system says.
    fn speed(base: &str) -> Option<u64> {
        let name = base.strip_prefix("raw=").unwrap_or(base);
        // Not a way to any other file.
        if name.is_empty() || name.starts_with('.') || name.contains(['/', '=']) {
            return None;
        }
        let text = std::fs::read_to_string(format!("/sys/class/net/{name}/speed")).ok()?;
        // -1 where there is none.
        text.trim().parse::<u64>().ok()?.checked_mul(1_000_000).filter(|&speed| speed > 0)
    }

    /// `pkeys=8001:7ffe`.
    fn partitions(option: &str) -> Result<Vec<Pkey>> {
        let list = option.strip_prefix("pkeys=").unwrap_or_default();
        let key = |text: &str| {
            let digits = text.strip_prefix("0x").unwrap_or(text);
            u16::from_str_radix(digits, 16).ok()
        };
        let keys: Option<Vec<u16>> = list.split(':').map(key).collect();
        keys.and_then(|keys| config::partitions(&keys)).ok_or_else(|| {
            let what = format!(
                "device option {option:?}: wanted up to {} partition keys in hex between colons, none of them 0 or 8000",
                config::MAX_PKEYS - 1
            );
            Error::verb("ibv_open_device", Cause::Invalid { what: what.into() })
        })
    }

    /// The parts between commas. Behind a backslash a comma is an ordinary character, and so is a backslash.
    fn split(spec: &str) -> Vec<String> {
        let mut parts = vec![String::new()];
        let mut chars = spec.chars();
        while let Some(c) = chars.next() {
            match (c, parts.last_mut()) {
                (',', _) => parts.push(String::new()),
                ('\\', Some(part)) => part.extend(chars.next()),
                (c, Some(part)) => part.push(c),
                (_, None) => {}
            }
        }
        parts
    }

    /// The port, with a capture around it.
    fn tap(port: Box<dyn Port>, file: &Path) -> Result<Box<dyn Port>> {
        let clock = WallClock::new();
        match Tap::create(port, file, move || clock.now()) {
            Ok(tap) => Ok(Box::new(tap)),
            Err(e) => {
                let busy = e.kind() == std::io::ErrorKind::ResourceBusy;
                let errno = e.raw_os_error().unwrap_or(if busy { EBUSY } else { EIO });
                let why = format!("capturing to {}: {e}", file.display()).into();
                Err(Error::verb("ibv_open_device", Cause::Io { errno, why }))
            }
        }
    }

    pub(super) fn open(name: &str) -> Result<Context> {
        let verb = "ibv_open_device";
        let origin = Origin::here();
        // In a child a thread that is not there may have the lock.
        let patience = if origin.is_child() { IN_CHILD } else { Duration::MAX };
        let Some(mut table) = OPEN.try_lock_for(patience) else {
            let why = "this process is a child of one that was opening a device meanwhile: fork before that".into();
            return Err(Error::verb(verb, Cause::Io { errno: EIO, why }));
        };
        // Devices of a parent stay the parent's.
        let here = |nic: &Arc<OpenNic>| nic.nic().is_here();
        if let Some(nic) = table.get(name).and_then(Weak::upgrade).filter(here) {
            return Ok(Context::from_nic(device(name, nic.nic()), nic));
        }
        let (base, mut options) = parse(name)?;
        let is_station = options.ether.is_some();
        let port = match options.ether.take() {
            Some(Ether::Frames(frames)) => open_frames(frames)?,
            #[cfg(feature = "raw")]
            Some(Ether::Raw(raw)) => open_raw(raw)?,
            None => open_udp(name, &base, &options)?,
        };
        let port = match &options.pcap {
            Some(file) => tap(port, file)?,
            None => port,
        };
        let mode = match std::env::var("SOFTROCE_PROGRESS").as_deref() {
            Ok("manual") => Mode::Manual,
            _ => Mode::Hybrid,
        };
        let configure = |config: &mut EngineConfig| {
            config.pkeys.extend(options.pkeys);
            config.rxe_flush = options.rxe_flush;
            config.cc = options.cc;
            config.recovery = options.recovery;
        };
        let nic = Nic::real(port, ProgressConfig::from_env(mode), configure).of(verb)?;
        if is_station {
            // Nobody else answers for its address, also while there are no queue pairs.
            nic.follow_port().of(verb)?;
        }
        let nic = OpenNic::new(nic);
        table.retain(|_, weak| weak.strong_count() > 0);
        table.insert(name.to_owned(), Arc::downgrade(&nic));
        Ok(Context::from_nic(device(name, nic.nic()), nic))
    }

    /// A port on the socket of a cable.
    fn open_frames(options: frames::Options) -> Result<Box<dyn Port>> {
        let (cable, station) = options.finish()?;
        let clock = MonotonicClock::new();
        match FramesPort::open(cable, station, move || clock.now()) {
            Ok(port) => Ok(Box::new(port)),
            Err(e) => {
                let (errno, why) = (e.errno(), e.to_string().into());
                Err(Error::verb("ibv_open_device", Cause::Address { errno, why }))
            }
        }
    }

    /// A port on an interface.
    #[cfg(feature = "raw")]
    fn open_raw(options: raw::Options) -> Result<Box<dyn Port>> {
        let config = options.finish()?;
        let clock = MonotonicClock::new();
        let e = match RawPort::open(config, move || clock.now()) {
            Ok(port) => return Ok(Box::new(port)),
            Err(e) => e,
        };
        let (errno, why) = (e.errno(), e.to_string().into());
        let cause = match e {
            RawError::NoInterface { .. } => Cause::NoDevice { why },
            _ => Cause::Address { errno, why },
        };
        Err(Error::verb("ibv_open_device", cause))
    }

    /// A port on sockets of the kernel's network.
    fn open_udp(name: &str, base: &str, options: &Options) -> Result<Box<dyn Port>> {
        let port = if base == "lo" {
            UdpPort::open_loopback(options.apply(UdpConfig::new(Vec::new())))
        } else if let Some(address) = base.strip_prefix("udp=") {
            let (ip, scope) = parse_address(address)?;
            UdpConfig::for_address(ip, scope).and_then(|c| UdpPort::open(options.apply(c)))
        } else {
            UdpConfig::for_interface(base).and_then(|c| UdpPort::open(options.apply(c)))
        };
        let port = port.map_err(|e| match e {
            OpenError::NoInterface { .. } => super::no_device(name),
            e => refused("ibv_open_device", &e),
        })?;
        Ok(Box::new(port))
    }

    fn device(name: &str, nic: &Nic) -> Device {
        Device {
            name: format!("soft:{name}"),
            backend: Backend::Soft,
            guid: nic.guid(),
            speed_mbps: None,
        }
    }

    /// `10.0.0.1`, `::1`, `fe80::1%eth0`.
    fn parse_address(text: &str) -> Result<(IpAddr, u32)> {
        let bad =
            |what: String| Error::verb("ibv_open_device", Cause::Invalid { what: what.into() });
        let (ip, scope) = text.split_once('%').unwrap_or((text, ""));
        let ip =
            ip.parse().map_err(|_| bad(format!("soft:udp={text}: {ip:?} is no IP address")))?;
        if scope.is_empty() {
            return Ok((ip, 0));
        }
        if let Ok(index) = scope.parse() {
            return Ok((ip, index));
        }
        match netdev::interface(scope)? {
            Some(dev) => Ok((ip, dev.index)),
            None => Err(bad(format!("soft:udp={text}: there is no interface {scope:?}"))),
        }
    }

    fn refused(verb: &'static str, e: &OpenError) -> Error {
        let why = e.to_string().into();
        let errno = e.errno();
        Error::verb(
            verb,
            match e {
                OpenError::NoAddress { .. } => Cause::NoDevice { why },
                _ => Cause::Address { errno, why },
            },
        )
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn options_stand_behind_commas() {
            let parsed = |spec: &str| {
                parse(spec).map(|(name, o)| (name, o.gso, o.pcap)).map_err(|e| e.to_string())
            };
            let auto = GsoPolicy::Auto;
            assert_eq!(parsed("lo"), Ok(("lo".into(), auto, None)));
            assert_eq!(parsed("eth0,gso=off"), Ok(("eth0".into(), GsoPolicy::Off, None)));
            let file = Some("/tmp/a.pcapng".into());
            assert_eq!(
                parsed("udp=::1,pcap=/tmp/a.pcapng,gso=on"),
                Ok(("udp=::1".into(), GsoPolicy::On, file))
            );
            let file = Some("a, b\\c=d".into());
            assert_eq!(parsed("lo,pcap=a\\, b\\\\c=d"), Ok(("lo".into(), auto, file)));
            let keys = |spec: &str| parse(spec).map(|(_, o)| o.pkeys).map_err(|e| e.to_string());
            assert_eq!(keys("lo,pkeys=8001:0x7ffe"), Ok(vec![Pkey(0x8001), Pkey(0x7ffe)]));
            let flush =
                |spec: &str| parse(spec).map(|(_, o)| o.rxe_flush).map_err(|e| e.to_string());
            assert_eq!((flush("lo"), flush("lo,quirk=rxe-flush")), (Ok(false), Ok(true)));
            let cable = "frames=/a,peer=/b,ip=10.0.0.1/8,quirk=rxe-flush";
            assert_eq!(flush(cable), Ok(true));
            let cc = |spec: &str| parse(spec).map(|(_, o)| o.cc).map_err(|e| e.to_string());
            let known =
                |name: &str, rate: u64| Algorithm::parse(name, rate * 1_000_000_000).unwrap();
            assert_eq!(cc("lo"), Ok(Algorithm::None));
            assert_eq!(cc("lo,cc=none"), Ok(Algorithm::None));
            assert_eq!(cc("udp=::1,cc=swift"), Ok(known("swift", 100)));
            assert_eq!(cc("lo,cc=dcqcn:nvidia-fw:25g"), Ok(known("dcqcn:nvidia-fw", 25)));
            assert_eq!(cc("frames=/a,cc=timely:10g"), Ok(known("timely", 10)));
            let retry =
                |spec: &str| parse(spec).map(|(_, o)| o.recovery).map_err(|e| e.to_string());
            assert_eq!(retry("lo"), Ok(Recovery::GoBackN));
            assert_eq!(retry("lo,retry=go-back-n"), Ok(Recovery::GoBackN));
            assert_eq!(retry("lo,retry=selective"), Ok(Recovery::Selective));
            assert_eq!(retry("lo,retry=go-back-0"), Ok(Recovery::GoBack0));
            let e = cc("lo,cc=cubic").unwrap_err();
            assert!(e.contains("cubic") && e.contains("none, dcqcn, dcqcn:PRESET, swift"), "{e}");
            assert!(cc("lo,cc=dcqcn:new").unwrap_err().contains("paper, strawman"));
            let many = format!("lo,pkeys=1{}", ":1".repeat(127));
            for bad in [
                "lo,pkeys=",
                "lo,pkeys=0",
                "lo,pkeys=8000",
                "lo,pkeys=8001:",
                "lo,pkeys=10001",
                &many,
            ] {
                assert!(
                    keys(bad).unwrap_err().contains("up to 127 partition keys in hex"),
                    "{bad}"
                );
            }
            let all = "gso=on|off|auto, rcvbuf=BYTES, pkeys=KEYS, cc=ALGORITHM, retry=selective|go-back-n|go-back-0";
            for (bad, wanted) in [
                ("lo,", all),
                ("lo,pcap", all),
                ("lo,pcap=a,b", all),
                ("lo,pcap=", "wanted pcap=FILE"),
                ("lo,gso=maybe", "wanted gso=on, gso=off or gso=auto"),
                ("lo,rcvbuf=abc", "wanted a number of bytes from 1 to 2147483647"),
                ("lo,rcvbuf=2147483648", "wanted a number of bytes"),
                ("lo,quirk=x", "wanted quirk=rxe-flush"),
                ("lo,retry=foo", "wanted retry=selective, retry=go-back-n or retry=go-back-0"),
            ] {
                let e = parsed(bad).unwrap_err();
                assert!(e.contains(wanted), "{bad}: {e}");
            }
        }
    }
}

#[cfg(not(all(feature = "udp", target_os = "linux")))]
mod soft {
    use super::{Context, Device, Error, Result};

    const WHY: &str = "soft devices on real networks need Linux and the feature \"udp\"; softroce::sim works \
                       everywhere";

    pub(super) fn status() -> Result<()> {
        Err(Error::NoDevice(WHY.into()))
    }

    pub(super) fn devices() -> Result<Vec<Device>> {
        Ok(Vec::new())
    }

    pub(super) fn open(_name: &str) -> Result<Context> {
        status()?;
        Err(super::no_device(_name))
    }
}
