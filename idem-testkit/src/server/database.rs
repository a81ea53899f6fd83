//! The common part of the private servers of databases and brokers.

use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::Ipv4Addr;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{env, fs, io};

use tempfile::TempDir;
use tokio::net::TcpStream;

use super::port::HeldPort;
use super::process::Process;

/// How many times the server is asked whether it is ready, each time after a pause.
const ASKED: u32 = 9000;
const PAUSE: Duration = Duration::from_millis(20);
/// `PostgreSQL` says so while a process of the killed server lives on, which is for a moment.
const STILL_HELD: &str = "shared memory block";
/// Whom a server runs as where the tests run as root, which both databases refuse or advise
/// against: `nobody`.
const NOBODY: u32 = 65534;

/// A kind of database, or of broker.
pub(super) trait Kind: Sized + 'static {
    /// As directories and messages call it.
    const NAME: &'static str;

    /// The server's program, or an error that says how to install it.
    fn program() -> io::Result<PathBuf>;

    /// The command that creates an empty database in a directory.
    fn create(dir: &Path) -> io::Result<Command>;

    /// The server's arguments. Further ports that it needs are held by `more`.
    fn arguments(dir: &Path, port: u16, more: &mut Vec<HeldPort>) -> io::Result<Vec<OsString>>;
}

/// A private server. It is killed when this is dropped, and when this process ends, in whatever
/// way.
#[derive(Debug)]
pub(super) struct Database {
    program: PathBuf,
    args: Vec<OsString>,
    port: HeldPort,
    _more: Vec<HeldPort>,
    process: Mutex<Option<Process>>,
    // Dropped after the process.
    dir: TempDir,
}

impl Database {
    /// Starts one, with these arguments besides.
    pub(super) async fn start<K: Kind>(args: &[&str]) -> io::Result<Self> {
        let template = tokio::task::spawn_blocking(template::<K>)
            .await
            .map_err(io::Error::other)??;
        // The copy keeps who owns it.
        let copy = |dir: &Path| {
            run(Command::new("cp")
                .arg("-a")
                .arg(template.join("."))
                .arg(dir))
        };
        Self::start_on::<K>(copy, args).await
    }

    /// Starts one whose files a command makes, which runs as the server does.
    pub(super) async fn start_made_by<K: Kind>(
        make: impl Fn(&Path) -> io::Result<Command>,
        args: &[&str],
    ) -> io::Result<Self> {
        let make = |dir: &Path| {
            own(dir)?;
            run_unprivileged(&make(dir)?, dir)
        };
        Self::start_on::<K>(make, args).await
    }

    async fn start_on<K: Kind>(
        fill: impl Fn(&Path) -> io::Result<()>,
        args: &[&str],
    ) -> io::Result<Self> {
        let program = K::program()?;
        let server = Self::prepare::<K>(&program, &fill, args)?;
        let mut process = server.spawn()?;
        server.ready(&mut process).await?;
        *server.process() = Some(process);
        Ok(server)
    }

    pub(super) fn port(&self) -> u16 {
        self.port.port()
    }

    pub(super) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(super) fn signal(&self, signal: &str) -> io::Result<()> {
        match self.process().as_mut() {
            Some(process) => process.signal(signal),
            None => Err(io::Error::other(
                "the server was killed, and not started again",
            )),
        }
    }

    pub(super) fn kill(&self) -> io::Result<()> {
        self.process().take().map_or(Ok(()), Process::kill)
    }

    pub(super) async fn restart(&self) -> io::Result<()> {
        self.kill()?;
        for _ in 0..ASKED {
            let mut process = self.spawn()?;
            let Err(error) = self.ready(&mut process).await else {
                *self.process() = Some(process);
                return Ok(());
            };
            process.kill()?;
            if !error.to_string().contains(STILL_HELD) {
                return Err(error);
            }
        }
        Err(io::Error::other("what the killed server left did not end"))
    }

