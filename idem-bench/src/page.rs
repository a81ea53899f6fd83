//! The results, as tables for a terminal and as `docs/benchmarks.md`.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::report::{Figure, Group, Report};
use crate::{in_process, machine, memory, plot};

const HEAD: [&str; 6] = ["", "goal", "median", "range", "", "figures"];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where `run` left its report
    #[arg(long, value_name = "FILE")]
    report: PathBuf,
    /// Where criterion left its estimates: a directory for each round
    #[arg(long, value_name = "DIR")]
    criterion: Option<PathBuf>,
    /// Where `allocations` left its counts
    #[arg(long, value_name = "FILE")]
    allocations: Option<PathBuf>,
    /// Where `expiry` left its counts
    #[arg(long, value_name = "FILE")]
    expiry: Option<PathBuf>,
    /// Write benchmarks.md there, and benchmarks/ with its plots
    #[arg(long, value_name = "DIR")]
    write: Option<PathBuf>,
    /// The command that the page names
    #[arg(long, default_value = "cargo xtask bench")]
    command: String,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let json = fs::read(&args.report).with_context(|| format!("cannot read {}", args.report.display()))?;
    let mut report: Report = serde_json::from_slice(&json).context("cannot read the report")?;
    if let Some(rounds) = &args.criterion {
        report.groups.extend(in_process::times(rounds)?);
    }
    if let Some(file) = &args.allocations {
        report.groups.push(in_process::allocations(file)?);
    }
    if let Some(file) = &args.expiry {
        report.groups.push(memory::expired(file)?);
    }
    print!("{}", tables(&report.groups));
    for what in &report.left_out {
        println!("\nLeft out: {what}.");
    }
    println!("\n{}", sum(&report.groups, "  "));
    if let Some(docs) = &args.write {
        write(&report, args, docs)?;
        println!("written: {}", docs.join("benchmarks.md").display());
    }
    Ok(())
}

/// All tables, for a terminal.
pub(crate) fn tables(groups: &[Group]) -> String {
    let mut text = String::new();
    for group in groups {
        let rows: Vec<_> = group.figures.iter().map(Figure::cells).collect();
        let mut widths = HEAD.map(width);
        for row in &rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(self::width(cell));
            }
        }
        let head = HEAD.map(str::to_owned);
        let _ = writeln!(text, "\n{}", group.title);
        for row in [&head].into_iter().chain(&rows) {
            let [what, goal, median, range, verdict, beside] = row;
            let [what_width, goal_width, median_width, range_width, verdict_width, _] = widths;
            let line = format!(
                "  {what:<what_width$}  {goal:>goal_width$}  {median:>median_width$}  {range:>range_width$}  \
                 {verdict:<verdict_width$}  {beside}"
            );
            let _ = writeln!(text, "{}", line.trim_end());
        }
    }
    text
}

fn width(text: &str) -> usize {
    text.chars().count()
}

/// How many goals are reached, and which are not, each in a line.
fn sum(groups: &[Group], mark: &str) -> String {
    let (mut goals, mut missed) = (0, Vec::new());
    for (group, figure) in groups.iter().flat_map(|group| group.figures.iter().map(move |figure| (group, figure))) {
        let Some(reached) = figure.is_reached() else { continue };
        goals += 1;
        if !reached {
            let [what, goal, median, ..] = figure.cells();
            missed.push(format!("\n{mark}{}: {what}: {median}, goal {goal}", group.title));
        }
    }
    match goals - missed.len() {
        reached if reached == goals => format!("All of {goals} goals are reached."),
        reached => format!("{reached} of {goals} goals are reached; missed:\n{}", missed.concat()),
    }
}

fn write(report: &Report, args: &Args, docs: &Path) -> Result<()> {
    let plots = docs.join("benchmarks");
    fs::create_dir_all(&plots).with_context(|| format!("cannot create {}", plots.display()))?;
    plot::throughput(&report.throughputs, &plots.join("throughput.svg"))?;
    plot::latency(&report.latencies, &plots.join("latency.svg"))?;
    // Written by hand, and kept.
    let notes = plots.join("notes.md");
    let notes = if notes.exists() { fs::read_to_string(&notes)? } else { String::new() };
    let page = docs.join("benchmarks.md");
    fs::write(&page, markdown(report, &args.command, &notes)?)
        .with_context(|| format!("cannot write {}", page.display()))
}

/// A table in Markdown.
pub(crate) fn table(group: &Group) -> Result<String> {
    let mut page = String::new();
    writeln!(page, "| | goal | median | range | | figures |\n| --- | ---: | ---: | ---: | --- | --- |")?;
    for figure in &group.figures {
        let cells = figure.cells().map(|cell| cell.replace('|', "\\|").replace("#[idempotent]", "`#[idempotent]`"));
        writeln!(page, "| {} |", cells.join(" | "))?;
    }
    Ok(page)
}

fn markdown(report: &Report, command: &str, notes: &str) -> Result<String> {
    let mut page = String::new();
    let machine = &report.machine;
    writeln!(page, "<!-- `{command}` writes this page. The hand-written part is benchmarks/notes.md. -->")?;
    writeln!(page, "# Benchmarks\n")?;
    writeln!(
        page,
        "The cost of a call next to the bare commands of its store, and next to caches in process. The floor is \
         redis-rs alone: `SET NX GET PX`, then one script that compares the owner and sets; a replay is only the first \
         command. Keys have 32 bytes, results 200. Everything is measured in one process, in turns, in {} rounds after \
         one to warm up. Each figure is the median of the rounds, with the range of the rounds' own figures. Ratios hold \
         on other machines; times and rates do not.\n",
        report.rounds
    )?;
    writeln!(page, "```sh\n{command}\n```\n")?;
    writeln!(page, "{}\n", sum(&report.groups, "- "))?;
    writeln!(page, "| | |\n| --- | --- |")?;
    let of = |package| machine::locked(package);
    for (name, value) in [
        ("processor", format!("{}, {} cores", machine.processor, machine.cores)),
        ("memory", machine.memory.clone()),
        ("system", machine.kernel.clone()),
        ("load before the run", machine.load.clone()),
        ("compiler", machine.rustc.clone()),
        ("server", format!("{}, over loopback, on the same machine", report.server)),
        ("idem", format!("commit {}", machine::commit())),
        ("beside", format!("redis-rs {}, moka {}, cached {}", of("redis"), of("moka"), of("cached"))),
    ] {
        writeln!(page, "| {name} | {value} |")?;
    }
    for group in &report.groups {
        writeln!(page, "\n## {}\n", group.title)?;
        page.push_str(&table(group)?);
        let shown = [
            (
                group.figures.iter().any(|figure| figure.what.contains("at once: ")),
                "throughput",
                "Calls a second over the number of tasks",
            ),
            (group.figures.iter().any(|figure| figure.what.contains(", p50")), "latency", "Latency by percentile"),
        ];
        for (_, file, title) in shown.into_iter().filter(|(shown, ..)| *shown) {
            writeln!(page, "\n![{title}](benchmarks/{file}.svg)")?;
        }
    }
    for what in &report.left_out {
        writeln!(page, "\nLeft out: {what}.")?;
    }
    if !notes.is_empty() {
        writeln!(page, "\n{}", notes.trim())?;
    }
    Ok(page)
}
