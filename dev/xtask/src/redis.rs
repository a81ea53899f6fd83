//! `redis-server`: made sure of, and started for the steps that need one of their own.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use xshell::{Shell, TempDir, cmd};

use crate::tool;

const SERVER: tool::Package = tool::Package {
    program: "redis-server",
    apt: "redis-server",
    brew: "redis",
};

/// `SET .. NX GET`, the claim, came with this one.
const OLDEST_MAJOR: u32 = 7;

/// A server must answer within this time of its start.
const START: Duration = Duration::from_secs(10);

/// Makes sure that there is a `redis-server`, new enough, and installs one if there is none.
pub(crate) fn ensure(shell: &Shell) -> Result<()> {
    tool::ensure(
        shell,
        SERVER,
        "the Redis store is tested against a real server",
    )?;
    let said = cmd!(shell, "redis-server --version").quiet().read()?;
    let version = said
        .split_whitespace()
        .find_map(|word| word.strip_prefix("v="))
        .unwrap_or_default();
    // A version that cannot be read is let through: the tests will tell.
    let major = version
        .split('.')
        .next()
        .and_then(|major| major.parse::<u32>().ok());
    if major.is_some_and(|major| major < OLDEST_MAJOR) {
        bail!(
            "redis-server {version} is too old: install Redis {OLDEST_MAJOR} or newer, or Valkey \
             as redis-server"
        );
    }
    Ok(())
}

/// A server of our own on a free port, empty, without persistence. It ends when this is dropped.
pub(crate) struct Server {
    process: Child,
    port: u16,
    // Dropped after the process has ended.
    _dir: TempDir,
}

impl Server {
    pub(crate) fn start(shell: &Shell) -> Result<Self> {
        ensure(shell)?;
        // The port is free when it is looked up, and may be taken a moment later.
        let mut tries = 3;
        loop {
            tries -= 1;
            match Self::try_start(shell) {
                Err(error) if tries > 0 => println!("starting redis-server again: {error:#}"),
                result => return result,
            }
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    fn try_start(shell: &Shell) -> Result<Self> {
        let dir = shell.create_temp_dir()?;
        let log = dir.path().join("log");
        let port = free_port()?;
        let process = Command::new(SERVER.program)
            .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
            .args(["--save", "", "--appendonly", "no"])
            .arg("--dir")
            .arg(dir.path())
            .arg("--logfile")
            .arg(&log)
            .stdin(Stdio::null())
            .spawn()
            .context("cannot start redis-server")?;
        let mut server = Self {
            process,
            port,
            _dir: dir,
        };
        let started = Instant::now();
        while !answers(port) {
            if let Some(status) = server.process.try_wait()? {
                bail!(
                    "redis-server ended ({status}): {}",
                    fs::read_to_string(&log).unwrap_or_default()
                );
            }
            if started.elapsed() > START {
                bail!("redis-server on port {port} did not answer within {START:?}");
            }
            sleep(Duration::from_millis(20));
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Nothing can be done about a failure here, and nothing in the server is worth a clean end.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port")?;
    Ok(listener.local_addr()?.port())
}

fn answers(port: u16) -> bool {
    let limit = Duration::from_secs(1);
    let ping = || -> std::io::Result<[u8; 5]> {
        let mut stream =
            TcpStream::connect_timeout(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)), limit)?;
        stream.set_read_timeout(Some(limit))?;
        stream.write_all(b"PING\r\n")?;
        let mut reply = [0; 5];
        stream.read_exact(&mut reply)?;
        Ok(reply)
    };
    ping().is_ok_and(|reply| &reply == b"+PONG")
}
