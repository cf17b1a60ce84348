//! Reading a file: each value with its place, so that what is wrong with it can be said with file and line.
//!
//! *Rules.* A [`Section`] remembers which keys it was asked for; [`Section::finish`] refuses all others and says which
//! there are. So no key is ignored, and the list of keys cannot be out of date.

use std::cell::RefCell;
use std::fmt;

use softroce::prelude::Duration;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// What is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bad {
    /// Bytes from the beginning of the file.
    pub(super) at: usize,
    pub(super) what: String,
}

impl Bad {
    pub(super) fn new(at: usize, what: impl fmt::Display) -> Self {
        Self { at, what: what.to_string() }
    }

    /// With the line, as compilers say it.
    pub(super) fn in_file(&self, file: &str, text: &str) -> String {
        let before = text.as_bytes().iter().take(self.at);
        let line = 1 + before.filter(|b| **b == b'\n').count();
        format!("{file}:{line}: {}", self.what)
    }
}

pub(super) type Read<T> = Result<T, Bad>;

/// The whole file.
///
/// # Errors
/// It is no TOML.
pub(super) fn parse(text: &str) -> Read<Spanned<DeTable<'_>>> {
    DeTable::parse(text).map_err(|e| {
        let at = e.span().map_or(0, |span| span.start);
        Bad::new(at, e.message().lines().collect::<Vec<_>>().join("; "))
    })
}

/// A table.
#[derive(Debug)]
pub(super) struct Section<'d> {
    /// How it is called in the file: `[switch]`.
    name: String,
    pub(super) at: usize,
    table: Option<&'d DeTable<'d>>,
    asked: RefCell<Vec<&'static str>>,
}

/// A value and its key.
#[derive(Clone, Debug)]
pub(super) struct Val<'d> {
    key: String,
    pub(super) at: usize,
    value: &'d DeValue<'d>,
}

impl<'d> Section<'d> {
    /// The file itself.
    pub(super) fn root(table: &'d Spanned<DeTable<'d>>) -> Self {
        Self::new("the file".into(), 0, Some(table.get_ref()))
    }

    fn new(name: String, at: usize, table: Option<&'d DeTable<'d>>) -> Self {
        Self { name, at, table, asked: RefCell::default() }
    }

