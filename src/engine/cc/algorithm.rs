//! Algorithms by name, for devices and tools.

use super::{
    CongestionControl, Dcqcn, DcqcnConfig, ParamError, Swift, SwiftConfig, Timely, TimelyConfig,
};

/// Which algorithm queue pairs get that were given none of their own.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Algorithm {
    /// None: as fast as they can.
    #[default]
    None,
    /// DCQCN.
    Dcqcn(DcqcnConfig),
    /// Swift. Of reliable queue pairs only: others have no ACKs.
    Swift(SwiftConfig),
    /// TIMELY. Of reliable queue pairs only.
    Timely(TimelyConfig),
}

impl Algorithm {
    /// What [`parse`](Self::parse) knows.
    pub const NAMES: &str = "none, dcqcn, dcqcn:PRESET, swift, timely or timely:patched, each but none with :RATE behind it \
                             (25g, 400m)";

    /// By its name: `dcqcn`, `dcqcn:nvidia-fw`, `swift`, `timely`, `timely:patched`, `none`; with the line rate behind it,
    /// as in `dcqcn:paper:25g`, else it is `line_rate` in bits per second.
    ///
    /// ```
    /// use softroce::cc::{Algorithm, DcqcnConfig};
    ///
    /// let dcqcn = Algorithm::parse("dcqcn:nvidia-fw:25g", 100_000_000_000)?;
    /// assert_eq!(dcqcn, Algorithm::Dcqcn(DcqcnConfig::preset("nvidia-fw", 25_000_000_000)?));
    /// assert!(Algorithm::parse("cubic", 1).unwrap_err().to_string().contains("dcqcn:PRESET"));
    /// # Ok::<(), softroce::cc::ParamError>(())
    /// ```
    ///
    /// # Errors
    /// [`ParamError::Algorithm`] and [`ParamError::Preset`], with what would do.
    pub fn parse(text: &str, line_rate: u64) -> Result<Self, ParamError> {
        let unknown = || ParamError::Algorithm { name: text.to_owned() };
        let mut parts: Vec<&str> = text.split(':').collect();
        let given = if parts.len() > 1 { parts.last().and_then(|part| rate(part)) } else { None };
        if given.is_some() {
            parts.pop();
        }
        let line_rate = given.unwrap_or(line_rate);
        let algorithm = match parts[..] {
            ["none"] if given.is_none() => Self::None,
            ["dcqcn"] => Self::Dcqcn(DcqcnConfig::preset("paper", line_rate)?),
            ["dcqcn", preset] => Self::Dcqcn(DcqcnConfig::preset(preset, line_rate)?),
            ["swift"] => Self::Swift(SwiftConfig::new(line_rate)),
            ["timely"] => Self::Timely(TimelyConfig::new(line_rate)),
            ["timely", "patched"] => Self::Timely(TimelyConfig::patched(line_rate)),
            _ => return Err(unknown()),
        };
        // What cannot be made is said here, and not by every queue pair.
        algorithm.make(true)?;
        Ok(algorithm)
    }

    /// One of it, for a queue pair that has ACKs or has none. `None` where it is none, or of no use without ACKs.
    ///
    /// # Errors
    /// [`ParamError::Contradiction`].
    pub fn make(&self, has_acks: bool) -> Result<Option<Box<dyn CongestionControl>>, ParamError> {
        Ok(match self {
            Self::None => None,
            Self::Dcqcn(config) => Some(Box::new(Dcqcn::new(config.clone())?)),
            Self::Swift(_) | Self::Timely(_) if !has_acks => None,
            Self::Swift(config) => Some(Box::new(Swift::new(config.clone())?)),
            Self::Timely(config) => Some(Box::new(Timely::new(config.clone())?)),
        })
    }
}

/// `25g`, `400m`: bits per second.
fn rate(text: &str) -> Option<u64> {
    let (number, unit) = match (text.strip_suffix('g'), text.strip_suffix('m')) {
        (Some(number), _) => (number, 1_000_000_000),
        (_, Some(number)) => (number, 1_000_000),
        _ => return None,
    };
    let digits = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    number.parse::<u64>().ok().filter(|&n| digits && n > 0)?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_rates() {
        const G: u64 = 1_000_000_000;
        let parsed = |text: &str| Algorithm::parse(text, 100 * G).map_err(|e| e.to_string());
        let dcqcn =
            |preset: &str, rate| Ok(Algorithm::Dcqcn(DcqcnConfig::preset(preset, rate).unwrap()));
        assert_eq!(parsed("none"), Ok(Algorithm::None));
        assert_eq!(parsed("dcqcn"), dcqcn("paper", 100 * G));
        assert_eq!(parsed("dcqcn:25g"), dcqcn("paper", 25 * G));
        assert_eq!(parsed("dcqcn:hpcc:400m"), dcqcn("hpcc", 400_000_000));
        assert_eq!(parsed("swift:10g"), Ok(Algorithm::Swift(SwiftConfig::new(10 * G))));
        assert_eq!(parsed("timely"), Ok(Algorithm::Timely(TimelyConfig::new(100 * G))));
        let patched = TimelyConfig::patched(40 * G);
        assert_eq!(parsed("timely:patched:40g"), Ok(Algorithm::Timely(patched)));
        for bad in ["", "cubic", "swift:paper", "none:1g", "25g", "dcqcn:paper:x:1g", "timely:"] {
            assert!(parsed(bad).unwrap_err().contains(Algorithm::NAMES), "{bad}");
        }
        for bad in ["dcqcn:cubic", "dcqcn:25", "dcqcn:0g", "dcqcn:+1g", "dcqcn:99999999999g"] {
            assert!(parsed(bad).unwrap_err().contains("nvidia-fw"), "{bad}");
        }
        assert!(parsed("dcqcn:1m").unwrap_err().contains("rpg_min_rate"), "below the least rate");
    }

    #[test]
    fn without_acks_only_what_needs_none() {
        let has = |text: &str, acks| {
            Algorithm::parse(text, 1_000_000_000).unwrap().make(acks).unwrap().is_some()
        };
        assert_eq!(
            ["none", "dcqcn", "swift", "timely"].map(|a| has(a, true)),
            [false, true, true, true]
        );
        assert_eq!(
            ["none", "dcqcn", "swift", "timely"].map(|a| has(a, false)),
            [false, true, false, false]
        );
    }
}
