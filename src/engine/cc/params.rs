//! Parameters of [`Dcqcn`](super::Dcqcn): presets, and every one of them by its customary name.

use std::fmt;
use std::time::Duration;

/// What moves alpha.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlphaClock {
    /// Each CNP raises it; each `dce_tcp_rtt` without one lowers it.
    Cnp,
    /// It is looked at once per `dce_tcp_rtt`: lowered, and raised as well if a CNP came in that time.
    Periodic,
}

/// When a cut sets the target rate to the rate before the cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clamp {
    /// At each cut.
    Always,
    /// If the timer has raised the rate since the last cut.
    AfterTimeInc,
    /// Only at the first cut.
    Never,
}

/// How the counts of timer and byte counter choose the kind of increase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stages {
    /// Recovery below the threshold, hyper increase when both have reached it, additive increase else.
    Qcn,
    /// By the timer alone: recovery below the threshold, one additive increase, hyper increase from there on.
    Timer,
}

/// Parameters of the reaction point. Rates are bits per second on the wire.
///
/// A preset is a starting point; single parameters are changed as fields, or by name with [`set`](Self::set).
///
/// ```
/// use softroce::cc::DcqcnConfig;
///
/// let mut config = DcqcnConfig::preset("paper", 40_000_000_000)?;
/// config.set("rpg_ai_rate", "80")?;
/// assert_eq!(config.ai_rate, 80_000_000);
/// assert!(config.to_string().contains("rpg_time_reset 55"));
/// assert!(config.set("rpg_speed", "1").unwrap_err().to_string().contains("rpg_ai_rate"));
/// # Ok::<(), softroce::cc::ParamError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DcqcnConfig {
    /// The preset that it began as.
    pub preset: &'static str,
    /// Where a flow starts, and what it never exceeds (`rpg_max_rate`).
    pub line_rate: u64,
    /// What no cut goes below (`rpg_min_rate`).
    pub min_rate: u64,
    /// Time between two increases by the timer (`rpg_time_reset`).
    pub time_reset: Duration,
    /// Bytes on the wire between two increases by the byte counter; 0: there is none (`rpg_byte_reset`).
    pub byte_reset: u64,
    /// Increases that only recover towards the target (`rpg_threshold`).
    pub threshold: u32,
    /// Step of additive increase (`rpg_ai_rate`).
    pub ai_rate: u64,
    /// Step of hyper increase (`rpg_hai_rate`).
    pub hai_rate: u64,
    /// Weight of the newest observation in alpha, in 1/1024. (`dce_tcp_g` is what it leaves of 1024.)
    pub g: u16,
    /// The time of [`alpha_clock`](Self::alpha_clock) (`dce_tcp_rtt`).
    pub alpha_time: Duration,
    /// Alpha at the first CNP, in 1/1024 (`initial_alpha_value`).
    pub initial_alpha: u16,
    /// What moves alpha.
    pub alpha_clock: AlphaClock,
    /// Cuts come at most once per this time, at its end; zero: each CNP cuts at once
    /// (`rate_reduce_monitor_period`).
    pub cut_period: Duration,
    /// A cut takes alpha * 2^(10 - gd) of the rate (`rpg_gd`): with 11 half of alpha, with 10 all of it.
    pub gd: u8,
    /// What a cut leaves at least, in percent of the rate (`rpg_min_dec_fac`).
    pub min_dec_fac: u8,
    /// Rate that the first CNP sets instead of a cut; 0: it cuts like any other (`rate_to_set_on_first_cnp`).
    pub first_cnp_rate: u64,
    /// When the target follows the rate down (`clamp_tgt_rate`, `clamp_tgt_rate_after_time_inc`).
    pub clamp: Clamp,
    /// How the kind of increase is chosen.
    pub stages: Stages,
    /// An increase is counted before its kind is chosen: one step of recovery less.
    pub count_first: bool,
    /// A CNP raises alpha before the cut, not after it.
    pub raise_first: bool,
    /// In hyper increase timer and byte counter are twice as fast.
    pub fast_hyper: bool,
    /// A target more than ten times the rate is divided by eight at the first increase.
    pub reduce_far_target: bool,
}

