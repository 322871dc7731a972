//! Charts of measurements as SVG, text as text: lines over a ratio or a length, and a map over layers and KV heads.
//!
//! Colours are those of Okabe and Ito, which colour-blind people can tell apart, and each line has a marker as well; maps use
//! viridis. The legend stands beside the lines, never on them. The caller writes the text to a file.

mod axis;

use self::axis::Scale;
use crate::error::{Error, Result};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// An axis: what stands beside it, and whether its scale is logarithmic.
#[derive(Clone, Debug)]
pub struct Axis {
    /// The quantity, with its unit.
    pub label: String,
    /// Logarithmic; values that are not positive have no place there and are left out.
    pub log: bool,
}

impl Axis {
    /// An axis with even steps.
    pub fn linear(label: impl Into<String>) -> Self {
        Axis { label: label.into(), log: false }
    }

    /// An axis with even factors.
    pub fn log(label: impl Into<String>) -> Self {
        Axis { label: label.into(), log: true }
    }
}

/// A line.
#[derive(Clone, Debug)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Its points `(x, y)` in the order in which they are joined; those that are no numbers are left out.
    pub points: Vec<(f64, f64)>,
}

/// One chart; several stand below each other in one file.
#[derive(Clone, Debug)]
pub enum Chart {
    /// Lines over a common axis.
    Lines {
        /// What the chart shows.
        title: String,
        /// The horizontal axis.
        x: Axis,
        /// The vertical axis.
        y: Axis,
        /// The lines.
        series: Vec<Series>,
    },
    /// A coloured cell per row and column, with its number where there is room.
    HeatMap {
        /// What the chart shows.
        title: String,
        /// What the columns are.
        x_label: String,
        /// What the rows are; row 0 is at the top.
        y_label: String,
        /// The values; those that are no numbers, and those a short row lacks, stay grey.
        rows: Vec<Vec<f64>>,
    },
}

const WIDTH: u32 = 640;
const LINES_HEIGHT: u32 = 400;
/// Margin below and above the cells of a map: title, numbers of the columns, label.
const MAP_MARGIN: u32 = 100;
/// Width of the letters of size [`TEXT`] is about this; no font is at hand to measure them.
const LETTER: u32 = 8;
const TEXT: u32 = 17;
const LEGEND_LINE: i32 = 22;
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    BLACK,
];
const GREY: RGBColor = RGBColor(225, 225, 225);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type DrawResult = std::result::Result<(), DrawingAreaErrorKind<std::io::Error>>;

/// Draws charts below each other and gives the SVG file's text.
///
/// # Errors
/// [`Error::Shape`] when there is no chart, or one has nothing that can be drawn.
pub fn svg(charts: &[Chart]) -> Result<String> {
    let empty = |name: &str, want: &str| Error::shape(format!("chart '{name}'"), want, "none");
    if charts.is_empty() {
        return Err(empty("", "at least one chart"));
    }
    for chart in charts {
        if chart.values().next().is_none() {
            return Err(empty(&clean(chart.title()), "at least one value that is a number (above 0 on a log axis)"));
        }
    }
    let width = charts.iter().map(Chart::width).max().unwrap_or(WIDTH);
    let height = charts.iter().map(Chart::height).sum();
    let mut text = String::new();
    let draw = |text: &mut String| -> DrawResult {
        let root = SVGBackend::with_string(text, (width, height)).into_drawing_area();
        root.fill(&WHITE)?;
        let mut rest = root.clone();
        for chart in charts {
            let (area, below) = rest.split_vertically(chart.height());
            chart.draw(&area)?;
            rest = below;
        }
        root.present()
    };
    draw(&mut text).map_err(|e| Error::shape("chart", "a drawing", e.to_string()))?;
    Ok(text)
}

impl Chart {
    fn title(&self) -> &str {
        match self {
            Chart::Lines { title, .. } | Chart::HeatMap { title, .. } => title,
        }
    }

