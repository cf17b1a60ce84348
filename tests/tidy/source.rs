//! A file of the tree, cut into what the rules look at: code, comments, tokens, paths.
//!
//! This is no parser of Rust. It knows comments, strings, braces and `::`, which is as much as rules about
//! names, places and lengths need, and it works on text that does not compile.

use std::fs;
use std::path::Path;

/// A text file, under its path from the root of the repository.
pub(crate) struct Source {
    pub(crate) path: String,
    pub(crate) text: String,
    /// The text with comments and the contents of strings blanked; empty unless it is Rust.
    code: String,
    /// The text with everything but comments blanked; empty unless it is Rust.
    pub(crate) comments: String,
    /// Whether all of it is only compiled for tests.
    is_test: bool,
}

/// A word or a mark of code.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token<'a> {
    pub(crate) text: &'a str,
    /// Counted from 1.
    pub(crate) line: usize,
    /// Whether it is only compiled for tests.
    pub(crate) test: bool,
}

/// A path that code names, in full: `["crate", "wire", "num"]`, `["std", "net", "IpAddr"]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) segments: Vec<String>,
    pub(crate) line: usize,
    pub(crate) test: bool,
}

/// A function with a body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Function<'a> {
    pub(crate) name: &'a str,
    pub(crate) line: usize,
    /// Lines from the signature to the closing brace.
    pub(crate) lines: usize,
}

impl Source {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        let is_rust = path.ends_with(".rs");
        let (code, comments) = if is_rust { mask(text) } else { Default::default() };
        let is_test = !path.starts_with("src/");
        Self { path: path.into(), text: text.into(), code, comments, is_test }
    }

    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Whether the path starts with one of these.
    pub(crate) fn is_under(&self, places: &[&str]) -> bool {
        places.iter().any(|place| self.path.starts_with(place))
    }

    pub(crate) fn tokens(&self) -> Vec<Token<'_>> {
        let mut tokens = Vec::new();
        for (line, text) in self.code.lines().enumerate() {
            let mut rest = text.trim_start();
            while let Some(first) = rest.chars().next() {
                let is_word = |c: char| c.is_alphanumeric() || c == '_';
                let len = match first {
                    c if is_word(c) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
                    _ if rest.starts_with("::") => 2,
                    c => c.len_utf8(),
                };
                let (token, tail) = rest.split_at(len);
                tokens.push(Token { text: token, line: line + 1, test: self.is_test });
                rest = tail.trim_start();
            }
        }
        mark_tests(&mut tokens);
        tokens
    }

    /// The module that this file of the library is: `["engine", "qp"]`; empty for its root. `None` for
    /// files outside of the library.
    pub(crate) fn module(&self) -> Option<Vec<&str>> {
        let path = self.path.strip_prefix("src/")?.strip_suffix(".rs")?;
        let path = path.strip_suffix("/mod").unwrap_or(path);
        Some(if path == "lib" { Vec::new() } else { path.split('/').collect() })
    }

    /// Modules in files of their own that are only compiled for tests: `["engine", "tests"]`.
    fn test_modules(&self) -> Vec<Vec<String>> {
        let Some(module) = self.module() else { return Vec::new() };
        let tokens = self.tokens();
        let declared = tokens.windows(3).filter(|t| t[0].text == "mod" && t[2].text == ";");
        let of_tests = declared.filter(|t| t[0].test).map(|t| t[1].text);
        let path = |name| module.iter().copied().chain([name]).map(String::from).collect();
        of_tests.map(path).collect()
    }

    /// All paths from `crate`, `super` and the names of other crates, in `use` and elsewhere.
    pub(crate) fn named(&self) -> Vec<Named> {
        let tokens = self.tokens();
        let file: Vec<String> =
            self.module().unwrap_or_default().into_iter().map(String::from).collect();
        // Modules inside the file, with the depth of braces at which each ends.
        let (mut inside, mut depth) = (Vec::<(usize, &str)>::new(), 0);
        let mut found = Vec::new();
        let mut at = 0;
        while at < tokens.len() {
            let token = tokens[at];
            let next = |n: usize| tokens.get(at + n).map_or("", |t| t.text);
            let follows = at > 0 && tokens[at - 1].text == "::";
            match token.text {
                "{" => {
                    if at > 1 && tokens[at - 2].text == "mod" {
                        inside.push((depth, tokens[at - 1].text));
                    }
                    depth += 1;
                }
                "}" => {
                    depth -= 1;
                    inside.pop_if(|(end, _)| *end == depth);
                }
                word if next(1) == "::" && !follows && is_name(word) => {
                    let mut base = vec![word.to_owned()];
                    let mut from = at + 1;
                    if word == "super" {
                        base = ["crate".to_owned()].into_iter().chain(file.clone()).collect();
                        base.extend(inside.iter().map(|(_, name)| (*name).to_owned()));
                        base.pop();
                        while tokens.get(from + 1).is_some_and(|t| t.text == "super") {
                            base.pop();
                            from += 2;
                        }
                    }
                    at = expand(&tokens, from, &base, &mut found);
                    continue;
                }
                _ => {}
            }
            at += 1;
        }
        found
    }

    pub(crate) fn functions(&self) -> Vec<Function<'_>> {
        let tokens = self.tokens();
        let mut functions = Vec::new();
        for (at, token) in tokens.iter().enumerate() {
            let Some(name) = tokens.get(at + 1).filter(|t| is_name(t.text)) else { continue };
            if token.text != "fn" {
                continue;
            }
            let signature = &tokens[at..];
            let Some(body) = signature.iter().position(|t| matches!(t.text, "{" | ";")) else {
                continue;
            };
            if signature[body].text == "{" {
                let end = tokens[closing(&tokens, at + body)].line;
                functions.push(Function {
                    name: name.text,
                    line: token.line,
                    lines: end - token.line + 1,
                });
            }
        }
        functions
    }
}

fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Where the bracket at `open` is closed, or the last token.
pub(crate) fn closing(tokens: &[Token<'_>], open: usize) -> usize {
    let mut depth = 0usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.text {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at;
                }
            }
            _ => {}
        }
    }
    tokens.len() - 1
}

/// Reads a tree of paths from the `::` at `at` on, and returns what comes after it.
fn expand(tokens: &[Token<'_>], mut at: usize, base: &[String], out: &mut Vec<Named>) -> usize {
    let mut segments = base.to_vec();
    while tokens.get(at).is_some_and(|t| t.text == "::") {
        let Some(next) = tokens.get(at + 1) else { break };
        if next.text == "{" {
            let end = closing(tokens, at + 1);
            at += 2;
            while at < end {
                let Some(first) = tokens.get(at).filter(|t| is_name(t.text) || t.text == "*")
                else {
                    at += 1;
                    continue;
                };
                let mut inner = segments.clone();
                if first.text != "self" {
                    inner.push(first.text.to_owned());
                }
                at = expand(tokens, at + 1, &inner, out);
                // `as name`
                while at < end && tokens[at].text != "," {
                    at += 1;
                }
            }
            return end + 1;
        }
        if !is_name(next.text) && next.text != "*" {
            break;
        }
        segments.push(next.text.to_owned());
        at += 2;
    }
    let last = tokens[at - 1];
    out.push(Named { segments, line: last.line, test: last.test });
    at
}

/// Marks what stands under `#[cfg(test)]`, whatever else the condition says.
fn mark_tests(tokens: &mut [Token<'_>]) {
    let mut at = 0;
    while at + 3 < tokens.len() {
        let is_cfg =
            ["#", "[", "cfg", "("].iter().enumerate().all(|(i, t)| tokens[at + i].text == *t);
        if !is_cfg {
            at += 1;
            continue;
        }
        let condition_end = closing(tokens, at + 3);
        let condition = &tokens[at + 4..condition_end];
        let for_tests = condition.iter().any(|t| t.text == "test")
            && !condition.iter().any(|t| matches!(t.text, "not" | "any"));
        // The item after this attribute and those that follow it.
        let mut item = condition_end + 2;
        while tokens.get(item).is_some_and(|t| t.text == "#") {
            item = closing(tokens, item + 1) + 1;
        }
        let mut end = item;
        while end < tokens.len() && tokens[end].text != ";" {
            let is_body = tokens[end].text == "{";
            if matches!(tokens[end].text, "{" | "(" | "[") {
                end = closing(tokens, end);
            }
            if is_body {
                break;
            }
            end += 1;
        }
        if for_tests {
            let end = (end + 1).min(tokens.len());
            tokens[at..end].iter_mut().for_each(|t| t.test = true);
            at = end;
        } else {
            at = condition_end;
        }
    }
}

/// The text twice, line by line and column by column: only its code, only its comments.
fn mask(text: &str) -> (String, String) {
    let bytes = text.as_bytes();
    let blank = |b: u8| if b == b'\n' { b'\n' } else { b' ' };
    let mut code: Vec<u8> = bytes.iter().map(|&b| blank(b)).collect();
    let mut comments = code.clone();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let len = comment_len(rest);
        if len > 0 {
            comments[at..at + len].copy_from_slice(&rest[..len]);
            at += len;
            continue;
        }
        let word_before =
            at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_');
        let len = literal_len(rest, word_before);
        if len > 0 {
            // The marks stay, so that a string is still something.
            code[at] = b'"';
            code[at + len - 1] = b'"';
            at += len;
            continue;
        }
        code[at] = bytes[at];
        at += 1;
    }
    let text = |bytes| String::from_utf8(bytes).expect("whole characters are blanked or kept");
    (text(code), text(comments))
}

/// Bytes of the comment that starts here.
fn comment_len(rest: &[u8]) -> usize {
    if rest.starts_with(b"//") {
        return rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len());
    }
    if !rest.starts_with(b"/*") {
        return 0;
    }
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        match &rest[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// Bytes of the string or character that starts here. A lifetime is none.
fn literal_len(rest: &[u8], word_before: bool) -> usize {
    let escaped = |quote: u8, mut at: usize| {
        while at < rest.len() && rest[at] != quote {
            at += if rest[at] == b'\\' { 2 } else { 1 };
        }
        (at + 1).min(rest.len())
    };
    let prefix = match rest {
        [b'b' | b'c', b'r', ..] if !word_before => 2,
        [b'b' | b'c' | b'r', ..] if !word_before => 1,
        _ => 0,
    };
    let raw = rest[..prefix].contains(&b'r');
    let hashes = rest[prefix..].iter().take_while(|&&b| raw && b == b'#').count();
    match rest.get(prefix + hashes) {
        Some(b'"') if raw => {
            let end: Vec<u8> = [b'"'].into_iter().chain(vec![b'#'; hashes]).collect();
            let from = prefix + hashes + 1;
            let len = rest[from..].windows(end.len()).position(|w| w == end);
            len.map_or(rest.len(), |len| from + len + end.len())
        }
        Some(b'"') => escaped(b'"', prefix + 1),
        Some(b'\'') if !raw => match rest.get(prefix + 1) {
            Some(b'\\') => escaped(b'\'', prefix + 1),
            Some(_) => {
                let text = String::from_utf8_lossy(&rest[prefix + 1..rest.len().min(prefix + 6)]);
                let mut chars = text.chars();
                let first = chars.next().map_or(0, char::len_utf8);
                if chars.next() == Some('\'') { prefix + 1 + first + 1 } else { 0 }
            }
            None => 0,
        },
        _ => 0,
    }
}

/// All text files below the root of the repository, but for what is recorded, generated or fetched.
pub(crate) fn tree() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut folders, mut sources) = (vec![root.to_owned()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the repository") {
            let path = entry.expect("an entry of a folder").path();
            let name = path.file_name().and_then(|n| n.to_str()).expect("names are UTF-8");
            if path.is_dir() {
                let skipped = ["target", "corpus", "data", "artifacts", "coverage"];
                let hidden = name.starts_with('.') && name != ".ci";
                if !hidden && !skipped.contains(&name) && name != "proptest-regressions" {
                    folders.push(path);
                }
                continue;
            }
            let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
            let is_text = ["rs", "md", "toml", "sh", "c", "h", "py", "patch"].contains(&extension);
            if is_text || (folder.ends_with(".ci") && extension.is_empty()) {
                let text = fs::read_to_string(&path).expect("text is UTF-8");
                let relative = path.strip_prefix(root).expect("below the root");
                sources.push(Source::new(relative.to_str().expect("names are UTF-8"), &text));
            }
        }
    }
    mark_test_files(&mut sources);
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    sources
}

