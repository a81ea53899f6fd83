//! Private servers for tests: Redis, alone and several that belong together, PostgreSQL (also
//! behind PgBouncer), MariaDB, MySQL, RabbitMQ and NATS.

mod cluster;
mod database;
mod mariadb;
mod members;
mod mysql;
mod nats;
mod pgbouncer;
mod port;
mod postgres;
mod process;
mod rabbitmq;
mod resp;
mod sentinels;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fs, io};

use tempfile::TempDir;
use tokio::sync::OnceCell;

pub use self::cluster::{RedisCluster, RedisClusterBuilder};
pub use self::mariadb::MariaDbServer;
pub use self::mysql::MySqlServer;
pub use self::nats::NatsServer;
pub use self::pgbouncer::PgBouncerServer;
pub use self::port::HeldPort;
pub use self::postgres::PostgresServer;
use self::process::Process;
pub use self::rabbitmq::RabbitMqServer;
pub use self::resp::Reply;
pub use self::sentinels::{RedisSentinels, RedisSentinelsBuilder};

/// Names the program of every server that is not given another, such as a `valkey-server`.
const PROGRAM: &str = "IDEM_REDIS_SERVER";
/// How many times a server is started. Only Linux holds its port, and elsewhere another process may
/// take it.
const STARTS: u32 = if cfg!(target_os = "linux") { 1 } else { 3 };
/// How many times the server is asked whether it is ready, each time after a pause.
const ASKED: u32 = 1000;
const PAUSE: Duration = Duration::from_millis(10);

/// A private `redis-server`: empty, on a free port of this host, without persistence.
///
/// It is killed when this is dropped, and when this process ends, in whatever way.
///
/// # Examples
///
/// ```no_run
/// use idem_testkit::RedisServer;
///
/// # async fn example() -> std::io::Result<()> {
/// let server = RedisServer::start().await?;
/// server.cli(&["SET", "greeting", "hello"]).await?;
/// server.pause()?; // it accepts connections, and answers nothing
/// server.resume()?;
/// server.kill()?;
/// server.restart().await?; // empty, at the same port
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RedisServer {
    program: OsString,
    args: Vec<OsString>,
    port: HeldPort,
    /// The port for traffic between the nodes of a cluster.
    bus: Option<HeldPort>,
    has_tls: bool,
    /// The file in which the server itself keeps its settings, where it has one.
    config: Option<PathBuf>,
    process: Mutex<Option<Process>>,
    // Dropped after the process.
    dir: TempDir,
}

/// A [`RedisServer`] with other settings.
#[derive(Debug, Clone)]
pub struct RedisServerBuilder {
    program: OsString,
    args: Vec<OsString>,
    config: Option<String>,
    bus: bool,
    has_tls: bool,
}

impl RedisServer {
    /// Starts one.
    ///
    /// # Errors
    ///
    /// If it is not installed, or does not start; says why, and what to do.
    pub async fn start() -> io::Result<Self> {
        Self::builder().start().await
    }

    /// For one with other settings. Its program is `redis-server`, or what the environment variable
    /// `IDEM_REDIS_SERVER` names.
    pub fn builder() -> RedisServerBuilder {
        let program = std::env::var_os(PROGRAM).unwrap_or_else(|| "redis-server".into());
        RedisServerBuilder {
            program,
            args: Vec::new(),
            config: None,
            bus: false,
            has_tls: false,
        }
    }

