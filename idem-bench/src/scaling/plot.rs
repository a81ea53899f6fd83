//! The plots of what was simulated.

use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

use super::simulated::{LOADS, MIXES, PROCESSES, Row, Simulated};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

const SIZE: (u32, u32) = (1120, 480);
const FONT: &str = "system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif";
const INK: RGBColor = RGBColor(36, 41, 47);
const FAINT: RGBColor = RGBColor(225, 228, 232);
const COLOURS: [RGBColor; 4] =
    [RGBColor(87, 96, 106), RGBColor(9, 105, 218), RGBColor(207, 79, 8), RGBColor(26, 127, 55)];

struct Panel {
    title: String,
    x_title: &'static str,
    y_title: &'static str,
    places: Vec<String>,
    lines: Vec<(String, Vec<f64>)>,
}

/// The most calls a second, over processes.
pub(super) fn capacity(all: &Simulated, file: &Path) -> Result<()> {
    let panels = [MIXES[0], MIXES[2]].map(|mix| {
        let line = |name: String, mix, primaries| {
            let rows = all.rows.iter().filter(|row| row.mix == mix && row.primaries == primaries);
            (name, rows.map(|row| row.most.rate / 1e3).collect())
        };
        let title =
            |primaries: usize| if primaries == 1 { "1 primary".to_owned() } else { format!("{primaries} primaries") };
        let mut lines: Vec<_> = [1, 3, 9].map(|primaries| line(title(primaries), mix, primaries)).into();
        if mix != MIXES[0] {
            lines.push(line("9 primaries, even keys".to_owned(), MIXES[1], 9));
        }
        Panel {
            title: format!("Simulated: {}", mix.name),
            x_title: "processes of one processor",
            y_title: "thousand calls a second, at most",
            places: PROCESSES.iter().map(ToString::to_string).collect(),
            lines,
        }
    });
    draw(&panels, file)
}

/// Latency over load.
pub(super) fn latency(all: &Simulated, file: &Path) -> Result<()> {
    let shown = [(1, 4, 0), (3, 16, 0), (9, 64, 0), (9, 64, 2)];
    let panels = [0.5, 0.99].map(|share| {
        let lines = shown.map(|(primaries, processes, mix)| {
            let is_it = |row: &&Row| row.mix == MIXES[mix] && (row.primaries, row.processes) == (primaries, processes);
            let loads = all.rows.iter().filter(is_it).flat_map(|row| &row.loads);
            let of = |found: &super::sim::Outcome| if share > 0.5 { found.p99 } else { found.p50 };
            let below = loads.filter(|(share, _, _)| *share < 1.0);
            (
                format!("{primaries} × {processes}, {}", MIXES[mix].name),
                below.map(|(_, _, found)| of(found) / 1e3).collect(),
            )
        });
        Panel {
            title: format!("Simulated: p{:.0}", share * 100.0),
            x_title: "offered load, per cent of the most",
            y_title: "ms",
            places: LOADS.iter().filter(|share| **share < 1.0).map(|share| format!("{:.0}", share * 100.0)).collect(),
            lines: lines.into(),
        }
    });
    draw(&panels, file)
}

fn draw(panels: &[Panel; 2], file: &Path) -> Result<()> {
    let root = SVGBackend::new(file, SIZE).into_drawing_area();
    let drawn = || -> Result<()> {
        root.fill(&WHITE).map_err(failed)?;
        let (legend, rest) = root.split_vertically(44);
        panels[1].legend(&legend)?;
        for (panel, half) in panels.iter().zip(&rest.split_evenly((1, 2))) {
            panel.draw(half)?;
        }
        root.present().map_err(failed)
    };
    drawn().with_context(|| format!("cannot draw {}", file.display()))
}

impl Panel {
    fn draw(&self, area: &Area<'_>) -> Result<()> {
        let most = self.lines.iter().flat_map(|(_, values)| values).copied().fold(0.0, f64::max);
        let end = self.places.len().saturating_sub(1) as f64;
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .margin_right(24)
            .caption(&self.title, (FONT, 19, FontStyle::Bold, &INK))
            .x_label_area_size(46)
            .y_label_area_size(62)
            .build_cartesian_2d(-0.3..end + 0.3, 0.0..most * 1.06)
            .map_err(failed)?;
        let place = |at: &f64| {
            let nearest = at.round();
            let name = if (at - nearest).abs() < 0.01 { self.places.get(nearest.max(0.0) as usize) } else { None };
            name.filter(|_| nearest >= 0.0).cloned().unwrap_or_default()
        };
        let decimals = usize::from(most < 10.0);
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
            .x_label_formatter(&place)
            .y_label_formatter(&|value| format!("{value:.decimals$}"))
            .draw()
            .map_err(failed)?;
        for ((_, values), colour) in self.lines.iter().zip(COLOURS) {
            let points = || values.iter().enumerate().map(|(place, value)| (place as f64, *value));
            chart.draw_series(LineSeries::new(points(), colour.stroke_width(3))).map_err(failed)?;
            chart.draw_series(points().map(|at| Circle::new(at, 4, colour.filled()))).map_err(failed)?;
        }
        Ok(())
    }

    fn legend(&self, area: &Area<'_>) -> Result<()> {
        let mut x = 72;
        for ((name, _), colour) in self.lines.iter().zip(COLOURS) {
            area.draw(&PathElement::new([(x, 26), (x + 26, 26)], colour.stroke_width(3))).map_err(failed)?;
            area.draw(&Circle::new((x + 13, 26), 4, colour.filled())).map_err(failed)?;
            area.draw(&Text::new(name.clone(), (x + 34, 18), (FONT, 16).into_font().color(&INK))).map_err(failed)?;
            // How wide the text is, the reader's font says; so much is enough for these.
            x += 74 + 7 * i32::try_from(name.len()).unwrap_or(20);
        }
        Ok(())
    }
}

fn failed(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("{error}")
}
