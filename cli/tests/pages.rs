//! Pages of `softroce lab` in a browser: no error on the console, every plot there, values under the pointer.

#[path = "lab/dir.rs"]
mod dir;
#[path = "../../tests/common/process.rs"]
mod process;
#[path = "../../tests/common/skip.rs"]
mod skip;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use dir::Dir;
use process::{Finished, Running};
use skip::skip;

/// Names of the browser, by distribution.
const BROWSERS: [&str; 4] =
    ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

/// The browser, if there is one.
fn browser() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut places =
        std::env::split_paths(&path).flat_map(|dir| BROWSERS.map(|name| dir.join(name)));
    places.find(|place| place.is_file())
}

/// What a page has become when its scripts have run, and what the browser said.
fn opened(browser: &Path, profile: &Path, page: &Path, fragment: &str) -> Finished {
    let url = format!("file://{}{fragment}", page.display());
    let profile = format!("--user-data-dir={}", profile.display());
    let mut command = Command::new(browser);
    command
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
        .args(["--no-first-run", "--disable-extensions", "--host-resolver-rules=MAP * ~NOTFOUND"])
        .args(["--enable-logging=stderr", "--dump-dom", &profile, &url]);
    Running::start(&mut command).finish()
}

/// Errors that the page itself has made; the browser has others, about the machine.
fn console(stderr: &str) -> Vec<&str> {
    stderr.lines().filter(|line| line.contains(":CONSOLE:") || line.contains("CONSOLE(")).collect()
}

fn pages(dir: &Dir, names: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_softroce"));
    command.args(["lab", "run"]).args(names).args(["--short", "--out"]).arg(dir.path());
    Running::start(&mut command).finish().ok();
}

#[test]
fn pages_open_without_an_error() {
    let Some(browser) = browser() else { return skip("no Chromium in the path") };
    let dir = Dir::new("pages");
    let names = ["overhead", "parking-lot", "queue", "stability", "collectives"];
    pages(&dir, &names);
    let profile = dir.path().join("profile");
    for name in names {
        let page = dir.path().join(name).join("page.html");
        let source = fs::read_to_string(&page).unwrap();
        // With the name of a plot the page shows the values at its middle, as under a pointer.
        let first = source.split("data-plot=\"").nth(1).and_then(|rest| rest.split('"').next());
        let fragment = first.map_or(String::new(), |id| format!("#{id}"));
        let seen = opened(&browser, &profile, &page, &fragment);
        assert_eq!(console(&seen.stderr), [""; 0], "{name}");
        let plots = source.matches("<figure id=\"").count();
        let drawings = fs::read_dir(page.parent().unwrap()).unwrap();
        let files =
            drawings.filter(|f| f.as_ref().unwrap().path().extension().is_some_and(|e| e == "svg"));
        assert_eq!(plots, files.count(), "{name}: a plot in the page for each file");
        assert_eq!(seen.stdout.matches("</svg>").count(), plots, "{name}");
        let hovering = source.matches("data-plot=\"").count();
        let ran = format!("data-plots=\"{hovering}\"");
        assert!(seen.stdout.contains(&ran), "{name}: the script has not run");
        let mut readouts = seen.stdout.split("<output>").skip(1);
        let shown = hovering == 0 || readouts.any(|text| !text.starts_with('<'));
        assert!(shown, "{name}: no values under the pointer");
    }
    let seen = opened(&browser, &profile, &dir.path().join("index.html"), "");
    assert_eq!(console(&seen.stderr), [""; 0]);
    for name in names {
        assert!(seen.stdout.contains(&format!("{name}/page.html")), "{name}");
    }
}

/// The test above sees an error when there is one.
#[test]
fn an_error_on_the_console_is_found() {
    let Some(browser) = browser() else { return skip("no Chromium in the path") };
    let dir = Dir::new("pages-bad");
    let page = dir.path().join("bad.html");
    fs::write(&page, "<!doctype html><title>x</title><script>nothing.is.here();</script>").unwrap();
    let seen = opened(&browser, &dir.path().join("profile"), &page, "");
    let errors = console(&seen.stderr);
    assert!(errors.iter().any(|e| e.contains("ReferenceError")), "{}", seen.stderr);
}