/// Marks the files of modules that other files declare for tests.
fn mark_test_files(sources: &mut [Source]) {
    let modules: Vec<_> = sources.iter().flat_map(Source::test_modules).collect();
    for source in sources {
        let Some(module) = source.module() else { continue };
        if modules
            .iter()
            .any(|m| module.len() >= m.len() && module.iter().zip(m).all(|(a, b)| a == b))
        {
            source.is_test = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> Vec<String> {
        let source = Source::new("src/a/b.rs", text);
        source.tokens().iter().map(|t| t.text.to_owned()).collect()
    }

    #[test]
    fn comments_and_strings_are_no_code() {
        assert_eq!(code("a /* b /* c */ d */ e // f\ng"), ["a", "e", "g"]);
        let text = r#"f("x // \" y", 'z', '\'', '"')"#;
        assert_eq!(code(text).join(""), r#"f("","","","")"#);
        assert_eq!(code("r#\"a \" b\"# br\"c\" for").join(" "), "\" \" \" \" for");
        assert_eq!(code("&'a str + 'b'").join(" "), "& ' a str + \" \"");
        assert_eq!(code("var\"\"").join(" "), "var \" \"");
    }

    #[test]
    fn comments_keep_their_lines() {
        let source = Source::new("x.rs", "let a = \"// no\"; // yes\n/* and\nso */ b");
        let lines: Vec<_> = source.comments.lines().map(str::trim).collect();
        assert_eq!(lines, ["// yes", "/* and", "so */"]);
    }

    fn named(path: &str, text: &str) -> Vec<String> {
        Source::new(path, text).named().iter().map(|n| n.segments.join("::")).collect()
    }

    #[test]
    fn groups_are_expanded() {
        let text = "use crate::wire::{self, num::{Psn, Qpn as Q}, icrc::*, Packet};";
        let expected =
            ["wire", "wire::num::Psn", "wire::num::Qpn", "wire::icrc::*", "wire::Packet"];
        assert_eq!(named("src/net.rs", text), expected.map(|e| format!("crate::{e}")));
        assert_eq!(
            named("src/net.rs", "fn f(x: &crate::a::B<std::c::D>) {}"),
            ["crate::a::B", "std::c::D"]
        );
    }

    #[test]
    fn super_is_resolved() {
        let path = "src/engine/qp/attr.rs";
        assert_eq!(named(path, "use super::state::X;"), ["crate::engine::qp::state::X"]);
        assert_eq!(named(path, "use super::super::super::nic::Nic;"), ["crate::nic::Nic"]);
        assert_eq!(named(path, "mod tests { use super::*; } use super::*;").len(), 2);
        let text = "mod tests { fn f() { super::g(); } } fn h() { super::i(); }";
        assert_eq!(named(path, text), ["crate::engine::qp::attr::g", "crate::engine::qp::i"]);
        assert_eq!(named("src/engine/mod.rs", "use super::nic::Nic;"), ["crate::nic::Nic"]);
    }

    #[test]
    fn tests_are_told_from_the_product() {
        let text = "a::b; #[cfg(test)] mod tests { c::d; } #[cfg(all(test, loom))] fn e() { f::g } \
                    #[cfg(not(test))] fn h() { i::j; } #[cfg(test)] #[x] use k::l; m::n";
        let source = Source::new("src/a.rs", text);
        let (tests, product): (Vec<_>, Vec<_>) = source.named().into_iter().partition(|n| n.test);
        let firsts = |n: &[Named]| n.iter().map(|n| n.segments[0].clone()).collect::<Vec<_>>();
        assert_eq!(firsts(&tests), ["c", "f", "k"]);
        assert_eq!(firsts(&product), ["a", "i", "m"]);
    }

    #[test]
    fn test_files_are_those_that_are_declared_for_tests() {
        let mut sources = [
            Source::new("src/a/mod.rs", "mod b; #[cfg(all(test, loom))] mod models;"),
            Source::new("src/a/b.rs", "c::d;"),
            Source::new("src/a/models.rs", "c::d;"),
            Source::new("src/a/models/more.rs", "c::d;"),
            Source::new("tests/x.rs", "c::d;"),
        ];
        mark_test_files(&mut sources);
        let tests = sources[1..].iter().map(|s| s.named()[0].test).collect::<Vec<_>>();
        assert_eq!(tests, [false, true, true, true]);
    }

    #[test]
    fn functions_are_measured() {
        let text = "fn one() {}\nfn three(\n) -> u8 {\n}\ntrait T { fn none(); }\n";
        let source = Source::new("src/a.rs", text);
        let found: Vec<_> = source.functions().iter().map(|f| (f.name, f.line, f.lines)).collect();
        assert_eq!(found, [("one", 1, 1), ("three", 2, 3)]);
    }
}
