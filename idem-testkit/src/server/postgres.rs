//! A private PostgreSQL.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

use super::database::{Database, Kind, database_server, find, run};
use super::port::HeldPort;

/// Names the program `postgres` of another server than the installed one.
const PROGRAM: &str = "IDEM_POSTGRES_SERVER";
/// The user's password.
pub(super) const PASSWORD: &str = "wordpass";

/// A private PostgreSQL server: empty, on a free port of this host, unprivileged, its files in a
/// temporary directory. On Linux only. It is the newest that is installed, or the one whose program
/// `postgres` the environment variable `IDEM_POSTGRES_SERVER` names.
///
/// It is killed when this is dropped, and when this process ends, in whatever way. It does not wait
/// for the disk, so what it has committed survives its own death, not that of the machine.
///
/// # Examples
///
/// ```no_run
/// use idem_testkit::PostgresServer;
///
/// # async fn example() -> std::io::Result<()> {
/// let server = PostgresServer::start().await?;
/// let url = server.url(); // postgres://..
/// server.pause()?; // it accepts connections, and answers nothing
/// server.resume()?;
/// server.kill()?;
/// server.restart().await?; // with its data, at the same port
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct PostgresServer(Database);

database_server!(PostgresServer, Postgres);

impl PostgresServer {
    /// Starts a standby of this server: a copy that follows it, takes no writes, and can be
    /// [promoted](Self::promote). To this server it is known as `standby`: with the argument
    /// `synchronous_standby_names=standby`, each commit waits until it has it.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub async fn start_standby(&self, args: &[&str]) -> io::Result<Self> {
        let primary = format!(
            "host=127.0.0.1 port={} user=postgres password={PASSWORD}",
            self.port()
        );
        let copy = |dir: &Path| {
            let mut command = Command::new(tool("pg_basebackup")?);
            command.args([
                "--no-sync",
                "--checkpoint=fast",
                "--write-recovery-conf",
                "--dbname",
                &primary,
            ]);
            command.arg("--pgdata").arg(dir.join("data"));
            Ok(command)
        };
        let follow = format!("primary_conninfo={primary} application_name=standby");
        let args = [&["-c", &follow], args].concat();
        Database::start_made_by::<Postgres>(copy, &args)
            .await
            .map(Self)
    }

    /// Makes a standby a server of its own. It takes writes when this returns.
    ///
    /// # Errors
    ///
    /// If it is not a standby, or does not run.
    pub async fn promote(&self) -> io::Result<()> {
        let program = tool("psql")?;
        let url = self.url();
        let promote = move || {
            run(Command::new(program).args([&*url, "--no-psqlrc", "-c", "SELECT pg_promote()"]))
        };
        tokio::task::spawn_blocking(promote)
            .await
            .map_err(io::Error::other)?
    }

    /// Its URL through another port on this host, such as a proxy's.
    pub fn url_through(&self, port: u16) -> String {
        format!("postgres://postgres:{PASSWORD}@127.0.0.1:{port}/postgres")
    }
}

struct Postgres;

impl Kind for Postgres {
    const NAME: &'static str = "postgres";

    fn program() -> io::Result<PathBuf> {
        tool("postgres")
    }

    fn create(dir: &Path) -> io::Result<Command> {
        let password = dir.join("password");
        fs::write(&password, PASSWORD)?;
        let mut command = Command::new(tool("initdb")?);
        // A password that is sent as it is, because hashing it takes a debug build a while for each
        // connection.
        command.args([
            "--username=postgres",
            "--auth-local=trust",
            "--auth-host=password",
            "--no-sync",
        ]);
        command.args(["--encoding=UTF8", "--locale=C", "--no-instructions"]);
        command
            .arg("--pwfile")
            .arg(password)
            .arg("--pgdata")
            .arg(dir.join("data"));
        Ok(command)
    }

    fn arguments(dir: &Path, port: u16, _: &mut Vec<HeldPort>) -> io::Result<Vec<OsString>> {
        let mut args: Vec<OsString> = vec![
            "-D".into(),
            dir.join("data").into(),
            "-p".into(),
            port.to_string().into(),
        ];
        let sockets = format!("unix_socket_directories={}", dir.display());
        let fixed = [
            "listen_addresses=127.0.0.1",
            &sockets,
            // In files of its directory, which a killed server's end removes.
            "dynamic_shared_memory_type=mmap",
            "fsync=off",
            "shared_buffers=32MB",
            "max_connections=500",
        ];
        args.extend(
            fixed
                .into_iter()
                .flat_map(|setting| [OsString::from("-c"), setting.into()]),
        );
        Ok(args)
    }
}

/// The program beside the one that `IDEM_POSTGRES_SERVER` names. Without that: Debian keeps the
/// programs of each version in a directory of their own, and the newest is used.
fn tool(program: &str) -> io::Result<PathBuf> {
    if let Some(server) = env::var_os(PROGRAM) {
        return Ok(PathBuf::from(server).with_file_name(program));
    }
    let mut versions: Vec<(u32, PathBuf)> = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            Some((
                entry.file_name().to_str()?.parse().ok()?,
                entry.path().join("bin"),
            ))
        })
        .collect();
    versions.sort_by_key(|(version, _)| std::cmp::Reverse(*version));
    let directories: Vec<_> = versions.into_iter().map(|(_, bin)| bin).collect();
    find(
        program,
        &directories,
        "`apt-get install postgresql`, `brew install postgresql`",
    )
}
