//! Plots as SVG, written by hand: no fonts, no bitmaps, the same bytes each time.
//!
//! Colours are CSS variables, with values for light and dark; a page that contains the drawings defines them once
//! ([`STYLE`]), a file of its own carries them. The palette is that of Okabe and Ito, which colour-blind readers
//! tell apart; series differ in dashes besides.

use std::fmt::Write;

use super::plot::{Bars, Lines, Plot, Scale, Series, Style, What, thinned};
use super::report::number;

/// Colours and strokes.
pub(super) const STYLE: &str = "\
:root{color-scheme:light dark;--paper:#fff;--ink:#1f2328;--soft:#59636e;--grid:#e3e7eb;--axis:#8c959f;\
--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#b0589a;--c4:#b07d00;--c5:#4b5563;--c6:#0a9bb0;--c7:#7a4b00;\
--good:#1a7f37;--bad:#cf222e;--shade:#0072b214;--mark:#59636e;--hot:#d55e00;--pause:#b0589a}\
@media(prefers-color-scheme:dark){:root{--paper:#0d1117;--ink:#e6edf3;--soft:#9198a1;--grid:#252b33;--axis:#656c76;\
--c0:#58a6e0;--c1:#ff8c42;--c2:#3fc79a;--c3:#e08fc6;--c4:#e3b341;--c5:#aeb8c4;--c6:#56d4e4;--c7:#c99b5f;\
--good:#3fb950;--bad:#ff7b72;--shade:#58a6e01f;--mark:#9198a1;--hot:#ff8c42;--pause:#e08fc6}}\
svg{font:12px system-ui,sans-serif;background:var(--paper)}svg text{fill:var(--ink)}svg .soft{fill:var(--soft)}\
svg .title{font-size:14px;font-weight:600}svg .grid{stroke:var(--grid);fill:none}svg .axis{stroke:var(--axis);fill:none}\
svg .line{fill:none;stroke-width:1.8;stroke-linejoin:round}svg .level{stroke:var(--mark);stroke-dasharray:6 4;fill:none}\
svg .shade{fill:var(--shade)}svg .end{text-anchor:end}svg .mid{text-anchor:middle}\
svg .cursor{stroke:var(--axis);visibility:hidden}svg .halo{paint-order:stroke;stroke:var(--paper);stroke-width:4px}\
svg .want{fill:var(--mark);fill-opacity:.35}svg .wantmid{stroke:var(--ink);stroke-width:2}";

/// Series in different colours.
const COLOURS: usize = 8;
const DASHES: [&str; 4] = ["", "7 3", "2 3", "9 3 2 3"];
const WIDTH: f64 = 780.0;
/// Height of the part with the data.
const HEIGHT: f64 = 280.0;
const LEFT: f64 = 64.0;
/// Columns that lines are thinned to.
const COLUMNS: usize = 360;

/// A finished drawing.
#[derive(Clone, Debug)]
pub(super) struct Svg {
    /// The element, without colours.
    pub(super) element: String,
    /// What the hover readout of the page needs, as JSON; empty if there is none.
    pub(super) data: String,
}

impl Svg {
    /// The drawing as a file of its own.
    pub(super) fn file(&self) -> String {
        let style = format!("><style>{STYLE}</style>");
        let mut text = self.element.replacen('>', &style, 1);
        text.push('\n');
        text
    }
}

/// Text for between tags and in attributes.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A place: a tenth of a pixel is enough.
pub(super) fn px(at: f64) -> String {
    let text = format!("{at:.1}");
    let text = text.strip_suffix(".0").unwrap_or(&text);
    if text == "-0" { "0".into() } else { text.into() }
}

/// Pixels that a text of 12 px takes, about, and rather too many.
pub(super) fn width(text: &str) -> f64 {
    text.chars().map(|c| if c.is_ascii_uppercase() || c == 'm' { 8.6 } else { 6.8 }).sum()
}

/// The beginning of a drawing.
pub(super) fn open(width: f64, height: f64, title: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {w} {h}\" width=\"{w}\" height=\"{h}\" role=\"img\" \
         aria-label=\"{}\">",
        escaped(title),
        w = px(width),
        h = px(height)
    )
}

