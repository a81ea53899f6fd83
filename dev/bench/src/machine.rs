//! The machine, and what runs on it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::available_parallelism;

use serde::{Deserialize, Serialize};

const UNKNOWN: &str = "unknown";

/// The facts about the machine that a reader needs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) cores: usize,
    pub(crate) processor: String,
    pub(crate) memory: String,
    pub(crate) kernel: String,
    /// How many processes wanted to run, on average over the last minute, before the run.
    pub(crate) load: String,
    pub(crate) rustc: String,
}

impl Machine {
    /// This one.
    pub(crate) fn look() -> Self {
        Self {
            cores: available_parallelism().map_or(1, usize::from),
            processor: processor().unwrap_or_else(|| UNKNOWN.to_owned()),
            memory: memory().unwrap_or_else(|| UNKNOWN.to_owned()),
            kernel: said("uname", &["-s", "-r", "-m"]).unwrap_or_else(|| UNKNOWN.to_owned()),
            load: load().unwrap_or_else(|| UNKNOWN.to_owned()),
            rustc: said("rustc", &["--version"]).unwrap_or_else(|| UNKNOWN.to_owned()),
        }
    }
}

/// The commit that was measured.
pub(crate) fn commit() -> String {
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else {
        return UNKNOWN.to_owned();
    };
    // The report itself changes in each run.
    let dirty = git(&[
        "status",
        "--porcelain",
        "--untracked-files=no",
        "--",
        ".",
        ":!docs",
    ]);
    if dirty.is_none_or(|changes| changes.is_empty()) {
        commit
    } else {
        format!("{commit}, with changes")
    }
}

/// The version of a package that was built with: the newest, if there are several.
pub(crate) fn locked(package: &str) -> String {
    let lock = fs::read_to_string(root().join("Cargo.lock")).unwrap_or_default();
    let name = format!("name = \"{package}\"\nversion = \"");
    let version = lock
        .rsplit_once(&name)
        .and_then(|(_, rest)| rest.split('"').next());
    version.unwrap_or(UNKNOWN).to_owned()
}

/// The memory that this process has, in bytes, where the system tells it.
pub(crate) fn resident() -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    kilobytes(&status, "VmRSS:").map(|kilobytes| kilobytes * 1024.0)
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn processor() -> Option<String> {
    if let Ok(info) = fs::read_to_string("/proc/cpuinfo") {
        let model = info
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        return model.map(|(_, model)| model.to_owned());
    }
    said("sysctl", &["-n", "machdep.cpu.brand_string"])
}

fn memory() -> Option<String> {
    let bytes = match fs::read_to_string("/proc/meminfo") {
        Ok(info) => kilobytes(&info, "MemTotal:")? * 1024.0,
        Err(_) => said("sysctl", &["-n", "hw.memsize"])?.parse().ok()?,
    };
    Some(format!("{:.0} GiB", bytes / f64::from(1 << 30)))
}

fn load() -> Option<String> {
    let load = fs::read_to_string("/proc/loadavg").ok()?;
    load.split(' ').next().map(str::to_owned)
}

fn kilobytes(text: &str, name: &str) -> Option<f64> {
    text.lines()
        .find_map(|line| line.strip_prefix(name))?
        .trim()
        .strip_suffix(" kB")?
        .parse()
        .ok()
}

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .arg("-C")
        .arg(root())
        .args(args)
        .output()
        .ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// What a program says, if it runs and says something.
pub(crate) fn said(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok()?;
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    (output.status.success() && !said.is_empty()).then_some(said)
}
