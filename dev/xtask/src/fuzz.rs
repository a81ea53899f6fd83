//! The fuzz targets of `dev/fuzz/`, which is a workspace of its own.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use xshell::Cmd;

use crate::steps::Steps;
use crate::tool;
use crate::workspace::Workspace;

const MANIFEST: &str = "dev/fuzz/Cargo.toml";

#[derive(Deserialize)]
struct Metadata {
    target_directory: PathBuf,
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

/// Runs each target over its corpus, and over a few thousand changes of it, without libFuzzer: CI's
/// step.
pub(crate) fn corpus(workspace: &Workspace) -> Result<()> {
    // Beside what the workspace has built: most dependencies are the same.
    let target_dir = metadata(workspace, "Cargo.toml")?.target_directory;
    tool::ensure_component(workspace, "rustfmt", "fmt")?;
    workspace
        .cargo()
        .args(["fmt", "--manifest-path", MANIFEST, "--check"])
        .run()?;
    let test = [
        "test",
        "--manifest-path",
        MANIFEST,
        "--test",
        "corpus",
        "--target-dir",
    ];
    locked(workspace.cargo().args(test).arg(target_dir)).run()?;
    Ok(())
}

/// Runs each target, or those named, under libFuzzer.
pub(crate) fn run(workspace: &Workspace, seconds: u32, only: &[String]) -> Result<()> {
    let fuzz = metadata(workspace, MANIFEST)?;
    let bins = fuzz
        .packages
        .into_iter()
        .flat_map(|package| package.targets);
    let all: Vec<_> = bins
        .filter(|target| target.kind == ["bin"])
        .map(|target| target.name)
        .collect();
    if let Some(unknown) = only.iter().find(|name| !all.contains(name)) {
        bail!(
            "there is no fuzz target `{unknown}`: there are {}",
            all.join(", ")
        );
    }
    ensure_cargo_fuzz(workspace)?;

    // Not where the workspace builds: the flags are others. What is found stays out of the
    // checkout.
    let target_dir = metadata(workspace, "Cargo.toml")?
        .target_directory
        .join("fuzz");
    let mut steps = Steps::of("fuzz");
    for target in all
        .into_iter()
        .filter(|name| only.is_empty() || only.contains(name))
    {
        // The names live as long as the process: there are few.
        let name: &'static str = target.leak();
        steps.run(name, "libFuzzer", || {
            under_libfuzzer(workspace, &target_dir, name, seconds)
        });
    }
    steps.finish()
}

/// Runs one target.
fn under_libfuzzer(
    workspace: &Workspace,
    target_dir: &Path,
    name: &str,
    seconds: u32,
) -> Result<()> {
    let found = target_dir.join("corpus").join(name);
    let artifacts = target_dir.join("artifacts").join(name);
    workspace.shell().create_dir(&found)?;
    workspace.shell().create_dir(&artifacts)?;
    let flags = [
        "--fuzz-dir",
        "dev/fuzz",
        "--sanitizer",
        SANITIZER,
        "--target-dir",
    ];
    let cargo = workspace
        .cargo()
        .args(["fuzz", "run"])
        .args(flags)
        .arg(target_dir)
        .arg(name);
    // The first folder gets what libFuzzer finds interesting; the committed one stays
    // small.
    cargo
        .arg(&found)
        .arg(format!("dev/fuzz/corpus/{name}"))
        .arg("--")
        .args([
            format!("-max_total_time={seconds}"),
            format!("-artifact_prefix={}/", artifacts.display()),
        ])
        .args(["-print_final_stats=1", "-timeout=10"])
        // cargo-fuzz wants flags of nightly toolchains; this one has them too.
        .env("RUSTC_BOOTSTRAP", "1")
        .run()
        .with_context(|| {
            format!(
                "the bytes are in {}; to run them again: cargo run --manifest-path \
                 {MANIFEST} --bin {name} -- FILE; after the fix, keep them in \
                 fuzz/corpus/{name}",
                artifacts.display()
            )
        })?;
    Ok(())
}

/// None of our code is unsafe, so there is little for a sanitizer to see, and without one the
/// targets run twice as often.
const SANITIZER: &str = "none";

fn ensure_cargo_fuzz(workspace: &Workspace) -> Result<()> {
    if tool::has_subcommand(workspace, "fuzz") {
        return Ok(());
    }
    println!(
        "cargo-fuzz is not installed: installing it with cargo, because it builds and runs the \
         fuzz targets"
    );
    workspace
        .cargo()
        .args(["install", "cargo-fuzz", "--locked"])
        .run()?;
    Ok(())
}

fn metadata(workspace: &Workspace, manifest: &str) -> Result<Metadata> {
    let args = [
        "metadata",
        "--format-version=1",
        "--no-deps",
        "--manifest-path",
        manifest,
    ];
    let json = workspace.cargo().args(args).quiet().read()?;
    serde_json::from_str(&json).context("cannot read the output of cargo metadata")
}

/// In CI the lock file is taken as it is. At home a changed dependency of the library changes it as
/// well.
fn locked(cargo: Cmd<'_>) -> Cmd<'_> {
    if env::var_os("CI").is_some() {
        cargo.arg("--locked")
    } else {
        cargo
    }
}