/// A piece of text. `class` is what it looks like.
pub(super) fn text(to: &mut String, x: f64, y: f64, class: &str, what: &str) {
    let (x, y) = (px(x), px(y));
    let _ = write!(to, "<text x=\"{x}\" y=\"{y}\" class=\"{class}\">{}</text>", escaped(what));
}

/// A straight line.
pub(super) fn line(to: &mut String, from: (f64, f64), until: (f64, f64), rest: &str) {
    let [x1, y1, x2, y2] = [from.0, from.1, until.0, until.1].map(px);
    let _ = write!(to, "<line x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\" {rest}/>");
}

pub(super) fn rect(to: &mut String, x: f64, y: f64, size: (f64, f64), rest: &str) {
    let [x, y, w, h] = [x, y, size.0.max(0.0), size.1.max(0.0)].map(px);
    let _ = write!(to, "<rect x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\" {rest}/>");
}

/// Draws a plot.
pub(super) fn draw(plot: &Plot) -> Svg {
    match &plot.what {
        What::Lines(lines) => draw_lines(&plot.title, lines),
        What::Bars(bars) => draw_bars(&plot.title, bars),
    }
}

/// The stroke of a series.
fn stroke(index: usize, style: Style) -> String {
    let dash = if style == Style::Dashed { "5 4" } else { DASHES[index / COLOURS % DASHES.len()] };
    let dash =
        if dash.is_empty() { String::new() } else { format!(" stroke-dasharray=\"{dash}\"") };
    format!("style=\"stroke:var(--c{})\"{dash}", index % COLOURS)
}

/// Places for the names of the series: (x, row), and the number of rows.
fn legend_places(series: &[Series]) -> (Vec<(f64, usize)>, usize) {
    let (mut x, mut row) = (LEFT, 0);
    let mut places = Vec::new();
    for s in series {
        let wide = 34.0 + width(&s.name);
        if x + wide > WIDTH - 8.0 && x > LEFT {
            (x, row) = (LEFT, row + 1);
        }
        places.push((x, row));
        x += wide;
    }
    (places, if series.is_empty() { 0 } else { row + 1 })
}

#[expect(clippy::cast_precision_loss, reason = "of rows of a legend")]
fn draw_lines(title: &str, lines: &Lines) -> Svg {
    let (places, rows) = legend_places(&lines.series);
    let top = 34.0 + rows as f64 * 18.0 + 6.0;
    let right = lines.levels.iter().map(|l| width(&l.label) + 10.0).fold(18.0, f64::max);
    let (x_px, y_px) = ((LEFT, WIDTH - right), (top + HEIGHT, top));
    let points = || lines.series.iter().flat_map(|s| &s.points);
    let x = Scale::over(&lines.x, points().map(|p| p.0), false, x_px);
    let levels = lines.levels.iter().map(|l| l.at);
    let y = Scale::over(&lines.y, points().map(|p| p.1).chain(levels), true, y_px);
    let height = top + HEIGHT + 46.0;

    let mut to = open(WIDTH, height, title);
    text(&mut to, LEFT, 22.0, "title", title);
    for ((place, row), (i, s)) in places.into_iter().zip(lines.series.iter().enumerate()) {
        let middle = 42.0 + row as f64 * 18.0;
        legend_mark(&mut to, place, middle, i, s.style);
        text(&mut to, place + 27.0, middle + 4.0, "", &s.name);
    }
    if let Some((from, until)) = lines.window {
        let (from, until) = (x.at(from.max(x.from)), x.at(until.min(x.to)));
        rect(&mut to, from, top, (until - from, HEIGHT), "class=\"shade\"");
    }
    axes(&mut to, lines, &x, &y);
    for (i, s) in lines.series.iter().enumerate() {
        draw_series(&mut to, i, s, &x, &y);
    }
    draw_levels(&mut to, lines, &x, &y);
    line(&mut to, (LEFT, y.px.1), (LEFT, y.px.0), "class=\"cursor\"");
    to.push_str("</svg>");
    let data = hover_data(lines, &x, &y);
    Svg { element: to, data }
}