    /// Everything that has a place in the chart, as `(x, y)` or `(0, value)`.
    fn values(&self) -> Box<dyn Iterator<Item = (f64, f64)> + '_> {
        match self {
            Chart::Lines { x, y, series, .. } => Box::new(series.iter().flat_map(|s| s.drawn(x, y))),
            Chart::HeatMap { rows, .. } => {
                Box::new(rows.iter().flatten().filter(|v| axis::has_place(**v, false)).map(|&v| (0.0, v)))
            }
        }
    }

    fn height(&self) -> u32 {
        match self {
            Chart::Lines { series, .. } => LINES_HEIGHT.max(series.len() as u32 * LEGEND_LINE as u32 + 80),
            Chart::HeatMap { rows, .. } => MAP_MARGIN + (rows.len().min(1000) as u32 * 18).max(200),
        }
    }

    fn width(&self) -> u32 {
        let side = match self {
            Chart::Lines { series, .. } => legend_width(series),
            Chart::HeatMap { .. } => 110,
        };
        (WIDTH + side).max(60 + letters(self.title()) * (LETTER + 2))
    }

    fn draw(&self, area: &Area) -> DrawResult {
        match self {
            Chart::Lines { title, x, y, series } => draw_lines(area, title, x, y, series),
            Chart::HeatMap { title, x_label, y_label, rows } => draw_map(area, title, [x_label, y_label], rows),
        }
    }
}

impl Series {
    /// The points that have a place.
    fn drawn<'a>(&'a self, x: &'a Axis, y: &'a Axis) -> impl Iterator<Item = (f64, f64)> + 'a {
        self.points.iter().copied().filter(|p| axis::has_place(p.0, x.log) && axis::has_place(p.1, y.log))
    }
}

fn draw_lines(area: &Area, title: &str, x: &Axis, y: &Axis, series: &[Series]) -> DrawResult {
    let (width, _) = area.dim_in_pixel();
    let (plot, legend) = area.split_horizontally(width - legend_width(series));
    let points: Vec<Vec<(f64, f64)>> = series.iter().map(|s| s.drawn(x, y).collect()).collect();
    let scale = |log: bool, f: fn(&(f64, f64)) -> f64| Scale::new(points.iter().flatten().map(f), log);
    let mut chart = ChartBuilder::on(&plot)
        .caption(clean(title), ("sans-serif", TEXT + 3))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(72)
        .build_cartesian_2d(scale(x.log, |p| p.0), scale(y.log, |p| p.1))?;
    chart
        .configure_mesh()
        .bold_line_style(GREY)
        .label_style(("sans-serif", TEXT - 2))
        .axis_desc_style(("sans-serif", TEXT))
        .x_desc(clean(&x.label))
        .y_desc(clean(&y.label))
        .draw()?;
    for (i, points) in points.iter().enumerate() {
        chart.draw_series(LineSeries::new(points.iter().copied(), colour(i).stroke_width(2)))?;
        let pixels: Vec<(i32, i32)> = points.iter().map(|p| chart.backend_coord(p)).collect();
        pixels.into_iter().try_for_each(|(px, py)| {
            let (left, top) = plot.get_base_pixel();
            marker(&plot, i, (px - left, py - top))
        })?;
    }
    for (i, s) in series.iter().enumerate() {
        let at = 52 + i as i32 * LEGEND_LINE;
        legend.draw(&PathElement::new(vec![(0, at), (28, at)], colour(i).stroke_width(2)))?;
        marker(&legend, i, (14, at))?;
        write(&legend, &s.name, (36, at), HPos::Left, &BLACK)?;
    }
    Ok(())
}