    /// A value, if it is there.
    pub(super) fn get(&self, key: &'static str) -> Option<Val<'d>> {
        self.asked.borrow_mut().push(key);
        let (_, value) = self.table?.iter().find(|(k, _)| k.get_ref() == key)?;
        Some(Val { key: key.into(), at: value.span().start, value: value.get_ref() })
    }

    /// A value that must be there.
    pub(super) fn need(&self, key: &'static str) -> Read<Val<'d>> {
        let missing = || Bad::new(self.at, format_args!("{}: `{key}` is missing", self.name));
        self.get(key).ok_or_else(missing)
    }

    /// What a reader makes of a value, or something else if it is not there.
    pub(super) fn or<T>(
        &self,
        key: &'static str,
        read: impl FnOnce(&Val<'d>) -> Read<T>,
        default: T,
    ) -> Read<T> {
        self.get(key).map_or(Ok(default), |value| read(&value))
    }

    /// What a reader makes of a value, if it is there.
    pub(super) fn maybe<T>(
        &self,
        key: &'static str,
        read: impl FnOnce(&Val<'d>) -> Read<T>,
    ) -> Read<Option<T>> {
        self.get(key).map(|value| read(&value)).transpose()
    }

    /// A table in it; an empty one if it is not there.
    pub(super) fn section(&self, key: &'static str) -> Read<Self> {
        let name = format!("[{key}]");
        match self.get(key) {
            None => Ok(Self::new(name, self.at, None)),
            Some(Val { at, value: DeValue::Table(table), .. }) => {
                Ok(Self::new(name, at, Some(table)))
            }
            Some(value) => Err(value.wrong("a table")),
        }
    }

    /// The tables of a list: `[[flows]]`.
    pub(super) fn sections(&self, key: &'static str) -> Read<Vec<Self>> {
        let Some(list) = self.get(key) else { return Ok(Vec::new()) };
        let name = format!("[[{key}]]");
        let DeValue::Array(array) = list.value else {
            return Err(list.wrong(&format!("a list of tables, {name}")));
        };
        let table = |one: &'d Spanned<DeValue<'d>>| match one.get_ref() {
            DeValue::Table(table) => Ok(Self::new(name.clone(), one.span().start, Some(table))),
            _ => Err(Bad::new(one.span().start, format_args!("`{key}` is a list of tables"))),
        };
        array.iter().map(table).collect()
    }

    /// All keys have been asked for.
    ///
    /// # Errors
    /// There is another one.
    pub(super) fn finish(self) -> Read<()> {
        let asked = self.asked.into_inner();
        let mut keys = self.table.into_iter().flat_map(DeTable::keys);
        let Some(strange) = keys.find(|k| !asked.iter().any(|a| *a == k.get_ref())) else {
            return Ok(());
        };
        Err(Bad::new(
            strange.span().start,
            format_args!(
                "there is no key `{}` in {}; there are: {}",
                strange.get_ref(),
                self.name,
                asked.join(", ")
            ),
        ))
    }
}

impl<'d> Val<'d> {
    /// It is something else than what it should be.
    pub(super) fn wrong(&self, wanted: &str) -> Bad {
        Bad::new(self.at, format_args!("`{}` is not {wanted}", self.key))
    }

    /// It makes no sense.
    pub(super) fn bad(&self, why: impl fmt::Display) -> Bad {
        Bad::new(self.at, format_args!("`{}`: {why}", self.key))
    }

    pub(super) fn text(&self) -> Read<&'d str> {
        match self.value {
            DeValue::String(text) => Ok(text),
            _ => Err(self.wrong("a text")),
        }
    }

    /// A text for people, on one line.
    pub(super) fn line(&self) -> Read<String> {
        let text = self.text()?.trim().replace(['\n', '\r', '\t'], " ");
        if text.contains(char::is_control) {
            return Err(self.bad("a text has no control characters"));
        }
        Ok(text)
    }

    /// A name: something to be called by, in files and tables.
    pub(super) fn name(&self) -> Read<String> {
        let text = self.text()?;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let is_long = text.is_empty() || text.len() > 40;
        if is_long || text.starts_with('.') || !text.chars().all(is_plain) {
            return Err(self.wrong(
                "a name: up to 40 letters, digits, `-`, `_` and `.`, which is not the first",
            ));
        }
        Ok(text.into())
    }

    pub(super) fn flag(&self) -> Read<bool> {
        match self.value {
            DeValue::Boolean(flag) => Ok(*flag),
            _ => Err(self.wrong("true or false")),
        }
    }

    /// A whole number.
    pub(super) fn whole(&self) -> Read<u64> {
        let wrong = || self.wrong("a whole number");
        match self.value {
            DeValue::Integer(n) => u64::from_str_radix(n.as_str(), n.radix()).map_err(|_| wrong()),
            _ => Err(wrong()),
        }
    }

    /// A whole number within a range.
    pub(super) fn within(&self, least: u64, most: u64) -> Read<u64> {
        match self.whole()? {
            n if (least..=most).contains(&n) => Ok(n),
            n => Err(self.bad(format_args!("{n} is not within {least} to {most}"))),
        }
    }

    /// Any number.
    pub(super) fn number(&self) -> Read<f64> {
        let text = match self.value {
            DeValue::Integer(n) if n.radix() == 10 => n.as_str(),
            DeValue::Float(n) => n.as_str(),
            _ => return Err(self.wrong("a number")),
        };
        match text.parse::<f64>() {
            Ok(n) if n.is_finite() => Ok(n),
            _ => Err(self.wrong("a number")),
        }
    }

    /// A probability.
    pub(super) fn chance(&self) -> Read<f64> {
        match self.number()? {
            p if (0.0..=1.0).contains(&p) => Ok(p),
            p => Err(self.bad(format_args!("{p} is not a probability, which is 0 to 1"))),
        }
    }

    /// A number with a unit behind it.
    fn measured(&self, units: &[(&str, f64)], wanted: &str) -> Read<f64> {
        let text = self.text()?.trim();
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let factor = units.iter().find(|(name, _)| *name == unit.trim()).map(|(_, f)| *f);
        match (number.parse::<f64>(), factor) {
            (Ok(number), Some(factor)) if number * factor <= 9e15 => Ok(number * factor),
            _ => Err(self.bad(format_args!("{text:?} is not {wanted}"))),
        }
    }

    /// `"5us"`.
    pub(super) fn time(&self) -> Read<Duration> {
        const UNITS: [(&str, f64); 4] = [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)];
        let wanted = "a time: \"20ns\", \"5us\", \"1.5ms\", \"1s\"";
        match self.value {
            DeValue::String(_) => Ok(Duration::from_nanos(rounded(self.measured(&UNITS, wanted)?))),
            _ => Err(self.wrong(wanted)),
        }
    }

    /// `"40G"`, in bits per second; or a number of them.
    pub(super) fn rate(&self) -> Read<u64> {
        const UNITS: [(&str, f64); 8] = [
            ("k", 1e3),
            ("M", 1e6),
            ("G", 1e9),
            ("T", 1e12),
            ("kbit/s", 1e3),
            ("Mbit/s", 1e6),
            ("Gbit/s", 1e9),
            ("Tbit/s", 1e12),
        ];
        match self.value {
            DeValue::Integer(_) => self.whole(),
            _ => {
                let wanted = "a rate in bits per second: \"400M\", \"40G\", \"2.5Gbit/s\"";
                Ok(rounded(self.measured(&UNITS, wanted)?))
            }
        }
    }

    /// A rate that is not 0.
    pub(super) fn some_rate(&self) -> Read<u64> {
        match self.rate()? {
            0 => Err(self.bad("a rate of 0 moves nothing")),
            rate => Ok(rate),
        }
    }

    /// `"100KB"`, `"4MiB"`; or a number of bytes.
    pub(super) fn bytes(&self) -> Read<usize> {
        const UNITS: [(&str, f64); 7] = [
            ("B", 1.0),
            ("KB", 1e3),
            ("MB", 1e6),
            ("GB", 1e9),
            ("KiB", 1024.0),
            ("MiB", 1_048_576.0),
            ("GiB", 1_073_741_824.0),
        ];
        let bytes = match self.value {
            DeValue::Integer(_) => self.whole()?,
            _ => rounded(self.measured(&UNITS, "a size: \"5KB\" (5000), \"4MiB\", or bytes")?),
        };
        usize::try_from(bytes).map_err(|_| self.bad("too much"))
    }

    /// The values of a list; a single one is a list of one.
    pub(super) fn list(&self) -> Vec<Self> {
        match self.value {
            DeValue::Array(array) => {
                let one = |v: &'d Spanned<DeValue<'d>>| Self {
                    key: self.key.clone(),
                    at: v.span().start,
                    value: v.get_ref(),
                };
                array.iter().map(one).collect()
            }
            _ => vec![self.clone()],
        }
    }

    /// The keys and values of a table, in the order of the keys.
    pub(super) fn entries(&self) -> Read<Vec<(String, Self)>> {
        let DeValue::Table(table) = self.value else {
            return Err(self.wrong("a table, as in { a = 1 }"));
        };
        let one =
            |(key, value): (&Spanned<std::borrow::Cow<'d, str>>, &'d Spanned<DeValue<'d>>)| {
                let key = key.get_ref().to_string();
                let at = value.span().start;
                (key.clone(), Self { key, at, value: value.get_ref() })
            };
        Ok(table.iter().map(one).collect())
    }

    /// What stands there, a text without its quotes: for readers of their own.
    pub(super) fn plain(&self) -> Read<String> {
        Ok(match self.value {
            DeValue::String(text) => text.to_string(),
            DeValue::Integer(n) => n.to_string(),
            DeValue::Float(n) => n.to_string(),
            DeValue::Boolean(b) => b.to_string(),
            _ => return Err(self.wrong("a single value")),
        })
    }

    /// Whether it is a text: of a tolerance, a part and not a distance.
    pub(super) fn is_text(&self) -> bool {
        matches!(self.value, DeValue::String(_))
    }

    /// One of several words.
    pub(super) fn word<T: Copy>(&self, words: &[(&str, T)]) -> Read<T> {
        let text = self.text()?;
        let found = words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
        found.ok_or_else(|| {
            let all: Vec<_> = words.iter().map(|(word, _)| *word).collect();
            self.bad(format_args!("there is no {text:?}; there are: {}", all.join(", ")))
        })
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "not negative, and at most 9e15"
)]
fn rounded(value: f64) -> u64 {
    value.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn said<T: fmt::Debug>(text: &str, read: impl Fn(&Section<'_>) -> Read<T>) -> String {
        let table = match parse(text) {
            Ok(table) => table,
            Err(bad) => return bad.in_file("f", text),
        };
        let root = Section::root(&table);
        match read(&root).and_then(|value| root.finish().map(|()| value)) {
            Ok(value) => format!("{value:?}"),
            Err(bad) => bad.in_file("f", text),
        }
    }

    #[test]
    fn quantities_have_units() {
        for (text, bytes) in [
            ("5000", "5000"),
            ("\"5KB\"", "5000"),
            ("\"4 MiB\"", "4194304"),
            ("\"1.5KiB\"", "1536"),
        ] {
            assert_eq!(said(&format!("a = {text}"), |s| s.need("a")?.bytes()), bytes);
        }
        for (text, rate) in [("40", "40"), ("\"40G\"", "40000000000"), ("\"2.5Mbit/s\"", "2500000")]
        {
            assert_eq!(said(&format!("a = {text}"), |s| s.need("a")?.rate()), rate);
        }
        for (text, time) in [("\"1.5ms\"", "1.5ms"), ("\"0s\"", "0ns"), ("\"20 us\"", "20µs")] {
            assert_eq!(said(&format!("a = {text}"), |s| s.need("a")?.time()), time);
        }
        assert_eq!(said("a = 0x10", |s| s.need("a")?.whole()), "16");
        assert_eq!(said("a = -2.5", |s| s.need("a")?.number()), "-2.5");
        for (text, what) in [
            ("5", "f:1: `a` is not a time"),
            ("\"5\"", "f:1: `a`: \"5\" is not a time"),
            ("\"5 hours\"", "f:1: `a`: \"5 hours\" is not a time"),
            ("\"ms\"", "is not a time"),
            ("\"9999999999999s\"", "is not a time"),
        ] {
            let said = said(&format!("a = {text}"), |s| s.need("a")?.time());
            assert!(said.contains(what), "{said}");
        }
        assert!(said("a = -1", |s| s.need("a")?.bytes()).contains("not a whole number"));
        assert!(said("a = nan", |s| s.need("a")?.number()).contains("not a number"));
        assert!(said("a = 1.5", |s| s.need("a")?.chance()).contains("not a probability"));
        assert!(said("a = \"0G\"", |s| s.need("a")?.some_rate()).contains("moves nothing"));
        for name in ["a b", "a/b", "..", ".a", ""] {
            let said = said(&format!("a = {name:?}"), |s| s.need("a")?.name());
            assert!(said.contains("not a name"), "{name}: {said}");
        }
        let line = |text: &str| said(&format!("a = {text}"), |s| s.need("a")?.line());
        assert_eq!(line("\"\"\"\none\ntwo\tthree\n\"\"\""), "\"one two three\"");
        assert!(line(r#""\u001b[31m""#).contains("no control characters"));
    }

    #[test]
    fn what_is_strange_has_its_line() {
        let one = |s: &Section<'_>| s.maybe("one", |v| v.whole());
        assert_eq!(said("one = 1", one), "Some(1)");
        assert_eq!(said("\n\n", one), "None");
        assert_eq!(
            said("one = 1\n\n two = 2", one),
            "f:3: there is no key `two` in the file; there are: one"
        );
        assert!(said("one = 1\none = 2", one).starts_with("f:2: "));
        assert!(said("one = 1\nx", one).starts_with("f:2: "));
        assert_eq!(said("one = \"x\"", one), "f:1: `one` is not a whole number");
        let nested = |s: &Section<'_>| {
            let lists = s.sections("a")?;
            for list in lists {
                list.need("b")?;
                list.finish()?;
            }
            Ok(())
        };
        assert_eq!(said("[[a]]\nb = 1\n[[a]]\nb = 2", nested), "()");
        assert_eq!(said("[[a]]\nb = 1\n[[a]]\n", nested), "f:3: [[a]]: `b` is missing");
        assert_eq!(
            said("[[a]]\nb = 1\nc = 2", nested),
            "f:3: there is no key `c` in [[a]]; there are: b"
        );
        assert!(said("a = 1", nested).contains("not a list of tables"));
        assert!(said("a = [1]", nested).contains("a list of tables"));
    }
}
