//! What is published: which compiler it needs, what lies in each package, and which licences and
//! sources its dependencies have.

use std::env;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail, ensure};
use xshell::cmd;

use crate::tool;
use crate::workspace::{FACADE, Package, Workspace};

/// In every package, beside its code.
const IN_EACH: [&str; 4] = ["Cargo.toml", "LICENSE-APACHE", "LICENSE-MIT", "README.md"];

/// Dependencies that need a newer compiler than the packages state, and say so themselves.
const NEWER: [&str; 2] = ["sqlx@0.9", "sqlx-core@0.9"];
/// The features that bring them, by package.
const NEWER_BY: [(&str, &str); 4] = [
    ("idem-sqlx", "sqlx-09"),
    (FACADE, "postgres"),
    (FACADE, "mysql"),
    (FACADE, "sqlite"),
];
/// A package that states that compiler, because it always uses the dependency.
const NEWER_TOO: &str = "idem-cli";

/// No dependency of a published package, as the lock file has it, needs a newer compiler than the
/// packages say. Lints see what our own code needs (`clippy::incompatible_msrv`); where rustup has
/// that compiler, it is asked as well.
pub(crate) fn check_msrv(workspace: &Workspace, ask_compiler: bool) -> Result<()> {
    let (newer, published): (Vec<_>, Vec<_>) = workspace
        .published()?
        .into_iter()
        .partition(|package| package.name == NEWER_TOO);
    check_msrv_of(workspace, &newer, &[], ask_compiler)?;
    let prune: Vec<_> = NEWER.iter().flat_map(|newer| ["--prune", newer]).collect();
    check_msrv_of(workspace, &published, &prune, ask_compiler)
}

/// The same of packages that state one version, without what they use of those that state another.
fn check_msrv_of(
    workspace: &Workspace,
    published: &[Package],
    prune: &[&str],
    ask_compiler: bool,
) -> Result<()> {
    let stated: Vec<_> = published
        .iter()
        .map(|package| package.rust_version.as_deref())
        .collect();
    let Some(Some(stated)) = stated
        .first()
        .filter(|first| stated.iter().all(|other| other == *first))
    else {
        bail!("the published packages state no `rust-version`, or different ones");
    };
    let used = dependencies(workspace, published, prune)?;
    let is_used = |package: &Package| {
        let line = format!("{} v{}", package.name, package.version);
        used.lines()
            .any(|used| used == line || used.starts_with(&format!("{line} ")))
    };
    for package in workspace.locked()? {
        let Some(needed) = package
            .rust_version
            .as_deref()
            .filter(|_| is_used(&package))
        else {
            continue;
        };
        ensure!(
            release(needed) <= release(stated),
            "{} {} needs Rust {needed}, and the packages state {stated}: lock an older one, or \
             raise `rust-version` and say so in the changelog",
            package.name,
            package.version
        );
    }
    if !ask_compiler {
        println!("rust-version {stated}: no dependency needs more");
        return Ok(());
    }
    let toolchain = release(stated)
        .iter()
        .map(u32::to_string)
        .collect::<Vec<_>>()
        .join(".");
    if !has_toolchain(workspace, &toolchain) {
        println!(
            "!!! NOT TESTED: that the packages build with Rust {stated}, because rustup cannot \
             install it here"
        );
        return Ok(());
    }
    build_with(workspace, &toolchain, published, prune)
}

/// Lists what the packages are built of, as `cargo tree` prints it.
fn dependencies(workspace: &Workspace, published: &[Package], prune: &[&str]) -> Result<String> {
    let tree = ["tree", "--edges", "normal,build", "--all-features"];
    let format = ["--target", "all", "--prefix", "none", "--format", "{p}"];
    let packages = published.iter().flat_map(|package| ["-p", &package.name]);
    let tree = workspace.cargo().args(tree).args(format).args(prune);
    Ok(tree.args(packages).quiet().read()?)
}