fn draw_map(area: &Area, title: &str, [x_label, y_label]: [&str; 2], rows: &[Vec<f64>]) -> DrawResult {
    let (width, height) = area.dim_in_pixel();
    let finite = || rows.iter().flatten().copied().filter(|v| axis::has_place(*v, false));
    let (low, high) = finite().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
    let share = |v: f64| if high > low { ((v - low) / (high - low)).clamp(0.0, 1.0) } else { 0.5 };
    let n_column = rows.iter().map(Vec::len).max().unwrap_or(0).max(1) as i32;
    let n_row = rows.len().max(1) as i32;
    let (left, top, right, bottom) = (72, 46, width as i32 - 122, height as i32 - 54);
    let x = |column: i32| left + (i64::from(right - left) * i64::from(column) / i64::from(n_column)) as i32;
    let y = |row: i32| top + (i64::from(bottom - top) * i64::from(row) / i64::from(n_row)) as i32;
    area.draw_text(&clean(title), &("sans-serif", TEXT + 3).into_text_style(area), (left, 16))?;
    write(area, x_label, ((left + right) / 2, bottom + 40), HPos::Center, &BLACK)?;
    let sideways = FontDesc::from(("sans-serif", TEXT)).transform(FontTransform::Rotate270);
    let style = TextStyle::from(sideways).pos(Pos::new(HPos::Center, VPos::Center));
    area.draw_text(&clean(y_label), &style, (16, (top + bottom) / 2))?;

    let has_room = (right - left) / n_column >= 40 && (bottom - top) / n_row >= 16;
    for (r, row) in (0..).zip(rows) {
        for c in 0..n_column {
            let value = row.get(c as usize).copied().filter(|v| axis::has_place(*v, false));
            let fill: RGBColor = value.map_or(GREY, |v| ViridisRGB.get_color(share(v)));
            area.draw(&Rectangle::new([(x(c), y(r)), (x(c + 1), y(r + 1))], fill.filled()))?;
            if let Some(v) = value.filter(|_| has_room) {
                let ink = if share(v) > 0.6 { &BLACK } else { &WHITE };
                write(area, &axis::number(v), ((x(c) + x(c + 1)) / 2, (y(r) + y(r + 1)) / 2), HPos::Center, ink)?;
            }
        }
    }
    for c in axis::indices(n_column, (right - left) / 40) {
        write(area, &c.to_string(), ((x(c) + x(c + 1)) / 2, bottom + 14), HPos::Center, &BLACK)?;
    }
    for r in axis::indices(n_row, (bottom - top) / 16) {
        write(area, &r.to_string(), (left - 6, (y(r) + y(r + 1)) / 2), HPos::Right, &BLACK)?;
    }
    // What the colours mean.
    let steps = 64;
    for i in 0..steps {
        let at = |i: i32| bottom - (bottom - top) * i / steps;
        let fill: RGBColor = ViridisRGB.get_color(f64::from(i) / f64::from(steps - 1));
        area.draw(&Rectangle::new([(right + 18, at(i + 1)), (right + 34, at(i))], fill.filled()))?;
    }
    let middle = low + (high - low) / 2.0;
    for (value, at) in [(high, top), (middle, (top + bottom) / 2), (low, bottom)] {
        write(area, &axis::number(value), (right + 40, at), HPos::Left, &BLACK)?;
    }
    Ok(())
}

fn colour(i: usize) -> RGBColor {
    COLOURS[i % COLOURS.len()]
}

/// 7 colours and 4 shapes: 28 lines differ.
fn marker(area: &Area, i: usize, at: (i32, i32)) -> DrawResult {
    let (style, (x, y)) = (colour(i).filled(), at);
    match i % 4 {
        0 => area.draw(&Circle::new(at, 4, style)),
        1 => area.draw(&TriangleMarker::new(at, 6, style)),
        2 => area.draw(&Rectangle::new([(x - 4, y - 4), (x + 4, y + 4)], style)),
        _ => area.draw(&Cross::new(at, 4, colour(i).stroke_width(2))),
    }
}

fn write(area: &Area, text: &str, at: (i32, i32), side: HPos, ink: &RGBColor) -> DrawResult {
    let style = ("sans-serif", TEXT - 1).into_text_style(area).pos(Pos::new(side, VPos::Center)).color(ink);
    area.draw_text(&clean(text), &style, at)
}

/// XML has no place for control characters, escaped or not.
fn clean(text: &str) -> String {
    let allowed = |c: char| !c.is_control() && !matches!(c, '\u{fffe}' | '\u{ffff}');
    text.chars().map(|c| if allowed(c) { c } else { '\u{fffd}' }).collect()
}

fn letters(text: &str) -> u32 {
    text.chars().count().min(200) as u32
}

fn legend_width(series: &[Series]) -> u32 {
    50 + series.iter().map(|s| letters(&s.name)).max().unwrap_or(0) * LETTER
}

#[cfg(test)]
mod tests;
