//! Rules about single files: `unsafe`, lengths, docs, what is unfinished, what does not belong here.

use std::path::{Component, Path, PathBuf};

use super::source::{Source, closing};
use super::{Exception, Finding};

/// Where `unsafe` may stand.
pub(crate) const UNSAFE: &[Exception] = &[
    ("src/fork.rs", "a handler that the C library calls in children"),
    ("src/mem/raw.rs", "the only code that touches registered bytes"),
    ("src/port/sys.rs", "system calls"),
    ("src/queue/ring.rs", "rings between two threads"),
    ("src/verbs/mr.rs", "takes over the contract for memory that is not ours"),
    ("src/verbs/pd.rs", "takes over the contract for memory that is not ours"),
    ("tests/alloc.rs", "an allocator that counts"),
    ("tests/fork.rs", "forks"),
    ("tests/interop/src/tap.rs", "the system call that makes a TAP device"),
    ("tests/verbs/annex.rs", "registers memory of its own"),
    ("tests/verbs/completions.rs", "a waker whose clone does something"),
    ("tests/verbs/limits.rs", "registers memory of its own"),
    ("tests/verbs/memory.rs", "registers memory of its own"),
];

/// Lines that a file may have.
const FILE_LINES: usize = 800;
/// Longer files, up to a length of their own.
pub(crate) const LONG_FILES: &[(&str, usize, &str)] =
    &[("src/mem/raw.rs", 1000, "two thirds are its tests; the copies are argued about together")];

/// Lines that a function may have.
const FUNCTION_LINES: usize = 100;
/// Longer functions, as `file::function`.
pub(crate) const LONG_FUNCTIONS: &[Exception] = &[(
    "src/mem/window/tests.rs::regions_and_windows_follow_the_model",
    "one step after the other, next to what the model says of it",
)];

/// Lints that are switched off without `expect`, as `file::lint`.
pub(crate) const ALLOWS: &[Exception] = &[
    ("src/engine/counters.rs::missing_docs", "expected only where the module is public"),
    ("src/lib.rs::dead_code", "unused without `unstable-internals`, to be seen with it"),
    ("src/lib.rs::unnameable_types", "private without `unstable-internals`"),
    ("src/lib.rs::unreachable_pub", "private without `unstable-internals`"),
    ("src/lib.rs::unused_imports", "re-exports for `unstable-internals`"),
];

/// `unsafe` outside of the places for it.
pub(crate) fn unsafe_code(source: &Source) -> Vec<Finding> {
    let tokens = source.tokens();
    let found = tokens.iter().find(|t| t.text == "unsafe");
    let what = "`unsafe`: use what src/mem, src/queue and src/port offer";
    found.map(|t| Finding::new(source, t.line, what.into())).into_iter().collect()
}

/// Files that want to be two.
pub(crate) fn file_length(source: &Source) -> Vec<Finding> {
    let exception = LONG_FILES.iter().find(|(path, ..)| *path == source.path);
    let most = exception.map_or(FILE_LINES, |(_, lines, _)| *lines);
    let lines = source.text.lines().count();
    if source.is_rust() && lines > most {
        vec![Finding::new(
            source,
            lines,
            format!("{lines} lines, more than {most}: split by concept"),
        )]
    } else if exception.is_some() && lines <= FILE_LINES {
        vec![Finding::new(source, 1, "no longer a long file: remove its exception".into())]
    } else {
        Vec::new()
    }
}

/// Functions that want to be two. Finds `file::function`.
pub(crate) fn function_length(source: &Source) -> Vec<Finding> {
    let functions = source.functions();
    let long = functions.iter().filter(|f| f.lines > FUNCTION_LINES);
    let finding = |line, name, lines| {
        let what = format!("fn {name} has {lines} lines, more than {FUNCTION_LINES}");
        Finding { key: format!("{}::{name}", source.path), ..Finding::new(source, line, what) }
    };
    long.map(|f| finding(f.line, f.name, f.lines)).collect()
}

/// Files that do not begin with what they are.
pub(crate) fn module_docs(source: &Source) -> Vec<Finding> {
    let first = source.text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    if source.is_rust() && !first.starts_with("//! ") && !first.starts_with("#![no_main]") {
        return vec![Finding::new(source, 1, "a file begins with `//!` and what it is".into())];
    }
    Vec::new()
}

