//! The page: one file that asks nobody for anything.

use std::fmt::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::chart::Chart;
use crate::markup::{Escaped, json_in_script};
use crate::report::{Level, Report, STYLES, Section, Series, Warning};
use crate::table::{Bar, Cell, Mark, Row, Table};
use crate::timeline::Timeline;

const CHART_LIBRARY: &str = include_str!("../assets/uplot/uPlot.iife.min.js");
const CHART_LIBRARY_LICENCE: &str = include_str!("../assets/uplot/LICENSE");
const CHART_LIBRARY_STYLE: &str = include_str!("../assets/uplot/uPlot.min.css");
const STYLE: &str = include_str!("../assets/page.css");
const SCRIPTS: &[&str] = &[
    include_str!("../assets/numbers.js"),
    include_str!("../assets/charts.js"),
    include_str!("../assets/timeline.js"),
    include_str!("../assets/page.js"),
];

/// More options than these are a list to choose from.
const MOST_BUTTONS: usize = 8;

/// Longer options are one.
const MOST_BUTTON_CHARS: usize = 90;

/// So few columns leave room for intervals beside their figures.
const ROOMY: usize = 8;

/// More rows scroll in their table.
const LONG: usize = 40;

/// Characters of a text that is not broken into lines.
const SHORT: usize = 26;

#[derive(Serialize)]
struct Data<'a> {
    series: &'a [Series],
    charts: Vec<&'a Chart>,
    timelines: Vec<&'a Timeline>,
}

/// The report as one HTML document.
///
/// # Errors
/// Numbers or texts that JSON cannot hold, which a report has none of.
pub fn page(report: &Report) -> Result<String, serde_json::Error> {
    let data = Data {
        series: &report.series,
        charts: report.sections.iter().flat_map(|section| &section.charts).collect(),
        timelines: report.sections.iter().filter_map(|section| section.timeline.as_ref()).collect(),
    };
    let data = json_in_script(&data)?;
    let script = format!("(() => {{\n\"use strict\";\n{}\n}})();", SCRIPTS.join("\n"));
    let mut out = String::with_capacity(data.len() + 200_000);
    head(&mut out, report, &[CHART_LIBRARY, &script]);
    header(&mut out, report);
    out.push_str("<main id=\"main\">\n");
    warnings(&mut out, &report.warnings);
    for part in &report.sections {
        section(&mut out, part, &report.series);
    }
    out.push_str("</main>\n");
    let _ = writeln!(
        out,
        "<footer>Written by <b>baton report</b> {}. Everything on this page is in this file; it sends nothing and asks for \
         nothing. Charts: uPlot, MIT licence.</footer>",
        env!("CARGO_PKG_VERSION")
    );
    out.push_str("<div id=\"tip\" aria-hidden=\"true\"></div>\n<div id=\"said\" class=\"said\" role=\"status\"></div>\n");
    let _ = writeln!(out, "<script type=\"application/json\" id=\"data\">{data}</script>");
    let _ = writeln!(out, "<!-- The script that follows is uPlot.\n{CHART_LIBRARY_LICENCE}-->");
    for text in [CHART_LIBRARY, &script] {
        let _ = writeln!(out, "<script>{text}</script>");
    }
    out.push_str("</body>\n</html>\n");
    Ok(out)
}

fn head(out: &mut String, report: &Report, scripts: &[&str]) {
    // Only the scripts that the page was written with run, whatever else a result's texts might bring in.
    let hashes: Vec<String> =
        scripts.iter().map(|text| format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text)))).collect();
    let _ = writeln!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src {}; style-src 'unsafe-inline'; \
         base-uri 'none'; form-action 'none'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{}</title>\n<style>{CHART_LIBRARY_STYLE}\n{STYLE}</style>\n</head>\n<body>",
        hashes.join(" "),
        Escaped(&report.title)
    );
}

