//! A summary as bars, in SVG.
//!
//! One chart for each job and unit, so that what is in a chart has one scale. A metric has a bar
//! for each target, of the median; a line across its end goes from the least to the greatest value
//! of all rounds. On top stands where it was measured. Bars, lines and text are all that it takes,
//! so it is written out by hand. Metrics of several places are drawn as `lines`.

mod lines;
mod picture;

pub(crate) use lines::{OF_CACHE, OF_UNPROTECTED};

use std::fmt::Write;

use crate::summary::{Metric, Spread, Summary, number};
use crate::target::Kind;
use picture::{MARGIN, Picture, ROW, TITLE};

/// Where bars begin: names of metrics stand left of it.
const LEFT: u32 = 260;
/// The length of the longest bar; its figure stands right of it.
const LONGEST: u32 = 520;
/// Between two metrics.
const GAP: u32 = 6;

/// The whole picture; bars of those metrics that are to be drawn.
pub(crate) fn svg(summary: &Summary, is_drawn: impl Fn(&Metric) -> bool) -> String {
    let mut picture = Picture { shapes: String::new(), y: MARGIN };
    for line in summary.machine().to_string().lines() {
        picture.text(MARGIN, "start", line);
        picture.y += ROW;
    }
    lines::draw(summary, &mut picture);
    for chart in charts(summary, is_drawn) {
        chart.draw(&mut picture);
    }
    picture.end()
}

/// Metrics of one job in one unit.
struct Chart<'a> {
    title: (&'static str, &'static str),
    bars: Vec<Bar<'a>>,
    greatest: f64,
}

struct Bar<'a> {
    metric: &'a Metric,
    kind: Kind,
    spread: Spread,
}

/// In the order in which metrics first came.
fn charts(summary: &Summary, is_drawn: impl Fn(&Metric) -> bool) -> Vec<Chart<'_>> {
    let mut charts: Vec<Chart<'_>> = Vec::new();
    let has_bars = |metric: &&Metric| !lines::are_of(metric.unit) && is_drawn(metric);
    for metric in summary.metrics().iter().filter(has_bars) {
        let title = (metric.job, metric.unit);
        let found = charts.iter().position(|chart| chart.title == title);
        let index = found.unwrap_or_else(|| {
            charts.push(Chart { title, bars: Vec::new(), greatest: 0.0 });
            charts.len() - 1
        });
        for &kind in summary.kinds() {
            let Some(spread) = summary.spread(kind, metric) else { continue };
            charts[index].greatest = charts[index].greatest.max(spread.max);
            charts[index].bars.push(Bar { metric, kind, spread });
        }
    }
    charts
}

impl Chart<'_> {
    fn draw(&self, picture: &mut Picture) {
        let (job, unit) = self.title;
        picture.y += TITLE;
        picture.title(&format!("{job}, {unit}"));
        picture.y += GAP;
        let mut above = None;
        for bar in &self.bars {
            if above != Some(&bar.metric.name) {
                picture.y += if above.is_some() { GAP } else { 0 };
                picture.text(LEFT - 8, "end", bar.metric.name.trim_end_matches(".time"));
                above = Some(&bar.metric.name);
            }
            bar.draw(picture, self.greatest);
            picture.y += ROW;
        }
    }
}

impl Bar<'_> {
    /// The bar, its whisker, and what it stands for.
    fn draw(&self, picture: &mut Picture, greatest: f64) {
        let length = |value: f64| match greatest > 0.0 {
            true => value.max(0.0) / greatest * f64::from(LONGEST),
            false => 0.0,
        };
        let (top, middle) = (picture.y + 2, picture.y + ROW / 2);
        let (width, height, colour) = (length(self.spread.median), ROW - 4, colour(self.kind));
        let _ = writeln!(
            picture.shapes,
            r#"<rect x="{LEFT}" y="{top}" width="{width:.1}" height="{height}" fill="{colour}"/>"#
        );
        let (least, most) = (length(self.spread.min), length(self.spread.max));
        let ends = [least, most].map(|end| f64::from(LEFT) + end);
        let _ = writeln!(
            picture.shapes,
            r#"<path d="M{:.1} {middle}H{:.1}M{:.1} {top}v{height}M{:.1} {top}v{height}"/>"#,
            ends[0], ends[1], ends[0], ends[1]
        );
        let figure = format!("{} {}", number(self.spread.median), self.kind.name());
        picture.text(LEFT + most as u32 + 8, "start", &figure);
    }
}

fn colour(kind: Kind) -> &'static str {
    match kind {
        Kind::Copyhold => "#4477aa",
        Kind::Btrfs => "#ee6677",
        Kind::Ext4 => "#ccbb44",
        Kind::Xfs => "#66ccee",
        Kind::Null => "#bbbbbb",
        Kind::Plain => "#228833",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::sample::Sample;

    fn summary() -> Summary {
        let mut summary = Summary::new(Machine::example(), &[Kind::Copyhold, Kind::Null], 2);
        let iops = |value| Sample::new("a<b", "iops", "ops/s", value);
        summary.add("files", Kind::Copyhold, vec![iops(50.0), Sample::new("x", "p50", "us", 0.0)]);
        summary.add("files", Kind::Copyhold, vec![iops(150.0)]);
        summary.add("files", Kind::Null, vec![iops(200.0)]);
        summary
    }

    #[test]
    fn a_bar_is_as_long_as_its_median_and_the_whisker_spans_all_rounds() {
        let svg = svg(&summary(), |_| true);
        // Copyhold's median is 100 of 200 at most: half as long as the longest; 50 … 150.
        assert!(svg.contains(r##"width="260.0" height="12" fill="#4477aa""##), "{svg}");
        assert!(svg.contains(r#"d="M390.0 "#) && svg.contains("H650.0M"), "{svg}");
        assert!(svg.contains(r##"width="520.0" height="12" fill="#bbbbbb""##), "{svg}");
        assert!(svg.contains(">files, ops/s<") && svg.contains(">a&lt;b.iops<"), "{svg}");
    }

    #[test]
    fn each_unit_has_a_chart_and_nothing_measured_is_no_bar() {
        let summary = summary();
        let charts = charts(&summary, |_| true);
        let titles: Vec<_> = charts.iter().map(|chart| chart.title).collect();
        assert_eq!(titles, [("files", "ops/s"), ("files", "us")]);
        assert_eq!(charts[1].bars.len(), 1, "the null store has no p50");
        assert!(svg(&summary, |_| true).contains(r#"width="0.0""#));
        assert!(!svg(&summary, |_| false).contains("#bbbbbb"), "none is to be drawn");
    }
}
