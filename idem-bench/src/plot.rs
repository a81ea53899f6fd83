//! The plots of the page.

use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use plotters::coord::Shift;
use plotters::coord::ranged1d::ValueFormatter;
use plotters::prelude::*;

use crate::report::{Kind, Latency, Throughput, subjects};
use crate::stats::{median, range};
use crate::subject::Subject;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

const SIZE: (u32, u32) = (1120, 480);
const FONT: &str = "system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif";
const INK: RGBColor = RGBColor(36, 41, 47);
const FAINT: RGBColor = RGBColor(225, 228, 232);
/// The values of a logarithmic scale that are marked, in each power of ten.
const TICKS: [f64; 7] = [1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0];
/// One for each subject, in their order: greys for the floors.
const COLOURS: [RGBColor; 4] =
    [RGBColor(87, 96, 106), RGBColor(175, 184, 193), RGBColor(9, 105, 218), RGBColor(207, 79, 8)];

/// Its place, the median, and the range.
type Point = (f64, f64, Option<(f64, f64)>);

/// The results of one subject.
struct Line<'a> {
    name: &'a str,
    colour: RGBColor,
    points: Vec<Point>,
}

/// One half of a plot.
struct Panel<'a> {
    title: String,
    x_title: &'static str,
    y_title: &'static str,
    /// The names of the places 0, 1, 2 ..
    places: Vec<String>,
    from_zero: bool,
    lines: Vec<Line<'a>>,
}

/// Calls a second over the number of tasks.
pub(crate) fn throughput(all: &[Throughput], file: &Path) -> Result<()> {
    let panels = Kind::ALL.map(|kind| {
        let of = |one: &Throughput| one.kind == kind;
        let mut tasks: Vec<usize> = all.iter().filter(|one| of(one)).map(|one| one.tasks).collect();
        tasks.sort_unstable();
        tasks.dedup();
        let lines = named(subjects(all, |one| (one.kind, &one.subject), kind), |name| {
            let own = all.iter().filter(|one| of(one) && one.subject == name);
            let point = |one: &Throughput| {
                let place = tasks.iter().position(|tasks| *tasks == one.tasks)?;
                let (least, most) = range(&one.rounds);
                Some((to_f64(place), median(&one.rounds) / 1e3, Some((least / 1e3, most / 1e3))))
            };
            own.filter_map(point).collect()
        });
        Panel {
            title: title(kind),
            x_title: "tasks that call at once",
            y_title: "thousand calls a second",
            places: tasks.iter().map(ToString::to_string).collect(),
            from_zero: true,
            lines,
        }
    });
    draw(&panels, file)
}

/// Latency by percentile.
pub(crate) fn latency(all: &[Latency], file: &Path) -> Result<()> {
    let panels = Kind::ALL.map(|kind| {
        let shares = all.iter().find(|one| one.kind == kind).map(|one| one.percentiles.iter().map(|(share, _)| *share));
        let lines = named(subjects(all, |one| (one.kind, &one.subject), kind), |name| {
            let own = all.iter().filter(|one| one.kind == kind && one.subject == name);
            let times = own.flat_map(|one| one.percentiles.iter().enumerate());
            times.map(|(place, (_, time))| (to_f64(place), *time, None)).collect()
        });
        Panel {
            title: title(kind),
            x_title: "percentile of the calls, one at a time",
            y_title: "µs",
            places: shares.into_iter().flatten().map(percentile).collect(),
            from_zero: false,
            lines,
        }
    });
    draw(&panels, file)
}

