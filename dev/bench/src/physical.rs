//! What the machine itself takes: a message over loopback, the least statement, and the disk.

use std::fs::File;
use std::io::Write as _;
use std::time::Instant;

use anyhow::{Result, ensure};
use idem::sqlx::mysql::MySqlPoolOptions;
use idem::sqlx::postgres::PgPoolOptions;
use idem::sqlx::{self, MySqlPool, PgPool};
use idem_testkit::{MariaDbServer, PostgresServer, RedisServer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::extent::Extent;
use crate::report::{Figure, Group, Report, Unit};
use crate::stats::median;

/// So many times fewer waits for the disk than messages.
const FEWER: u64 = 10;
/// About as much as a commit writes.
const APPENDED: [u8; 512] = [b'x'; 512];

/// What is measured.
struct Machine {
    echo: TcpStream,
    redis: TcpStream,
    postgres: PgPool,
    mariadb: MySqlPool,
    file: File,
}

pub(crate) async fn measure(extent: &Extent, report: &mut Report) -> Result<()> {
    let redis = RedisServer::start().await?;
    let postgres = report.started("PostgreSQL", PostgresServer::start().await);
    let mariadb = report.started("MariaDB", MariaDbServer::start().await);
    let (Some(postgres), Some(mariadb)) = (postgres, mariadb) else {
        return Ok(());
    };
    let machine = Machine {
        echo: echo().await?,
        redis: connect(redis.port()).await?,
        postgres: PgPoolOptions::new()
            .max_connections(1)
            .test_before_acquire(false)
            .connect(&postgres.url())
            .await?,
        mariadb: MySqlPoolOptions::new()
            .max_connections(1)
            .test_before_acquire(false)
            .connect(&mariadb.url())
            .await?,
        file: tempfile::tempfile()?,
    };
    // In a task, as a service has it.
    let extent = *extent;
    let figures = tokio::spawn(machine.figures(extent)).await??;
    report.groups.push(Group {
        title: "What the machine itself takes".to_owned(),
        figures,
    });
    Ok(())
}

/// The shortest of each kind of work.
#[derive(Clone, Copy)]
enum Work {
    Echo,
    Redis,
    Postgres,
    Mariadb,
    Disk,
}

impl Work {
    const ALL: [Self; 5] = [
        Self::Echo,
        Self::Redis,
        Self::Postgres,
        Self::Mariadb,
        Self::Disk,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Echo => "a byte over loopback to another task, and back",
            Self::Redis => "PING of Redis over loopback",
            Self::Postgres => "SELECT 1 of PostgreSQL by sqlx",
            Self::Mariadb => "SELECT 1 of MariaDB by sqlx",
            Self::Disk => "append 512 bytes to a file, and fsync",
        }
    }
}

impl Machine {
    async fn figures(mut self, extent: Extent) -> Result<Vec<Figure>> {
        let mut times = Work::ALL.map(|_| Vec::new());
        for round in 0..=extent.rounds {
            eprintln!("the machine, round {}", extent.round(round));
            for (work, times) in Work::ALL.into_iter().zip(&mut times) {
                let time = self.time(work, extent.calls).await?;
                // The first round warms up.
                if round > 0 {
                    times.push(time);
                }
            }
        }
        let figures = Work::ALL.into_iter().zip(times);
        let figures =
            figures.map(|(work, times)| Figure::new(work.name(), Unit::Microseconds, times));
        Ok(figures.collect())
    }

    /// The median of so many calls, in microseconds.
    async fn time(&mut self, work: Work, calls: u64) -> Result<f64> {
        let calls = match work {
            Work::Disk => calls / FEWER,
            _ => calls,
        };
        let mut times = Vec::new();
        for _ in 0..calls {
            let begun = Instant::now();
            match work {
                Work::Echo => message(&mut self.echo, b"x", b"x").await?,
                Work::Redis => message(&mut self.redis, b"PING\r\n", b"+PONG\r\n").await?,
                Work::Postgres => {
                    sqlx::query("SELECT 1").execute(&self.postgres).await?;
                }
                Work::Mariadb => {
                    sqlx::query("SELECT 1").execute(&self.mariadb).await?;
                }
                Work::Disk => append(&mut self.file)?,
            }
            times.push(begun.elapsed().as_secs_f64() * 1e6);
        }
        Ok(median(&times))
    }
}

async fn message(stream: &mut TcpStream, sent: &[u8], expected: &[u8]) -> Result<()> {
    stream.write_all(sent).await?;
    let mut answer = [0; 16];
    let answer = &mut answer[..expected.len()];
    stream.read_exact(answer).await?;
    ensure!(answer == expected, "another answer");
    Ok(())
}

fn append(file: &mut File) -> Result<()> {
    file.write_all(&APPENDED)?;
    Ok(file.sync_all()?)
}

/// A connection to a task that sends back what it gets.
async fn echo() -> Result<TcpStream> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let (mut reader, mut writer) = stream.split();
        tokio::io::copy(&mut reader, &mut writer).await
    });
    connect(port).await
}

async fn connect(port: u16) -> Result<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}
