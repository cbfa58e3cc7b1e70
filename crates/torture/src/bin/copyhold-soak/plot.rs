//! The soak as a picture over time: use, latencies, and how contiguous free space was.

use std::error::Error;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::series::{Kind, Series, Spread};

const SIZE: (u32, u32) = (1200, 1200);
const COLOURS: [RGBColor; 3] =
    [RGBColor(68, 119, 170), RGBColor(238, 102, 119), RGBColor(34, 136, 51)];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// A name, and points of minutes and a value.
type Line = (&'static str, Vec<(f64, f64)>);

pub(crate) fn draw(series: &Series, path: &Path) -> Result<(), Box<dyn Error>> {
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let minutes = series.elapsed().as_secs_f64() / 60.0;
    let [used, writes, fsyncs, fragments] =
        root.split_evenly((4, 1)).try_into().map_err(|_| "four")?;
    let full = series.samples.iter().map(|s| (s.seconds / 60.0, s.used_percent)).collect();
    let short = series.fragments.iter().map(|f| (f.seconds / 60.0, f.short_percent)).collect();
    let lines = vec![("used", full), ("of what is free, in runs shorter than 32 KiB", short)];
    linear(&used, "percent", minutes, lines)?;
    logarithmic(&writes, "write, us", minutes, latencies(series, Kind::Write))?;
    logarithmic(&fsyncs, "fsync, us", minutes, latencies(series, Kind::Fsync))?;
    let longest = series.fragments.iter();
    let longest =
        longest.map(|f| (f.seconds / 60.0, f.longest_free_blocks.max(1) as f64)).collect();
    logarithmic(&fragments, "longest free run, blocks", minutes, vec![("at kills", longest)])?;
    Ok(root.present()?)
}

fn latencies(series: &Series, kind: Kind) -> Vec<Line> {
    let line = |of: fn(&Spread) -> u32| {
        let points = series.samples.iter().filter_map(|sample| {
            let spread = sample.spreads.get(&kind)?;
            Some((sample.seconds / 60.0, f64::from(of(spread).max(1))))
        });
        points.collect()
    };
    vec![("p50", line(|s| s.p50_us)), ("p99", line(|s| s.p99_us)), ("longest", line(|s| s.max_us))]
}

fn linear(
    area: &Area<'_>,
    title: &str,
    minutes: f64,
    lines: Vec<Line>,
) -> Result<(), Box<dyn Error>> {
    let mut chart = frame(title, area).build_cartesian_2d(0.0..minutes, 0.0..100.0)?;
    chart.configure_mesh().light_line_style(WHITE).x_desc("minutes").draw()?;
    for ((name, points), colour) in lines.into_iter().zip(COLOURS) {
        let drawn = chart.draw_series(LineSeries::new(points, &colour))?;
        drawn.label(name).legend(move |(x, y)| PathElement::new([(x, y), (x + 15, y)], colour));
    }
    chart.configure_series_labels().border_style(BLACK).background_style(WHITE).draw()?;
    Ok(())
}

fn logarithmic(
    area: &Area<'_>,
    title: &str,
    minutes: f64,
    lines: Vec<Line>,
) -> Result<(), Box<dyn Error>> {
    let greatest = lines.iter().flat_map(|(_, points)| points).map(|(_, y)| *y);
    let greatest = greatest.fold(10.0, f64::max);
    let mut chart =
        frame(title, area).build_cartesian_2d(0.0..minutes, (1.0..greatest * 2.0).log_scale())?;
    chart.configure_mesh().light_line_style(WHITE).x_desc("minutes").draw()?;
    for ((name, points), colour) in lines.into_iter().zip(COLOURS) {
        let drawn = chart.draw_series(LineSeries::new(points, &colour))?;
        drawn.label(name).legend(move |(x, y)| PathElement::new([(x, y), (x + 15, y)], colour));
    }
    chart.configure_series_labels().border_style(BLACK).background_style(WHITE).draw()?;
    Ok(())
}

fn frame<'a, 'b>(title: &str, area: &'a Area<'b>) -> ChartBuilder<'a, 'b, SVGBackend<'b>> {
    let mut builder = ChartBuilder::on(area);
    builder.caption(title, ("sans-serif", 18)).margin(8).margin_right(20);
    builder.x_label_area_size(35).y_label_area_size(70);
    builder
}