fn legend_mark(to: &mut String, x: f64, y: f64, index: usize, style: Style) {
    if style == Style::Dots {
        let (cx, cy) = (px(x + 11.0), px(y));
        let colour = index % COLOURS;
        let _ = write!(
            to,
            "<circle cx=\"{cx}\" cy=\"{cy}\" r=\"3.5\" style=\"fill:var(--c{colour})\"/>"
        );
    } else {
        line(to, (x, y), (x + 22.0, y), &format!("class=\"line\" {}", stroke(index, style)));
    }
}

fn axes(to: &mut String, lines: &Lines, x: &Scale, y: &Scale) {
    let (bottom, top) = y.px;
    for (value, label) in y.ticks(6.0) {
        let at = y.at(value);
        line(to, (x.px.0, at), (x.px.1, at), "class=\"grid\"");
        text(to, x.px.0 - 8.0, at + 4.0, "soft end", &label);
    }
    let mut free = f64::NEG_INFINITY;
    for (value, label) in x.ticks(8.0) {
        let (at, half) = (x.at(value), width(&label) / 2.0);
        line(to, (at, bottom), (at, bottom + 5.0), "class=\"axis\"");
        // Logarithmic ticks come close to each other.
        if at - half > free {
            text(to, at, bottom + 19.0, "soft mid", &label);
            free = at + half + 4.0;
        }
    }
    line(to, (x.px.0, bottom), (x.px.1, bottom), "class=\"axis\"");
    line(to, (x.px.0, top), (x.px.0, bottom), "class=\"axis\"");
    let middle = f64::midpoint(x.px.0, x.px.1);
    text(to, middle, bottom + 38.0, "mid", &lines.x.text());
    let (cx, cy) = (px(15.0), px(f64::midpoint(bottom, top)));
    let label = escaped(&lines.y.text());
    let _ = write!(
        to,
        "<text transform=\"translate({cx} {cy}) rotate(-90)\" class=\"mid\">{label}</text>"
    );
}

fn draw_series(to: &mut String, index: usize, series: &Series, x: &Scale, y: &Scale) {
    let usable = |&&(a, b): &&(f64, f64)| {
        a.is_finite() && b.is_finite() && (!x.log || a > 0.0) && (!y.log || b > 0.0)
    };
    let points: Vec<(f64, f64)> = series.points.iter().filter(usable).copied().collect();
    let colour = index % COLOURS;
    if series.style == Style::Dots {
        for &(a, b) in &points {
            let (cx, cy) = (px(x.at(a)), px(y.at(b)));
            let _ = write!(
                to,
                "<circle cx=\"{cx}\" cy=\"{cy}\" r=\"3.5\" style=\"fill:var(--c{colour})\"/>"
            );
        }
        return;
    }
    let mut path = String::new();
    let mut before = None;
    for (a, b) in thinned(&points, COLUMNS) {
        let (at_x, at_y) = (px(x.at(a)), px(y.at(b)));
        match before {
            None => {
                let _ = write!(path, "M{at_x} {at_y}");
            }
            Some(_) if series.style == Style::Step => {
                let _ = write!(path, "H{at_x}V{at_y}");
            }
            Some(_) => {
                let _ = write!(path, "L{at_x} {at_y}");
            }
        }
        before = Some(());
    }
    let stroke = stroke(index, series.style);
    let _ = write!(to, "<path d=\"{path}\" class=\"line\" {stroke}/>");
}

/// The levels, with their names at the right, pushed apart where they would overlap.
fn draw_levels(to: &mut String, lines: &Lines, x: &Scale, y: &Scale) {
    let mut levels: Vec<_> = lines.levels.iter().collect();
    levels.sort_by(|a, b| a.at.total_cmp(&b.at));
    let mut above = f64::INFINITY;
    for level in levels {
        let at = y.at(level.at).clamp(y.px.1, y.px.0);
        line(to, (x.px.0, at), (x.px.1, at), "class=\"level\"");
        let label = (at + 4.0).min(above);
        text(to, x.px.1 + 6.0, label, "soft", &level.label);
        above = label - 14.0;
    }
}