/// Lints switched off with `allow`, which outlives its reason. Finds `file::lint`.
pub(crate) fn allows(source: &Source) -> Vec<Finding> {
    let tokens = source.tokens();
    let mut findings = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        let is_inner = token.text == "!" && at > 0 && tokens[at - 1].text == "#";
        let is_attribute = token.text == "#" || is_inner;
        if !is_attribute || tokens.get(at + 1).is_none_or(|t| t.text != "[") {
            continue;
        }
        let attribute = &tokens[at + 1..closing(&tokens, at + 1)];
        let Some(allow) =
            attribute.windows(2).position(|t| t[0].text == "allow" && t[1].text == "(")
        else {
            continue;
        };
        let words =
            attribute[allow + 2..].iter().take_while(|t| t.text != ")" && t.text != "reason");
        let lint: String = words.map(|t| t.text).collect();
        for lint in lint.split(',').filter(|lint| !lint.is_empty()) {
            if lint != "unsafe_code" {
                let what =
                    format!("`allow({lint})`: say `expect`, which tells when it has become moot");
                let key = format!("{}::{lint}", source.path);
                findings.push(Finding { key, ..Finding::new(source, token.line, what) });
            }
        }
    }
    findings
}

fn is_word_at(text: &str, at: usize, len: usize) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    !text[..at].ends_with(is_word) && !text[at + len..].starts_with(is_word)
}

/// Lines on which `word` stands as a whole word.
fn lines_with<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let lines = text.lines().enumerate();
    let found = lines.filter(move |(_, line)| {
        line.match_indices(word).any(|(at, _)| is_word_at(line, at, word.len()))
    });
    found.map(|(line, _)| line + 1)
}

/// What says of itself that it is not done.
pub(crate) fn unfinished(source: &Source) -> Vec<Finding> {
    let notes = if source.is_rust() { &source.comments } else { &source.text };
    let mut findings = Vec::new();
    // What is looked for in all other files stands here, as words of the rule.
    for word in ["FIXME", "HACK", "TODO", "XXX"] {
        for line in lines_with(notes, word) {
            findings.push(Finding::new(source, line, format!("{word}: do it, or say what is so")));
        }
    }
    let tokens = source.tokens();
    for window in tokens.windows(4) {
        let [a, b, c, d] = [0, 1, 2, 3].map(|i| window[i].text);
        let what = match (a, b) {
            ("todo" | "unimplemented" | "dbg", "!") if matches!(c, "(" | "[" | "{") => {
                format!("{a}!")
            }
            ("#", "[") if c == "ignore" && d == "]" => "a test left out without a reason".into(),
            _ => continue,
        };
        findings.push(Finding::new(source, window[0].line, what));
    }
    findings
}

/// Tests that skip in a way of their own, which nobody notices where nothing may be skipped.
pub(crate) fn own_skips(source: &Source) -> Vec<Finding> {
    let is_message = |line: &str| {
        ["\"skipped: ", "\"skipping ", "\"SOFTROCE_NO_SKIP"].iter().any(|s| line.contains(s))
    };
    let is_place = source.path.starts_with("tests/tidy") || source.path == "tests/common/skip.rs";
    let lines = source.text.lines().enumerate().filter(|(_, line)| is_message(line));
    let found = lines.filter(|_| source.is_rust() && !is_place);
    let what = "say it with `skip` of tests/common/skip.rs";
    found.map(|(at, _)| Finding::new(source, at + 1, what.into())).collect()
}

