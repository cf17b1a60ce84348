//! What stands behind `soft:frames=`: the cable, and the station at its end.

use std::path::PathBuf;

use super::station::{self, bad};
use crate::port::ether::StationConfig;
use crate::port::frames::Cable;
use crate::verbs::error::Result;

/// Options of a device on a UNIX socket, as far as they have been read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Options {
    path: PathBuf,
    peer: Option<PathBuf>,
    /// `stream=listen` or, if not, `stream=connect`.
    listen: Option<bool>,
    station: station::Options,
}

impl Options {
    /// A device whose socket is at `path`.
    pub(super) fn new(path: &str) -> Self {
        Self { path: path.into(), ..Self::default() }
    }

    /// Takes an option of its own.
    pub(super) fn take(&mut self, option: &str) -> Result<()> {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        let wrong = |what: &str| bad(format!("device option {option:?}: wanted {what}"));
        match name {
            "peer" if value.is_empty() => return Err(wrong("the path of the other end's socket")),
            "peer" => self.peer = Some(value.into()),
            "stream" => {
                self.listen = Some(match value {
                    "listen" => true,
                    "connect" => false,
                    _ => return Err(wrong("stream=connect or stream=listen")),
                });
            }
            _ if self.station.take(name, value)? => {}
            _ => {
                let own = "peer=PATH, stream=connect, stream=listen, ";
                return Err(wrong(&format!("{own}{}", station::WANTED)));
            }
        }
        Ok(())
    }

    /// All together, once there are no more.
    pub(super) fn finish(self) -> Result<(Cable, StationConfig)> {
        let path = self.path;
        let spec = format!("soft:frames={}", path.display());
        if path.as_os_str().is_empty() {
            return Err(bad(format!("{spec}: wanted the path of a socket")));
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let cable = match (self.peer, self.listen) {
            (Some(peer), None) if peer == path => {
                return Err(bad(format!("{spec}: peer= is the same socket")));
            }
            (Some(peer), None) => Cable::Dgram { ours: path, peer },
            (None, Some(true)) => Cable::Listen(path),
            (None, Some(false)) => Cable::Connect(path),
            (None, None) | (Some(_), Some(_)) => {
                return Err(bad(format!(
                    "{spec}: wanted either peer=PATH (frames as datagrams) or stream=connect|listen"
                )));
            }
        };
        Ok((cable, self.station.finish(&spec, name)?))
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::port::ether::Prefix;
    use crate::wire::frame::Mac;

    fn read(path: &str, options: &str) -> Result<(Cable, StationConfig)> {
        let mut all = Options::new(path);
        for option in options.split(',').filter(|o| !o.is_empty()) {
            all.take(option)?;
        }
        all.finish()
    }

    #[test]
    fn a_cable_and_a_station() {
        let (cable, station) = read("/a/x.sock", "peer=/b,ip=10.99.0.1/24").unwrap();
        assert_eq!(cable, Cable::Dgram { ours: "/a/x.sock".into(), peer: "/b".into() });
        assert_eq!(station.mac, Mac([2, 0, 10, 99, 0, 1]));
        assert_eq!((station.mtu, station.vlan, station.priority), (9000, None, None));
        assert_eq!(station.interface, "x.sock");

        let rest = "stream=listen,ip=10.99.0.1/24,ip=fd99::1/64,mac=02:00:00:00:00:07,mtu=1500,gw=10.99.0.254,vlan=5,pcp=3";
        let (cable, station) = read("/a", rest).unwrap();
        assert_eq!(cable, Cable::Listen("/a".into()));
        assert_eq!(station.addresses[1], Prefix { ip: "fd99::1".parse().unwrap(), len: 64 });
        assert_eq!(station.gateways, [IpAddr::from([10, 99, 0, 254])]);
        assert_eq!(station.mac, Mac([2, 0, 0, 0, 0, 7]));
        assert_eq!((station.mtu, station.vlan, station.priority), (1500, Some(5), Some(3)));
        let (cable, _) = read("/a", "stream=connect,ip=fe80::1/64,gw=fe80::2").unwrap();
        assert_eq!(cable, Cable::Connect("/a".into()));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (path, options, word) in [
            ("", "peer=/b,ip=10.0.0.1/24", "path of a socket"),
            ("/a", "ip=10.0.0.1/24", "either peer=PATH"),
            ("/a", "peer=/b,stream=listen,ip=10.0.0.1/24", "either peer=PATH"),
            ("/a", "peer=/a,ip=10.0.0.1/24", "the same socket"),
            ("/a", "peer=,ip=10.0.0.1/24", "\"peer=\""),
            ("/a", "peer=/b", "wanted an address"),
            ("/a", "stream=maybe,ip=10.0.0.1/24", "stream=maybe"),
            ("/a", "peer=/b,ip=10.0.0.1", "ip=10.0.0.1"),
            ("/a", "peer=/b,ip=10.0.0.1/33", "ip=10.0.0.1/33"),
            ("/a", "peer=/b,ip=10.0.0.1/0", "ip=10.0.0.1/0"),
            ("/a", "peer=/b,ip=224.0.0.1/24", "ip=224.0.0.1/24"),
            ("/a", "peer=/b,ip=10.0.0.1/24,ip=10.0.0.1/8", "each address once"),
            ("/a", "peer=/b,ip=10.0.0.1/24,gw=10.0.1.1", "gw=10.0.1.1"),
            ("/a", "peer=/b,ip=10.0.0.1/24,gw=here", "gw=here"),
            ("/a", "peer=/b,ip=10.0.0.1/24,mac=01:00:5e:00:00:01", "one station"),
            ("/a", "peer=/b,ip=10.0.0.1/24,mac=02:00:00:00:00", "mac=02"),
            ("/a", "peer=/b,ip=10.0.0.1/24,mtu=351", "352 to 65500"),
            ("/a", "peer=/b,ip=10.0.0.1/24,vlan=4095", "vlan=4095"),
            ("/a", "peer=/b,ip=10.0.0.1/24,pcp=8", "pcp=8"),
            ("/a", "peer=/b,ip=10.0.0.1/24,gso=on", "gso=on"),
            ("/a", "peer=/b,ip=10.0.0.1/24,colour", "colour"),
        ] {
            let e = read(path, options).unwrap_err();
            assert_eq!(e.errno(), Some(22), "{options}");
            assert!(e.to_string().contains(word), "{word:?} is not in \"{e}\"");
        }
    }
}
