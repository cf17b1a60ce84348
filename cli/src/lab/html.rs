//! The page of an experiment: one file that needs nothing else, no network, no fonts.
//!
//! Colours are those of [`svg`](super::svg), for light and dark. A small script shows the values under the pointer;
//! without it the page says the same.

use std::fmt::Write;

use super::report::{Report, Row, Source, number};
use super::svg::{STYLE, Svg, draw, escaped};

const PAGE_STYLE: &str = "\
*{box-sizing:border-box}body{margin:0;background:var(--paper);color:var(--ink);\
font:16px/1.55 system-ui,-apple-system,'Segoe UI',sans-serif}main{max-width:840px;margin:0 auto;padding:28px 18px 60px}\
h1{font-size:1.7rem;line-height:1.25;margin:.2em 0 .3em}h2{font-size:1.15rem;margin:2.2em 0 .6em}\
.question{font-size:1.1rem;color:var(--soft);margin:0 0 1.4em}.verdict{display:inline-block;border-radius:99px;\
padding:.1em .8em;font-weight:600;border:1.5px solid}.ok{color:var(--good)}.fail{color:var(--bad)}\
table{border-collapse:collapse;width:100%;font-size:.9rem;font-variant-numeric:tabular-nums}\
.wide{overflow-x:auto}th{text-align:left;color:var(--soft);font-weight:600}th,td{padding:.34em .8em .34em 0;\
border-bottom:1px solid var(--grid);vertical-align:top}.num{text-align:right;white-space:nowrap}.unit{white-space:nowrap}.why{color:var(--soft)}\
figure{margin:1.2em 0}svg{width:100%;height:auto;display:block}output{display:block;min-height:1.6em;font-size:.85rem;\
color:var(--soft);font-variant-numeric:tabular-nums}code,pre{font:.86rem/1.5 ui-monospace,monospace}\
pre{background:var(--shade);padding:.8em 1em;border-radius:6px;overflow-x:auto}a{color:var(--c0)}\
.soft,li .soft{color:var(--soft)}nav{font-size:.9rem}td a{text-decoration:none;font-weight:600}";

/// Values under the pointer: for each plot a line at the nearest sample, and what the series say there.
const SCRIPT: &str = r#"
(function () {
  var figures = document.querySelectorAll('figure[data-plot]');
  figures.forEach(function (figure) {
    var data = JSON.parse(figure.querySelector('script').textContent);
    var svg = figure.querySelector('svg'), out = figure.querySelector('output');
    var cursor = svg.querySelector('.cursor'), ln = Math.log;
    var show = function (v) { return String(Number(v.toPrecision(4))); };
    var unit = function (u) { return u ? ' ' + u : ''; };
    var nearest = function (at, x) {
      var low = 0, high = at.length - 1;
      while (high - low > 1) {
        var mid = (low + high) >> 1;
        if (at[mid][0] <= x) { low = mid; } else { high = mid; }
      }
      if (!at.length) { return null; }
      return Math.abs(at[low][0] - x) <= Math.abs(at[high][0] - x) ? at[low] : at[high];
    };
    var move = function (event) {
      var box = svg.getBoundingClientRect();
      var px = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
      var part = (px - data.px[0]) / (data.px[1] - data.px[0]);
      if (part < 0 || part > 1) { leave(); return; }
      var from = data.x[0], to = data.x[1];
      var x = data.log ? from * Math.exp(part * ln(to / from)) : from + part * (to - from);
      cursor.setAttribute('x1', px); cursor.setAttribute('x2', px);
      cursor.style.visibility = 'visible';
      out.textContent = data.name + ' ' + show(x) + unit(data.unit) + ':  ' +
        data.series.map(function (s) {
          var point = nearest(s.at, x);
          return point ? s.name + ' ' + show(point[1]) + unit(data.ys) : '';
        }).filter(Boolean).join(',  ');
    };
    var leave = function () { cursor.style.visibility = 'hidden'; out.textContent = ''; };
    svg.addEventListener('pointermove', move);
    svg.addEventListener('pointerleave', leave);
    if (figure.dataset.plot === location.hash.slice(1)) {
      var box = svg.getBoundingClientRect();
      move({ clientX: box.left + box.width / 2 });
    }
  });
  document.documentElement.setAttribute('data-plots', figures.length);
}());
"#;

fn head(title: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<link rel=\"icon\" href=\"data:,\">\n\
         <title>{}</title>\n<style>{STYLE}{PAGE_STYLE}</style>\n</head>\n<body>\n<main>\n",
        escaped(title)
    )
}

const TAIL: &str = "</main>\n</body>\n</html>\n";