fn header(out: &mut String, report: &Report) {
    swatches(out, &report.series);
    out.push_str("<a class=\"skip\" href=\"#main\">To the results</a>\n<header>\n");
    out.push_str(
        "<p class=\"eyebrow\">Baton report</p>\n<button type=\"button\" id=\"theme\" hidden></button>\n",
    );
    let _ = writeln!(out, "<h1>{}</h1>", Escaped(&report.title));
    if !report.facts.is_empty() {
        out.push_str("<dl class=\"facts\">");
        for (name, value) in &report.facts {
            let _ = write!(out, "<div><dt>{}</dt><dd>{}</dd></div>", Escaped(name), Escaped(value));
        }
        out.push_str("</dl>\n");
    }
    out.push_str("</header>\n<div class=\"bar\">\n<nav aria-label=\"Sections\"><ul>");
    if !report.warnings.is_empty() {
        out.push_str("<li><a href=\"#warnings\">Warnings</a></li>");
    }
    for section in &report.sections {
        let _ = write!(out, "<li><a href=\"#{}\">{}</a></li>", section.id, Escaped(&section.title));
    }
    out.push_str("</ul></nav>\n");
    if report.series.len() > 1 {
        out.push_str("<div class=\"legend\" role=\"group\" aria-label=\"Shown in all charts\">");
        for (index, series) in report.series.iter().enumerate() {
            let _ = write!(
                out,
                "<button type=\"button\" class=\"s{}\" aria-pressed=\"true\" data-series=\"{index}\">{}{}</button>",
                series.colour,
                swatch(index),
                Escaped(&series.name)
            );
        }
        out.push_str("</div>\n");
    }
    out.push_str("</div>\n");
}

/// Pieces of the series' lines with their markers, to be used wherever a series is named; the shapes are those of charts.js.
fn swatches(out: &mut String, series: &[Series]) {
    const DASHES: [&str; STYLES] = ["", "7 3", "2 2.5", "9 3 2 3", "4 1.5", "5 2", "2 2", "8 2 2 2"];
    const MARKERS: [&str; 4] = [
        "M17.6 6a3.6 3.6 0 1 1-7.2 0 3.6 3.6 0 1 1 7.2 0z",
        "M10.6 2.6h6.8v6.8h-6.8z",
        "M14 1.4 18.4 9.6H9.6z",
        "M14 1.2 18.8 6 14 10.8 9.2 6z",
    ];
    out.push_str("<svg class=\"swatches\" width=\"0\" height=\"0\" aria-hidden=\"true\">");
    for (index, series) in series.iter().enumerate() {
        let (dash, marker) = (DASHES[series.dash % STYLES], MARKERS[series.colour % MARKERS.len()]);
        let _ = write!(
            out,
            "<symbol id=\"w{index}\" viewBox=\"0 0 28 12\"><path class=\"swatch-line\" d=\"M0 6h28\" \
             stroke-dasharray=\"{dash}\"/><path class=\"swatch-marker\" d=\"{marker}\"/></symbol>"
        );
    }
    out.push_str("</svg>\n");
}

/// A series' swatch, in whatever colour its element has.
fn swatch(series: usize) -> String {
    format!("<svg class=\"swatch\" aria-hidden=\"true\"><use href=\"#w{series}\"/></svg>")
}

fn warnings(out: &mut String, warnings: &[Warning]) {
    if warnings.is_empty() {
        return;
    }
    out.push_str("<section id=\"warnings\" aria-labelledby=\"warnings-title\"><h2 id=\"warnings-title\">Warnings</h2>\n<ul>\n");
    for warning in warnings {
        let (class, word) = match warning.level {
            Level::Broken => ("broken", "Broken"),
            Level::Warning => ("warning", "Warning"),
            Level::Note => ("note", "Note"),
        };
        let _ = write!(
            out,
            "<li class=\"{class}\"><b class=\"level\">{word}</b> <div><h3>{}</h3><p>{}</p>",
            Escaped(&warning.title),
            Escaped(&warning.text)
        );
        if !warning.places.is_empty() {
            let places: Vec<String> =
                warning.places.iter().map(|place| format!("<span>{}</span>", Escaped(place))).collect();
            let _ = write!(out, "<p class=\"places\">{}</p>", places.join(" "));
        }
        out.push_str("</div></li>\n");
    }
    out.push_str("</ul></section>\n");
}

