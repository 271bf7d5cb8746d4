//! The picture: for each device the compute share, the memory and the waiting time of its sessions.

use std::collections::BTreeSet;

use limits::{GpuId, Shown};
use plotters::coord::Shift;
use plotters::prelude::*;

use crate::series::{Point, Series, Track};

const WIDTH: u32 = 960;
/// The height of one panel.
const HEIGHT: u32 = 210;
/// The height of a device's title and legend.
const HEAD: u32 = 52;
const GIB: f64 = (1_u64 << 30) as f64;
const PPM_PER_PERCENT: f64 = 10_000.0;
/// Colours that are told apart also by those who see red and green as one (Okabe and Ito).
const COLORS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(90, 90, 90),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// What a panel shows.
struct Panel {
    title: &'static str,
    of: fn(&Point) -> Option<f64>,
    limit: fn(&Point) -> Option<f64>,
    /// The least upper end of its axis.
    least: f64,
}

const PANELS: [Panel; 3] = [
    Panel {
        title: "GPU time, percent (thin: limit; shaded: frozen)",
        of: |point| Some(f64::from(point.share_ppm?) / PPM_PER_PERCENT),
        limit: |point| Some(f64::from(point.limit_ppm?) / PPM_PER_PERCENT),
        least: 10.0,
    },
    Panel {
        title: "memory, GiB (thin: limit)",
        of: |point| Some(point.used_bytes? as f64 / GIB),
        limit: |point| Some(point.limit_bytes? as f64 / GIB),
        least: 0.25,
    },
    Panel {
        title: "waiting for the GPU, percent of the time, sum of all processes",
        of: |point| Some(f64::from(point.waited_ppm?) / PPM_PER_PERCENT),
        limit: |_| None,
        least: 10.0,
    },
];

/// The picture of all devices.
pub(super) fn svg(series: &Series) -> Result<String, String> {
    let devices: BTreeSet<GpuId> = series.sessions.keys().filter_map(|key| key.uuid).collect();
    let count = u32::try_from(devices.len().max(1)).map_err(|error| error.to_string())?;
    let mut text = String::new();
    {
        let height = HEAD + HEIGHT * PANELS.len() as u32;
        let root = SVGBackend::with_string(&mut text, (WIDTH, count * height)).into_drawing_area();
        root.fill(&WHITE).map_err(|error| error.to_string())?;
        let areas = root.split_evenly((devices.len().max(1), 1));
        if devices.is_empty() {
            let style = ("sans-serif", 20).into_font().color(&BLACK);
            root.draw(&Text::new("no session used a device", (40, 40), style))
                .map_err(|error| error.to_string())?;
        }
        for (uuid, area) in devices.iter().zip(&areas) {
            let of_device = series.sessions.iter().filter(|(key, _)| key.uuid == Some(*uuid));
            let tracks: Vec<&Track> = of_device.map(|(_, track)| track).collect();
            let (head, panels) = area.split_vertically(HEAD);
            let title = series.titles.get(uuid).cloned().unwrap_or_else(|| uuid.to_string());
            draw_head(&head, &title, &tracks).map_err(|error| error.to_string())?;
            for (panel, place) in PANELS.iter().zip(&panels.split_evenly((PANELS.len(), 1))) {
                draw(place, panel, &tracks, start(series)).map_err(|error| error.to_string())?;
            }
        }
        root.present().map_err(|error| error.to_string())?;
    }
    Ok(text)
}

/// When the recording begins.
fn start(series: &Series) -> u64 {
    let first = |track: &Track| track.points.front().map(|point| point.clock_us);
    series.sessions.values().filter_map(first).min().unwrap_or(0)
}

type Drawn = Result<(), Box<dyn std::error::Error>>;

/// The device's title, and the name of each session beside its colour.
fn draw_head(area: &Area<'_>, title: &str, tracks: &[&Track]) -> Drawn {
    let style = |size: i32| ("sans-serif", size).into_font().color(&BLACK);
    area.draw(&Text::new(title.to_owned(), (12, 10), style(16)))?;
    let mut x = 12;
    for (track, color) in tracks.iter().zip(COLORS.iter().cycle()) {
        let name = Shown(&track.name).to_string();
        let (width, _) = area.estimate_text_size(&name, &style(13))?;
        let line = vec![(x, 42), (x + 18, 42)];
        area.draw(&PathElement::new(line, color.stroke_width(3)))?;
        area.draw(&Text::new(name, (x + 24, 35), style(13)))?;
        x += 24 + i32::try_from(width)? + 22;
    }
    Ok(())
}

