//! The picture: for each device the share, the memory and the waiting of its sessions over time.

use std::collections::BTreeSet;

use limits::{GpuId, Shown};
use plotters::coord::Shift;
use plotters::prelude::*;

use crate::series::{Point, Series, Track};

const WIDTH: u32 = 960;
/// The height of one panel.
const HEIGHT: u32 = 210;
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
        title: "share of the device's time, percent (thin: limit)",
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
        title: "waiting for the device, percent of the time, all processes added up",
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
        let size = (WIDTH, count * HEIGHT * PANELS.len() as u32);
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        root.fill(&WHITE).map_err(|error| error.to_string())?;
        let areas = root.split_evenly((devices.len().max(1), 1));
        if devices.is_empty() {
            let style = ("sans-serif", 20).into_font().color(&BLACK);
            root.draw(&Text::new("no session used a device", (40, 40), style))
                .map_err(|error| error.to_string())?;
        }
        for (uuid, area) in devices.iter().zip(&areas) {
            let tracks: Vec<&Track> = series
                .sessions
                .iter()
                .filter(|(key, _)| key.uuid == Some(*uuid))
                .map(|(_, track)| track)
                .collect();
            for (number, (panel, place)) in
                PANELS.iter().zip(&area.split_evenly((PANELS.len(), 1))).enumerate()
            {
                let title = if number == 0 {
                    format!("{uuid}: {}", panel.title)
                } else {
                    panel.title.to_owned()
                };
                draw(place, panel, &title, &tracks, start(series))
                    .map_err(|error| error.to_string())?;
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

fn draw(
    area: &Area<'_>,
    panel: &Panel,
    title: &str,
    tracks: &[&Track],
    start: u64,
) -> Result<(), Box<dyn std::error::Error>> {
    let seconds = |point: &Point| point.clock_us.saturating_sub(start) as f64 / 1e6;
    let points = || tracks.iter().flat_map(|track| &track.points);
    let end = points().map(seconds).fold(1.0, f64::max);
    let values = points().flat_map(|point| [(panel.of)(point), (panel.limit)(point)]);
    let most = values.flatten().fold(panel.least, f64::max) * 1.1;
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 15))
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
        .x_label_formatter(&|seconds| format!("{seconds:.0} s"))
        .draw()?;
    for (track, color) in tracks.iter().zip(COLORS.iter().cycle()) {
        // A gap stays a gap.
        let drawn: Vec<Vec<(f64, f64)>> = runs(track, panel.of, seconds);
        for (number, run) in drawn.into_iter().enumerate() {
            let line = chart.draw_series(LineSeries::new(run, color.stroke_width(2)))?;
            if number == 0 {
                let color = *color;
                line.label(Shown(&track.name).to_string()).legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2))
                });
            }
        }
        for run in runs(track, panel.limit, seconds) {
            chart.draw_series(LineSeries::new(run, color.mix(0.4).stroke_width(1)))?;
        }
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .label_font(("sans-serif", 12))
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.2))
        .draw()?;
    Ok(())
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
            ["train&lt;1&gt;", "env-1", "memory, GiB", "waiting", "share of the device", "16 s"]
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
