//! A private MariaDB.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

use super::database::{Database, Kind, database_server, find};
use super::port::HeldPort;

/// The user's password.
const PASSWORD: &str = "wordpass";

/// A private MariaDB server: empty, on a free port of this host, unprivileged, its files in a
/// temporary directory. On Linux only.
///
/// It is killed when this is dropped, and when this process ends, in whatever way. It does not wait
/// for the disk, so what it has committed survives its own death, not that of the machine.
///
/// # Examples
///
/// ```no_run
/// use idem_testkit::MariaDbServer;
///
/// # async fn example() -> std::io::Result<()> {
/// let server = MariaDbServer::start().await?;
/// let url = server.url(); // mysql://..
/// server.pause()?; // it accepts connections, and answers nothing
/// server.resume()?;
/// server.kill()?;
/// server.restart().await?; // with its data, at the same port
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct MariaDbServer(Database);

database_server!(MariaDbServer, MariaDb);

impl MariaDbServer {
    /// Its URL through another port on this host, such as a proxy's.
    pub fn url_through(&self, port: u16) -> String {
        format!("mysql://idem:{PASSWORD}@127.0.0.1:{port}/idem")
    }
}

struct MariaDb;

impl Kind for MariaDb {
    const NAME: &'static str = "mariadb";

    fn program() -> io::Result<PathBuf> {
        tool("mariadbd")
    }

    fn create(dir: &Path) -> io::Result<Command> {
        let init = format!(
            "CREATE DATABASE IF NOT EXISTS idem;\nCREATE USER IF NOT EXISTS idem@'127.0.0.1' \
             IDENTIFIED BY '{PASSWORD}';\nGRANT ALL ON *.* TO idem@'127.0.0.1' WITH GRANT OPTION;\n"
        );
        fs::write(dir.join("init.sql"), init)?;
        let mut command = Command::new(tool("mariadb-install-db")?);
        command.args([
            "--no-defaults",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
        ]);
        command.args(["--innodb-log-file-size=4M", "--innodb-buffer-pool-size=16M"]);
        command.arg(format!("--datadir={}", dir.join("data").display()));
        // Not `/tmp`: a server that starts removes the temporary tables of the others there.
        command.env("TMPDIR", dir);
        Ok(command)
    }

    fn arguments(dir: &Path, port: u16, _: &mut Vec<HeldPort>) -> io::Result<Vec<OsString>> {
        let place = |name: &str, file: &str| format!("--{name}={}", dir.join(file).display());
        let args = [
            "--no-defaults".to_owned(),
            place("datadir", "data"),
            place("socket", "socket"),
            place("pid-file", "pid"),
            place("init-file", "init.sql"),
            // Not `/tmp`: a server that starts removes the temporary tables of the others there.
            format!("--tmpdir={}", dir.display()),
            format!("--port={port}"),
            "--bind-address=127.0.0.1".to_owned(),
            "--skip-name-resolve".to_owned(),
            "--max-connections=500".to_owned(),
            "--innodb-log-file-size=4M".to_owned(),
            "--innodb-buffer-pool-size=32M".to_owned(),
            // Written at each commit, and not waited for.
            "--innodb-flush-log-at-trx-commit=2".to_owned(),
        ];
        Ok(args.into_iter().map(OsString::from).collect())
    }
}

fn tool(program: &str) -> io::Result<PathBuf> {
    let directories = ["/usr/sbin", "/usr/local/sbin", "/usr/local/mysql/bin"].map(PathBuf::from);
    find(
        program,
        &directories,
        "`apt-get install mariadb-server`, `brew install mariadb`",
    )
}