/// The page of one experiment. `up`: there is an index above it.
pub(super) fn page(report: &Report, up: bool) -> String {
    let mut to = head(&format!("{} - softroce lab", report.title));
    if up {
        to.push_str("<nav><a href=\"../index.html\">all experiments</a></nav>\n");
    }
    let _ = writeln!(to, "<h1>{}</h1>", escaped(&report.title));
    let _ = writeln!(to, "<p class=\"question\">{}</p>", escaped(&report.question));
    let passed = report.rows.iter().filter(|r| r.ok).count();
    let _ = writeln!(
        to,
        "<p>{} <span class=\"soft\">{passed} of {} numbers as expected; {} variant, seed {}</span></p>",
        badge(report.ok()),
        report.rows.len(),
        report.variant(),
        report.seed
    );
    if let Some(drawing) = &report.drawing {
        let Svg { element, .. } = drawing.draw(&format!("{}: network", report.title));
        let _ = writeln!(to, "<figure id=\"network\">{element}</figure>");
    }
    to.push_str("<h2>Numbers</h2>\n");
    to.push_str(&table(&report.rows));
    if !report.plots.is_empty() {
        to.push_str("<h2>Plots</h2>\n");
    }
    for plot in &report.plots {
        let Svg { element, data } = draw(plot);
        let id = escaped(&plot.id);
        if data.is_empty() {
            let _ = writeln!(to, "<figure id=\"{id}\">{element}</figure>");
        } else {
            let _ = writeln!(
                to,
                "<figure id=\"{id}\" data-plot=\"{id}\">{element}<output></output>\
                 <script type=\"application/json\">{data}</script></figure>"
            );
        }
    }
    if !report.lesson.is_empty() {
        to.push_str("<h2>What it shows</h2>\n");
    }
    for paragraph in &report.lesson {
        let _ = writeln!(to, "<p>{}</p>", escaped(paragraph));
    }
    to.push_str(&notes(report));
    let _ = writeln!(
        to,
        "<h2>Repeat it</h2>\n<pre>{}</pre>\n<p class=\"soft\">The same seed gives the same numbers. \
         Rules of this variant: {}</p>",
        escaped(&report.command()),
        escaped(&report.rules)
    );
    let _ = writeln!(to, "<script>{SCRIPT}</script>");
    to.push_str(TAIL);
    to
}

fn badge(ok: bool) -> &'static str {
    if ok {
        "<span class=\"verdict ok\">passed</span>"
    } else {
        "<span class=\"verdict fail\">failed</span>"
    }
}

fn table(rows: &[Row]) -> String {
    let mut to = String::from(
        "<div class=\"wide\"><table>\n<thead><tr><th></th><th>metric</th><th class=\"num\">measured</th><th></th>\
         <th class=\"num\">expected</th><th>tolerance</th><th>from</th></tr></thead>\n<tbody>\n",
    );
    for row in rows {
        let mark = if row.ok { "<td class=\"ok\">✓</td>" } else { "<td class=\"fail\">✗</td>" };
        let why = match &row.why {
            Some(why) => format!("<div class=\"why\">{}</div>", escaped(why)),
            None => String::new(),
        };
        let _ = writeln!(
            to,
            "<tr>{mark}<td>{}{why}</td><td class=\"num\">{}</td><td class=\"unit\">{}</td><td class=\"num\">{}</td><td>{}</td><td>{}</td></tr>",
            escaped(&row.metric),
            escaped(&number(row.value)),
            escaped(row.unit),
            escaped(&row.expected),
            escaped(&row.tolerance),
            row.source.name()
        );
    }
    to.push_str("</tbody>\n</table></div>\n");
    to
}

/// Remarks, and what the sources of the expected values are.
fn notes(report: &Report) -> String {
    let mut to = String::from("<h2>Sources</h2>\n<ul>\n");
    for note in &report.notes {
        let caution = note.source.map_or(String::new(), |s| {
            format!(" <span class=\"soft\">({})</span>", escaped(s.caution()))
        });
        let _ = writeln!(to, "<li>{}{caution}</li>", escaped(&note.text));
    }
    let sources = [
        Source::Exact,
        Source::Theory,
        Source::Oracle,
        Source::Published,
        Source::PublishedFromMemory,
        Source::Given,
        Source::Nothing,
    ];
    for source in sources {
        if report.rows.iter().any(|r| r.source == source) {
            let (name, what) = (source.name(), escaped(source.caution()));
            let _ = writeln!(to, "<li class=\"soft\"><b>{name}</b>: {what}</li>");
        }
    }
    to.push_str("</ul>\n");
    to
}

/// The page that leads to those of several experiments.
pub(super) fn index(reports: &[Report]) -> String {
    let mut to = head("softroce lab");
    let passed = reports.iter().filter(|r| r.ok()).count();
    let _ = writeln!(
        to,
        "<h1>softroce lab</h1>\n<p class=\"question\">Experiments with RoCE fabrics: the NIC's own transport on simulated \
         switches, each number beside what it should be.</p>\n<p>{} <span class=\"soft\">{passed} of {} \
         experiments</span></p>",
        badge(passed == reports.len()),
        reports.len()
    );
    to.push_str("<table>\n<thead><tr><th></th><th>experiment</th><th>question</th><th class=\"num\">numbers</th></tr></thead>\n<tbody>\n");
    for report in reports {
        let mark =
            if report.ok() { "<td class=\"ok\">✓</td>" } else { "<td class=\"fail\">✗</td>" };
        let good = report.rows.iter().filter(|r| r.ok).count();
        let _ = writeln!(
            to,
            "<tr>{mark}<td><a href=\"{}/page.html\">{}</a></td><td>{}</td><td class=\"num\">{good}/{}</td></tr>",
            in_link(&report.name),
            escaped(&report.title),
            escaped(&report.question),
            report.rows.len()
        );
    }
    to.push_str("</tbody>\n</table>\n");
    to.push_str(TAIL);
    to
}

/// A name as a part of a link: percent-encoded but for what is never anything else (RFC 3986, section 2.3).
fn in_link(name: &str) -> String {
    let mut to = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            to.push(char::from(byte));
        } else {
            let _ = write!(to, "%{byte:02X}");
        }
    }
    to
}

#[cfg(test)]
mod tests {
    use super::in_link;

    #[test]
    fn links_are_percent_encoded() {
        assert_eq!(in_link("parking-lot_1.0~"), "parking-lot_1.0~");
        assert_eq!(in_link("x #1%?\"é"), "x%20%231%25%3F%22%C3%A9");
    }
}
