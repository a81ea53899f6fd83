//! A way to the server on which round trips are counted.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// Passes connections on. Ends, with all of them, when it is dropped.
pub(crate) struct Tap {
    port: u16,
    counts: Arc<Counts>,
    accepting: JoinHandle<io::Result<()>>,
}

#[derive(Default)]
struct Counts {
    round_trips: AtomicU64,
    bytes: AtomicU64,
}

impl Tap {
    /// Before the server at a port of this host.
    pub(crate) async fn start(server: u16) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let counts = Arc::<Counts>::default();
        let accepting = tokio::spawn(accept(listener, server, counts.clone()));
        Ok(Self {
            port,
            counts,
            accepting,
        })
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// How often something was sent to the server after it had answered: a pipeline counts once,
    /// whatever it is cut into on its way.
    pub(crate) fn round_trips(&self) -> u64 {
        self.counts.round_trips.load(Ordering::Relaxed)
    }

    /// How many bytes were sent to the server.
    pub(crate) fn bytes(&self) -> u64 {
        self.counts.bytes.load(Ordering::Relaxed)
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, server: u16, counts: Arc<Counts>) -> io::Result<()> {
    // Aborts what is in it when it is dropped.
    let mut connections = JoinSet::new();
    loop {
        let (client, _) = listener.accept().await?;
        connections.spawn(pass(client, server, counts.clone()));
    }
}

async fn pass(client: TcpStream, server: u16, counts: Arc<Counts>) -> io::Result<()> {
    let server = TcpStream::connect(("127.0.0.1", server)).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let answered = AtomicBool::new(true);
    let requests = async {
        let mut buffer = vec![0; 1 << 16];
        loop {
            let length = from_client.read(&mut buffer).await?;
            if length == 0 {
                return to_server.shutdown().await;
            }
            counts.bytes.fetch_add(length as u64, Ordering::Relaxed);
            if answered.swap(false, Ordering::Relaxed) {
                counts.round_trips.fetch_add(1, Ordering::Relaxed);
            }
            to_server.write_all(&buffer[..length]).await?;
        }
    };
    let replies = async {
        let mut buffer = vec![0; 1 << 16];
        loop {
            let length = from_server.read(&mut buffer).await?;
            if length == 0 {
                return to_client.shutdown().await;
            }
            answered.store(true, Ordering::Relaxed);
            to_client.write_all(&buffer[..length]).await?;
        }
    };
    tokio::try_join!(requests, replies).map(drop)
}
