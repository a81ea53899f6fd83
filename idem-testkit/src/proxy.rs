//! A faulty network between a client and a server.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A TCP proxy that can cut connections, swallow replies and delay them.
///
/// It runs in the tokio runtime in which it was started, and ends, with all its connections, when it is dropped.
///
/// # Examples
///
/// ```no_run
/// use idem_testkit::{Proxy, RedisServer};
///
/// # async fn example() -> std::io::Result<()> {
/// let server = RedisServer::start().await?;
/// let proxy = Proxy::start(&server.url()).await?;
/// // Connect to proxy.url(), then:
/// proxy.swallow_replies(true); // requests are carried out, and nobody hears of it
/// proxy.restore();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    mode: Arc<watch::Sender<Mode>>,
    listening: JoinHandle<()>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Mode {
    cut: bool,
    swallow: bool,
    delay: Duration,
}

impl Proxy {
    /// Starts one before a server, which is given as `host:port` or as a URL with both.
    ///
    /// # Errors
    ///
    /// If no port can be listened at.
    pub async fn start(upstream: &str) -> io::Result<Self> {
        let address = upstream.split_once("://").map_or(upstream, |(_, rest)| rest);
        let address: Arc<str> = address.split(['/', '?']).next().unwrap_or_default().into();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let mode = Arc::new(watch::Sender::new(Mode::default()));
        let listening = tokio::spawn(listen(listener, address, mode.subscribe()));
        Ok(Self { port, mode, listening })
    }

    /// Where Redis clients connect to.
    pub fn url(&self) -> String {
        format!("redis://{}/", self.address())
    }

    /// Where any client connects to.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Ends all connections, and each new one at once.
    pub fn cut(&self) {
        self.mode.send_modify(|mode| mode.cut = true);
    }

    /// Keeps replies from the client, while its requests reach the server. A connection that has missed a reply ends when replies
    /// are let through again, since what follows would answer other requests.
    pub fn swallow_replies(&self, swallow: bool) {
        self.mode.send_modify(|mode| mode.swallow = swallow);
    }

    /// Delays each reply.
    pub fn delay(&self, delay: Duration) {
        self.mode.send_modify(|mode| mode.delay = delay);
    }

    /// Does nothing of it any more.
    pub fn restore(&self) {
        self.mode.send_replace(Mode::default());
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.cut();
        self.listening.abort();
    }
}

async fn listen(listener: TcpListener, upstream: Arc<str>, mode: watch::Receiver<Mode>) {
    while let Ok((client, _)) = listener.accept().await {
        if !mode.borrow().cut {
            tokio::spawn(connect(client, Arc::clone(&upstream), mode.clone()));
        }
    }
}

async fn connect(client: TcpStream, upstream: Arc<str>, mode: watch::Receiver<Mode>) {
    // A server that is down looks to the client as it is: the connection ends.
    let Ok(server) = TcpStream::connect(&*upstream).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let mut cut = mode.clone();
    // Whichever ends first ends the connection, in both directions.
    tokio::select! {
        biased;
        _ = cut.wait_for(|mode| mode.cut) => {}
        () = requests(from_client, to_server) => {}
        () = replies(from_server, to_client, mode) => {}
    }
}

async fn requests(mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    let _ = tokio::io::copy(&mut from, &mut to).await;
}

async fn replies(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut mode: watch::Receiver<Mode>) {
    let mut buffer = vec![0; 64 * 1024];
    let mut swallowed = false;
    loop {
        let read = tokio::select! {
            _ = mode.wait_for(|mode| swallowed && !mode.swallow) => return,
            read = from.read(&mut buffer) => read,
        };
        let (Ok(length @ 1..), Mode { swallow, delay, .. }) = (read, *mode.borrow()) else { return };
        if swallow {
            swallowed = true;
            continue;
        }
        tokio::time::sleep(delay).await;
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}
