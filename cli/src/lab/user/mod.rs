//! Experiments of users, from files: `softroce lab run FILE.toml`.
//!
//! [`read`] reads values with their places, [`network`] and [`plan`] make a plan of them, with [`measure`] for what is
//! to be found out; [`run`] carries it out. What is wrong with a file is said before anything runs.

mod measure;
mod network;
mod plan;
mod read;
mod run;

#[cfg(test)]
mod tests;

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use super::report::{Report, harmless};
use super::{Failure, Progress, Result};
use plan::Plan;

/// An experiment from a file.
#[derive(Debug)]
pub(crate) struct Custom {
    /// Its file as it was named, for whoever wants to repeat it.
    file: String,
    name: String,
    plan: Plan,
}

impl Custom {
    /// Whether a name is that of a file.
    pub(crate) fn is_file(name: &str) -> bool {
        Path::new(name).extension().is_some_and(|e| e.eq_ignore_ascii_case("toml"))
            || name.contains('/')
    }

    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or something in it makes no sense: with file and line.
    pub(crate) fn read(file: &str) -> Result<Self> {
        let text = fs::read_to_string(file)
            .map_err(|e| Failure::Usage(format!("cannot read {file}: {e}")))?;
        let plan = Plan::read(&text).map_err(|bad| Failure::Usage(bad.in_file(file, &text)))?;
        let part = |part: Option<&OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
        let stem = part(Path::new(file).file_stem());
        // It becomes the name of a directory.
        let name = harmless(&plan.name.clone().unwrap_or(stem));
        if name.is_empty() || name.starts_with('.') || name.contains(['/', '\\']) {
            return Err(Failure::Usage(format!(
                "{file}: {name:?} is no name for a directory: give the experiment another `name`"
            )));
        }
        Ok(Self { file: file.into(), name, plan })
    }

    /// How it is called.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Runs it, with another seed than its own if one is given.
    ///
    /// # Errors
    /// It could not be run.
    pub(crate) fn run(&self, seed: Option<u64>, progress: &Progress) -> Result<Report> {
        let seed = seed.unwrap_or(self.plan.seed);
        let mut report = run::run(&self.plan, seed, progress)?;
        report.name = self.name.clone().into();
        report.title = self.plan.title.clone().unwrap_or_else(|| self.name.clone()).into();
        report.question = self.plan.question.clone().unwrap_or_default().into();
        report.lesson.clone_from(&self.plan.lesson);
        report.argument = Some(self.file.clone());
        Ok(report)
    }
}
