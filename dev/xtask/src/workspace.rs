//! The checkout that the chores work on, and cargo in it.

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;
use xshell::{Cmd, Shell, cmd};

/// The facade's package: the one that users name.
pub(crate) const FACADE: &str = "idem-rs";

/// The workspace, with a shell that stands in its root.
pub(crate) struct Workspace {
    shell: Shell,
}

/// A member of the workspace, as `cargo metadata` tells it.
#[derive(Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) rust_version: Option<String>,
    manifest_path: PathBuf,
    features: BTreeMap<String, Vec<String>>,
    targets: Vec<Target>,
    /// The registries it may go to: `None` is any, an empty list is `publish = false`.
    publish: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    target_directory: PathBuf,
}

/// A target that cargo has built, as cargo reports it.
#[derive(Deserialize)]
struct Built {
    manifest_path: PathBuf,
    target: Target,
    profile: Profile,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

impl Target {
    fn is(&self, kind: &str) -> bool {
        self.kind == [kind]
    }
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// A program of tests that cargo has built.
pub(crate) struct TestProgram {
    /// The package and its target, such as `idem-redis::conformance`; the package alone for the
    /// unit tests of its library.
    pub(crate) id: String,
    pub(crate) package: String,
    /// Whether it is a target of its own, not the unit tests of a library or a program.
    pub(crate) is_integration: bool,
    /// The directory of the package, in which cargo runs its tests.
    pub(crate) dir: PathBuf,
    pub(crate) path: PathBuf,
}

impl Workspace {
    pub(crate) fn open() -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .ancestors()
            .nth(2)
            .context("xtask is not inside a workspace")?;
        let shell = Shell::new()?;
        shell.change_dir(root);
        Ok(Self { shell })
    }

    pub(crate) fn shell(&self) -> &Shell {
        &self.shell
    }

    /// A cargo command in the root. What it builds is built once and run, so that it is not
    /// incremental and has no debugging information: panics name file and line without it. A build
    /// by hand keeps both.
    pub(crate) fn cargo(&self) -> Cmd<'_> {
        let cargo = cmd!(self.shell, "cargo")
            .env("CARGO_INCREMENTAL", "0")
            .env("CARGO_PROFILE_DEV_DEBUG", "0");
        env::vars_os()
            .map(|(name, _)| name)
            // `cargo run` set these for xtask itself. Build scripts that watch them would run again
            // each time that cargo is called from here and by hand in turn.
            .filter(|name| {
                name.to_str().is_some_and(|name| {
                    name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
                })
            })
            .fold(cargo, Cmd::env_remove)
    }

    /// The members that are meant for users.
    pub(crate) fn published(&self) -> Result<Vec<Package>> {
        let members = self.members()?;
        Ok(members.into_iter().filter(Package::is_published).collect())
    }

    pub(crate) fn members(&self) -> Result<Vec<Package>> {
        Ok(self.metadata(&["--no-deps"])?.packages)
    }

    /// The members, and all that the lock file names.
    pub(crate) fn locked(&self) -> Result<Vec<Package>> {
        Ok(self.metadata(&["--all-features"])?.packages)
    }

    pub(crate) fn target_dir(&self) -> Result<PathBuf> {
        Ok(self.metadata(&["--no-deps"])?.target_directory)
    }

    /// The programs that `build` makes, by the names of their targets.
    pub(crate) fn programs(&self, args: &[&str]) -> Result<BTreeMap<String, PathBuf>> {
        let built = built(self.cargo().arg("build").args(args))?.into_iter();
        // Cargo builds a benchmark with the profile of tests.
        let built = built.filter(|built| !built.profile.test || built.target.is("bench"));
        Ok(built
            .filter_map(|built| Some((built.target.name, built.executable?)))
            .collect())
    }

    /// The test programs that `cargo test` makes with these arguments.
    pub(crate) fn test_programs(&self, args: &[String]) -> Result<Vec<TestProgram>> {
        let members = self.members()?;
        let program = |built: Built| {
            let package = members
                .iter()
                .find(|member| member.manifest_path == built.manifest_path)?;
            let target = &built.target;
            let id = if target.is("test") || target.is("bin") {
                format!("{}::{}", package.name, target.name)
            } else {
                package.name.clone()
            };
            Some(TestProgram {
                id,
                package: package.name.clone(),
                is_integration: target.is("test"),
                dir: package.dir().ok()?.to_owned(),
                path: built.executable?,
            })
        };
        let cargo = self.cargo().args(["test", "--no-run"]).args(args);
        let built = built(cargo)?.into_iter();
        Ok(built
            .filter(|built| built.profile.test)
            .filter_map(program)
            .collect())
    }

    fn metadata(&self, args: &[&str]) -> Result<Metadata> {
        let json = self
            .cargo()
            .args(["metadata", "--format-version=1"])
            .args(args)
            .quiet()
            .read()?;
        serde_json::from_str(&json).context("cannot read the output of cargo metadata")
    }
}

/// Builds with this command, and returns what cargo has built.
fn built(cargo: Cmd<'_>) -> Result<Vec<Built>> {
    let messages = cargo
        .arg("--message-format=json-render-diagnostics")
        .read()?;
    let built = messages.lines();
    Ok(built
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect())
}

impl Package {
    /// Returns whether it is meant for users.
    pub(crate) fn is_published(&self) -> bool {
        self.publish != Some(Vec::new())
    }

    /// The names of its test programs, without the unit tests.
    pub(crate) fn tests(&self) -> impl Iterator<Item = &str> {
        let tests = self.targets.iter().filter(|target| target.is("test"));
        tests.map(|target| target.name.as_str())
    }

    /// The names of its features, without the set of defaults.
    pub(crate) fn features(&self) -> impl Iterator<Item = &str> {
        self.features
            .keys()
            .map(String::as_str)
            .filter(|feature| *feature != "default")
    }

    /// Returns the name of the folder that it is packed into.
    pub(crate) fn folder(&self) -> String {
        format!("{}-{}", self.name, self.version)
    }

    /// Returns the directory of its manifest.
    pub(crate) fn dir(&self) -> Result<&Path> {
        self.manifest_path
            .parent()
            .context("a manifest lies in no folder")
    }
}
/// Finds the Rust files below a folder.
pub(crate) fn rust_files(dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // A folder of UI cases has what must not compile.
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            rust_files(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}
