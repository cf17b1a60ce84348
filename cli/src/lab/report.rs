//! What an experiment has found: numbers, each beside the number it should be, and a verdict.
//!
//! *Rules.* A [`Row`] is made by a constructor that holds its rule, so that what is printed as the tolerance is
//! what was checked. Everything in `result.json` is a function of the experiment, its variant and the seed: no
//! times of day, no paths, numbers rounded to six digits, equal bytes for equal seeds.

use std::borrow::Cow;
use std::io::{self, Write};

use comfy_table::{CellAlignment, Table, presets};
use serde::{Serialize, Serializer};

use super::drawing::Drawing;
use super::plot::Plot;

/// Where an expected value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Source {
    /// A formula, evaluated here.
    Theory,
    /// An independent packet-level model in another language, run beforehand over several seeds.
    Oracle,
    /// A published figure or text.
    Published,
    /// A published figure, as remembered.
    PublishedFromMemory,
    /// Counting: there is one right answer.
    Exact,
    /// What the file of the experiment says.
    Given,
    /// Nowhere: nothing is expected.
    Nothing,
}

impl Source {
    /// What it is called in tables.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Theory => "theory",
            Self::Oracle => "oracle",
            Self::Published => "published",
            Self::PublishedFromMemory => "published*",
            Self::Exact => "exact",
            Self::Given => "the file",
            Self::Nothing => "-",
        }
    }

    /// What a reader should know about it.
    pub(crate) const fn caution(self) -> &'static str {
        match self {
            Self::Theory => "a formula, evaluated by this program",
            Self::Oracle => {
                "a packet-level model written independently of this simulator, run over several seeds"
            }
            Self::Published => "a published figure",
            Self::PublishedFromMemory => {
                "a published figure, from memory of the paper: check before quoting"
            }
            Self::Exact => "counting: there is one right answer",
            Self::Given => "what the file of the experiment expects",
            Self::Nothing => "measured only: nothing is expected",
        }
    }
}

/// One number and its rule.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Row {
    pub(crate) metric: String,
    #[serde(serialize_with = "rounded")]
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    /// What it should be.
    pub(crate) expected: String,
    /// How far from that it may be.
    pub(crate) tolerance: String,
    pub(crate) ok: bool,
    pub(crate) source: Source,
    /// What is to be said about a number that is not as expected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) why: Option<String>,
}

impl Row {
    fn new(metric: impl Into<String>, unit: &'static str, value: f64, ok: bool) -> Self {
        Self {
            metric: metric.into(),
            value,
            unit,
            expected: String::new(),
            tolerance: String::new(),
            // Nothing that is not a number is right.
            ok: ok && value.is_finite(),
            source: Source::Theory,
            why: None,
        }
    }

    /// At most the part `rel` of the expected value away from it.
    pub(crate) fn within(
        metric: impl Into<String>,
        unit: &'static str,
        value: f64,
        expected: f64,
        rel: f64,
    ) -> Self {
        let ok = (value - expected).abs() <= rel * expected.abs();
        Self {
            expected: number(expected),
            tolerance: format!("±{} %", number(rel * 100.0)),
            ..Self::new(metric, unit, value, ok)
        }
    }

    /// At most `off` away from the expected value, in its unit.
    pub(crate) fn near(
        metric: impl Into<String>,
        unit: &'static str,
        value: f64,
        expected: f64,
        off: f64,
    ) -> Self {
        let ok = (value - expected).abs() <= off;
        Self {
            expected: number(expected),
            tolerance: format!("±{}", number(off)),
            ..Self::new(metric, unit, value, ok)
        }
    }

    /// No less than `least`.
    pub(crate) fn at_least(
        metric: impl Into<String>,
        unit: &'static str,
        value: f64,
        least: f64,
    ) -> Self {
        Self {
            expected: format!("≥ {}", number(least)),
            tolerance: "limit".into(),
            ..Self::new(metric, unit, value, value >= least)
        }
    }

    /// No more than `most`.
    pub(crate) fn at_most(
        metric: impl Into<String>,
        unit: &'static str,
        value: f64,
        most: f64,
    ) -> Self {
        Self {
            expected: format!("≤ {}", number(most)),
            tolerance: "limit".into(),
            ..Self::new(metric, unit, value, value <= most)
        }
    }