    /// One for all tests of this process. It is started at the first call, and killed when the
    /// process ends. Tests that share it use keys of their own, and leave it running.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    pub async fn shared() -> io::Result<&'static Self> {
        static SHARED: OnceCell<RedisServer> = OnceCell::const_new();
        SHARED.get_or_try_init(Self::start).await
    }

    /// Its URL.
    pub fn url(&self) -> String {
        let scheme = if self.has_tls { "rediss" } else { "redis" };
        format!("{scheme}://127.0.0.1:{}/", self.port())
    }

    /// Its port on `127.0.0.1`. On Linux, nobody else is given it while the server is down.
    pub fn port(&self) -> u16 {
        self.port.port()
    }

    /// Suspends it (SIGSTOP): connections stay, and nothing is answered.
    ///
    /// # Errors
    ///
    /// If it does not run.
    pub fn pause(&self) -> io::Result<()> {
        self.signal("STOP")
    }

    /// Lets it go on after [`pause`](Self::pause).
    ///
    /// # Errors
    ///
    /// If it does not run.
    pub fn resume(&self) -> io::Result<()> {
        self.signal("CONT")
    }

    /// Kills it, as a host dies.
    ///
    /// # Errors
    ///
    /// If killing fails. A stopped server is not an error.
    pub fn kill(&self) -> io::Result<()> {
        self.process().take().map_or(Ok(()), Process::kill)
    }

    /// Kills it if it runs, and starts it again at the same port, with the same arguments and
    /// directory: empty, unless its arguments say otherwise.
    ///
    /// # Errors
    ///
    /// If it does not start.
    pub async fn restart(&self) -> io::Result<()> {
        self.kill()?;
        let mut process = self.spawn()?;
        if let Err(error) = self.ready(&mut process).await {
            // Not dropped, which would take the directory along.
            process.kill()?;
            return Err(error);
        }
        *self.process() = Some(process);
        Ok(())
    }

    /// Sends it one command on a connection of its own, and gives its reply. An error reply is a
    /// [`Reply::Error`].
    ///
    /// # Errors
    ///
    /// If no reply comes within five seconds.
    pub async fn cli(&self, command: &[impl AsRef<[u8]>]) -> io::Result<Reply> {
        resp::call(self.port(), command).await
    }

    fn signal(&self, signal: &str) -> io::Result<()> {
        match self.process().as_mut() {
            Some(process) => process.signal(signal),
            None => Err(io::Error::other(
                "the redis-server was killed, and not started again",
            )),
        }
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spawn(&self) -> io::Result<Process> {
        let port = self.port().to_string();
        // A server that was built without TLS does not know the other one.
        let ports: &[&str] = if self.has_tls {
            &["--port", "0", "--tls-port", &port]
        } else {
            &["--port", &port]
        };
        let fixed = [
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--logfile",
            "",
            "--dir",
        ];
        let fixed = ports
            .iter()
            .chain(&fixed)
            .map(OsString::from)
            .chain([self.dir.path().into()]);
        let bus = self
            .bus
            .as_ref()
            .map(|bus| ["--cluster-port".into(), bus.port().to_string().into()])
            .into_iter()
            .flatten();
        // The file comes first, or is taken for a value. Later arguments win, so the caller's come
        // last.
        let args = self
            .config
            .iter()
            .map(OsString::from)
            .chain(fixed)
            .chain(bus)
            .chain(self.args.iter().cloned());
        Process::spawn(&self.program, args, self.dir.path())
    }

    async fn ready(&self, process: &mut Process) -> io::Result<()> {
        for _ in 0..ASKED {
            tokio::time::sleep(PAUSE).await;
            if let Some(why) = process.death()? {
                return Err(io::Error::other(format!(
                    "the redis-server on port {} ended at once: {why}",
                    self.port()
                )));
            }
            // Once this server says that it listens, no other one answers at the port.
            if process.says_ready() && (self.has_tls || resp::answers(self.port()).await) {
                return Ok(());
            }
        }
        Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the redis-server was not ready within 10 s of its start",
        ))
    }
}

impl RedisServerBuilder {
    /// Adds an argument, such as `--maxmemory`, or its value. It comes after those that every
    /// server is started with, and wins. The log must stay on standard output.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Uses another program, such as `valkey-server`.
    #[must_use]
    pub fn program(mut self, program: impl Into<OsString>) -> Self {
        self.program = program.into();
        self
    }

    /// Gives it a file of settings, which the server may write to: it is made once, and a restart
    /// finds it as the server left it. A Sentinel does not start without one.
    #[must_use]
    pub fn config(mut self, text: impl Into<String>) -> Self {
        self.config = Some(text.into());
        self
    }

    /// Listens at its port by TLS alone. The certificate and its key are given by
    /// [`arg`](Self::arg). [`RedisServer::cli`] does not reach such a server.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.has_tls = true;
        self
    }

    /// Gives it the second port that a cluster's node has.
    fn bus(mut self) -> Self {
        self.bus = true;
        self
    }

    fn prepare(self) -> io::Result<RedisServer> {
        let Self {
            program,
            args,
            config,
            bus,
            has_tls,
        } = self;
        let dir = tempfile::Builder::new().prefix("idem-redis-").tempdir()?;
        let config = match config {
            Some(text) => {
                let file = dir.path().join("redis.conf");
                fs::write(&file, text)?;
                Some(file)
            }
            None => None,
        };
        Ok(RedisServer {
            program,
            args,
            port: HeldPort::hold()?,
            bus: bus.then(HeldPort::hold).transpose()?,
            has_tls,
            config,
            process: Mutex::new(None),
            dir,
        })
    }

    /// Starts it.
    ///
    /// # Errors
    ///
    /// As for [`RedisServer::start`].
    pub async fn start(self) -> io::Result<RedisServer> {
        let mut starts = STARTS;
        loop {
            starts -= 1;
            let server = self.clone().prepare()?;
            let mut process = server.spawn()?;
            match server.ready(&mut process).await {
                Ok(()) => {
                    *server.process() = Some(process);
                    return Ok(server);
                }
                // Asked only now: a run of the tests starts thousands of servers.
                Err(error) => {
                    process::must_be_installed(&self.program)?;
                    if starts == 0 {
                        return Err(error);
                    }
                }
            }
        }
    }
}