    fn prepare<K: Kind>(
        program: &Path,
        fill: impl Fn(&Path) -> io::Result<()>,
        args: &[&str],
    ) -> io::Result<Self> {
        let port = HeldPort::hold()?;
        let dir = tempfile::Builder::new()
            .prefix(&format!("idem-{}-", K::NAME))
            .tempdir()?;
        fill(dir.path())?;
        let mut more = Vec::new();
        let mut all = K::arguments(dir.path(), port.port(), &mut more)?;
        all.extend(args.iter().map(OsString::from));
        Ok(Self {
            program: program.to_owned(),
            args: all,
            port,
            _more: more,
            process: Mutex::new(None),
            dir,
        })
    }

    fn spawn(&self) -> io::Result<Process> {
        let (program, before) = unprivileged(&self.program);
        Process::spawn(
            &program,
            before.into_iter().chain(self.args.iter().cloned()),
            self.dir.path(),
        )
    }

    async fn ready(&self, process: &mut Process) -> io::Result<()> {
        for _ in 0..ASKED {
            tokio::time::sleep(PAUSE).await;
            if let Some(why) = process.death()? {
                return Err(io::Error::other(format!(
                    "the server on port {} ended at once: {why}",
                    self.port()
                )));
            }
            if process.says_ready()
                && TcpStream::connect((Ipv4Addr::LOCALHOST, self.port()))
                    .await
                    .is_ok()
            {
                return Ok(());
            }
        }
        Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the server was not ready within 180 s of its start",
        ))
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The methods that the private servers of all databases have.
macro_rules! database_server {
    ($Server:ident, $Kind:ty) => {
        impl $Server {
            /// Starts one.
            ///
            /// # Errors
            ///
            /// If it is not installed, or does not start; says why, and what to do.
            pub async fn start() -> std::io::Result<Self> {
                Self::start_with(&[]).await
            }

            /// Starts one with further arguments of the server's program.
            ///
            /// # Errors
            ///
            /// As [`start`](Self::start).
            pub async fn start_with(args: &[&str]) -> std::io::Result<Self> {
                $crate::server::database::Database::start::<$Kind>(args)
                    .await
                    .map(Self)
            }

            /// One for all tests of this process. It is started at the first call, and killed when
            /// the process ends. Tests that share it use keys or tables of their own, and leave it
            /// running.
            ///
            /// # Errors
            ///
            /// As [`start`](Self::start).
            pub async fn shared() -> std::io::Result<&'static Self> {
                static SHARED: tokio::sync::OnceCell<$Server> = tokio::sync::OnceCell::const_new();
                SHARED.get_or_try_init(Self::start).await
            }

            /// Its URL, with the password if there is one.
            pub fn url(&self) -> String {
                self.url_through(self.port())
            }

            /// Its port on `127.0.0.1`, which nobody else is given while the server is down.
            pub fn port(&self) -> u16 {
                self.0.port()
            }

            /// The directory of its files.
            pub fn dir(&self) -> &std::path::Path {
                self.0.dir()
            }

            /// Suspends all its processes (SIGSTOP): connections stay, and nothing is answered.
            ///
            /// # Errors
            ///
            /// If it does not run.
            pub fn pause(&self) -> std::io::Result<()> {
                self.0.signal("STOP")
            }

            /// Lets it go on after [`pause`](Self::pause).
            ///
            /// # Errors
            ///
            /// If it does not run.
            pub fn resume(&self) -> std::io::Result<()> {
                self.0.signal("CONT")
            }

            /// Kills all its processes, as a host dies. Its data stays.
            ///
            /// # Errors
            ///
            /// If killing fails. A stopped server is not an error.
            pub fn kill(&self) -> std::io::Result<()> {
                self.0.kill()
            }

            /// Kills it if it runs, and starts it again at the same port, with its data.
            ///
            /// # Errors
            ///
            /// If it does not start.
            pub async fn restart(&self) -> std::io::Result<()> {
                self.0.restart().await
            }
        }
    };
}
pub(super) use database_server;