    /// Neither less nor more.
    pub(crate) fn between(
        metric: impl Into<String>,
        unit: &'static str,
        value: f64,
        least: f64,
        most: f64,
    ) -> Self {
        Self {
            expected: format!("{} to {}", number(least), number(most)),
            tolerance: "limit".into(),
            ..Self::new(metric, unit, value, (least..=most).contains(&value))
        }
    }

    /// A count that is known.
    #[expect(clippy::cast_precision_loss, reason = "the comparison is of the integers")]
    pub(crate) fn count(
        metric: impl Into<String>,
        unit: &'static str,
        value: u64,
        expected: u64,
    ) -> Self {
        Self {
            expected: expected.to_string(),
            tolerance: "exact".into(),
            source: Source::Exact,
            ..Self::new(metric, unit, value as f64, value == expected)
        }
    }

    /// A count that is known, as a number.
    #[expect(clippy::cast_precision_loss, reason = "counts are below 2^52")]
    pub(crate) fn whole(
        metric: impl Into<String>,
        unit: &'static str,
        value: f64,
        expected: u64,
    ) -> Self {
        Self {
            expected: expected.to_string(),
            tolerance: "exact".into(),
            source: Source::Exact,
            ..Self::new(metric, unit, value, (value - expected as f64).abs() < 0.5)
        }
    }

    /// A number of which nothing is expected but that it is one.
    pub(crate) fn plain(metric: impl Into<String>, unit: &'static str, value: f64) -> Self {
        let expected = if value.is_finite() { String::new() } else { "a number".into() };
        Self { expected, source: Source::Nothing, ..Self::new(metric, unit, value, true) }
    }

    /// Where the expected value comes from. Without this: [`Source::Theory`], for counts [`Source::Exact`].
    pub(crate) fn from(mut self, source: Source) -> Self {
        self.source = source;
        self
    }

    /// What is to be said about it if it is not as expected.
    pub(crate) fn why(mut self, why: impl Into<String>) -> Self {
        if !self.ok {
            self.why = Some(why.into());
        }
        self
    }
}

/// Six significant digits, as short as they can be written; integers in full.
pub(crate) fn number(value: f64) -> String {
    if !value.is_finite() {
        return if value.is_nan() { "none".into() } else { "unbounded".into() };
    }
    let value = six_digits(value);
    if value != 0.0 && (value.abs() >= 1e15 || value.abs() < 1e-4) {
        return format!("{value:e}");
    }
    format!("{value}")
}

/// The value that its six digits say.
fn six_digits(value: f64) -> f64 {
    if value.fract() == 0.0 && value.abs() < 9e15 {
        // Without the sign of zero.
        return value + 0.0;
    }
    format!("{value:.5e}").parse().unwrap_or(value)
}

fn rounded<S: Serializer>(value: &f64, to: S) -> Result<S::Ok, S::Error> {
    let value = six_digits(*value);
    #[expect(clippy::cast_possible_truncation, reason = "whole, and below 9e15")]
    if value.fract() == 0.0 && value.abs() < 9e15 {
        return to.serialize_i64(value as i64);
    }
    to.serialize_f64(value)
}

/// A remark, and how far it can be relied upon.
#[derive(Clone, Debug)]
pub(crate) struct Note {
    pub(crate) text: String,
    pub(crate) source: Option<Source>,
}

/// What came of an experiment.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) name: Cow<'static, str>,
    pub(crate) title: Cow<'static, str>,
    pub(crate) question: Cow<'static, str>,
    /// What is run to have it again; `None`: its name.
    pub(crate) argument: Option<String>,
    /// What it teaches, a paragraph each.
    pub(crate) lesson: Vec<String>,
    pub(crate) seed: u64,
    pub(crate) short: bool,
    /// The rules of the verdict, in words.
    pub(crate) rules: String,
    pub(crate) rows: Vec<Row>,
    pub(crate) plots: Vec<Plot>,
    pub(crate) drawing: Option<Drawing>,
    pub(crate) notes: Vec<Note>,
}

/// `result.json`.
#[derive(Debug, Serialize)]
pub(crate) struct Verdict<'a> {
    name: &'a str,
    ok: bool,
    seed: u64,
    variant: &'static str,
    rows: &'a [Row],
}

impl Report {
    pub(crate) fn ok(&self) -> bool {
        !self.rows.is_empty() && self.rows.iter().all(|row| row.ok)
    }

