//! A private MySQL: the real one, beside which MariaDB is a server of its own.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

use super::database::{Database, Kind, database_server};
use super::port::HeldPort;

/// Names the program `mysqld`.
const PROGRAM: &str = "IDEM_MYSQL_SERVER";

/// A private MySQL server: empty, on a free port of this host, unprivileged, its files in a
/// temporary directory. On Linux only.
///
/// The environment variable `IDEM_MYSQL_SERVER` names its program `mysqld`, because the one in
/// `PATH` often is a MariaDB.
///
/// Its user has no password: the login of MySQL 9 sends one only over TLS or encrypted with RSA.
///
/// It is killed when this is dropped, and when this process ends, in whatever way. It does not wait
/// for the disk, so what it has committed survives its own death, not that of the machine.
///
/// # Examples
///
/// ```no_run
/// use idem_testkit::MySqlServer;
///
/// # async fn example() -> std::io::Result<()> {
/// let server = MySqlServer::start_with(&["--innodb-rollback-on-timeout=ON"]).await?;
/// let url = server.url(); // mysql://..
/// server.pause()?; // it accepts connections, and answers nothing
/// server.resume()?;
/// server.kill()?;
/// server.restart().await?; // with its data, at the same port
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct MySqlServer(Database);

database_server!(MySqlServer, MySql);

impl MySqlServer {
    /// Its URL through another port on this host, such as a proxy's.
    pub fn url_through(&self, port: u16) -> String {
        format!("mysql://idem@127.0.0.1:{port}/idem")
    }
}

/// Small, and without what a server for tests does not need; a server must agree with the database
/// that was created.
const SETTINGS: [&str; 8] = [
    "--no-defaults",
    "--innodb-redo-log-capacity=8M",
    "--innodb-buffer-pool-size=32M",
    // A process that dies leaves no page half written.
    "--innodb-doublewrite=OFF",
    "--performance-schema=OFF",
    "--disable-log-bin",
    "--mysqlx=OFF",
    // Clients take TLS where it is offered, and a proxy of the tests reads what passes.
    "--auto-generate-certs=OFF",
];

struct MySql;

impl Kind for MySql {
    const NAME: &'static str = "mysql";

    fn program() -> io::Result<PathBuf> {
        let program = env::var_os(PROGRAM)
            .map(PathBuf::from)
            .filter(|program| program.is_file());
        program.ok_or_else(|| {
            let why = format!(
                "there is no real MySQL: `cargo xtask ci` makes one, which {PROGRAM} then names, \
                 or have it name a `mysqld` 8.0 or newer"
            );
            io::Error::new(io::ErrorKind::NotFound, why)
        })
    }

    fn create(dir: &Path) -> io::Result<Command> {
        let init = "CREATE DATABASE IF NOT EXISTS idem;\nCREATE USER IF NOT EXISTS \
            idem@'127.0.0.1';\nGRANT ALL ON *.* TO idem@'127.0.0.1' WITH GRANT OPTION;\n";
        fs::write(dir.join("init.sql"), init)?;
        let mut command = Command::new(Self::program()?);
        command.args(SETTINGS).arg("--initialize-insecure");
        command.arg(format!("--datadir={}", dir.join("data").display()));
        command.env("TMPDIR", dir);
        Ok(command)
    }

    fn arguments(dir: &Path, port: u16, _: &mut Vec<HeldPort>) -> io::Result<Vec<OsString>> {
        let place = |name: &str, file: &str| format!("--{name}={}", dir.join(file).display());
        let args = [
            place("datadir", "data"),
            place("socket", "socket"),
            place("pid-file", "pid"),
            place("init-file", "init.sql"),
            // Not `/tmp`: a server that starts removes the temporary tables of the others there.
            format!("--tmpdir={}", dir.display()),
            format!("--port={port}"),
            "--bind-address=127.0.0.1".to_owned(),
            "--skip-name-resolve".to_owned(),
            "--secure-file-priv=NULL".to_owned(),
            "--max-connections=500".to_owned(),
            // Written at each commit, and not waited for.
            "--innodb-flush-log-at-trx-commit=2".to_owned(),
        ];
        Ok(SETTINGS
            .into_iter()
            .map(OsString::from)
            .chain(args.into_iter().map(OsString::from))
            .collect())
    }
}
