//! A metric that was measured at several places, as lines: `NAME.PLACE.SERIES`, with a number for
//! the place. One line for each series, from the least place to the greatest.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::picture::{Picture, ROW, TITLE};
use crate::summary::{Spread, Summary, number};

/// Charts of these units are lines; all others are bars.
pub(crate) const OF_UNPROTECTED: &str = "% of low=0";
pub(crate) const OF_CACHE: &str = "% of the cache";
const UNITS: [&str; 2] = [OF_UNPROTECTED, OF_CACHE];

const LEFT: f64 = 260.0;
const WIDTH: f64 = 520.0;
const HEIGHT: f64 = 260.0;
const COLOURS: [&str; 6] = ["#000000", "#4477aa", "#ee6677", "#ccbb44", "#228833", "#66ccee"];

/// The points of each series, by place.
type Series = Vec<(String, BTreeMap<u32, Spread>)>;

/// Series in the order in which they first came.
fn series(summary: &Summary, unit: &str) -> Series {
    let mut all: Series = Vec::new();
    for metric in summary.metrics().iter().filter(|metric| metric.unit == unit) {
        let words: Vec<&str> = metric.name.splitn(3, '.').collect();
        let [_, place, name] = words[..] else { continue };
        let Ok(place) = place.parse() else { continue };
        for &kind in summary.kinds() {
            let Some(spread) = summary.spread(kind, metric) else { continue };
            let at = all.iter().position(|(series, _)| series == name).unwrap_or_else(|| {
                all.push((name.to_owned(), BTreeMap::new()));
                all.len() - 1
            });
            all[at].1.insert(place, spread);
        }
    }
    all
}

/// Whether metrics of this unit are drawn here.
pub(super) fn are_of(unit: &str) -> bool {
    UNITS.contains(&unit)
}

/// Draws all series, if there are any.
pub(super) fn draw(summary: &Summary, picture: &mut Picture) {
    UNITS.iter().for_each(|unit| draw_chart(summary, unit, picture));
}

fn draw_chart(summary: &Summary, unit: &str, picture: &mut Picture) {
    let all = series(summary, unit);
    let places = all.iter().flat_map(|(_, points)| points.keys()).copied();
    let Some(last) = places.max().filter(|last| *last > 0) else { return };
    let points = || all.iter().flat_map(|(_, points)| points.values());
    let most = points().map(|spread| spread.max).fold(f64::MIN_POSITIVE, f64::max);
    picture.y += TITLE;
    picture.title(&format!("groups, {unit}"));
    let (top, bottom) = (f64::from(picture.y), f64::from(picture.y) + HEIGHT);
    let x = |place: u32| LEFT + f64::from(place) / f64::from(last) * WIDTH;
    let y = |value: f64| bottom - value.max(0.0) / most * HEIGHT;
    let (right, shapes) = (LEFT + WIDTH, &mut picture.shapes);
    let _ = writeln!(shapes, r#"<path d="M{LEFT} {top}V{bottom}H{right}"/>"#);
    for ((name, points), colour) in all.iter().zip(COLOURS.iter().cycle()) {
        let mut line = String::new();
        for (place, Spread { median, min, max }) in points {
            let (at, value) = (x(*place), y(*median));
            let to = if line.is_empty() { 'M' } else { 'L' };
            let _ = write!(line, "{to}{at:.1} {value:.1}");
            let _ = writeln!(
                shapes,
                r#"<path d="M{at:.1} {:.1}V{:.1}" style="stroke: {colour}"/>"#,
                y(*min),
                y(*max)
            );
        }
        let dashes = if name == "ideal" { "; stroke-dasharray: 6" } else { "" };
        let _ = writeln!(shapes, r#"<path d="{line}" style="stroke: {colour}{dashes}"/>"#);
    }
    for place in points_of(&all) {
        let at = x(place);
        let under = bottom + 14.0;
        let _ = writeln!(
            shapes,
            r#"<text x="{at:.1}" y="{under}" text-anchor="middle">{place}</text>"#
        );
    }
    let _ = writeln!(
        shapes,
        r#"<text x="{}" y="{}" text-anchor="end">{}</text>"#,
        LEFT - 8.0,
        top + 4.0,
        number(most)
    );
    for (at, ((name, _), colour)) in all.iter().zip(COLOURS.iter().cycle()).enumerate() {
        let (x, y) = (LEFT + WIDTH + 16.0, top + 14.0 * (at as f64 + 1.0));
        let _ = writeln!(shapes, r#"<text x="{x}" y="{y}" fill="{colour}">{name}</text>"#);
    }
    picture.y += HEIGHT as u32 + 2 * ROW;
}

/// All places, each once.
fn points_of(all: &Series) -> std::collections::BTreeSet<u32> {
    all.iter().flat_map(|(_, points)| points.keys().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::sample::Sample;
    use crate::target::Kind;

    #[test]
    fn each_series_is_a_line_from_the_least_place_to_the_greatest() {
        let mut summary = Summary::new(Machine::example(), &[Kind::Copyhold], 1);
        let of = |place: u32, name: &str, value| {
            Sample::new(&format!("curve.{place}"), name, OF_UNPROTECTED, value)
        };
        let samples = vec![of(20, "ideal", 0.0), of(10, "ideal", 50.0), of(0, "ideal", 100.0)];
        summary.add("groups", Kind::Copyhold, samples);
        summary.add("groups", Kind::Copyhold, vec![of(0, "binary", 100.0)]);
        let mut picture = Picture { shapes: String::new(), y: 0 };
        draw(&summary, &mut picture);
        // 100 is on top, at 0; 50 in the middle; 0 at the bottom, at 20.
        let line = r#"d="M260.0 40.0L520.0 170.0L780.0 300.0" style="stroke: #000000; stroke-dash"#;
        assert!(picture.shapes.contains(line), "{}", picture.shapes);
        assert_eq!(picture.shapes.matches("stroke: #4477aa").count(), 2, "{}", picture.shapes);
    }
}
