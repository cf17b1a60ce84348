//! What stands behind `soft:raw=`: the interface, and the station on it.

use super::station::{self, bad};
use crate::port::raw::RawConfig;
use crate::verbs::error::Result;

/// Options of a device on an interface, as far as they have been read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Options {
    interface: String,
    station: station::Options,
}

impl Options {
    /// A device on this interface.
    pub(super) fn new(interface: &str) -> Self {
        Self { interface: interface.to_owned(), ..Self::default() }
    }

    /// Takes an option of its own.
    pub(super) fn take(&mut self, option: &str) -> Result<()> {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        if self.station.take(name, value)? {
            return Ok(());
        }
        Err(bad(format!("device option {option:?}: wanted {}", station::WANTED)))
    }

    /// All together, once there are no more.
    pub(super) fn finish(self) -> Result<RawConfig> {
        let spec = format!("soft:raw={}", self.interface);
        if self.interface.is_empty() {
            return Err(bad(format!("{spec}: wanted the name of an interface, such as eth0")));
        }
        let mtu = self.station.mtu;
        let station = self.station.finish(&spec, self.interface.clone())?;
        Ok(RawConfig { interface: self.interface, mtu, station })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::frame::Mac;

    fn read(interface: &str, options: &str) -> Result<RawConfig> {
        let mut all = Options::new(interface);
        for option in options.split(',').filter(|o| !o.is_empty()) {
            all.take(option)?;
        }
        all.finish()
    }

    #[test]
    fn an_interface_and_a_station() {
        let config = read("eth0", "ip=10.0.0.5/24").unwrap();
        assert_eq!((config.interface.as_str(), config.mtu), ("eth0", None));
        assert_eq!(config.station.mac, Mac([2, 0, 10, 0, 0, 5]));
        assert_eq!(config.station.interface, "eth0");
        let options =
            "ip=10.0.0.5/24,ip=fd99::5/64,vlan=5,pcp=3,mtu=1500,gw=10.0.0.1,mac=02:00:00:00:00:07";
        let config = read("eth0", options).unwrap();
        assert_eq!(config.mtu, Some(1500));
        let station = config.station;
        assert_eq!((station.vlan, station.priority), (Some(5), Some(3)));
        assert_eq!((station.addresses.len(), station.gateways.len()), (2, 1));
        assert_eq!(station.mac, Mac([2, 0, 0, 0, 0, 7]));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (interface, options, word) in [
            ("", "ip=10.0.0.5/24", "name of an interface"),
            ("eth0", "", "wanted an address"),
            ("eth0", "ip=10.0.0.5", "ip=10.0.0.5"),
            ("eth0", "ip=10.0.0.5/24,gw=10.1.0.1", "gw=10.1.0.1"),
            ("eth0", "ip=10.0.0.5/24,peer=/a", "peer=/a"),
            ("eth0", "ip=10.0.0.5/24,colour", "colour"),
        ] {
            let e = read(interface, options).unwrap_err();
            assert_eq!(e.errno(), Some(22), "{options}");
            assert!(e.to_string().contains(word), "{word:?} is not in \"{e}\"");
        }
    }
}