fn section(out: &mut String, section: &Section, series: &[Series]) {
    let id = &section.id;
    let _ = writeln!(
        out,
        "<section id=\"{id}\" aria-labelledby=\"{id}-title\">\n<h2 id=\"{id}-title\">{}</h2>",
        Escaped(&section.title)
    );
    if !section.lead.is_empty() {
        let _ = writeln!(out, "<p class=\"lead\">{}</p>", Escaped(&section.lead));
    }
    choices(out, section);
    if !section.charts.is_empty() {
        out.push_str("<div class=\"charts\">\n");
        for chart in &section.charts {
            figure(out, chart);
        }
        out.push_str("</div>\n");
    }
    if let Some(timeline) = &section.timeline {
        let _ = writeln!(
            out,
            "<div class=\"timeline\" data-timeline=\"{}\"><noscript><p>The bars need scripts; the numbers are in the table \
             below.</p></noscript></div>",
            timeline.id
        );
    }
    for part in &section.tables {
        table(out, part, series);
    }
    out.push_str("</section>\n");
}

fn choices(out: &mut String, section: &Section) {
    if section.choices.is_empty() {
        return;
    }
    let _ = write!(out, "<div class=\"choices\" data-section=\"{}\" hidden>", section.id);
    for (index, choice) in section.choices.iter().enumerate() {
        let name = format!("{}-{index}", section.id);
        let label = Escaped(&choice.label);
        // What cannot be chosen need not be seen, but the page's script counts on it.
        let hidden = if choice.options.len() < 2 { " hidden" } else { "" };
        let chars: usize = choice.options.iter().map(|option| option.chars().count()).sum();
        if choice.options.len() > MOST_BUTTONS || chars > MOST_BUTTON_CHARS {
            let _ =
                write!(out, "<fieldset{hidden}><label for=\"{name}\">{label}</label><select id=\"{name}\">");
            for (value, option) in choice.options.iter().enumerate() {
                let selected = if value == choice.chosen { " selected" } else { "" };
                let _ = write!(out, "<option{selected}>{}</option>", Escaped(option));
            }
            out.push_str("</select></fieldset>");
            continue;
        }
        let _ = write!(out, "<fieldset{hidden}><legend>{label}</legend><div class=\"options\">");
        for (value, option) in choice.options.iter().enumerate() {
            let checked = if value == choice.chosen { " checked" } else { "" };
            let _ = write!(
                out,
                "<label><input type=\"radio\" name=\"{name}\" value=\"{value}\"{checked}><span>{}</span></label>",
                Escaped(option)
            );
        }
        out.push_str("</div></fieldset>");
    }
    out.push_str("</div>\n");
}

fn figure(out: &mut String, chart: &Chart) {
    let id = &chart.id;
    let _ = writeln!(
        out,
        "<figure><div class=\"plot-head\"><h3 id=\"{id}-name\">{}</h3></div>\
         <div class=\"plot\" data-chart=\"{id}\" role=\"application\" aria-roledescription=\"chart\" tabindex=\"0\" aria-labelledby=\"{id}-name\" \
         aria-describedby=\"{id}-summary\"></div><figcaption id=\"{id}-summary\">{}</figcaption></figure>",
        Escaped(&chart.title),
        Escaped(&chart.summary)
    );
}

