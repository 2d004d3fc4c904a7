//! Small pictures as SVG: bars, and lines over an axis. Written by hand, because that is all that is needed.

use std::fmt::Write as _;

const WIDTH: f64 = 720.0;
const LEFT: f64 = 190.0;
const RIGHT: f64 = 110.0;
const TOP: f64 = 64.0;
const COLOURS: [&str; 4] = ["#2563eb", "#d97706", "#6b7280", "#059669"];

/// Horizontal bars, each with its value written behind it. A goal is a dashed line.
pub(crate) fn bars(title: &str, subtitle: &str, bars: &[(String, f64)], goal: Option<f64>) -> String {
    let most = bars.iter().map(|(_, value)| *value).chain(goal).fold(f64::MIN_POSITIVE, f64::max);
    let scale = (WIDTH - LEFT - RIGHT) / most;
    let height = TOP + bars.len() as f64 * 30.0 + 24.0;
    let mut out = head(title, subtitle, height);
    for (index, (label, value)) in bars.iter().enumerate() {
        let (y, width) = (TOP + index as f64 * 30.0, (value * scale).max(1.0));
        let colour = if index == 0 { COLOURS[0] } else { COLOURS[2] };
        text(&mut out, LEFT - 8.0, y + 15.0, "end", label);
        let _ = writeln!(out, r#"<rect x="{LEFT}" y="{y}" width="{width:.1}" height="20" rx="2" fill="{colour}"/>"#);
        text(&mut out, LEFT + width + 6.0, y + 15.0, "start", &short(*value));
    }
    if let Some(goal) = goal {
        let (x, end) = (LEFT + goal * scale, height - 22.0);
        let _ = writeln!(
            out,
            r##"<path d="M{x:.1} {:.1}V{end:.1}" stroke="#dc2626" stroke-dasharray="4 3" fill="none"/>"##,
            TOP - 6.0
        );
        text(&mut out, x, height - 8.0, "middle", &format!("goal {}", short(goal)));
    }
    out + "</svg>\n"
}

/// A named line.
pub(crate) type Series = (String, Vec<(f64, f64)>);

/// Lines over a common axis. With `logarithmic`, the lower axis counts in powers of ten.
pub(crate) fn lines(title: &str, subtitle: &str, axes: (&str, &str), series: &[Series], logarithmic: bool) -> String {
    let height = 360.0;
    let (left, bottom, right) = (70.0, height - 46.0, WIDTH - 170.0);
    let points = || series.iter().flat_map(|(_, points)| points);
    let place = |x: f64| if logarithmic { x.max(0.05).log10() } else { x };
    let (low, high) =
        points().fold((f64::MAX, f64::MIN), |(low, high), (x, _)| (low.min(place(*x)), high.max(place(*x))));
    let most = points().fold(f64::MIN_POSITIVE, |most, (_, y)| most.max(*y));
    let at_x = |x: f64| left + (place(x) - low) / (high - low).max(f64::MIN_POSITIVE) * (right - left);
    let at_y = |y: f64| bottom - y / most * (bottom - TOP);
    let mut out = head(title, subtitle, height);
    let _ = writeln!(out, r##"<path d="M{left} {TOP}V{bottom}H{right}" stroke="#9ca3af" fill="none"/>"##);
    for step in 0..=4 {
        let share = f64::from(step) / 4.0;
        let x = low + (high - low) * share;
        let value = if logarithmic { 10_f64.powf(x) } else { x };
        text(&mut out, at_x(value), bottom + 18.0, "middle", &short(value));
        text(&mut out, left - 6.0, at_y(most * share) + 4.0, "end", &short(most * share));
    }
    text(&mut out, (left + right) / 2.0, height - 8.0, "middle", axes.0);
    text(&mut out, left, TOP - 8.0, "middle", axes.1);
    for (index, (name, points)) in series.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let path: Vec<String> = points.iter().map(|(x, y)| format!("{:.1} {:.1}", at_x(*x), at_y(*y))).collect();
        let _ = writeln!(out, r#"<path d="M{}" stroke="{colour}" stroke-width="2" fill="none"/>"#, path.join("L"));
        let y = TOP + 16.0 + index as f64 * 20.0;
        let _ = writeln!(out, r#"<rect x="{}" y="{}" width="12" height="4" fill="{colour}"/>"#, right + 12.0, y - 6.0);
        text(&mut out, right + 30.0, y, "start", name);
    }
    out + "</svg>\n"
}

fn head(title: &str, subtitle: &str, height: f64) -> String {
    let mut out = format!(
        concat!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {}" font-family="sans-serif" font-size="12">"#,
            "\n",
            r##"<rect width="100%" height="100%" fill="#ffffff"/>"##,
            "\n"
        ),
        WIDTH, height
    );
    let _ = writeln!(
        out,
        r##"<text x="12" y="22" font-size="15" font-weight="bold" fill="#111827">{}</text>"##,
        safe(title)
    );
    let _ = writeln!(out, r##"<text x="12" y="40" fill="#6b7280">{}</text>"##, safe(subtitle));
    out
}

fn text(out: &mut String, x: f64, y: f64, anchor: &str, text: &str) {
    let _ =
        writeln!(out, r##"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" fill="#374151">{}</text>"##, safe(text));
}

fn safe(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

/// Three significant digits, thousands as such.
fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 1e6 => format!("{:.2} M", value / 1e6),
        size if size >= 1e4 => format!("{:.0} k", value / 1e3),
        size if size >= 1e3 => format!("{:.1} k", value / 1e3),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let written: Vec<String> = [0.5, 12.34, 345.6, 1234.0, 56_789.0, 1_234_567.0].into_iter().map(short).collect();
        assert_eq!(written, ["0.50", "12.3", "346", "1.2 k", "57 k", "1.23 M"]);
    }

    #[test]
    fn a_longer_bar_is_a_larger_value() {
        let svg = bars("a < b", "", &[("one".to_owned(), 1.0), ("two".to_owned(), 2.0)], Some(1.5));
        let widths: Vec<f64> = svg
            .lines()
            .filter_map(|line| {
                line.strip_prefix("<rect x=\"190\"")?.split("width=\"").nth(1)?.split('"').next()?.parse().ok()
            })
            .collect();
        assert_eq!(widths, [210.0, 420.0]);
        assert!(svg.contains("a &lt; b") && svg.contains("goal 1.50") && svg.ends_with("</svg>\n"));
    }
}