fn draw(panels: &[Panel<'_>; 2], file: &Path) -> Result<()> {
    let root = SVGBackend::new(file, SIZE).into_drawing_area();
    let drawn = || -> Result<()> {
        root.fill(&WHITE).map_err(failed)?;
        let (legend, rest) = root.split_vertically(44);
        let halves = rest.split_evenly((1, 2));
        // The first panel has all subjects.
        if let Some(panel) = panels.first() {
            panel.legend(&legend)?;
        }
        for (panel, half) in panels.iter().zip(&halves) {
            panel.draw(half)?;
        }
        root.present().map_err(failed)
    };
    drawn().with_context(|| format!("cannot draw {}", file.display()))
}

impl Panel<'_> {
    fn draw(&self, area: &Area<'_>) -> Result<()> {
        let values = || self.lines.iter().flat_map(|line| &line.points);
        let most = values().map(|(_, value, range)| range.map_or(*value, |(_, most)| most)).fold(0.0, f64::max);
        let least = if self.from_zero { 0.0 } else { values().map(|(_, value, _)| value * 0.85).fold(most, f64::min) };
        let end = to_f64(self.places.len().saturating_sub(1));
        let mut builder = ChartBuilder::on(area);
        builder
            .margin(10)
            .margin_right(24)
            .caption(&self.title, (FONT, 19, FontStyle::Bold, &INK))
            .x_label_area_size(46)
            .y_label_area_size(62);
        let (x, y) = (-0.3..end + 0.3, least..most * 1.06);
        if self.from_zero {
            let mut chart = builder.build_cartesian_2d(x, y).map_err(failed)?;
            self.mesh(&mut chart, 8)?;
            self.lines(&mut chart)
        } else {
            // Left to itself, the scale has powers of ten alone.
            let ticks = (1..6).flat_map(|power| TICKS.map(|tick| tick * 10_f64.powi(power)));
            let ticks: Vec<f64> = ticks.filter(|tick| y.contains(tick)).collect();
            let labels = ticks.len();
            let mut chart = builder.build_cartesian_2d(x, y.log_scale().with_key_points(ticks)).map_err(failed)?;
            self.mesh(&mut chart, labels)?;
            self.lines(&mut chart)
        }
    }

    fn mesh<Y>(&self, chart: &mut Chart<'_, '_, Y>, labels: usize) -> Result<()>
    where
        Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let place = |place: &f64| self.place(*place);
        chart
            .configure_mesh()
            .disable_x_mesh()
            .bold_line_style(FAINT)
            .light_line_style(WHITE)
            .axis_style(INK.mix(0.5))
            .label_style((FONT, 14, &INK))
            .axis_desc_style((FONT, 15, &INK))
            .x_desc(self.x_title)
            .y_desc(self.y_title)
            .x_labels(self.places.len() * 2)
            .y_labels(labels)
            .x_label_formatter(&place)
            .y_label_formatter(&|value| format!("{value:.0}"))
            .draw()
            .map_err(failed)
    }

    fn lines<Y>(&self, chart: &mut Chart<'_, '_, Y>) -> Result<()>
    where
        Y: Ranged<ValueType = f64>,
    {
        for line in &self.lines {
            let style = line.colour.stroke_width(3);
            let points = || line.points.iter().map(|(place, value, _)| (*place, *value));
            chart.draw_series(LineSeries::new(points(), style)).map_err(failed)?;
            chart.draw_series(points().map(|at| Circle::new(at, 4, line.colour.filled()))).map_err(failed)?;
            let ranges =
                line.points.iter().filter_map(|(place, _, range)| range.map(|(least, most)| (*place, least, most)));
            let whiskers = ranges.map(|(place, least, most)| {
                PathElement::new([(place, least), (place, most)], line.colour.mix(0.6).stroke_width(1))
            });
            chart.draw_series(whiskers).map_err(failed)?;
        }
        Ok(())
    }

    /// The name of a place; nothing between two.
    fn place(&self, at: f64) -> String {
        let names = self.places.iter().enumerate();
        let name = names.map(|(place, name)| (to_f64(place), name)).find(|(place, _)| (place - at).abs() < 0.01);
        name.map(|(_, name)| name.clone()).unwrap_or_default()
    }

    fn legend(&self, area: &Area<'_>) -> Result<()> {
        let mut x = 72;
        for line in &self.lines {
            let middle = 26;
            let stroke = line.colour.stroke_width(3);
            area.draw(&PathElement::new([(x, middle), (x + 26, middle)], stroke)).map_err(failed)?;
            area.draw(&Circle::new((x + 13, middle), 4, line.colour.filled())).map_err(failed)?;
            area.draw(&Text::new(line.name.to_owned(), (x + 34, middle - 8), (FONT, 16).into_font().color(&INK)))
                .map_err(failed)?;
            // How wide the text is, the reader's font says; so much is enough for those named
            // above.
            x += 74 + 7 * i32::try_from(line.name.len()).unwrap_or(20);
        }
        Ok(())
    }
}

type Chart<'a, 'b, Y> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<plotters::coord::types::RangedCoordf64, Y>>;

fn named(names: Vec<&str>, points: impl Fn(&str) -> Vec<Point>) -> Vec<Line<'_>> {
    let all = Subject::ALL.map(Subject::name);
    names
        .into_iter()
        .map(|name| {
            let place = all.iter().position(|subject| *subject == name).unwrap_or_default();
            Line { name, colour: COLOURS[place % COLOURS.len()], points: points(name) }
        })
        .collect()
}

fn title(kind: Kind) -> String {
    match kind {
        Kind::First => "First execution".to_owned(),
        Kind::Replay => "Replay".to_owned(),
    }
}

fn percentile(share: f64) -> String {
    let percent = (share * 1000.0).round() / 10.0;
    format!("p{percent}")
}

#[allow(clippy::cast_precision_loss)]
fn to_f64(number: usize) -> f64 {
    number as f64
}

fn failed(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("{error}")
}
