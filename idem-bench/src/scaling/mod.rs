//! How cost grows: constants that are measured, and what follows from them by formula.
//!
//! `idem-bench scaling --measure` measures; `idem-bench scaling` shows what follows from the
//! constants in `docs/scaling`, and with `--write docs` renews the tables of `docs/scaling.md`.
//! What is hand-written there stays.
#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts of calls and bytes are far below what a float holds, and times are not negative"
)]

mod constants;
mod measure;
mod page;
mod plan;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use constants::Constants;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Measure the constants at a server that is started; else they are read
    #[arg(long)]
    measure: bool,
    /// Measure them at a server that is there already, with keys that begin with `idem-bench-` and
    /// expire. It should have nothing else to do meanwhile
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
    /// Where the constants are, from an earlier run with `--write`
    #[arg(long, value_name = "FILE")]
    constants: Option<PathBuf>,
    /// Renew the tables of scaling.md there, and scaling/constants.json
    #[arg(long, value_name = "DIR")]
    write: Option<PathBuf>,
    #[command(flatten)]
    plan: plan::Plan,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let constants = if args.measure || args.redis.is_some() {
        // One thread, so that callers have one processor and the server another.
        let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        tokio.block_on(measure::constants(args.redis))?
    } else {
        let file = args.constants.unwrap_or_else(|| docs.join("scaling/constants.json"));
        let json =
            fs::read(&file).with_context(|| format!("cannot read {}; measure with --measure", file.display()))?;
        serde_json::from_slice(&json).context("cannot read the constants")?
    };
    let mut tables = page::tables(&constants);
    tables.push(("plan", args.plan.table(&constants)));
    for (name, table) in &tables {
        println!("\n{name}\n\n{table}");
    }
    let Some(dir) = &args.write else { return Ok(()) };
    write(dir, &constants, &tables)?;
    println!("written: {}", dir.join("scaling.md").display());
    Ok(())
}

/// Puts the tables between their marks.
fn write(dir: &Path, constants: &Constants, tables: &[(&str, String)]) -> Result<()> {
    fs::create_dir_all(dir.join("scaling"))?;
    let mut json = serde_json::to_string_pretty(constants)?;
    json.push('\n');
    fs::write(dir.join("scaling/constants.json"), json)?;
    let file = dir.join("scaling.md");
    let mut text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    for (name, table) in tables {
        let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- end of {name} -->\n"));
        let mut put = || {
            let from = text.find(&begin)? + begin.len();
            let to = from + text.get(from..)?.find(&end)?;
            text.replace_range(from..to, &format!("\n{}\n\n", table.trim_end()));
            Some(())
        };
        put().with_context(|| format!("{} has no marks for the table {name}", file.display()))?;
    }
    fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
}