fn table(out: &mut String, table: &Table, series: &[Series]) {
    let id = &table.id;
    let caption = Escaped(&table.caption);
    if table.folded {
        let _ = writeln!(out, "<details class=\"folded\"><summary>Table: {caption}</summary>");
    }
    let _ = write!(
        out,
        "<div class=\"table{}{}\"><div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-labelledby=\"{id}-caption\">\
         <table data-table=\"{id}\"><caption id=\"{id}-caption\"><span>{caption}</span></caption><thead><tr>",
        if table.columns.len() <= ROOMY { " roomy" } else { "" },
        if table.rows.len() > LONG { " long" } else { "" }
    );
    for column in &table.columns {
        let class = match column.name.chars().count() {
            _ if column.numeric => " class=\"n\"",
            0..=SHORT => "",
            _ => " class=\"long-name\"",
        };
        let _ = write!(
            out,
            "<th scope=\"col\"{class} data-keys=\"{}\"{}>{}</th>",
            Escaped(&column.csv_keys()),
            if column.interval { " data-interval" } else { "" },
            Escaped(&column.name)
        );
    }
    out.push_str("</tr></thead><tbody>\n");
    let mut before = None;
    for part in &table.rows {
        // Rows of the next load stand apart from those of the one before.
        let load = part.series.and(part.cells.get(1)).map(|cell| &cell.text);
        row(out, table, part, series, before.is_some_and(|before| Some(before) != load));
        before = load;
    }
    out.push_str("</tbody></table></div></div>\n");
    if table.folded {
        out.push_str("</details>\n");
    }
}

fn row(out: &mut String, table: &Table, row: &Row, series: &[Series], apart: bool) {
    let apart = if apart { " apart" } else { "" };
    match row.series.and_then(|index| series.get(index)) {
        Some(series) => {
            let _ = write!(out, "<tr class=\"s{}{apart}\">", series.colour);
        }
        None => out.push_str("<tr>"),
    }
    for (index, cell) in row.cells.iter().enumerate() {
        let numeric = table.columns.get(index).is_some_and(|column| column.numeric);
        let swatch = row.series.filter(|_| index == 0).map(swatch).unwrap_or_default();
        table_cell(out, cell, numeric, index == 0, &swatch);
    }
    out.push_str("</tr>\n");
}

fn table_cell(out: &mut String, cell: &Cell, numeric: bool, head: bool, swatch: &str) {
    let mark = match cell.mark {
        None => "",
        Some(Mark::Differs) => " differs",
        Some(Mark::Better) => " better",
        Some(Mark::Worse) => " worse",
    };
    // Short texts stay on one line; long ones would make the table too wide.
    let kind = match cell.text.chars().count() {
        _ if numeric => "n",
        0..=SHORT => "short",
        _ => "",
    };
    let class = format!("{kind}{mark}");
    let class = if class.is_empty() { class } else { format!(" class=\"{}\"", class.trim_start()) };
    let value =
        cell.value.as_ref().map(|value| format!(" data-v=\"{}\"", Escaped(value))).unwrap_or_default();
    let (open, close) = if head { ("th scope=\"row\"", "th") } else { ("td", "td") };
    let _ = write!(out, "<{open}{class}{value}>{swatch}{}", Escaped(&cell.text));
    if let Some(detail) = &cell.detail {
        let _ = write!(out, " <small>{}</small>", Escaped(detail));
    }
    if let Some(bar) = cell.bar {
        out.push_str(&interval(bar));
    }
    let _ = write!(out, "</{close}>");
}

/// An interval with its middle, and the line where two sides are even.
fn interval(bar: Bar) -> String {
    let at = |share: f64| (share.clamp(0.0, 1.0) * 1000.0).round() / 10.0;
    let (low, middle, high, even) = (at(bar.low), at(bar.middle), at(bar.high), at(bar.even));
    format!(
        "<svg class=\"interval\" viewBox=\"0 0 100 12\" preserveAspectRatio=\"none\" aria-hidden=\"true\">\
         <path class=\"scale-line\" d=\"M0 6H100\"/><path class=\"even\" d=\"M{even} 0V12\"/><path class=\"range\" d=\"M{low} 6H{high}\"/>\
         <path class=\"middle\" d=\"M{middle} 1.5V10.5\"/></svg>"
    )
}