/// Why a parameter was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParamError {
    /// There is no such algorithm.
    #[error("there is no congestion control `{name}`; there is {}", super::Algorithm::NAMES)]
    Algorithm {
        /// What was asked for.
        name: String,
    },
    /// There is no such preset.
    #[error("there is no preset `{name}` of DCQCN; there are: {}", DcqcnConfig::PRESETS.join(", "))]
    Preset {
        /// What was asked for.
        name: String,
    },
    /// There is no such parameter.
    #[error("DCQCN has no parameter `{name}`; it has: {}", names())]
    Name {
        /// What was asked for.
        name: String,
    },
    /// The value is not one that the parameter can have.
    #[error("`{value}` is no value of `{name}`, which is {what}")]
    Value {
        /// The parameter.
        name: &'static str,
        /// What was given.
        value: String,
        /// What it takes.
        what: &'static str,
    },
    /// Two parameters contradict each other.
    #[error("{0}")]
    Contradiction(&'static str),
}

const GIGABIT: u64 = 1_000_000_000;
const MEGABIT: u64 = 1_000_000;

impl DcqcnConfig {
    /// The names that [`preset`](Self::preset) knows.
    pub const PRESETS: &[&str] = &["paper", "strawman", "ns3-rdma", "hpcc", "nvidia-fw"];

    /// Where all presets begin: what the authors deployed (SIGCOMM 2015).
    const fn paper(line_rate: u64) -> Self {
        Self {
            preset: "paper",
            line_rate,
            min_rate: 40 * MEGABIT,
            time_reset: Duration::from_micros(55),
            byte_reset: 10_000_000,
            threshold: 5,
            ai_rate: 40 * MEGABIT,
            hai_rate: 200 * MEGABIT,
            g: 4,
            alpha_time: Duration::from_micros(55),
            initial_alpha: 1024,
            alpha_clock: AlphaClock::Cnp,
            cut_period: Duration::ZERO,
            gd: 11,
            min_dec_fac: 0,
            first_cnp_rate: 0,
            clamp: Clamp::Always,
            stages: Stages::Qcn,
            count_first: false,
            raise_first: false,
            fast_hyper: false,
            reduce_far_target: false,
        }
    }

    /// The parameters of a source, for links of `line_rate` bits per second:
    ///
    /// - `paper`: what the authors of DCQCN deployed, with the rules of their paper;
    /// - `strawman`: the constants of QCN and DCTCP, with which two flows do not find the same rate;
    /// - `ns3-rdma`: the simulator of the same authors, which raises alpha before the cut and counts first;
    /// - `hpcc`: the simulator published with HPCC, in its mode that follows a NIC; steps grow with the line;
    /// - `nvidia-fw`: defaults of ConnectX firmware.
    ///
    /// # Errors
    /// [`ParamError::Preset`].
    pub fn preset(name: &str, line_rate: u64) -> Result<Self, ParamError> {
        let paper = Self::paper(line_rate);
        // Steps that were given for 25 Gbit/s.
        let scaled = |megabits: u64| megabits * MEGABIT * line_rate.div_ceil(GIGABIT) / 25;
        Ok(match name {
            "paper" => paper,
            "strawman" => Self {
                preset: "strawman",
                time_reset: Duration::from_micros(1500),
                byte_reset: 150_000,
                g: 64,
                ..paper
            },
            "ns3-rdma" => Self {
                preset: "ns3-rdma",
                min_rate: 100 * MEGABIT,
                time_reset: Duration::from_micros(60),
                byte_reset: 300_000_000,
                initial_alpha: 512,
                count_first: true,
                raise_first: true,
                fast_hyper: true,
                reduce_far_target: true,
                ..paper
            },
            "hpcc" => Self {
                preset: "hpcc",
                min_rate: (1000 * MEGABIT).min(line_rate),
                time_reset: Duration::from_micros(300),
                byte_reset: 0,
                threshold: 1,
                ai_rate: scaled(5),
                hai_rate: scaled(50),
                alpha_time: Duration::from_micros(1),
                alpha_clock: AlphaClock::Periodic,
                cut_period: Duration::from_micros(4),
                clamp: Clamp::AfterTimeInc,
                stages: Stages::Timer,
                ..paper
            },
            "nvidia-fw" => Self {
                preset: "nvidia-fw",
                min_rate: MEGABIT,
                time_reset: Duration::from_micros(300),
                byte_reset: 32_767,
                threshold: 1,
                ai_rate: 5 * MEGABIT,
                hai_rate: 50 * MEGABIT,
                g: 5,
                alpha_time: Duration::from_micros(1),
                initial_alpha: 1023,
                alpha_clock: AlphaClock::Periodic,
                cut_period: Duration::from_micros(4),
                min_dec_fac: 50,
                clamp: Clamp::AfterTimeInc,
                ..paper
            },
            _ => return Err(ParamError::Preset { name: name.to_owned() }),
        })
    }