/// Builds the packages with the compiler that they state.
fn build_with(
    workspace: &Workspace,
    toolchain: &str,
    published: &[Package],
    prune: &[&str],
) -> Result<()> {
    for package in published {
        let is_newer = |feature| NEWER_BY.contains(&(&package.name, feature));
        let features = package
            .features()
            .filter(|feature| prune.is_empty() || !is_newer(feature));
        let features = features.collect::<Vec<_>>().join(",");
        let check = [
            "check",
            "--locked",
            "--target-dir",
            "target/msrv",
            "-p",
            &package.name,
            "--no-default-features",
            "--features",
            &features,
        ];
        cmd!(workspace.shell(), "rustup run {toolchain} cargo")
            .args(check)
            .run()?;
    }
    Ok(())
}

/// `1.88` and `1.88.0` are one release.
fn release(version: &str) -> Vec<u32> {
    let mut numbers: Vec<_> = version
        .split('.')
        .map(|number| number.parse().unwrap_or_default())
        .collect();
    numbers.resize(3, 0);
    numbers
}

fn has_toolchain(workspace: &Workspace, version: &str) -> bool {
    let shell = workspace.shell();
    let is_there = cmd!(shell, "rustup run {version} rustc --version")
        .quiet()
        .ignore_stdout()
        .ignore_stderr()
        .run()
        .is_ok();
    is_there
        || cmd!(
            shell,
            "rustup toolchain install {version} --profile minimal --no-self-update"
        )
        .run()
        .is_ok()
}

/// Packs each package. In each lie both licences, a README, and all of its sources. With `full`,
/// builds it from what was packed, and everything that it depends on once more, and then has cargo
/// publish all of them without the uploads.
pub(crate) fn package(workspace: &Workspace, full: bool) -> Result<()> {
    let mut cargo = workspace.cargo().arg("package");
    if !full {
        cargo = cargo.arg("--no-verify");
    }
    // Named, because `--workspace` has those in it that are never published. Packed together, each
    // builds on the others' packages.
    let packages = workspace.published()?;
    for package in &packages {
        cargo = cargo.args(["-p", &package.name]);
    }
    forget_unpacked(&packages)?;
    // CI has a clean checkout, and a change there is a fault that cargo shall report. At home it is
    // work not yet committed.
    if env::var_os("CI").is_none() && is_dirty(workspace) {
        println!("There are uncommitted changes: packaging them as well.");
        cargo = cargo.arg("--allow-dirty");
    }
    cargo.run()?;
    for package in &packages {
        check_contents(workspace, package)?;
    }
    if full {
        publish_dry(workspace, &packages)?;
    }
    Ok(())
}

/// Asks cargo for everything that it does before it uploads, in the order of the uploads: each
/// dependency is in the registry or uploaded before, and no version is there already. The step has
/// built the packages, so this builds nothing.
fn publish_dry(workspace: &Workspace, packages: &[Package]) -> Result<()> {
    let mut cargo = workspace
        .cargo()
        .args(["publish", "--dry-run", "--no-verify"]);
    for package in packages {
        cargo = cargo.args(["-p", &package.name]);
    }
    if env::var_os("CI").is_none() {
        cargo = cargo.arg("--allow-dirty");
    }
    cargo.run()?;
    Ok(())
}

/// Returns where cargo has packed a package to.
pub(crate) fn archive(workspace: &Workspace, package: &Package) -> Result<PathBuf> {
    let name = format!("{}.crate", package.folder());
    Ok(workspace.target_dir()?.join("package").join(name))
}

fn check_contents(workspace: &Workspace, package: &Package) -> Result<()> {
    let folder = package.folder();
    let archive = archive(workspace, package)?;
    let list = cmd!(workspace.shell(), "tar --list --file {archive}")
        .quiet()
        .read()?;
    let dir = package.dir()?;
    let sources = cmd!(workspace.shell(), "git -C {dir} ls-files src")
        .quiet()
        .read()?;
    ensure!(
        !sources.is_empty(),
        "git knows no sources of {}",
        package.name
    );
    for file in IN_EACH.into_iter().chain(sources.lines()) {
        let path = format!("{folder}/{file}");
        ensure!(
            list.lines().any(|line| line == path),
            "{}: {path} is missing",
            archive.display()
        );
    }
    Ok(())
}