/// An empty database, which each server copies, because creating one takes seconds. It lies in
/// cargo's target directory, and its name tells the program and all settings that it was made with.
fn template<K: Kind>() -> io::Result<PathBuf> {
    // Of several tests that come first, one creates it.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);

    let made = tempfile::Builder::new()
        .prefix(&format!("idem-{}-made-", K::NAME))
        .tempdir()?;
    own(made.path())?;
    let create = K::create(made.path())?;
    let mut hasher = DefaultHasher::new();
    fs::metadata(K::program()?)?.mtime().hash(&mut hasher);
    owner().hash(&mut hasher);
    let folder = made.path().to_string_lossy();
    format!("{create:?}")
        .replace(&*folder, "")
        .hash(&mut hasher);
    // The files that it is given, such as the first statements.
    let mut files: Vec<_> = fs::read_dir(made.path())?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<io::Result<_>>()?;
    files.sort();
    for file in files.iter().filter(|file| file.is_file()) {
        file.file_name().hash(&mut hasher);
        fs::read(file)?.hash(&mut hasher);
    }
    let name = format!("idem-{}-{:016x}", K::NAME, hasher.finish());
    let path = templates()?.join(name);
    if path.exists() {
        return Ok(path);
    }
    run_unprivileged(&create, made.path())?;
    // Moved there as a whole: another process may be doing the same.
    let copy = tempfile::Builder::new()
        .prefix("idem-copy-")
        .tempdir_in(templates()?)?;
    run(Command::new("cp")
        .arg("-a")
        .arg(made.path().join("."))
        .arg(copy.path()))?;
    match fs::rename(copy.path(), &path) {
        Err(error) if !path.exists() => Err(error),
        _ => Ok(path),
    }
}

/// The directory of templates: in cargo's target directory, or next to this program if cargo did not
/// build it.
fn templates() -> io::Result<PathBuf> {
    let program = env::current_exe()?;
    let target = program
        .ancestors()
        .find(|folder| folder.join("CACHEDIR.TAG").is_file());
    let folder = target
        .or(program.parent())
        .map(|folder| folder.join("idem-templates"));
    let folder = folder.ok_or_else(|| io::Error::other("this program lies in no directory"))?;
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// Gives a directory to whom the server runs as.
fn own(dir: &Path) -> io::Result<()> {
    let is_root = fs::metadata("/proc/self")?.uid() == 0;
    if is_root {
        chown(dir, Some(NOBODY), Some(NOBODY))
    } else {
        Ok(())
    }
}

/// Runs a command in a directory as the server runs.
fn run_unprivileged(command: &Command, dir: &Path) -> io::Result<()> {
    let (program, before) = unprivileged(Path::new(command.get_program()));
    let env = command.get_envs();
    run(Command::new(program)
        .args(before)
        .args(command.get_args())
        .envs(env.filter_map(|(name, value)| Some((name, value?))))
        .current_dir(dir))
}

/// Whose files those of a server are.
fn owner() -> u32 {
    let user = fs::metadata("/proc/self").map_or(NOBODY, |found| found.uid());
    if user == 0 { NOBODY } else { user }
}

/// A program and the arguments before its own, so that it does not run as root.
fn unprivileged(program: &Path) -> (OsString, Vec<OsString>) {
    if fs::metadata("/proc/self").is_ok_and(|found| found.uid() == 0) {
        let user = format!("--reuid={NOBODY}");
        let group = format!("--regid={NOBODY}");
        (
            "setpriv".into(),
            vec![
                user.into(),
                group.into(),
                "--clear-groups".into(),
                "--".into(),
                program.into(),
            ],
        )
    } else {
        (program.into(), Vec::new())
    }
}

/// Runs a command to its end; its output is the error where it fails.
pub(super) fn run(command: &mut Command) -> io::Result<()> {
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    Err(io::Error::other(format!(
        "{command:?} failed: {}",
        String::from_utf8_lossy(&said)
    )))
}

/// Looks for a program in `PATH`, then in other directories.
pub(super) fn find(program: &str, others: &[PathBuf], install: &str) -> io::Result<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let directories = env::split_paths(&path).chain(others.iter().cloned());
    directories.map(|dir| dir.join(program)).find(|file| file.is_file()).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::NotFound,
            format!(
                "`{program}` is not installed, and these tests need a real one: `cargo xtask test` \
                 or `cargo xtask ci` installs it, or do it by hand ({install})"
            ),
        )
    })
}