    /// Sets a parameter by its name: as firmware tools have it (`rpg_ai_rate`, `dce_tcp_g`), or as the mlx5
    /// driver's debugfs has it (`rp_ai_rate`, `rp_dce_tcp_g`), in the customary unit: rates in Mbit/s, times
    /// in microseconds.
    ///
    /// # Errors
    /// [`ParamError::Name`] and [`ParamError::Value`]; nothing has changed then. Whether the whole makes sense
    /// is asked by [`Dcqcn::new`](super::Dcqcn::new).
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), ParamError> {
        let param = PARAMS
            .iter()
            .find(|p| p.name == name || p.aliases.contains(&name))
            .ok_or_else(|| ParamError::Name { name: name.to_owned() })?;
        let refused =
            || ParamError::Value { name: param.name, value: value.to_owned(), what: param.what };
        let mut changed = self.clone();
        (param.set)(&mut changed, value.trim()).ok_or_else(refused)?;
        *self = changed;
        Ok(())
    }

    /// The value of a parameter, as [`set`](Self::set) takes it. `None`: there is no such parameter.
    pub fn get(&self, name: &str) -> Option<String> {
        let param = PARAMS.iter().find(|p| p.name == name || p.aliases.contains(&name))?;
        Some((param.get)(self))
    }

    /// The names that [`set`](Self::set) knows, and what each takes.
    pub fn parameters() -> impl Iterator<Item = (&'static str, &'static str)> {
        PARAMS.iter().map(|p| (p.name, p.what))
    }

    /// Whether the parameters go together.
    pub(super) fn check(&self) -> Result<(), ParamError> {
        let wrong = if self.line_rate == 0 {
            "a line rate (rpg_max_rate) of 0 lets nothing through"
        } else if self.min_rate == 0 {
            "a least rate (rpg_min_rate) of 0 stops a flow for ever"
        } else if self.min_rate > self.line_rate {
            "the least rate (rpg_min_rate) is above the line rate (rpg_max_rate)"
        } else if self.time_reset.is_zero() {
            "the timer (rpg_time_reset) has no length"
        } else if self.alpha_time.is_zero() {
            "the time of alpha (dce_tcp_rtt) has no length"
        } else if self.g > 1024 || self.initial_alpha > 1024 {
            "alpha and its weight (dce_tcp_g, initial_alpha_value) are parts of 1024"
        } else if self.min_dec_fac > 100 {
            "a cut leaves at most all of the rate (rpg_min_dec_fac above 100)"
        } else if !(1..=20).contains(&self.gd) {
            "rpg_gd is a shift of 1 to 20 bits"
        } else {
            return Ok(());
        };
        Err(ParamError::Contradiction(wrong))
    }
}

