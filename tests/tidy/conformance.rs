//! The page of known mistakes: all of them are there, and each row names tests that exist, or says what it
//! waits for.

use super::Finding;
use super::source::{Source, closing};

/// The page.
pub(crate) const PAGE: &str = "docs/conformance.md";
/// Rows of each of its tables, counted from 1.
pub(crate) const TABLES: &[usize] = &[60, 66];

/// Names of the functions in a file that are tests.
fn tests(source: &Source) -> Vec<String> {
    let tokens = source.tokens();
    let mut names = Vec::new();
    for (at, window) in tokens.windows(4).enumerate() {
        if ["#", "[", "test", "]"].iter().zip(window).any(|(mark, t)| *mark != t.text) {
            continue;
        }
        // Other attributes may stand between it and the function.
        let mut next = at + 4;
        while tokens.get(next).is_some_and(|t| t.text == "#") {
            next = closing(&tokens, next + 1) + 1;
        }
        if let [word, name, ..] = &tokens[next.min(tokens.len())..]
            && word.text == "fn"
        {
            names.push(name.text.to_owned());
        }
    }
    names
}

fn declares(source: &Source, module: &str) -> bool {
    source.tokens().windows(2).any(|t| t[0].text == "mod" && t[1].text == module)
}

/// The file that a test is named in: `tests/file.rs::name`, or, in the library, as the runner prints it,
/// `module::tests::name`.
fn file<'a>(place: &str, sources: &'a [Source]) -> Option<&'a Source> {
    let at = |path: &str| sources.iter().find(|s| s.path == path);
    if place.ends_with(".rs") {
        return at(place);
    }
    let of_module = |place: &str| {
        let path = place.replace("::", "/");
        at(&format!("src/{path}.rs")).or_else(|| at(&format!("src/{path}/mod.rs")))
    };
    of_module(place).or_else(|| {
        let (outer, inner) = place.rsplit_once("::")?;
        of_module(outer).filter(|file| declares(file, inner))
    })
}

/// What stands between backticks.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// What is wrong with the page, whose tables shall have so many rows.
pub(crate) fn rows(page: &Source, sources: &[Source], tables: &[usize]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut wrong = |line, what: String| findings.push(Finding::new(page, line, what));
    // Rows of each table so far.
    let mut counts: Vec<usize> = Vec::new();
    for (line, text) in page.text.lines().enumerate().map(|(at, text)| (at + 1, text)) {
        let Some(inside) = text.strip_prefix('|').and_then(|t| t.strip_suffix('|')) else {
            continue;
        };
        let cells: Vec<&str> = inside.split('|').map(str::trim).collect();
        if cells[0] == "#" {
            counts.push(0);
            continue;
        }
        if cells[0].starts_with("--") {
            continue;
        }
        let Some(count) = counts.last_mut() else { continue };
        *count += 1;
        let [number, _, _, named] = cells[..] else {
            wrong(line, format!("{} cells instead of 4", cells.len()));
            continue;
        };
        if number != count.to_string() {
            wrong(line, format!("row {number} where row {count} should be"));
        }
        for name in quoted(named) {
            let found = name
                .rsplit_once("::")
                .and_then(|(place, test)| Some((file(place, sources)?, test)))
                .is_some_and(|(file, test)| tests(file).iter().any(|t| t == test));
            if !found {
                wrong(line, format!("there is no test {name}"));
            }
        }
        let later = named.split_once("later: ").is_some_and(|(_, what)| !what.is_empty());
        if quoted(named).next().is_none() && !later {
            wrong(line, "neither a test nor what it waits for (`later: ...`)".into());
        }
    }
    if counts != tables {
        wrong(1, format!("tables of {counts:?} rows instead of {tables:?}"));
    }
    findings
}