/// Words for how and where the project is made, which say nothing about it. The rules themselves name them.
pub(crate) fn strange_words(source: &Source) -> Vec<Finding> {
    if source.path.starts_with("tests/tidy") {
        return Vec::new();
    }
    let mut findings = Vec::new();
    let paths = ["work", "root", "farm"].map(|dir| format!("/{dir}/"));
    let paths: Vec<_> = paths.into_iter().chain([["-", "spike"].concat()]).collect();
    for (at, line) in source.text.lines().enumerate() {
        for path in &paths {
            if line.contains(path) {
                let what = format!("`{path}` exists on one machine only");
                findings.push(Finding::new(source, at + 1, what));
            }
        }
    }
    // What a variable is called is up to the code around it.
    let notes = if source.is_rust() { &source.comments } else { &source.text };
    for (at, line) in notes.lines().enumerate() {
        let lower = line.to_lowercase();
        for word in ["helper", "helpers", "session", "sessions", "worktree", "issue #", "brief"] {
            let is_word = |(at, _)| word.ends_with('#') || is_word_at(&lower, at, word.len());
            if lower.match_indices(word).any(is_word) {
                let what = format!("`{word}` is a word of the workshop: say what the thing is");
                findings.push(Finding::new(source, at + 1, what));
            }
        }
    }
    findings
}

/// Links in a page, as (line, target).
fn links(source: &Source) -> Vec<(usize, &str)> {
    if !source.path.ends_with(".md") {
        return Vec::new();
    }
    let (mut links, mut in_code) = (Vec::new(), false);
    for (at, line) in source.text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        for (start, _) in line.match_indices("](").filter(|_| !in_code) {
            let target = &line[start + 2..];
            links.push((at + 1, &target[..target.find([')', ' ']).unwrap_or(target.len())]));
        }
    }
    links
}

/// The file that a link from a page leads to, if it is one of the repository.
fn target(page: &Source, link: &str) -> Option<String> {
    let path = link.split('#').next().filter(|path| !path.is_empty())?;
    if path.contains("://") || path.starts_with("mailto:") {
        return None;
    }
    let mut resolved = PathBuf::new();
    for part in Path::new(&page.path).parent()?.join(path).components() {
        match part {
            Component::ParentDir => {
                resolved.pop();
            }
            Component::CurDir => {}
            part => resolved.push(part),
        }
    }
    resolved.to_str().map(String::from)
}

/// Links that lead nowhere.
pub(crate) fn dead_links(source: &Source, exists: impl Fn(&str) -> bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (line, link) in links(source) {
        if let Some(path) = target(source, link).filter(|path| !exists(path)) {
            findings.push(Finding::new(source, line, format!("there is no {path}")));
        }
    }
    findings
}

/// Pages below `docs/` that nobody finds, because no other page links to them.
pub(crate) fn lost_pages(sources: &[Source]) -> Vec<Finding> {
    let linked: Vec<String> = sources
        .iter()
        .flat_map(|page| links(page).into_iter().filter_map(|(_, link)| target(page, link)))
        .collect();
    let pages = sources.iter().filter(|s| s.path.starts_with("docs/") && s.path.ends_with(".md"));
    let lost = pages.filter(|page| !linked.contains(&page.path));
    lost.map(|page| Finding::new(page, 1, "no other page links to this one".into())).collect()
}

/// Files and functions that the table of places names, and that are not there. Paths are those below `src/`, or from the
/// root; a file without its directory is any of that name.
pub(crate) fn lost_places(page: &Source, sources: &[Source]) -> Vec<Finding> {
    let code: Vec<_> = sources.iter().filter(|s| s.is_rust()).collect();
    let is_there = |path: &str| {
        let path = path.trim_end_matches('/');
        let ends = format!("/{path}");
        code.iter().any(|s| {
            let within = |whole: &str| s.path == whole || s.path.starts_with(&format!("{whole}/"));
            within(path)
                || within(&format!("src{ends}"))
                || !path.contains('/') && s.path.ends_with(&ends)
        })
    };
    let is_named = |name: &str| {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        code.iter().any(|s| s.text.split(|c| !is_word(c)).any(|word| word == name))
    };
    let mut findings = Vec::new();
    let table = page.text.lines().enumerate().filter(|(_, line)| line.starts_with("| "));
    for (at, line) in table {
        for span in line.split('`').skip(1).step_by(2) {
            let there = match span {
                _ if span.ends_with("...") => true,
                _ if span.contains('/') || span.ends_with(".rs") => is_there(span),
                _ => span.split("::").all(is_named),
            };
            if !there {
                findings.push(Finding::new(page, at + 1, format!("there is no {span}")));
            }
        }
    }
    findings
}