    pub(crate) const fn variant(&self) -> &'static str {
        if self.short { "short" } else { "full" }
    }

    pub(crate) fn verdict(&self) -> Verdict<'_> {
        Verdict {
            name: &self.name,
            ok: self.ok(),
            seed: self.seed,
            variant: self.variant(),
            rows: &self.rows,
        }
    }

    /// `result.json`, with its line end.
    pub(crate) fn json(&self) -> io::Result<String> {
        let mut text = serde_json::to_string_pretty(&self.verdict())?;
        text.push('\n');
        Ok(text)
    }

    /// The command that gives the same result.
    pub(crate) fn command(&self) -> String {
        let short = if self.short { " --short" } else { "" };
        let what = quoted(self.argument.as_deref().unwrap_or(&self.name));
        format!("softroce lab run {what} --seed {}{short}", self.seed)
    }

    /// A remark on what was found.
    pub(crate) fn note(&mut self, text: impl Into<String>) {
        self.notes.push(Note { text: text.into(), source: None });
    }

    /// A remark on what others have found.
    pub(crate) fn cite(&mut self, source: Source, text: impl Into<String>) {
        self.notes.push(Note { text: text.into(), source: Some(source) });
    }

    /// The table for the terminal.
    pub(crate) fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}: {}", self.name, self.title)?;
        if !self.question.is_empty() {
            writeln!(out, "{}", self.question)?;
        }
        writeln!(out)?;
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(["", "metric", "measured", "unit", "expected", "tolerance", "from"]);
        for column in [2, 4] {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        for row in &self.rows {
            table.add_row([
                if row.ok { "ok" } else { "FAIL" },
                &row.metric,
                &number(row.value),
                row.unit,
                &row.expected,
                &row.tolerance,
                row.source.name(),
            ]);
        }
        for line in table.lines() {
            writeln!(out, "{}", line.trim_end())?;
        }
        for row in &self.rows {
            if let Some(why) = &row.why {
                writeln!(out, "{}: {why}", row.metric)?;
            }
        }
        let failed = self.rows.iter().filter(|row| !row.ok).count();
        let verdict = match failed {
            0 if self.ok() => "passed".to_owned(),
            0 => "FAILED: nothing was measured".to_owned(),
            n => format!("FAILED: {n} of {} rows", self.rows.len()),
        };
        writeln!(out, "\n{verdict}. Repeat with: {}", self.command())
    }
}

/// A word for a shell: as it is, or quoted where that means something to the shell or the terminal.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_.,:/+@%=".contains(c);
    if !word.is_empty() && !word.starts_with('-') && word.chars().all(is_plain) {
        return word.into();
    }
    // What begins with a dash would be taken for an option.
    let here = if word.starts_with('-') { "./" } else { "" };
    if !word.contains(char::is_control) {
        return format!("'{here}{}'", word.replace('\'', r"'\''"));
    }
    let mut to = format!("$'{here}");
    for c in word.chars() {
        let mut bytes = [0; 4];
        match c {
            '\\' | '\'' => to.extend(['\\', c]),
            c if c.is_control() => {
                // In three digits, so that what follows cannot belong to it.
                let bytes = c.encode_utf8(&mut bytes).bytes();
                bytes.for_each(|b| to.push_str(&format!("\\{b:03o}")));
            }
            c => to.push(c),
        }
    }
    to + "'"
}

