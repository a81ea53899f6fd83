//! The oldest dependencies: each published package builds with the oldest versions that its
//! manifest allows.

use std::fmt::Write as _;

use anyhow::{Context as _, Result, ensure};
use xshell::cmd;

use crate::packages;
use crate::workspace::{Package, Workspace};

/// Packs the packages, unpacks them side by side, and checks each as a workspace of its own. One
/// lock file for all of them would let a dependency of one package raise the floor of another.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    packages::package(workspace, false)?;
    let shell = workspace.shell();
    let target = workspace.target_dir()?.join("floors");
    let published = workspace.published()?;
    let temp = shell.create_temp_dir()?;
    let dir = temp.path();
    for package in &published {
        let archive = packages::archive(workspace, package)?;
        cmd!(
            shell,
            "tar --extract --gzip --file {archive} --directory {dir}"
        )
        .quiet()
        .run()?;
    }
    // One run shows every failure.
    let mut failed = Vec::new();
    for package in &published {
        println!("{} with the oldest dependencies", package.name);
        let _in_package = shell.push_dir(dir.join(package.folder()));
        let manifest = shell.read_file("Cargo.toml")?;
        shell.write_file(
            "Cargo.toml",
            isolated(&manifest, &others(package, &published)),
        )?;
        // The option is unstable, and nothing is built with it.
        let lock = workspace
            .cargo()
            .args(["-Zdirect-minimal-versions", "generate-lockfile"])
            .env("RUSTC_BOOTSTRAP", "1");
        let check = workspace
            .cargo()
            .args(["check", "--locked", "--all-features", "--target-dir"])
            .arg(&target);
        let checked = lock
            .run()
            .context("a dependency needs a newer version of another one than the manifest allows")
            .and_then(|()| Ok(check.run()?));
        if let Err(error) = checked {
            failed.push(format!("{}: {error:#}", package.name));
        }
    }
    ensure!(failed.is_empty(), "{}", failed.join("; "));
    Ok(())
}

/// The packages that this one may depend on, and their folders.
fn others<'a>(package: &Package, published: &'a [Package]) -> Vec<(&'a str, String)> {
    published
        .iter()
        .filter(|other| other.name != package.name)
        .map(|other| (other.name.as_str(), other.folder()))
        .collect()
}

/// The manifest of a package as a workspace of its own, without what its tests need, and with our
/// other packages from the folders beside it.
fn isolated(manifest: &str, others: &[(&str, String)]) -> String {
    let mut text = String::new();
    let mut is_for_tests = false;
    for line in manifest.lines() {
        if line.starts_with('[') {
            is_for_tests = line.contains("dev-dependencies");
        }
        if !is_for_tests {
            text.push_str(line);
            text.push('\n');
        }
    }
    text.push_str("\n[workspace]\n\n[patch.crates-io]\n");
    for (name, folder) in others {
        let _ = writeln!(text, "{name} = {{ path = \"../{folder}\" }}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::isolated;

    #[test]
    fn what_tests_need_is_left_out_and_the_other_packages_are_found() {
        let manifest = "\
            [dependencies.serde]\nversion = \"1\"\n\n\
            [dev-dependencies.axum]\nversion = \"0.8\"\n\n\
            [target.'cfg(unix)'.dev-dependencies.libc]\nversion = \"0.2\"\n\n\
            [lib]\nname = \"one\"\n";
        let other = ("two", "two-0.1.0".to_owned());
        assert_eq!(
            isolated(manifest, &[other]),
            "[dependencies.serde]\nversion = \"1\"\n\n[lib]\nname = \"one\"\n\n\
             [workspace]\n\n[patch.crates-io]\ntwo = { path = \"../two-0.1.0\" }\n"
        );
    }
}