fn draw(area: &Area<'_>, panel: &Panel, tracks: &[&Track], start: u64) -> Drawn {
    let seconds = |point: &Point| point.clock_us.saturating_sub(start) as f64 / 1e6;
    let points = || tracks.iter().flat_map(|track| &track.points);
    let end = points().map(seconds).fold(1.0, f64::max);
    let values = points().flat_map(|point| [(panel.of)(point), (panel.limit)(point)]);
    let most = values.flatten().fold(panel.least, f64::max) * 1.1;
    let mut chart = ChartBuilder::on(area)
        .caption(panel.title, ("sans-serif", 14))
        .margin(8)
        .x_label_area_size(24)
        .y_label_area_size(44)
        .build_cartesian_2d(0.0..end, 0.0..most)?;
    chart
        .configure_mesh()
        .x_labels(10)
        .y_labels(5)
        .light_line_style(TRANSPARENT)
        .label_style(("sans-serif", 12))
        .x_label_formatter(&|seconds| format!("{seconds:.*} s", usize::from(end < 10.0)))
        .draw()?;
    for (track, color) in tracks.iter().zip(COLORS.iter().cycle()) {
        for (from, to) in frozen(track, seconds) {
            let shade = Rectangle::new([(from, 0.0), (to, most)], color.mix(0.12).filled());
            chart.draw_series([shade])?;
        }
        // A gap stays a gap.
        for run in runs(track, panel.of, seconds) {
            chart.draw_series(LineSeries::new(run, color.stroke_width(2)))?;
        }
        for run in runs(track, panel.limit, seconds) {
            chart.draw_series(LineSeries::new(run, color.mix(0.4).stroke_width(1)))?;
        }
    }
    Ok(())
}

/// When the session was frozen: from the sample before the first that says so.
fn frozen(track: &Track, seconds: impl Fn(&Point) -> f64) -> Vec<(f64, f64)> {
    let points: Vec<&Point> = track.points.iter().collect();
    let mut spans: Vec<(f64, f64)> = Vec::new();
    for pair in points.windows(2) {
        let &[before, point] = pair else { continue };
        if !point.frozen {
            continue;
        }
        let (from, to) = (seconds(before), seconds(point));
        match spans.last_mut() {
            Some(last) if last.1 >= from => last.1 = to,
            _ => spans.push((from, to)),
        }
    }
    spans
}

/// The values that follow one another without a gap.
fn runs(
    track: &Track,
    of: fn(&Point) -> Option<f64>,
    seconds: impl Fn(&Point) -> f64,
) -> Vec<Vec<(f64, f64)>> {
    let mut runs = vec![Vec::new()];
    for point in &track.points {
        match (of(point), runs.last_mut()) {
            (Some(value), Some(run)) => run.push((seconds(point), value)),
            (None, Some(run)) if !run.is_empty() => runs.push(Vec::new()),
            _ => {}
        }
    }
    runs.retain(|run| !run.is_empty());
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::series::tests::{compute, contained, memory, sample, session};

    #[test]
    fn a_run_is_drawn_with_its_limits() {
        let mut series = Series::all();
        for second in 1..20 {
            let train =
                session("train<1>", compute(50, second * 480_000, second * 10_000), memory(1, 2));
            let mut sample = sample(second, vec![train]);
            sample.status.elsewhere.push(contained("env-1"));
            series.add(&sample);
        }
        let svg = svg(&series).unwrap();
        for words in
            ["train&lt;1&gt;", "env-1", "memory, GiB", "waiting", "GPU time, percent", "16 s"]
        {
            assert!(svg.contains(words), "{words}: {svg}");
        }
        // 48 % of the time, in the first panel.
        assert!(svg.matches("<polyline").count() >= 4, "{svg}");
    }

    #[test]
    fn nothing_is_drawn_as_nothing() {
        assert!(svg(&Series::all()).unwrap().contains("no session used a device"));
    }

    #[test]
    fn times_in_which_a_session_was_frozen_are_shaded() {
        let mut series = Series::all();
        for second in 1..10 {
            let mut train = session("train", compute(50, second * 480_000, 0), memory(1, 2));
            train.frozen = (4..6).contains(&second);
            series.add(&sample(second, vec![train]));
        }
        let track = series.sessions.values().next().unwrap();
        assert_eq!(frozen(track, |point| point.clock_us as f64 / 1e6), [(3.0, 5.0)]);
        assert!(svg(&series).unwrap().contains("opacity=\"0.12\""));
    }

    #[test]
    fn a_gap_stays_a_gap() {
        let mut series = Series::all();
        for (second, limit) in [(1, Some(5)), (2, None), (3, Some(5)), (4, Some(6))] {
            let mut train = session("train", compute(50, 0, 0), memory(1, 2));
            train.devices[0].memory.limit = limit.map(|limit: u64| limit << 30);
            series.add(&sample(second, vec![train]));
        }
        let track = series.sessions.values().next().unwrap();
        let runs = runs(track, PANELS[1].limit, |point| point.clock_us as f64 / 1e6);
        assert_eq!(runs, [vec![(1.0, 5.0)], vec![(3.0, 5.0), (4.0, 6.0)]]);
    }
}