/// What may be shown on a terminal: without what moves its cursor, changes its colours or begins a line.
pub(super) fn harmless(text: &str) -> String {
    let shown = |c: char| match c {
        '\n' | '\r' | '\t' => ' ',
        c if c.is_control() => char::REPLACEMENT_CHARACTER,
        c => c,
    };
    text.chars().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_six_digits() {
        for (value, text) in [
            (0.0, "0"),
            (-0.0, "0"),
            (92.585_895_1, "92.5859"),
            (37.034_358_05, "37.0344"),
            (1.0, "1"),
            (12_345_678.0, "12345678"),
            (12_345_678.9, "12345700"),
            (0.000_859_29, "0.00085929"),
            (1.5e-7, "1.5e-7"),
            (f64::INFINITY, "unbounded"),
            (f64::NAN, "none"),
        ] {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn each_rule_says_what_it_checks() {
        let said = |row: &Row| format!("{} {}", row.expected, row.tolerance);
        let inside = Row::within("a", "G", 10.2, 10.0, 0.02);
        assert!(inside.ok && !Row::within("a", "G", 10.21, 10.0, 0.02).ok);
        assert_eq!(said(&inside), "10 ±2 %");
        assert!(Row::within("a", "G", -10.2, -10.0, 0.02).ok);
        let near = Row::near("a", "us", 41.4, 40.9, 0.5);
        assert!(near.ok && !Row::near("a", "us", 41.5, 40.9, 0.5).ok);
        assert_eq!(said(&near), "40.9 ±0.5");
        assert!(Row::at_least("a", "", 0.985, 0.985).ok && !Row::at_least("a", "", 0.98, 0.985).ok);
        assert!(Row::at_most("a", "", 0.7, 0.7).ok && !Row::at_most("a", "", 0.71, 0.7).ok);
        let between = Row::between("a", "%", 92.0, 92.0, 96.0);
        assert!(between.ok && !Row::between("a", "%", 96.1, 92.0, 96.0).ok);
        assert_eq!(said(&between), "92 to 96 limit");
        assert!(Row::count("a", "B", 1106, 1106).ok && !Row::count("a", "B", 1107, 1106).ok);
    }

    #[test]
    fn what_is_no_number_is_not_right() {
        for value in [f64::NAN, f64::INFINITY] {
            assert!(!Row::at_least("a", "", value, 0.0).ok);
            assert!(!Row::at_most("a", "", -value, 0.0).ok);
            assert!(!Row::within("a", "", value, value, 0.1).ok);
        }
    }

    pub(crate) fn report(rows: Vec<Row>) -> Report {
        Report {
            name: "e0".into(),
            title: "A title".into(),
            question: "Is it so?".into(),
            argument: None,
            lesson: vec!["It is <so>.".into()],
            seed: 7,
            short: true,
            rules: "as they are".into(),
            rows,
            plots: Vec::new(),
            drawing: None,
            notes: Vec::new(),
        }
    }

    #[test]
    fn results_are_written_the_same_each_time() {
        let rows = vec![
            Row::within("rate", "G", 37.034_358_05, 37.0, 0.01),
            Row::count("bytes", "B", 1106, 1107).why("one byte is missing"),
        ];
        let report = report(rows);
        let text = report.json().unwrap();
        assert_eq!(text, report.json().unwrap());
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (&value["name"], &value["ok"], &value["seed"]),
            (&"e0".into(), &false.into(), &7.into())
        );
        assert_eq!(value["rows"][0]["value"], 37.0344);
        assert_eq!(value["rows"][0]["ok"], true);
        assert!(text.contains("\"value\": 1106,"), "{text}");
        assert_eq!(value["rows"][1]["why"], "one byte is missing");
        let mut out = Vec::new();
        report.print(&mut out).unwrap();
        let out = String::from_utf8(out).unwrap();
        assert!(
            out.contains("FAILED: 1 of 2 rows. Repeat with: softroce lab run e0 --seed 7 --short"),
            "{out}"
        );
    }

    #[test]
    fn the_command_is_one_for_a_shell() {
        for (word, said) in [
            ("a/b-1.toml", "a/b-1.toml"),
            ("x #1%.toml", "'x #1%.toml'"),
            ("it's.toml", r"'it'\''s.toml'"),
            ("$(x)`y`.toml", "'$(x)`y`.toml'"),
            ("-x.toml", "'./-x.toml'"),
            ("", "''"),
            ("a\n\u{1b}'\\\u{9b}.toml", r"$'a\012\033\'\\\302\233.toml'"),
        ] {
            assert_eq!(quoted(word), said);
        }
        let report = Report { argument: Some("a b.toml".into()), ..report(Vec::new()) };
        assert_eq!(report.command(), "softroce lab run 'a b.toml' --seed 7 --short");
    }

    #[test]
    fn nothing_moves_the_cursor() {
        assert_eq!(harmless("a\nb\u{1b}[31m\u{7f}\u{9b}é"), "a b\u{fffd}[31m\u{fffd}\u{fffd}é");
    }

    #[test]
    fn what_has_no_value_says_what_is_expected() {
        let row = Row::plain("completion", "us", f64::INFINITY);
        assert_eq!((row.ok, row.expected.as_str()), (false, "a number"));
        assert!(serde_json::to_string(&row).unwrap().contains(r#""value":null"#));
        assert_eq!(Row::plain("completion", "us", 1.0).expected, "");
    }

    #[test]
    fn nothing_measured_is_no_success() {
        assert!(!report(Vec::new()).ok());
        assert!(report(vec![Row::count("a", "", 1, 1).why("unused")]).ok());
    }
}