/// Where the data is and what it says, for the readout of the page.
fn hover_data(lines: &Lines, x: &Scale, y: &Scale) -> String {
    let mut to = format!(
        "{{\"px\":[{},{}],\"x\":[{},{}],\"log\":{},\"name\":{},\"unit\":{},\"ys\":{},\"height\":[{},{}],\"series\":[",
        px(x.px.0),
        px(x.px.1),
        x.from,
        x.to,
        x.log,
        json(&lines.x.label),
        json(lines.x.unit),
        json(lines.y.unit),
        px(y.px.1),
        px(y.px.0),
    );
    for (i, s) in lines.series.iter().enumerate() {
        let comma = if i > 0 { "," } else { "" };
        let _ = write!(to, "{comma}{{\"name\":{},\"at\":[", json(&s.name));
        let finite = s.points.iter().filter(|(a, b)| a.is_finite() && b.is_finite());
        let finite: Vec<_> = finite.copied().collect();
        for (k, (a, b)) in thinned(&finite, COLUMNS).into_iter().enumerate() {
            let comma = if k > 0 { "," } else { "" };
            let _ = write!(to, "{comma}[{},{}]", number(a), number(b));
        }
        to.push_str("]}");
    }
    to.push_str("]}");
    to
}

/// A value as it stands beside its bar.
fn four_digits(value: f64) -> String {
    if value.abs() >= 1e4 {
        return number(value.round());
    }
    let text = format!("{value:.3e}");
    number(text.parse().unwrap_or(value))
}

/// A JSON string that may also stand in a script element.
pub(super) fn json(text: &str) -> String {
    let quoted = serde_json::to_string(text).unwrap_or_else(|_| "\"\"".into());
    quoted.replace('<', "\\u003c")
}

#[expect(clippy::cast_precision_loss, reason = "of bars")]
fn draw_bars(title: &str, bars: &Bars) -> Svg {
    let (row, top) = (26.0, 36.0);
    let left = bars.bars.iter().map(|b| width(&b.label) + 20.0).fold(60.0, f64::max).min(320.0);
    let texts: Vec<String> = bars.bars.iter().map(|b| four_digits(b.value)).collect();
    let right = texts.iter().map(|t| width(t) + 20.0).fold(40.0, f64::max);
    let tall = bars.bars.len() as f64 * row;
    let ends = bars.bars.iter().flat_map(|b| [b.value, b.expected.map_or(0.0, |e| e.1)]);
    let axis = super::plot::Axis::default();
    let x = Scale::over(&axis, ends, true, (left, WIDTH - right));
    let bottom = top + tall;
    let mut to = open(WIDTH, bottom + 46.0, title);
    text(&mut to, 8.0, 22.0, "title", title);
    for (value, label) in x.ticks(6.0) {
        let at = x.at(value);
        line(&mut to, (at, top), (at, bottom), "class=\"grid\"");
        text(&mut to, at, bottom + 18.0, "soft mid", &label);
    }
    for (i, (bar, label)) in bars.bars.iter().zip(&texts).enumerate() {
        let y = (i as f64).mul_add(row, top);
        text(&mut to, left - 8.0, y + 17.0, "end", &bar.label);
        let colour = bar.group % COLOURS;
        let end = x.at(bar.value);
        let fill = format!("rx=\"2\" style=\"fill:var(--c{colour})\" fill-opacity=\".85\"");
        rect(&mut to, left, y + 5.0, (end - left, row - 10.0), &fill);
        let mut beyond = end;
        if let Some((from, until)) = bar.expected {
            let (from, until) = (x.at(from), x.at(until));
            rect(&mut to, from, y + 2.0, ((until - from).max(2.0), row - 4.0), "class=\"want\"");
            let middle = f64::midpoint(from, until);
            line(&mut to, (middle, y + 2.0), (middle, y + row - 2.0), "class=\"wantmid\"");
            beyond = beyond.max(until);
        }
        text(&mut to, beyond + 6.0, y + 17.0, "halo", label);
    }
    line(&mut to, (left, top), (left, bottom), "class=\"axis\"");
    let expects = bars.bars.iter().any(|b| b.expected.is_some());
    let unit =
        if expects { format!("{}; marks: what is expected", bars.unit) } else { bars.unit.into() };
    text(&mut to, f64::midpoint(left, WIDTH - right), bottom + 38.0, "mid", &unit);
    to.push_str("</svg>");
    Svg { element: to, data: String::new() }
}