/// Removes what cargo has unpacked of our own packages in an earlier run. It does not unpack a
/// version twice, so the packages would be built on those of the earlier run. They lie under the
/// name of a registry without a host, which is the folder that they are packed into.
fn forget_unpacked(packages: &[Package]) -> Result<()> {
    let home = env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(env::home_dir()?.join(".cargo")));
    let Some(Ok(registries)) = home.map(|home| std::fs::read_dir(home.join("registry/src"))) else {
        return Ok(());
    };
    for registry in registries {
        let registry = registry?;
        if !registry.file_name().to_string_lossy().starts_with('-') {
            continue;
        }
        for package in packages {
            let unpacked = registry.path().join(package.folder());
            if unpacked.exists() {
                std::fs::remove_dir_all(unpacked)?;
            }
        }
    }
    Ok(())
}

fn is_dirty(workspace: &Workspace) -> bool {
    let changes = cmd!(workspace.shell(), "git status --porcelain")
        .quiet()
        .ignore_stderr()
        .read();
    changes.is_ok_and(|changes| !changes.is_empty())
}

/// Licences, sources and bans, as `deny.toml` says; with `full`, advisories too, whose database is
/// fetched.
pub(crate) fn deny(workspace: &Workspace, full: bool) -> Result<()> {
    if !has_or_installs(workspace, "deny", "cargo-deny", full)? {
        return Ok(());
    }
    let checks: &[&str] = if full {
        &["advisories", "bans", "licenses", "sources"]
    } else {
        &["bans", "licenses", "sources"]
    };
    workspace
        .cargo()
        .args(["deny", "--workspace", "--all-features", "check"])
        .args(checks)
        .run()?;
    Ok(())
}

/// The public API breaks nothing that the last release promised.
pub(crate) fn semver(workspace: &Workspace, full: bool) -> Result<()> {
    // With the suffix, `v0.1.0-alpha.1` is older than `v0.1.0`.
    let tags = cmd!(
        workspace.shell(),
        "git -c versionsort.suffix=- tag --list v* --sort=-version:refname"
    )
    .quiet()
    .read()?;
    let Some(last) = tags.lines().next() else {
        println!("There is no tag of a release yet: nothing to compare with.");
        return Ok(());
    };
    if !has_or_installs(workspace, "semver-checks", "cargo-semver-checks", full)? {
        return Ok(());
    }
    for package in workspace.published()? {
        // It reads the API of a library; of macros there is none to read.
        if package.name != "idem-macros" {
            let args = [
                "semver-checks",
                "--all-features",
                "--baseline-rev",
                last,
                "-p",
                &package.name,
            ];
            workspace
                .cargo()
                .args(args)
                .run()
                .with_context(|| format!("{} since {last}", package.name))?;
        }
    }
    Ok(())
}

/// Whether cargo has the subcommand. To build one takes minutes, so only a full run installs it.
fn has_or_installs(
    workspace: &Workspace,
    subcommand: &str,
    package: &str,
    full: bool,
) -> Result<bool> {
    if tool::has_subcommand(workspace, subcommand) {
        return Ok(true);
    }
    if !full {
        println!(
            "!!! NOT CHECKED: {package} is not installed; `cargo xtask ci --full` installs it"
        );
        return Ok(false);
    }
    println!("{package} is not installed: installing it with cargo");
    workspace
        .cargo()
        .args(["install", package, "--locked"])
        .run()?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::release;

    #[test]
    fn releases_are_compared_by_number() {
        assert_eq!(release("1.88"), release("1.88.0"));
        assert!(release("1.9.2") < release("1.88"));
        assert!(release("1.88") < release("1.88.1"));
    }
}
