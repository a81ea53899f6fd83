//! The server's process, and the shell that sees to its end.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Starts the server, and takes orders from standard input: the names of signals. When that ends,
/// because this process dropped it or died, whatever of, it kills the server and removes the
/// directory. When the server ends, so does everything.
///
/// A signal goes to the server's children too: those of PostgreSQL serve one connection each, and
/// would go on.
///
/// What PostgreSQL would free at a clean end is freed for it: a segment of shared memory, of which a
/// host has a few thousand. Its file names it.
///
/// Making a process die with its parent takes unsafe code; a pipe does it safely.
const SHELL: &str = r#"
dir=$1
shift
exec 3<&0 </dev/null
"$@" 3<&- >"$dir/log" 2>&1 &
server=$!
trap '' HUP INT TERM
# The segment ends with the last process that is attached to it.
free() {
    of_postgres="$dir/data/postmaster.pid"
    [ -f "$of_postgres" ] && ipcrm -m $(sed -n '7s/.* //p' "$of_postgres")
}
# A signal is sent to a process, and its other threads run on until one of them has taken it. This
# waits for that, for ten seconds at most.
stopped() {
    tries=1000
    for process; do
        while [ "$tries" -gt 0 ] && grep -q '^State:[[:space:]][^TZX]' "/proc/$process/task/"*/status; do
            tries=$((tries - 1))
            sleep 0.01
        done
    done
}
(
    while read -r signal <&3; do
        case $signal in
            KILL)
                # Its end is the end of this, and children that are alive then answer once more. So
                # they go first, and a server that is stopped starts none.
                kill -STOP "$server" && { free; kill -KILL $(cat "/proc/$server/task/"*/children); kill -KILL "$server"; }
                ;;
            *)
                kill "-$signal" "$server" && {
                    [ "$signal" = STOP ] && stopped "$server"
                    children=$(cat "/proc/$server/task/"*/children)
                    kill "-$signal" $children
                    [ "$signal" = STOP ] && stopped $children
                    echo sent
                }
                ;;
        esac
    done
    # Stopped first, so that it writes no file into a directory that is being removed.
    children=$(cat "/proc/$server/task/"*/children)
    kill -STOP "$server" $children
    free
    for try in 1 2 3 4 5 6 7 8 9; do rm -rf -- "$dir" && break; sleep 0.1; done
    # The server last: its end is the end of this, and children that are stopped would stay so.
    kill -KILL $children "$server"
) 2>/dev/null &
watcher=$!
exec 3<&- >/dev/null
wait "$server"
kill -KILL "$watcher"
"#;

/// A server that was started. Killed when dropped.
#[derive(Debug)]
pub(super) struct Process {
    shell: Child,
    // `None` only while it is dropped.
    orders: Option<ChildStdin>,
    sent: BufReader<ChildStdout>,
    log: PathBuf,
    /// The log again, read as far as it was searched.
    searched: File,
    /// The end of what was searched: a line that was not complete.
    line: Vec<u8>,
    is_ready: bool,
}

/// What servers log once they listen: Redis, a Sentinel (its id), PostgreSQL and its standby,
/// MariaDB and MySQL, RabbitMQ, NATS, PgBouncer.
const READY: [&str; 8] = [
    "Ready to accept connections",
    "Sentinel ID is",
    "database system is ready to accept connections",
    "database system is ready to accept read-only connections",
    "ready for connections",
    "Server startup complete",
    "Server is ready",
    "process up: PgBouncer",
];

impl Process {
    pub(super) fn spawn(
        program: &OsStr,
        args: impl Iterator<Item = OsString>,
        dir: &Path,
    ) -> io::Result<Self> {
        let log = dir.join("log");
        // An older log would say that the server is ready.
        fs::write(&log, "")?;
        let mut shell = Command::new("sh")
            .args(["-c", SHELL, "sh"])
            .arg(dir)
            .arg(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let (Some(orders), Some(sent)) = (shell.stdin.take(), shell.stdout.take()) else {
            return Err(io::Error::other("the shell has no pipes"));
        };
        Ok(Self {
            shell,
            orders: Some(orders),
            sent: BufReader::new(sent),
            searched: File::open(&log)?,
            log,
            line: Vec::new(),
            is_ready: false,
        })
    }

    /// Sends the server a signal. It was sent when this returns, and after `STOP` all stands still.
    pub(super) fn signal(&mut self, signal: &str) -> io::Result<()> {
        if let Some(orders) = &mut self.orders {
            writeln!(orders, "{signal}")?;
        }
        let mut line = String::new();
        match self.sent.read_line(&mut line)? {
            0 => Err(io::Error::other(format!(
                "the server has ended: {}",
                self.end_of_log()
            ))),
            _ => Ok(()),
        }
    }

    /// Kills the server, and waits until it is gone. Its directory stays.
    pub(super) fn kill(mut self) -> io::Result<()> {
        // One that has ended by itself takes no signal, which is as well.
        let _ = self.signal("KILL");
        self.shell.wait().map(drop)
    }

    /// The end of the server's log, if the server has ended.
    pub(super) fn death(&mut self) -> io::Result<Option<String>> {
        Ok(self.shell.try_wait()?.map(|_| self.end_of_log()))
    }

    /// Returns whether the server has said that it listens.
    pub(super) fn says_ready(&mut self) -> bool {
        // A log that cannot be read now can be at the next call.
        let _ = self.searched.read_to_end(&mut self.line);
        let said = String::from_utf8_lossy(&self.line);
        self.is_ready |= READY.iter().any(|ready| said.contains(ready));
        if let Some(end) = self.line.iter().rposition(|byte| *byte == b'\n') {
            self.line.drain(..=end);
        }
        self.is_ready
    }

    fn end_of_log(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().filter(|line| !line.is_empty()).collect();
        lines
            .get(lines.len().saturating_sub(5)..)
            .unwrap_or_default()
            .join("\n")
    }

    fn log(&self) -> String {
        fs::read(&self.log)
            .map(|log| String::from_utf8_lossy(&log).into_owned())
            .unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.orders.take());
        // Nothing can be done about a failure here, and nothing in the server is worth a clean end.
        let _ = self.shell.wait();
    }
}

/// An error that says what to do unless a program can be started.
pub(super) fn must_be_installed(program: &OsStr) -> io::Result<()> {
    let version = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .output();
    match version {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(io::Error::new(
            io::ErrorKind::NotFound,
            format!(
                "`{}` is not installed, and these tests need a real one, version 7 or later: \
                 `cargo xtask test` installs it, or do it by hand (`apt-get install redis-server`, \
                 `brew install redis`)",
                program.to_string_lossy()
            ),
        )),
        result => result.map(drop),
    }
}