#[cfg(test)]
mod tests {
    use super::super::plot::{Axis, Bar, Level};
    use super::*;

    fn lines() -> Lines {
        let points =
            |n: u32| (0..2000).map(|i| (f64::from(i) / 100.0, f64::from(i * n % 97))).collect();
        Lines {
            x: Axis::new("time", "ms"),
            y: Axis::new("queue", "KB"),
            series: vec![
                Series::new("a <b> & c", points(3)),
                Series::new("theory", points(5)).style(Style::Dashed),
                Series::new("samples", vec![(1.0, 2.0), (3.0, f64::NAN)]).style(Style::Dots),
                Series::cdf("steps", vec![1.0, 2.0, 3.0]),
            ],
            levels: vec![Level::new(50.0, "Kmin"), Level::new(51.0, "Kmax")],
            window: Some((5.0, 15.0)),
        }
    }

    /// Tags are closed and attributes quoted, as far as counting tells.
    #[track_caller]
    fn well_formed(text: &str) {
        assert!(text.starts_with("<svg ") && text.trim_end().ends_with("</svg>"), "{text}");
        for tag in ["svg", "text", "style"] {
            let (open, close) = (format!("<{tag}"), format!("</{tag}>"));
            assert_eq!(text.matches(&open).count(), text.matches(&close).count(), "{tag}");
        }
        assert_eq!(text.matches('"').count() % 2, 0);
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    }

    #[test]
    fn lines_are_drawn() {
        let plot = Plot { id: "q".into(), title: "Queue".into(), what: What::Lines(lines()) };
        let svg = draw(&plot);
        well_formed(&svg.element);
        well_formed(&svg.file());
        assert_eq!(svg.element, draw(&plot).element);
        for text in
            ["Queue", "a &lt;b&gt; &amp; c", "time (ms)", "queue (KB)", "Kmin", "class=\"shade\""]
        {
            assert!(svg.element.contains(text), "no {text}");
        }
        assert!(svg.file().contains("prefers-color-scheme:dark"));
        let data: serde_json::Value = serde_json::from_str(&svg.data).unwrap();
        assert_eq!(data["series"].as_array().map(Vec::len), Some(4));
        assert_eq!(data["series"][2]["at"], serde_json::json!([[1, 2]]));
        assert!(!svg.data.contains('<'));
    }

    /// Names of levels that are close to each other do not overlap.
    #[test]
    fn names_of_levels_keep_their_distance() {
        let plot = Plot { id: "q".into(), title: "Queue".into(), what: What::Lines(lines()) };
        let svg = draw(&plot).element;
        let y_of = |name: &str| -> f64 {
            let end = svg.find(&format!(" class=\"soft\">{name}<")).unwrap();
            let from = svg[..end].rfind("y=\"").unwrap() + 3;
            svg[from..end].trim_end_matches('"').parse().unwrap()
        };
        assert!(y_of("Kmin") - y_of("Kmax") >= 13.9);
    }

    #[test]
    fn bars_are_drawn() {
        let bars = Bars {
            unit: "Gbit/s",
            bars: vec![Bar::new("H1", 6.17).expected(6.172, 0.01), Bar::new("H4", 18.5).group(1)],
        };
        let svg = draw(&Plot { id: "b".into(), title: "Rates".into(), what: What::Bars(bars) });
        well_formed(&svg.element);
        for text in ["H1", "6.17", "class=\"want\"", "Gbit/s; marks"] {
            assert!(svg.element.contains(text), "no {text}");
        }
    }

    #[test]
    fn nothing_is_drawn_too() {
        for what in [What::Lines(Lines::default()), What::Bars(Bars::default())] {
            well_formed(&draw(&Plot { id: "n".into(), title: String::new(), what }).element);
        }
    }
}