/// One per line, by name.
impl fmt::Display for DcqcnConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        PARAMS.iter().try_for_each(|p| writeln!(f, "{} {}", p.name, (p.get)(self)))
    }
}

struct Param {
    name: &'static str,
    aliases: &'static [&'static str],
    what: &'static str,
    get: fn(&DcqcnConfig) -> String,
    set: fn(&mut DcqcnConfig, &str) -> Option<()>,
}

fn names() -> String {
    PARAMS.iter().map(|p| p.name).collect::<Vec<_>>().join(", ")
}

/// Bits per second from Mbit/s.
fn rate(text: &str) -> Option<u64> {
    text.parse::<u64>().ok()?.checked_mul(MEGABIT)
}

fn micros(text: &str) -> Option<Duration> {
    // An hour is longer than anything that reacts.
    text.parse().ok().filter(|&us| us <= 3_600_000_000).map(Duration::from_micros)
}

fn in_micros(time: Duration) -> String {
    time.as_micros().to_string()
}

fn in_megabits(rate: u64) -> String {
    (rate / MEGABIT).to_string()
}

fn switch(text: &str) -> Option<bool> {
    match text {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

const RATE: &str = "a rate in Mbit/s";
const TIME: &str = "a time in microseconds";
const SWITCH: &str = "0 or 1";

const PARAMS: &[Param] = &[
    Param {
        name: "rpg_max_rate",
        aliases: &["rp_max_rate"],
        what: RATE,
        get: |c| in_megabits(c.line_rate),
        set: |c, v| rate(v).map(|v| c.line_rate = v),
    },
    Param {
        name: "rpg_min_rate",
        aliases: &["rp_min_rate"],
        what: RATE,
        get: |c| in_megabits(c.min_rate),
        set: |c, v| rate(v).map(|v| c.min_rate = v),
    },
    Param {
        name: "rpg_time_reset",
        aliases: &["rp_time_reset"],
        what: TIME,
        get: |c| in_micros(c.time_reset),
        set: |c, v| micros(v).map(|v| c.time_reset = v),
    },
    Param {
        name: "rpg_byte_reset",
        aliases: &["rp_byte_reset"],
        what: "a number of bytes, or 0 for no byte counter",
        get: |c| c.byte_reset.to_string(),
        set: |c, v| v.parse().ok().map(|v| c.byte_reset = v),
    },
    Param {
        name: "rpg_threshold",
        aliases: &["rp_threshold"],
        what: "a number of increases",
        get: |c| c.threshold.to_string(),
        set: |c, v| v.parse().ok().map(|v| c.threshold = v),
    },
    Param {
        name: "rpg_ai_rate",
        aliases: &["rp_ai_rate"],
        what: RATE,
        get: |c| in_megabits(c.ai_rate),
        set: |c, v| rate(v).map(|v| c.ai_rate = v),
    },
    Param {
        name: "rpg_hai_rate",
        aliases: &["rp_hai_rate"],
        what: RATE,
        get: |c| in_megabits(c.hai_rate),
        set: |c, v| rate(v).map(|v| c.hai_rate = v),
    },
    Param {
        name: "rpg_gd",
        aliases: &["rp_gd"],
        what: "a shift of 1 to 20: 11 cuts by half of alpha, 10 by all of it",
        get: |c| c.gd.to_string(),
        set: |c, v| v.parse().ok().filter(|gd| (1..=20).contains(gd)).map(|v| c.gd = v),
    },
    Param {
        name: "rpg_min_dec_fac",
        aliases: &["rp_min_dec_fac", "min_dec_fac"],
        what: "a percentage",
        get: |c| c.min_dec_fac.to_string(),
        set: |c, v| v.parse().ok().filter(|&v| v <= 100).map(|v| c.min_dec_fac = v),
    },
    Param {
        name: "dce_tcp_g",
        aliases: &["rp_dce_tcp_g"],
        what: "what is left of alpha each time, of 1024",
        get: |c| (1024 - c.g.min(1024)).to_string(),
        set: |c, v| v.parse().ok().filter(|&v| v <= 1024).map(|v: u16| c.g = 1024 - v),
    },
    Param {
        name: "dce_tcp_rtt",
        aliases: &["rp_dce_tcp_rtt"],
        what: TIME,
        get: |c| in_micros(c.alpha_time),
        set: |c, v| micros(v).map(|v| c.alpha_time = v),
    },
    Param {
        name: "initial_alpha_value",
        aliases: &["rp_initial_alpha_value"],
        what: "a part of 1024",
        get: |c| c.initial_alpha.to_string(),
        set: |c, v| v.parse().ok().filter(|&v| v <= 1024).map(|v| c.initial_alpha = v),
    },
    Param {
        name: "rate_reduce_monitor_period",
        aliases: &["rp_rate_reduce_monitor_period"],
        what: "a time in microseconds, or 0 for a cut at each CNP",
        get: |c| in_micros(c.cut_period),
        set: |c, v| micros(v).map(|v| c.cut_period = v),
    },
    Param {
        name: "rate_to_set_on_first_cnp",
        aliases: &["rp_rate_to_set_on_first_cnp"],
        what: "a rate in Mbit/s, or 0 for a cut",
        get: |c| in_megabits(c.first_cnp_rate),
        set: |c, v| rate(v).map(|v| c.first_cnp_rate = v),
    },
    Param {
        name: "clamp_tgt_rate",
        aliases: &["rp_clamp_tgt_rate"],
        what: SWITCH,
        get: |c| u8::from(c.clamp == Clamp::Always).to_string(),
        set: |c, v| {
            c.clamp = match (switch(v)?, c.clamp) {
                (true, _) => Clamp::Always,
                (false, Clamp::Always) => Clamp::Never,
                (false, other) => other,
            };
            Some(())
        },
    },
    Param {
        name: "clamp_tgt_rate_after_time_inc",
        aliases: &["rp_clamp_tgt_rate_ati"],
        what: SWITCH,
        get: |c| u8::from(c.clamp == Clamp::AfterTimeInc).to_string(),
        set: |c, v| {
            c.clamp = match (switch(v)?, c.clamp) {
                (_, Clamp::Always) => Clamp::Always,
                (true, _) => Clamp::AfterTimeInc,
                (false, _) => Clamp::Never,
            };
            Some(())
        },
    },
    Param {
        name: "alpha_clock",
        aliases: &[],
        what: "`cnp` or `periodic`",
        get: |c| if c.alpha_clock == AlphaClock::Cnp { "cnp" } else { "periodic" }.to_owned(),
        set: |c, v| {
            c.alpha_clock = match v {
                "cnp" => AlphaClock::Cnp,
                "periodic" => AlphaClock::Periodic,
                _ => return None,
            };
            Some(())
        },
    },
    Param {
        name: "stages",
        aliases: &[],
        what: "`qcn` or `timer`",
        get: |c| if c.stages == Stages::Qcn { "qcn" } else { "timer" }.to_owned(),
        set: |c, v| {
            c.stages = match v {
                "qcn" => Stages::Qcn,
                "timer" => Stages::Timer,
                _ => return None,
            };
            Some(())
        },
    },
    Param {
        name: "count_first",
        aliases: &[],
        what: SWITCH,
        get: |c| u8::from(c.count_first).to_string(),
        set: |c, v| switch(v).map(|v| c.count_first = v),
    },
    Param {
        name: "raise_first",
        aliases: &[],
        what: SWITCH,
        get: |c| u8::from(c.raise_first).to_string(),
        set: |c, v| switch(v).map(|v| c.raise_first = v),
    },
    Param {
        name: "fast_hyper",
        aliases: &[],
        what: SWITCH,
        get: |c| u8::from(c.fast_hyper).to_string(),
        set: |c, v| switch(v).map(|v| c.fast_hyper = v),
    },
    Param {
        name: "reduce_far_target",
        aliases: &[],
        what: SWITCH,
        get: |c| u8::from(c.reduce_far_target).to_string(),
        set: |c, v| switch(v).map(|v| c.reduce_far_target = v),
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_parameter_of_every_preset_can_be_read_and_written_back() {
        for preset in DcqcnConfig::PRESETS {
            let config = DcqcnConfig::preset(preset, 100 * GIGABIT).unwrap();
            config.check().unwrap();
            // From another preset, by names alone.
            let mut copy = DcqcnConfig::preset("strawman", 1).unwrap();
            for (name, _) in DcqcnConfig::parameters() {
                copy.set(name, &config.get(name).unwrap()).unwrap();
            }
            copy.preset = config.preset;
            assert_eq!(copy, config, "{preset}");
            assert_eq!(copy.to_string().lines().count(), PARAMS.len());
        }
    }

    #[test]
    fn figures_of_the_presets() {
        let of = |name| DcqcnConfig::preset(name, 100 * GIGABIT).unwrap();
        assert_eq!(of("paper").get("dce_tcp_g").as_deref(), Some("1020"), "1/256");
        assert_eq!(of("strawman").get("rp_dce_tcp_g").as_deref(), Some("960"), "1/16");
        assert_eq!(of("nvidia-fw").get("dce_tcp_g").as_deref(), Some("1019"));
        assert_eq!(of("hpcc").get("rpg_ai_rate").as_deref(), Some("20"), "5 for each 25 Gbit/s");
        assert_eq!(of("hpcc").get("rpg_hai_rate").as_deref(), Some("200"));
    }

    #[test]
    fn what_is_wrong_is_refused_and_changes_nothing() {
        let mut config = DcqcnConfig::preset("paper", GIGABIT).unwrap();
        let before = config.clone();
        for (name, value) in [
            ("rpg_ai_rate", "fast"),
            ("rpg_ai_rate", "-1"),
            ("rpg_ai_rate", "18446744073709551615"),
            ("dce_tcp_g", "1025"),
            ("rpg_gd", "0"),
            ("rpg_min_dec_fac", "101"),
            ("alpha_clock", "sun"),
            ("clamp_tgt_rate", "2"),
            ("rpg_time_reset", "99999999999"),
        ] {
            let error = config.set(name, value).unwrap_err();
            assert!(matches!(error, ParamError::Value { .. }), "{name} {value}");
            assert!(error.to_string().contains(name), "{error}");
        }
        assert!(matches!(config.set("", "1"), Err(ParamError::Name { .. })));
        assert_eq!(config, before);
        let error = DcqcnConfig::preset("papers", GIGABIT).unwrap_err().to_string();
        assert!(error.contains("nvidia-fw"), "{error}");
    }

    #[test]
    fn contradictions() {
        let with = |change: fn(&mut DcqcnConfig)| {
            let mut config = DcqcnConfig::preset("paper", GIGABIT).unwrap();
            change(&mut config);
            config.check()
        };
        assert_eq!(with(|_| ()), Ok(()));
        for change in [
            (|c| c.line_rate = 0) as fn(&mut DcqcnConfig),
            |c| c.min_rate = 0,
            |c| c.min_rate = 2 * GIGABIT,
            |c| c.time_reset = Duration::ZERO,
            |c| c.alpha_time = Duration::ZERO,
            |c| c.g = 1025,
            |c| c.initial_alpha = 1025,
            |c| c.min_dec_fac = 101,
            |c| c.gd = 0,
        ] {
            assert!(matches!(with(change), Err(ParamError::Contradiction(_))));
        }
    }
}
