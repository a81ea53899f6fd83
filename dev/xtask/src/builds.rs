//! `cargo xtask bench --build`: how long a build from nothing takes, beside that of a library that
//! people use for the same.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result};
use xshell::{Shell, cmd};

/// Names, and what stands in a manifest; `{root}` is this workspace, `{service}` is [`SERVICE`].
const DEPENDENCIES: [(&str, &str); 6] = [
    ("idem-rs", r#"idem-rs = { path = "{root}" }"#),
    ("cached", r#"cached = "4.1""#),
    (
        "idem-rs, redis",
        r#"idem-rs = { path = "{root}", features = ["redis"] }"#,
    ),
    (
        "cached, redis_tokio",
        r#"cached = { version = "4.1", features = ["redis_tokio"] }"#,
    ),
    (
        "idem-rs, a service",
        r#"idem-rs = { path = "{root}" }{service}"#,
    ),
    (
        "cached, a service",
        r#"cached = { version = "4.1", features = ["async"] }{service}"#,
    ),
];

/// The dependencies that an async service has anyway.
const SERVICE: &str = r#"
tokio = { version = "1.47", features = ["macros", "net", "rt-multi-thread", "time"] }
serde = { version = "1", features = ["derive"] }
serde_json = "1"
tracing = "0.1""#;

struct Program {
    name: &'static str,
    dir: PathBuf,
    crates: usize,
    seconds: Vec<f64>,
}

pub(crate) fn run(shell: &Shell, rounds: u32) -> Result<()> {
    let root = shell.current_dir();
    let dir = shell.create_temp_dir()?;
    let mut programs = Vec::new();
    for (place, (name, dependency)) in DEPENDENCIES.into_iter().enumerate() {
        let dir = dir.path().join(format!("program-{place}"));
        let dependency = dependency
            .replace("{root}", &root.to_string_lossy())
            .replace("{service}", SERVICE);
        programs.push(Program {
            name,
            crates: prepare(shell, &dir, &dependency)?,
            dir,
            seconds: Vec::new(),
        });
    }
    // In turns, so that what slows the machine down hits all.
    for _ in 0..rounds {
        for program in &mut programs {
            let target = program.dir.join("target");
            shell.remove_path(&target)?;
            let begun = Instant::now();
            cargo(shell, &program.dir, &["build", "--quiet", "--offline"])?;
            program.seconds.push(begun.elapsed().as_secs_f64());
        }
    }
    println!("\n{:<22}{:>8}{:>10}  range", "", "crates", "median");
    for Program {
        name,
        crates,
        mut seconds,
        ..
    } in programs
    {
        seconds.sort_by(f64::total_cmp);
        let least = seconds.first().copied();
        let most = seconds.last().copied();
        let [median, least, most] =
            [seconds.get(seconds.len() / 2).copied(), least, most].map(Option::unwrap_or_default);
        println!("{name:<22}{crates:>8}{median:>8.1} s  {least:.1} s to {most:.1} s");
    }
    Ok(())
}

/// Makes the program, and has all that it needs downloaded. Gives how many crates it is built of,
/// besides itself.
fn prepare(shell: &Shell, dir: &Path, dependency: &str) -> Result<usize> {
    let manifest = format!(
        "[package]\nname = \"program\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n\
         [dependencies]\n{dependency}\n\n\
         [workspace]\n"
    );
    shell.write_file(dir.join("Cargo.toml"), manifest)?;
    shell.write_file(dir.join("src/main.rs"), "fn main() {}\n")?;
    cargo(shell, dir, &["fetch", "--quiet"])?;
    let _dir = shell.push_dir(dir);
    let tree = cmd!(shell, "cargo tree --edges normal,build --prefix none")
        .quiet()
        .read()?;
    let crates: BTreeSet<_> = tree
        .lines()
        .map(|line| line.trim_end_matches(" (*)"))
        .collect();
    crates
        .len()
        .checked_sub(1)
        .context("cargo tree says nothing")
}

fn cargo(shell: &Shell, dir: &Path, args: &[&str]) -> Result<()> {
    let _dir = shell.push_dir(dir);
    // Its own directory, whatever is set for others. Not incremental, as packages of a registry are
    // built: ours come from a folder here.
    let command = cmd!(shell, "cargo {args...}").env("CARGO_TARGET_DIR", dir.join("target"));
    command.env("CARGO_INCREMENTAL", "0").run()?;
    Ok(())
}
